"""Sockeye as a peer: its `sockeye-train` command, in this process.

Its attention has no biases. So our weights do not fit into it, and it does not decode here.
"""

import argparse
import json
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
    PEAK_RATE,
    SMOOTHING,
    TOKENS,
    WIDTH,
    Meter,
    after,
    command_line,
    lines,
    toolkit,
)

FIRST = ["<pad>", "<unk>", "<s>", "</s>"]  # Sockeye wants them in this order


def train(arguments: argparse.Namespace, meter: Meter) -> None:
    training = toolkit("sockeye.training")

    def count(_: Any, batch: Any, *__: Any) -> None:
        meter.batch(int((batch.labels["target_label"] != 0).sum()))

    after(training.EarlyStoppingTrainer, "_forward_backward", count)
    meter.watch()
    with tempfile.TemporaryDirectory() as scratch:
        vocabulary = Path(scratch) / "vocabulary.json"
        others = [piece for piece in lines(arguments.data / "vocab.txt") if piece not in FIRST]
        vocabulary.write_text(json.dumps({piece: i for i, piece in enumerate(FIRST + others)}))
        settings = {
            "source": arguments.data / "train.src",
            "target": arguments.data / "train.tgt",
            "validation-source": arguments.data / "dev.src",
            "validation-target": arguments.data / "dev.tgt",
            "source-vocab": vocabulary,
            "target-vocab": vocabulary,
            "output": Path(scratch) / "model",
            "max-seq-len": 256,
            "num-layers": LAYERS,
            "transformer-model-size": WIDTH,
            "transformer-feed-forward-num-hidden": FEED_FORWARD,
            "transformer-attention-heads": HEADS,
            "transformer-activation-type": "relu",
            "transformer-positional-embedding-type": "fixed",
            "transformer-preprocess": "",
            "transformer-postprocess": "drn",
            "transformer-dropout-prepost": DROPOUT,
            "transformer-dropout-attention": 0.0,
            "transformer-dropout-act": 0.0,
            "embed-dropout": DROPOUT,
            "weight-tying-type": "src_trg_softmax",
            "label-smoothing": SMOOTHING,
            "optimizer": "adam",
            "optimizer-betas": "0.9:0.98",
            "gradient-clipping-type": "none",
            "initial-learning-rate": PEAK_RATE * LEARNING_WARMUP**0.5,
            "learning-rate-scheduler-type": "inv-sqrt-decay",
            "learning-rate-warmup": LEARNING_WARMUP,
            "batch-type": "word",
            "batch-size": arguments.batch or TOKENS,
            "checkpoint-interval": 10**6,
            "max-updates": meter.last,
            "decode-and-evaluate": 0,
        }
        command = [f"--{name}={value}" for name, value in settings.items()]
        parser = toolkit("sockeye.arguments").ConfigArgumentParser()
        toolkit("sockeye.arguments").add_train_cli_args(parser)
        torch.set_num_threads(arguments.threads)
        flags = ["--shared-vocab", "--use-cpu", "--quiet"]
        toolkit("sockeye.train").train(parser.parse_args(command + flags))


if __name__ == "__main__":
    command_line(train)
