"""Who trains in a directory: waiting for one another, signs of life, several processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from toy import toy_run, write_toy

from metabt.training import presence
from metabt.training.presence import Presence, locked, progress_file, read_progress

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("toy")
    write_toy(directory)
    return directory


def start(run_file, directory, *options):
    command = ["train", run_file, "--output", directory, "--threads", "1", *options]
    return subprocess.Popen(
        [sys.executable, "-m", "metabt", *map(str, command)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ended(process, code=0):
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    return errors


def test_a_second_process_waits_and_trains_nothing_twice(toy, tmp_path, monkeypatch):
    run_file = toy_run(toy, training={"steps": 6})
    monkeypatch.setenv("METABT_JOB", "Slurm job 17")
    with locked(tmp_path), Presence(tmp_path) as one:
        one.report(state="running")
        second, third = start(run_file, tmp_path), start(run_file, tmp_path)
        for process in (second, third):
            line = process.stderr.readline()
            assert f"Slurm job 17, process {os.getpid()} on " in line
            assert "trains here; waiting until it has finished or is gone" in line
        third.send_signal(signal.SIGUSR1)  # its time is up: the waiting can be gone on with, too
        ended(third, code=75)
        assert not (tmp_path / "checkpoint" / "last.safetensors").exists()
    ended(second)
    assert read_progress(tmp_path)["state"] == "finished"
    before = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").unlink()  # as Snakemake does before it runs a rule again
    assert "training:" not in ended(start(run_file, tmp_path))
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_where_locks_do_not_reach_other_hosts_signs_of_life_do(tmp_path, monkeypatch):
    monkeypatch.setattr(presence, "SECONDS_UNTIL_GONE", 1.0)
    monkeypatch.setattr(presence, "SECONDS_BETWEEN_TRIES", 0.05)
    path = progress_file(tmp_path)
    path.parent.mkdir()

    def live():
        for number in range(10):
            sign = {"state": "running", "host": "elsewhere", "process": 1, "written": number}
            presence.write_unsynced_json(path, sign)
            time.sleep(0.2)

    thread = threading.Thread(target=live)
    thread.start()
    time.sleep(0.1)
    with locked(tmp_path):
        assert not thread.is_alive()  # it gave its last sign two seconds after the beginning
        assert read_progress(tmp_path)["written"] == 9
    # One that has said that it leaves is not waited for.
    path.write_text(json.dumps({"state": "interrupted", "host": "elsewhere", "written": 10}))
    began = time.monotonic()
    with locked(tmp_path):
        assert time.monotonic() - began < 0.9


def test_a_run_says_how_far_it_is(toy, tmp_path, monkeypatch):
    run_file = toy_run(toy, training={"steps": 100_000, "validate_every": 50})
    process = start(run_file, tmp_path)
    end = time.monotonic() + 60
    while read_progress(tmp_path).get("step", 0) < 100 and time.monotonic() < end:
        time.sleep(0.2)
    found = read_progress(tmp_path)
    process.kill()
    process.wait()
    assert (found["state"], found["steps"], found["from_step"]) == ("running", 100_000, 0)
    assert found["process"] == process.pid
    assert found["loss"] > 0
    assert found["measured"]["step"] % 50 == 0
    assert 0 <= time.time() - found["written"] < 30


def test_two_processes_are_asked_to_stop_and_go_on(toy, tmp_path):
    """With the same result as two that were not; if one is killed, the other does not linger."""
    run_file = toy_run(toy, training={"steps": 90, "validate_every": 20})
    two = ("--processes", "2", "--device", "cpu")
    ended(start(run_file, tmp_path / "whole", *two))
    process = start(run_file, tmp_path / "parts", *two)
    last = tmp_path / "parts" / "checkpoint" / "last.safetensors"
    end = time.monotonic() + 60
    while not last.exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    assert "everything is saved" in ended(process, code=75)
    assert read_progress(tmp_path / "parts")["state"] == "interrupted"
    process = start(run_file, tmp_path / "parts", *two)
    while read_progress(tmp_path / "parts").get("state") != "running" and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(read_progress(tmp_path / "parts")["process"], signal.SIGKILL)
    assert "a process failed (exit codes of rank 0: -9" in ended(process, code=1)
    ended(start(run_file, tmp_path / "parts", *two))
    for name in ("model.safetensors", "metrics.csv", "training.json"):
        whole, parts = (tmp_path / part / name for part in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes(), name
