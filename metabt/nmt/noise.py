"""The noise of Edunov et al. 2018 on beam outputs: words dropped, blanked, and moved a little."""

from collections.abc import Sequence

import numpy as np

from metabt.data.subwords import UNK, WORD_BEGIN

DROP = 0.1
BLANK = 0.1
DISTANCE = 3  # no word moves further than this many places


def word_beginnings(pieces: Sequence[str]) -> np.ndarray:
    """For each id, whether its piece begins a word."""
    return np.array([piece.startswith(WORD_BEGIN) for piece in pieces])


def add_noise(ids: np.ndarray, begins: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A noisy copy of a sentence; the filler for a blanked word is the unknown piece."""
    if not len(ids):
        return ids
    starts = np.flatnonzero(begins[ids])
    words = np.split(ids, starts[starts > 0])
    kept = [word for word in words if rng.random() >= DROP] or [words[rng.integers(len(words))]]
    blank = np.array([UNK], ids.dtype)
    noisy = [blank if rng.random() < BLANK else word for word in kept]
    # Sorting i + u with u in [0, d + 1) moves nothing by more than d.
    order = np.argsort(
        np.arange(len(noisy)) + rng.random(len(noisy)) * (DISTANCE + 1), kind="stable"
    )
    return np.concatenate([noisy[i] for i in order])
