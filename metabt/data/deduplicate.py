"""Which lines are the first of their kind, in memory that does not grow with the corpus.

Every line is known by a 128-bit key. Keys go to disk in 256 groups by their first bits, so that one
group after the other fits a small table; what comes back is one bit a line. The text itself is read
a second time rather than kept. Of equal lines the first one stays, whatever the number of threads.
"""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

import numpy as np

from metabt.data import kernels
from metabt.data.parallel import ordered_map

BITS = 8
GROUPS = 1 << BITS
RECORD_BYTES = 24  # key, key, index of the line
TABLE_SLOTS = 1 << 14  # to begin with; a table grows with its group's distinct keys
RECORDS_AT_ONCE = 1 << 17
BLOCKS_TOGETHER = 8  # are written at once, for the sake of fewer and larger writes


class FirstOccurrences:
    """Collects the keys of a corpus block by block, then tells which lines came first."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        # Files without a name: they are gone when the process is, even after kill -9.
        self._groups = [tempfile.TemporaryFile(dir=scratch, buffering=0) for _ in range(GROUPS)]
        self._waiting: list[tuple[np.ndarray, list[int]]] = []

    def add(self, records: np.ndarray, bounds: np.ndarray) -> None:
        """Records as grouped by `kernels.partition`; blocks come in the order of the corpus."""
        self._waiting.append((records, bounds.tolist()))
        if len(self._waiting) == BLOCKS_TOGETHER:
            self._write()

    def _write(self) -> None:
        for group, handle in enumerate(self._groups):
            parts = [
                memoryview(records[bounds[group] : bounds[group + 1]]).cast("B")
                for records, bounds in self._waiting
                if bounds[group] < bounds[group + 1]
            ]
            try:
                _write_all(handle.fileno(), parts)
            except OSError as error:
                error.filename = str(self._scratch)  # a full disk: say where
                raise
        self._waiting.clear()

    def bitmap(self, lines: int, pool: ThreadPoolExecutor, ahead: int) -> tuple[np.ndarray, int]:
        """One bit for each of the corpus's lines (set: keep it), and how many are set."""
        self._write()
        bits = np.zeros((lines + 7) // 8, dtype=np.uint8)
        count = 0
        for kept in ordered_map(pool, _first_of_group, self._groups, ahead):
            kernels.set_bits(bits, kept)
            count += len(kept)
        self.close()
        return bits, count

    def close(self) -> None:
        for handle in self._groups:
            handle.close()


def _write_all(descriptor: int, parts: list[memoryview]) -> None:
    while parts:
        written = os.writev(descriptor, parts)
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][written:]


def _records(handle: FileIO) -> Iterator[np.ndarray]:
    handle.seek(0)
    while data := handle.read(RECORDS_AT_ONCE * RECORD_BYTES):
        yield np.frombuffer(data, dtype=np.uint64).reshape(-1, 3)


def _first_of_group(handle: FileIO) -> np.ndarray:
    """The indices of the lines whose key is new within a group, in order."""
    table = np.zeros((TABLE_SLOTS, 2), dtype=np.uint64)
    filled = 0
    kept = []
    for records in _records(handle):
        fresh = np.empty(len(records), dtype=np.uint64)
        at = noted = 0
        while at < len(records):
            at, filled, more = kernels.first_occurrences(table, filled, records, at, fresh[noted:])
            noted += more
            if at < len(records):
                table = kernels.grow(table)
        kept.append(fresh[:noted].copy())
    return np.concatenate(kept) if kept else np.empty(0, dtype=np.uint64)
