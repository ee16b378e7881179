"""Verbs that make figures, tables and comparisons."""

import argparse
from pathlib import Path

from metabt.verbs.arguments import Verbs, add_verb

FIGURES = (
    "probability",
    "learning",
    "validation",
    "pseudo",
    "rewards",
    "vocabulary",
    "lengths",
    "frequency",
)


def add(verbs: Verbs) -> None:
    verb = add_verb(verbs, "count-words", _count_words, "count the words of a text")
    verb.add_argument("text", type=Path)
    verb.add_argument("--output", type=Path, required=True)
    verb = add_verb(
        verbs,
        "figure",
        _figure,
        "draw a figure, as SVG with its data as TSV",
        "Of files at METHOD/seedN: metrics.csv, or translations for lengths and frequency.",
    )
    verb.add_argument("name", choices=FIGURES)
    verb.add_argument("files", type=Path, nargs="+", metavar="METHOD/seedN/FILE")
    verb.add_argument("--output", type=Path, required=True, metavar="STEM", help="without ending")
    verb.add_argument("--references", type=Path, help="of lengths and frequency")
    verb.add_argument("--counts", type=Path, help="of frequency: words and how often they occur")
    verb.add_argument("--tested", help="of frequency: the method whose gain is shown")
    verb = add_verb(
        verbs,
        "compare",
        _compare,
        "let compare-mt write its page about two methods",
        "The first seed with which neither diverged is compared.",
    )
    _add_two_systems(verb)
    verb.add_argument("--counts", type=Path, required=True, help="words and how often they occur")
    verb.add_argument("--output", type=Path, required=True, metavar="DIR")
    _add_tables(verbs)


def _add_two_systems(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("files", type=Path, nargs="+", metavar="METHOD/seedN/FILE")
    verb.add_argument("--methods", nargs=2, required=True, metavar="METHOD")
    verb.add_argument("--source", type=Path, required=True)
    verb.add_argument("--references", type=Path, required=True)


def _add_tables(verbs: Verbs) -> None:
    table = verbs.add_parser("table", help="write a table, as TSV, Markdown and HTML")
    tables = table.add_subparsers(title="tables", metavar="TABLE", required=True)
    results = add_verb(tables, "results", _results, "BLEU of each pair and method")
    results.add_argument("scores", type=Path, nargs="+", metavar="PAIR/METHOD.bleu")
    results.add_argument(
        "--significance", type=Path, nargs="+", default=[], metavar="PAIR/significance.tsv"
    )
    results.add_argument("--seeds", default="mean over seeds", help="how many there are, in words")
    beside = add_verb(tables, "paper", _paper, "BLEU beside the paper's figures")
    beside.add_argument("scores", type=Path, nargs="+", metavar="PAIR/METHOD.bleu")
    beside.add_argument("--same-data", action="store_true", help="the data are the paper's, too")
    so_far = add_verb(tables, "so-far", _so_far, "BLEU of those runs that are scored")
    so_far.add_argument("scores", type=Path, nargs="*", metavar="PAIR/METHOD/seedN/scores.json")
    cost = add_verb(tables, "cost", _cost, "time and memory of training")
    cost.add_argument("--records", type=Path, nargs="+", required=True, metavar="training.json")
    cost.add_argument("--benchmarks", type=Path, nargs="+", required=True, metavar="train.tsv")
    differing = add_verb(
        tables, "examples", _examples, "sentences that two methods translate most differently"
    )
    _add_two_systems(differing)
    pseudo = add_verb(tables, "pseudo", _pseudo, "pseudo pairs at some steps of training")
    pseudo.add_argument("files", type=Path, nargs="+", metavar="METHOD/seedN/examples.tsv")
    for parser in (results, beside, so_far, cost, differing, pseudo):
        parser.add_argument("--output", type=Path, required=True, metavar="STEM")


def _count_words(options: argparse.Namespace) -> None:
    from metabt.analysis.translations import count_words

    count_words(options.text, options.output)


def _figure(options: argparse.Namespace) -> None:
    from metabt.analysis.figures import draw

    draw(
        options.name,
        options.output,
        options.files,
        options.references,
        options.counts,
        options.tested,
    )


def _two_systems(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """The methods and their translations; none if there is no seed with which neither diverged."""
    from metabt.analysis.translations import first_common_run

    files = first_common_run(options.files, options.methods)
    return list(zip(options.methods, files, strict=True)) if files else []


def _compare(options: argparse.Namespace) -> None:
    from metabt.analysis.compare import compare_page

    compare_page(
        options.output,
        options.source,
        options.references,
        _two_systems(options),
        options.counts,
    )


def _results(options: argparse.Namespace) -> None:
    from metabt.analysis.results import write_results

    write_results(options.output, options.scores, options.significance, options.seeds)


def _so_far(options: argparse.Namespace) -> None:
    from metabt.analysis.results import write_so_far

    write_so_far(options.output, options.scores)


def _paper(options: argparse.Namespace) -> None:
    from metabt.analysis.results import write_beside_paper

    write_beside_paper(options.output, options.scores, options.same_data)


def _cost(options: argparse.Namespace) -> None:
    from metabt.analysis.results import write_costs

    write_costs(options.output, options.records, options.benchmarks)


def _examples(options: argparse.Namespace) -> None:
    from metabt.analysis.examples import write_differing

    write_differing(options.output, options.source, options.references, _two_systems(options))


def _pseudo(options: argparse.Namespace) -> None:
    from metabt.analysis.examples import write_pseudo

    write_pseudo(options.output, options.files)
