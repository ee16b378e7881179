"""The paper's figures: each as SVG, with the data it shows as TSV beside it.

A figure is computed as a table first and drawn from nothing else.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from metabt.analysis.curves import BAND, BINS, curve, interval, read_metrics, share_in_bins
from metabt.analysis.labels import label
from metabt.analysis.translations import length_differences, word_f1
from metabt.errors import UserError
from metabt.files import atomic_write
from metabt.tables import write_tsv

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "metabt",  # the same figure is the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
}
# Told apart by lightness, line and mark, not by colour alone.
COLOURS = ["#9a9a9a", "#4c86b8", "#c98b2b", "#1f1f1f", "#7a4f9c", "#3c8d5a", "#b5544d"]
DASHES: list[Any] = ["--", "-.", ":", "-", (0, (5, 1, 1, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1))]
MARKS = ["s", "^", "v", "o", "D", "P", "X"]
HATCHES = ["", "///", "...", "", "\\\\\\", "++", "oo"]


def _look(methods: Sequence[str], method: str) -> dict[str, Any]:
    """The last method, which is put to the test, is the full dark line."""
    index = list(methods).index(method)
    style = 3 if method == methods[-1] else [0, 1, 2, 4, 5, 6][index % 6]
    return {"color": COLOURS[style], "linestyle": DASHES[style], "marker": MARKS[style]}


def _hatch(methods: Sequence[str], method: str) -> dict[str, Any]:
    look = _look(methods, method)
    return {
        "color": look["color"],
        "hatch": HATCHES[COLOURS.index(look["color"])],
        "edgecolor": "white",
    }


def _save(stem: Path, figure: Any, data: pd.DataFrame) -> None:
    rows = [{str(k): v for k, v in row.items()} for row in data.to_dict("records")]
    clean = [{k: None if pd.isna(v) else v for k, v in row.items()} for row in rows]
    write_tsv(stem.with_name(stem.name + ".tsv"), clean, list(data.columns))
    with atomic_write(stem.with_name(stem.name + ".svg")) as file:
        figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)


def _nothing(stem: Path, reason: str) -> None:
    """A figure that says why it is empty: diverged runs block nothing."""
    figure, axes = plt.subplots(figsize=(3.6, 1.2))
    axes.axis("off")
    axes.text(0.5, 0.5, reason, ha="center", va="center")
    _save(stem, figure, pd.DataFrame(columns=["method"]))


def _lines(axes: Axes, band: pd.DataFrame, by: str, methods: Sequence[str]) -> None:
    for method in methods:
        rows = band[band["method"] == method].sort_values(by)
        if rows.empty:
            continue
        x = rows[by].to_numpy(dtype=float)
        look = _look(methods, method)
        axes.plot(
            x,
            rows["mean"],
            label=label(method),
            markevery=max(1, len(x) // 8),
            markersize=4,
            linewidth=1.4,
            **look,
        )
        shade = {"color": look["color"], "lw": 0}
        axes.fill_between(x, rows["min"], rows["max"], alpha=0.25, **shade)
        # The interval of two or three runs may be many times as wide as what they did: it goes on
        # outside of the picture.
        limits = axes.dataLim.frozen()
        axes.fill_between(x, rows["low"], rows["high"], alpha=0.07, **shade)
        axes.dataLim.set(limits)


def _panels(
    stem: Path,
    metrics: pd.DataFrame,
    panels: Sequence[tuple[str, str, bool]],
) -> None:
    """A row of curves by step; a panel is (column, axis label, logarithmic?)."""
    methods = list(metrics["method"].unique())
    bands = {column: curve(metrics, column) for column, _, _ in panels}
    if all(band.empty for band in bands.values()):
        return _nothing(stem, "no run recorded this")
    figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels), 2.7), squeeze=False)
    for panel, (column, title, logarithmic) in zip(axes[0], panels, strict=True):
        _lines(panel, bands[column], "step", methods)
        panel.set(xlabel="training step", ylabel=title)
        if logarithmic:
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    handles = {h.get_label(): h for panel in axes[0] for h in panel.get_lines()}
    axes[0][-1].legend(handles=list(handles.values()))
    data = pd.concat([band.assign(column=column) for column, band in bands.items()])
    _save(stem, figure, data[["column", "method", "step", *BAND]])


# --- by step -------------------------------------------------------------------------------------


def probability(stem: Path, files: Sequence[Path]) -> None:
    """Figure 2: how probable the forward model finds the pseudo pairs."""
    metrics = read_metrics(files)
    if "pseudo_perplexity" in metrics:
        metrics["log_p"] = -np.log(metrics["pseudo_perplexity"])
    _panels(stem, metrics, [("log_p", "log P(y | x̂; θ) per subword, nats", False)])


def learning(stem: Path, files: Sequence[Path]) -> None:
    """Figure 3: perplexity on the training data, BLEU on dev."""
    panels = [("train_perplexity", "training perplexity", True), ("dev_bleu", "dev BLEU", False)]
    _panels(stem, read_metrics(files), panels)


def validation(stem: Path, files: Sequence[Path]) -> None:
    """The appendix's figure: perplexity and BLEU on dev."""
    panels = [("dev_perplexity", "dev perplexity", True), ("dev_bleu", "dev BLEU", False)]
    _panels(stem, read_metrics(files), panels)


