"""A model's parameters as one vector, and its gradient as another.

The paper writes theta and psi as vectors, and so do we: the optimiser, the clipping, the reduction
over processes and the checkpoint each handle one tensor instead of hundreds.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class ParameterVector:
    """Makes a model's parameters and gradients views of `values` and `grads`."""

    def __init__(self, model: nn.Module, values: Tensor | None = None) -> None:
        self.model: Any = model
        parameters = list(model.parameters())
        self.sizes = [parameter.numel() for parameter in parameters]
        if values is None:
            values = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.values = values
        self.grads = torch.zeros_like(values)
        pieces = zip(parameters, self.split(self.values), self.split(self.grads), strict=True)
        for parameter, value, grad in pieces:
            parameter.data = value.view_as(parameter)
            parameter.grad = grad.view_as(parameter)

    def split(self, vector: Tensor) -> Iterator[Tensor]:
        """Views of any vector of this size, one for each parameter."""
        return iter(vector.split(self.sizes))

    def replica(self) -> "ParameterVector":
        """The same model and values, with gradients of its own: for another thread."""
        return ParameterVector(copy.deepcopy(self.model), self.values)
