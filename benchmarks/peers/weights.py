"""Our weights for other toolkits; fairseq and MarianMT name their layers alike."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from measure import toolkit
from torch import Tensor

POSITIONS = 1024


def read(directory: Path, norm: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A model's shape, with the size of its vocabulary, and its weights."""
    shape = json.loads((directory / "model.json").read_text())["transformer"]
    if shape["norm"] != norm:
        raise SystemExit(f"{directory}: layers with {norm}-norm are needed")
    ours = toolkit("safetensors.torch").load_file(directory / "model.safetensors")
    return shape | {"vocabulary": len(ours["embedding.weight"])}, ours


def positions(width: int) -> Tensor:
    """Our table: sines in the first half, cosines in the second, from position 0."""
    half = width // 2
    step = math.log(10000) / (half - 1)
    frequencies = torch.exp(-step * torch.arange(half, dtype=torch.float64))
    angles = torch.arange(POSITIONS, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


def no_outputs(vocabulary: int, end: int) -> Tensor:
    """A bias of the logits that rules out what comes before the end mark: padding, begin mark."""
    return torch.where(torch.arange(vocabulary) < end, -1e9, 0.0)


def renamed(ours: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """All layers under fairseq's and MarianMT's names: the stacked projections come apart."""
    theirs: dict[str, Tensor] = {}

    def put(name: str, *, to: str, part: slice = slice(None)) -> None:
        for kind in ("weight", "bias"):
            theirs[f"{to}.{kind}"] = ours[f"{name}.{kind}"][part]

    width = ours["embedding.weight"].shape[1]
    parts = [slice(i * width, (i + 1) * width) for i in range(3)]
    for side, attention in (("encoder", "attention"), ("decoder", "self_attention")):
        for i in range(layers):
            here, there = f"{side}.{i}", f"{side}.layers.{i}"
            for part, letter in zip(parts, "qkv", strict=True):
                name = f"{here}.{attention}.function.qkv"
                put(name, to=f"{there}.self_attn.{letter}_proj", part=part)
            put(f"{here}.{attention}.function.out", to=f"{there}.self_attn.out_proj")
            put(f"{here}.{attention}.norm", to=f"{there}.self_attn_layer_norm")
            put(f"{here}.feed_forward.function.inner", to=f"{there}.fc1")
            put(f"{here}.feed_forward.function.out", to=f"{there}.fc2")
            put(f"{here}.feed_forward.norm", to=f"{there}.final_layer_norm")
    for i in range(layers):
        here, there = f"decoder.{i}.cross_attention", f"decoder.layers.{i}.encoder_attn"
        put(f"{here}.function.query", to=f"{there}.q_proj")
        for part, letter in zip(parts[:2], "kv", strict=True):
            put(f"{here}.function.key_value", to=f"{there}.{letter}_proj", part=part)
        put(f"{here}.function.out", to=f"{there}.out_proj")
        put(f"{here}.norm", to=f"{there}_layer_norm")
    return theirs
