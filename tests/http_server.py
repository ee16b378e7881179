"""A real HTTP server on 127.0.0.1 that can be told to misbehave."""

import hashlib
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Fault:
    """How one GET is answered; without any argument, well."""

    status: int | None = None  # instead of the file
    headers: dict[str, str] = field(default_factory=dict)  # added, or in place of the usual ones
    body: bytes | None = None  # instead of the file's bytes
    cut: int | None = None  # close after so many bytes of the body
    stall: float = 0.0  # seconds of silence before closing
    pace: float = 0.0  # seconds between pieces of 10,000 bytes
    gate: threading.Event | None = None  # wait for it after `cut` bytes, then send the rest
    no_length: bool = False
    ignore_range: bool = False
    ignore_if_range: bool = False
    shift: int = 0  # answer a range with one that starts so many bytes earlier


@dataclass
class Request:
    path: str
    range: str | None
    if_range: str | None
    accept_encoding: str | None
    status: int = 0
    sent: int = 0  # bytes of the body


class _Handler(BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self) -> None:
        get = self.headers.get
        request = Request(self.path, get("Range"), get("If-Range"), get("Accept-Encoding"))
        with self.server.lock:
            self.server.log.append(request)
            queue = self.server.faults[self.path]
            fault = queue.pop(0) if queue else Fault()
        try:
            self._answer(request, fault)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(self, request: Request, fault: Fault) -> None:
        content = self.server.files.get(self.path) if fault.body is None else fault.body
        headers = {"Content-Type": "application/octet-stream"}
        if fault.status or content is None:
            request.status, content = fault.status or 404, fault.body or b"<html>an error</html>"
        else:
            if self.server.etags:
                headers["ETag"] = f'"{hashlib.md5(content).hexdigest()}"'
            whole = len(content)
            start = 0 if fault.ignore_range else self._start(request, fault, headers)
            request.status = 206 if start else 200
            if start >= whole > 0:
                request.status, headers["Content-Range"], content = 416, f"bytes */{whole}", b""
            elif start:
                headers["Content-Range"] = f"bytes {start}-{whole - 1}/{whole}"
                content = content[start:]
        headers["Content-Length"] = str(len(content))
        if fault.no_length:
            del headers["Content-Length"]
        self.send_response(request.status)
        for name, value in (headers | fault.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self._send_body(request, fault, content)

    def _start(self, request: Request, fault: Fault, headers: dict[str, str]) -> int:
        asked = re.fullmatch(r"bytes=(\d+)-", request.range or "")
        same = request.if_range in (None, headers.get("ETag")) or fault.ignore_if_range
        return max(1, int(asked[1]) - fault.shift) if asked and same else 0

    def _send_body(self, request: Request, fault: Fault, content: bytes) -> None:
        first = len(content) if fault.cut is None else min(fault.cut, len(content))
        for begin in range(0, first, 10_000):
            piece = content[begin : min(begin + 10_000, first)]
            self.wfile.write(piece)
            request.sent += len(piece)
            time.sleep(fault.pace)
        if fault.gate is not None:
            fault.gate.wait(20)
            self.wfile.write(content[first:])
            request.sent += len(content) - first
        time.sleep(fault.stall)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """`files` by path, `faults` by path (one for each GET to come), and a `log` of the GETs."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: defaultdict[str, list[Fault]] = defaultdict(list)
        self.log: list[Request] = []
        self.lock = threading.Lock()
        self.etags = True

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.log if request.path == path]


@contextmanager
def running_server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
