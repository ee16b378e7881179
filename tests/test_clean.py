"""Cleaning against a slow reference in plain Python; and kill -9, full disks, changing files."""

import gzip
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metabt.cli import main
from metabt.data import clean, deduplicate, kernels
from metabt.data.clean import clean_held_out, clean_training, held_out_table
from metabt.data.sources import File, Source
from metabt.errors import UserError

REPOSITORY = Path(__file__).parents[1]
NOTHING_HELD_OUT = np.zeros((4, 2), dtype=np.uint64)
GOOD = [
    b"a",
    b"b",
    b"Ja.",
    "schön".encode(),
    b"longer than eight bytes",
    b"\x01",
    "\u00a0".encode(),
]
BAD = [b"", b" \t", b"\xff", b"\xed\xa0\x80", b"a\0b", b"\x0b", b"a\rb", "a\u2028b".encode()]
lines = st.tuples(
    st.sampled_from([b"", b" ", b"\t"]),
    st.sampled_from(GOOD * 2 + BAD),
    st.sampled_from([b"", b"\r", b" \r", b" "]),
).map(b"".join)


def put(path: Path, rows: list[bytes]) -> File:
    path.write_bytes(b"".join(row + b"\n" for row in rows))
    return File(str(path))


def fault(line: bytes, held_out: set[bytes]) -> str | None:
    """Why a stripped line cannot stay."""
    if not line:
        return "empty"
    try:
        text, rest = line.decode("utf-8"), None
    except UnicodeDecodeError as error:
        text, rest = line[: error.start].decode("utf-8"), "invalid_utf8"
    for character in text:
        if character == "\0":
            return "nul"
        if f"a{character}".splitlines() != [f"a{character}"]:
            return "separator"
    return rest or ("held_out" if line in held_out else None)


def reference(
    datasets: list[list[tuple[bytes, ...]]], sides: int, held_out: set[bytes]
) -> tuple[list[bytes], list[dict[str, Any]]]:
    """The sides' files and the statistics by dataset, without any of the code under test."""
    seen: set[tuple[bytes, ...]] = set()
    rows: list[dict[str, Any]] = []
    for number, dataset in enumerate(datasets):
        dropped = Counter[str]()
        before = len(seen)
        kept = []
        for raw in dataset:
            pair = tuple(line.strip(b" \t\r") for line in raw)
            faults = [f for f in (fault(line, held_out) for line in pair) if f]
            if faults:
                dropped[faults[0]] += 1
            elif pair in seen:
                dropped["duplicate"] += 1
            else:
                seen.add(pair)
                kept.append(pair)
        assert len(kept) == len(seen) - before
        rows.append({"name": f"set {number}", "read": len(dataset), "dropped": dropped})
        rows[-1] |= {"kept": len(kept), "pairs": kept}
    pairs = [pair for row in rows for pair in row.pop("pairs")]
    return [b"".join(pair[side] + b"\n" for pair in pairs) for side in range(sides)], rows


def use_few_groups(patch: pytest.MonkeyPatch) -> None:
    """For many small sets: 256 files for each of them take their time."""
    for module in (clean, deduplicate):
        patch.setattr(module, "BITS", 2)
        patch.setattr(module, "GROUPS", 4)


# ------------------------------------------------------------------------------- training sets


