"""No BT: parallel data only; in the multilingual setting, of both languages."""

from typing import TYPE_CHECKING, ClassVar, Literal

from metabt.config import Model

if TYPE_CHECKING:
    from torch import Tensor

    from metabt.methods.blocks.parts import Parts


class NoBT:
    class Options(Model):
        """Parallel data only."""

        algorithm: Literal["nobt"]

    reads: ClassVar = ("parallel", "related")
    columns: ClassVar = ()

    def __init__(self, options: Options, parts: "Parts") -> None:
        self.parts = parts
        self.theta = parts.forward()
        self.parallel = parts.pairs("parallel", "related")  # a whole batch of them

    def step(self, number: int) -> dict[str, float] | None:
        descent = self.theta.descend(number, self.parallel.next())
        return self.parts.report(number, descent)

    def tensors(self) -> "dict[str, Tensor]":
        return {}
