"""A toy language for tests: short sentences of letters; the other language is their reversal."""

import hashlib
import json

import numpy as np

from metabt.data.encode import encode_corpus
from metabt.data.subwords import train_bpe, write_vocabulary
from metabt.training.pretrain import Start, pretrain

LETTERS = "abcdefghijklmnop"


def sentences(count, seed, longest=8, letters=LETTERS):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(list(letters), rng.integers(1, longest + 1))) for _ in range(count)]


def write_toy(directory, train=600, dev=40, longest=8, letters=LETTERS):
    """Vocabulary and shards: source and target, the target being the source backwards."""
    directory.mkdir(parents=True, exist_ok=True)
    counts = {"train": train, "dev": dev, "metadev": dev}
    texts = {
        name: sentences(count, seed, longest, letters)
        for seed, (name, count) in enumerate(counts.items(), 1)
    }
    model, vocabulary = directory / "joint.model", directory / "vocab.json"
    train_bpe(texts["train"], model, size=len(letters))
    write_vocabulary({"xx": model, "yy": model}, vocabulary)
    for name, lines in texts.items():
        source, target = directory / f"{name}.source", directory / f"{name}.target"
        source.write_text("".join(f"{line}\n" for line in lines))
        target.write_text("".join(f"{line[::-1]}\n" for line in lines))
        shard = directory / f"{name}.shard"
        encode_corpus(vocabulary, [source, target], ["xx", "yy"], shard, None, 1)
    mono = directory / "mono.target"
    mono.write_text("".join(f"{line[::-1]}\n" for line in sentences(train, 4, longest, letters)))
    encode_corpus(vocabulary, [mono], ["yy"], directory / "mono.shard", None, 1)
    return hashlib.sha256(vocabulary.read_bytes()).hexdigest()


SHAPE = {"layers": 1, "width": 16, "feed_forward": 32, "heads": 2, "dropout": 0.1}
RATE = {"name": "adam", "rate": 0.01, "schedule": "inverse_sqrt", "warmup": 10, "clip": 0}


def toy_run(directory, *, kind="translation", transformer=(), training=(), optimiser=(), seed=1):
    """A run.json on the toy language, small and quick unless told otherwise."""
    sides = 2 if kind == "translation" else 1
    run = {
        "kind": kind,
        "languages": ["xx", "yy"][:sides],
        "sides": [0, 1][:sides],
        "train": [str(directory / "train.shard")],
        "dev": str(directory / "dev.shard"),
        "vocabulary": str(directory / "vocab.json"),
        "transformer": {**SHAPE, **dict(transformer)},
        "training": toy_training(training, optimiser),
        "seed": seed,
    }
    path = directory / "run.json"
    path.write_text(json.dumps(run))
    return path


def toy_training(training=(), optimiser=()):
    return {
        "steps": 30,
        "batch": {"sentences": 32},
        "label_smoothing": 0.1,
        "validate_every": 10,
        "optimiser": {**RATE, **dict(optimiser)},
        **dict(training),
    }


SGD = {"name": "sgd", "rate": 1.0, "schedule": "constant", "warmup": 0, "clip": 0}

METHOD_OPTIONS = {
    "nobt": {},
    "mle": {"generation": "sampling"},
    "dualnmt": {"alpha": 0.1, "baseline": 0.1, "backward_optimiser": RATE},
    "metabt": {
        "reward": "sentence",
        "precondition": True,
        "baseline": 0.1,
        "backward_optimiser": RATE,
    },
    "unmt": {"backward_optimiser": RATE},
}


def toy_forward(directory, algorithm, *, options=(), transformer=(), training=(), **others):
    """The run.json of a forward model on the toy language; its backward model (untrained unless one
    is there) and language model lie in directory/backward and directory/lm."""
    names = {"parallel": "train", "mono": "mono", "metadev": "metadev", "dev": "dev"}
    run = {
        "kind": "forward",
        "method": {"algorithm": algorithm, **METHOD_OPTIONS.get(algorithm, {}), **dict(options)},
        "languages": ["xx", "yy"],
        "sets": {name: str(directory / f"{file}.shard") for name, file in names.items()},
        "backward": str(directory / "backward"),
        "lm": str(directory / "lm"),
        "low_resource": True,
        "vocabulary": str(directory / "vocab.json"),
        "transformer": {**SHAPE, **dict(transformer)},
        "training": {**toy_training(), **dict(training)},
        "pseudo_batch": {"sentences": 16},
        "metadev_batch": {"sentences": 8},
        "sampling": {"top_k": None, "temperature": 1.0},
        "seed": 1,
        **others,
    }
    path = directory / f"{algorithm}.json"
    path.write_text(json.dumps(run))
    return path


def write_toy_models(directory):
    """The toy language with three letters; a backward model (yy to xx) and a language model, hardly
    trained. Returns the directory."""
    write_toy(directory, train=300, dev=16, longest=2, letters="abc")
    few = {"steps": 3, "batch": {"sentences": 8}}
    backward = json.loads(toy_run(directory, training=few).read_text())
    backward |= {"sides": [1, 0], "languages": ["yy", "xx"]}
    (directory / "backward.json").write_text(json.dumps(backward))
    pretrain(directory / "backward.json", directory / "backward", Start(threads=1))
    language_model = toy_run(directory, kind="language-model", training=few)
    pretrain(language_model, directory / "lm", Start(threads=1))
    return directory
