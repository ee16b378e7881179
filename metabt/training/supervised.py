"""Maximum likelihood on sentences as they are: pre-training, language models, No BT."""

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from metabt.config import Training
from metabt.data.batches import BatchStream, Corpus, Position
from metabt.data.shards import Shard
from metabt.data.subwords import Subwords
from metabt.errors import Interrupted, UserError
from metabt.nmt.decoding import greedy
from metabt.nmt.many import decode_many
from metabt.nmt.threads import ComputeThreads
from metabt.nmt.transformer import LanguageModel, Sides, Transformer
from metabt.training.distributed import Group
from metabt.training.loop import Signals
from metabt.training.optimisers import clip, optimiser, rate_at
from metabt.training.run import Run
from metabt.training.vector import ParameterVector


@dataclass(frozen=True)
class Machine:
    """Where a run happens; nothing of this belongs to its description."""

    group: Group
    threads: ComputeThreads
    micro_tokens: int  # of a forward and backward pass, on the longer side
    compile: bool = False

    def autocast(self) -> AbstractContextManager[Any]:
        if self.group.device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()


class Learner:
    """A model with its optimiser, and copies of it for other threads.

    `accumulate` adds the gradient of a batch's loss to the vector's; `update` makes the step.
    """

    def __init__(
        self, model: Transformer | LanguageModel, training: Training, machine: Machine
    ) -> None:
        self.machine, self.training = machine, training
        self.model = model.to(machine.group.device)
        self.vector = ParameterVector(self.model)
        self.optimiser = optimiser(self.vector, training.optimiser)
        workers = machine.threads.threads if machine.group.device.type == "cpu" else 1
        self.workers = [self.vector, *(self.vector.replica() for _ in range(workers - 1))]
        if machine.compile:
            for worker in self.workers:
                worker.model.compile(dynamic=True)

    def accumulate(self, sides: Sides, weight: float, seed: Sequence[int]) -> dict[str, float]:
        """Add the gradient of weight * (sum of token losses), micro-batch by micro-batch.

        The sentences are dealt out to the threads; every thread has a gradient of its own, and
        they are added in a fixed order, so the result does not depend on who was faster.
        """

        def work(number: int) -> tuple[float, float, int]:
            worker = self.workers[number]
            worker.model.train()
            loss_sum, nll_sum, tokens = 0.0, 0.0, 0
            mine = [side[number :: len(self.workers)] for side in sides]
            for i, part in enumerate(micro_batches(mine, self.machine.micro_tokens)):
                worker.model.dropout.restart((*seed, number, i))
                with self.machine.autocast():
                    loss, nll_T = worker.model.loss(part, weight, self.training.label_smoothing)
                loss.backward()
                loss_sum += loss.item()
                nll_sum += nll_T.sum().item()
                tokens += len(nll_T)
            return loss_sum, nll_sum, tokens

        sums = list(self.machine.threads.map(work, range(len(self.workers))))
        for worker in self.workers[1:]:
            self.vector.grads.add_(worker.grads)
            worker.grads.zero_()
        names = ("loss", "nll", "tokens")
        return {name: float(sum(s[i] for s in sums)) for i, name in enumerate(names)}

    def update(self, step: int, loss: float) -> float | None:
        """Reduce over processes, clip, step; the gradient's norm.

        If it or the loss is not finite, nothing happens and None is returned.
        """
        self.machine.group.add_up(self.vector.grads)
        norm = clip(self.vector, self.training.optimiser.clip).item()
        finite = bool(np.isfinite(norm) and np.isfinite(loss))
        if finite:
            self.optimiser.step(rate_at(self.training.optimiser, step))
        self.vector.grads.zero_()
        return norm if finite else None

    def tensors(self, name: str) -> dict[str, Tensor]:
        state = {f"{name}.{key}": value for key, value in self.optimiser.state.items()}
        return {f"{name}.values": self.vector.values, **state}


def micro_batches(sides: Sides, tokens: int) -> list[Sides]:
    """Cut a batch, in order, where the longer side would have more than so many tokens."""
    if not len(sides[0]):
        return []
    lengths = np.maximum.reduce([[len(s) + 1 for s in side] for side in sides])
    cuts, total = [0], 0
    for i, length in enumerate(lengths.tolist()):
        total += length
        if total > tokens and i > cuts[-1]:
            cuts.append(i)
            total = length
    cuts.append(len(lengths))
    return [[side[a:b] for side in sides] for a, b in pairwise(cuts)]


