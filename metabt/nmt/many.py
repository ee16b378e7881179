"""Any number of sentences through a decoder, in batches of similar length."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from metabt.nmt.threads import ComputeThreads
from metabt.progress import Progress

Output = TypeVar("Output")

BATCH_TOKENS = 8192  # source tokens


def decode_many(
    sources: Sequence[np.ndarray],
    decode: Callable[[np.ndarray, list[np.ndarray]], Sequence[Output]],
    threads: ComputeThreads,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> list[Output]:
    """Decode all sentences, longest first, a batch a thread; results in the order of the sources.

    `decode` is given a batch's indices and sentences.
    """
    lengths = np.array([len(source) + 1 for source in sources])
    order = np.argsort(-lengths, kind="stable")
    batches: list[np.ndarray] = []
    at = 0
    while at < len(order):
        # As many sentences as the threads can take, dealt out in turn: batches of equal work.
        count = max(1, batch_tokens // int(lengths[order[at]])) * threads.threads
        together = order[at : at + count]
        batches += [together[i :: threads.threads] for i in range(threads.threads)]
        at += count
    batches = [batch for batch in batches if len(batch)]
    results: list[Output | None] = [None] * len(sources)

    def work(indices: np.ndarray) -> Sequence[Output]:
        return decode(indices, [sources[i] for i in indices])

    for indices, outputs in zip(batches, threads.map(work, batches), strict=True):
        for i, output in zip(indices, outputs, strict=True):
            results[i] = output
        if progress is not None:
            progress.add(len(indices))
    return results  # type: ignore[return-value]
