"""`metabt train --processes N`: one process for each GPU, on one machine.

As torchrun does it, which serves for several machines; but signals reach all processes, and the
exit code is theirs: 75 when they were asked to stop and have saved everything.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from metabt.errors import EXIT_INTERRUPTED, Interrupted, UserError
from metabt.training.presence import SIGNALS

SECONDS_TO_FOLLOW = 60.0  # that the others have when one has left
PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """No rank goes on alone when this process is killed with -9."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_processes(count: int, command: Sequence[str]) -> None:
    """Run a command as `count` ranks; returns when all have ended well."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    ranks: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: Any) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    before = [signal.signal(number, pass_on) for number in SIGNALS]
    try:
        for number in range(count):
            environment = {**os.environ, **shared, "RANK": str(number), "LOCAL_RANK": str(number)}
            rank = subprocess.Popen(command, env=environment, preexec_fn=_die_with_parent)
            ranks.append(rank)
        codes = _wait(ranks)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
    if any(code not in (0, EXIT_INTERRUPTED) for code in codes):
        told = ", ".join(f"rank {i}: {code}" for i, code in enumerate(codes))
        raise UserError(f"a process failed (exit codes of {told}); what it said stands above")
    if EXIT_INTERRUPTED in codes:
        raise Interrupted


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """The exit codes; when one rank has left, the others follow soon or are ended."""
    end = None
    while any(rank.poll() is None for rank in ranks):
        if end is None and any(rank.poll() not in (None, 0) for rank in ranks):
            failed = any(rank.poll() not in (None, 0, EXIT_INTERRUPTED) for rank in ranks)
            end = time.monotonic() + (5.0 if failed else SECONDS_TO_FOLLOW)
        if end is not None and time.monotonic() > end:
            for rank in ranks:
                rank.kill()
        time.sleep(0.1)
    return [rank.wait() for rank in ranks]
