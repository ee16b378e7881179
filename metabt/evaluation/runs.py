"""The runs of a pair on disk: files that lie at METHOD/seedN/NAME, each beside a training.json."""

from collections.abc import Iterable
from pathlib import Path

from metabt.errors import UserError
from metabt.files import read_json


def by_method(paths: Iterable[Path]) -> dict[str, dict[str, Path]]:
    """Method -> seed -> file, in the order given."""
    methods: dict[str, dict[str, Path]] = {}
    for path in paths:
        method, seed = path.parent.parent.name, path.parent.name
        if not method or not seed.startswith("seed"):
            raise UserError(f"{path}: expected a file of a run, such as mle/seed1/{path.name}")
        methods.setdefault(method, {})[seed] = path
    return methods


def diverged(path: Path) -> bool:
    """Did the run that this file belongs to diverge?"""
    return bool(read_json(path.parent / "training.json")["status"] == "diverged")


def without_diverged(paths: Iterable[Path]) -> dict[str, dict[str, Path]]:
    """As `by_method`; a method of which every run diverged is there, with no run."""
    return {
        method: {seed: path for seed, path in runs.items() if not diverged(path)}
        for method, runs in by_method(paths).items()
    }
