"""A method's result: the mean over its seeds, and where it comes from."""

import statistics
from pathlib import Path
from typing import Any

import yaml

from metabt.errors import UserError
from metabt.files import read_json, write_text


def summarise(scores: list[Path], title: str, decoding: str, output: Path) -> None:
    """Write a small file of YAML about some models' scores.json, beside which training.json lies.

    The score of a run that has diverged does not count; if all have, there is none.
    """
    runs: dict[str, Any] = {}
    means: dict[str, list[float]] = {"bleu": [], "chrf": []}
    about: dict[str, Any] = {}
    for path in scores:
        found, record = read_json(path), read_json(path.parent / "training.json")
        said = {
            "decoding": decoding,
            "sentences": found["sentences"],
            **{f"{name}_signature": found[name]["signature"] for name in means},
        }
        if about and said != about:
            raise UserError(f"{path}: scored otherwise than {scores[0]}")
        about = said
        diverged = record["status"] == "diverged"
        runs[path.parent.name] = {
            **{name: None if diverged else round(found[name]["score"], 2) for name in means},
            "status": record["status"],
            "steps": record["steps"],
            "checkpoints": record["averaged_steps"],
            "dev": {record["selected_by"]: record["best"]},
            "file": str(path.parent / "test.hyp"),
        }
        for name, values in means.items():
            if not diverged:
                values.append(found[name]["score"])
    summary = {
        "result": title,
        **{name: _mean_and_deviation(values) for name, values in means.items()},
        "runs": runs,
        **about,
    }
    write_text(output, yaml.safe_dump(summary, sort_keys=False, width=100))


def _mean_and_deviation(values: list[float]) -> dict[str, float | None]:
    """Of the runs; one run has no deviation, and none has no mean."""
    return {
        "mean": round(statistics.fmean(values), 2) if values else None,
        "deviation": round(statistics.stdev(values), 2) if len(values) > 1 else None,
    }
