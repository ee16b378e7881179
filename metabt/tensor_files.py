"""Tensors and a JSON description in one safetensors file: atomic, on disk, verified when read.

Nothing here unpickles. The file's own metadata hold the description and a checksum of everything.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from metabt.errors import UserError
from metabt.files import atomic_write

VERSION = 1


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: Any) -> None:
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(description, sort_keys=True)
    # One key: several would be written in a random order.
    about = {"version": VERSION, "description": text, "xxh3": _digest(on_cpu, text)}
    data = save(on_cpu, {"metabt": json.dumps(about, sort_keys=True)})
    with atomic_write(path) as handle:
        handle.write(data)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """What `write_tensors` wrote, or a clear error."""
    if not path.exists():
        raise UserError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error})") from error
    try:
        about = json.loads(metadata["metabt"])
        version, text, expected = about["version"], str(about["description"]), about["xxh3"]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a file of tensors that metabt wrote") from error
    if version != VERSION:
        raise UserError(f"{path}: of version {version}, but this reads {VERSION}")
    if _digest(tensors, text) != expected:
        raise UserError(f"{path}: damaged (wrong checksum); delete it to start again")
    return tensors, json.loads(text)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = xxhash.xxh3_128(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def copy_into(live: Mapping[str, Tensor], read: Mapping[str, Tensor], path: Path) -> None:
    """Fill tensors in use with what was read, which must be the same set of the same shapes."""
    for name in sorted(live.keys() | read.keys()):
        if name not in live or name not in read or live[name].shape != read[name].shape:
            raise UserError(f"{path}: its tensor '{name}' is not of this model")
        live[name].copy_(read[name])
