"""`metabt train`: from a run's description to a model's directory."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metabt.errors import UserError
from metabt.files import write_json, write_text
from metabt.nmt.model_files import save_model
from metabt.nmt.threads import ComputeThreads
from metabt.training.distributed import process_group
from metabt.training.learner import Machine
from metabt.training.loop import CHECKPOINT_SECONDS, Loop, Task
from metabt.training.presence import Presence, locked
from metabt.training.run import read_run
from metabt.training.supervised import Supervised


@dataclass(frozen=True)
class Start:
    """How a run is started; nothing of this belongs to its description."""

    threads: int | None = None
    micro_tokens: int | None = None
    compile: bool = False
    device: str | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS


def train(run: Any, make_task: Callable[[Machine], Task], directory: Path, start: Start) -> None:
    """Train a task in a directory, going on from a checkpoint if there is one.

    `training.json` is written last and says how it ended.
    """
    with ExitStack() as held:
        presence = None
        if os.environ.get("RANK", "0") == "0":
            held.enter_context(locked(directory))
            presence = held.enter_context(Presence(directory))
        with process_group(start.device) as group:
            first = group.first
            on_gpu = group.device.type == "cuda"
            machine = Machine(
                group,
                ComputeThreads(1 if on_gpu else start.threads),
                start.micro_tokens or (16384 if on_gpu else 4096),
                start.compile,
            )
            if first:
                (directory / "training.json").unlink(missing_ok=True)
            task = make_task(machine)
            loop = Loop(task, directory, group, start.checkpoint_seconds, presence)
            try:
                state = loop.run()
            except torch.OutOfMemoryError as error:
                raise UserError(f"out of GPU memory: lower --micro-tokens ({error})") from error
            if first:
                weights = loop.best_weights()
                kind = "language-model" if run.kind == "language-model" else "translation"
                vocabulary = Path(run.vocabulary)
                save_model(directory, weights, kind, run.transformer, run.languages, vocabulary)
                task.finish(directory)
                record = {
                    "status": state.status,
                    "steps": state.step,
                    "skipped_steps": state.skipped,
                    "selected_by": f"dev_{run.training.select}",
                    "averaged_steps": [step for _, step in state.best],
                    "best": abs(state.best[0][0]) if state.best else None,
                    "parameters": sum(weight.numel() for weight in weights.values()),
                }
                write_text(directory / "metrics.csv", (loop.folder / "metrics.csv").read_text())
                write_json(directory / "training.json", record)
            group.wait()


def pretrain(description: Path, directory: Path, start: Start) -> None:
    """Train the backward or language model that `run.json` describes."""
    run = read_run(description)
    train(run, lambda machine: Supervised(run, machine, Path()), directory, start)
