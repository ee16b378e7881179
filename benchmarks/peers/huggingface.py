"""Hugging Face transformers as a peer: MarianMT, trained by Seq2SeqTrainer.

The trainer has no batches of a number of tokens: it gets as many sentences a batch as have 4096
target tokens on average, grouped by length. For decoding, our weights are put into the model.
"""

import argparse
import tempfile
import time
from collections.abc import Iterable
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
    command_line,
    report_decoding,
    sentences,
    toolkit,
    vocabulary,
)
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from weights import POSITIONS, no_outputs, positions, read, renamed

PAD, BEGIN, END, UNKNOWN = range(4)  # as numbers, in vocab.txt
IGNORED = -100  # the label that the trainer's loss leaves out
SEARCH: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1, "do_sample": False},
    "beam5": {"num_beams": 5, "do_sample": False, "length_penalty": 1.0},
    "sampling": {"num_beams": 1, "do_sample": True, "top_k": 0, "top_p": 1.0},
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")


def build(shape: dict[str, Any], attention: str) -> Any:
    marian = toolkit("transformers.models.marian")
    layers, feed_forward, heads = shape["layers"], shape["feed_forward"], shape["heads"]
    config = marian.MarianConfig(
        vocab_size=shape["vocabulary"],
        d_model=shape["width"],
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_ffn_dim=feed_forward,
        decoder_ffn_dim=feed_forward,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        dropout=shape["dropout"],
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=POSITIONS,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=END,
        forced_eos_token_id=None,
        decoder_start_token_id=BEGIN,
        attn_implementation=attention,
    )
    return marian.MarianMTModel(config)


def numbers(path: Path, pieces: dict[str, int]) -> list[list[int]]:
    return [[*(pieces.get(piece, UNKNOWN) for piece in row), END] for row in sentences(path)]


def pad(rows: Iterable[list[int]], filler: int = PAD) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], True, filler)


def collate(pairs: list[dict[str, Any]]) -> dict[str, Tensor]:
    source = pad(pair["input_ids"] for pair in pairs)
    return {
        "input_ids": source,
        "attention_mask": (source != PAD).long(),
        "decoder_input_ids": pad([BEGIN, *pair["labels"][:-1]] for pair in pairs),
        "labels": pad((pair["labels"] for pair in pairs), IGNORED),
    }


def train(arguments: argparse.Namespace, meter: Meter) -> None:
    torch.set_num_threads(arguments.threads)
    transformers = toolkit("transformers")
    pieces = vocabulary(arguments.data)
    source, target = (numbers(arguments.data / f"train.{side}", pieces) for side in ("src", "tgt"))
    pairs = [
        {"input_ids": x, "labels": y, "length": len(y)} for x, y in zip(source, target, strict=True)
    ]
    shape = {"vocabulary": len(pieces), "width": WIDTH, "layers": LAYERS, "dropout": DROPOUT}
    model = build(shape | {"feed_forward": FEED_FORWARD, "heads": HEADS}, arguments.attention)

    class Trainer(transformers.Seq2SeqTrainer):  # type: ignore[name-defined]
        def compute_loss(self, model: Any, inputs: dict[str, Tensor], **named: Any) -> Any:
            meter.batch(int((inputs["labels"] != IGNORED).sum()))
            return super().compute_loss(model, inputs, **named)

    meter.watch()
    average = sum(map(len, target)) / len(target)
    with tempfile.TemporaryDirectory() as scratch:
        settings = transformers.Seq2SeqTrainingArguments(
            output_dir=scratch,
            use_cpu=True,
            max_steps=meter.last,
            per_device_train_batch_size=arguments.batch or round(TOKENS / average),
            train_sampling_strategy="group_by_length",
            length_column_name="length",
            remove_unused_columns=False,
            label_smoothing_factor=SMOOTHING,
            optim="adamw_torch",
            adam_beta2=0.98,
            learning_rate=PEAK_RATE,
            lr_scheduler_type="inverse_sqrt",
            warmup_steps=LEARNING_WARMUP,
            max_grad_norm=0.0,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=100,
            dataloader_num_workers=0,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model,
            args=settings,
            train_dataset=pairs,
            data_collator=collate,
        )
        trainer.train()


def convert(ours: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    theirs, embedding = renamed(ours, layers), ours["embedding.weight"]
    theirs["shared.weight"] = embedding
    for side in ("encoder", "decoder"):
        theirs[f"{side}.embed_tokens.weight"] = embedding
        theirs[f"{side}.embed_positions.weight"] = positions(embedding.shape[1])
    named = {f"model.{name}": value for name, value in theirs.items()}
    bias = no_outputs(len(embedding), END)[None]
    return named | {"lm_head.weight": embedding, "final_logits_bias": bias}


def load(directory: Path, attention: str) -> Any:
    shape, ours = read(directory, norm="post")
    model = build(shape, attention)
    model.load_state_dict(convert(ours, shape["layers"]))
    return model.eval()


def decode(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    model = load(arguments.model, arguments.attention)
    pieces = vocabulary(arguments.data)
    names = list(pieces)
    source = numbers(arguments.data / "test.src", pieces)
    translations: list[list[str]] = [[] for _ in source]
    began = time.perf_counter()
    order = sorted(range(len(source)), key=lambda i: len(source[i]))
    with torch.inference_mode():
        for start in range(0, len(order), arguments.batch):
            chosen = order[start : start + arguments.batch]
            batch = pad(source[i] for i in chosen)
            generated = model.generate(
                input_ids=batch,
                attention_mask=(batch != PAD).long(),
                max_new_tokens=arguments.max_tokens,
                **SEARCH[arguments.mode],
            )
            for i, row in zip(chosen, generated.tolist(), strict=True):
                end = row.index(END) if END in row else len(row)
                translations[i] = [names[number] for number in row[1:end]]
    report_decoding(arguments.output, time.perf_counter() - began, translations)


if __name__ == "__main__":
    command_line(train, decode, options)
