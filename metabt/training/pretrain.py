"""`metabt train`: from a run's description to a model's directory."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from metabt.errors import UserError
from metabt.files import write_json, write_text
from metabt.nmt.model_files import save_model
from metabt.nmt.threads import ComputeThreads
from metabt.training.distributed import process_group
from metabt.training.loop import CHECKPOINT_SECONDS, Loop
from metabt.training.run import read_run
from metabt.training.supervised import Machine, Supervised


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One process at a time trains in a directory; the lock goes with the process."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"{directory}: another process is training here") from error
        yield


def pretrain(
    description: Path,
    directory: Path,
    *,
    threads: int | None = None,
    micro_tokens: int | None = None,
    compile: bool = False,
    device: str | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> None:
    """Train the model that `run.json` describes, going on from a checkpoint if there is one.

    `training.json` is written last and says how it ended.
    """
    run = read_run(description)
    with process_group(device) as group:
        first = group.first
        with locked(directory) if first else nullcontext():
            on_gpu = group.device.type == "cuda"
            machine = Machine(
                group,
                ComputeThreads(1 if on_gpu else threads),
                micro_tokens or (16384 if on_gpu else 4096),
                compile,
            )
            if first:
                (directory / "training.json").unlink(missing_ok=True)
            task = Supervised(run, machine, Path())
            loop = Loop(task, run.model_dump(), directory, group, checkpoint_seconds)
            try:
                state = loop.run()
            except torch.OutOfMemoryError as error:
                raise UserError(f"out of GPU memory: lower --micro-tokens ({error})") from error
            if first:
                save_model(
                    directory,
                    loop.best_weights(),
                    run.kind,
                    run.transformer,
                    run.languages,
                    Path(run.vocabulary),
                )
                record = {
                    "status": state.status,
                    "steps": state.step,
                    "skipped_steps": state.skipped,
                    "selected_by": f"dev_{run.training.select}",
                    "averaged_steps": [step for _, step in state.best],
                    "best": abs(state.best[0][0]) if state.best else None,
                    "parameters": sum(task.learner.vector.sizes),
                }
                write_text(directory / "metrics.csv", (loop.folder / "metrics.csv").read_text())
                write_json(directory / "training.json", record)
            group.wait()
