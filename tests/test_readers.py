"""Every format and every wrapping gives the same lines, or a sentence that says what is wrong."""

import bz2
import contextlib
import gzip
import io
import lzma
import re
import stat
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metabt.data import readers
from metabt.data.readers import read
from metabt.data.sources import File, Source
from metabt.errors import UserError

PIECES = [b"a", b"Ja", b" ", b"\t", b"\r", b"\v\f\x1c\x1e", "\x85\u2028\u2029".encode(), b"\xff"]
lines_of_bytes = st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join), max_size=15)
block_sizes = st.sampled_from([1, 2, 3, 7, 8, 64, 1 << 20])


# ---------------------------------------------------------------------------------------- help


def tar_entry(name: str, data: bytes = b"", type: bytes = tarfile.REGTYPE) -> tuple[Any, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = len(data), type
    entry.linkname = "elsewhere" if type in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
    return entry, data


def tar(entries: list[tuple[Any, bytes]], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for entry, data in entries:
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def zipped(entries: list[tuple[Any, bytes]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in entries:
            archive.writestr(entry, data)
    return out.getvalue()


OTHERS = [tar_entry("data", type=tarfile.DIRTYPE), tar_entry("data/other.de", b"no\nno\n" * 500)]
WRAPPINGS: dict[str, tuple[str, str | None, Callable[[bytes], bytes]]] = {
    "plain": ("a.de", None, bytes),
    "gz": ("a.de.gz", None, gzip.compress),
    "tar": ("a.tar", "data/a.de", lambda d: tar([*OTHERS, tar_entry("./data/a.de", d)])),
    "tar.gz": (
        "a.tar.gz",
        "data/a.de",
        lambda d: tar([*OTHERS, tar_entry("data/a.de", d)], "w:gz"),
    ),
    "tgz": ("a.tgz", "./data/a.*", lambda d: tar([*OTHERS, tar_entry("data/a.de", d)], "w:gz")),
    "zip": ("a.zip", "data/a.de", lambda d: zipped([("data/b.de", b"no"), ("data/a.de", d)])),
    "gz in tar": ("a.tar", "a.gz", lambda d: tar([*OTHERS, tar_entry("a.gz", gzip.compress(d))])),
    "gz in zip": ("a.zip", "a.gz", lambda d: zipped([("a.gz", gzip.compress(d))])),
}


def wrap(folder: Path, wrapping: str, data: bytes, prefix: str = "") -> File:
    name, member, make = WRAPPINGS[wrapping]
    path = folder / (prefix + name)
    path.write_bytes(make(data))
    return File(str(path), member)


def put(folder: Path, name: str, data: bytes) -> File:
    (folder / name).write_bytes(data)
    return File(str(folder / name))


def text(*files: File, **more: Any) -> Source:
    return Source("set", "text", files, **more)


def pairs(source: Source, block: int = 64, complain: Any = readers.refuse) -> list[Any]:
    """All that a source gives: lines, or tuples of them."""
    found: list[Any] = []
    for sides in read(source, block, complain):
        assert len({len(side) for side in sides}) == 1
        assert len(sides[0]) > 0
        columns = [[side.line(i) for i in range(len(side))] for side in sides]
        found += columns[0] if len(columns) == 1 else zip(*columns, strict=True)
    return found


def refused(source: Source, because: str, block: int = 64) -> None:
    with pytest.raises(UserError, match=because) as error:
        pairs(source, block)
    assert "\n" not in str(error.value)


def pairs_or_refusal(source: Source, block: int) -> list[Any] | None:
    """What a source gives; None if it is refused in a sentence that names the file."""
    with contextlib.suppress(UserError):
        return pairs(source, block)
    refused(source, re.escape(source.files[0].path), block)
    return None


# ------------------------------------------------------------------------------------ wrappings


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@settings(max_examples=40, deadline=None)
@given(raw=lines_of_bytes, last_newline=st.booleans(), block=block_sizes)
def test_lines_end_at_newlines_and_nowhere_else(
    wrapping: str, raw: list[bytes], last_newline: bool, block: int
) -> None:
    data = b"".join(line + b"\n" for line in raw)
    if not last_newline:
        data = data.removesuffix(b"\n")
        raw = raw[:-1] if raw and not raw[-1] else raw
    with tempfile.TemporaryDirectory() as folder:
        assert pairs(text(wrap(Path(folder), wrapping, data)), block) == raw


@settings(max_examples=150, deadline=None)
@given(lines_of_bytes, lines_of_bytes, block_sizes)
def test_two_files_are_a_pair_line_by_line_or_refused(
    left: list[bytes], right: list[bytes], block: int
) -> None:
    right = [line * 9 for line in right]  # sides of different length, so that blocks do not agree
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        a = wrap(folder, "gz", b"".join(line + b"\n" for line in left), "left")
        b = wrap(folder, "tgz", b"".join(line + b"\n" for line in right), "right")
        shortest = min(len(left), len(right))
        if len(left) == len(right):
            assert pairs(text(a, b), block) == list(zip(left, right, strict=True))
        else:
            shorter, longer = (a, b) if len(left) < len(right) else (b, a)
            ending = f"{shorter}: ends after line {shortest}, but {longer} goes on"
            refused(text(a, b), f"^{re.escape(ending)}", block)
        # Without the part that has no counterpart, the same files are fine.
        if shortest:
            ranged = text(a, b, end=shortest)
            assert pairs(ranged, block) == list(zip(left, right, strict=False))


def test_crlf_and_empty_files(tmp_path: Path) -> None:
    assert pairs(text(put(tmp_path, "a", b"a\r\n\r\nb\r\n"))) == [b"a\r", b"\r", b"b\r"]
    empty = put(tmp_path, "empty", b"")
    assert pairs(text(empty)) == []
    assert pairs(text(empty, empty)) == []
    assert pairs(text(put(tmp_path, "newline", b"\n"))) == [b""]


# ------------------------------------------------------------------------------ what is refused


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["gz", "tar", "tar.gz", "zip", "gz in tar", "gz in zip"]),
    st.floats(0, 1, exclude_max=True),
)
def test_what_is_cut_is_refused(wrapping: str, part: float) -> None:
    """Where all of the text is there in spite of the cut, it may be read."""
    raw = [b"line %d %d" % (i, i * i * 7919 % 10_007) for i in range(2000)]
    with tempfile.TemporaryDirectory() as folder:
        file = wrap(Path(folder), wrapping, b"\n".join(raw))
        data = Path(file.path).read_bytes()
        Path(file.path).write_bytes(data[: int(len(data) * part)])
        got = pairs_or_refusal(text(file), 1000)
        assert got is None or (got == raw and wrapping in ("tar", "tar.gz", "gz in tar"))


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(WRAPPINGS)), st.data())
def test_damage_never_ends_in_a_traceback(wrapping: str, data: st.DataObject) -> None:
    raw = [b"line %d %d" % (i, i * i * 7919 % 10_007) for i in range(60)]
    with tempfile.TemporaryDirectory() as folder:
        file = wrap(Path(folder), wrapping, b"\n".join(raw))
        damaged = bytearray(Path(file.path).read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            # The directory of a zip file is at its end.
            at = data.draw(st.integers(0, len(damaged) - 1) | st.integers(-150, -1))
            damaged[at % len(damaged)] = data.draw(st.integers(0, 255))
        Path(file.path).write_bytes(damaged)
        got = pairs_or_refusal(text(file), 100)
        # Only a checksum that is read to the end can promise the same text.
        if wrapping in ("gz", "zip", "gz in tar", "gz in zip"):
            assert got in (None, raw)


@pytest.mark.parametrize("name", ["empty.gz", "text.gz", "text.tgz", "text.zip", "text.tar"])
def test_what_is_not_an_archive_is_refused(tmp_path: Path, name: str) -> None:
    file = put(tmp_path, name, b"" if name == "empty.gz" else b"<html>not found</html>\n" * 100)
    member = None if name.endswith(".gz") else "a"
    refused(text(File(file.path, member)), re.escape(file.path))


def zip_entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = mode << 16
    return entry


BAD = {
    "dots.tar": tar([tar_entry("../a.de", b"a")]),
    "dots.tgz": tar([tar_entry("x/../../b", b"b"), tar_entry("a.de", b"a")], "w:gz"),
    "dots.zip": zipped([("../b", b"b"), ("a.de", b"a")]),
    "absolute.tar.gz": tar([tar_entry("/etc/a", b"a"), tar_entry("a.de", b"a")], "w:gz"),
    "absolute.zip": zipped([("/a.de", b"a")]),
    "symlink.tar": tar([tar_entry("a.de", type=tarfile.SYMTYPE)]),
    "symlink.zip": zipped([(zip_entry("a.de", stat.S_IFLNK | 0o777), b"/etc/passwd")]),
    "hardlink.tgz": tar([tar_entry("b", type=tarfile.LNKTYPE), tar_entry("a.de", b"a")], "w:gz"),
    "directory.tar": tar([tar_entry("a.de", type=tarfile.DIRTYPE)]),
    "fifo.tar": tar([tar_entry("a.de", type=tarfile.FIFOTYPE)]),
    "missing.tar": tar([tar_entry("b.de", b"b")]),
    "missing.tgz": tar([tar_entry("x/a.de", b"b")], "w:gz"),
    "missing.zip": zipped([("A.de", b"b")]),
}
REASONS = {"dots": "unsafe path", "absolute": "unsafe path", "symlink": "a link in the archive"}
REASONS |= {"hardlink": "a link in the archive", "missing": r"the archive has no member a\.de$"}
REASONS |= {"directory": "is not a file", "fifo": "is not a file"}


@pytest.mark.parametrize("name", BAD)
def test_archives_that_are_refused(tmp_path: Path, name: str) -> None:
    file = put(tmp_path, name, BAD[name])
    because = REASONS[name.split(".")[0]]
    refused(text(File(file.path, "a.de")), f"{re.escape(file.path)}.*{because}")


@pytest.mark.parametrize("name", ["a", "a.gz", "a.tar", "a.tgz", "a.zip"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    member = None if name in ("a", "a.gz") else "b"
    refused(text(File(path, member)), f"^{re.escape(path)}: no such file$")


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    data = bytearray(zipped([("a", b"secret")]))
    data[6] |= 1  # the flags of the member, and of its entry in the directory
    data[data.index(b"PK\1\2") + 8] |= 1
    refused(text(File(put(tmp_path, "a.zip", bytes(data)).path, "a")), "encrypted")


@pytest.mark.parametrize("place", ["first", "second", "behind other lines"])
def test_an_endless_line_is_refused_before_it_fills_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(readers, "LONGEST_LINE", 1 << 20)
    size = 30 << 20
    short = put(tmp_path, "short", b"a\n" * 1000)
    long = tmp_path / "long.gz"
    before = b"b\n" * 3 if place == "behind other lines" else b""
    long.write_bytes(gzip.compress(before + bytes(size), 1))
    files = (File(str(long)), short) if place == "first" else (short, File(str(long)))
    number = before.count(b"\n") + 1
    list(read(text(short)))  # the compiled loops are loaded once; that is not to be counted
    tracemalloc.start()
    refused(text(*files), rf"long\.gz, line {number}: longer than 1 MiB", block=100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20


def test_a_side_with_much_longer_lines_costs_no_more_memory(tmp_path: Path) -> None:
    count = 30_000
    short = put(tmp_path, "short", b"\n" * count)
    long = put(tmp_path, "long", (b"x" * 999 + b"\n") * count)
    list(read(text(short)))  # as above
    tracemalloc.start()
    lines = sum(len(block[0]) for block in read(text(short, long), 100_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines == count
    assert peak < 4 << 20


# ------------------------------------------------------------------------------------- ranges


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 20), st.data(), block_sizes)
def test_ranges(count: int, data: st.DataObject, block: int) -> None:
    raw = [b"%d" % i for i in range(count)]
    first = data.draw(st.integers(0, count + 2))
    end = data.draw(st.none() | st.integers(first + 1, count + 3))
    with tempfile.TemporaryDirectory() as folder:
        source = text(put(Path(folder), "a", b"\n".join(raw)), first=first, end=end)
        wanted = end or first + 1
        if wanted > count and (first or end):
            refused(
                source, f"set: has {count} pairs, but lines up to {wanted} are asked for", block
            )
        else:
            assert pairs(source, block) == raw[first:end]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.data(), block_sizes)
def test_ranges_of_every_so_many(count: int, every: int, data: st.DataObject, block: int) -> None:
    raw = [b"%d" % i for i in range(1, count + 1)]
    end = data.draw(st.integers(1, min(every, count)))
    first = data.draw(st.integers(0, end - 1))
    with tempfile.TemporaryDirectory() as folder:
        path = put(Path(folder), "a", b"\n".join(raw))
        source = text(path, first=first, end=end, every=every)
        taken = pairs(source, block)
    assert taken == [line for i, line in enumerate(raw) if first <= i % every < end]
    assert [b"%d" % source.number(i) for i in range(len(taken))] == taken


# ---------------------------------------------------------------------------------------- SGM

SGM = b"""<srcset setid="newstest" srclang="any">
<doc docid="1"><p>
<seg id="1">A &amp; B &lt;b&gt; &quot;x&quot; &#228;&#x20AC; 5 < 6</seg>
<SEG id="2" >over
   several\r
lines</SEG >
<seg>&#10;\xff</seg><seg id="4"></seg>
</p></doc></srcset>"""
SEGMENTS = ['A & B <b> "x" ä€ 5 < 6'.encode(), b"over several lines", b" \xff", b""]


def test_sgm(tmp_path: Path) -> None:
    file = put(tmp_path, "a.sgm", SGM)
    assert pairs(Source("set", "sgm", (file,))) == SEGMENTS
    assert pairs(Source("set", "sgm", (file, file))) == list(zip(SEGMENTS, SEGMENTS, strict=True))
    packed = File(put(tmp_path, "a.tgz", tar([tar_entry("a.sgm", SGM)], "w:gz")).path, "a.sgm")
    assert pairs(Source("set", "sgm", (packed,), first=1, end=2)) == [SEGMENTS[1]]


@pytest.mark.parametrize(
    ("data", "because"),
    [
        (b"<seg>a</seg><seg>b", "2 segments are opened and 1 closed"),
        (b"<seg>a<seg>b</seg>", "2 segments are opened and 1 closed"),
        (b"<seg>a</seg>b</seg>", "1 segments are opened and 2 closed"),
        (b"</seg>a<seg>", "1 segments are opened and 1 closed"),
        (b"nothing", "0 segments are opened"),
    ],
)
def test_unbalanced_sgm_is_refused(tmp_path: Path, data: bytes, because: str) -> None:
    refused(Source("set", "sgm", (put(tmp_path, "a.sgm", data),)), rf"a\.sgm: {because}")


def test_broken_sgm_files_are_refused(tmp_path: Path) -> None:
    one = put(tmp_path, "one.sgm", b"<seg>a</seg>")
    four = put(tmp_path, "four.sgm", SGM)
    because = rf"set: the sides are not aligned: 1 in .*one\.sgm and 4 in .*four\.sgm$"  # noqa: F541
    refused(Source("set", "sgm", (one, four)), because)
    cut = put(tmp_path, "a.sgm.gz", gzip.compress(SGM)[:-9])
    refused(Source("set", "sgm", (cut,)), r"a\.sgm\.gz: ")


# --------------------------------------------------------------------------------- TSV and TED

cells = st.sampled_from([b"a", b'"b', b"c d", b"\xff", b"__NULL__", b"_ _ NULL _ _", b"", b" "])
tables = st.lists(st.lists(cells, min_size=2, max_size=5), max_size=15)
ends = st.none() | st.integers(1, 6)


@settings(max_examples=150, deadline=None)
@given(tables, block_sizes, ends)
def test_tsv(rows: list[list[bytes]], block: int, end: int | None) -> None:
    expected, wrong = [], []
    for number, row in enumerate(rows, 1):
        if len(expected) == end:
            break
        if len(row) < 3:
            wrong.append(f", line {number}: {len(row)} columns instead of 3")
        else:
            expected.append((row[2], row[0]))
    with tempfile.TemporaryDirectory() as folder:
        file = put(Path(folder), "a.tsv", b"".join(b"\t".join(row) + b"\n" for row in rows))
        source = Source("set", "tsv", (file,), columns=(2, 0), end=end)
        if len(expected) < (end or 0):
            with pytest.raises(UserError, match=f"has {len(expected)} pairs"):
                pairs(source, block, lambda _: None)
            return
        told: list[str] = []
        assert pairs(source, block, told.append) == expected
        assert told == [file.path + line for line in wrong]
        if wrong:
            refused(source, wrong[0], block)


@settings(max_examples=250, deadline=None)
@given(tables, block_sizes, ends, st.sampled_from([(), ("ru",)]), st.sampled_from([b"", b"\r"]))
def test_ted(
    rows: list[list[bytes]], block: int, end: int | None, required: tuple[str, ...], cr: bytes
) -> None:
    header = ["talk_name", "ru", "be", "en"]
    missing = (b"__NULL__", b"_ _ NULL _ _", b"")
    expected, wrong = [], []
    for number, row in enumerate(rows, 2):
        if len(expected) == end:
            break
        if len(row) != 4:
            wrong.append(f", line {number}: {len(row)} columns instead of 4")
        elif all(row[i].strip() not in missing for i in ((1, 2, 3) if required else (2, 3))):
            expected.append((row[3] + cr, row[2]))
    table = [[name.encode() for name in header], *rows]
    data = b"".join(b"\t".join(row) + cr + b"\n" for row in table)
    with tempfile.TemporaryDirectory() as folder:
        path = put(Path(folder), "a.tar.gz", tar([tar_entry("ted.tsv", data)], "w:gz")).path
        file = File(path, "ted.tsv")
        source = Source("set", "ted", (file,), (), ("en", "be"), required, end=end)
        if len(expected) < (end or 0):
            with pytest.raises(UserError, match=f"has {len(expected)} pairs"):
                pairs(source, block, lambda _: None)
            return
        told: list[str] = []
        assert pairs(source, block, told.append) == expected
        assert told == [str(file) + line for line in wrong]
        if wrong:
            refused(source, wrong[0], block)


@pytest.mark.parametrize("data", [b"", b"talk_name\ten\tru\nx\ta\tb\n"])
def test_ted_without_a_language_is_refused(tmp_path: Path, data: bytes) -> None:
    file = put(tmp_path, "ted.tsv", data)
    absent = "gl, pt" if data else "en, gl, pt"
    source = Source("set", "ted", (file,), (), ("en", "gl"), ("pt",))
    refused(source, rf"ted\.tsv, line 1: no column for {absent}$")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", bz2.compress(b"text\n"), "bzip2"),
        ("a.txt.xz", lzma.compress(b"text\n"), "xz"),
        ("a.zst", b"\x28\xb5\x2f\xfd rest", "zstd"),
        ("a.zip", b"PK\3\4 rest", "zip archive"),
    ],
)
def test_compressed_files_are_never_read_as_text(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read(Source("x", "text", (File(str(tmp_path / name)),))))


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "plain-name").write_bytes(gzip.compress(b"one\ntwo\n"))
    blocks = list(read(Source("x", "text", (File(str(tmp_path / "plain-name")),))))
    assert [lines.line(i) for (lines,) in blocks for i in range(len(lines))] == [b"one", b"two"]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_an_archive_needs_a_member(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as archive:
        member = tarfile.TarInfo("text")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"one\n"))
    with pytest.raises(UserError, match="say with `member`"):
        list(read(Source("x", "text", (File(str(tmp_path / name)),))))
