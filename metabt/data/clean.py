"""Clean text: nothing broken, nothing twice, nothing of the held-out sets in the training data.

Training data is read twice. The first pass judges every line and collects its key; the second
writes the lines that stay. Held-out sets (test, dev, MetaDev) are small and official: they are read
strictly, and a line that cannot be trusted is an error, not a loss.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from metabt.data import kernels
from metabt.data.deduplicate import BITS, GROUPS, FirstOccurrences
from metabt.data.parallel import ordered_map
from metabt.data.readers import Block, Lines, read
from metabt.data.sources import File, Source
from metabt.errors import UserError
from metabt.files import atomic_write
from metabt.progress import Progress

# Why a line is dropped; the index is the kernels' verdict.
REASONS = ("", "empty", "invalid_utf8", "nul", "separator", "held_out", "duplicate")
MALFORMED = "malformed"  # a table's row with the wrong number of columns
SEPARATORS = dict.fromkeys(map(ord, "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")
SMALLEST_MEMORY_MB = 256
# Blocks under way hold their text, bounds, keys, records and output: about five times the text.
BLOCKS_IN_MEMORY = 5


class Limits:
    """How much may be under way at once, from the memory and threads that the job was given."""

    def __init__(self, threads: int, memory_mb: int) -> None:
        if memory_mb < SMALLEST_MEMORY_MB:
            raise UserError(f"cleaning needs at least {SMALLEST_MEMORY_MB} MB of memory")
        self.threads = max(threads, 1)
        self.ahead = self.threads + 1
        room = (memory_mb - SMALLEST_MEMORY_MB // 2) << 20
        self.block_bytes = min(max(room // (self.ahead * BLOCKS_IN_MEMORY * 4), 1 << 18), 2 << 20)


def clean_training(
    sources: Sequence[Source],
    outputs: Sequence[Path],
    held_out: np.ndarray,
    threads: int = 1,
    memory_mb: int = 1000,
) -> dict[str, Any]:
    """Write the sides of a training set, one sentence a line; returns what was read and dropped."""
    limits = Limits(threads, memory_mb)
    outputs[0].parent.mkdir(parents=True, exist_ok=True)
    first_occurrences = FirstOccurrences(outputs[0].parent)
    with (
        ThreadPoolExecutor(limits.threads) as pool,
        ThreadPoolExecutor(1) as writer,
        ExitStack() as stack,
    ):
        stack.callback(first_occurrences.close)
        states = [_state(source) for source in sources]
        counts = _judge(sources, held_out, limits, pool, first_occurrences)
        total = sum(_lines(c) for c in counts)
        bitmap, kept = first_occurrences.bitmap(total, pool, limits.ahead)
        if not kept:
            names = ", ".join(source.name for source in sources)
            raise UserError(f"{outputs[0]}: of {total:,} lines of {names} none is left")
        handles = [stack.enter_context(atomic_write(path)) for path in outputs]
        bar = stack.enter_context(Progress("write", total, "lines"))
        blocks = _numbered(_read_again(sources, limits, counts))
        kept_blocks = ordered_map(pool, lambda b: _kept(b, bitmap), blocks, limits.ahead)
        for lines in ordered_map(writer, lambda b: _write(b, handles), kept_blocks, ahead=2):
            bar.add(lines)
        _refuse_changed(sources, states)
        _flush(handles)
    return _statistics(sources, counts, bitmap, kept)


def _judge(
    sources: Sequence[Source],
    held_out: np.ndarray,
    limits: Limits,
    pool: ThreadPoolExecutor,
    first_occurrences: FirstOccurrences,
) -> list[Counter[str]]:
    """The first pass: count what is wrong, by dataset, and collect the keys of what is not."""
    counts: list[Counter[str]] = [Counter() for _ in sources]
    position = 0
    with Progress("judge", None, "lines") as bar:
        for source, count in zip(sources, counts, strict=True):

            def complain(_: str, count: Counter[str] = count) -> None:
                count[MALFORMED] += 1

            blocks = _numbered(read(source, limits.block_bytes, complain), position)
            for verdicts, records, bounds in ordered_map(
                pool, lambda b: _examine(b, held_out), blocks, limits.ahead
            ):
                tally = np.bincount(verdicts, minlength=len(REASONS))
                count.update(dict(zip(REASONS, map(int, tally), strict=True)))
                first_occurrences.add(records, bounds)
                bar.add(len(verdicts))
            position += _lines(count)
    return counts


def _lines(count: Counter[str]) -> int:
    return sum(n for reason, n in count.items() if reason != MALFORMED)


def _numbered(blocks: Iterable[Block], first: int = 0) -> Iterator[tuple[Block, int]]:
    for block in blocks:
        yield block, first
        first += len(block[0])


def _read_again(
    sources: Sequence[Source], limits: Limits, counts: list[Counter[str]]
) -> Iterator[Block]:
    """The same blocks once more; a file that has changed meanwhile is an error."""
    for source, count in zip(sources, counts, strict=True):
        lines = 0
        for block in read(source, limits.block_bytes, lambda _: None):
            lines += len(block[0])
            if lines > _lines(count):
                break
            yield block
        if lines != _lines(count):
            raise UserError(f"{source.name}: changed while it was read")


def _state(source: Source) -> list[tuple[int, int]]:
    """What changes with the content of a dataset's files. One that is missing `read` will tell."""
    paths = [Path(file.path) for file in source.files]
    return [(p.stat().st_size, p.stat().st_mtime_ns) for p in paths if p.exists()]


