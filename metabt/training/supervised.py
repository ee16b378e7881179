"""Maximum likelihood on sentences as they are: pre-training, language models, No BT."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metabt.data.batches import BatchStream, Corpus, Position
from metabt.data.shards import Shard
from metabt.data.subwords import Subwords
from metabt.errors import Interrupted, UserError
from metabt.nmt.decoding import greedy
from metabt.nmt.many import decode_many
from metabt.nmt.transformer import LanguageModel, Sides, Transformer
from metabt.training.learner import Learner, Machine, score
from metabt.training.loop import Signals
from metabt.training.optimisers import rate_at
from metabt.training.run import Run

COLUMNS = [  # of metrics.csv
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


class Supervised:
    """Maximum likelihood with label smoothing."""

    def __init__(self, run: Run, machine: Machine, base: Path) -> None:
        self.columns = COLUMNS
        self.run, self.training, self.machine = run, run.training, machine
        subwords = Subwords.load(base / run.vocabulary)
        vocabulary = hashlib.sha256((base / run.vocabulary).read_bytes()).hexdigest()
        group = machine.group
        sides = max(run.sides) + 1
        shards = [open_shard(base / p, sides, vocabulary, run.vocabulary) for p in run.train]
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
        model = kind(subwords.size, run.transformer)
        self.learner = Learner(model, run.training.optimiser, machine)
        dev = open_shard(base / run.dev, sides, vocabulary, run.vocabulary)
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
        smoothing = self.training.label_smoothing
        loss, nll = self.learner.accumulate(sides, 1 / total, smoothing, dropout=seed)
        sums = group.sums({"loss": loss, "nll": nll.sum(), "tokens": tokens})
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

    @property
    def identity(self) -> Any:
        return self.run.model_dump()

    def finish(self, directory: Path) -> None:
        """All is said in metrics.csv."""


def perplexity(nll: float) -> float:
    return float(np.exp(min(nll, 100.0)))


def open_shard(path: Path, sides: int, digest: str, vocabulary: str) -> Shard:
    """A shard that has so many sides at least and was written with a vocabulary."""
    shard = Shard.open(path)
    if len(shard.sides) < sides:
        raise UserError(f"{path}: has no side {sides - 1}, only {len(shard.sides)}")
    if shard.header["vocabulary"] != digest:
        raise UserError(f"{path}: was not written with the vocabulary {vocabulary}")
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

    def measure(self, model: Transformer | LanguageModel, signals: Signals) -> dict[str, float]:
        group = self.machine.group
        mine = [side[group.rank :: group.ranks] for side in self.sides]
        tokens = sum(len(sentence) + 1 for sentence in mine[-1])
        nll = score(model, mine, self.machine).sum()
        sums = group.sums({"nll": nll, "tokens": tokens})
        loss = sums["nll"] / sums["tokens"]
        scores = {"dev_loss": loss, "dev_perplexity": perplexity(loss)}
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
