"""Files that are either whole or absent: atomic writes with a lock against a second writer."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from metabt.errors import UserError


def _open_locked(path: Path) -> IO[bytes]:
    """Open `path` for writing under an exclusive lock, or say that somebody else has it.

    The lock goes with the process: a writer killed with -9 leaves a stale file but no stale lock.
    Between our open and our lock the other writer may have renamed the file into place: then what
    we hold is the finished file, which must not be touched, and we try again with a new one.
    """
    while True:
        handle = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # what a taken lock may give (POSIX)
            handle.close()
            raise UserError(f"{path}: another process is writing this file") from error
        try:
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                return handle
        except FileNotFoundError:
            pass
        handle.close()


def sync_directory(path: Path) -> None:
    """Make a rename inside `path` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under its name only when it is complete and on disk.

    It is written as `<path>.part`; on any error that file is removed and `path` is left as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    handle = _open_locked(part)
    try:
        handle.truncate(0)
        yield handle
        handle.flush()
        os.fsync(handle.fileno())
        part.rename(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path.parent)  # a full disk: say at least where
        with suppress(OSError):  # what could not be written cannot be written now
            handle.close()
        raise
    handle.close()
    sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as handle:
        handle.write(text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_unsynced_json(path: Path, value: Any) -> None:
    """Whole, but not forced to disk: for what is written often and soon out of date."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    part.rename(path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a JSON file ({error})") from error
