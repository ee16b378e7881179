"""Every format as blocks of lines: raw bytes in an array, with the bounds of each line.

A block is a tuple of `Lines`, one for each side, with equal numbers of lines. Lines end at "\\n"
and nowhere else, whatever other separators a line contains. Archives are read as streams and never
unpacked.
"""

import html
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Literal, NoReturn, TypeVar

import numpy as np
from isal import igzip
from isal.igzip_lib import IsalError

from metabt.data.kernels import find_newlines
from metabt.data.sources import File, Source
from metabt.errors import UserError

Entry = TypeVar("Entry")

NEWLINE = 0x0A
LONGEST_LINE = 64 << 20  # bytes; a longer "line" is not text
BLOCK_BYTES = 16 << 20
# What the libraries raise on damaged or unusual files: a zip may be encrypted, its names not UTF-8.
BROKEN: tuple[type[Exception], ...] = (
    *(OSError, EOFError, RuntimeError, UnicodeDecodeError),
    *(zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile),
    IsalError,  # type: ignore[assignment]  # its stub calls it an instance
)
GZIP = b"\x1f\x8b"
NOT_TEXT = {
    b"\xfd7zXZ\0": "compressed with xz",
    b"BZh": "compressed with bzip2",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"PK\3\4": "a zip archive without `member`",
}
TED_MISSING = (b"__NULL__", b"_ _ NULL _ _", b"")


@dataclass(frozen=True)
class Lines:
    """Some lines of text: line i is text[starts[i]:ends[i]]."""

    text: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def line(self, index: int) -> bytes:
        return self.text[self.starts[index] : self.ends[index]].tobytes()

    def take(self, which: slice | np.ndarray) -> "Lines":
        return Lines(self.text, self.starts[which], self.ends[which])

    @classmethod
    def ending_at(cls, newlines: np.ndarray, text: np.ndarray, begin: int = 0) -> "Lines":
        """The lines that end at `newlines`; the first begins at `begin`."""
        starts = np.empty_like(newlines)
        starts[:1] = begin
        starts[1:] = newlines[:-1] + 1
        return cls(text, starts, newlines.copy())

    @classmethod
    def of(cls, lines: Sequence[bytes]) -> "Lines":
        text = np.frombuffer(bytearray(b"\n".join([*lines, b""])), dtype=np.uint8)
        lengths = np.fromiter((len(line) for line in lines), dtype=np.int64, count=len(lines))
        return cls.ending_at(np.cumsum(lengths + 1) - 1, text)


Block = tuple[Lines, ...]
Complaint = Callable[[str], None]


def refuse(what: str) -> NoReturn:
    """The complaint of those who cannot do without a row."""
    raise UserError(what)


def read(
    source: Source, block_bytes: int = BLOCK_BYTES, complain: Complaint = refuse
) -> Iterator[Block]:
    """The blocks of a dataset, cut to the range of pairs that it names.

    A row of a table without the right number of columns is left out after `complain` has been told.
    """
    position = 0
    for block in _FORMATS[source.format](source, block_bytes, complain):
        which = _wanted(source, position, len(block[0]))
        position += len(block[0])
        taken = tuple(side.take(which) for side in block)
        if len(taken[0]):
            yield taken
        if source.end is not None and source.every is None and position >= source.end:
            return
    wanted = source.end or source.first + 1
    if position < wanted and (source.first or source.end):
        raise UserError(
            f"{source.name}: has {position:,} pairs, but lines up to {wanted:,} are asked for"
        )


def _wanted(source: Source, position: int, count: int) -> slice | np.ndarray:
    """Which of the `count` pairs from `position` on a source takes."""
    if source.every is None:
        end = count if source.end is None else max(source.end - position, 0)
        return slice(max(source.first - position, 0), end)
    assert source.end is not None
    within = np.arange(position, position + count) % source.every
    return np.flatnonzero((source.first <= within) & (within < source.end))


# ----------------------------------------------------------------------------------- one stream


