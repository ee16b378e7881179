"""Sentences to read: where two systems differ most, and what backward models write."""

from collections.abc import Sequence
from pathlib import Path

from metabt.analysis.labels import label
from metabt.analysis.translations import differing_examples
from metabt.evaluation.runs import by_method
from metabt.tables import NOTHING, read_tsv, readable, write_readable, write_tsv

MOMENTS = 3  # of training, at which pseudo pairs are shown


def write_differing(
    stem: Path, source: Path, references: Path, systems: Sequence[tuple[str, Path]]
) -> None:
    """Table 2: sentence by sentence, source, reference and both outputs below each other."""
    if not systems:
        write_tsv(stem.with_name(stem.name + ".tsv"), [], ["line"])
        notes = ["With every seed one of the two methods diverged."]
        write_readable(stem, "Translations", ["line"], [], notes)
        return
    (first, first_path), (second, second_path) = systems
    rows = differing_examples(source, references, first_path, second_path)
    columns = ("line", "source", "reference", "first", "second", "bleu_first", "bleu_second")
    names = {"first": first, "second": second, "bleu_first": f"bleu_{first}"}
    names["bleu_second"] = f"bleu_{second}"
    named = [{names.get(k, k): v for k, v in row.items()} for row in rows]
    write_tsv(stem.with_name(stem.name + ".tsv"), named, [names.get(c, c) for c in columns])
    cells = []
    for row in rows:
        cells += [
            [f"line {row['line']}", "source", row["source"], ""],
            ["", "reference", row["reference"], ""],
            ["", label(first), row["first"], readable(row["bleu_first"], 1)],
            ["", label(second), row["second"], readable(row["bleu_second"], 1)],
        ]
    notes = [
        f"The sentences of the test set with the largest differences of sentence BLEU: first those "
        f"that favour {label(first)}, then those that favour {label(second)}. "
        f"{label(first)}: {first_path}. {label(second)}: {second_path}."
    ]
    title = f"Translations by {label(first)} and {label(second)}"
    write_readable(stem, title, ["", "", "text", "BLEU"], cells, notes, texts=3)


def write_pseudo(stem: Path, files: Sequence[Path]) -> None:
    """Pseudo pairs at the beginning, in the middle and at the end of training: each method's first
    seed of which there are any."""
    columns = (
        "method",
        "step",
        "pseudo_source",
        "target",
        "log_p_backward",
        "log_p_forward",
        "reward",
        "file",
    )
    rows: list[dict[str, str]] = []
    for method, runs in by_method(files).items():
        for path in runs.values():
            examples = read_tsv(path) if path.exists() else []
            if examples:
                steps = list(dict.fromkeys(row["step"] for row in examples))
                last = len(steps) - 1
                chosen = {steps[round(last * i / (MOMENTS - 1))] for i in range(MOMENTS)}
                about = {"method": method, "file": str(path)}
                rows += [{**about, **row} for row in examples if row["step"] in chosen]
                break
    write_tsv(stem.with_name(stem.name + ".tsv"), rows, columns)
    cells = [
        [
            label(row["method"]),
            f"{int(row['step']):,}",
            row["pseudo_source"],
            row["target"],
            *(f"{float(row[k]):.3g}" if row[k] else NOTHING for k in columns[4:7]),
        ]
        for row in rows
    ]
    titles = ["method", "step", "pseudo source", "target", "log P(x̂|y)", "log P(y|x̂)", "reward"]
    notes = ["Log-probabilities in nats per sentence, at the step at which the pair was used."]
    write_readable(stem, "Pseudo pairs during training", titles, cells, notes, texts=4)
