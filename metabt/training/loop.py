"""The one training loop: steps, measurements, checkpoints, signals, early stopping.

What a step does is the task's business. The loop knows when to measure on dev, which models to
keep, when to stop, and how to go on after any interruption with the very same bits.
"""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from metabt.config import Training
from metabt.errors import Interrupted
from metabt.progress import Progress
from metabt.tensor_files import copy_into, read_tensors, write_tensors
from metabt.training.cost import Cost
from metabt.training.distributed import Group
from metabt.training.metrics import Metrics
from metabt.training.presence import SIGNALS, Presence

CHECKPOINT_SECONDS = 600.0  # between two, besides those at measurements
STEPS_PER_ROW = 50  # of metrics.csv


class Task(Protocol):
    """What is trained. `step` and `measure` are called by all processes together."""

    training: Training
    columns: list[str]  # of metrics.csv

    @property
    def identity(self) -> Any:
        """The run's description: a checkpoint of another one is not continued."""

    def step(self, number: int) -> dict[str, float] | None:
        """One update; what it adds to the row's sums, or None if it was not finite and skipped."""

    def row(self, sums: dict[str, float]) -> dict[str, float]:
        """What metrics.csv shows of the sums over a few steps; train_loss and train_tokens at
        least."""

    def measure(self, stop: "Signals") -> dict[str, float]:
        """Dev loss and the like. Must contain what `training.select` names as dev_<select>."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, to be saved or filled."""

    def weights(self) -> dict[str, Tensor]:
        """The model that is wanted in the end."""

    def position(self) -> Any:
        """What else changes, as JSON."""

    def go_to(self, position: Any) -> None: ...

    def finish(self, directory: Path) -> None:
        """Write what else is to be kept of a finished run."""


@dataclass
class State:
    """Where a run is."""

    step: int = 0
    measured: int = 0  # the step of the last measurement on dev
    best: list[tuple[float, int]] = field(default_factory=list)  # (score, step), best first
    without_better: int = 0
    skipped: int = 0
    skipped_in_row: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    rows: int = 0  # of metrics.csv
    status: str = "running"  # then: finished, stopped early, diverged


class Signals:
    """SIGTERM, SIGINT and SIGUSR1 (Slurm's warning before the time limit) ask the loop to stop."""

    def __init__(self, group: Group) -> None:
        self.group, self.received = group, False

    def _receive(self, *_: Any) -> None:
        self.received = True

    @contextmanager
    def handled(self) -> Iterator["Signals"]:
        before = [signal.signal(number, self._receive) for number in SIGNALS]
        try:
            yield self
        finally:
            for number, handler in zip(SIGNALS, before, strict=True):
                signal.signal(number, handler)

    def stop(self) -> bool:
        """Has any process been asked to?"""
        return self.group.any(self.received)


def _without_steps(run: Any) -> Any:
    training = {key: value for key, value in run["training"].items() if key != "steps"}
    return {**run, "training": training}


