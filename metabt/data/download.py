"""Fetch one file from the web, and be sure that it is the right one.

Beside `<dest>` lie, while or after it is fetched:
`<dest>.part`, `<dest>.part.json`: the bytes so far and where they came from, to go on from later.
`<dest>.verified.json`: `{"checksum": "sha256:...", "size": ..., "mtime_ns": ...}` of the file when
    it was verified. With the same size and time it is not read again; and where the resource has
    no checksum of its own, other content is refused from then on, even if the file was deleted.
`<dest>.lock`: held while fetching, so that two processes fetch the file once.
"""

import fcntl
import hashlib
import math
import os
import posixpath
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from metabt.data.transport import NotHereError, Stream, TransientError, open_place
from metabt.errors import UserError
from metabt.files import read_json, sync_directory, write_json
from metabt.progress import Progress

RECORD = ".verified.json"
LONGEST_WAIT = 120.0  # seconds between two attempts, whatever the server asks for
CHECKSUM = re.compile(r"(?i)sha256:[0-9a-f]{64}|sha1:[0-9a-f]{40}|md5:[0-9a-f]{32}")
HTML_START = re.compile(rb"(?i)[\s\xef\xbb\xbf]*<(?:!doctype\s+html|html)\b")


@dataclass(frozen=True)
class Resource:
    """One file on the web: where it is, and how to know it when we have it."""

    url: str
    mirrors: tuple[str, ...] = ()  # full alternative URLs, tried in order after url
    size: int | None = None  # bytes
    checksum: str | None = None  # "sha256:<hex>", "sha1:<hex>" or "md5:<hex>"

    def __post_init__(self) -> None:
        if self.checksum is not None and not CHECKSUM.fullmatch(self.checksum):
            raise UserError(f"{self.url}: {self.checksum!r} is no sha256:, sha1: or md5: checksum")

    @property
    def path(self) -> str:
        """`<host>/<path>` of the url; a query becomes a directory, so the name keeps its suffix."""
        parts = urlsplit(self.url)
        host = re.sub(r"[^a-z0-9.-]", "_", parts.hostname or "localhost").strip(".")
        *directories, name = unquote(parts.path).split("/")
        query = [quote("?" + parts.query, safe="=")] if parts.query else []
        # Normalising an absolute path removes every "..": it cannot climb above its root.
        inside = posixpath.normpath("/" + "/".join([*directories, *query, name]).lstrip("/"))
        if not host or name in ("", ".", "..") or "\0" in inside:
            raise UserError(f"{self.url}: this URL names no file")
        return host + inside


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _new_hash(like: str | None) -> Any:
    """A hash of the kind of the checksum `like`; of our own choice if there is none."""
    return hashlib.new((like or "sha256").partition(":")[0].lower(), usedforsecurity=False)


def _hash_file(path: Path, like: str | None) -> Any:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: _new_hash(like))


def _checksum(digest: Any) -> str:
    return f"{digest.name}:{digest.hexdigest()}"


def _sibling(dest: Path, suffix: str) -> Path:
    return dest.with_name(dest.name + suffix)


def _may_be_html(dest: Path) -> bool:
    return dest.name.lower().endswith((".html", ".htm"))


class _Part:
    """`<dest>.part`: the bytes so far, hashed as they come, and a note of where they came from."""

    def __init__(self, dest: Path, expected: str | None) -> None:
        self.path, self.note = _sibling(dest, ".part"), _sibling(dest, ".part.json")
        self.may_be_html = _may_be_html(dest)
        self.path.touch()
        self.size = self.path.stat().st_size
        self.digest = _hash_file(self.path, expected)
        with self.path.open("rb") as handle:
            self.head = handle.read(512)
        try:
            note = read_json(self.note)
            self.source, self.validator = note["url"], note["validator"]
        except (UserError, LookupError, TypeError):  # none, or one from a crash: a stranger's bytes
            self.source = self.validator = None

    def discard(self) -> None:
        # In this order: a note without bytes does no harm, but one about other bytes would.
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)
        self.size, self.head, self.source, self.validator = 0, b"", None, None
        self.digest = _new_hash(self.digest.name)

    def begin(self, place: str, stream: Stream) -> None:
        """Note where the bytes come from, before the first of them is written."""
        if stream.start == 0:
            self.discard()
            self.source, self.validator = place, stream.validator
        elif self.source != place:
            self.source = self.validator = None  # they come from several places
        write_json(self.note, {"url": self.source, "validator": self.validator})

    def append(self, stream: Stream, limit: float, seen: Callable[[int], Any]) -> None:
        """Write the stream piece by piece; no further when it cannot be the file that we want."""
        with self.path.open("ab") as handle:
            while self.size <= limit and not self.is_web_page() and (data := stream.read()):
                handle.write(data)
                handle.flush()  # a kill then loses nothing
                self.digest.update(data)
                self.size += len(data)
                self.head += data[: max(0, 512 - len(self.head))]
                seen(len(data))

    def is_web_page(self) -> bool:
        return not self.may_be_html and HTML_START.match(self.head) is not None


