"""An endless, seeded stream of batches that every machine cuts in the same way.

Sentences come in a pseudo-random order, a new one each epoch, and are taken in windows of many
batches. A window is sorted by length and cut into batches, which are then shuffled, so that a batch
has little padding. A batch is a function of (seed, number of the window, number in the window): a
restart goes on at the exact sentence, and ranks split one and the same global batch between them.
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

    window: int = 0
    batch: int = 0


class BatchStream:
    """Batches of a fixed number of sentences, or of at most a number of tokens.

    A token budget counts padding: sentences times the longest of them, on either side. `window` is
    the number of batches (of budgets) that are sorted by length together; 1 keeps the order random.
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
        if sentences is not None and sentences < ranks:
            raise UserError(f"a batch of {sentences} sentences cannot be split over {ranks} ranks")
        self.corpus, self.seed, self.rank, self.ranks = corpus, seed, rank, ranks
        self.sentences, self.tokens = sentences, tokens
        batch = sentences or self._usual_sentences(tokens or 0)
        # A window longer than the corpus would bring copies of a sentence together.
        self.window_sentences = batch * max(1, min(window, len(corpus) // batch))
        self.position = position or Position()
        self._cut: tuple[int, list[np.ndarray]] = (-1, [])

    def _usual_sentences(self, tokens: int) -> int:
        """How many sentences of average length a token budget holds."""
        total = sum(shard.header["tokens"][-1] for shard in self.corpus.shards)
        return max(1, tokens * len(self.corpus) // max(total, 1))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batches = self._batches(self.position.window)
        indices = batches[self.position.batch]
        if self.position.batch + 1 < len(batches):
            self.position = Position(self.position.window, self.position.batch + 1)
        else:
            self.position = Position(self.position.window + 1, 0)
        # Neighbours in length go to different ranks: each gets the same work.
        mine = indices[self.rank :: self.ranks]
        sides = tuple(
            [self.corpus.sentence(s, int(i)) for i in mine] for s in range(self.corpus.sides)
        )
        return Batch(mine, sides)

    def _batches(self, window: int) -> list[np.ndarray]:
        """The batches of a window, in the order in which they come."""
        if self._cut[0] != window:
            self._cut = (window, self._cut_window(window))
        return self._cut[1]

    def _cut_window(self, window: int) -> list[np.ndarray]:
        indices = self._sentences_of(window)
        lengths = [self.corpus.lengths(side, indices) for side in range(self.corpus.sides)]
        # By target length, which costs most, then source length; equal ones stay in random order. A
        # token budget needs the longest of either side in order.
        longest = np.maximum.reduce(lengths)
        keys = lengths if self.tokens is None else [*lengths, longest]
        order = np.lexsort([-key for key in keys])
        if self.sentences is not None:
            ends = np.arange(self.sentences, len(indices) + 1, self.sentences)
        else:
            ends = _budget_ends(longest[order], self.tokens or 0)
        batches = np.split(indices[order], ends[:-1])
        shuffled = permute(np.arange(len(batches)), len(batches), self.seed + 7919 * (window + 1))
        return [batches[i] for i in shuffled]

    def _sentences_of(self, window: int) -> np.ndarray:
        """The sentences at the window's positions in the endless sequence of shuffled epochs."""
        size = len(self.corpus)
        positions = np.arange(window * self.window_sentences, (window + 1) * self.window_sentences)
        indices = np.empty_like(positions)
        for epoch in range(int(positions[0]) // size, int(positions[-1]) // size + 1):
            here = positions // size == epoch
            indices[here] = permute(positions[here] % size, size, self.seed + (epoch << 32))
        return indices


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
