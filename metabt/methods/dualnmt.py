"""DualNMT (He et al. 2016): the backward model is rewarded for fluent sentences from which the
forward model can tell what was translated."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from metabt.config import Model, Optimiser, Share

if TYPE_CHECKING:
    from torch import Tensor

    from metabt.methods.blocks.parts import Parts


class DualNMT:
    class Options(Model):
        """The backward model follows language model and reconstruction (He et al. 2016)."""

        algorithm: Literal["dualnmt"]
        alpha: float = Field(ge=0, le=1, description="weight of the language model")
        baseline: Share | None = Field(
            None, description="rate of the reward's moving average; none = off, as they had it"
        )
        backward_optimiser: Optimiser

    reads: ClassVar = ("parallel", "mono", "backward", "lm")
    columns: ClassVar = (
        "reward_mean",
        "reward_spread",
        "reward_baseline",
        "reward_fluency",
        "backward_gradient_norm",
    )

    def __init__(self, options: Options, parts: "Parts") -> None:
        self.parts, self.alpha = parts, options.alpha
        self.theta = parts.forward()
        self.psi = parts.backward(optimiser=options.backward_optimiser)
        self.language_model = parts.language_model()
        self.parallel, self.mono = parts.pairs("parallel", beside_pseudo=True), parts.mono()
        self.baseline = parts.moving_average(options.baseline)

    def step(self, number: int) -> dict[str, float] | None:
        drawn = self.psi.translate(self.mono.next(), number)
        # Reconstruction: theta learns to find y again, and tells how probable it found it before.
        descent = self.theta.descend(number, self.parallel.next(), drawn.reversed)
        if descent is None:
            return None
        reconstruction = -descent.nll[1]
        fluency = self.language_model.log_probability_per_token(drawn.targets)
        rewards = self.alpha * fluency + (1 - self.alpha) * reconstruction

        mean, spread = self.parts.mean_and_spread(rewards)
        baseline = self.baseline.before(mean)
        norm = self.psi.reinforce(number, drawn, rewards - baseline)
        columns = {
            "reward_mean": mean,
            "reward_spread": spread,
            "reward_baseline": baseline,
            "reward_fluency": self.parts.mean_and_spread(fluency)[0],
            "backward_gradient_norm": norm,
        }
        return self.parts.report(number, descent, drawn, rewards, columns)

    def tensors(self) -> "dict[str, Tensor]":
        return {**self.psi.tensors("psi"), "baseline": self.baseline.state}
