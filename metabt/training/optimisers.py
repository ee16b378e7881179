"""Adam, LAMB and gradient descent on a model's parameter vector, and the rate's schedule."""

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from metabt.config import Optimiser as Settings
from metabt.training.vector import ParameterVector


def rate_at(settings: Settings, step: int) -> float:
    """The learning rate of a step, counted from 1: linear to its peak, then constant or falling
    with the inverse square root (Vaswani et al. 2017)."""
    warm = min(1.0, step / settings.warmup) if settings.warmup else 1.0
    if settings.schedule == "inverse_sqrt" and step > settings.warmup:
        return settings.rate * math.sqrt(settings.warmup / step)
    return settings.rate * warm


class Optimiser(Protocol):
    """Moves the values of a vector by its gradients; everything it remembers is in `state`."""

    state: dict[str, Tensor]

    def step(self, rate: float) -> None: ...

    def precondition_(self, direction: Tensor) -> None:
        """Multiply a direction by the derivative of the last step with respect to its gradient,
        but for the rate: a diagonal, if the moving averages of squares are taken as they are."""


class Adam:
    """Kingma and Ba 2015: torch's, fused, on the one vector."""

    def __init__(self, vector: ParameterVector, settings: Settings) -> None:
        parameter = nn.Parameter(vector.values)
        parameter.grad = vector.grads
        betas = (settings.betas[0], settings.betas[1])
        self._adam = torch.optim.Adam([parameter], betas=betas, eps=settings.epsilon, fused=True)
        self.settings, self.state = settings, _moments(vector)
        self._adam.state[parameter] = {
            "step": self.state["steps"],
            "exp_avg": self.state["mean"],
            "exp_avg_sq": self.state["square"],
        }

    def step(self, rate: float) -> None:
        self._adam.param_groups[0]["lr"] = rate
        self._adam.step()

    def precondition_(self, direction: Tensor) -> None:
        _precondition_by_adam_(direction, self.state, self.settings)


def _moments(vector: ParameterVector) -> dict[str, Tensor]:
    return {
        "mean": torch.zeros_like(vector.values),
        "square": torch.zeros_like(vector.values),
        "steps": torch.zeros((), device=vector.values.device),
    }


def _precondition_by_adam_(direction: Tensor, state: dict[str, Tensor], settings: Settings) -> None:
    """(1 - beta1) / (1 - beta1^t) / (sqrt(square / (1 - beta2^t)) + epsilon)."""
    (beta1, beta2), steps = settings.betas, int(state["steps"])
    scale = (state["square"] / (1 - beta2**steps)).sqrt_().add_(settings.epsilon)
    direction.mul_((1 - beta1) / (1 - beta1**steps)).div_(scale)


class Lamb:
    """You et al. 2020: Adam's direction, rescaled to the norm of each parameter."""

    def __init__(self, vector: ParameterVector, settings: Settings) -> None:
        self.vector, self.settings = vector, settings
        self.state = _moments(vector)
        self._trust: list[Tensor] = []

    def step(self, rate: float) -> None:
        state, (beta1, beta2) = self.state, self.settings.betas
        state["steps"] += 1
        steps = int(state["steps"])
        state["mean"].lerp_(self.vector.grads, 1 - beta1)
        state["square"].mul_(beta2).addcmul_(self.vector.grads, self.vector.grads, value=1 - beta2)
        scale = (state["square"] / (1 - beta2**steps)).sqrt_().add_(self.settings.epsilon)
        direction = state["mean"] / (1 - beta1**steps) / scale
        values = list(self.vector.split(self.vector.values))
        directions = list(self.vector.split(direction))
        self._trust = []
        for value, towards in zip(values, directions, strict=True):
            norm, length = value.norm(), towards.norm()
            # A parameter that is zero (a bias at the start) has no scale of its own.
            trust = torch.where((norm > 0) & (length > 0), norm / length, torch.ones_like(norm))
            value.sub_(towards * trust * rate)
            self._trust.append(trust)

    def precondition_(self, direction: Tensor) -> None:
        """The norms, too, are taken as they are."""
        _precondition_by_adam_(direction, self.state, self.settings)
        for part, trust in zip(self.vector.split(direction), self._trust, strict=True):
            part.mul_(trust)


class GradientDescent:
    def __init__(self, vector: ParameterVector, settings: Settings) -> None:
        self.vector = vector
        self.state: dict[str, Tensor] = {}

    def step(self, rate: float) -> None:
        self.vector.values.sub_(self.vector.grads, alpha=rate)

    def precondition_(self, direction: Tensor) -> None:
        """The step is the gradient."""


OPTIMISERS: dict[str, type[Adam] | type[Lamb] | type[GradientDescent]] = {
    "adam": Adam,
    "lamb": Lamb,
    "sgd": GradientDescent,
}


def optimiser(vector: ParameterVector, settings: Settings) -> Optimiser:
    return OPTIMISERS[settings.name](vector, settings)


def clip(vector: ParameterVector, largest: float) -> Tensor:
    """Scale the gradient down to a norm of at most `largest` (0: no limit); returns its norm."""
    norm = vector.grads.norm()
    if largest:
        vector.grads.mul_((largest / (norm + 1e-6)).clamp(max=1.0))
    return norm
