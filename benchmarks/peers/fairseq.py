"""fairseq as a peer: its `fairseq-preprocess` and `fairseq-train` commands, in this process.

For decoding, our weights are put into its model, and its generator gets batches that its data set
makes. The bias of the logits is ours: fairseq rules out padding only after the softmax.

The toolkit is from before Python 3.11, which refuses defaults without a hash in data classes: data
classes made while it is imported get one.
"""

import argparse
import dataclasses
import logging
import tempfile
import time
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
    report_decoding,
    sentences,
    toolkit,
)
from weights import no_outputs, positions, read, renamed

SPECIAL = {"<s>", "<pad>", "</s>", "<unk>"}  # which fairseq adds by itself
PADDED_TOKENS = 5100  # a batch is measured by its longest sentence on either side; 4096 are real
EXTRA_LENGTH = 50  # of our longest output, beyond the source
BEAM = {"greedy": 1, "beam5": 5, "sampling": 1}


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


def load(directory: Path, dictionary: Any) -> Any:
    shape, ours = read(directory, norm="post")
    config = argparse.Namespace(share_all_embeddings=True)
    for side in ("encoder", "decoder"):
        setattr(config, f"{side}_layers", shape["layers"])
        setattr(config, f"{side}_embed_dim", shape["width"])
        setattr(config, f"{side}_ffn_embed_dim", shape["feed_forward"])
        setattr(config, f"{side}_attention_heads", shape["heads"])
    task = argparse.Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = toolkit("fairseq.models.transformer").TransformerModel.build_model(config, task)
    embedding = ours["embedding.weight"].clone()
    embedding[:2] = embedding[:2].flip(0)  # fairseq's first is the begin mark, ours the padding
    weights = renamed(ours, shape["layers"])
    weights |= {f"{side}.embed_tokens.weight": embedding for side in ("encoder", "decoder")}
    model.load_state_dict(weights)
    bias = no_outputs(len(embedding), dictionary.eos())
    model.decoder.output_projection.bias = torch.nn.Parameter(bias)
    table = positions(shape["width"])
    for side in (model.encoder, model.decoder):  # they count from behind the padding's number
        unused = table.new_zeros(dictionary.pad() + 1, shape["width"])
        side.embed_positions.weights = torch.cat([unused, table])
    return model


def decode(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    allow_old_data_classes()
    data, search = toolkit("fairseq.data"), toolkit("fairseq.search")
    dictionary = data.Dictionary()
    for piece in lines(arguments.data / "vocab.txt"):
        dictionary.add_symbol(piece)
    model = load(arguments.model, dictionary)
    beam = BEAM[arguments.mode]
    model.prepare_for_inference_(argparse.Namespace(generation=argparse.Namespace(beam=beam)))
    sampling = arguments.mode == "sampling"
    generator = toolkit("fairseq.sequence_generator").SequenceGenerator(
        [model],
        dictionary,
        beam_size=beam,
        max_len_a=1,
        max_len_b=EXTRA_LENGTH - 1,  # the source has an end mark
        max_len=arguments.max_tokens + 1,
        min_len=0,
        search_strategy=search.Sampling(dictionary) if sampling else None,
    )
    source = [
        torch.tensor([*map(dictionary.index, row), dictionary.eos()])
        for row in sentences(arguments.data / "test.src")
    ]
    translations: list[list[str]] = [[] for _ in source]
    began = time.perf_counter()
    # Padding stands behind: in front of a text, it would break the fast encoder on this torch.
    texts = data.LanguagePairDataset(
        source, [len(row) for row in source], dictionary, shuffle=False, left_pad_source=False
    )
    for chosen in texts.batch_by_size(texts.ordered_indices(), max_sentences=arguments.batch):
        batch = texts.collater([texts[i] for i in chosen])
        found = generator.generate([model], batch, bos_token=dictionary.bos())
        for i, (best, *_) in zip(batch["id"].tolist(), found, strict=True):
            translations[i] = [dictionary[number] for number in best["tokens"].tolist()[:-1]]
    report_decoding(arguments.output, time.perf_counter() - began, translations)


if __name__ == "__main__":
    command_line(train, decode)
