"""How each sentence's loss changes as a model's parameters move in a direction.

This is the product of the sentence's gradient with the direction (MetaBT's reward), for all
sentences in one pass and without forming any of these gradients.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
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
    model = worker.model
    names = [name for name, _ in model.named_parameters()]

    def tensors(vector: Tensor) -> dict[str, Tensor]:
        views = zip(model.parameters(), worker.split(vector), strict=True)
        return dict(zip(names, (view.view_as(like) for like, view in views), strict=True))

    compiled = at.device.type == "cpu" and at.dtype == torch.float32
    with forward_mode(compiled), torch.no_grad():
        values, tangents = tensors(at), tensors(along)
        duals = {name: make_dual(values[name], tangents[name], level=0) for name in names}
        states = unpack_dual(functional_call(model, duals, _inputs(model, pairs)), level=0)
        outputs_VD, d_outputs_VD = (
            parameters["embedding.weight"][FIRST_OUTPUT:] for parameters in (values, tangents)
        )
        # The output layer by hand: torch would go over its logits a dozen times.
        slopes = [
            _output_slopes(h, dh, outputs_VD, d_outputs_VD, targets, smoothing)
            for h, dh, targets in _chunks(model, pairs, states.primal, states.tangent)
        ]
        return _by_sentence(model, pairs, torch.cat(slopes))


def _output_slopes(
    h_TD: Tensor,
    dh_TD: Tensor,
    outputs_VD: Tensor,
    d_outputs_VD: Tensor,
    targets_T: Tensor,
    smoothing: float,
) -> Tensor:
    """The derivative of logsumexp(z) - (1 - smoothing) z[target] - smoothing mean(z); z = h E'."""
    kind = outputs_VD.dtype
    z_TV = functional.linear(h_TD, outputs_VD).to(kind)
    dz_TV = functional.linear(dh_TD, outputs_VD).to(kind)
    dz_TV += functional.linear(h_TD, d_outputs_VD)
    at_target_T = dz_TV.gather(1, targets_T[:, None])[:, 0]
    slopes_T = -(1 - smoothing) * at_target_T
    if smoothing:
        slopes_T -= smoothing * dz_TV.mean(1)
    p_TV = torch.softmax(z_TV, 1)
    return slopes_T + torch.linalg.vecdot(p_TV, dz_TV)


def difference(
    worker: ParameterVector, pairs: Sides, at: Tensor, along: Tensor, smoothing: float
) -> Tensor:
    """By a central difference quotient: (B,). Two passes through the compiled loops instead of one
    through torch's operators with three times the products."""
    model = worker.model
    step = STEP * (at.norm() / along.norm()).item()
    ends_B = []
    with torch.no_grad():
        for sign in (1, -1):
            with worker.placed_at(torch.add(at, along, alpha=sign * step)):
                states_TD = model(*_inputs(model, pairs))
                losses = [
                    _token_losses(h, model.embedding.outputs_VD, targets, smoothing)
                    for h, targets in _chunks(model, pairs, states_TD)
                ]
                ends_B.append(_by_sentence(model, pairs, torch.cat(losses).double()))
    return (ends_B[0] - ends_B[1]) / (2 * step)


def _token_losses(h_TD: Tensor, outputs_VD: Tensor, targets_T: Tensor, smoothing: float) -> Tensor:
    z_TV = functional.linear(h_TD, outputs_VD).to(outputs_VD.dtype)
    losses_T = z_TV.logsumexp(1) - (1 - smoothing) * z_TV.gather(1, targets_T[:, None])[:, 0]
    return losses_T - smoothing * z_TV.mean(1) if smoothing else losses_T


def _inputs(model: Any, pairs: Sides) -> tuple[Ragged, Ragged]:
    device = model.embedding.weight.device
    sources, targets = pairs
    return (
        Ragged.of(sources, last=EOS, device=device),
        Ragged.of(targets, first=BOS, device=device),
    )


def _chunks(model: Any, pairs: Sides, *states_TD: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Rows of decoder states and the outputs expected of them, a few logits at a time."""
    device = model.embedding.weight.device
    targets_T = Ragged.of(pairs[1], last=EOS, device=device).ids_T - FIRST_OUTPUT
    rows = max(1, CHUNK_BYTES[device.type] // (4 * model.embedding.num_embeddings))
    return zip(*(x.split(rows) for x in (*states_TD, targets_T)), strict=True)


def _by_sentence(model: Any, pairs: Sides, values_T: Tensor) -> Tensor:
    expected = Ragged.of(pairs[1], last=EOS, device=model.embedding.weight.device)
    return expected.sum_by_sentence(values_T)
