"""The tables of results: scores with their significance, beside the paper's, and what they cost."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from metabt.analysis.labels import label
from metabt.analysis.paper import paper_scores
from metabt.errors import UserError
from metabt.files import read_json
from metabt.tables import NOTHING, read_tsv, readable, write_readable, write_tsv

STAR = 0.001  # the paper's level of significance
RESULT_COLUMNS = (
    "pair",
    "method",
    "bleu",
    "deviation",
    "chrf",
    "runs",
    "diverged",
    "best_baseline",
    "difference",
    "low",
    "high",
    "p",
    "p_holm",
    "star",
    "file",
)


def _read_results(files: Sequence[Path]) -> dict[str, dict[str, dict[str, Any]]]:
    """Pair -> method -> what its .bleu file says; files lie at PAIR/METHOD.bleu."""
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for path in files:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or "bleu" not in found or "runs" not in found:
            raise UserError(f"{path}: not a summary of scores")
        results.setdefault(path.parent.name, {})[path.stem] = {**found, "file": str(path)}
    return results


def _tests(files: Sequence[Path]) -> dict[tuple[str, str, str], dict[str, str]]:
    """(pair, method, against) -> the row of PAIR/significance.tsv."""
    return {
        (path.parent.name, row["method"], row["against"]): row
        for path in files
        for row in read_tsv(path)
    }


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def result_rows(scores: Sequence[Path], significance: Sequence[Path]) -> list[dict[str, Any]]:
    """A row for each pair and method. The last method of a pair is put to the test: against the
    best of the others, by BLEU."""
    tests = _tests(significance)
    rows = []
    for pair, methods in _read_results(scores).items():
        means = {m: found["bleu"]["mean"] for m, found in methods.items()}
        tested = list(methods)[-1]
        others = {m: mean for m, mean in means.items() if m != tested and mean is not None}
        best = max(others, key=lambda m: others[m]) if others else None
        for method, found in methods.items():
            row = {
                "pair": pair,
                "method": method,
                "bleu": means[method],
                "deviation": found["bleu"]["deviation"],
                "chrf": found["chrf"]["mean"],
                "runs": len(found["runs"]),
                "diverged": sum(r["status"] == "diverged" for r in found["runs"].values()),
                "file": found["file"],
            }
            test = tests.get((pair, method, best)) if best and method == tested else None
            if test:
                values = {k: _number(test.get(k)) for k in ("difference", "low", "high", "p")}
                row |= {"best_baseline": best, **values, "p_holm": _number(test.get("p_holm"))}
                better = (values["difference"] or 0) > 0
                row["star"] = (
                    "*" if values["p"] is not None and better and values["p"] < STAR else ""
                )
            rows.append(row)
    return rows


def write_results(
    stem: Path, scores: Sequence[Path], significance: Sequence[Path], seeds: str
) -> None:
    """Table 1: methods by pairs, the mean over seeds; with the tests' outcome below."""
    rows = result_rows(scores, significance)
    write_tsv(stem.with_name(stem.name + ".tsv"), rows, RESULT_COLUMNS)
    pairs = list(dict.fromkeys(row["pair"] for row in rows))
    last = {row["pair"]: row["method"] for row in rows}.values()  # those that are put to the test
    methods = list(dict.fromkeys(sorted((r["method"] for r in rows), key=lambda m: m in last)))
    found = {(row["pair"], row["method"]): row for row in rows}
    notes: list[str] = []
    cells = [
        [label(method), *(_cell(found.get((pair, method)), notes) for pair in pairs)]
        for method in methods
    ]
    below = [
        f"BLEU of the test sets, {seeds}. * better than the best other method with p < {STAR} "
        "(stratified approximate randomisation over sentences and seeds, Clark et al. 2011; not "
        "corrected for the number of comparisons, as in the paper).",
        *_outcomes(rows),
        *notes,
        "Every figure is in results/PAIR/METHOD.bleu, every test in results/PAIR/significance.tsv.",
    ]
    write_readable(stem, "BLEU of each method", ["", *pairs], cells, below)


def _cell(row: dict[str, Any] | None, notes: list[str]) -> str:
    if row is None:
        return NOTHING
    if row["diverged"]:
        notes.append(
            f"[{len(notes) + 1}] {row['pair']}, {label(row['method'])}: {row['diverged']} of "
            f"{row['runs']} runs diverged and do not count."
        )
    mark = f" [{len(notes)}]" if row["diverged"] else ""
    if row["bleu"] is None:
        return f"{NOTHING}{mark}"
    spread = f" ± {row['deviation']:.2f}" if row["deviation"] is not None else ""
    return f"{row['bleu']:.2f}{spread}{row.get('star', '')}{mark}"


def _outcomes(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{row['pair']}: {label(row['method'])} less {label(row['best_baseline'])}, the best of "
        f"the others: {row['difference']:+.2f} BLEU (95% interval over test sets "
        f"{row['low']:+.2f} to {row['high']:+.2f}), p = {row['p']:.4f}, corrected for all pairs of "
        f"methods (Holm) {row['p_holm']:.4f}."
        for row in rows
        if row.get("p") is not None
    ]


