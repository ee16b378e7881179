"""Verbs that score translations."""

import argparse
from pathlib import Path

from metabt.files import write_json
from metabt.verbs.arguments import Verbs, add_verb, count


def add(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "detokenise",
        _detokenise,
        "join words that were split at spaces (Moses), before scoring",
    )
    verb.add_argument("text", type=Path)
    verb.add_argument("--language", required=True)
    verb.add_argument("--output", type=Path, required=True)
    verb = add_verb(verbs, "score", _score, "BLEU and chrF of translations, with their signatures")
    verb.add_argument("hypotheses", type=Path)
    verb.add_argument("references", type=Path)
    verb.add_argument("--output", type=Path, required=True, metavar="JSON")
    verb = add_verb(verbs, "summarise", _summarise, "a method's mean score over its seeds")
    verb.add_argument("scores", type=Path, nargs="+", metavar="JSON")
    verb.add_argument("--title", required=True)
    verb.add_argument("--decoding", required=True, help="how the test set was translated")
    verb.add_argument("--output", type=Path, required=True)
    verb = add_verb(
        verbs,
        "significance",
        _significance,
        "test which methods differ",
        "Approximate randomisation over sentences and seeds (Clark et al. 2011), and sacreBLEU's "
        "paired bootstrap. Translations lie at METHOD/seedN/FILE, beside their training.json.",
    )
    verb.add_argument("translations", type=Path, nargs="+", metavar="METHOD/seedN/FILE")
    verb.add_argument("--references", type=Path, required=True)
    verb.add_argument("--trials", type=count, default=10_000, help="default: 10,000")
    verb.add_argument("--pair", required=True, help="for the titles")
    verb.add_argument("--output", type=Path, required=True, metavar="DIR")


def _detokenise(options: argparse.Namespace) -> None:
    from metabt.evaluation.detokenise import detokenise

    detokenise(options.text, options.language, options.output)


def _score(options: argparse.Namespace) -> None:
    from metabt.evaluation.scores import score_files

    write_json(options.output, score_files(options.hypotheses, options.references))


def _summarise(options: argparse.Namespace) -> None:
    from metabt.evaluation.summary import summarise

    summarise(options.scores, options.title, options.decoding, options.output)


def _significance(options: argparse.Namespace) -> None:
    from metabt.analysis.significance import write_significance

    write_significance(
        options.output, options.references, options.translations, options.trials, options.pair
    )