def _refuse_changed(sources: Sequence[Source], states: Sequence[list[tuple[int, int]]]) -> None:
    for source, state in zip(sources, states, strict=True):
        if _state(source) != state:
            raise UserError(f"{source.name}: changed while it was read")


def _flush(handles: Sequence[IO[bytes]]) -> None:
    """A full disk shows now, before the first of several files gets its name."""
    for handle in handles:
        handle.flush()
        os.fsync(handle.fileno())


def _examine(
    numbered: tuple[Block, int], held_out: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Verdicts on the lines (pairs) of a block, and the records of the fine ones, by group."""
    block, first = numbered
    verdicts, keys = judge(block[0], held_out)
    for side in block[1:]:
        kernels.combine_pairs(verdicts, keys, *judge(side, held_out))
    records = np.empty((np.count_nonzero(verdicts == kernels.FINE), 3), dtype=np.uint64)
    bounds = np.empty(GROUPS + 1, dtype=np.int64)
    kernels.partition(verdicts, keys, first, BITS, records, bounds)
    return verdicts, records, bounds


def judge(lines: Lines, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Verdict and key of every line of one side; strips the lines in place."""
    kernels.strip_lines(lines.text, lines.starts, lines.ends)
    verdicts = np.empty(len(lines), dtype=np.uint8)
    keys = np.empty((len(lines), 2), dtype=np.uint64)
    kernels.judge_lines(lines.text, lines.starts, lines.ends, verdicts, keys)
    kernels.mark_held_out(held_out, verdicts, keys)
    return verdicts, keys


def _kept(numbered: tuple[Block, int], bitmap: np.ndarray) -> tuple[list[memoryview], int]:
    """The text that stays of a block's sides."""
    block, first = numbered
    sides = []
    for lines in block:
        kernels.strip_lines(lines.text, lines.starts, lines.ends)
        out = np.empty(int((lines.ends - lines.starts).sum()) + len(lines), dtype=np.uint8)
        size = kernels.copy_lines(lines.text, lines.starts, lines.ends, bitmap, first, out)
        sides.append(memoryview(out)[:size])
    return sides, len(block[0])


def _write(block: tuple[list[memoryview], int], handles: Sequence[IO[bytes]]) -> int:
    """Write the sides of a block; returns how many lines were read for it."""
    sides, lines = block
    for handle, text in zip(handles, sides, strict=True):
        handle.write(text)
    return lines


def _statistics(
    sources: Sequence[Source], counts: list[Counter[str]], bitmap: np.ndarray, kept: int
) -> dict[str, Any]:
    """Read, dropped by reason and kept, by dataset and in total."""
    rows: list[dict[str, Any]] = []
    position = 0
    for source, count in zip(sources, counts, strict=True):
        stay = _count_bits(bitmap, position, position + _lines(count))
        position += _lines(count)
        dropped = {reason: count[reason] for reason in (*REASONS[1:-1], MALFORMED)}
        dropped["duplicate"] = count[""] - stay
        rows.append({"name": source.name, "read": count.total(), "dropped": dropped, "kept": stay})
    assert sum(row["kept"] for row in rows) == kept
    return summarise(rows)


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    dropped: Counter[str] = Counter()
    for row in rows:
        dropped.update(row["dropped"])
    return {
        "read": sum(row["read"] for row in rows),
        "dropped": dict(dropped),
        "kept": sum(row["kept"] for row in rows),
        "datasets": rows,
    }


def _count_bits(bitmap: np.ndarray, first: int, end: int) -> int:
    bits = np.unpackbits(bitmap[first // 8 : (end + 7) // 8], bitorder="little")
    return int(np.count_nonzero(bits[first % 8 : first % 8 + end - first]))


# ------------------------------------------------------------------------------- held-out sets


def read_held_out(source: Source) -> Iterator[tuple[str, ...]]:
    """The pairs of an official set. What cannot be trusted is refused, with file and line."""
    taken = 0
    for block in read(source):
        for i in range(len(block[0])):
            number, taken = source.number(taken), taken + 1
            pair = []
            for side, lines in enumerate(block):
                file = source.files[side if len(source.files) > 1 else 0]
                try:
                    text = lines.line(i).decode("utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(f"{file}, sentence {number:,}: not UTF-8 ({error})") from error
                if "\0" in text:
                    raise UserError(f"{file}, sentence {number:,}: contains a NUL character")
                pair.append(text.translate(SEPARATORS).strip(" \t"))
            yield tuple(pair)


def clean_held_out(
    sources: Sequence[Source], outputs: Sequence[Path], forbidden: set[str]
) -> dict[str, Any]:
    """Write the sides of a held-out set, without the pairs that contain a `forbidden` sentence."""
    rows = []
    with ExitStack() as stack:
        handles = [stack.enter_context(atomic_write(path)) for path in outputs]
        for source in sources:
            dropped = {"empty": 0, "held_out": 0}
            read_ = kept = 0
            for pair in read_held_out(source):
                read_ += 1
                if not all(pair):
                    dropped["empty"] += 1
                elif not forbidden.isdisjoint(pair):
                    dropped["held_out"] += 1
                else:
                    kept += 1
                    for handle, text in zip(handles, pair, strict=True):
                        handle.write(text.encode("utf-8") + b"\n")
            if not kept:
                raise UserError(f"{source.name}: nothing is left of this held-out set")
            rows.append({"name": source.name, "read": read_, "dropped": dropped, "kept": kept})
        _flush(handles)
    return summarise(rows)


def sentences(paths: Iterable[Path]) -> set[str]:
    """The lines of some clean files."""
    found: set[str] = set()
    for path in paths:
        found.update(Path(path).read_text(encoding="utf-8").split("\n"))
    return found - {""}


def held_out_table(paths: Sequence[Path]) -> np.ndarray:
    """The keys of all sentences in some clean files, as the kernels look them up."""
    sides = [
        block[0] for path in paths for block in read(Source(str(path), "text", (File(str(path)),)))
    ]
    size = 4
    while size < 2 * sum(len(side) for side in sides):
        size *= 2
    table = np.zeros((size, 2), dtype=np.uint64)
    for side in sides:
        verdicts, keys = judge(side, np.zeros((4, 2), dtype=np.uint64))
        for verdict, (key0, key1) in zip(verdicts, keys, strict=True):
            if verdict == kernels.FINE:
                kernels.insert(table, key0, key1)
    return table
