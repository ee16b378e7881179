"""Read a file at a place, an address or a local path, from some byte on."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests
import urllib3

PIECE = 1 << 20


class NotHereError(Exception):
    """This place does not have the file: go on to the next one."""


class TransientError(Exception):
    """This place may give the file if asked again; with `restart`, from its first byte on."""

    def __init__(self, reason: str, wait: float = 0.0, restart: bool = False) -> None:
        super().__init__(reason)
        self.wait, self.restart = wait, restart


@dataclass(frozen=True)
class Stream:
    """A file being read at some place from byte `start` on; `read` gives b"" at its end."""

    start: int
    total: int | None
    validator: str | None  # is another one when the file has changed
    html: bool
    read: Callable[[], bytes]


def _retry_after(value: str) -> float:
    """Seconds to wait, from either form of the header: a number or a date."""
    try:
        at = None if value.isdigit() else parsedate_to_datetime(value).timestamp()
    except ValueError:
        return 0.0
    return float(value) if at is None else at - time.time()


def _extent(response: requests.Response, offset: int) -> tuple[int, int | None]:
    """Where in the file the body of the answer starts, and how long the whole file is."""
    status, headers = response.status_code, response.headers
    if status in (408, 425, 429) or status >= 500:
        raise TransientError(f"HTTP {status}", wait=_retry_after(headers.get("Retry-After", "0")))
    if status == 200:
        length = headers.get("Content-Length", "")
        return 0, int(length) if length.isdigit() else None
    if status not in (206, 416):
        raise NotHereError(f"HTTP {status} {response.reason}")
    given = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", ""))
    total = int(given[2]) if given and given[2] != "*" else None
    # 416 is how a server says that nothing comes after the bytes that we have.
    start = given[1] if given and status == 206 else total
    if start is None or int(start) != offset:
        raise TransientError(f"HTTP {status} with a range that was not asked for", restart=True)
    return offset, total


@contextmanager
def _open_http(url: str, offset: int, validator: str | None, timeout: float) -> Iterator[Stream]:
    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers |= {"Range": f"bytes={offset}-"} | ({"If-Range": validator} if validator else {})
    try:
        response = requests.get(url, headers=headers, stream=True, timeout=timeout)
    except (requests.ConnectionError, requests.Timeout) as error:
        raise TransientError(f"no answer ({error})") from error
    except (requests.RequestException, ValueError) as error:
        raise NotHereError(str(error)) from error

    def read() -> bytes:
        if response.status_code == 416:
            return b""
        try:  # `iter_content` would undo a Content-Encoding, and lose the piece that a cut falls in
            return response.raw.read1(PIECE, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise TransientError(f"cut off ({error})") from error

    with response:
        start, total = _extent(response, offset)
        etag = response.headers.get("ETag", "W/")  # a weak one says nothing about bytes
        current = response.headers.get("Last-Modified") if etag.startswith("W/") else etag
        if start and validator and current not in (None, validator):
            raise TransientError("the file has changed", restart=True)
        html = response.headers.get("Content-Type", "").lower().startswith("text/html")
        yield Stream(start, total, current, html and response.ok, read)


@contextmanager
def _open_local(path: Path, offset: int, validator: str | None) -> Iterator[Stream]:
    try:
        handle = path.open("rb")
    except OSError as error:
        raise NotHereError(error.strerror or str(error)) from error
    with handle:
        status = os.fstat(handle.fileno())
        current = f"{status.st_size}-{status.st_mtime_ns}"
        start = offset if offset <= status.st_size and validator in (None, current) else 0
        handle.seek(start)
        yield Stream(start, status.st_size, current, False, lambda: handle.read(PIECE))


def open_place(
    place: str, offset: int, validator: str | None, timeout: float
) -> AbstractContextManager[Stream]:
    """The file at an http(s):// or file:// address, from byte `offset` on if that is possible."""
    if place.startswith("file://"):
        return _open_local(Path(unquote(urlsplit(place).path)), offset, validator)
    return _open_http(place, offset, validator, timeout)
