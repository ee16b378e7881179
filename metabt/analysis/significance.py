"""The tables of significance of a pair: every two methods, each method's spread, and sacreBLEU's
own test."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metabt.analysis.labels import label
from metabt.evaluation.runs import without_diverged
from metabt.evaluation.scores import read_aligned
from metabt.evaluation.significance import (
    System,
    compare_all,
    sacrebleu_bootstrap,
    sentence_statistics,
)
from metabt.tables import NOTHING, readable, write_readable, write_tsv

TEST_COLUMNS = (
    "method",
    "against",
    "runs",
    "bleu",
    "bleu_against",
    "difference",
    "low",
    "high",
    "p",
    "p_holm",
    "trials",
)
SYSTEM_COLUMNS = ("method", "runs", "bleu", "spread_optimiser", "spread_selection", "low", "high")
BOOTSTRAP_COLUMNS = ("seed", "method", "against", "bleu", "mean", "half_interval", "p", "samples")


def write_significance(
    folder: Path, references: Path, files: Sequence[Path], trials: int, pair: str
) -> None:
    """FOLDER/significance, systems and bootstrap: as TSV, the first two also to read."""
    runs = without_diverged(files)
    texts = {
        method: {seed: read_aligned(path, references) for seed, path in paths.items()}
        for method, paths in runs.items()
    }
    systems = [
        System(method, {seed: sentence_statistics(*both) for seed, both in found.items()})
        for method, found in texts.items()
    ]
    tests = compare_all(systems, trials)
    described = [system.describe(trials) for system in systems]
    write_tsv(folder / "significance.tsv", tests, TEST_COLUMNS)
    _write_tests(folder / "significance", tests, trials, pair)
    write_tsv(folder / "systems.tsv", described, SYSTEM_COLUMNS)
    _write_systems(folder / "systems", described, pair)
    write_tsv(folder / "bootstrap.tsv", _bootstrap_rows(texts), BOOTSTRAP_COLUMNS)


def _bootstrap_rows(
    texts: dict[str, dict[str, tuple[list[str], list[str]]]],
) -> list[dict[str, Any]]:
    seeds = dict.fromkeys(seed for found in texts.values() for seed in found)
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        of_seed = {method: found[seed] for method, found in texts.items() if seed in found}
        if len(of_seed) > 1:
            hypotheses = {method: both[0] for method, both in of_seed.items()}
            references = next(iter(of_seed.values()))[1]
            tested = sacrebleu_bootstrap(hypotheses, references)
            rows += [{"seed": seed, **row} for row in tested]
    return rows


def _write_tests(stem: Path, rows: Sequence[dict[str, Any]], trials: int, pair: str) -> None:
    cells = [
        [
            label(row["method"]),
            label(row["against"]),
            str(row["runs"]),
            *(_signed(row.get(name)) for name in ("difference", "low", "high")),
            *(readable(row.get(name), 4) for name in ("p", "p_holm")),
        ]
        for row in rows
    ]
    titles = ["method", "against", "seeds", "BLEU", "from", "to", "p", "p (Holm)"]
    notes = [
        "Difference of BLEU, both systems' seeds taken together; its 95% interval over test sets "
        f"like this one (bootstrap of {trials:,}); p by stratified approximate randomisation over "
        f"sentences and seeds (Clark et al. 2011, {trials:,} trials, so at least "
        f"{1 / (trials + 1):.2g}).",
        "p is not corrected for the number of comparisons, as in the paper; p (Holm) is, for all "
        "comparisons in this table. Neither is corrected for the choice of hyper-parameters or of "
        "the number of language pairs. Seeds that diverged for either method are left out.",
    ]
    write_readable(stem, f"Significance, {pair}", titles, cells, notes, texts=2)


def _signed(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.2f}"


def _write_systems(stem: Path, rows: Sequence[dict[str, Any]], pair: str) -> None:
    cells = [
        [
            label(row["method"]),
            str(row["runs"]),
            *(readable(row.get(name)) for name in SYSTEM_COLUMNS[2:]),
        ]
        for row in rows
    ]
    titles = ["method", "seeds", "BLEU", "s_opt", "s_sel", "from", "to"]
    notes = [
        "s_opt: standard deviation over seeds. s_sel: over test sets like this one (bootstrap), "
        "mean of the seeds'. From, to: 95% interval over test sets, all seeds taken together."
    ]
    write_readable(stem, f"Spread of BLEU, {pair}", titles, cells, notes)
