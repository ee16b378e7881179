"""Token ids of a corpus in one memory-mapped file.

    8 bytes   magic "METABT" and the version
    8 bytes   length of the header
    header    JSON: sides, sentences, tokens, vocabulary, the layout and checksums of what follows
    sections  for each side: offsets (uint64, one more than sentences), then ids (uint16);
              each begins at a multiple of 64 bytes

Ids are those of the vocabulary, without begin and end marks. Sentence i of a side is
ids[offsets[i]:offsets[i + 1]].
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from metabt.errors import UserError
from metabt.files import atomic_write

MAGIC = b"METABT"
VERSION = 1
ALIGNMENT = 64
PIECE = 16 << 20  # bytes read at once when a checksum is computed


@dataclass(frozen=True)
class Shard:
    """A corpus of one side (monolingual) or two; arrays are views of the file."""

    path: Path
    header: dict[str, Any]
    offsets: tuple[np.ndarray, ...]
    ids: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return int(self.header["sentences"])

    @property
    def sides(self) -> list[str]:
        """The languages of the sides."""
        return list(self.header["sides"])

    def sentence(self, side: int, index: int) -> np.ndarray:
        first, end = self.offsets[side][index : index + 2]
        return self.ids[side][first:end]

    def lengths(self, side: int, indices: np.ndarray) -> np.ndarray:
        offsets = self.offsets[side]
        return (offsets[indices + 1] - offsets[indices]).astype(np.int64)

    @classmethod
    def open(cls, path: Path, verify: bool = True) -> "Shard":
        """Open and check a shard: magic, version, length and, unless told not to, every checksum.

        Several processes on one machine need the checksums only once.
        """
        path = Path(path)
        header, begin = _read_header(path)
        expected = begin + header["bytes"]
        if path.stat().st_size != expected:
            size = path.stat().st_size
            raise UserError(f"{path}: has {size:,} bytes, but its header says {expected:,}")
        if verify:
            _verify(path, header, begin)
        offsets: list[np.ndarray] = []
        ids: list[np.ndarray] = []
        for section in header["sections"]:
            array = _map(path, begin + section["at"], section["bytes"], section["dtype"])
            (offsets if section["dtype"] == "<u8" else ids).append(array)
        return cls(path, header, tuple(offsets), tuple(ids))


def _map(path: Path, at: int, size: int, dtype: str) -> np.ndarray:
    count = size // np.dtype(dtype).itemsize
    if count == 0:
        return np.empty(0, dtype=dtype)
    mapped = np.memmap(path, dtype=dtype, mode="r", offset=at, shape=(count,))
    return mapped.view(np.ndarray)  # slices of a plain array cost a tenth


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the sections begin."""
    try:
        with path.open("rb") as handle:
            start = handle.read(16)
            if len(start) < 16 or start[:6] != MAGIC:
                raise UserError(f"{path}: not a shard")
            version = int.from_bytes(start[6:8], "little")
            if version != VERSION:
                raise UserError(f"{path}: a shard of version {version}, but this reads {VERSION}")
            size = int.from_bytes(start[8:16], "little")
            if size > path.stat().st_size:
                raise UserError(f"{path}: truncated in its header")
            data = handle.read(size)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    checksum, text = data[:16], data[16:]
    if len(data) < size or xxhash.xxh3_64_hexdigest(text).encode() != checksum:
        raise UserError(f"{path}: the header is damaged")
    return json.loads(text), _aligned(16 + size)


def _verify(path: Path, header: dict[str, Any], begin: int) -> None:
    with path.open("rb") as handle:
        for section in header["sections"]:
            handle.seek(begin + section["at"])
            digest, left = xxhash.xxh3_64(), section["bytes"]
            while left and (data := handle.read(min(PIECE, left))):
                digest.update(data)
                left -= len(data)
            if left or digest.hexdigest() != section["xxh3"]:
                raise UserError(
                    f"{path}: damaged (wrong checksum at byte {begin + section['at']:,})"
                )


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


