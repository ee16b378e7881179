"""OpenNMT-py as a peer: its `onmt_train` command, in this process.

It has pre-norm layers only, and one dropout for the residuals and the inner feed-forward layer.
So our weights do not fit into it, and it does not decode here.
"""

import argparse
import json
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
    lines,
    toolkit,
)

PADDED_TOKENS = 5150  # a batch is measured by its longest sentence on either side; 4096 are real


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")


def settings(arguments: argparse.Namespace, scratch: Path, updates: int) -> dict[str, Any]:
    vocabulary = scratch / "vocabulary.txt"
    vocabulary.write_text("\n".join(lines(arguments.data / "vocab.txt")) + "\n", encoding="utf-8")
    corpora = {
        name: {
            "path_src": str(arguments.data / f"{split}.src"),
            "path_tgt": str(arguments.data / f"{split}.tgt"),
            "transforms": [],
            "weight": 1,
        }
        for name, split in (("corpus_1", "train"), ("valid", "dev"))
    }
    return {
        "data": corpora,
        "src_vocab": str(vocabulary),
        "share_vocab": True,
        "src_vocab_size": 10**6,
        "tgt_vocab_size": 10**6,
        "save_model": str(scratch / "model"),
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "position_encoding": True,
        "enc_layers": LAYERS,
        "dec_layers": LAYERS,
        "heads": HEADS,
        "hidden_size": WIDTH,
        "word_vec_size": WIDTH,
        "transformer_ff": FEED_FORWARD,
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "dropout": [DROPOUT],
        "attention_dropout": [0.0],
        "label_smoothing": SMOOTHING,
        "optim": "adam",
        "adam_beta2": 0.98,
        "decay_method": "noam",
        "learning_rate": 1.0,
        "warmup_steps": LEARNING_WARMUP,
        "max_grad_norm": 0,
        "param_init": 0,
        "param_init_glorot": True,
        "batch_type": "tokens",
        "batch_size": arguments.batch or PADDED_TOKENS,
        "normalization": "tokens",
        "accum_count": [1],
        "bucket_size": 32768,
        "num_workers": arguments.workers,
        "train_steps": updates + 1,
        "valid_steps": 10**6,
        "save_checkpoint_steps": 10**6,
        "report_every": 10**6,
    }


def train(arguments: argparse.Namespace, meter: Meter) -> None:
    torch.set_num_threads(arguments.threads)
    loss = toolkit("onmt.utils.loss")

    def count(self: Any, batch: dict[str, torch.Tensor], *_: Any, **__: Any) -> None:
        meter.batch(int((batch["tgt"][:, 1:, 0] != self.padding_idx).sum()))

    after(loss.LossCompute, "forward", count)
    meter.watch()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "config.yaml"
        config.write_text(json.dumps(settings(arguments, Path(name), meter.last)))
        command = toolkit("onmt.bin.train")
        known, _ = command._get_parser().parse_known_args(["--config", str(config)])
        command.train(known)


if __name__ == "__main__":
    command_line(train, options=options)
