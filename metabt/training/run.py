"""The description of one training run: `run.json`, all that its result depends on."""

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError

from metabt.config import Language, Model, Natural, Training, Transformer
from metabt.errors import UserError
from metabt.files import read_json


class Run(Model):
    """A model trained on pairs (source to target), or on the sentences of one language."""

    kind: Literal["translation", "language-model"]
    languages: Annotated[list[Language], Field(min_length=1)] = Field(
        description="of the sides: source and target, or one"
    )
    sides: Annotated[list[Natural], Field(min_length=1, max_length=2)] = Field(
        description="which sides of the shards these are: [1, 0] trains a backward model"
    )
    train: Annotated[list[str], Field(min_length=1)] = Field(description="shards")
    dev: str = Field(description="a shard")
    vocabulary: str
    transformer: Transformer
    training: Training
    seed: Natural


Description = TypeVar("Description", bound=Model)


def read_description(path: Path, kind: type[Description]) -> Description:
    """A run.json of some kind, or what is wrong with it."""
    try:
        return kind.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{path}: {where}: {message}" if where else f"{path}: {message}") from error


def read_run(path: Path) -> Run:
    run = read_description(path, Run)
    sides = 2 if run.kind == "translation" else 1
    if len(run.sides) != sides or len(run.languages) != sides:
        raise UserError(f"{path}: a {run.kind} has {sides} sides and languages")
    return run