class LineStream:
    """Whole lines from a byte stream, as many at a time as are asked for."""

    def __init__(self, handle: IO[bytes], name: str, block_bytes: int) -> None:
        self.name = name
        self.taken = 0  # lines handed out so far
        self._handle = handle
        self._block_bytes = block_bytes
        # Bounds and keys of very short lines would take many times the memory of their text.
        self._most = max(block_bytes // 16, 1)
        self._text = np.empty(0, dtype=np.uint8)
        self._newlines = np.empty(0, dtype=np.int64)
        self._begin = 0  # where in _text the next line begins
        self._ended = False

    def ready(self) -> int:
        """How many lines can be taken: those of a block, none only at the end."""
        while not len(self._newlines) and not self._ended:
            self._fill()
        return min(len(self._newlines), self._most)

    def next_block(self) -> Lines | None:
        """About `block_bytes` of lines; None at the end."""
        count = self.ready()
        return self.take(count) if count else None

    def take(self, count: int) -> Lines:
        """`count` lines, which must be ready."""
        newlines, self._newlines = self._newlines[:count], self._newlines[count:]
        lines = Lines.ending_at(newlines, self._text, self._begin)
        if count:
            self._begin = int(newlines[-1]) + 1
        self.taken += count
        return lines

    def _fill(self) -> None:
        """One more block of text behind what is left, which is the beginning of one line."""
        rest = len(self._text) - self._begin
        if rest > LONGEST_LINE:
            raise UserError(
                f"{self.name}, line {self.taken + 1:,}: longer than {LONGEST_LINE >> 20} MiB; "
                "not a text file"
            )
        text = np.empty(rest + self._block_bytes + 1, dtype=np.uint8)
        text[:rest] = self._text[self._begin :]
        size = rest + self._read_into(text[rest:-1])
        if size == rest:
            self._ended = True
            # A last line without a newline is a line.
            if rest and text[rest - 1] != NEWLINE:
                text[rest] = NEWLINE
                size += 1
        self._newlines = find_newlines(text[:size], rest)
        self._text, self._begin = text[:size], 0

    def _read_into(self, room: np.ndarray) -> int:
        """Fill `room` as far as the stream goes."""
        view, size = memoryview(room), 0
        try:
            while size < len(view):
                got = self._handle.readinto(view[size:])  # type: ignore[attr-defined]
                if not got:
                    break
                size += got
        except BROKEN as error:
            raise UserError(f"{self.name}: broken after line {self.taken:,} ({error})") from error
        return size


@contextmanager
def open_file(file: File) -> Iterator[IO[bytes]]:
    """The bytes of a file or of an archive's member, decompressed."""
    try:
        if file.member is None:
            with (
                Path(file.path).open("rb", buffering=1 << 20) as raw,
                _text_of(raw, file.path) as out,
            ):
                yield out
        elif file.path.endswith(".zip"):
            with zipfile.ZipFile(file.path) as archive:
                info = _find(archive.infolist(), file, lambda i: i.filename, _zip_link)
                with archive.open(info) as member, _text_of(member, info.filename) as out:
                    yield out
        else:
            with (
                Path(file.path).open("rb", buffering=1 << 20) as raw,
                _unzipped(raw, file.path) as plain,
                tarfile.open(fileobj=plain, mode=_tar_mode(file.path)) as archive_,
            ):
                entry = _find(archive_, file, lambda e: e.name, lambda e: e.issym() or e.islnk())
                member_ = archive_.extractfile(entry)
                if member_ is None:
                    raise UserError(f"{file}: is not a file in its archive")
                with member_, _text_of(member_, entry.name) as out:
                    yield out
    except FileNotFoundError as error:
        raise UserError(f"{error.filename}: no such file") from error
    except BROKEN as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # not broken, but not ours to read
        raise UserError(f"{file}: the archive cannot be read ({error})") from error


def _decompressed(handle: IO[bytes], name: str) -> IO[bytes]:
    """Gunzip what is gzip, whatever its name; refuse what would be read as strange text."""
    head = handle.peek(8)  # type: ignore[attr-defined]
    if not head and name.endswith((".gz", ".tgz")):
        raise EOFError("an empty file, not a compressed one")
    if head.startswith(GZIP):
        # Three times as fast as Python's own.
        return igzip.IGzipFile(fileobj=handle, mode="rb")  # type: ignore[return-value]
    for magic, kind in NOT_TEXT.items():
        if head.startswith(magic):
            raise UserError(f"{name}: {kind}, which is not read here")
    if name.endswith((".gz", ".tgz")):
        raise EOFError("not gzip")
    return handle


def _text_of(handle: IO[bytes], name: str) -> IO[bytes]:
    """The decompressed bytes of what should be text: an archive is refused."""
    out = _decompressed(handle, name)
    if out.peek(512)[257:262] == b"ustar":  # type: ignore[attr-defined]
        raise UserError(f"{name}: an archive; say with `member` what to read in it")
    return out


def _unzipped(handle: IO[bytes], path: str) -> IO[bytes]:
    """A tar archive's bytes; other compressions than gzip are left to tarfile."""
    return _decompressed(handle, path) if path.endswith((".gz", ".tgz")) else handle


def _tar_mode(path: str) -> Literal["r:", "r|", "r|*"]:
    """How to go through a tar archive: with seeking only where nothing is compressed."""
    if path.endswith(".tar"):
        return "r:"
    return "r|" if path.endswith((".gz", ".tgz")) else "r|*"


def _zip_link(info: zipfile.ZipInfo) -> bool:
    return (info.external_attr >> 16) & 0o170000 == 0o120000


def _find(
    entries: Iterable[Entry],
    file: File,
    name: Callable[[Entry], str],
    link: Callable[[Entry], bool],
) -> Entry:
    """The wanted member. On the way to it, what has no place in a data archive is refused."""
    assert file.member is not None
    wanted = file.member.removeprefix("./")
    for entry in entries:
        path = PurePosixPath(name(entry))
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"{file.path}: unsafe path in the archive: {name(entry)}")
        if link(entry):
            raise UserError(f"{file.path}: a link in the archive: {name(entry)}")
        if fnmatchcase(str(path), wanted):
            return entry
    raise UserError(f"{file.path}: the archive has no member {file.member}")


