"""The methods that are compared: a file each, which the experiment's config names by `algorithm`.

A method is a class with its `Options`, what it `reads` besides the parallel pairs, and one `step`.
Files in this folder are found by themselves; docs/methods.md shows how to write one. What they
share is in blocks/. Nothing here imports torch, so that the workflow can ask without delay.
"""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, get_args

if TYPE_CHECKING:
    from torch import Tensor

    from metabt.methods.blocks.parts import Parts


class Method(Protocol):
    """What the trainer asks of a method."""

    Options: ClassVar[Any]
    # Sets and models of the pair: "parallel", "related", "mono", "metadev"; "backward", "lm".
    reads: ClassVar[tuple[str, ...]]
    # What `step` reports besides what all methods do (docs/methods.md): columns of metrics.csv.
    columns: ClassVar[tuple[str, ...]]

    def __init__(self, options: Any, parts: "Parts") -> None: ...

    def step(self, number: int) -> dict[str, float] | None:
        """One update of the forward model, and of whatever else learns; what `Parts.report` makes
        of it, or None if something was not finite."""

    def tensors(self) -> "dict[str, Tensor]":
        """Everything that changes besides the forward model, for checkpoints."""


def _find() -> Mapping[str, type[Method]]:
    found: dict[str, type[Method]] = {}
    for entry in pkgutil.iter_modules(__path__):
        if entry.ispkg:
            continue
        module = import_module(f"{__name__}.{entry.name}")
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__:
                options = getattr(value, "Options", None)
                if options is not None:
                    (algorithm,) = get_args(options.model_fields["algorithm"].annotation)
                    found[algorithm] = value
    return found


METHODS = _find()