def pseudo(stem: Path, files: Sequence[Path]) -> None:
    """What the backward model generates: its own log-probability, and length."""
    panels = [
        ("pseudo_log_p_backward", "log P(x̂ | y; ψ) per sentence, nats", False),
        ("pseudo_length_ratio", "length of x̂ / length of y, subwords", False),
    ]
    _panels(stem, read_metrics(files), panels)


def rewards(stem: Path, files: Sequence[Path]) -> None:
    """What moves the backward model; one method's, as each has rewards of its own kind."""
    metrics = read_metrics(files)
    panels = [("reward_mean", "mean reward", False), ("reward_spread", "spread of rewards", False)]
    if "alignment" in metrics:
        panels.append(("alignment", "cosine of step and MetaDev gradient", False))
    _panels(stem, metrics, panels)


def vocabulary(stem: Path, files: Sequence[Path]) -> None:
    """Figure 4: words of pseudo sources that the low-resource language has."""
    metrics = read_metrics(files)
    if "pseudo_words" not in metrics or metrics["pseudo_words"].isna().all():
        return _nothing(stem, "no run counted words")
    band = share_in_bins(metrics, "pseudo_known_words", "pseudo_words")
    figure, axes = plt.subplots(figsize=(4.2, 2.9))
    _lines(axes, band, "bin", list(metrics["method"].unique()))
    axes.set(xlabel="tenth of training", ylabel="words known in S, %", xticks=range(1, BINS + 1))
    axes.legend()
    _save(stem, figure, band[["method", "bin", *BAND]])


# --- of the translated test set ------------------------------------------------------------------


def lengths(stem: Path, files: Sequence[Path], references: Path) -> None:
    """Figure 5: lengths of translations beside those of references."""
    data = length_differences(files, references)
    if data.empty:
        return _nothing(stem, "every run diverged")
    names = data.drop_duplicates("bin")["difference"].tolist()
    methods = list(data["method"].unique())
    figure, axes = plt.subplots(figsize=(6.4, 2.9))
    width = 0.8 / len(methods)
    for place, method in enumerate(methods):
        share = data[data["method"] == method].groupby("bin")["value"].mean()
        x = np.arange(len(names)) + (place - (len(methods) - 1) / 2) * width
        axes.bar(x, share, width, label=label(method), linewidth=0, **_hatch(methods, method))
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set(
        xlabel="words in translation − words in reference", ylabel="sentences, %", yscale="symlog"
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.legend()
    _save(stem, figure, data)


def frequency(
    stem: Path, files: Sequence[Path], references: Path, counts: Path, tested: str
) -> None:
    """Figure 6: gain in F1 of words by their frequency in the S'-T data, of the method that is put
    to the test over each other one."""
    data = word_f1(files, references, counts)
    if data.empty or tested not in set(data["method"]):
        return _nothing(stem, f"{label(tested)} diverged")
    ours = data[data["method"] == tested].set_index(["seed", "bin"])["value"]
    others = data[data["method"] != tested]
    joined = others.join(ours.rename("tested"), on=["seed", "bin"]).dropna(subset="tested")
    gains = joined.assign(value=joined["tested"] - joined["value"])
    band = interval(gains, ["method", "bin", "frequency"])
    words = data[data["method"] == tested].drop_duplicates("bin").set_index("bin")
    band = band.join(words[["reference_words"]], on="bin")
    names = [f"{row.frequency}\n({row.reference_words:,})" for row in words.itertuples(index=False)]
    methods = [*others["method"].unique(), tested]
    figure, axes = plt.subplots(figsize=(6.4, 3.0))
    width = 0.8 / max(1, len(methods) - 1)
    for place, method in enumerate(methods[:-1]):
        rows = band[band["method"] == method]
        x = rows["bin"] + (place - (len(methods) - 2) / 2) * width
        axes.bar(
            x, rows["mean"], width, label=f"over {label(method)}", lw=0, **_hatch(methods, method)
        )
        half = (rows["high"] - rows["mean"]).fillna(0)
        axes.errorbar(x, rows["mean"], yerr=half, fmt="none", ecolor="#555", elinewidth=0.6)
    axes.axhline(0, color="#222", linewidth=0.8)
    axes.set_xticks(range(len(names)), names)
    axes.set(
        xlabel="occurrences of the word in the counted data (words of the test set)",
        ylabel=f"gain in F1 of {label(tested)}, points",
    )
    axes.legend()
    _save(stem, figure, band)


BY_STEP: dict[str, Callable[[Path, Sequence[Path]], None]] = {
    "probability": probability,
    "learning": learning,
    "validation": validation,
    "pseudo": pseudo,
    "rewards": rewards,
    "vocabulary": vocabulary,
}


def draw(
    name: str,
    stem: Path,
    files: Sequence[Path],
    references: Path | None = None,
    counts: Path | None = None,
    tested: str | None = None,
) -> None:
    """Draw one of the figures."""
    with mpl.rc_context(STYLE):
        if name in BY_STEP:
            BY_STEP[name](stem, files)
        elif references is None:
            raise UserError(f"figure '{name}' needs --references")
        elif name == "lengths":
            lengths(stem, files, references)
        elif counts is None or tested is None:
            raise UserError(f"figure '{name}' needs --counts and --tested")
        else:
            frequency(stem, files, references, counts, tested)