# --------------------------------------------------------------------------------- the formats


def _read_text(source: Source, block_bytes: int, complain: Complaint) -> Iterator[Block]:
    """One file a side, line by line."""
    if len(source.files) == 1:
        with open_file(source.files[0]) as handle:
            stream = LineStream(handle, str(source.files[0]), block_bytes)
            while lines := stream.next_block():
                yield (lines,)
        return
    with open_file(source.files[0]) as a, open_file(source.files[1]) as b:
        first = LineStream(a, str(source.files[0]), block_bytes)
        second = LineStream(b, str(source.files[1]), block_bytes)
        # As many as both have: a side with much longer lines costs no more memory.
        while count := min(first.ready(), second.ready()):
            yield first.take(count), second.take(count)
        if first.ready():
            raise _misaligned(second, first)
        if second.ready():
            raise _misaligned(first, second)


def _misaligned(shorter: LineStream, longer: LineStream) -> UserError:
    return UserError(
        f"{shorter.name}: ends after line {shorter.taken:,}, but {longer.name} goes on: "
        "the two are not aligned"
    )


def _read_sgm(source: Source, block_bytes: int, complain: Complaint) -> Iterator[Block]:
    """WMT's test sets: a segment a line, in a markup that only looks like SGML."""
    sides = []
    for file in source.files:
        with open_file(file) as handle:
            text = handle.read()
        segments = [
            html.unescape(s.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
            for s in re.findall(rb"<seg\b[^>]*>(.*?)</seg\s*>", text, re.DOTALL | re.IGNORECASE)
        ]
        opened = len(re.findall(rb"<seg\b", text, re.IGNORECASE))
        closed = len(re.findall(rb"</seg\b", text, re.IGNORECASE))
        if not segments or not opened == closed == len(segments):
            raise UserError(f"{file}: {opened} segments are opened and {closed} closed")
        sides.append([re.sub(rb"[ \t\r]*\n[ \t\r]*", b" ", s) for s in segments])
    if len({len(side) for side in sides}) > 1:
        counts = " and ".join(f"{len(s)} in {f}" for s, f in zip(sides, source.files, strict=True))
        raise UserError(f"{source.name}: the sides are not aligned: {counts}")
    yield tuple(Lines.of(side) for side in sides)


def _read_tsv(source: Source, block_bytes: int, complain: Complaint) -> Iterator[Block]:
    """One file with a column a side. There is no quoting: a quote character is text."""
    with open_file(source.files[0]) as handle:
        stream = LineStream(handle, str(source.files[0]), block_bytes)
        found = 0
        while lines := stream.next_block():
            rows = _rows(lines, stream, complain, at_least=max(source.columns) + 1)
            pairs = list(islice(rows, _left(source, found)))
            found += len(pairs)
            yield tuple(Lines.of([row[c] for row in pairs]) for c in source.columns)


def _left(source: Source, found: int) -> int | None:
    """How many pairs are still wanted. Behind them no row is looked at, let alone complained of."""
    return None if source.end is None or source.every else max(source.end - found, 0)


def _rows(
    lines: Lines, stream: LineStream, complain: Complaint, at_least: int, at_most: int | None = None
) -> Iterator[list[bytes]]:
    for i in range(len(lines)):
        row = lines.line(i).split(b"\t")
        if at_least <= len(row) <= (at_most or len(row)):
            yield row
        else:
            number = stream.taken - len(lines) + i + 1
            complain(f"{stream.name}, line {number:,}: {len(row)} columns instead of {at_least}")


def _read_ted(source: Source, block_bytes: int, complain: Complaint) -> Iterator[Block]:
    """TED's table (Qi et al. 2018): a header of languages, one sentence a row, gaps marked NULL.

    Rows in which a wanted language is missing are not pairs, so they are passed over, not counted.
    """
    with open_file(source.files[0]) as handle:
        stream = LineStream(handle, str(source.files[0]), block_bytes)
        head = stream.take(1).line(0) if stream.ready() else b""
        names = head.decode("utf-8", "replace").rstrip("\r").split("\t")
        absent = [x for x in (*source.languages, *source.required) if x not in names]
        if absent:
            raise UserError(f"{stream.name}, line 1: no column for {', '.join(absent)}")
        columns = [names.index(language) for language in source.languages]
        needed = [*columns, *(names.index(language) for language in source.required)]
        found = 0
        while lines := stream.next_block():
            rows = _rows(lines, stream, complain, len(names), len(names))
            whole = (r for r in rows if all(r[c].strip() not in TED_MISSING for c in needed))
            pairs = list(islice(whole, _left(source, found)))
            found += len(pairs)
            yield tuple(Lines.of([row[c] for row in pairs]) for c in columns)


_FORMATS = {"text": _read_text, "sgm": _read_sgm, "tsv": _read_tsv, "ted": _read_ted}
