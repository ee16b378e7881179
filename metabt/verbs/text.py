"""Verbs that make training data of text."""

import argparse
import re
from pathlib import Path

from metabt.errors import UserError
from metabt.files import read_json, write_json
from metabt.verbs.arguments import Verbs, add_verb


def add(verbs: Verbs) -> None:
    _add_corpus(verbs)
    _add_encoding(verbs)
    _add_statistics(verbs)


def _add_corpus(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "hold-out",
        _hold_out,
        "write the test, dev and MetaDev sets of a pair",
        "They are read strictly: what cannot be trusted is refused, with file and line.",
    )
    verb.add_argument("datasets", type=Path, help="the pair's datasets.json")
    verb.add_argument("--output", type=Path, required=True, metavar="DIR")
    verb = add_verb(
        verbs,
        "clean",
        _clean,
        "write one training set of a pair: valid, without duplicates and held-out sentences",
        "Memory does not depend on the size of the corpus.",
    )
    verb.add_argument("datasets", type=Path, help="the pair's datasets.json")
    verb.add_argument("role", choices=["parallel", "related", "mono"])
    verb.add_argument("--output", type=Path, required=True, metavar="DIR")
    verb.add_argument(
        "--held-out", type=Path, nargs="+", metavar="TEXT", help="keep these lines out"
    )
    verb.add_argument("--threads", type=int, default=1)
    verb.add_argument("--memory-mb", type=int, default=1000, help="at least 256 (default: 1000)")


def _add_encoding(verbs: Verbs) -> None:
    verb = add_verb(verbs, "subwords", _subwords, "train a subword model on a sample of clean text")
    verb.add_argument("texts", type=Path, nargs="+", metavar="TEXT")
    verb.add_argument("--output", type=Path, required=True, metavar="MODEL")
    verb.add_argument("--kind", choices=["sentencepiece", "bpe"], default="sentencepiece")
    verb.add_argument("--size", type=int, required=True, help="pieces (bpe: merges)")
    verb.add_argument("--algorithm", choices=["unigram", "bpe"], default="unigram")
    verb.add_argument("--character-coverage", type=float, default=1.0)
    verb.add_argument("--sample", type=int, default=1_000_000, help="lines at most")
    verb.add_argument("--seed", type=int, default=1)
    verb = add_verb(verbs, "vocabulary", _vocabulary, "unite subword models into one vocabulary")
    verb.add_argument("models", nargs="+", metavar="LANGUAGE=MODEL")
    verb.add_argument("--output", type=Path, required=True)
    verb = add_verb(verbs, "encode", _encode, "turn clean text into a shard of token ids")
    verb.add_argument("texts", type=Path, nargs="+", metavar="TEXT", help="one file a side")
    verb.add_argument("--languages", nargs="+", required=True, metavar="LANGUAGE")
    verb.add_argument("--vocabulary", type=Path, required=True)
    verb.add_argument("--output", type=Path, required=True, metavar="SHARD")
    verb.add_argument("--max-subwords", type=int, help="leave longer (and empty) sentences out")
    verb.add_argument("--threads", type=int, default=1)
    verb = add_verb(verbs, "decode", _decode, "print the text of a shard's first sentences")
    verb.add_argument("shard", type=Path)
    verb.add_argument("--vocabulary", type=Path, required=True)
    verb.add_argument("--count", type=int, default=10)


def _add_statistics(verbs: Verbs) -> None:
    verb = add_verb(verbs, "statistics", _statistics, "join what cleaning and encoding counted")
    verb.add_argument("--corpus", type=Path, nargs="+", required=True, metavar="JSON")
    verb.add_argument("--shards", type=Path, nargs="+", required=True, metavar="JSON")
    verb.add_argument("--output", type=Path, required=True)
    verb = add_verb(verbs, "data-table", _data_table, "all pairs' statistics beside the paper's")
    verb.add_argument("statistics", type=Path, nargs="+", metavar="JSON")
    verb.add_argument("--output", type=Path, required=True, help="the files' name without ending")
    verb.add_argument("--paper", action="store_true", help="with the paper's figures")


