"""What runs recorded by step (metrics.csv), as averages over seeds."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from metabt.errors import UserError
from metabt.evaluation.runs import by_method

BINS = 10  # of the paper's figure 4
BAND = ["mean", "min", "max", "low", "high", "runs"]  # low to high: the mean's interval


def read_metrics(files: Sequence[Path]) -> pd.DataFrame:
    """The rows of all runs, with columns `method` and `seed`."""
    frames = []
    for method, runs in by_method(files).items():
        for seed, path in runs.items():
            try:
                frame = pd.read_csv(path)
            except (ValueError, UnicodeDecodeError) as error:  # also pandas' ParserError
                raise UserError(f"{path}: not a table of metrics ({error})") from error
            if "step" not in frame:
                raise UserError(f"{path}: has no column 'step'")
            frames.append(frame.assign(method=method, seed=seed))
    return pd.concat(frames, ignore_index=True)


def curve(metrics: pd.DataFrame, column: str) -> pd.DataFrame:
    """Mean over seeds and its 95% confidence interval, for each method and step. Methods that did
    not record the column are not in it."""
    if column not in metrics:
        return interval(pd.DataFrame(columns=["method", "step", "value"]), ["method", "step"])
    rows = metrics[["method", "step", column]].dropna().rename(columns={column: "value"})
    return interval(rows, ["method", "step"])


def share_in_bins(metrics: pd.DataFrame, part: str, whole: str) -> pd.DataFrame:
    """Per cent of `whole` that is `part`, summed in ten bins over a run's steps."""
    rows = metrics.dropna(subset=[part, whole])
    last = rows.groupby(["method", "seed"])["step"].transform("max")
    rows = rows.assign(bin=np.ceil(BINS * rows["step"] / last).astype(int))
    sums = rows.groupby(["method", "seed", "bin"], sort=False)[[part, whole]].sum().reset_index()
    return interval(sums.assign(value=100 * sums[part] / sums[whole]), ["method", "bin"])


def interval(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Mean of the column `value` over runs, and its 95% confidence interval (Student's t), which
    one run does not have. Columns: those of `by`, and BAND's."""
    grouped = rows.groupby(list(by), sort=False)["value"]
    band = grouped.agg(["mean", "std", "min", "max", "count"]).reset_index()
    band = band.rename(columns={"count": "runs"})
    runs = band["runs"].to_numpy(dtype=float)
    half = student.ppf(0.975, np.maximum(runs - 1, 1)) * band.pop("std") / np.sqrt(runs)
    return band.assign(low=band["mean"] - half, high=band["mean"] + half)
