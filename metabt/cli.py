"""`metabt <verb>`: the verbs are those of the workflow's rules; each is useful by hand, too."""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from metabt import __version__
from metabt.errors import Interrupted, UserError
from metabt.files import read_json, write_json

INTERRUPTED = 75  # EX_TEMPFAIL: a training run was asked to stop, and can go on

# Verbs import what they need when they run: `metabt --help` answers at once.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb. What the user can mend is told in a sentence, without a traceback."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except UserError as error:
        print(f"metabt: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full disk, a missing permission
        print(
            f"metabt: error: {error.filename or 'i/o'}: {error.strerror or error}", file=sys.stderr
        )
        return 1
    except Interrupted:
        print(
            "metabt: asked to stop; everything is saved, the same command goes on", file=sys.stderr
        )
        return INTERRUPTED
    except KeyboardInterrupt:
        print("metabt: interrupted", file=sys.stderr)
        return 130
    return 0


# ---------------------------------------------------------------------------------------- verbs


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


def _synthesise(options: argparse.Namespace) -> None:
    from metabt.data.synthetic import synthesise

    synthesise(options.output, options.pairs, options.low_resource, options.seed)


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


def _train(options: argparse.Namespace) -> None:
    from metabt.training.pretrain import Start, pretrain

    start = Start(
        options.threads,
        options.micro_tokens,
        options.compile,
        options.device,
        60 * options.checkpoint_minutes,
    )
    run = read_json(options.run_file)
    if isinstance(run, dict) and run.get("kind") == "forward":
        from metabt.methods.blocks.task import train_forward

        train_forward(options.run_file, options.output, start)
    else:
        pretrain(options.run_file, options.output, start)


def _translate(options: argparse.Namespace) -> None:
    from metabt.config import Sampling
    from metabt.nmt.translate import Generation, translate

    generation = Generation(
        options.generation,
        options.beam,
        options.length_penalty,
        options.n_best,
        Sampling(top_k=options.top_k, temperature=options.temperature),
        options.seed,
    )
    translate(
        options.model,
        options.input,
        options.output,
        generation,
        scores=options.scores,
        batch_tokens=options.batch_tokens,
        threads=options.threads,
        device=options.device,
    )


def _export(options: argparse.Namespace) -> None:
    from metabt.nmt.export import to_ctranslate2

    to_ctranslate2(options.model, options.output)


def _score(options: argparse.Namespace) -> None:
    from metabt.evaluation.scores import score_files

    write_json(options.output, score_files(options.hypotheses, options.references))


def _summarise(options: argparse.Namespace) -> None:
    from metabt.evaluation.summary import summarise

    summarise(options.scores, options.title, options.decoding, options.output)


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


def _decode(options: argparse.Namespace) -> None:
    from metabt.data.shards import Shard
    from metabt.data.subwords import Subwords

    shard, subwords = Shard.open(options.shard), Subwords.load(options.vocabulary)
    for index in range(min(options.count, len(shard))):
        texts = [subwords.decode(shard.sentence(side, index)) for side in range(len(shard.ids))]
        print("\t".join(texts))


# --------------------------------------------------------------------------------------- parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="metabt",
        description="The steps of the MetaBT experiment, one verb each. "
        "`snakemake all` runs them in order; `metabt VERB --help` explains one.",
    )
    parser.add_argument("--version", action="version", version=f"metabt {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_config(verbs)
    _add_download(verbs)
    _add_synthesise(verbs)
    _add_corpus(verbs)
    _add_encoding(verbs)
    _add_training(verbs)
    _add_models(verbs)
    _add_statistics(verbs)
    return parser


def _verb(verbs, name: str, run, help: str, more: str = "") -> argparse.ArgumentParser:  # type: ignore[no-untyped-def]
    parser = verbs.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}. {more}")
    parser.set_defaults(run=run)
    return parser


def _add_config(verbs) -> None:  # type: ignore[no-untyped-def]
    config = verbs.add_parser("config", help="check an experiment's file, or print its schema")
    parts = config.add_subparsers(title="verbs", metavar="VERB", required=True)
    check = _verb(parts, "check", _config_check, "report everything that is wrong with a config")
    check.add_argument("config", type=Path, nargs="?", default=Path("config.yaml"))
    _verb(parts, "schema", _config_schema, "print the JSON schema, for editors")