class _Fetch:
    """One file on its way: what is wanted, what is there so far, and how patient to be."""

    def __init__(self, resource: Resource, dest: Path, patience: tuple[int, float, float]) -> None:
        self.resource, self.dest = resource, dest
        self.attempts, self.timeout, self.backoff = patience
        self.expected = _expected(resource, dest)
        self.part = _Part(dest, self.expected)

    def run(self, places: list[str]) -> None:
        failures = []
        for place in places:
            try:
                return self.fetch_from(place)
            except NotHereError as reason:
                failures.append(f"{place}: {reason}")
                _say(failures[-1])
        if not self.part.size:
            self.part.discard()
        raise UserError(
            "\n  ".join([f"{self.resource.url} could not be fetched from any place:", *failures])
            + f"\nPut the file at {self.dest} by hand, or set METABT_MIRROR to a directory or URL "
            f"that holds it as {self.resource.path}"
        )

    def fetch_from(self, place: str) -> None:
        """Have the whole file from one place, however often the line is cut."""
        part, failures, longest = self.part, 0, self.part.size
        inherited = part.size > 0
        while True:
            try:
                self.attempt(place)
                problem = self.problem()
                if problem is None:
                    return self.install()
                part.discard()
                if not inherited:
                    raise NotHereError(problem)
                # The bytes that were here before may be at fault: give this place a fresh start.
                inherited, longest = False, 0
                _say(f"{place}: {problem}; starting again from byte 0")
            except TransientError as error:
                if error.restart:
                    part.discard()
                # Only bytes never reached before are progress: a server that cannot resume and
                # is cut each time must not keep us forever.
                failures = 0 if part.size > longest else failures + 1
                longest = max(longest, part.size)
                if failures >= self.attempts:
                    raise NotHereError(f"{error} ({failures} times without progress)") from error
                pause = self.backoff * 2 ** max(0, failures - 1) * random.uniform(0.5, 1.5)
                pause = min(LONGEST_WAIT, max(pause, error.wait))
                _say(f"{place}: {error}; going on from byte {part.size} in {pause:.1f} s")
                time.sleep(pause)

    def attempt(self, place: str) -> None:
        """Read one stream to its end; return if the part should now be whole."""
        part, size = self.part, self.resource.size
        # Without a checksum, bytes are joined only if the place can tell that they belong together.
        trusted = part.source == place and part.validator is not None
        if not (self.expected or trusted) or (size is not None and part.size > size):
            part.discard()
        if self.expected and part.size and part.size == size:
            return
        with open_place(
            place, part.size, part.validator if trusted else None, self.timeout
        ) as stream:
            if stream.html and not part.may_be_html:
                raise NotHereError("gives a web page instead of the file")
            if size is not None and stream.total not in (None, size):
                raise NotHereError(f"has a file of {stream.total} bytes where {size} are expected")
            total = size if size is not None else stream.total
            part.begin(place, stream)
            free = shutil.disk_usage(self.dest.parent).free
            if total is not None and total - part.size > free:
                raise UserError(
                    f"{self.dest}: {total - part.size} bytes to come, {free} bytes free"
                )
            with Progress(self.dest.name, total, "B", part.size) as progress:
                part.append(stream, math.inf if size is None else size, progress.add)
        if total is not None and part.size < total and not part.is_web_page():
            raise TransientError(f"cut off after {part.size} of {total} bytes")

    def problem(self) -> str | None:
        """Why the part, though complete, is not the file that we want."""
        size, checksum = self.resource.size, _checksum(self.part.digest)
        if self.part.is_web_page():
            return "gives a web page instead of the file"
        if size not in (None, self.part.size):
            return f"has a file of other than the expected {size} bytes"
        if self.expected not in (None, checksum):
            return f"has a file with {checksum} where {_wanted(self.resource, self.dest)}"
        return None

    def install(self) -> None:
        with self.part.path.open("ab") as handle:
            os.fsync(handle.fileno())
        self.part.path.rename(self.dest)
        sync_directory(self.dest.parent)
        self.part.note.unlink(missing_ok=True)
        write_json(
            _sibling(self.dest, RECORD), _fingerprint(self.dest, _checksum(self.part.digest))
        )


