"""`metabt status`: on directories made by hand, and on a real run that fails in one place."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from metabt.experiment import load
from metabt.status import models, screen
from metabt.training.presence import SECONDS_UNTIL_GONE

ROOT = Path(__file__).parents[1]
PAIR = "qas-qat"


def config_with_seeds(path, seeds=(1, 2, 3)):
    config = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())
    for setting in config["settings"].values():
        setting["seeds"] = list(seeds)
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def write(base, model, name, value):
    path = base / "results" / PAIR / model / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def sign(base, model, age=3.0, **values):
    """A sign of life that was given some seconds ago, on another host."""
    now = time.time()
    written = now - age
    about = {"host": "node3", "process": 1, "job": "Slurm job 17", "began": written - 700}
    write(base, model, "checkpoint/progress.json", {**about, **values, "written": written})


def log(base, model, text):
    path = base / "results" / "logs" / PAIR / model / "train.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def found(tmp_path):
    """Every state there is; model -> what is told of it."""
    experiment = load(config_with_seeds(tmp_path / "config.yaml"))
    done = {"status": "finished", "steps": 100}
    write(tmp_path, "backward", "training.json", done)
    write(tmp_path, "lm", "training.json", {"status": "stopped early", "steps": 80})
    write(tmp_path, "mle/seed1", "training.json", done)
    write(tmp_path, "mle/seed1", "scores.json", {"bleu": {"score": 23.456}})
    write(tmp_path, "mle/seed2", "training.json", {"status": "diverged", "steps": 1234})
    running = {"state": "running", "step": 300, "steps": 1200, "from_step": 100, "loss": 2.5}
    running |= {"since": time.time() - 603, "measured": {"step": 250, "dev_loss": 2.25}}
    sign(tmp_path, "metabt/seed1", **running)
    sign(tmp_path, "metabt/seed2", age=SECONDS_UNTIL_GONE + 5, **running)
    here = {"host": os.uname().nodename, "process": 2**22 + 1}  # more than there can be
    sign(tmp_path, "metabt/seed3", **{**running, **here})
    sign(tmp_path, "dualnmt/seed1", state="interrupted", step=600, steps=1200)
    sign(tmp_path, "dualnmt/seed2", state="left", step=7, steps=1200)
    log(tmp_path, "dualnmt/seed2", "training\nmetabt: error: the disk is full\n\n")
    log(tmp_path, "dualnmt/seed3", "metabt: error: run.json: no such file\n")
    sign(tmp_path, "nobt/seed1", state="starting")
    log(tmp_path, "nobt/seed2", "")
    told = models(experiment, tmp_path, time.time())
    return {m.path: m for m in told}, screen(experiment, tmp_path)


def test_every_state_is_told(found):
    told = {path.removeprefix(f"{PAIR}/"): m for path, m in found[0].items() if PAIR in path}
    states = {model: (m.state, m.short) for model, m in told.items()}
    assert states == {
        "backward": ("done", "trained"),
        "lm": ("done", "trained"),
        "nobt/seed1": ("running", "0%"),
        "nobt/seed2": ("waiting", "-"),
        "nobt/seed3": ("waiting", "-"),
        "mle/seed1": ("done", "23.46"),
        "mle/seed2": ("diverged", "diverged"),
        "mle/seed3": ("waiting", "-"),
        "dualnmt/seed1": ("stopped", "50%, stopped"),
        "dualnmt/seed2": ("failed", "1%, failed"),
        "dualnmt/seed3": ("failed", "failed"),
        "metabt/seed1": ("running", "25%"),
        "metabt/seed2": ("stopped", "25%, killed"),
        "metabt/seed3": ("stopped", "25%, killed"),
    }
    # 200 steps in 10 minutes: 900 more take 45.
    assert told["metabt/seed1"].detail == (
        "step 300 of 1,200, loss 2.500, dev loss 2.250, 45 min left (Slurm job 17, node3)"
    )
    assert "no sign of life since" in told["metabt/seed2"].detail
    assert told["dualnmt/seed2"].detail.endswith("metabt: error: the disk is full")
    assert "after 1,234 steps" in told["mle/seed2"].detail


def test_one_screen(found):
    lines = found[1].split("\n")
    assert lines[0].endswith(
        "28 models: 3 done, 2 running, 3 stopped, 2 failed, 1 diverged, 17 waiting"
    )
    assert "0 of 2 pairs" in lines[1]
    header = next(line for line in lines if line.startswith("pair"))
    row = next(line for line in lines if re.match(r"\s+mle ", line) and "23.46" in line)
    for name, cell in (("seed 1", "23.46"), ("seed 2", "diverged"), ("seed 3", "-")):
        assert row[header.index(name) :].startswith(cell)
    assert lines.index("running") < lines.index("stopped") < lines.index("failed")
    assert max(map(len, lines)) < 150


def run(*command, code=0):
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_one_failed_run_stops_no_other_and_the_rest_is_reported(tmp_path):
    config = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())
    pair = config["pairs"]["qat-qas"]
    setting = config["settings"][pair["setting"]]
    shape = {"layers": 1, "width": 16, "feed_forward": 32, "heads": 2, "dropout": 0.1}
    training = {**setting["forward"], "steps": 10, "validate_every": 5, "batch": {"sentences": 32}}
    setting |= {"transformer": {**shape, "norm": "post"}, "backward": training, "forward": training}
    setting |= {"methods": ["nobt"], "seeds": [1, 2], "pseudo_batch": {"sentences": 16}}
    setting["metadev_batch"] = {"sentences": 16}
    config |= {"pairs": {"qat-qas": pair}, "settings": {pair["setting"]: setting}}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    options = ["--directory", tmp_path, "--configfile", path]
    broken = tmp_path / "results" / "qat-qas" / "nobt" / "seed1" / "checkpoint"
    broken.parent.mkdir(parents=True)
    broken.touch()  # where a directory should be
    wanted = "results/qat-qas/nobt.bleu"
    text = run("snakemake", *options, "--cores", 2, "--keep-going", "--", wanted, code=1)
    assert "metabt: error" in text  # the failed run's log is shown
    assert "Traceback" not in text
    began = time.monotonic()
    status = run("metabt", "status", *options)
    assert time.monotonic() - began < 10  # half a second on a free machine
    assert re.search(r"failed\n  qat-qas/nobt/seed1 .*metabt: error", status)
    assert re.search(r"nobt +failed +\d+\.\d\d\n", status)
    assert "(1 of 1 pairs)" not in status
    run("snakemake", *options, "--cores", 1, "--", "results/tables/so-far.html")
    run("snakemake", *options, "--report", "so-far.html", "--", "so_far")
    table = (tmp_path / "results" / "tables" / "so-far.tsv").read_text()
    assert re.search(r"\tnobt\t[\d.e-]+\t2: ", table)
    assert "results/tables/so-far.html" in (tmp_path / "so-far.html").read_text()
    broken.unlink()
    run("snakemake", *options, "--cores", 2, "--", wanted)
    assert "nobt      " in run("metabt", "status", *options)


def test_status_of_another_experiment_s_directory_is_refused(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "experiment.txt").write_text("Something else\n")
    text = run("metabt", "status", "--directory", tmp_path, code=1)
    assert "these are the results of 'Something else', not of" in text


def test_status_needs_no_torch():
    code = "import sys, metabt.status; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