def _add_download(verbs) -> None:  # type: ignore[no-untyped-def]
    verb = _verb(
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


def _add_synthesise(verbs) -> None:  # type: ignore[no-untyped-def]
    verb = _verb(verbs, "synthesise", _synthesise, "write text in three invented languages")
    verb.add_argument("--output", type=Path, required=True, metavar="DIR")
    verb.add_argument("--pairs", type=int, default=4000)
    verb.add_argument("--low-resource", type=int, default=1000, help="rows that have S at all")
    verb.add_argument("--seed", type=int, default=1)


def _add_corpus(verbs) -> None:  # type: ignore[no-untyped-def]
    verb = _verb(
        verbs,
        "hold-out",
        _hold_out,
        "write the test, dev and MetaDev sets of a pair",
        "They are read strictly: what cannot be trusted is refused, with file and line.",
    )
    verb.add_argument("datasets", type=Path, help="the pair's datasets.json")
    verb.add_argument("--output", type=Path, required=True, metavar="DIR")
    verb = _verb(
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


def _add_encoding(verbs) -> None:  # type: ignore[no-untyped-def]
    verb = _verb(verbs, "subwords", _subwords, "train a subword model on a sample of clean text")
    verb.add_argument("texts", type=Path, nargs="+", metavar="TEXT")
    verb.add_argument("--output", type=Path, required=True, metavar="MODEL")
    verb.add_argument("--kind", choices=["sentencepiece", "bpe"], default="sentencepiece")
    verb.add_argument("--size", type=int, required=True, help="pieces (bpe: merges)")
    verb.add_argument("--algorithm", choices=["unigram", "bpe"], default="unigram")
    verb.add_argument("--character-coverage", type=float, default=1.0)
    verb.add_argument("--sample", type=int, default=1_000_000, help="lines at most")
    verb.add_argument("--seed", type=int, default=1)
    verb = _verb(verbs, "vocabulary", _vocabulary, "unite subword models into one vocabulary")
    verb.add_argument("models", nargs="+", metavar="LANGUAGE=MODEL")
    verb.add_argument("--output", type=Path, required=True)
    verb = _verb(verbs, "encode", _encode, "turn clean text into a shard of token ids")
    verb.add_argument("texts", type=Path, nargs="+", metavar="TEXT", help="one file a side")
    verb.add_argument("--languages", nargs="+", required=True, metavar="LANGUAGE")
    verb.add_argument("--vocabulary", type=Path, required=True)
    verb.add_argument("--output", type=Path, required=True, metavar="SHARD")
    verb.add_argument("--max-subwords", type=int, help="leave longer (and empty) sentences out")
    verb.add_argument("--threads", type=int, default=1)
    verb = _verb(verbs, "decode", _decode, "print the text of a shard's first sentences")
    verb.add_argument("shard", type=Path)
    verb.add_argument("--vocabulary", type=Path, required=True)
    verb.add_argument("--count", type=int, default=10)


def _add_training(verbs) -> None:  # type: ignore[no-untyped-def]
    verb = _verb(
        verbs,
        "train",
        _train,
        "train the model that a run.json describes",
        "Goes on from the last checkpoint in the output directory, if there is one of the same "
        f"run. SIGTERM and SIGUSR1 save and stop with exit code {INTERRUPTED}. Under torchrun, "
        "several processes train one model.",
    )
    verb.add_argument("run_file", type=Path, metavar="RUN.json")
    verb.add_argument("--output", type=Path, required=True, metavar="DIR")
    _add_machine(verb)
    verb.add_argument(
        "--micro-tokens",
        type=_count,
        help="tokens of one forward and backward pass; a batch is accumulated from as many as it "
        "takes (default: 4096, on a GPU 16384). Lower it if memory runs out",
    )
    verb.add_argument("--compile", action="store_true", help="use torch.compile")
    verb.add_argument(
        "--checkpoint-minutes", type=float, default=10.0, help="at most between two (default: 10)"
    )


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _add_machine(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--threads", type=_count, help="on a CPU (default: all that there are)")
    verb.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")


def _add_models(verbs) -> None:  # type: ignore[no-untyped-def]
    verb = _verb(
        verbs,
        "translate",
        _translate,
        "translate text with a trained model",
        "One sentence a line in, one line out (or n), in the same order, as soon as it is there.",
    )
    verb.add_argument("--model", type=Path, required=True, metavar="DIR")
    verb.add_argument("--input", type=Path, help="default: standard input")
    verb.add_argument("--output", type=Path, help="default: standard output")
    verb.add_argument("--generation", choices=["beam", "sampling", "noisy-beam"], default="beam")
    verb.add_argument("--beam", type=int, default=4, help="1 is greedy search (default: 4)")
    verb.add_argument("--length-penalty", type=float, default=0.6, help="default: 0.6")
    verb.add_argument("--n-best", type=int, default=1, metavar="N", help="lines a sentence")
    verb.add_argument("--top-k", type=_count, help="sample among the k best (default: among all)")
    verb.add_argument("--temperature", type=_positive, default=1.0)
    verb.add_argument("--seed", type=int, default=1, help="of sampling and noise")
    verb.add_argument(
        "--scores",
        action="store_true",
        help="put the score, the log-probability and a tab before each line",
    )
    verb.add_argument("--batch-tokens", type=_count, default=8192, help="changes the speed only")
    _add_machine(verb)
    verb = _verb(verbs, "export", _export, "convert a trained model for other software")
    verb.add_argument("--model", type=Path, required=True, metavar="DIR")
    verb.add_argument("--to", choices=["ctranslate2"], required=True)
    verb.add_argument("--output", type=Path, required=True, metavar="DIR")
    verb = _verb(verbs, "score", _score, "BLEU and chrF of translations, with their signatures")
    verb.add_argument("hypotheses", type=Path)
    verb.add_argument("references", type=Path)
    verb.add_argument("--output", type=Path, required=True, metavar="JSON")
    verb = _verb(verbs, "summarise", _summarise, "a method's mean score over its seeds")
    verb.add_argument("scores", type=Path, nargs="+", metavar="JSON")
    verb.add_argument("--title", required=True)
    verb.add_argument("--decoding", required=True, help="how the test set was translated")
    verb.add_argument("--output", type=Path, required=True)


def _add_statistics(verbs) -> None:  # type: ignore[no-untyped-def]
    verb = _verb(verbs, "statistics", _statistics, "join what cleaning and encoding counted")
    verb.add_argument("--corpus", type=Path, nargs="+", required=True, metavar="JSON")
    verb.add_argument("--shards", type=Path, nargs="+", required=True, metavar="JSON")
    verb.add_argument("--output", type=Path, required=True)
    verb = _verb(verbs, "data-table", _data_table, "all pairs' statistics beside the paper's")
    verb.add_argument("statistics", type=Path, nargs="+", metavar="JSON")
    verb.add_argument("--output", type=Path, required=True, help="the files' name without ending")
    verb.add_argument("--paper", action="store_true", help="with the paper's figures")


if __name__ == "__main__":
    sys.exit(main())
