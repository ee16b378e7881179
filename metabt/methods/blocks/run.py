"""The description of one forward model's training: `run.json`, all that its result depends on."""

from typing import Any, Literal

from pydantic import Field, model_validator

from metabt.config import Batch, Language, Model, Natural, Sampling, Training, Transformer
from metabt.methods import METHODS


class ForwardRun(Model):
    """A method, what it reads, and how the forward model is trained with it."""

    kind: Literal["forward"] = "forward"
    method: Any = Field(description="the options of one of the methods")
    languages: list[Language] = Field(min_length=2, max_length=2, description="source and target")
    sets: dict[str, str] = Field(description="shards: dev, and what the method reads")
    backward: str | None = Field(None, description="the directory of the pre-trained model")
    initial: str | None = Field(
        None, description="the directory of the model that the forward model begins as"
    )
    lm: str | None = Field(None, description="the directory of the language model")
    low_resource: bool = Field(
        description="whether pseudo sources may be of the related language, so that the share of "
        "known words says something"
    )
    vocabulary: str
    transformer: Transformer
    training: Training
    pseudo_batch: Batch
    metadev_batch: Batch
    sampling: Sampling
    seed: Natural

    @model_validator(mode="before")
    @classmethod
    def _method(cls, values: Any) -> Any:
        """The options by their algorithm's own model."""
        method = values.get("method") if isinstance(values, dict) else None
        if isinstance(method, dict):
            algorithm = str(method.get("algorithm"))
            if algorithm not in METHODS:
                raise ValueError(f"method: no algorithm '{algorithm}' ({', '.join(METHODS)})")
            options = METHODS[algorithm].Options.model_validate(method)
            values = {**values, "method": options}
        return values

    @model_validator(mode="after")
    def _complete(self) -> "ForwardRun":
        self.training.batch.without(self.pseudo_batch)
        for name in METHODS[self.method.algorithm].reads:
            there = name in self.sets or getattr(self, name, None) is not None
            if not there and name != "related":
                raise ValueError(f"{self.method.algorithm} needs '{name}'")
        return self