def write_so_far(stem: Path, scores: Sequence[Path]) -> None:
    """BLEU of the runs whose PAIR/METHOD/seedN/scores.json are there; means are over these."""
    found: dict[tuple[str, str], dict[str, float | None]] = {}
    for path in scores:
        pair, method, seed = path.parent.parts[-3:]
        diverged = read_json(path.parent / "training.json")["status"] == "diverged"
        score = None if diverged else read_json(path)["bleu"]["score"]
        found.setdefault((pair, method), {})[seed.removeprefix("seed")] = score
    rows: list[dict[str, Any]] = []
    for (pair, method), seeds in found.items():
        counted = [score for score in seeds.values() if score is not None]
        each = ", ".join(f"{seed}: {readable(score)}" for seed, score in seeds.items())
        mean = statistics.fmean(counted) if counted else None
        rows.append({"pair": pair, "method": method, "bleu": mean, "seeds": each})
    write_tsv(stem.with_name(stem.name + ".tsv"), rows, ("pair", "method", "bleu", "seeds"))
    cells = [[r["pair"], label(r["method"]), r["seeds"], readable(r["bleu"])] for r in rows]
    notes = [f"{len(scores)} runs are scored. – diverged."]
    titles = ["pair", "method", "BLEU of each seed", "mean"]
    write_readable(stem, "BLEU so far", titles, cells, notes, texts=3)


def write_beside_paper(stem: Path, scores: Sequence[Path], same_data: bool) -> None:
    """The pairs and methods of the paper's Table 1: ours, the paper's, the difference."""
    paper = paper_scores()
    rows = []
    for pair, methods in _read_results(scores).items():
        for method, found in methods.items():
            stated = paper.get(pair, {}).get(method)
            ours = found["bleu"]["mean"]
            if method not in paper.get(pair, {}):
                continue
            both = stated is not None and ours is not None
            rows.append(
                {
                    "pair": pair,
                    "method": method,
                    "ours": ours,
                    "paper": stated,
                    "difference": ours - stated if both else None,
                    "file": found["file"],
                }
            )
    columns = ("pair", "method", "ours", "paper", "difference", "file")
    write_tsv(stem.with_name(stem.name + ".tsv"), rows, columns)
    cells = [
        [
            row["pair"],
            label(row["method"]),
            readable(row["ours"]),
            readable(row["paper"]),
            NOTHING if row["difference"] is None else f"{row['difference']:+.2f}",
        ]
        for row in rows
    ]
    about = (
        "The data and the sizes are the paper's."
        if same_data
        else "Not the paper's data or sizes: only the order of the methods may be compared."
    )
    notes = [
        f"{about} The paper's figures are its Table 1; which implementation of BLEU they come from "
        "it does not say. – diverged, or no figure.",
    ]
    titles = ["pair", "method", "ours", "paper", "difference"]
    write_readable(stem, "BLEU beside the paper's", titles, cells, notes, texts=2)


# --- cost ----------------------------------------------------------------------------------------

COST_COLUMNS = (
    "pair",
    "model",
    "status",
    "steps",
    "sittings",
    "hours",
    "steps_per_second",
    "peak_mb",
    "device",
    "processes",
    "gpu_hours",
    "file",
)


def cost_row(record: Path, benchmark: Path) -> dict[str, Any]:
    """What a training run took. The trainer's own record counts all sittings of an interrupted run,
    Snakemake's benchmark file the last one; where the first is missing, the second is used."""
    *_, pair, model = record.parent.parts
    if model.startswith("seed"):
        *_, pair, method, seed = record.parent.parts
        model = f"{method}/{seed}"
    training = read_json(record)
    measured = read_tsv(benchmark)
    if not measured:
        raise UserError(f"{benchmark}: has no line of measurements")
    own = record.parent / "checkpoint" / "cost.json"
    if own.exists():
        cost = {**read_json(own), "file": str(own)}
    else:
        seconds, peak = float(measured[0]["s"]), _number(measured[0]["max_rss"].replace("-", ""))
        cost = {"seconds": seconds, "peak_mb": peak, "file": str(benchmark)}
    hours = cost["seconds"] / 3600
    gpu = str(cost.get("device", "cpu")) != "cpu"
    return {
        "pair": pair,
        "model": model,
        "status": training["status"],
        "steps": training["steps"],
        "hours": hours,
        "steps_per_second": training["steps"] / cost["seconds"] if cost["seconds"] else None,
        "gpu_hours": hours * cost["processes"] if gpu else 0.0,
        **{k: v for k, v in cost.items() if k != "seconds"},
    }


def write_costs(stem: Path, records: Sequence[Path], benchmarks: Sequence[Path]) -> None:
    rows = [cost_row(record, file) for record, file in zip(records, benchmarks, strict=True)]
    write_tsv(stem.with_name(stem.name + ".tsv"), rows, COST_COLUMNS)
    cells = [
        [
            row["pair"],
            row["model"],
            row["status"],
            str(row.get("device") or "cpu"),
            readable(row["steps"]),
            readable(row["hours"]),
            readable(row["steps_per_second"]),
            readable(row["peak_mb"], 0),
            readable(row["gpu_hours"]),
        ]
        for row in rows
    ]
    hours, gpu = (sum(row[k] for row in rows) for k in ("hours", "gpu_hours"))
    titles = ["pair", "model", "run", "on", "steps", "hours", "steps/s", "peak MB", "GPU hours"]
    notes = [
        f"In all: {hours:,.1f} hours of training, {gpu:,.1f} GPU hours. Wall-clock time, "
        "measurements on dev included; runs side by side slow each other down. Peak MB: of the "
        "first process, on a GPU of the GPU's memory."
    ]
    write_readable(stem, "Cost of training", titles, cells, notes, texts=4)
