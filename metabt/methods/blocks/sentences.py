"""Sentences on their way through a step: pairs, translations, and the streams they come from."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from metabt.data.batches import BatchStream, Position

Sentences = Sequence[np.ndarray]  # of ids without marks


@dataclass(frozen=True)
class Pairs:
    """Sources and targets of whichever model is to learn from them."""

    sources: Sentences
    targets: Sentences

    @property
    def reversed(self) -> "Pairs":
        return Pairs(self.targets, self.sources)

    @property
    def tokens(self) -> int:
        """Target tokens, end marks included."""
        return sum(len(target) + 1 for target in self.targets)


@dataclass(frozen=True)
class Numbered:
    """Sentences with their numbers in the corpus, by which what is random is decided."""

    numbers: np.ndarray
    sentences: Sentences

    def times(self, draws: int) -> "Numbered":
        """All of them, and again: as other sentences of the same words, for other draws."""
        numbers = [self.numbers + (draw << 40) for draw in range(draws)]
        return Numbered(np.concatenate(numbers), [*self.sentences] * draws)


@dataclass(frozen=True)
class Translations(Pairs):
    """What a model made of its sources, and how probable it found each; `complete` says which came
    to their end before the limit of length."""

    log_probs: np.ndarray
    complete: np.ndarray

    def first(self, count: int) -> "Translations":
        return Translations(*(getattr(self, field.name)[:count] for field in fields(self)))


class PairStream:
    """Batches of pairs, without end."""

    def __init__(self, stream: BatchStream) -> None:
        self.stream = stream

    def next(self) -> Pairs:
        source, target = next(self.stream).sides
        return Pairs(source, target)


class TextStream:
    """Batches of one side's sentences, without end."""

    def __init__(self, stream: BatchStream, side: int) -> None:
        self.stream, self.side = stream, side

    def next(self) -> Numbered:
        batch = next(self.stream)
        return Numbered(batch.indices, batch.sides[self.side])


def positions(streams: dict[str, BatchStream]) -> dict[str, Any]:
    return {name: asdict(stream.position) for name, stream in streams.items()}


def go_to(streams: dict[str, BatchStream], places: dict[str, Any]) -> None:
    for name, stream in streams.items():
        stream.position = Position(**places[name])
