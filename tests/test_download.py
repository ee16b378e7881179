"""`metabt.data.download` against a real server that misbehaves in every way seen in the wild."""

import gzip
import hashlib
import json
import os
import random
import resource as limits
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from http_server import Fault, Server, running_server
from hypothesis import given, settings
from hypothesis import strategies as st

from metabt.data import download as module
from metabt.data.download import Resource, download
from metabt.errors import UserError

DATA = random.Random(1).randbytes(300_000)
OTHER = random.Random(2).randbytes(300_000)
SHA256 = "sha256:" + hashlib.sha256(DATA).hexdigest()
OTHER_SHA256 = "sha256:" + hashlib.sha256(OTHER).hexdigest()
REPOSITORY = Path(__file__).parents[1]
GONE = Fault(status=404)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as server:
        server.files |= {"/a/file.bin": DATA, "/b/file.bin": DATA}
        yield server


def fetch(resource: Resource, root: Path, **options: Any) -> Path:
    return download(resource, root, **{"attempts": 3, "timeout": 5.0, "backoff": 0.001} | options)


def files_in(root: Path) -> set[str]:
    """The suffixes of the files beside file.bin: "" is the file itself."""
    return {path.name.removeprefix("file.bin") for path in root.rglob("file.bin*")}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def start_process(
    resource: Resource, root: Path, stderr: int | IO[str] = subprocess.PIPE
) -> "subprocess.Popen[str]":
    code = (
        "import sys; from pathlib import Path\n"
        "from metabt.data.download import *\n"
        f"download({resource!r}, Path({str(root)!r}), backoff=0.01)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        stderr=stderr,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://www.Example.org:8080/a/b%20c.gz#top", "www.example.org/a/b c.gz"),
        ("https://user@example.org//../a/%2e%2e/../../b.gz", "example.org/b.gz"),
        (
            "https://example.org/a/get.gz?file=../x/y&v=1",
            "example.org/a/%3Ffile=..%2Fx%2Fy%26v=1/get.gz",
        ),
        ("file:///data/b.gz", "localhost/data/b.gz"),
    ],
)
def test_path_of_url(url: str, path: str) -> None:
    assert Resource(url).path == path


@pytest.mark.parametrize("url", ["http://example.org/", "http://../x", "http://example.org/a/.."])
def test_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="names no file"):
        _ = Resource(url).path
    with pytest.raises(UserError, match="sha256:abc"):
        Resource("http://example.org/x", checksum="sha256:abc")


