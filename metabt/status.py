"""`metabt status`: how far an experiment is, from its files alone.

What there is to be comes from the config; what there is, from each model's directory: training.json
when it is trained, scores.json when it is scored, and until then the trainer's signs of life.
"""

import os
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metabt.errors import UserError
from metabt.experiment import Experiment
from metabt.files import read_json
from metabt.methods import METHODS
from metabt.training.presence import SECONDS_UNTIL_GONE, read_progress

RESULTS = Path("results")
# How a trainer that ended by itself says so, in training.json.
ENDS = {"finished": "done", "stopped early": "done", "diverged": "diverged"}
ORDER = ("running", "stopped", "failed", "diverged")  # of what is told in detail


@dataclass(frozen=True)
class Model:
    """One model that is to be trained, and where it is."""

    pair: str
    name: str  # backward, initial, lm, or a method
    seed: int | None
    state: str  # done, diverged, running, stopped, failed, waiting
    short: str  # in the table
    detail: str = ""

    @property
    def path(self) -> str:
        model = f"{self.pair}/{self.name}"
        return model if self.seed is None else f"{model}/seed{self.seed}"


def models(experiment: Experiment, base: Path, now: float) -> list[Model]:
    """Every model that a config describes, in its order."""
    found = []
    for pair in experiment.pairs:
        setting = experiment.setting(pair)
        algorithms = [experiment.methods[name].algorithm for name in setting.methods]
        lm = any("lm" in METHODS[algorithm].reads for algorithm in algorithms)
        pretrained = ["backward"] + ["initial"] * (setting.initial is not None) + ["lm"] * lm
        found += [look(base, pair, name, None, now) for name in pretrained]
        found += [
            look(base, pair, method, seed, now)
            for method in setting.methods
            for seed in setting.seeds
        ]
    return found


def look(base: Path, pair: str, name: str, seed: int | None, now: float) -> Model:
    """One model's state."""
    part = Path(pair) / name / (f"seed{seed}" if seed is not None else "")
    directory = base / RESULTS / part
    record, progress = _read(directory / "training.json"), read_progress(directory)
    if record:
        state = ENDS.get(str(record.get("status")), "done")
        score = _read(directory / "scores.json").get("bleu", {}).get("score")
        short = (
            "diverged" if state == "diverged" else "trained" if score is None else f"{score:.2f}"
        )
        detail = f"after {record.get('steps', 0):,} steps" if state == "diverged" else ""
        return Model(pair, name, seed, state, short, detail)
    log = base / RESULTS / "logs" / part / "train.log"
    return Model(pair, name, seed, *_under_way(progress, _last_line(log), now))


def _under_way(progress: dict[str, Any], line: str, now: float) -> tuple[str, str, str]:
    """State, table's word and detail of a model that has no training.json."""
    if not progress:
        return ("failed", "failed", line) if "error" in line.lower() else ("waiting", "-", "")
    step, steps = progress.get("step", 0), progress.get("steps", 0)
    share = f"{step / steps:.0%}" if steps else "0%"
    at = f"step {step:,} of {steps:,}" if steps else "at its start"
    where = ", ".join(filter(None, (progress.get("job"), progress.get("host"))))
    match progress.get("state"):
        case "starting" | "running" if _alive(progress, now):
            return "running", share, f"{at}{_loss(progress)}{_left(progress)} ({where})"
        case "starting" | "running":
            last = time.strftime("%d %b %H:%M", time.localtime(progress.get("written", 0)))
            told = f"{at}; no sign of life since {last} ({where}): killed, or its node is gone"
            return "stopped", f"{share}, killed", told
        case "left":
            return "failed", f"{share}, failed", f"{at}: {line or 'its log is gone'}"
        case "interrupted":
            return "stopped", f"{share}, stopped", f"{at}: was asked to stop and saved ({where})"
        case _:  # it has ended: Snakemake removes files before it has them written again
            return "waiting", "trained", ""


def _alive(progress: dict[str, Any], now: float) -> bool:
    """Signs of life are given every few seconds; on this host, a process that is gone is seen."""
    if progress.get("host") == socket.gethostname() and "process" in progress:
        try:
            os.kill(int(progress["process"]), 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's
            pass
    return now - float(progress.get("written", 0)) < SECONDS_UNTIL_GONE


def _loss(progress: dict[str, Any]) -> str:
    measured = progress.get("measured", {}).get("dev_loss")
    told = f", loss {progress['loss']:.3f}" if "loss" in progress else ""
    return told + (f", dev loss {measured:.3f}" if measured is not None else "")


def _left(progress: dict[str, Any]) -> str:
    """The time left at the speed of this sitting, measurements included."""
    done = progress.get("step", 0) - progress.get("from_step", 0)
    if done <= 0 or "since" not in progress:
        return ""
    seconds = (progress["written"] - progress["since"]) / done
    minutes = seconds * (progress["steps"] - progress["step"]) / 60
    return f", {minutes / 60:.1f} h left" if minutes >= 90 else f", {minutes:.0f} min left"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except (UserError, OSError):
        return {}
    return found if isinstance(found, dict) else {}


def _last_line(path: Path) -> str:
    """The last line of a log that says something; only its end is read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


# --- the screen -----------------------------------------------------------------------------------


def screen(experiment: Experiment, base: Path, now: float | None = None) -> str:
    """A table of all models, a column a seed, and below it what runs, was stopped or failed."""
    found = models(experiment, base, time.time() if now is None else now)
    ready = [pair for pair in experiment.pairs if _data_ready(experiment, base, pair)]
    counts = {state: sum(m.state == state for m in found) for state in ("done", *ORDER, "waiting")}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    lines = [
        f"{experiment.name}: {len(found)} models: {told}",
        f"data ready: {', '.join(ready) or 'none yet'} ({len(ready)} of {len(experiment.pairs)} "
        "pairs)",
        "",
        *_table(found),
    ]
    for state in ORDER:
        those = [m for m in found if m.state == state]
        if those:
            width = max(len(m.path) for m in those)
            lines += ["", state, *(f"  {m.path:<{width}}  {m.detail}" for m in those)]
    return "\n".join(lines)


def _data_ready(experiment: Experiment, base: Path, pair: str) -> bool:
    shards = base / RESULTS / pair / "shards"
    return all((shards / f"{role}.shard").exists() for role in experiment.pairs[pair].roles())


def _table(found: Sequence[Model]) -> Iterable[str]:
    seeds = sorted({m.seed for m in found if m.seed is not None})
    rows = [["pair", "model", *(f"seed {seed}" for seed in seeds)]]
    previous = None
    for pair, name in dict.fromkeys((m.pair, m.name) for m in found):
        cells = {m.seed: m.short for m in found if (m.pair, m.name) == (pair, name)}
        first = [cells[None]] if None in cells else [cells.get(seed, "") for seed in seeds]
        rows.append([pair if pair != previous else "", name, *first])
        previous = pair
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)).rstrip()
