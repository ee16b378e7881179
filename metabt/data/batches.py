"""An endless, seeded stream of batches that every machine cuts in the same way.

Each epoch goes through the sentences in a new pseudo-random order, in windows of many batches. A
window is sorted by length and cut into batches, which are then shuffled, so that a batch has little
padding. A batch is a function of (seed, epoch, window, number in the window): a restart goes on at
the exact sentence, and ranks split one and the same global batch. None has a sentence twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from metabt.data.shards import Shard
from metabt.errors import UserError

_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # splitmix64's
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 6


def _scramble(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
    return x ^ (x >> np.uint64(31))


def permute(positions: np.ndarray, size: int, seed: int) -> np.ndarray:
    """A pseudo-random permutation of range(size), evaluated at some positions.

    A Feistel network over the smallest even number of bits that covers `size`; what falls outside
    is sent through again until it falls inside. Integers only and no table, so it is the same
    everywhere and 220 million sentences need no memory.
    """
    half = max((int(size - 1).bit_length() + 1) // 2, 1)
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    keys = [
        np.uint64((seed * _ROUNDS + r + 1) * _GOLDEN & 0xFFFFFFFFFFFFFFFF) for r in range(_ROUNDS)
    ]
    result = np.asarray(positions, dtype=np.uint64).copy()
    outside = np.ones(len(result), dtype=bool)
    while outside.any():
        x = result[outside]
        left, right = x >> shift, x & mask
        for key in keys:
            left, right = right, left ^ (_scramble(right + key) & mask)
        result[outside] = (left << shift) | right
        outside = result >= np.uint64(size)
    return result.astype(np.int64)


class Corpus:
    """Shards of the same kind as one: the low-resource pairs followed by the related ones."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        sides = {len(shard.ids) for shard in shards}
        vocabularies = {shard.header["vocabulary"] for shard in shards}
        if len(sides) != 1 or len(vocabularies) != 1:
            names = ", ".join(str(shard.path) for shard in shards)
            raise UserError(f"{names}: these shards differ in their sides or their vocabulary")
        self.shards = list(shards)
        self.sides = sides.pop()
        self._starts = np.cumsum([0, *(len(shard) for shard in shards)])
        if len(self) == 0:
            raise UserError(f"{', '.join(str(s.path) for s in shards)}: no sentences")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def lengths(self, side: int, indices: np.ndarray) -> np.ndarray:
        where = np.searchsorted(self._starts, indices, side="right") - 1
        result = np.empty(len(indices), dtype=np.int64)
        for i, shard in enumerate(self.shards):
            here = where == i
            result[here] = shard.lengths(side, indices[here] - self._starts[i])
        return result

    def sentence(self, side: int, index: int) -> np.ndarray:
        where = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.shards[where].sentence(side, index - int(self._starts[where]))


@dataclass(frozen=True)
class Batch:
    """Sentences of the corpus, longest first, and their ids side by side."""

    indices: np.ndarray
    sides: tuple[list[np.ndarray], ...]

    def __len__(self) -> int:
        return len(self.indices)


@dataclass
class Position:
    """Where a stream is: the next batch to come. JSON-able, and all that a checkpoint needs."""

    epoch: int = 0
    window: int = 0
    batch: int = 0


class BatchStream:
    """Batches of a fixed number of sentences, or of at most a number of tokens.

    By sentences, every batch is full, and what an epoch has left over after its last one is passed
    over (a corpus smaller than a batch is one batch). By tokens, an epoch has every sentence once;
    a budget counts padding: sentences times the longest of them, on either side.

    `window` is the number of batches that are sorted by length together; 1 keeps the order random.
    """

    def __init__(
        self,
        corpus: Corpus,
        seed: int,
        sentences: int | None = None,
        tokens: int | None = None,
        window: int = 64,
        rank: int = 0,
        ranks: int = 1,
        position: Position | None = None,
    ) -> None:
        if (sentences is None) == (tokens is None):
            raise ValueError("a batch is given by sentences or by tokens: one of the two")
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} of {ranks}")
        self.corpus, self.seed, self.rank, self.ranks = corpus, seed, rank, ranks
        self.tokens = tokens
        self.sentences = min(sentences, len(corpus)) if sentences else None
        size = self.sentences or self._usual_sentences(tokens or 0)
        self._window_sentences = size * window
        self._epoch_sentences = len(corpus) // size * size if self.sentences else len(corpus)
        self.windows = max(1, self._epoch_sentences // self._window_sentences)  # of an epoch
        self.position = position or Position()
        self._cut: tuple[tuple[int, int], list[np.ndarray]] = ((-1, -1), [])

    def _usual_sentences(self, tokens: int) -> int:
        """How many sentences of average length a token budget holds."""
        total = sum(shard.header["tokens"][-1] for shard in self.corpus.shards)
        return max(1, tokens * len(self.corpus) // max(total, 1))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        at = self.position
        batches = self._batches(at.epoch, at.window)
        indices = batches[at.batch]
        if at.batch + 1 < len(batches):
            self.position = Position(at.epoch, at.window, at.batch + 1)
        elif at.window + 1 < self.windows:
            self.position = Position(at.epoch, at.window + 1)
        else:
            self.position = Position(at.epoch + 1)
        # Neighbours in length go to different ranks: each gets the same work.
        mine = indices[self.rank :: self.ranks]
        sides = range(self.corpus.sides)
        return Batch(mine, tuple([self.corpus.sentence(s, int(i)) for i in mine] for s in sides))

    def _batches(self, epoch: int, window: int) -> list[np.ndarray]:
        """The batches of a window, in the order in which they come."""
        if self._cut[0] != (epoch, window):
            self._cut = ((epoch, window), self._cut_window(epoch, window))
        return self._cut[1]

    def _cut_window(self, epoch: int, window: int) -> list[np.ndarray]:
        # An epoch's last window takes what is too little for one more.
        first = window * self._window_sentences
        last = window + 1 == self.windows
        end = self._epoch_sentences if last else first + self._window_sentences
        indices = permute(np.arange(first, end), len(self.corpus), self.seed + (epoch << 32))
        lengths = [self.corpus.lengths(side, indices) for side in range(self.corpus.sides)]
        # By target length, which costs most, then source length; equal ones stay in random order.
        # A token budget needs the longest of either side in order.
        longest = np.maximum.reduce(lengths)
        keys = lengths if self.tokens is None else [*lengths, longest]
        order = np.lexsort([-key for key in keys])
        if self.sentences is not None:
            ends = np.arange(self.sentences, len(indices) + 1, self.sentences)
        else:
            ends = _budget_ends(longest[order], self.tokens or 0)
        batches = np.split(indices[order], ends[:-1])
        fewest = min(map(len, batches))
        if fewest < self.ranks:
            raise UserError(f"a batch of {fewest} sentences is too small for {self.ranks} ranks")
        shuffled = permute(
            np.arange(len(batches)), len(batches), self.seed + (epoch << 32) + 7919 * (window + 1)
        )
        return [batches[i] for i in shuffled]


def _budget_ends(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """Cut sentences (longest first) where the padded size would pass the budget.

    A window's last two batches share their sentences evenly, so that none is a crumb.
    """
    ends = [0]
    while ends[-1] < len(lengths):
        fits = max(1, tokens // max(int(lengths[ends[-1]]), 1))
        ends.append(min(ends[-1] + fits, len(lengths)))
    if len(ends) > 2 and ends[-1] - ends[-2] < ends[-2] - ends[-3]:
        ends[-2] = (ends[-3] + ends[-1] + 1) // 2
    return np.array(ends[1:])