def _read_record(dest: Path) -> dict[str, Any]:
    path = _sibling(dest, RECORD)
    record = read_json(path) if path.exists() else None
    if record is None:
        return {}
    if not isinstance(record, dict) or not CHECKSUM.fullmatch(str(record.get("checksum"))):
        raise UserError(f"{path}: holds no checksum; delete this file")
    return record


def _fingerprint(dest: Path, checksum: str | None) -> dict[str, Any]:
    status = dest.stat()
    return {"checksum": checksum, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _expected(resource: Resource, dest: Path) -> str | None:
    """The checksum that the file must have: the resource's, or that of the first download."""
    return (resource.checksum or _read_record(dest).get("checksum", "")).lower() or None


def _wanted(resource: Resource, dest: Path) -> str:
    """The end of a sentence about a wrong checksum."""
    if resource.checksum:
        return f"{resource.checksum} is expected"
    record = _sibling(dest, RECORD)
    return f"{_expected(resource, dest)} is in {record} (delete it if the change is intended)"


def _is_verified(resource: Resource, dest: Path) -> bool:
    """Whether the file is there and untouched since it was verified."""
    return (
        dest.exists()
        and _read_record(dest) == _fingerprint(dest, _expected(resource, dest))
        and resource.size in (None, dest.stat().st_size)
    )


def _verify_existing(resource: Resource, dest: Path) -> None:
    """Read a file of unknown origin. A wrong one is somebody's: we do not delete it."""
    size, expected = dest.stat().st_size, _expected(resource, dest)
    advice = "; move it away, and it will be fetched"
    if resource.size not in (None, size):
        raise UserError(f"{dest}: has {size} bytes where {resource.size} are expected{advice}")
    checksum = _checksum(_hash_file(dest, expected))
    if expected not in (None, checksum):
        raise UserError(f"{dest}: has {checksum} where {_wanted(resource, dest)}{advice}")
    with dest.open("rb") as handle:
        if expected is None and not _may_be_html(dest) and HTML_START.match(handle.read(512)):
            raise UserError(f"{dest}: is a web page instead of the file{advice}")
    write_json(_sibling(dest, RECORD), _fingerprint(dest, checksum))


@contextmanager
def _locked(dest: Path) -> Iterator[None]:
    """Hold `<dest>.lock`: the file stays, but the lock goes with the process."""
    with _sibling(dest, ".lock").open("ab") as handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            _say(f"{dest}: another process is fetching this file; waiting for it")
            fcntl.lockf(handle, fcntl.LOCK_EX)
        # An NFS client may still believe that the other's file is not there: this makes it ask.
        list(dest.parent.iterdir())
        yield


def _places(resource: Resource, mirror: str | None) -> list[str]:
    """Every URL of the file, in the order in which they are tried."""
    places = [resource.url, *resource.mirrors]
    if mirror and re.match(r"(?:https?|file)://", mirror):
        places.insert(0, mirror.rstrip("/") + "/" + quote(resource.path))
    elif mirror:
        places.insert(0, (Path(mirror).expanduser().absolute() / resource.path).as_uri())
    return places


def download(
    resource: Resource,
    root: Path,
    *,
    mirror: str | None = None,
    attempts: int = 5,
    timeout: float = 60.0,
    backoff: float = 1.0,
) -> Path:
    """Have `root / resource.path` there, whole and verified, and return that path.

    `mirror` (a directory or URL laid out `<host>/<path>`) is tried before the resource's places.
    A place is given up after `attempts` failures in a row without a new byte, one of which is
    `timeout` seconds of silence; the pauses between them grow from `backoff` seconds on.
    """
    dest = Path(root) / resource.path
    try:
        if _is_verified(resource, dest):
            return dest
        dest.parent.mkdir(parents=True, exist_ok=True)
        with _locked(dest):
            if not dest.exists():
                fetch = _Fetch(resource, dest, (attempts, timeout, backoff))
                fetch.run(_places(resource, mirror))
            elif not _is_verified(resource, dest):
                _verify_existing(resource, dest)
    except OSError as error:  # the network's have been dealt with: this is the disk's
        raise UserError(f"{error.filename or dest}: {error.strerror or error}") from error
    return dest
