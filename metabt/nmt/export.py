"""Trained models for other software."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metabt.data.subwords import SPECIALS
from metabt.errors import UserError
from metabt.nmt.model_files import load_model
from metabt.nmt.transformer import FIRST_OUTPUT

LONGEST = 2048  # positions that the exported model knows


def to_ctranslate2(directory: Path, output: Path) -> None:
    """Write a translation model in CTranslate2's format, with its vocabulary.

    Its tokens are this project's pieces; sources need no end mark of their own.
    """
    try:
        from ctranslate2.specs import TransformerSpec
    except ImportError as error:
        raise UserError("ctranslate2 is not installed: pip install ctranslate2") from error
    if (output / "model.bin").exists():
        raise UserError(f"{output}: there is a model already")
    if output.exists() and any(output.iterdir()):
        raise UserError(f"{output}: not an empty directory")
    saved = load_model(directory)
    model, shape = saved.model, saved.model.shape
    pre_norm = shape.norm == "pre"
    spec = TransformerSpec.from_config(shape.layers, shape.heads, pre_norm=pre_norm)
    for side in (spec.encoder, spec.decoder):
        side.scale_embeddings = True
        side.position_encodings.encodings = model.embedding.positions(LONGEST)[:LONGEST].numpy()
    embedding = _array(model.embedding.weight)
    spec.encoder.embeddings[0].weight = embedding
    spec.decoder.embeddings.weight = embedding
    spec.decoder.projection.weight = embedding
    spec.decoder.projection.bias = np.where(
        np.arange(len(embedding)) < FIRST_OUTPUT, np.float32(-1e9), np.float32(0)
    )
    for to, layer in zip(spec.encoder.layer, model.encoder, strict=True):
        attention = layer.attention.function
        _linear(to.self_attention.linear[0], attention.qkv)
        _linear(to.self_attention.linear[1], attention.out)
        _norm(to.self_attention.layer_norm, layer.attention.norm)
        _feed_forward(to.ffn, layer.feed_forward)
    for to, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        attention = layer.self_attention.function
        _linear(to.self_attention.linear[0], attention.qkv)
        _linear(to.self_attention.linear[1], attention.out)
        _norm(to.self_attention.layer_norm, layer.self_attention.norm)
        attention = layer.cross_attention.function
        _linear(to.attention.linear[0], attention.query)
        _linear(to.attention.linear[1], attention.key_value)
        _linear(to.attention.linear[2], attention.out)
        _norm(to.attention.layer_norm, layer.cross_attention.norm)
        _feed_forward(to.ffn, layer.feed_forward)
    if pre_norm:
        _norm(spec.encoder.layer_norm, model.encoder_norm)
        _norm(spec.decoder.layer_norm, model.decoder_norm)
    # Its tokens are strings: a mark must not be spelt as a piece of text is.
    texts = saved.subwords.pieces[len(SPECIALS) :]
    marks = list(SPECIALS)
    while set(marks) & set(texts):
        marks = [f"<{mark}>" for mark in marks]
    spec.register_source_vocabulary([*marks, *texts])
    spec.register_target_vocabulary([*marks, *texts])
    _, begin, end, unknown = marks
    spec.config.bos_token = spec.config.decoder_start_token = begin
    spec.config.eos_token, spec.config.unk_token = end, unknown
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.encoder[0].attention.norm.eps
    spec.validate()
    spec.optimize()
    part = output.with_name(output.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        spec.save(str(part))
        part.replace(output)  # also over an empty directory
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _linear(to: Any, linear: Any) -> None:
    to.weight, to.bias = _array(linear.weight), _array(linear.bias)


def _norm(to: Any, norm: Any) -> None:
    to.gamma, to.beta = _array(norm.weight), _array(norm.bias)


def _feed_forward(to: Any, sublayer: Any) -> None:
    _linear(to.linear_0, sublayer.function.inner)
    _linear(to.linear_1, sublayer.function.out)
    _norm(to.layer_norm, sublayer.norm)