@settings(max_examples=120, deadline=None)
@given(st.data(), st.integers(1, 2), st.integers(1, 4), st.sampled_from([1, 5, 16, 100, 5000]))
def test_training_set_is_that_of_the_reference(
    data: st.DataObject, sides: int, threads: int, block: int
) -> None:
    pair = st.tuples(*[lines] * sides)
    datasets = data.draw(st.lists(st.lists(pair, max_size=40), min_size=1, max_size=3))
    held_out = data.draw(st.sets(st.sampled_from(GOOD), max_size=2))
    expected, rows = reference(datasets, sides, held_out)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        use_few_groups(patch)
        patch.setattr(deduplicate, "TABLE_SLOTS", 4)
        patch.setattr(deduplicate, "RECORDS_AT_ONCE", 3)
        real = clean.Limits.__init__

        def tiny(self: Any, *values: Any) -> None:
            real(self, *values)
            self.block_bytes = block

        patch.setattr(clean.Limits, "__init__", tiny)
        sources = []
        for number, dataset in enumerate(datasets):
            files = [
                put(folder / f"{number}.{side}", [row[side] for row in dataset])
                for side in range(sides)
            ]
            sources.append(Source(f"set {number}", "text", tuple(files)))
        put(folder / "held-out", sorted(held_out))
        outputs = [folder / "out" / f"text.{side}" for side in range(sides)]
        table = held_out_table([folder / "held-out"])
        if not expected[0]:
            with pytest.raises(UserError, match="none is left"):
                clean_training(sources, outputs, table, threads)
            assert list((folder / "out").iterdir()) == []
            return
        statistics = clean_training(sources, outputs, table, threads)
        got = [path.read_bytes() for path in outputs]
        assert got == expected
        assert {path.name for path in (folder / "out").iterdir()} == {p.name for p in outputs}
    for row in statistics["datasets"]:
        assert row["read"] == sum(row["dropped"].values()) + row["kept"]
        row["dropped"] = Counter({k: v for k, v in row["dropped"].items() if v})
    assert statistics["datasets"] == rows
    assert statistics["read"] == sum(statistics["dropped"].values()) + statistics["kept"]
    assert statistics["kept"] == got[0].count(b"\n")


def large(folder: Path, count: int, repeats: int = 1) -> list[Source]:
    """Pairs with duplicates near and far, in a plain and a compressed file."""
    numbers = np.random.default_rng(1).integers(0, count, count).tolist()
    left = "".join(f"Satz Nummer {i} mit {i * 7919 % 10007} Wörtern\n" for i in numbers).encode()
    right = "".join(f"sentence {i} of {i // 3} words, then some more\n" for i in numbers).encode()
    (folder / "left").write_bytes(left * repeats)
    (folder / "right.gz").write_bytes(gzip.compress(right * repeats, 1))
    files = (File(str(folder / "left")), File(str(folder / "right.gz")))
    return [Source("large", "text", files)]


def test_threads_and_memory_change_nothing_in_a_set_of_many_blocks(tmp_path: Path) -> None:
    sources = large(tmp_path, 200_000, 2)
    results = []
    for threads, memory in ((1, 1000), (4, 256), (64, 256)):
        outputs = [tmp_path / f"{threads}.{side}" for side in ("source", "target")]
        statistics = clean_training(sources, outputs, NOTHING_HELD_OUT, threads, memory)
        results.append((statistics, [path.read_bytes() for path in outputs]))
    assert results[0] == results[1] == results[2]
    # dict keeps the first of equal pairs, in order
    left = (tmp_path / "left").read_bytes().splitlines()
    right = gzip.decompress((tmp_path / "right.gz").read_bytes()).splitlines()
    pairs = list(dict.fromkeys(zip(left, right, strict=True)))
    assert results[0][1] == [b"".join(p[side] + b"\n" for p in pairs) for side in (0, 1)]
    assert results[0][0]["read"] == 400_000
    assert results[0][0]["kept"] == len(pairs)


def test_malformed_rows_are_counted_alike_at_any_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [b"one column" if i % 3 == 0 else b"%d\tzwei %d" % (i, i) for i in range(300)]
    source = Source("set", "tsv", (put(tmp_path / "a", rows),), columns=(0, 1), end=50)
    outputs = [tmp_path / "source", tmp_path / "target"]
    seen = []
    for block in (1, 40, 100_000):
        monkeypatch.setattr(clean.Limits, "__init__", lambda self, *_, b=block: set_limits(self, b))
        seen.append(clean_training([source], outputs, NOTHING_HELD_OUT))
        assert outputs[0].read_bytes().splitlines()[-1] == b"74"
    assert seen[0] == seen[1] == seen[2]
    assert (seen[0]["read"], seen[0]["dropped"]["malformed"], seen[0]["kept"]) == (75, 25, 50)


def set_limits(limits: Any, block_bytes: int) -> None:
    limits.threads, limits.ahead, limits.block_bytes = 2, 3, block_bytes


