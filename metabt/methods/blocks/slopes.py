"""How each sentence's loss changes as a model's parameters move in a direction.

This is the product of the sentence's gradient with the direction (MetaBT's reward), for all
sentences in one pass and without forming any of these gradients.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import make_dual, unpack_dual
from torch.func import functional_call
from torch.nn import functional

from metabt.data.subwords import BOS, EOS
from metabt.nmt.loss import CHUNK_BYTES
from metabt.nmt.operators import forward_mode
from metabt.nmt.ragged import Ragged
from metabt.nmt.transformer import FIRST_OUTPUT, Sides
from metabt.training.vector import ParameterVector

# Of the parameters' norm: how far to each side a difference quotient goes. Rounding asks for more,
# curvature for less; benchmarks/methods.py shows what it costs in agreement.
STEP = 1e-3


def exact(
    worker: ParameterVector, pairs: Sides, at: Tensor, along: Tensor, smoothing: float
) -> Tensor:
    """By forward-mode differentiation: (B,). Several threads may do this at once, but there is only
    one level of dual numbers in torch: the caller must have entered it."""
    names = [name for name, _ in _Losses(worker.model).named_parameters()]

    def tensors(vector: Tensor) -> dict[str, Tensor]:
        views = zip(worker.model.parameters(), worker.split(vector), strict=True)
        return dict(zip(names, (view.view_as(like) for like, view in views), strict=True))

    with forward_mode(), torch.no_grad():
        values, tangents = tensors(at), tensors(along)
        duals = {name: make_dual(values[name], tangents[name], level=0) for name in names}
        losses_B = functional_call(_Losses(worker.model), duals, (pairs, smoothing))
        slopes_B = unpack_dual(losses_B, level=0).tangent
    return slopes_B


def difference(
    worker: ParameterVector, pairs: Sides, at: Tensor, along: Tensor, smoothing: float
) -> Tensor:
    """By a central difference quotient: (B,). Two passes through the compiled loops instead of one
    through torch's operators with three times the products."""
    step = STEP * (at.norm() / along.norm()).item()
    ends_B = []
    with torch.no_grad():
        for sign in (1, -1):
            with worker.placed_at(torch.add(at, along, alpha=sign * step)):
                ends_B.append(_Losses(worker.model)(pairs, smoothing).double())
    return (ends_B[0] - ends_B[1]) / (2 * step)


class _Losses(nn.Module):
    """Each sentence's label-smoothed loss, in operators that can be differentiated forwards."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pairs: Sides, smoothing: float) -> Tensor:
        model = self.model
        sources, targets = pairs
        device = model.embedding.weight.device
        expected = Ragged.of(targets, last=EOS, device=device)
        states_TD = model(
            Ragged.of(sources, last=EOS, device=device),
            Ragged.of(targets, first=BOS, device=device),
        )
        outputs_VD = model.embedding.outputs_VD
        targets_T = expected.ids_T - FIRST_OUTPUT
        rows = max(1, CHUNK_BYTES[device.type] // (4 * len(outputs_VD)))
        parts = [
            _token_losses(part, outputs_VD, target, smoothing)
            for part, target in zip(states_TD.split(rows), targets_T.split(rows), strict=True)
        ]
        return expected.sum_by_sentence(torch.cat(parts))


def _token_losses(
    states_TD: Tensor, outputs_VD: Tensor, targets_T: Tensor, smoothing: float
) -> Tensor:
    logits_TV = functional.linear(states_TD, outputs_VD).to(outputs_VD.dtype)
    total_T = logits_TV.logsumexp(1)
    target_T = logits_TV.gather(1, targets_T[:, None])[:, 0]
    if not smoothing:
        return total_T - target_T
    return total_T - (1 - smoothing) * target_T - smoothing * logits_TV.mean(1)
