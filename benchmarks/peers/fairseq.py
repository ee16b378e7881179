"""fairseq as a peer: its `fairseq-preprocess` and `fairseq-train` commands, in this process.

The toolkit is from before Python 3.11, which refuses defaults without a hash in data classes: data
classes made while it is imported get one.
"""

import argparse
import dataclasses
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
    PEAK_RATE,
    SMOOTHING,
    WIDTH,
    Meter,
    after,
    command_line,
    lines,
    toolkit,
)

SPECIAL = {"<s>", "<pad>", "</s>", "<unk>"}  # which fairseq adds by itself
PADDED_TOKENS = 5100  # a batch is measured by its longest sentence on either side; 4096 are real


def allow_old_data_classes() -> None:
    plain = dataclasses.dataclass

    def hashable(kind: type | None = None, /, **options: Any) -> Any:
        if kind is None:
            return lambda kind: hashable(kind, **options)
        if "__hash__" not in vars(kind):
            options.setdefault("unsafe_hash", True)
        return plain(kind, **options)

    dataclasses.dataclass = hashable


def preprocess(data: Path, scratch: Path) -> Path:
    dictionary, binary = scratch / "dictionary.txt", scratch / "binary"
    pieces = [piece for piece in lines(data / "vocab.txt") if piece not in SPECIAL]
    dictionary.write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
    parser = toolkit("fairseq.options").get_preprocessing_parser()
    command = ["--source-lang=src", "--target-lang=tgt", "--joined-dictionary"]
    command += [f"--srcdict={dictionary}", f"--destdir={binary}"]
    command += [f"--trainpref={data}/train", f"--validpref={data}/dev"]
    toolkit("fairseq_cli.preprocess").main(parser.parse_args(command))
    return binary


def train(arguments: argparse.Namespace, meter: Meter) -> None:
    torch.set_num_threads(arguments.threads)
    allow_old_data_classes()
    options, task = toolkit("fairseq.options"), toolkit("fairseq.tasks.translation")
    logging.disable(logging.INFO)

    def count(_: Any, sample: dict[str, Any], *__: Any, **___: Any) -> None:
        meter.batch(sample["ntokens"])

    after(task.TranslationTask, "train_step", count)
    with tempfile.TemporaryDirectory() as name:
        binary = preprocess(arguments.data, Path(name))
        settings = {
            "arch": "transformer",
            "encoder-layers": LAYERS,
            "decoder-layers": LAYERS,
            "encoder-embed-dim": WIDTH,
            "decoder-embed-dim": WIDTH,
            "encoder-ffn-embed-dim": FEED_FORWARD,
            "decoder-ffn-embed-dim": FEED_FORWARD,
            "encoder-attention-heads": HEADS,
            "decoder-attention-heads": HEADS,
            "dropout": DROPOUT,
            "attention-dropout": 0.0,
            "activation-dropout": 0.0,
            "criterion": "label_smoothed_cross_entropy",
            "label-smoothing": SMOOTHING,
            "optimizer": "adam",
            "adam-betas": "(0.9, 0.98)",
            "lr": PEAK_RATE,
            "lr-scheduler": "inverse_sqrt",
            "warmup-updates": LEARNING_WARMUP,
            "clip-norm": 0.0,
            "max-tokens": arguments.batch or PADDED_TOKENS,
            "max-update": meter.last + 1,
            "num-workers": 0,
            "log-format": "none",
            "save-dir": Path(name) / "model",
        }
        command = [str(binary), *(f"--{key}={value}" for key, value in settings.items())]
        command += ["--share-all-embeddings", "--cpu", "--no-save", "--disable-validation"]
        parsed = options.parse_args_and_arch(options.get_training_parser(), input_args=command)
        convert = toolkit("fairseq.dataclass.utils").convert_namespace_to_omegaconf
        meter.watch()
        toolkit("fairseq_cli.train").main(convert(parsed))


if __name__ == "__main__":
    command_line(train)