class Loop:
    """Trains a task in a directory, whose `checkpoint` folder holds the last state, the best models
    and the metrics so far."""

    def __init__(
        self,
        task: Task,
        directory: Path,
        group: Group,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        presence: Presence | None = None,
    ) -> None:
        self.task, self.identity, self.group = task, task.identity, group
        self.presence = presence
        self.folder = directory / "checkpoint"
        self.last = self.folder / "last.safetensors"
        self.checkpoint_seconds = checkpoint_seconds
        self.state = self._restore()
        self.saved = time.monotonic()
        self.cost = Cost(self.folder / "cost.json", group, anew=self.state.step == 0)
        self.metrics = None
        if group.first and self.state.status == "running":
            columns = [*task.columns, "skipped"]
            path = self.folder / "metrics.csv"
            self.metrics = Metrics(path, columns, self.state.rows, self.state.step)
        self._tokens_counted_from = time.monotonic()

    def run(self) -> State:
        """Train until the end, early stopping or divergence; a signal raises Interrupted."""
        state, training = self.state, self.task.training
        if state.status != "running":
            self._tell(state=state.status, step=state.step)
            return state
        about = {"steps": training.steps, "from_step": state.step, "since": time.time()}
        self._tell(state="running", step=state.step, **about)
        bar = Progress("training", training.steps, "steps", state.step)
        with Signals(self.group).handled() as signals, bar:
            while state.status == "running":
                due = state.step == training.steps or state.step % training.validate_every == 0
                if due and state.measured < state.step:
                    self._measure(signals)
                elif state.step == training.steps:
                    state.status = "finished"
                else:
                    self._step(bar)
                    self._save_if_asked(signals)
        self._save(finished=True)
        self._tell(state=state.status)
        if self.metrics is not None:
            self.metrics.close()
        return state

    def _step(self, bar: Progress) -> None:
        state = self.state
        sums = self.task.step(state.step + 1)
        state.step += 1
        if sums is None:
            state.skipped += 1
            state.skipped_in_row += 1
            if state.skipped_in_row >= self.task.training.diverged_after:
                state.status = "diverged"
        else:
            state.skipped_in_row = 0
            for name, value in sums.items():
                state.sums[name] = state.sums.get(name, 0.0) + value
        if state.step % STEPS_PER_ROW == 0 and state.sums:
            row = self.task.row(state.sums)
            state.sums = {}
            self._write({**row, "skipped": state.skipped})
            rate = row["train_tokens"] / (time.monotonic() - self._tokens_counted_from)
            self._tokens_counted_from = time.monotonic()
            bar.note = f"loss {row['train_loss']:.3f}, {rate:,.0f} tokens/s"
            self._tell(loss=row["train_loss"], tokens_per_second=rate)
        self._tell(step=state.step, skipped=state.skipped)
        bar.add(1)

    def _tell(self, **values: Any) -> None:
        """To whoever asks how far the run is."""
        if self.presence is not None:
            self.presence.report(**values)

    def _write(self, row: dict[str, float]) -> None:
        self.state.rows += 1
        if self.metrics is not None:
            self.metrics.write(self.state.step, row)

    def _save_if_asked(self, signals: Signals) -> None:
        if signals.stop():
            self._save()
            self._tell(state="interrupted")
            raise Interrupted
        if self.group.any(time.monotonic() - self.saved > self.checkpoint_seconds):
            self._save()

    def _measure(self, signals: Signals) -> None:
        """Measure on dev, and keep the model if it is one of the best."""
        state, training = self.state, self.task.training
        try:
            scores = self.task.measure(signals)
        except Interrupted:
            self._save()
            self._tell(state="interrupted")
            raise
        self._write(scores)
        self._tell(measured={"step": state.step, **scores})
        score = scores[f"dev_{training.select}"] * (-1 if training.select == "loss" else 1)
        better = math.isfinite(score) and (not state.best or score > state.best[0][0])
        state.without_better = 0 if better else state.without_better + 1
        if math.isfinite(score):
            best = sorted([*state.best, (score, state.step)], key=lambda b: (-b[0], b[1]))
            state.best = best[: training.average]
        if self.group.first and state.step in [step for _, step in state.best]:
            write_tensors(self._snapshot(state.step), self.task.weights(), {"step": state.step})
        state.measured = state.step
        if training.patience and state.without_better >= training.patience:
            state.status = "stopped early"
        self._save()
        self._tokens_counted_from = time.monotonic()

    def _snapshot(self, step: int) -> Path:
        return self.folder / f"best-{step}.safetensors"

    def _save(self, finished: bool = False) -> None:
        """Write the last state; of a finished run only what says so, if it has a best model."""
        if self.group.first:
            if self.metrics is not None:
                self.metrics.sync()
            tensors = {} if finished and self.state.best else self.task.tensors()
            description = {
                "run": self.identity,
                "state": asdict(self.state),
                "position": self.task.position(),
            }
            write_tensors(self.last, tensors, description)
            self.cost.save()
            kept = {self._snapshot(step) for _, step in self.state.best}
            for path in self.folder.glob("best-*.safetensors"):
                if path not in kept:
                    path.unlink()
        self.group.wait()
        self.saved = time.monotonic()

    def _restore(self) -> State:
        """The state of the last checkpoint, if there is one and it is this run's."""
        if not self.last.exists():
            return State()
        tensors, description = read_tensors(self.last)
        state = State(**description["state"])
        if not self._continues(description["run"], state):
            if self.group.first:
                print(f"{self.last}: of another run (run.json has changed): starting anew")
            self.group.wait()
            return State()
        state.best = [(score, step) for score, step in state.best]
        if tensors:
            copy_into(self.task.tensors(), tensors, self.last)
        self.task.go_to(description["position"])
        if self.group.first and state.status == "running":
            print(f"{self.last}: going on at step {state.step:,}", flush=True)
        return state

    def _continues(self, run: Any, state: State) -> bool:
        """Is it the same run? One under way may be made longer or shorter: no step depends on how
        many there are to be."""
        if state.status != "running" or state.step > self.task.training.steps:
            return bool(run == self.identity)
        return _without_steps(run) == _without_steps(self.identity)

    def best_weights(self) -> dict[str, Tensor]:
        """The best model by dev, or the average of the best ones; without any, the last one."""
        if not self.state.best:
            return self.task.weights()
        sums: dict[str, Tensor] = {}
        for _, step in self.state.best:
            tensors, _ = read_tensors(self._snapshot(step))
            for name, tensor in tensors.items():
                sums[name] = sums[name] + tensor if name in sums else tensor.double()
        return {name: (tensor / len(self.state.best)).float() for name, tensor in sums.items()}
