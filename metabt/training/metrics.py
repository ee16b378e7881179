"""What a run measured, by step: `metrics.csv`, and the same for TensorBoard.

The file has nothing in it that depends on the clock, so that an interrupted run and an
uninterrupted one write the same bytes.
"""

import csv
import io
import os
from pathlib import Path
from typing import Any

from metabt.files import write_text


class Metrics:
    """Rows of a fixed set of columns; a value that a row does not have is empty."""

    def __init__(self, path: Path, columns: list[str], rows: int, last_step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.columns = path, ["step", *columns]
        self._restart(rows)
        self._file = path.open("a", encoding="utf-8", newline="")
        self._board = _board(path.parent.parent / "tensorboard", last_step)

    def _restart(self, rows: int) -> None:
        """Keep the rows that there were at the checkpoint from which the run goes on."""
        kept: list[str] = []
        if rows:
            kept = self.path.read_text(encoding="utf-8").split("\n")[1 : rows + 1]
        write_text(self.path, "".join(f"{line}\n" for line in [",".join(self.columns), *kept]))

    def write(self, step: int, values: dict[str, float]) -> None:
        row = {"step": step, **{name: f"{value:.9g}" for name, value in values.items()}}
        text = io.StringIO()
        csv.DictWriter(text, self.columns, lineterminator="\n").writerow(row)
        self._file.write(text.getvalue())
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(name.replace("_", "/", 1), value, step)

    def sync(self) -> None:
        """Have on disk what a checkpoint is going to rely on."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        self._board.close()


def _board(directory: Path, last_step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(directory, purge_step=last_step + 1 if last_step else None)