def test_all_keys_in_one_group(tmp_path: Path) -> None:
    """As if the hash were bad: one group gets everything and its table grows."""
    count = 40_000
    keys = np.random.default_rng(1).integers(1, 1 << 56, (count, 2), dtype=np.uint64)
    keys[count // 2 :] = keys[: count // 2][::-1]
    first = deduplicate.FirstOccurrences(tmp_path)
    assert list(tmp_path.iterdir()) == []
    for begin in range(0, count, 7000):
        part = keys[begin : begin + 7000]
        records = np.empty((len(part), 3), dtype=np.uint64)
        bounds = np.empty(deduplicate.GROUPS + 1, dtype=np.int64)
        verdicts = np.zeros(len(part), dtype=np.uint8)
        kernels.partition(verdicts, part, begin, deduplicate.BITS, records, bounds)
        first.add(records, bounds)
    with clean.ThreadPoolExecutor(2) as pool:
        bitmap, kept = first.bitmap(count, pool, 3)
    bits = np.unpackbits(bitmap, bitorder="little")[:count]
    assert kept == count // 2
    assert bits[: count // 2].all()
    assert not bits[count // 2 :].any()


@pytest.mark.parametrize("change", ["longer", "shorter", "same length", "gone"])
def test_a_source_that_changes_between_the_passes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = tmp_path / "a"
    source = Source("set", "text", (put(path, [b"%d" % i for i in range(100)]),))
    real = deduplicate.FirstOccurrences.bitmap

    def bitmap(*values: Any) -> Any:
        before = path.stat()
        if change == "gone":
            path.unlink()
        elif change == "same length":
            path.write_bytes(path.read_bytes().replace(b"7", b"8"))
            assert path.stat().st_size == before.st_size
        else:
            put(path, [b"%d" % i for i in range(101 if change == "longer" else 99)])
        return real(*values)

    monkeypatch.setattr(deduplicate.FirstOccurrences, "bitmap", bitmap)
    if change in ("longer", "shorter"):  # seen even where a file's times tell nothing
        monkeypatch.setattr(clean, "_state", lambda _: [])
    because = "no such file" if change == "gone" else "set: changed while it was read"
    with pytest.raises(UserError, match=because):
        clean_training([source], [tmp_path / "out" / "text"], NOTHING_HELD_OUT)
    assert list((tmp_path / "out").iterdir()) == []


def test_misaligned_files_leave_nothing(tmp_path: Path) -> None:
    files = (put(tmp_path / "a", [b"a"] * 5), put(tmp_path / "b", [b"b"] * 6))
    outputs = [tmp_path / "out" / "source", tmp_path / "out" / "target"]
    with pytest.raises(UserError, match=r"ends after line 5, .* not aligned"):
        clean_training([Source("set", "text", files)], outputs, NOTHING_HELD_OUT)
    assert list((tmp_path / "out").iterdir()) == []


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 256 MB"):
        clean_training([], [tmp_path / "a"], NOTHING_HELD_OUT, memory_mb=255)


# ------------------------------------------------------------------------------- held-out sets


def pairs_of(folder: Path, pairs: list[tuple[bytes, bytes]], name: str = "set") -> Source:
    files = [put(folder / f"{name}.{s}", [pair[s] for pair in pairs]) for s in (0, 1)]
    return Source(name, "text", tuple(files))


def test_held_out_set_is_tidied_and_counted(tmp_path: Path) -> None:
    source = pairs_of(
        tmp_path,
        [
            (b" a\r", "b\u2028c\x85d".encode()),
            (b"x", "\u2028".encode()),  # nothing but a separator: empty
            (b"", b"y"),
            (b"\ra\x0b", b"e"),  # "a" once its separators are gone
            (b"f", b"forbidden "),
            (b"a", b"b c d"),  # a duplicate stays: the set is official
        ],
    )
    outputs = [tmp_path / "out.source", tmp_path / "out.target"]
    statistics = clean_held_out([source], outputs, {"forbidden"})
    assert outputs[0].read_text() == "a\na\na\n"
    assert outputs[1].read_text() == "b c d\ne\nb c d\n"
    assert statistics["read"] == 6
    assert statistics["dropped"] == {"empty": 2, "held_out": 1}
    assert statistics["kept"] == 3


@pytest.mark.parametrize(("bad", "because"), [(b"\xff", "not UTF-8"), (b"a\0", "contains a NUL")])
def test_held_out_set_that_cannot_be_trusted_is_refused(
    tmp_path: Path, bad: bytes, because: str
) -> None:
    good = (b"a", b"b")
    source = pairs_of(tmp_path, [good] * 9 + [(b"c", bad)])
    outputs = [tmp_path / "out" / "source", tmp_path / "out" / "target"]
    for first in (0, 4):
        ranged = Source(source.name, "text", source.files, first=first)
        with pytest.raises(UserError, match=rf"{source.files[1]}, sentence 10: {because}"):
            clean_held_out([ranged], outputs, set())
        assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(UserError, match="set: nothing is left"):
        clean_held_out([pairs_of(tmp_path, [good])], outputs, {"b"})
    assert list((tmp_path / "out").iterdir()) == []


@settings(max_examples=50, deadline=None)
@given(st.sets(st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1)))
def test_every_sentence_of_a_held_out_set_is_found_in_training_data(texts: set[str]) -> None:
    """Whatever it looks like, as long as it is fit for training data at all."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        use_few_groups(patch)
        folder = Path(name)
        raw = [text.encode() for text in sorted(texts)]
        fit = [line for line in raw if fault(line.strip(b" \t\r"), set()) is None]
        if not fit:
            return
        held_out = Source("set", "text", (put(folder / "raw", fit),))
        clean_held_out([held_out], [folder / "clean"], set())
        other = b"not one of them, to be sure"
        training = Source("training", "text", (put(folder / "training", [*fit, other]),))
        statistics = clean_training(
            [training], [folder / "out"], held_out_table([folder / "clean"])
        )
        assert (folder / "out").read_bytes() == other + b"\n"
        assert statistics["dropped"]["held_out"] == len(fit)


# ------------------------------------------------------------------------------------- the verbs


def datasets_json(folder: Path, **roles: list[Source]) -> Path:
    path = folder / "datasets.json"
    described = {
        role: {
            "languages": ["de", "en"][-max(len(sources[0].files), len(sources[0].columns)) :],
            "sources": [source.to_json() for source in sources],
        }
        for role, sources in roles.items()
    }
    path.write_text(json.dumps({"roles": described}))
    return path


def test_from_held_out_sets_to_training_sets(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = datasets_json(
        tmp_path,
        test=[pairs_of(tmp_path, [(b"t1", b"T1"), (b"t2", b"T2")], "test")],
        dev=[pairs_of(tmp_path, [(b"d1", b"D1"), (b"t2", b"other")], "dev")],
        metadev=[
            pairs_of(tmp_path, [(b"m1", b"M1"), (b"\x0bt1", b"x"), (b"y", b"D1 ")], "metadev")
        ],
        parallel=[pairs_of(tmp_path, [(b"t1", b"x"), (b"p", b"M1"), (b"p", b"P"), (b"p", b"P ")])],
        mono=[Source("mono", "text", (put(tmp_path / "mono", [b"other", b"d1", b"new"]),))],
    )
    assert main(["hold-out", str(path), "--output", str(out)]) == 0
    assert (out / "metadev.source").read_text() == "m1\n"
    assert json.loads((out / "metadev.json").read_text())["dropped"] == {"empty": 0, "held_out": 2}
    assert (out / "dev.target").read_text() == "D1\nother\n"
    assert json.loads((out / "dev.json").read_text())["sentences_also_in_test"] == 1
    texts = [
        str(out / f"{r}.{s}") for r in ("test", "dev", "metadev") for s in ("source", "target")
    ]
    for role in ("parallel", "mono"):
        arguments = ["clean", str(path), role, "--output", str(out), "--held-out", *texts]
        assert main([*arguments, "--threads", "2"]) == 0
    assert (out / "parallel.source").read_text() == "p\n"
    assert (out / "parallel.target").read_text() == "P\n"
    assert (out / "mono.target").read_text() == "new\n"
    assert not (out / "mono.source").exists()
    statistics = json.loads((out / "parallel.json").read_text())
    assert statistics["dropped"]["held_out"] == 2
    assert statistics["dropped"]["duplicate"] == 1


def test_nothing_left_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source = Source("mono", "text", (put(tmp_path / "mono", [b"", b"\xff"]),))
    path = datasets_json(tmp_path, mono=[source])
    out = tmp_path / "out"
    assert main(["clean", str(path), "mono", "--output", str(out)]) == 1
    assert re.fullmatch(r"metabt: error: .*none is left\n", capsys.readouterr().err)
    assert list(out.iterdir()) == []
    assert main(["clean", str(path), "parallel", "--output", str(out)]) == 1
    assert "has no set 'parallel'" in capsys.readouterr().err


LIMITED = """
import resource, sys
from metabt.cli import main
from metabt.data import clean  # compiled code is loaded before the limit holds
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("limit", "lines"),
    [
        (100, 50_000),  # not even the keys can be written
        (800_000, 50_000),  # the text cannot be written, longest side first or last
        (5_000, 300),  # one side is complete, the other fails when it is closed
    ],
)
@pytest.mark.parametrize("longer", [0, 1])
def test_a_write_error_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, limit: int, lines: int, longer: int
) -> None:
    sides = [[b"%d" % i for i in range(lines)], [b"%d and so on and on" % i for i in range(lines)]]
    rows = list(zip(sides[1 - longer], sides[longer], strict=True))
    path = datasets_json(tmp_path, parallel=[pairs_of(tmp_path, rows)])
    out = tmp_path / "out"
    arguments = ["clean", str(path), "parallel", "--output", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == f"metabt: error: {out}: File too large\n"
    assert list(out.iterdir()) == []


# ----------------------------------------------------------------------- kill -9, and memory


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """3 million pairs, 300 MB as plain text, and the command that cleans them."""
    folder = tmp_path_factory.mktemp("corpus")
    left = "".join(
        f"Satz Nummer {i * 7919 % 1000003} von {i}, ein wenig Text\n" for i in range(375_000)
    )
    right = "".join(
        f"sentence number {i} of {i // 2} sentences, with text\n" for i in range(375_000)
    )
    for name, text in (("left", left), ("right", right)):
        with (folder / name).open("w") as handle:
            for letter in "abcdefgh":  # eight times other lines of the same length
                handle.write(text.replace("t", letter))
    files = (File(str(folder / "left")), File(str(folder / "right")))
    size = sum(Path(file.path).stat().st_size for file in files)
    assert size > 280 << 20
    part = Source("part", "text", files, end=1_000_000)
    path = datasets_json(folder, parallel=[Source("large", "text", files)], related=[part])
    yield folder, ["clean", str(path), "parallel", "--threads", "2", "--memory-mb", "256"]
    shutil.rmtree(folder)


def written_since(folder: Path, moment: float) -> bool:
    return any(path.stat().st_mtime > moment for path in folder.glob("*.part"))


def digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def test_kill_9_leaves_nothing_that_looks_whole(corpus: tuple[Path, list[str]]) -> None:
    folder, arguments = corpus
    arguments = ["related" if word == "parallel" else word for word in arguments]
    command = [sys.executable, "-m", "metabt", *arguments, "--output"]
    quiet: dict[str, Any] = {"cwd": REPOSITORY, "stderr": subprocess.DEVNULL}
    began = time.monotonic()
    subprocess.run([*command, str(folder / "whole")], check=True, **quiet)
    duration = time.monotonic() - began
    whole = {path.name: digest(path) for path in (folder / "whole").iterdir()}
    assert set(whole) == {"related.source", "related.target", "related.json"}

    out = folder / "killed"
    draw = random.Random()
    met = Counter[str]()
    # The writing begins late, so half of the kills wait for its first sign.
    for attempt in range(5):
        started = time.time()
        process = subprocess.Popen([*command, str(out)], **quiet)
        wait = draw.uniform(0.2, 1.0) * duration
        if attempt % 2:
            while process.poll() is None and not written_since(out, started):
                time.sleep(0.005)
            wait = 0 if attempt == 1 else draw.uniform(0, 0.2) * duration
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in out.iterdir() if out.exists() else ():
            if path.suffix == ".part":
                assert path.stem in whole
                met["part"] += 1
            else:
                assert digest(path) == whole[path.name]
                path.unlink()
    assert met["part"]
    subprocess.run([*command, str(out)], check=True, **quiet)
    assert {path.name: digest(path) for path in out.iterdir()} == whole


@pytest.mark.parametrize("text", ["sentences", "short lines"])
def test_memory_is_bounded_by_configuration(
    corpus: tuple[Path, list[str]], tmp_path: Path, text: str
) -> None:
    arguments = list(corpus[1])
    if text == "short lines":
        (tmp_path / "a").write_bytes(b"\n" * 20_000_000 + b"a\n")
        source = Source("short", "text", (File(str(tmp_path / "a")),) * 2)
        arguments[1] = str(datasets_json(tmp_path, parallel=[source]))
    # A process of its own starts the command, because the peak of whoever starts it counts, too.
    script = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "metabt", *sys.argv[1:]], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments, "--output", str(corpus[0] / text)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 320 << 20
