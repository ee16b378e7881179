"""What surrounds `make demo`: its progress line, its locks, and what a newcomer may do wrong."""

import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_workflow import shortened

from metabt.errors import UserError

ROOT = Path(__file__).parents[1]


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem.strip("_"), path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


demo = module(ROOT / "workflow" / "demo.py")
plugin = module(ROOT / "workflow/plugins/snakemake_logger_plugin_metabt/__init__.py")


def run_demo(**variables):
    done = subprocess.run(
        [sys.executable, ROOT / "workflow" / "demo.py"],
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def event(name, level=logging.INFO, message="", **values):
    record = logging.LogRecord("snakemake", level, "", 0, message, (), None)
    record.__dict__.update(event=name, **values)
    return record


def test_the_line_says_what_is_done_and_what_is_left(monkeypatch, capsys):
    now = [1000.0]
    monkeypatch.setattr(plugin, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    handler = plugin.LogHandler(None, None)
    started = {"jobid": 1, "rule_name": "train"}
    wildcards = {"pair": "gl-en", "model": "mle/seed1"}
    handler.emit(event("run_info", stats={"train": 3, "score": 3, "total": 6}))
    handler.emit(event("job_info", **started, wildcards=wildcards))
    assert handler.line() == "[0:00] 0 of 6 jobs done; training mle/seed1 (gl-en)"
    now[0] += 100
    handler.emit(event("job_finished", job_id=1))
    # 40 of 3 * 48 + 3 are done in 100 seconds: the others take 107 / 40 times as long.
    assert handler.line() == "[1:40] 1 of 6 jobs done, 4 min left"
    handler.emit(event("job_info", jobid=2, rule_name="figure_lengths", wildcards={"pair": "x"}))
    handler.emit(event("job_info", jobid=3, rule_name="summarise", wildcards={"pair": "x"}))
    assert handler.line().endswith("; drawing figures")
    handler.emit(event(None, message="Nothing to be done (all requested files are present)."))
    handler.emit(event("error", logging.ERROR, "the disk is full"))
    handler.emit(event(None, message="Building DAG of jobs..."))
    handler.close()
    shown = capsys.readouterr().out
    assert "\r" not in shown  # this is no terminal
    assert shown.split("\n") == [
        "[0:00] 0 of 6 jobs done; training mle/seed1 (gl-en)",
        "[1:40] 1 of 6 jobs done, 4 min left; drawing figures",
        "Nothing to be done: everything is there.",
        "the disk is full",
        "",
    ]


def test_what_is_left_falls_while_a_training_runs(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(plugin, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    handler = plugin.LogHandler(None, None)
    handler.emit(event("run_info", stats={"train": 3, "total": 3}))
    end, errors = now[0] + 17 * 60, []
    for number, model in enumerate(("metabt", "mle", "nobt")):  # the longest first
        wildcards = {"pair": "gl-en", "model": f"{model}/seed1"}
        handler.emit(event("job_info", jobid=number, rule_name="train", wildcards=wildcards))
        for _ in range(int(plugin.TRAININGS[model]) // 5):
            now[0] += 30
            if found := re.search("([0-9]+) min left", handler.line()):
                errors.append(int(found[1]) - (end - now[0]) / 60)
        handler.emit(event("job_finished", job_id=number))
    assert len(errors) > 8
    assert max(map(abs, errors)) < 1.6
    assert handler.line() == "[17:00] 3 of 3 jobs done"
    handler.close()


def test_every_rule_that_has_words_exists():
    rules = {
        line.split()[1].rstrip(":")
        for path in (ROOT / "workflow" / "rules").glob("*.smk")
        for line in path.read_text().split("\n")
        if line.startswith("rule ")
    }
    assert {*plugin.WORDS, *plugin.WEIGHTS} <= rules


def test_a_lock_is_removed_only_if_nobody_holds_it(tmp_path, monkeypatch):
    lock = tmp_path / ".snakemake" / "locks" / "0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    # Somebody works in this folder, under Snakemake's name.
    script = tmp_path / "snakemake"
    script.write_text("import time; time.sleep(60)")
    with subprocess.Popen([sys.executable, script], cwd=tmp_path) as other:
        try:
            while not demo.at_work(tmp_path):
                time.sleep(0.05)
            monkeypatch.setattr(demo, "PATIENCE", 0.2)
            with pytest.raises(UserError, match=f"at work here .process {other.pid}"):
                demo.remove_stale_lock(tmp_path)
            assert lock.exists()
        finally:
            other.kill()
    demo.remove_stale_lock(tmp_path)
    assert not lock.exists()


def test_two_demos_do_not_share_a_folder(tmp_path):
    with demo.alone_in(tmp_path):
        code, output = run_demo(DIRECTORY=tmp_path)
    assert code == 1
    assert output == f"make demo: {tmp_path}: another `make demo` is running here\n"


def test_what_cannot_be_done_is_said_in_a_sentence(tmp_path):
    typo = tmp_path / "typo.yaml"
    text = (ROOT / "config" / "demo.yaml").read_text()
    typo.write_text(text.replace("seeds:", "sedes:", 1))
    code, output = run_demo(CONFIG=typo, DIRECTORY=tmp_path / "new")
    assert code == 1
    assert "sedes" in output
    assert "Traceback" not in output
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()  # a folder that cannot be made; root may write everywhere else
    code, output = run_demo(DIRECTORY=tmp_path / "file" / "new")
    assert code == 1
    assert "cannot write here" in output
    assert output.count("\n") == 1


def test_another_snakemake_says_what_to_do(tmp_path):
    """One of the system, beside which there is no `metabt` that rules could call."""
    python = tmp_path / "python"
    python.symlink_to(Path(sys.executable).resolve())
    done = subprocess.run(
        [python, "-m", "snakemake", "-n", "--directory", tmp_path, "all"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    output = done.stdout + done.stderr
    assert "`make install` makes one" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("pretence", "answer"),
    [
        ("import sys; sys.version_info = (3, 8)", "Python 3.11 or newer is needed, this is 3.8"),
        ("import os; os.access = lambda *_: False", "cannot write here"),
        ("import shutil; shutil.disk_usage = lambda _: type('X', (), {'free': 1})", "3 GB of disk"),
    ],
)
def test_what_keeps_from_installing_is_said_before(pretence, answer):
    text = (ROOT / "Makefile").read_text()
    script = text.split("define CAN_INSTALL\n")[1].split("endef")[0]
    done = subprocess.run(
        [sys.executable, "-c", f"{pretence}\n{script}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert answer in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_stopped_at_five_moments_the_numbers_are_the_same(tmp_path):
    """Ctrl-C reaches all processes of a terminal's foreground group: so here."""
    config = shortened(tmp_path / "short.yaml")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    code, output = run_demo(CONFIG=config, DIRECTORY=whole)
    assert code == 0, output
    for moment in (
        "resources/synthetic/dev.qas",
        "results/qas-qat/corpus/mono.target",
        "results/qas-qat/backward/checkpoint",
        "results/qas-qat/metabt/seed1/checkpoint",
        "results/figures/qas-qat/learning.svg",
    ):
        output = stop_demo(stopped / moment, CONFIG=config, DIRECTORY=stopped)
        assert "\nStopped" in output
        assert "rror" not in output
    code, output = run_demo(CONFIG=config, DIRECTORY=stopped)
    assert code == 0, output
    results = sorted(path.relative_to(whole) for path in whole.glob("results/*/*.bleu"))
    results += sorted(path.relative_to(whole) for path in whole.rglob("model.safetensors"))
    assert len(results) == 2 * 4 + 2 * (2 + 4)
    for path in results:
        assert (whole / path).read_bytes() == (stopped / path).read_bytes(), path
    code, output = run_demo(CONFIG=config, DIRECTORY=stopped)
    assert code == 0
    assert "Nothing to be done" in output


def stop_demo(moment, **variables):
    """Start the demo, and stop it when a file is there."""
    with subprocess.Popen(
        [sys.executable, ROOT / "workflow" / "demo.py"],
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        while not moment.exists():
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 130, output
    return output
