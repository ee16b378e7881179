"""What a method is put together from: the models and data of one run, and the records it keeps."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metabt.config import Batch
from metabt.config import Optimiser as OptimiserSettings
from metabt.data.batches import BatchStream, Corpus
from metabt.data.shards import Shard
from metabt.data.subwords import Subwords
from metabt.errors import UserError
from metabt.methods.blocks.run import ForwardRun
from metabt.methods.blocks.sentences import PairStream, TextStream, Translations
from metabt.methods.blocks.translator import Descent, Fluency, Translator
from metabt.nmt.model_files import SavedModel, load_model
from metabt.nmt.transformer import Transformer
from metabt.nmt.translate import Generation
from metabt.tensor_files import copy_into
from metabt.training.learner import Machine
from metabt.training.supervised import open_shard

BACK_TRANSLATION_BEAM = 5  # Edunov et al. 2018
WATCHED = 128  # pseudo sources of a step, in each process, whose words are looked up
SHOWN = 3  # of them are kept as examples at each measurement
# Each part's random numbers are its own.
THETA, PSI, PARALLEL, MONO, METADEV, SOURCE_SIDE = range(6)


class Parts:
    """The models, streams and records of a run; methods ask for what they need."""

    def __init__(self, run: ForwardRun, machine: Machine, base: Path) -> None:
        self.run, self.machine, self.base = run, machine, base
        vocabulary = base / run.vocabulary
        self.subwords = Subwords.load(vocabulary)
        self.digest = hashlib.sha256(vocabulary.read_bytes()).hexdigest()
        self.streams: dict[str, BatchStream] = {}
        self.examples: list[dict[str, Any]] = []
        self.checksums: dict[str, str] = {}  # of the models that were read
        self.known_words = self._words_of_parallel_sources() if run.low_resource else None

    # --- models -----------------------------------------------------------------------------------

    def forward(self) -> Translator:
        """theta, as it is initialised: at random, or as another model."""
        run = self.run
        torch.manual_seed(run.seed)
        model = Transformer(self.subwords.size, run.transformer)
        if run.initial is not None:
            begun = self._load("initial", run.initial, "translation")
            if begun.languages != run.languages:
                told = " to ".join(begun.languages), " to ".join(run.languages)
                raise UserError(f"{run.initial}: translates {told[0]}, this run {told[1]}")
            weights = begun.model.state_dict()
            copy_into(model.state_dict(), weights, self.base / run.initial / "model.safetensors")
        saved = SavedModel(model, "translation", run.languages, self.subwords)
        return Translator(
            saved,
            self.machine,
            Generation("sampling", sampling=run.sampling),
            (run.seed, THETA),
            run.training.optimiser,
            run.training.label_smoothing,
        )

    def backward(
        self, generation: str = "sampling", optimiser: OptimiserSettings | None = None
    ) -> Translator:
        """psi, as it was pre-trained; it learns if it is given an optimiser."""
        run = self.run
        saved = self._load("backward", run.backward, "translation")
        return Translator(
            saved,
            self.machine,
            Generation(generation, BACK_TRANSLATION_BEAM, sampling=run.sampling),
            (run.seed, PSI),
            optimiser,
            run.training.label_smoothing,
        )

    def language_model(self) -> Fluency:
        return Fluency(self._load("lm", self.run.lm, "language-model"), self.machine)

    def _load(self, name: str, directory: str | None, kind: str) -> SavedModel:
        if directory is None:
            raise UserError(f"run.json: '{name}' is missing")
        path = self.base / directory
        saved = load_model(path, self.machine.group.device, kind)
        if saved.subwords.pieces != self.subwords.pieces:
            raise UserError(f"{path}: of another vocabulary than {self.run.vocabulary}")
        self.checksums[name] = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
        return saved

    # --- data -------------------------------------------------------------------------------------

    def pairs(self, *sets: str, beside_pseudo: bool = False) -> PairStream:
        """Batches of training pairs; beside pseudo pairs they are only a part of the batch."""
        batch = self.run.training.batch
        if beside_pseudo:
            batch = batch.without(self.run.pseudo_batch)
        shards = [self._shard(name, 2) for name in sets if name in self.run.sets]
        return PairStream(self._stream("parallel", shards, batch, PARALLEL))

    def mono(self) -> TextStream:
        """Sentences of the target language, to be back-translated."""
        shards = [self._shard("mono", 1)]
        return TextStream(self._stream("mono", shards, self.run.pseudo_batch, MONO), 0)

    def source_side(self) -> TextStream:
        """Sentences of the source language, as many as of the target's."""
        shards = [self._shard("parallel", 2)]
        stream = self._stream("source_side", shards, self.run.pseudo_batch, SOURCE_SIDE)
        return TextStream(stream, 0)

    def metadev(self) -> PairStream:
        shards = [self._shard("metadev", 2)]
        return PairStream(self._stream("metadev", shards, self.run.metadev_batch, METADEV))

    def _shard(self, name: str, sides: int) -> Shard:
        return open_shard(self.base / self.run.sets[name], sides, self.digest, self.run.vocabulary)

    def _stream(self, name: str, shards: list[Shard], batch: Batch, number: int) -> BatchStream:
        group = self.machine.group
        seed = self.run.seed * 8 + number
        self.streams[name] = BatchStream(
            Corpus(shards), seed, batch.sentences, batch.tokens, rank=group.rank, ranks=group.ranks
        )
        return self.streams[name]

    # --- rewards ----------------------------------------------------------------------------------

    def moving_average(self, rate: float | None) -> "MovingAverage":
        return MovingAverage(rate)

    def mean_and_spread(self, values: np.ndarray) -> tuple[float, float]:
        """Mean and standard deviation over the sentences of all processes."""
        group = self.machine.group
        sums = group.sums({"sum": float(values.sum()), "count": len(values)})
        mean = sums["sum"] / sums["count"]
        squares = group.sums({"squares": float(np.square(values - mean).sum())})["squares"]
        return mean, float(np.sqrt(squares / sums["count"]))

    # --- records ----------------------------------------------------------------------------------

    def report(
        self,
        number: int,
        descent: Descent | None,
        drawn: Translations | None = None,
        rewards: np.ndarray | None = None,
        columns: dict[str, float] | None = None,
    ) -> dict[str, float] | None:
        """What a step adds to the sums of metrics.csv; None if anything was not finite.

        `drawn` are the step's pseudo pairs, the second part of the descent.
        """
        if descent is None or not np.isfinite(list((columns or {}).values())).all():
            return None
        sums = {**descent.sums, **(columns or {}), "with_columns": float(bool(columns))}
        if drawn is not None:
            nll = descent.nll[1]
            sums |= self.machine.group.sums(self._pseudo(drawn, nll))
            if number % self.run.training.validate_every == 1 and self.machine.group.first:
                self._show(number, drawn, nll, rewards)
        return sums

    def known(self, ids: np.ndarray) -> tuple[int, int]:
        """How many of a pseudo source's words the low-resource training text has, of how many."""
        if self.known_words is None:
            return 0, 0
        words = self.subwords.decode(ids).split()
        return sum(word in self.known_words for word in words), len(words)

    def _pseudo(self, drawn: Translations, nll: np.ndarray) -> dict[str, float]:
        lengths = np.array(
            [(len(s) + 1, len(t) + 1) for s, t in zip(drawn.targets, drawn.sources, strict=True)]
        )
        source, target = lengths.T
        every = max(1, len(drawn.targets) // WATCHED)
        known, words = np.sum([self.known(ids) for ids in drawn.targets[::every]], 0).tolist()
        return {
            "pseudo_sentences": len(nll),
            "pseudo_nll": float(nll.sum()),
            "pseudo_tokens": int(target.sum()),
            "pseudo_source_tokens": int(source.sum()),
            "pseudo_ratio": float((source / target).sum()),
            "pseudo_log_prob": float(drawn.log_probs.sum()),
            "pseudo_cut": int((~drawn.complete).sum()),
            "pseudo_words": words,
            "pseudo_known_words": known,
        }

    def _show(
        self, number: int, drawn: Translations, nll: np.ndarray, rewards: np.ndarray | None
    ) -> None:
        """Keep a few pseudo pairs of all lengths (the batch is sorted) for people to read."""
        for i in np.linspace(0, len(nll) - 1, SHOWN + 2).round().astype(int)[1:-1].tolist():
            self.examples.append(
                {
                    "step": number,
                    "pseudo_source": self.subwords.decode(drawn.targets[i]),
                    "target": self.subwords.decode(drawn.sources[i]),
                    "log_p_backward": float(drawn.log_probs[i]),
                    "log_p_forward": -float(nll[i]),
                    "reward": None if rewards is None else float(rewards[i]),
                }
            )

    def _words_of_parallel_sources(self) -> set[str]:
        shard = self._shard("parallel", 2)
        texts = (self.subwords.decode(shard.sentence(0, i)) for i in range(len(shard)))
        return {word for text in texts for word in text.split()}


class MovingAverage:
    """The baseline: an average of the rewards so far, to which later ones count more.

    Without a rate it is zero. `state` holds the average and how many steps went into it.
    """

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self.state = torch.zeros(2, dtype=torch.float64)

    def before(self, mean: float) -> float:
        """The average before this step (in the first one, this step's own), which then counts."""
        if self.rate is None:
            return 0.0
        average, steps = self.state.tolist()
        before = average if steps else mean
        # As many steps as there are count alike until the rate says less.
        rate = max(self.rate, 1 / (steps + 1))
        self.state.copy_(torch.tensor([before + rate * (mean - before), steps + 1]))
        return before
