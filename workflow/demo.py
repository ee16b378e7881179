"""`make demo`: the small experiment from nothing to its report, or what is missing of it.

Around Snakemake this adds what a first visitor needs: a look at the folder and the config before
anything starts, a line that says how far it is, the removal of a lock that nobody holds any more,
the table of results, and a word about what to do next.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from metabt.errors import UserError

ROOT = Path(__file__).parents[1]
FREE_MB = 300  # what the demo writes, twice
LAST_LINES = 15  # of Snakemake's output, shown after a failure
PATIENCE = 10.0  # seconds, with one that is about to end


def main() -> int:
    config = Path(os.environ.get("CONFIG") or ROOT / "config" / "demo.yaml").absolute()
    directory = Path(os.environ.get("DIRECTORY") or ROOT / "runs" / "demo").absolute()
    try:
        check_config(config)
        with alone_in(directory):
            return run(config, directory)
    except UserError as error:
        print(f"make demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped before anything began.")
        return 130


def run(config: Path, directory: Path) -> int:
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    snakemake += ["--directory", str(directory), "--configfile", str(config)]
    output = directory / "snakemake.log"
    remove_stale_lock(directory)
    print(f"{config.name}, in {directory}: Ctrl-C stops it, the same command goes on.", flush=True)
    # Jobs this small are faster side by side, and none has to wait until both cores are free.
    run_all = [*snakemake, "--logger", "metabt", "--cores", "2", "--max-threads", "1", "--", "all"]
    code = call(run_all, output)
    if code != 0:
        return code
    report, newest = directory / "report.html", directory / "results" / "tables" / "cost.html"
    if not report.exists() or report.stat().st_mtime < newest.stat().st_mtime:
        print("Writing the report.", flush=True)
        part = directory / "report.part.html"
        code = call([*snakemake, "--report", part.name, "--quiet", "all", "--", "all"], output)
        if code != 0:
            return code
        part.rename(report)
    print((directory / "results" / "tables" / "results.md").read_text(encoding="utf-8"))
    print(f"The report: {report}")
    return 0


def call(command: list[str], output: Path) -> int:
    """Run Snakemake; what its jobs print goes to a file, its progress line to the terminal."""
    plugins = str(ROOT / "workflow" / "plugins")
    stopping = output.with_name(".stopping")
    stopping.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": plugins, "METABT_STOPPING": str(stopping)}
    # Ctrl-C reaches Snakemake, too; it lets trainings save themselves, and is waited for. That its
    # jobs have failed then is no news: the note tells the progress line not to say so.
    before = signal.signal(signal.SIGINT, lambda *_: stopping.touch())
    try:
        with output.open("ab") as log:
            begin = log.tell()
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stderr=log, check=False
            ).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    if stopping.exists():
        stopping.unlink()
        print("\nStopped. What was done is kept; the same command goes on.")
        return 130
    if code != 0:
        said = output.read_bytes()[begin:].decode("utf-8", "replace").rstrip().split("\n")
        print("\n".join(["", *said[-LAST_LINES:]]), file=sys.stderr)
        print(f"make demo: failed; all that was printed: {output}", file=sys.stderr)
    return code


def check_config(config: Path) -> None:
    """Every fault at once, before anything is made."""
    from metabt.data import catalogue
    from metabt.experiment import load

    if faults := catalogue.faults(load(config)):
        raise UserError("\n  ".join([f"{config}:", *faults]))


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Make the folder; hold it against a second `make demo`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = (directory / ".running").open("a")
    except OSError as error:
        raise UserError(f"{directory}: cannot write here ({error.strerror})") from error
    with handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"{directory}: another `make demo` is running here") from error
        free = shutil.disk_usage(directory).free // 2**20
        if free < FREE_MB:
            raise UserError(f"{directory}: {FREE_MB} MB of disk are needed, {free} MB are free")
        yield


def remove_stale_lock(directory: Path) -> None:
    """Remove the lock that a killed Snakemake left, unless one is at work in this folder."""
    locks = list((directory / ".snakemake" / "locks").glob("*.lock"))
    if not locks:
        return
    deadline = time.monotonic() + PATIENCE  # one that was stopped a moment ago may be cleaning up
    while workers := at_work(directory):
        if time.monotonic() > deadline:
            raise UserError(
                f"{directory}: a Snakemake is at work here (process {workers[0]}); "
                "wait for it, or stop it"
            )
        time.sleep(0.5)
    for lock in locks:
        lock.unlink(missing_ok=True)


def at_work(directory: Path) -> list[int]:
    """Processes that work in a folder: Snakemake's, and those of its jobs."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and Path(process.cwd()) == directory:
                found.append(process)
        except (psutil.Error, OSError):  # ended, or not ours to look at
            continue
    names = ("snakemake", "metabt")
    return [p.pid for p in found if any(name in " ".join(command_of(p)) for name in names)]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


if __name__ == "__main__":
    sys.exit(main())
