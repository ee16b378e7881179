"""Meta Back-Translation (section 3 of the paper, and its appendix A.1).

The backward model psi is moved so that the forward model theta, after a step on what psi has
translated, is better on MetaDev.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from metabt.config import Count, Model, Optimiser, Share

if TYPE_CHECKING:
    from torch import Tensor

    from metabt.methods.blocks.parts import Parts


class MetaBT:
    class Options(Model):
        """The backward model follows the forward model's gradient on MetaDev (section 3)."""

        algorithm: Literal["metabt"]
        reward: Literal["sentence", "batch", "relative"] = Field(
            description="one number a sentence, or a batch; relative = divided by the pair's loss"
        )
        precondition: bool = Field(description="by the forward optimiser's diagonal (appendix A.1)")
        baseline: Share | None = Field(
            description="rate of the reward's moving average; none = off"
        )
        start: Count = Field(
            1, description="the step from which on the backward model moves; MLE until then"
        )
        samples: Count = Field(
            1,
            description="draws for each target; theta learns from the first, psi from all: "
            "of two or more, the mean of the others is each one's baseline",
        )
        backward_optimiser: Optimiser

        @model_validator(mode="after")
        def _batches_have_one_draw(self) -> "MetaBT.Options":
            if self.reward == "batch" and self.samples > 1:
                raise ValueError("`samples` goes with a reward for each sentence, not for a batch")
            return self

    reads: ClassVar = ("parallel", "mono", "metadev", "backward")
    columns: ClassVar = (
        "reward_mean",
        "reward_spread",
        "reward_baseline",
        "alignment",
        "metadev_loss",
        "backward_gradient_norm",
    )

    def __init__(self, options: Options, parts: "Parts") -> None:
        self.options, self.parts = options, parts
        self.theta = parts.forward()
        self.psi = parts.backward(optimiser=options.backward_optimiser)
        self.parallel, self.mono = parts.pairs("parallel", beside_pseudo=True), parts.mono()
        self.metadev = parts.metadev()
        self.baseline = parts.moving_average(options.baseline)

    def step(self, number: int) -> dict[str, float] | None:
        theta, psi = self.theta, self.psi
        # Phase 1: x^ ~ P(.|y; psi), and a step of theta on the parallel and the pseudo pairs.
        moves = number >= self.options.start
        targets, samples = self.mono.next(), self.options.samples if moves else 1
        drawn = psi.translate(targets.times(samples), number)
        first = drawn.first(len(targets.sentences))
        theta_before = theta.values()
        descent = theta.descend(number, self.parallel.next(), first.reversed)
        if descent is None or not moves:
            return self.parts.report(number, descent, first)

        # Phase 2: the gradient of J(theta_t) on MetaDev, and each pseudo pair's reward: the product
        # of this gradient with the pair's own at theta_(t-1).
        metadev_loss, gradient = theta.gradient(self.metadev.next())
        alignment = theta.alignment(theta_before, gradient)
        if self.options.precondition:
            theta.precondition_(gradient)
        rewards = theta.slopes(drawn.reversed, at=theta_before, along=gradient)
        if self.options.reward == "relative":
            rewards = rewards / theta.losses(drawn.reversed)

        mean, spread = self.parts.mean_and_spread(rewards)
        if self.options.reward == "batch":
            rewards = np.full_like(rewards, mean)
        baseline = self.baseline.before(mean)
        expected = mean_of_others(rewards, samples) if samples > 1 else baseline
        norm = psi.reinforce(number, drawn, rewards - expected)
        columns = {
            "reward_mean": mean,
            "reward_spread": spread,
            "reward_baseline": baseline,
            "alignment": alignment,
            "metadev_loss": metadev_loss,
            "backward_gradient_norm": norm,
        }
        return self.parts.report(number, descent, first, rewards, columns)

    def tensors(self) -> "dict[str, Tensor]":
        return {**self.psi.tensors("psi"), "baseline": self.baseline.state}


def mean_of_others(rewards: np.ndarray, samples: int) -> np.ndarray:
    """For each sample, the mean reward of the same target's others."""
    by_draw = rewards.reshape(samples, -1)
    return ((by_draw.sum(0) - by_draw) / (samples - 1)).ravel()
