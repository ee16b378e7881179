"""Who trains in a directory, and how far they are: the lock, and `checkpoint/progress.json`.

A lock alone is not enough: there are file systems without locks, or whose locks are known to one
host only. So whoever trains also gives a sign of life every few seconds, and a newcomer from
another host waits until there has been none for a while. `metabt status` reads the same file.
"""

import errno
import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from metabt.errors import Interrupted, UserError
from metabt.files import read_json, write_unsynced_json

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)  # that ask a trainer to stop
SECONDS_BETWEEN_SIGNS = 10.0
SECONDS_UNTIL_GONE = 90.0  # without a sign of life
SECONDS_BETWEEN_TRIES = 2.0


def progress_file(directory: Path) -> Path:
    return directory / "checkpoint" / "progress.json"


def read_progress(directory: Path) -> dict[str, Any]:
    """The last sign of life; empty if there is none, or none that can be read."""
    try:
        found = read_json(progress_file(directory))
    except (UserError, OSError):
        return {}
    return found if isinstance(found, dict) else {}


class Presence:
    """Signs of life, from a thread of their own: a measurement on dev may take minutes."""

    def __init__(self, directory: Path) -> None:
        self.path = progress_file(directory)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.values: dict[str, Any] = {
            "state": "starting",
            "host": socket.gethostname(),
            "process": os.getpid(),
            "job": os.environ.get("METABT_JOB", ""),  # as the surroundings call it
            "began": time.time(),
        }
        self._lock, self._due, self._leaves = threading.Lock(), threading.Event(), False
        self._thread = threading.Thread(target=self._live, daemon=True)

    def report(self, **values: Any) -> None:
        """What the next sign will say; a new state is told at once."""
        with self._lock:
            self.values.update(values)
        if "state" in values:
            self._due.set()

    def _live(self) -> None:
        while not self._leaves:
            self._due.wait(SECONDS_BETWEEN_SIGNS)
            self._due.clear()
            self._write()

    def _write(self) -> None:
        with self._lock:
            record = {**self.values, "written": time.time()}
        with suppress(OSError):  # a full disk is the checkpoint's to complain of
            write_unsynced_json(self.path, record)

    def __enter__(self) -> "Presence":
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.values["state"] in ("starting", "running"):
            self.report(state="left")
        self._leaves = True
        self._due.set()
        self._thread.join()


def _take(handle: IO[str]) -> bool:
    """Take the lock of an open file, if it is free; where there are no locks, do without."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            print(f"{handle.name}: no locks here ({error.strerror})", file=sys.stderr)
            return True
        return False
    return True


def _holder(progress: dict[str, Any]) -> str:
    job = f"{progress['job']}, " if progress.get("job") else ""
    return f"{job}process {progress.get('process', '?')} on {progress.get('host', 'some host')}"


class _Watch:
    """Has somebody on another host been seen alive? Told by changes of the file, not by its time:
    clocks differ."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.seen, self.since = directory, 0.0, time.monotonic()

    def elsewhere(self) -> dict[str, Any] | None:
        progress = read_progress(self.directory)
        mine = progress.get("host") in (None, socket.gethostname())
        if mine or progress.get("state") not in ("starting", "running"):
            return None
        if progress["written"] != self.seen:
            self.seen, self.since = progress["written"], time.monotonic()
        return progress if time.monotonic() - self.since < SECONDS_UNTIL_GONE else None


@contextmanager
def _interruptible() -> Iterator[None]:
    """Signals that ask a trainer to stop end the waiting, as they would the training."""

    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One at a time trains in a directory: whoever comes second waits, and then goes on from where
    the first was, or finds that all is done. The lock goes with the process."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("a") as handle:
        with _interruptible():
            _wait_for_turn(directory, handle)
        yield


def _wait_for_turn(directory: Path, handle: IO[str]) -> None:
    watch, told = _Watch(directory), ""
    while True:
        free, other = _take(handle), watch.elsewhere()
        if free and other is None:
            return
        who = _holder(other or read_progress(directory))
        if who != told:
            told = who
            print(
                f"{directory}: {who} trains here; waiting until it has finished or is gone",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(SECONDS_BETWEEN_TRIES)