class Supervised:
    """Maximum likelihood with label smoothing."""

    columns: ClassVar = [
        "train_loss",
        "train_perplexity",
        "train_gradient_norm",
        "train_tokens",
        "train_epoch",
        "train_rate",
        "dev_loss",
        "dev_perplexity",
        "dev_bleu",
    ]

    def __init__(self, run: Run, machine: Machine, base: Path) -> None:
        self.run, self.training, self.machine = run, run.training, machine
        subwords = Subwords.load(base / run.vocabulary)
        vocabulary = hashlib.sha256((base / run.vocabulary).read_bytes()).hexdigest()
        group = machine.group
        shards = [open_shard(base / path, run, vocabulary) for path in run.train]
        batch = run.training.batch
        self.stream = BatchStream(
            Corpus(shards),
            run.seed,
            batch.sentences,
            batch.tokens,
            side=run.sides[-1],
            rank=group.rank,
            ranks=group.ranks,
        )
        torch.manual_seed(run.seed)
        kind = Transformer if run.kind == "translation" else LanguageModel
        self.learner = Learner(kind(subwords.size, run.transformer), run.training, machine)
        dev = open_shard(base / run.dev, run, vocabulary)
        self.dev = Dev([sentences(dev, side) for side in run.sides], subwords, machine)

    def step(self, number: int) -> dict[str, float] | None:
        batch = next(self.stream)
        sides = [batch.sides[side] for side in self.run.sides]
        group = self.machine.group
        tokens = sum(len(sentence) + 1 for sentence in sides[-1])
        total = group.add_up(torch.tensor(float(tokens), device=group.device)).item()
        seed = (self.run.seed, number, group.rank)
        if group.device.type == "cuda":
            torch.manual_seed(hash(seed) & 0xFFFFFFFF)
        sums = self.learner.accumulate(sides, 1 / total, seed)
        values = torch.tensor(list(sums.values()), dtype=torch.float64, device=group.device)
        sums = dict(zip(sums, group.add_up(values).tolist(), strict=True))
        norm = self.learner.update(number, sums["loss"])
        if norm is None:
            return None
        rate = rate_at(self.training.optimiser, number)
        return {**sums, "gradient_norm": norm, "steps": 1, "rate": rate}

    def row(self, sums: dict[str, float]) -> dict[str, float]:
        return {
            "train_loss": sums["loss"] / sums["steps"],
            "train_perplexity": perplexity(sums["nll"] / sums["tokens"]),
            "train_gradient_norm": sums["gradient_norm"] / sums["steps"],
            "train_tokens": sums["tokens"],
            "train_epoch": self.stream.position.epoch,
            "train_rate": sums["rate"] / sums["steps"],
        }

    def measure(self, signals: Signals) -> dict[str, float]:
        return self.dev.measure(self.learner.model, signals)

    def tensors(self) -> dict[str, Tensor]:
        return self.learner.tensors("model")

    def weights(self) -> dict[str, Tensor]:
        return dict(self.learner.model.state_dict())

    def position(self) -> Any:
        return asdict(self.stream.position)

    def go_to(self, position: Any) -> None:
        self.stream.position = Position(**position)


def perplexity(nll: float) -> float:
    return float(np.exp(min(nll, 100.0)))


def open_shard(path: Path, run: Run, vocabulary: str) -> Shard:
    """A shard that has the sides of this run and was written with its vocabulary."""
    shard = Shard.open(path)
    if max(run.sides) >= len(shard.sides):
        raise UserError(f"{path}: has no side {max(run.sides)}, only {len(shard.sides)}")
    if shard.header["vocabulary"] != vocabulary:
        raise UserError(f"{path}: was not written with the vocabulary {run.vocabulary}")
    return shard


def sentences(shard: Shard, side: int) -> list[np.ndarray]:
    return [shard.sentence(side, i) for i in range(len(shard))]


class Dev:
    """Dev loss and, of a translation model, the BLEU of its greedy translations.

    References are the shard's own ids as text. Good for choosing among models; what is reported
    in tables is scored on the original text.
    """

    def __init__(self, sides: Sides, subwords: Subwords, machine: Machine) -> None:
        self.sides, self.subwords, self.machine = sides, subwords, machine

    @torch.inference_mode()
    def measure(self, model: Transformer | LanguageModel, signals: Signals) -> dict[str, float]:
        model.eval()
        group = self.machine.group
        mine = [side[group.rank :: group.ranks] for side in self.sides]
        order = np.argsort([len(s) for s in mine[-1]], kind="stable")
        parts = micro_batches(
            [[side[i] for i in order] for side in mine], self.machine.micro_tokens
        )

        def loss(part: Sides) -> tuple[float, int]:
            with torch.inference_mode(), self.machine.autocast():
                _, nll_T = model.loss(part, 1.0, 0.0)
            return nll_T.double().sum().item(), len(nll_T)

        sums = list(self.machine.threads.map(loss, parts))
        values = torch.tensor([list(map(float, s)) for s in sums], dtype=torch.float64).sum(0)
        nll, tokens = group.add_up(values.to(group.device)).tolist()
        scores = {"dev_loss": nll / tokens, "dev_perplexity": perplexity(nll / tokens)}
        if signals.stop():
            raise Interrupted
        if isinstance(model, Transformer):
            scores["dev_bleu"] = self._bleu(model, mine)
            if signals.stop():
                raise Interrupted
        return scores

    def _bleu(self, model: Transformer, mine: Sides) -> float:
        from sacrebleu import corpus_bleu

        hypotheses = decode_many(
            mine[0], lambda _, batch: greedy(model, batch), self.machine.threads
        )
        texts = [self.subwords.decode(h.ids) for h in hypotheses]
        references = [self.subwords.decode(ids) for ids in mine[1]]
        gathered = self.machine.group.gather((texts, references))
        everything = [t for part, _ in gathered for t in part]
        return float(corpus_bleu(everything, [[r for _, part in gathered for r in part]]).score)
