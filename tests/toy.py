"""A toy language for tests: short sentences of letters; the other language is their reversal."""

import hashlib
import json

import numpy as np

from metabt.data.encode import encode_corpus
from metabt.data.subwords import train_bpe, write_vocabulary

LETTERS = "abcdefghijklmnop"


def sentences(count, seed, longest=8):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(list(LETTERS), rng.integers(1, longest + 1))) for _ in range(count)]


def write_toy(directory, train=600, dev=40, longest=8):
    """Vocabulary and shards: source and target, the target being the source backwards."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {"train": sentences(train, 1, longest), "dev": sentences(dev, 2, longest)}
    model, vocabulary = directory / "joint.model", directory / "vocab.json"
    train_bpe(texts["train"], model, size=len(LETTERS))
    write_vocabulary({"xx": model, "yy": model}, vocabulary)
    for name, lines in texts.items():
        source, target = directory / f"{name}.source", directory / f"{name}.target"
        source.write_text("".join(f"{line}\n" for line in lines))
        target.write_text("".join(f"{line[::-1]}\n" for line in lines))
        shard = directory / f"{name}.shard"
        encode_corpus(vocabulary, [source, target], ["xx", "yy"], shard, None, 1)
    return hashlib.sha256(vocabulary.read_bytes()).hexdigest()


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
        "transformer": {
            "layers": 1,
            "width": 16,
            "feed_forward": 32,
            "heads": 2,
            "dropout": 0.1,
            **dict(transformer),
        },
        "training": {
            "steps": 30,
            "batch": {"sentences": 32},
            "label_smoothing": 0.1,
            "validate_every": 10,
            "optimiser": {
                "name": "adam",
                "rate": 0.01,
                "schedule": "inverse_sqrt",
                "warmup": 10,
                "clip": 0,
                **dict(optimiser),
            },
            **dict(training),
        },
        "seed": seed,
    }
    path = directory / "run.json"
    path.write_text(json.dumps(run))
    return path
