"""A translation model as the methods' equations use it: it translates, descends, is rewarded."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.autograd.forward_ad import dual_level

from metabt.config import Optimiser as OptimiserSettings
from metabt.errors import UserError
from metabt.methods.blocks.sentences import Numbered, Pairs, Sentences, Translations
from metabt.methods.blocks.slopes import slopes
from metabt.nmt.many import decode_many
from metabt.nmt.model_files import SavedModel
from metabt.nmt.noise import add_noise, word_beginnings
from metabt.nmt.translate import Generation
from metabt.training.learner import Learner, Machine, micro_batches, score
from metabt.training.optimisers import rate_at


@dataclass(frozen=True)
class Descent:
    """A step of an optimiser: the batch's sums, and -log p of each part's sentences before it."""

    sums: dict[str, float]
    nll: list[np.ndarray]


class Translator:
    """theta or psi. Without an optimiser it stays as it is, and has neither gradient nor state."""

    def __init__(
        self,
        saved: SavedModel,
        machine: Machine,
        generation: Generation,
        seed: tuple[int, ...],
        optimiser: OptimiserSettings | None = None,
        smoothing: float = 0.0,
    ) -> None:
        self.saved, self.machine, self.generation = saved, machine, generation
        self.seed, self.smoothing = seed, smoothing
        self._learner = Learner(saved.model, optimiser, machine) if optimiser else None

    @property
    def learner(self) -> Learner:
        if self._learner is None:
            raise UserError("a model without an optimiser cannot learn")
        return self._learner

    def tensors(self, name: str) -> dict[str, Tensor]:
        return self.learner.tensors(name)

    # --- translating ------------------------------------------------------------------------------

    def translate(self, batch: Numbered, number: int) -> Translations:
        """The step's translations, by this model's way of generating them; no gradient."""
        self.saved.model.eval()
        # Every step is another draw; a sentence's own number does the rest.
        seed = int(np.random.SeedSequence([*self.seed, number]).generate_state(1, np.uint32)[0])
        generation = replace(self.generation, seed=seed)

        def decode(indices: np.ndarray, sources: list[np.ndarray]) -> list[list]:
            with self.machine.autocast():
                return generation(self.saved, batch.numbers[indices], sources)

        found = decode_many(batch.sentences, decode, self.machine.threads)
        best = [hypotheses[0] for hypotheses in found]
        return Translations(
            batch.sentences,
            [h.ids for h in best],
            np.array([h.log_prob for h in best]),
            np.array([h.complete for h in best]),
        )

    def restoration(self, batch: Numbered, number: int) -> Pairs:
        """Noisy sentences, and what they were."""
        begins = word_beginnings(self.saved.subwords.pieces)
        seeds = ([*self.seed, number, int(i)] for i in batch.numbers)
        noisy = [
            add_noise(sentence, begins, np.random.default_rng(seed))
            for sentence, seed in zip(batch.sentences, seeds, strict=True)
        ]
        return Pairs(noisy, batch.sentences)

    # --- learning ---------------------------------------------------------------------------------

    def descend(self, number: int, *parts: Pairs) -> Descent | None:
        """A step of the optimiser on the mean loss over all target tokens of the parts together.

        None if it was not finite: then nothing has changed.
        """
        group = self.machine.group
        sides = [
            [s for part in parts for s in part.sources],
            [t for part in parts for t in part.targets],
        ]
        tokens = group.sums({"tokens": sum(part.tokens for part in parts)})["tokens"]
        seed = (*self.seed, number, group.rank)
        if group.device.type == "cuda":
            torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        loss, nll = self.learner.accumulate(sides, 1 / tokens, self.smoothing, dropout=seed)
        sums = group.sums({"loss": loss, "nll": nll.sum()})
        norm = self.learner.update(number, sums["loss"])
        if norm is None:
            return None
        rate = rate_at(self.learner.settings, number)
        sums = {**sums, "tokens": tokens, "gradient_norm": norm, "rate": rate, "steps": 1}
        return Descent(sums, np.split(nll, np.cumsum([len(part.sources) for part in parts])[:-1]))

    def reinforce(self, number: int, drawn: Translations, advantages: np.ndarray) -> float:
        """REINFORCE: a step up the mean of advantage * log P(translation | source).

        P is what was sampled from: without dropout, among the k best if these were asked for, and
        without an end mark where the limit of length came first. Returns the gradient's norm, which
        is not finite if the step was skipped for that reason.
        """
        sentences = self.machine.group.sums({"sentences": len(advantages)})["sentences"]
        weights = [
            np.full(len(target) + 1, advantage / sentences)
            for target, advantage in zip(drawn.targets, advantages, strict=True)
        ]
        for i in np.flatnonzero(~drawn.complete):
            weights[i][-1] = 0
        sides = [drawn.sources, drawn.targets]
        self.learner.accumulate(sides, weights, sampling=self.generation.sampling)
        norm = self.learner.update(number, loss=0.0)
        return float("nan") if norm is None else norm

    # --- what MetaBT's reward is made of ----------------------------------------------------------

    def values(self) -> Tensor:
        """A copy of the parameters."""
        return self.learner.vector.values.clone()

    def gradient(self, pairs: Pairs) -> tuple[float, Tensor]:
        """The mean of -log p over the target tokens of a batch, and its gradient."""
        tokens = self.machine.group.sums({"tokens": pairs.tokens})["tokens"]
        loss, _ = self.learner.accumulate([pairs.sources, pairs.targets], 1 / tokens)
        return self.machine.group.sums({"loss": loss})["loss"], self.learner.take_gradient()

    def alignment(self, before: Tensor, gradient: Tensor) -> float:
        """The cosine of the last step (from `before` to here) with the way down a gradient."""
        step = before - self.learner.vector.values
        # Not torch's cosine_similarity, which keeps three more vectors of this size.
        return (step @ gradient / (step.norm() * gradient.norm())).item()

    def precondition_(self, direction: Tensor) -> None:
        """Times the diagonal by which the optimiser's last step multiplied the gradient."""
        self.learner.optimiser.precondition_(direction)

    def losses(self, pairs: Pairs) -> np.ndarray:
        """-log p of each target as the model is now, without dropout."""
        return score(self.saved.model, [pairs.sources, pairs.targets], self.machine)

    def slopes(self, pairs: Pairs, at: Tensor, along: Tensor) -> np.ndarray:
        """The product of each sentence's gradient at `at` with a direction."""
        workers = self.learner.workers
        result = np.zeros(len(pairs.sources))

        def work(number: int) -> None:
            worker = workers[number]
            worker.model.eval()
            mine = np.arange(number, len(result), len(workers))
            own = [[side[int(i)] for i in mine] for side in (pairs.sources, pairs.targets)]
            for part in micro_batches(own, self.machine.micro_tokens):
                here, mine = np.split(mine, [len(part[0])])
                with self.machine.autocast():
                    slopes_B = slopes(worker, part, at, along, self.smoothing)
                result[here] = slopes_B.double().cpu().numpy()

        with dual_level():
            list(self.machine.threads.map(work, range(len(workers))))
        return result


class Fluency:
    """A language model as a judge."""

    def __init__(self, saved: SavedModel, machine: Machine) -> None:
        self.saved, self.machine = saved, machine

    def log_probability_per_token(self, sentences: Sentences) -> np.ndarray:
        lengths = np.array([len(sentence) + 1 for sentence in sentences])
        return -score(self.saved.model, [sentences], self.machine) / lengths
