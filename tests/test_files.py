"""Files that are whole or absent, whatever happens to the writer; and what progress prints."""

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from metabt import files, progress
from metabt.errors import UserError
from metabt.files import atomic_write, read_json, write_json, write_text
from metabt.progress import Progress

HOLDER = """
import sys
from pathlib import Path
from metabt.files import atomic_write
with atomic_write(Path(sys.argv[1])) as handle:
    handle.write(b"from the first")
    handle.flush()
    print("written", flush=True)
    sys.stdin.readline()
"""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def first_writer(tmp_path: Path) -> Any:
    """A process in the middle of writing `tmp_path`/text."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "text")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "written\n"
        yield process
        process.kill()


@pytest.mark.parametrize("old", [None, b"old, and longer than the new one"])
def test_a_file_appears_when_it_is_complete(tmp_path: Path, old: bytes | None) -> None:
    path = tmp_path / "new folder" / "text"
    if old is not None:
        path.parent.mkdir()
        path.write_bytes(old)
    with atomic_write(path) as handle:
        handle.write(b"new")
        handle.flush()
        assert (path.read_bytes() if path.exists() else None) == old
    assert path.read_bytes() == b"new"
    assert names(path.parent) == {"text"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "text"
    write_text(path, "old")

    def fail() -> None:
        with atomic_write(path) as handle:
            handle.write(b"new")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == {"text"}


def test_a_full_disk_is_told_with_its_place_and_does_not_hide_another_error(
    tmp_path: Path,
) -> None:
    script = """
import resource, sys
from pathlib import Path
from metabt.files import atomic_write
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with atomic_write(Path(sys.argv[1])) as handle:
        handle.write(bytes(3000))
        if sys.argv[2] == "other":
            raise KeyError("other")
except Exception as error:
    print(type(error).__name__, getattr(error, "filename", ""), getattr(error, "strerror", ""))
"""
    for kind, told in (
        ("full", f"OSError {tmp_path} File too large\n"),
        ("other", "KeyError  \n"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "text"), kind],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[1],
        )
        assert done.stdout == told
        assert names(tmp_path) == set()


def test_a_second_writer_is_refused(tmp_path: Path, first_writer: Any) -> None:
    with pytest.raises(UserError, match=r"text\.part: another process is writing this file$"):
        write_text(tmp_path / "text", "from the second")
    first_writer.communicate("go on\n")
    assert (tmp_path / "text").read_text() == "from the first"
    assert names(tmp_path) == {"text"}


def test_what_a_killed_writer_left_is_replaced(tmp_path: Path, first_writer: Any) -> None:
    first_writer.send_signal(signal.SIGKILL)
    first_writer.wait()
    assert names(tmp_path) == {"text.part"}
    write_text(tmp_path / "text", "second")
    assert (tmp_path / "text").read_text() == "second"
    assert names(tmp_path) == {"text"}


@pytest.mark.parametrize("ending", ["renamed", "removed"])
def test_a_writer_that_ends_between_our_open_and_our_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    path, part = tmp_path / "text", tmp_path / "text.part"
    part.write_text("of the first writer")
    real, calls = fcntl.lockf, []

    def lockf(handle: Any, command: int) -> None:
        if not calls:
            part.rename(path) if ending == "renamed" else part.unlink()
        calls.append(handle)
        real(handle, command)

    monkeypatch.setattr(files.fcntl, "lockf", lockf)
    with atomic_write(path) as handle:
        handle.write(b"of the second")
        handle.flush()
        if ending == "renamed":
            assert path.read_text() == "of the first writer"
    assert path.read_text() == "of the second"
    assert len(calls) == 2
    assert calls[0].closed


def test_a_disk_without_locks_is_not_called_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lockf(handle: Any, command: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(files.fcntl, "lockf", lockf)
    with pytest.raises(OSError, match="No locks available"):
        write_text(tmp_path / "text", "new")


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"größe": [1, None, "\u2028"]}
    write_json(path, value)
    assert read_json(path) == value
    assert "größe" in path.read_text(encoding="utf-8")
    for content in (b"{", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.json: not a JSON file"):
            read_json(path)
    path.unlink()
    with pytest.raises(UserError, match=r"a\.json: no such file"):
        read_json(path)


@pytest.mark.parametrize(
    ("total", "told"),
    [(8, r"judge: 6\b.* of 8 lines \(75%\), .* min left"), (None, "judge: 6 lines, ")],
)
def test_progress_in_a_log_file(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, total: int | None, told: str
) -> None:
    def lines() -> list[str]:
        out, err = capsys.readouterr()
        assert out == ""
        return err.splitlines()

    with Progress("judge", total, "lines") as bar:
        bar.add(2)
        assert lines() == []
        monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
        bar.add(4)
        (line,) = lines()
    assert re.match(told, line)


def test_progress_on_a_terminal() -> None:
    script = (
        "from metabt.progress import Progress\nwith Progress('judge', 8, 'lines') as b: b.add(6)"
    )
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    process = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=theirs,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert select.select([ours], [], [], 10)[0]
    shown = os.read(ours, 10_000)
    os.close(theirs)
    os.close(ours)
    assert b"judge" in shown
    assert process.stdout == b""
