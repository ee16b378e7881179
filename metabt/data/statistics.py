"""What became of the text: a pair's as JSON, all pairs' as a table beside the paper's figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from metabt.files import read_json
from metabt.tables import write_readable, write_tsv

COLUMNS = (
    "pair",
    "set",
    "read",
    "malformed",
    "empty",
    "invalid_utf8",
    "nul",
    "separator",
    "held_out",
    "duplicate",
    "clean",
    "no_subwords",
    "too_long",
    "kept",
    "paper_read",
    "paper_kept",
)
TITLES = {
    "nul": "NUL",
    "invalid_utf8": "invalid UTF-8",
    "held_out": "in a held-out set",
    "separator": "stray separator",
    "no_subwords": "no subwords",
    "too_long": "too long",
    "paper_read": "paper: read",
    "paper_kept": "paper: kept",
}
ALWAYS = ("pair", "set", "read", "held_out", "duplicate", "kept")
PAPER = Path("resources/paper.yaml")


def pair_statistics(corpus: Mapping[str, Path], shards: Mapping[str, Path]) -> dict[str, Any]:
    """Join what cleaning counted (by set) with what the subword filter left out."""
    result: dict[str, Any] = {}
    for name, path in corpus.items():
        cleaned, encoded = read_json(path), read_json(shards[name])
        result[name] = {
            "read": cleaned["read"],
            "dropped": {**cleaned["dropped"], **encoded["dropped"]},
            "clean": cleaned["kept"],
            "kept": encoded["kept"],
            "tokens": encoded["tokens"],
            "datasets": cleaned["datasets"],
        }
    return result


def table_rows(
    statistics: Mapping[str, Mapping[str, Any]], with_paper: bool
) -> list[dict[str, str]]:
    """One row for each pair and set, with the paper's figures if wanted and where it gives any."""
    path = Path(__file__).parents[2] / PAPER
    paper = yaml.safe_load(path.read_text(encoding="utf-8"))["data"] if with_paper else {}
    rows = []
    for pair, sets in statistics.items():
        for name, counts in sets.items():
            values = {"pair": pair, "set": name, **counts, **counts["dropped"]}
            stated = paper.get(pair, {}).get(name, {})
            values.update({f"paper_{key}": value for key, value in stated.items()})
            rows.append({column: _cell(values.get(column, 0), column) for column in COLUMNS})
    return rows


def _cell(value: Any, column: str) -> str:
    if column.startswith("paper"):
        return str(value) if value else "-"
    return str(value)


def write_table(rows: list[dict[str, str]], stem: Path) -> None:
    """The table as TSV (everything) and as Markdown and HTML (without columns of nothing)."""
    write_tsv(stem.with_suffix(".tsv"), rows, COLUMNS)
    shown = [c for c in COLUMNS if c in ALWAYS or any(row[c] not in ("0", "-") for row in rows)]
    titles = [TITLES.get(column, column) for column in shown]
    cells = [[_readable(row[column]) for column in shown] for row in rows]
    write_readable(stem, "Sentences of each set", titles, cells, texts=2)


def _readable(value: str) -> str:
    return f"{int(value):,}" if value.isdigit() else value
