"""UNMT (Lample et al. 2018), as the paper's last comparison: both models learn, from each other's
translations, from noisy sentences that they restore, and from parallel pairs.

There, one model does both directions; here, as everywhere in this comparison, there are two. The
source language has no monolingual text of its own, so the source side of the pairs serves.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from metabt.config import Model, Optimiser

if TYPE_CHECKING:
    from torch import Tensor

    from metabt.methods.blocks.parts import Parts


class UNMT:
    class Options(Model):
        """Back-translation both ways, denoising and supervision (Lample et al. 2018)."""

        algorithm: Literal["unmt"]
        backward_optimiser: Optimiser

    reads: ClassVar = ("parallel", "mono", "backward")
    columns: ClassVar = ("backward_loss", "backward_gradient_norm")

    def __init__(self, options: Options, parts: "Parts") -> None:
        self.parts = parts
        self.theta = parts.forward()
        self.psi = parts.backward(optimiser=options.backward_optimiser)
        self.parallel = parts.pairs("parallel", beside_pseudo=True)
        self.mono, self.source_side = parts.mono(), parts.source_side()

    def step(self, number: int) -> dict[str, float] | None:
        pairs, y, x = self.parallel.next(), self.mono.next(), self.source_side.next()
        from_y = self.psi.translate(y, number)
        from_x = self.theta.translate(x, number)
        descent = self.theta.descend(
            number, pairs, from_y.reversed, self.theta.restoration(y, number)
        )
        backward = self.psi.descend(
            number, pairs.reversed, from_x.reversed, self.psi.restoration(x, number)
        )
        if descent is None or backward is None:
            return None
        columns = {
            "backward_loss": backward.sums["loss"],
            "backward_gradient_norm": backward.sums["gradient_norm"],
        }
        return self.parts.report(number, descent, from_y, columns=columns)

    def tensors(self) -> "dict[str, Tensor]":
        return self.psi.tensors("psi")
