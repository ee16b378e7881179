"""Verbs about an experiment as a whole: its config, its files."""

import argparse
import json
import os
from pathlib import Path

from metabt.errors import UserError
from metabt.verbs.arguments import Verbs, add_verb, count, positive, share


def add(verbs: Verbs) -> None:
    _add_config(verbs)
    _add_status(verbs)
    _add_estimate(verbs)
    _add_download(verbs)
    _add_synthesise(verbs)


def _add_config(verbs: Verbs) -> None:
    config = verbs.add_parser("config", help="check an experiment's file, or print its schema")
    parts = config.add_subparsers(title="verbs", metavar="VERB", required=True)
    check = add_verb(parts, "check", _config_check, "report everything that is wrong with a config")
    check.add_argument("config", type=Path, nargs="?", default=Path("config.yaml"))
    add_verb(parts, "schema", _config_schema, "print the JSON schema, for editors")


def _add_status(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "status",
        _status,
        "say how far an experiment is",
        "For each pair, method and seed: BLEU, or how far it is. From files alone: works while "
        "jobs run, on any host that sees the files. Give the same options as to snakemake.",
    )
    verb.add_argument("--directory", type=Path, default=Path(), help="of the experiment's results")
    verb.add_argument(
        "--configfile", type=Path, default=Path("config.yaml"), help="default: config.yaml"
    )


def _add_estimate(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "estimate",
        _estimate,
        "say what an experiment will take, by arithmetic",
        "Nothing is measured: the speed is what you say that your GPUs sustain.",
    )
    verb.add_argument(
        "--configfile", type=Path, default=Path("config.yaml"), help="default: config.yaml"
    )
    verb.add_argument(
        "--tflops", type=positive, default=60.0, help="that a GPU sustains (default: 60)"
    )
    verb.add_argument("--tokens", type=positive, default=28.0, help="of a sentence (default: 28)")


def _add_download(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "download",
        _download,
        "fetch the files of an experiment, or single addresses",
        "Interrupted downloads go on where they stopped. The environment variable METABT_MIRROR "
        "names a directory or address, laid out <host>/<path>, that is tried first.",
    )
    verb.add_argument("urls", metavar="URL", nargs="*", help="addresses (default: the config's)")
    verb.add_argument(
        "--config", type=Path, default=Path("config.yaml"), help="default: config.yaml"
    )
    verb.add_argument("--pair", help="only what this pair needs")
    verb.add_argument(
        "--list", action="store_true", help="print what would be fetched, and where to"
    )
    verb.add_argument("--to", type=Path, help="default: resources/downloads")
    verb.add_argument(
        "--checksum", action="append", help="of an address, as sha256:HEX (sha1, md5)"
    )


# Each option of `synthesise` is a field of Sizes or Difficulty.
SIZES = {
    "pairs": "T-S sentence pairs (train.*), for the standard setting",
    "mono": "sentences of S (mono.qas)",
    "related": "training rows of talks.tar: all have T and S'",
    "low_resource": "of them, the first so many have S, too",
    "held_out": "sentences of each of MetaDev, dev and test",
}
DIFFICULTY = {
    "words": "meanings, each with a word in every language",
    "homonyms": "share of nouns, and of verbs without object, that look like another in S",
    "kept": "share of words that S' has as S has them",
    "different": "share of words that are S' own",
    "borrowed": "share of words that S' has from T",
    "false_friends": "share of words that S' has from another meaning of S",
    "second_clause": "share of sentences with two clauses",
}


def _add_synthesise(verbs: Verbs) -> None:
    from metabt.data.grammar import Difficulty
    from metabt.data.synthetic import Sizes

    verb = add_verb(
        verbs,
        "synthesise",
        _synthesise,
        "write text in three invented languages: T, S, and S's relative S'",
        "Files: {train,metadev,dev,test}.{qat,qas} and mono.qas as plain text, and talks.tar in "
        "the layout of TED. The same options give the same bytes. docs/demo.md describes the "
        "languages.",
    )
    verb.add_argument("--output", type=Path, required=True, metavar="DIR")
    verb.add_argument("--seed", type=int, default=1, help="default: 1")
    for options, defaults in ((SIZES, Sizes()), (DIFFICULTY, Difficulty())):
        for name, help in options.items():
            default = getattr(defaults, name)
            kind = count if isinstance(default, int) else share
            verb.add_argument(
                f"--{name.replace('_', '-')}",
                type=kind,
                default=default,
                metavar="N" if kind is count else "SHARE",
                help=f"{help} (default: {default})",
            )


def _config_check(options: argparse.Namespace) -> None:
    from metabt.data.catalogue import faults
    from metabt.experiment import load

    experiment = load(options.config)
    if found := faults(experiment):
        raise UserError("\n  ".join([f"{options.config}:", *found]))
    pairs = ", ".join(experiment.pairs)
    runs = sum(
        len(experiment.setting(pair).methods) * len(experiment.setting(pair).seeds)
        for pair in experiment.pairs
    )
    print(f"{options.config}: fine ({experiment.name}: {pairs}; {runs} training runs)")


def _config_schema(options: argparse.Namespace) -> None:
    from metabt.experiment import Experiment

    print(json.dumps(Experiment.model_json_schema(), indent=2))


def _status(options: argparse.Namespace) -> None:
    from metabt.experiment import load
    from metabt.status import screen

    experiment = load(options.configfile)
    note = options.directory / "results" / "experiment.txt"
    if note.exists() and (name := note.read_text().strip()) != experiment.name:
        raise UserError(
            f"{options.directory.absolute()}: these are the results of '{name}', not of "
            f"'{experiment.name}' ({options.configfile}): give its --configfile, too"
        )
    print(screen(experiment, options.directory))


def _estimate(options: argparse.Namespace) -> None:
    from metabt.estimate import table
    from metabt.experiment import load

    print(table(load(options.configfile), options.tflops, options.tokens))


def _synthesise(options: argparse.Namespace) -> None:
    from metabt.data.grammar import Difficulty
    from metabt.data.synthetic import Sizes, synthesise

    sizes = Sizes(**{name: getattr(options, name) for name in SIZES})
    difficulty = Difficulty(**{name: getattr(options, name) for name in DIFFICULTY})
    synthesise(options.output, sizes, difficulty, options.seed)


def _download(options: argparse.Namespace) -> None:
    from metabt.data.catalogue import DOWNLOADS, resource, resources
    from metabt.data.download import download
    from metabt.experiment import load

    if options.urls:
        checksums = options.checksum or [None] * len(options.urls)
        if len(checksums) != len(options.urls):
            raise UserError("give one --checksum for each address, or none")
        pairs = zip(options.urls, checksums, strict=True)
        wanted = {item.path: (item, ["-"]) for item in (resource(u, c) for u, c in pairs)}
    else:
        wanted = resources(load(options.config))
    if options.pair:
        wanted = {k: v for k, v in wanted.items() if options.pair in v[1]}
        if not wanted:
            raise UserError(f"{options.config}: nothing to download for '{options.pair}'")
    if options.list:
        print("size\tchecksum\tpairs\taddress\tplace")
        for path, (item, pairs_) in wanted.items():
            place = Path(options.to or DOWNLOADS) / path
            size, checksum = item.size or "?", item.checksum or "recorded on first use"
            print(f"{size}\t{checksum}\t{','.join(pairs_)}\t{item.url}\t{place}")
        return
    for item, _ in wanted.values():
        download(item, Path(options.to or DOWNLOADS), mirror=os.environ.get("METABT_MIRROR"))
