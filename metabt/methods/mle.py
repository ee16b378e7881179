"""MLE: back-translation by a fixed backward model (sections 2 and 5.2 of the paper)."""

from typing import TYPE_CHECKING, ClassVar, Literal

from metabt.config import Model

if TYPE_CHECKING:
    from torch import Tensor

    from metabt.methods.blocks.parts import Parts


class MLE:
    class Options(Model):
        """A fixed backward model (sections 2 and 5.2 of the paper)."""

        algorithm: Literal["mle"]
        generation: Literal["sampling", "beam", "noisy-beam"]

    reads: ClassVar = ("parallel", "mono", "backward")
    columns: ClassVar = ()

    def __init__(self, options: Options, parts: "Parts") -> None:
        self.parts = parts
        self.theta = parts.forward()
        self.psi = parts.backward(generation=options.generation)
        self.parallel, self.mono = parts.pairs("parallel", beside_pseudo=True), parts.mono()

    def step(self, number: int) -> dict[str, float] | None:
        drawn = self.psi.translate(self.mono.next(), number)
        descent = self.theta.descend(number, self.parallel.next(), drawn.reversed)
        return self.parts.report(number, descent, drawn)

    def tensors(self) -> "dict[str, Tensor]":
        return {}
