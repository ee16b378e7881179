"""How each sentence's loss changes as a model's parameters move in a direction.

This is the product of the sentence's gradient with the direction (MetaBT's reward), for all
sentences in one pass and without forming any of these gradients.
"""

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


def slopes(
    worker: ParameterVector, pairs: Sides, at: Tensor, along: Tensor, smoothing: float
) -> Tensor:
    """The derivative of each sentence's label-smoothed loss at `at` along a direction: (B,).

    By forward-mode differentiation. Several threads may do this at once, but there is only one
    level of dual numbers in torch: the caller must have entered it.
    """
    model, device = worker.model, at.device
    sources, targets = pairs
    source = Ragged.of(sources, last=EOS, device=device)
    target = Ragged.of(targets, first=BOS, device=device)
    expected = Ragged.of(targets, last=EOS, device=device)
    names = [name for name, _ in model.named_parameters()]

    def tensors(vector: Tensor) -> dict[str, Tensor]:
        views = zip(model.parameters(), worker.split(vector), strict=True)
        return dict(zip(names, (view.view_as(like) for like, view in views), strict=True))

    values, tangents = tensors(at), tensors(along)
    compiled = device.type == "cpu" and at.dtype == torch.float32
    with forward_mode(compiled), torch.no_grad():
        duals = {name: make_dual(values[name], tangents[name], level=0) for name in names}
        states = unpack_dual(functional_call(model, duals, (source, target)), level=0)
        slopes_T = _output_slopes(
            states.primal,
            states.tangent,
            values["embedding.weight"][FIRST_OUTPUT:],
            tangents["embedding.weight"][FIRST_OUTPUT:],
            expected.ids_T - FIRST_OUTPUT,
            smoothing,
        )
        return expected.sum_by_sentence(slopes_T)


def _output_slopes(
    h_TD: Tensor,
    d_h_TD: Tensor,
    outputs_VD: Tensor,
    d_outputs_VD: Tensor,
    targets_T: Tensor,
    smoothing: float,
) -> Tensor:
    """The derivative of logsumexp(z) - (1 - smoothing) z[target] - smoothing mean(z), z = h E'.

    By hand and a few logits at a time: torch would go over all of them a dozen times.
    """
    kind = outputs_VD.dtype
    rows = max(1, CHUNK_BYTES[h_TD.device.type] // (4 * len(outputs_VD)))
    result = []
    for h, d_h, target in zip(*(x.split(rows) for x in (h_TD, d_h_TD, targets_T)), strict=True):
        z = functional.linear(h, outputs_VD).to(kind)
        d_z = functional.linear(d_h, outputs_VD).to(kind)
        d_z += functional.linear(h, d_outputs_VD)
        slope = torch.linalg.vecdot(torch.softmax(z, 1), d_z)
        slope -= (1 - smoothing) * d_z.gather(1, target[:, None])[:, 0]
        result.append(slope - smoothing * d_z.mean(1) if smoothing else slope)
    return torch.cat(result)
