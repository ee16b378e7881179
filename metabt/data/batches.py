"""An endless, seeded stream of batches that every machine cuts in the same way.

Each epoch goes through the sentences in a new pseudo-random order, and a batch is the next piece
of it: sentences of all lengths, as they come. (Batches of one length each would save padding, but
their gradients pull to and fro; models here pad little by themselves.) A batch is a function of the
seed and the position: a restart goes on at the exact sentence, and ranks split one and the same
global batch. None has a sentence twice.
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
    """Where a stream is: the next sentence to come. JSON-able, and all that a checkpoint needs."""

    epoch: int = 0
    sentence: int = 0


class BatchStream:
    """Batches of a fixed number of sentences, or of at most a number of tokens on one side.

    Every batch is full; what an epoch has left over after its last one is passed over. A corpus
    smaller than a batch is one batch. Tokens are counted with the end mark of each sentence, and a
    sentence that alone has more than a batch may hold is a batch of its own.
    """

    def __init__(
        self,
        corpus: Corpus,
        seed: int,
        sentences: int | None = None,
        tokens: int | None = None,
        side: int = -1,
        rank: int = 0,
        ranks: int = 1,
        position: Position | None = None,
    ) -> None:
        if (sentences is None) == (tokens is None):
            raise ValueError("a batch is given by sentences or by tokens: one of the two")
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} of {ranks}")
        self.corpus, self.seed, self.rank, self.ranks = corpus, seed, rank, ranks
        self.sentences, self.tokens, self.side = sentences, tokens, side
        self.position = position or Position()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        at = self.position
        indices = self._cut(at)
        if not len(indices):
            at = Position(at.epoch + 1)
            indices = self._cut(at)
        self.position = Position(at.epoch, at.sentence + len(indices))
        if len(indices) < self.ranks:
            raise UserError(
                f"a batch of {len(indices)} sentences is too small for {self.ranks} ranks"
            )
        # Longest first: neighbours in length go to different ranks, so that each has the same work.
        lengths = [-self.corpus.lengths(side, indices) for side in range(self.corpus.sides)]
        mine = indices[np.lexsort(lengths)][self.rank :: self.ranks]
        sides = range(self.corpus.sides)
        return Batch(mine, tuple([self.corpus.sentence(s, int(i)) for i in mine] for s in sides))

    def _cut(self, at: Position) -> np.ndarray:
        """The sentences of the batch that begins here; none, if there are too few left."""
        if self.sentences is not None:
            found = self._order(at, self.sentences)
            full = len(found) == self.sentences
        else:
            found, full = self._fill(at, self.tokens or 0)
        return found if full or at.sentence == 0 else found[:0]

    def _fill(self, at: Position, tokens: int) -> tuple[np.ndarray, bool]:
        """Sentences up to a number of tokens, and whether they reach it."""
        count = max(1, tokens // 16)
        while True:
            found = self._order(at, count)
            ends = (self.corpus.lengths(self.side, found) + 1).cumsum()
            fits = int(np.searchsorted(ends, tokens, side="right"))
            if fits < len(found):
                return found[: max(fits, 1)], True
            if len(found) < count:
                return found, False
            count *= 2

    def _order(self, at: Position, count: int) -> np.ndarray:
        """The next sentences of the epoch."""
        size = len(self.corpus)
        places = np.arange(at.sentence, min(at.sentence + count, size))
        return permute(places, size, self.seed + (at.epoch << 32))
