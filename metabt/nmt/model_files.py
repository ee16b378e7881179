"""A trained model as a directory: everything that is needed to use it, and no pickle.

model.safetensors   the weights, with a checksum
model.json          what kind of model it is, its shape, its languages
vocab/              vocab.json and the subword models
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from metabt.config import Transformer as Shape
from metabt.data.subwords import Subwords
from metabt.errors import UserError
from metabt.files import atomic_write, read_json, write_json
from metabt.nmt.transformer import LanguageModel, Transformer
from metabt.tensor_files import copy_into, read_tensors, write_tensors

KINDS = {"translation": Transformer, "language-model": LanguageModel}


@dataclass(frozen=True)
class SavedModel:
    """A model read from its directory."""

    model: Any
    kind: str
    languages: list[str]
    subwords: Subwords


def save_model(
    directory: Path,
    weights: dict[str, torch.Tensor],
    kind: str,
    shape: Shape,
    languages: list[str],
    vocabulary: Path,
) -> None:
    """Write a model's directory; model.json, without which it is none, comes last."""
    (directory / "model.json").unlink(missing_ok=True)
    names = set(read_json(vocabulary)["models"].values())
    for name in ("vocab.json", *sorted(names)):
        if Path(name).name != name:
            raise UserError(f"{vocabulary}: the subword model {name} does not lie beside it")
        with atomic_write(directory / "vocab" / name) as out:
            out.write((vocabulary.parent / name).read_bytes())
    description = {"kind": kind, "languages": languages, "transformer": shape.model_dump()}
    write_tensors(directory / "model.safetensors", weights, description)
    write_json(directory / "model.json", description)


def load_model(
    directory: Path, device: torch.device | str = "cpu", kind: str = "translation"
) -> SavedModel:
    """Read a model of a kind, ready for decoding."""
    description = read_json(directory / "model.json")
    try:
        found, languages = description["kind"], list(description["languages"])
        shape = Shape.model_validate(description["transformer"])
        if not languages:
            raise KeyError("languages")
    except (KeyError, TypeError, ValidationError) as error:
        raise UserError(f"{directory / 'model.json'}: not a model's description") from error
    if found != kind:
        raise UserError(f"{directory}: a {found} model, but a {kind} model is needed")
    subwords = Subwords.load(directory / "vocab" / "vocab.json")
    path = directory / "model.safetensors"
    tensors, expected = read_tensors(path)
    if description != expected:
        raise UserError(f"{path}: does not belong to the model.json beside it")
    model = KINDS[kind](subwords.size, shape)
    copy_into(model.state_dict(), tensors, path)
    return SavedModel(model.to(device).eval(), kind, languages, subwords)