class ShardWriter:
    """Collects encoded sentences and writes the shard when all have come.

    The lengths of sections are known only at the end, so they are gathered in nameless files beside
    the shard and put together once.
    """

    def __init__(
        self, path: Path, sides: Sequence[str], vocabulary: str, limit: int | None
    ) -> None:
        self.path, self.sides, self.vocabulary = Path(path), list(sides), vocabulary
        self.limit = limit
        self.sentences = self.too_long = self.no_subwords = 0
        self.tokens = [0 for _ in sides]
        self._stack = ExitStack()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._offsets = [self._section() for _ in sides]
        self._ids = [self._section() for _ in sides]
        for section in self._offsets:
            section.write(np.zeros(1, dtype="<u8"))

    def _section(self) -> "_Section":
        handle = self._stack.enter_context(tempfile.TemporaryFile(dir=self.path.parent))
        return _Section(handle)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, block: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        """A block of sentences: for each side, its ids one after the other and the lengths.

        With a `limit`, sentences with more ids than that on either side are left out and counted,
        and so are those of which the subword model leaves nothing (a lone no-break space).
        """
        keep = np.ones(len(block[0][1]), dtype=bool)
        if self.limit is not None:
            empty = np.logical_or.reduce([lengths == 0 for _, lengths in block])
            long = np.logical_or.reduce([lengths > self.limit for _, lengths in block])
            keep = ~(empty | long)
            self.too_long += int(long.sum())
            self.no_subwords += int((empty & ~long).sum())
        everything = bool(keep.all())
        for side, (ids, lengths) in enumerate(block):
            if not everything:
                ids, lengths = ids[np.repeat(keep, lengths)], lengths[keep]
            self._ids[side].write(ids.astype("<u2", copy=False))
            ends = self.tokens[side] + np.cumsum(lengths)
            self._offsets[side].write(ends.astype("<u8"))
            self.tokens[side] += int(lengths.sum())
        self.sentences += int(keep.sum())

    def finish(self) -> None:
        """Write the shard; it appears under its name only when it is whole."""
        sections: list[dict[str, Any]] = []
        position = 0
        parts = [part for pair in zip(self._offsets, self._ids, strict=True) for part in pair]
        for part, dtype in zip(parts, ("<u8", "<u2") * len(self.sides), strict=True):
            position = _aligned(position)
            sections.append(
                {
                    "at": position,
                    "bytes": part.size,
                    "dtype": dtype,
                    "xxh3": part.digest.hexdigest(),
                }
            )
            position += part.size
        header = {
            "sides": self.sides,
            "sentences": self.sentences,
            "tokens": self.tokens,
            "vocabulary": self.vocabulary,
            "bytes": position,
            "sections": sections,
        }
        with atomic_write(self.path) as out:
            begin = _write_header(out, header)
            for part, section in zip(parts, sections, strict=True):
                out.seek(begin + section["at"])
                part.handle.seek(0)
                shutil.copyfileobj(part.handle, out, PIECE)
            out.truncate(begin + position)


class _Section:
    def __init__(self, handle: IO[bytes]) -> None:
        self.handle, self.size, self.digest = handle, 0, xxhash.xxh3_64()

    def write(self, array: np.ndarray) -> None:
        data = memoryview(np.ascontiguousarray(array)).cast("B")
        self.handle.write(data)
        self.digest.update(data)
        self.size += len(data)


def _write_header(out: IO[bytes], header: dict[str, Any]) -> int:
    text = json.dumps(header, sort_keys=True, ensure_ascii=False).encode()
    data = xxhash.xxh3_64_hexdigest(text).encode() + text
    out.write(MAGIC + VERSION.to_bytes(2, "little") + len(data).to_bytes(8, "little") + data)
    return _aligned(16 + len(data))
