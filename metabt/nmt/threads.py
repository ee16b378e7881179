"""Threads that compute side by side on a CPU, each on sentences of its own.

Torch can split every operation among threads instead, but then all of them wait for each other
thousands of times a step, and on a machine that is not empty they wait long (docs/performance.md).
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from metabt.data.parallel import ordered_map

Item = TypeVar("Item")
Result = TypeVar("Result")


class ComputeThreads:
    """A pool for functions that spend their time in torch."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(1)
        _keep_freed_memory()
        # The first product sets the library up; let that not happen in several threads at once.
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
        self._pool = ThreadPoolExecutor(
            self.threads, initializer=torch.set_num_threads, initargs=(1,)
        )

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in order, a bounded number of items under way."""
        return ordered_map(self._pool, function, items, ahead=2 * self.threads)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _keep_freed_memory() -> None:
    """Have glibc reuse the memory of large tensors instead of returning it after every operation.

    Otherwise each is mapped, zeroed and unmapped by the kernel again and again. One arena for all
    threads: what one frees another uses.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return
    trim_threshold, top_pad, mmap_threshold, arena_max = -1, -2, -3, -8
    mallopt(mmap_threshold, 32 << 20)  # the largest that is allowed
    mallopt(trim_threshold, (1 << 31) - 1)
    mallopt(top_pad, 64 << 20)
    mallopt(arena_max, 1)