def _hold_out(options: argparse.Namespace) -> None:
    from metabt.data.clean import clean_held_out, sentences
    from metabt.data.sources import Source

    roles = read_json(options.datasets)["roles"]
    statistics, seen = {}, set[str]()
    for role in ("test", "dev", "metadev"):
        sources = [Source.from_json(s) for s in roles[role]["sources"]]
        outputs = [options.output / f"{role}.{side}" for side in ("source", "target")]
        # The official dev set stays whole; MetaDev, which training follows, must not know them.
        statistics[role] = clean_held_out(sources, outputs, seen if role == "metadev" else set())
        texts = sentences(outputs)
        if role == "dev":
            statistics[role]["sentences_also_in_test"] = len(texts & seen)
        seen |= texts
    for role, values in statistics.items():
        write_json(options.output / f"{role}.json", values)


def _clean(options: argparse.Namespace) -> None:
    from metabt.data.clean import clean_training, held_out_table
    from metabt.data.sources import Source

    role = read_json(options.datasets)["roles"].get(options.role)
    if role is None:
        raise UserError(f"{options.datasets}: has no set '{options.role}'")
    names = ("source", "target")[-len(role["languages"]) :]
    outputs = [options.output / f"{options.role}.{name}" for name in names]
    # The statistics come last, and go first: they never stand beside another run's text.
    (options.output / f"{options.role}.json").unlink(missing_ok=True)
    statistics = clean_training(
        [Source.from_json(s) for s in role["sources"]],
        outputs,
        held_out_table(options.held_out or []),
        threads=options.threads,
        memory_mb=options.memory_mb,
    )
    write_json(options.output / f"{options.role}.json", statistics)


def _subwords(options: argparse.Namespace) -> None:
    from metabt.data import subwords
    from metabt.data.encode import sample_lines

    lines = sample_lines(options.texts, options.sample, options.seed)
    if options.kind == "bpe":
        subwords.train_bpe(lines, options.output, size=options.size)
    else:
        subwords.train_sentencepiece(
            lines,
            options.output,
            size=options.size,
            model_type=options.algorithm,
            character_coverage=options.character_coverage,
        )


def _vocabulary(options: argparse.Namespace) -> None:
    from metabt.data.subwords import write_vocabulary

    models = {}
    for item in options.models:
        if not re.fullmatch(r"[a-z]+=.+", item):
            raise UserError(f"'{item}': expected LANGUAGE=MODEL")
        language, path = item.split("=", 1)
        models[language] = Path(path)
    write_vocabulary(models, options.output)


def _encode(options: argparse.Namespace) -> None:
    from metabt.data.encode import encode_corpus

    if len(options.texts) != len(options.languages):
        raise UserError("give one language for each text")
    statistics = encode_corpus(
        options.vocabulary,
        options.texts,
        options.languages,
        options.output,
        options.max_subwords,
        options.threads,
    )
    write_json(options.output.with_suffix(".json"), statistics)


def _decode(options: argparse.Namespace) -> None:
    from metabt.data.shards import Shard
    from metabt.data.subwords import Subwords

    shard, subwords = Shard.open(options.shard), Subwords.load(options.vocabulary)
    for index in range(min(options.count, len(shard))):
        texts = [subwords.decode(shard.sentence(side, index)) for side in range(len(shard.ids))]
        print("\t".join(texts))


def _statistics(options: argparse.Namespace) -> None:
    from metabt.data.statistics import pair_statistics

    corpus = {path.stem: path for path in options.corpus}
    shards = {path.stem: path for path in options.shards}
    if corpus.keys() != shards.keys():
        raise UserError(f"different sets: {', '.join(corpus)} and {', '.join(shards)}")
    write_json(options.output, pair_statistics(corpus, shards))


def _data_table(options: argparse.Namespace) -> None:
    from metabt.data.statistics import table_rows, write_table

    statistics = {path.parent.parent.name: read_json(path) for path in options.statistics}
    write_table(table_rows(statistics, options.paper), options.output)
