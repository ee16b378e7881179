"""Tables on disk: TSV for programs, Markdown for terminals, HTML for the report."""

import csv
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metabt.files import write_text

STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;color:#222;margin:1.2em}"
    "table{border-collapse:collapse;border-top:2px solid #222;border-bottom:2px solid #222}"
    "td,th{padding:.3em .8em;text-align:right;vertical-align:top}"
    "th{border-bottom:1px solid #222;font-weight:600}"
    "td.text,th.text{text-align:left;max-width:60em}"
    "tbody tr:nth-child(even){background:#f6f6f6}"
    "caption{text-align:left;font-weight:600;padding-bottom:.5em}"
    "p{color:#555;max-width:60em;margin:.4em 0}"
)
NOTHING = "–"


def write_tsv(path: Path, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Rows of these columns; a value that is not there is an empty cell, and tabs and line breaks
    inside a text become spaces."""
    text = io.StringIO()
    writer = csv.writer(
        text, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None
    )
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_plain(row.get(column)) for column in columns])
    write_text(path, text.getvalue())


def read_tsv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(str(value).splitlines()).replace("\t", " ")


def readable(value: Any, decimals: int = 2) -> str:
    """A value as a person wants to read it."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, float):
        return f"{value:,.{decimals}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_readable(
    stem: Path,
    title: str,
    titles: Sequence[str],
    cells: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    texts: int = 1,
) -> None:
    """The table as STEM.md and STEM.html. The first columns, `texts` of them, are text."""
    write_text(stem.with_name(stem.name + ".md"), _markdown(title, titles, cells, notes, texts))
    write_text(stem.with_name(stem.name + ".html"), _html(title, titles, cells, notes, texts))


def _markdown(
    title: str,
    titles: Sequence[str],
    cells: Sequence[Sequence[str]],
    notes: Sequence[str],
    texts: int,
) -> str:
    """Columns are padded, so that the table reads well in a terminal, too."""
    lines = [[value.replace("|", "\\|") for value in line] for line in [titles, *cells]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    marks = ["-" * w if i < texts else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    text = f"**{title}**\n\n"
    for line in [lines[0], marks, *lines[1:]]:
        padded = [
            value.ljust(width) if i < texts else value.rjust(width)
            for i, (value, width) in enumerate(zip(line, widths, strict=True))
        ]
        text += f"| {' | '.join(padded)} |\n"
    return text + "".join(f"\n{note}\n" for note in notes)


def _html(
    title: str,
    titles: Sequence[str],
    cells: Sequence[Sequence[str]],
    notes: Sequence[str],
    texts: int,
) -> str:
    def line(tag: str, values: Sequence[str]) -> str:
        marked = [
            f"<{tag}{' class=text' if i < texts else ''}>{html.escape(value)}</{tag}>"
            for i, value in enumerate(values)
        ]
        return f"<tr>{''.join(marked)}</tr>\n"

    body = "".join(line("td", values) for values in cells)
    below = "".join(f"<p>{html.escape(note)}</p>\n" for note in notes)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n"
        f"<table><caption>{html.escape(title)}</caption>\n"
        f"<thead>{line('th', titles)}</thead>\n<tbody>\n{body}</tbody></table>\n{below}</html>\n"
    )