@pytest.mark.parametrize("algorithm", ["sha256", "sha1", "md5"])
def test_fetched_once_then_known(
    server: Server, tmp_path: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksum = f"{algorithm}:{hashlib.new(algorithm, DATA).hexdigest().upper()}"
    resource = Resource(server.url("/a/file.bin"), size=len(DATA), checksum=checksum)
    dest = fetch(resource, tmp_path)
    assert dest == tmp_path / "127.0.0.1/a/file.bin"
    assert dest.read_bytes() == DATA
    assert files_in(tmp_path) == {"", ".verified.json", ".lock"}
    assert server.log[0].accept_encoding == "identity"

    monkeypatch.setattr(module, "_hash_file", None)  # to read the file again would now fail
    assert fetch(resource, tmp_path) == dest
    assert len(server.log) == 1
    monkeypatch.undo()

    dest.write_bytes(OTHER)
    os.utime(dest, ns=(0, 0))  # touched since: it is read again
    with pytest.raises(UserError, match=r"file\.bin: has .* is expected; move it away"):
        fetch(resource, tmp_path)
    assert dest.read_bytes() == OTHER


def test_cut_line_is_resumed(server: Server, tmp_path: Path) -> None:
    """More cuts than attempts, and no byte comes twice."""
    server.faults["/a/file.bin"] = [Fault(cut=50_000) for _ in range(5)]
    dest = fetch(Resource(server.url("/a/file.bin")), tmp_path, attempts=1)
    assert dest.read_bytes() == DATA
    assert [r.range for r in server.log] == [
        None,
        *(f"bytes={n}0000-" for n in (5, 10, 15, 20, 25)),
    ]
    assert all(r.if_range for r in server.log[1:])
    assert sum(r.sent for r in server.log) == len(DATA)


def test_silent_server_is_left_and_resumed(server: Server, tmp_path: Path) -> None:
    """A piece that was under way when the time ran out is kept."""
    server.faults["/a/file.bin"] = [Fault(cut=123_456, stall=1.5)]
    assert fetch(Resource(server.url("/a/file.bin")), tmp_path, timeout=0.3).read_bytes() == DATA
    assert [r.range for r in server.log] == [None, "bytes=123456-"]


def test_wrong_content_goes_to_the_mirror(server: Server, tmp_path: Path) -> None:
    server.files["/a/file.bin"] = OTHER
    places = server.url("/a/file.bin"), (server.url("/b/file.bin"),)
    assert fetch(Resource(*places, checksum=SHA256), tmp_path).read_bytes() == DATA
    assert (tmp_path / "127.0.0.1/a/file.bin").exists()  # the url names it, not the mirror


def test_wrong_content_everywhere(server: Server, tmp_path: Path) -> None:
    server.files = {"/a/file.bin": OTHER, "/b/file.bin": DATA[:-1], "/c/file.bin": DATA + b"more"}
    server.faults["/b/file.bin"] = [Fault(no_length=True)]
    server.faults["/c/file.bin"] = [Fault(no_length=True)]
    urls = [server.url(f"/{place}/file.bin") for place in "abcd"] + ["http://127.0.0.1:1/x"]
    resource = Resource(urls[0], tuple(urls[1:]), checksum=SHA256)
    with pytest.raises(UserError) as error:
        fetch(resource, tmp_path)
    lines = str(error.value).splitlines()
    reasons = [OTHER_SHA256, SHA256, SHA256, "HTTP 404", "no answer"]
    for url, line, reason in zip(urls, lines[1:6], reasons, strict=True):
        assert line.startswith(f"  {url}: ")
        assert reason in line
    assert str(tmp_path / "127.0.0.1/a/file.bin") in lines[6]
    assert "METABT_MIRROR" in lines[6]
    assert files_in(tmp_path) == {".lock"}


def test_size_tells_a_wrong_file_before_it_is_fetched(server: Server, tmp_path: Path) -> None:
    server.files["/a/file.bin"] = DATA[:-1]
    resource = Resource(server.url("/a/file.bin"), (server.url("/b/file.bin"),), size=len(DATA))
    server.faults["/b/file.bin"] = [
        Fault(no_length=True, cut=1000)
    ]  # a cut that only the size tells
    assert fetch(resource, tmp_path).read_bytes() == DATA
    assert [r.range for r in server.log] == [None, None, "bytes=1000-"]


def test_endless_file_is_left(server: Server, tmp_path: Path) -> None:
    server.faults["/a/file.bin"] = [Fault(body=DATA * 100, no_length=True)]
    with pytest.raises(UserError, match="other than the expected 300000 bytes"):
        fetch(Resource(server.url("/a/file.bin"), size=len(DATA)), tmp_path)
    assert server.log[0].sent < 90 * len(DATA)
    assert files_in(tmp_path) == {".lock"}


def test_range_that_was_not_asked_for(server: Server, tmp_path: Path) -> None:
    server.faults["/a/file.bin"] = [Fault(cut=100_000), Fault(shift=1)]
    assert fetch(Resource(server.url("/a/file.bin")), tmp_path).read_bytes() == DATA
    assert [r.status for r in server.log] == [200, 206, 200]


def test_length_that_lies(server: Server, tmp_path: Path) -> None:
    """Too long: the server says itself (416) that there is no more. Too short: the hash does."""
    server.faults["/a/file.bin"] = [Fault(headers={"Content-Length": str(len(DATA) + 10)})]
    assert fetch(Resource(server.url("/a/file.bin")), tmp_path).read_bytes() == DATA
    assert [r.status for r in server.log] == [200, 416]

    server.faults["/a/file.bin"] = [Fault(headers={"Content-Length": "1000"})]
    resource = Resource(server.url("/a/file.bin"), (server.url("/b/file.bin"),), checksum=SHA256)
    assert fetch(resource, tmp_path / "second").read_bytes() == DATA
    assert server.log[-1].path == "/b/file.bin"


def test_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    later = Fault(status=429, headers={"Retry-After": "1"})
    server.faults["/a/file.bin"] = [Fault(status=503), later, Fault(status=500)]
    resource = Resource(server.url("/a/file.bin"))
    begin = time.monotonic()
    with pytest.raises(UserError, match=r"HTTP 500 \(3 times"):
        fetch(resource, tmp_path)
    assert 1 <= time.monotonic() - begin < 3
    assert len(server.log) == 3

    server.faults["/a/file.bin"] = [Fault(status=503), Fault(status=503)]
    assert fetch(resource, tmp_path).read_bytes() == DATA


@pytest.mark.parametrize(
    "page",
    [
        Fault(body=b"\xef\xbb\xbf \n<!DocType HTML><p>moved</p>"),
        Fault(body=b"<HTML lang=en>" + b"x" * 5000, no_length=True),
        Fault(body=DATA, headers={"Content-Type": "text/html; charset=utf-8"}),
    ],
)
def test_web_page_is_no_data(server: Server, tmp_path: Path, page: Fault) -> None:
    server.faults["/a/file.bin"] = [page]
    resource = Resource(server.url("/a/file.bin"), (server.url("/b/file.bin"),), size=len(DATA))
    if not page.no_length:
        resource = Resource(resource.url, resource.mirrors)
    assert fetch(resource, tmp_path).read_bytes() == DATA
    assert [r.path for r in server.log] == ["/a/file.bin", "/b/file.bin"]

    server.files["/index.html"] = page.body or b""
    server.faults["/index.html"] = [Fault(headers={"Content-Type": "text/html"})]
    assert fetch(Resource(server.url("/index.html")), tmp_path).read_bytes() == page.body


@pytest.mark.parametrize("honest", [True, False])
def test_changed_file_is_fetched_from_its_start(
    server: Server, tmp_path: Path, honest: bool
) -> None:
    resource = Resource(server.url("/a/file.bin"))
    server.faults["/a/file.bin"] = [Fault(cut=100_000), GONE]
    with pytest.raises(UserError, match="404"):
        fetch(resource, tmp_path)
    assert files_in(tmp_path) == {".part", ".part.json", ".lock"}

    server.files["/a/file.bin"] = OTHER
    server.faults["/a/file.bin"] = [Fault(ignore_if_range=not honest)]
    assert fetch(resource, tmp_path).read_bytes() == OTHER
    assert server.log[2].range == "bytes=100000-"
    assert server.log[2].if_range
    assert [r.status for r in server.log[2:]] == ([200] if honest else [206, 200])


def test_places_are_mixed_only_under_a_checksum(server: Server, tmp_path: Path) -> None:
    url, mirror = server.url("/a/file.bin"), server.url("/b/file.bin")
    server.files["/b/file.bin"] = OTHER
    server.faults["/a/file.bin"] = [Fault(cut=100_000), GONE] * 2
    assert fetch(Resource(url, (mirror,)), tmp_path / "1").read_bytes() == OTHER

    server.files["/b/file.bin"] = DATA
    assert fetch(Resource(url, (mirror,), checksum=SHA256), tmp_path / "2").read_bytes() == DATA
    assert server.log[-1].range == "bytes=100000-"

    # A first half that was wrong is not held against the place that gave the second.
    server.files["/a/file.bin"] = OTHER
    server.faults["/a/file.bin"] = [Fault(cut=100_000), GONE]
    resource = Resource(url, (mirror,), checksum=SHA256)
    assert fetch(resource, tmp_path / "3", attempts=1).read_bytes() == DATA
    assert [r.range for r in server.asked("/b/file.bin")[-2:]] == ["bytes=100000-", None]


def test_mixed_bytes_are_not_taken_for_those_of_one_place(server: Server, tmp_path: Path) -> None:
    url, mirror = server.url("/a/file.bin"), server.url("/b/file.bin")
    server.files["/b/file.bin"] = OTHER
    for path in ("/a/file.bin", "/b/file.bin"):
        server.faults[path] = [Fault(cut=100_000), GONE]
    with pytest.raises(UserError, match="404"):
        fetch(Resource(url, (mirror,), checksum=SHA256), tmp_path)
    assert (tmp_path / "127.0.0.1/a/file.bin.part").stat().st_size == 200_000
    assert fetch(Resource(url), tmp_path).read_bytes() == DATA


def test_no_validator_no_checksum_no_resume(server: Server, tmp_path: Path) -> None:
    server.etags = False
    server.faults["/a/file.bin"] = [Fault(cut=100_000)]
    assert fetch(Resource(server.url("/a/file.bin")), tmp_path).read_bytes() == DATA
    assert [r.range for r in server.log] == [None, None]


def test_server_that_cannot_resume_is_given_up(server: Server, tmp_path: Path) -> None:
    """Getting equally far each time is no progress: this must end."""
    server.faults["/a/file.bin"] = [Fault(cut=100_000, ignore_range=True) for _ in range(9)]
    with pytest.raises(UserError, match="3 times without progress"):
        fetch(Resource(server.url("/a/file.bin"), checksum=SHA256), tmp_path)
    assert len(server.log) == 4


faults = st.one_of(
    st.builds(Fault, cut=st.integers(0, len(DATA)), no_length=st.booleans()),
    st.builds(Fault, cut=st.integers(0, len(DATA)), ignore_range=st.booleans()),
    st.builds(Fault, cut=st.integers(0, len(DATA)), shift=st.integers(1, 1000)),
    st.just(Fault(status=503)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(faults, max_size=6), st.booleans(), st.integers(0, 6))
def test_any_faults_give_the_exact_bytes(faults: list[Fault], known: bool, stop: int) -> None:
    """However the line is cut, and wherever the first run is stopped, the second has the file."""
    with running_server() as server, tempfile.TemporaryDirectory() as root:
        server.files["/a/file.bin"] = DATA
        server.faults["/a/file.bin"] = [*faults[:stop], GONE, *faults[stop:]]
        checksum = SHA256 if known else None
        resource = Resource(server.url("/a/file.bin"), size=len(DATA), checksum=checksum)
        try:
            dest = fetch(resource, Path(root), attempts=9, backoff=0)
        except UserError as error:
            assert "404" in str(error)  # noqa: PT017
            dest = fetch(resource, Path(root), attempts=9, backoff=0)
        assert dest.read_bytes() == DATA


def test_two_processes_fetch_once(server: Server, tmp_path: Path) -> None:
    gate = threading.Event()
    server.faults["/a/file.bin"] = [Fault(cut=100_000, gate=gate)]
    resource = Resource(server.url("/a/file.bin"))
    first = start_process(resource, tmp_path)
    wait_until(lambda: bool(server.log))
    second = start_process(resource, tmp_path)
    assert second.stderr is not None
    assert "another process is fetching this file" in second.stderr.readline()
    gate.set()
    assert [first.wait(15), second.wait(15)] == [0, 0]
    assert len(server.log) == 1
    assert (tmp_path / "127.0.0.1/a/file.bin").read_bytes() == DATA


def test_kill_9_and_the_next_goes_on(server: Server, tmp_path: Path) -> None:
    """A third of the file, kill -9, and the process that waited fetches only the rest."""
    server.faults["/a/file.bin"] = [Fault(cut=100_500, pace=0.01, gate=threading.Event())]
    resource = Resource(server.url("/a/file.bin"))
    dest = tmp_path / "127.0.0.1/a/file.bin"
    part = dest.with_name("file.bin.part")
    first = start_process(resource, tmp_path)
    wait_until(lambda: part.exists() and part.stat().st_size == 100_500)
    second = start_process(resource, tmp_path)
    assert second.stderr is not None
    assert "waiting" in second.stderr.readline()
    assert not dest.exists()
    first.send_signal(signal.SIGKILL)
    assert first.wait(15) == -signal.SIGKILL
    assert second.wait(15) == 0
    assert dest.read_bytes() == DATA
    assert server.log[1].range == "bytes=100500-"
    assert server.log[1].sent == len(DATA) - 100_500


@pytest.mark.parametrize("kind", ["directory", "file url", "http url"])
def test_mirror_is_tried_first(
    server: Server, tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    held = tmp_path / "my mirror/127.0.0.1/a"
    held.mkdir(parents=True)
    mirror = {
        "directory": str(tmp_path / "my mirror"),
        "file url": (tmp_path / "my mirror").as_uri() + "/",
        "http url": server.url("/mirror"),
    }[kind]
    resource = Resource(server.url("/a/file.bin"), checksum=SHA256)

    def hold(content: bytes) -> None:
        (held / "file.bin").write_bytes(content)
        server.files["/mirror/127.0.0.1/a/file.bin"] = content

    assert fetch(resource, tmp_path / "missing", mirror=mirror).read_bytes() == DATA
    assert len(server.asked("/a/file.bin")) == 1
    hold(OTHER)
    capfd.readouterr()
    assert fetch(resource, tmp_path / "wrong", mirror=mirror).read_bytes() == DATA
    assert f"127.0.0.1/a/file.bin: has a file with {OTHER_SHA256}" in capfd.readouterr().err
    assert len(server.asked("/a/file.bin")) == 2
    hold(DATA)
    assert fetch(resource, tmp_path / "right", mirror=mirror).read_bytes() == DATA
    assert len(server.asked("/a/file.bin")) == 2


def test_first_content_is_recorded_and_kept_to(server: Server, tmp_path: Path) -> None:
    resource = Resource(server.url("/a/file.bin"))
    dest = fetch(resource, tmp_path)
    record = dest.with_name("file.bin.verified.json")
    assert json.loads(record.read_text())["checksum"] == SHA256
    with pytest.raises(UserError, match="has 300000 bytes where 7 are expected"):
        fetch(Resource(resource.url, size=7), tmp_path)

    server.files["/a/file.bin"] = OTHER
    for action in (dest.unlink, lambda: dest.write_bytes(OTHER)):
        action()
        with pytest.raises(UserError) as error:
            fetch(resource, tmp_path)
        assert all(word in str(error.value) for word in (SHA256, OTHER_SHA256, str(record)))
    record.unlink()
    assert fetch(resource, tmp_path).read_bytes() == OTHER
    assert json.loads(record.read_text())["checksum"] == OTHER_SHA256


def test_existing_file_of_another_size_is_left_alone(server: Server, tmp_path: Path) -> None:
    dest = tmp_path / "127.0.0.1/a/file.bin"
    dest.parent.mkdir(parents=True)
    dest.write_bytes(b"mine")
    with pytest.raises(UserError, match=rf"{dest}: has 4 bytes where 300000 are expected"):
        fetch(Resource(server.url("/a/file.bin"), size=len(DATA)), tmp_path)
    assert dest.read_bytes() == b"mine"
    assert not server.log


def test_disk_errors_name_the_path(server: Server, tmp_path: Path) -> None:
    resource = Resource(server.url("/a/file.bin"))
    (tmp_path / "127.0.0.1").write_text("a file where a directory is needed")
    with pytest.raises(UserError, match=rf"{tmp_path}/127\.0\.0\.1.*: Not a directory"):
        fetch(resource, tmp_path)

    server.faults["/a/file.bin"] = [Fault(no_length=True)]
    with pytest.raises(
        UserError, match=r"big/.*/file\.bin: 1000000000000000 bytes to come, \d+ bytes"
    ):
        fetch(Resource(resource.url, size=10**15), tmp_path / "big")


def test_failing_write_is_reported_and_resumed(server: Server, tmp_path: Path) -> None:
    """A file size limit makes the system refuse a write just as a full disk does."""
    resource = Resource(server.url("/a/file.bin"))
    old = limits.getrlimit(limits.RLIMIT_FSIZE)
    limits.setrlimit(limits.RLIMIT_FSIZE, (123_456, old[1]))
    try:
        with pytest.raises(UserError, match=r"127.0.0.1/a/file\.bin.*: File too large"):
            fetch(resource, tmp_path)
    finally:
        limits.setrlimit(limits.RLIMIT_FSIZE, old)
    assert files_in(tmp_path) == {".part", ".part.json", ".lock"}
    assert fetch(resource, tmp_path).read_bytes() == DATA
    assert server.log[1].range == "bytes=123456-"


def test_gz_is_kept_as_it_is(server: Server, tmp_path: Path) -> None:
    packed = gzip.compress(DATA)
    server.files["/c.gz"] = packed
    server.faults["/c.gz"] = [Fault(headers={"Content-Encoding": "gzip"}, cut=1000)]
    dest = fetch(Resource(server.url("/c.gz"), size=len(packed)), tmp_path)
    assert dest.read_bytes() == packed


def test_redirect_does_not_name_the_file(server: Server, tmp_path: Path) -> None:
    server.faults["/data.tgz"] = [
        Fault(status=302, headers={"Location": server.url("/a/file.bin")})
    ]
    dest = fetch(Resource(server.url("/data.tgz")), tmp_path)
    assert dest == tmp_path / "127.0.0.1/data.tgz"
    assert dest.read_bytes() == DATA


def test_progress(
    server: Server,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lines in a log file, far between; a bar on a terminal; never a word on stdout."""
    resource = Resource(server.url("/a/file.bin"))
    server.faults["/a/file.bin"] = [Fault(pace=0.02), Fault(pace=0.02), Fault(pace=0.02)]
    fetch(resource, tmp_path / "fast")
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr("metabt.progress.SECONDS_BETWEEN_LINES", 0.2)
    fetch(resource, tmp_path / "slow")
    out, err = capfd.readouterr()
    assert out == ""
    assert "\r" not in err
    assert 1 <= len(err.splitlines()) <= 4
    assert all(line.startswith("file.bin: ") and "B/s" in line for line in err.splitlines())

    terminal, other_end = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    with os.fdopen(other_end, "w") as stderr:
        process = start_process(resource, tmp_path / "terminal", stderr)
        assert process.communicate(timeout=15)[0] == ""
    shown = os.read(terminal, 100_000).decode()
    os.close(terminal)
    assert "file.bin: 100%" in shown
