"""JoeyNMT as a peer: its `train` function, in this process.

JoeyNMT does not group sentences by length, and counts padding as tokens: its batches are set so
large that the tokens which are not padding come to 4096.
"""

import argparse
import logging
import tempfile
from pathlib import Path
from typing import Any

import torch
from measure import (
    DROPOUT,
    FEED_FORWARD,
    HEADS,
    LAYERS,
    LEARNING_WARMUP,
    SMOOTHING,
    WIDTH,
    Meter,
    after,
    command_line,
    toolkit,
)

PADDED_TOKENS = 10600  # of which about 4096 are real
PAD = 1  # JoeyNMT moves the unknown piece to the front of the vocabulary


def settings(data: Path, scratch: Path, updates: int, batch: int) -> dict[str, Any]:
    for split in ("train", "dev"):
        for side in ("src", "tgt"):
            (scratch / f"{split}.{side}").symlink_to((data / f"{split}.{side}").resolve())
    text: dict[str, Any] = {"max_length": 256, "level": "word", "tokenizer_type": "none"}
    text |= {"voc_file": str(data / "vocab.txt"), "lowercase": False}
    stack = {
        "type": "transformer",
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "embeddings": {"embedding_dim": WIDTH, "scale": True, "dropout": DROPOUT},
        "hidden_size": WIDTH,
        "ff_size": FEED_FORWARD,
        "dropout": DROPOUT,
        "layer_norm": "post",
        "activation": "relu",
    }
    return {
        "name": "peer",
        "model_dir": str(scratch / "model"),
        "use_cuda": False,
        "fp16": False,
        "random_seed": 1,
        "num_workers": 0,
        "data": {
            "dataset_type": "plain",
            "train": str(scratch / "train"),
            "dev": str(scratch / "dev"),
            "src": {"lang": "src", **text},
            "trg": {"lang": "tgt", **text},
            "special_symbols": {"pad_id": PAD},
        },
        "training": {
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "normalization": "tokens",
            "label_smoothing": SMOOTHING,
            "scheduling": "noam",
            "learning_rate": 0.0001,
            "learning_rate_factor": 1,
            "learning_rate_warmup": LEARNING_WARMUP,
            "batch_size": batch,
            "batch_type": "token",
            "epochs": 1000,
            "updates": updates + 1,
            "logging_freq": 10**6,
            "validation_freq": 10**6,
            "shuffle": True,
        },
        "testing": {"beam_size": 1},
        "model": {
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": stack,
            "decoder": stack,
        },
    }


def train(arguments: argparse.Namespace, meter: Meter) -> None:
    torch.set_num_threads(arguments.threads)
    training = toolkit("joeynmt.training")
    logging.disable(logging.INFO)
    after(
        training.TrainManager,
        "_train_step",
        lambda _, batch: meter.batch(int((batch.trg != PAD).sum())),
    )
    meter.watch()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "model").mkdir()
        batch = arguments.batch or PADDED_TOKENS
        config = settings(arguments.data, scratch, meter.last, batch)
        training.train(rank=0, world_size=0, cfg=config, skip_test=True)


if __name__ == "__main__":
    command_line(train)
