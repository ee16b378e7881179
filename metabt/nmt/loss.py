"""Cross entropy from the decoder's states, without ever holding the logits of a whole batch."""

from typing import Any

import torch
from torch import Tensor

from metabt.nmt.operators import first_derivative_only

# Bytes of logits at a time. On a CPU they should stay near the processor, on a GPU keep it busy.
CHUNK_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}


def cross_entropy(
    states_TD: Tensor,
    outputs_VD: Tensor,
    targets_T: Tensor,
    weights_T: Tensor,
    smoothing: float = 0.0,
    *,
    top_k: int | None = None,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The weighted sum of token losses (differentiable), and each token's -log p (not).

    A token's loss is (1 - smoothing) * -log p(target) + smoothing * mean over V of -log p, where p
    is the softmax of the logits divided by the temperature; with `top_k`, of the k largest (and the
    target's own). All of the gradient is known in the forward pass, chunk by chunk: what is kept
    is one gradient of the states and one of the output matrix.
    """
    if smoothing and top_k:
        raise ValueError("label smoothing needs the whole vocabulary")
    wanted = torch.is_grad_enabled()
    return _CrossEntropy.apply(
        states_TD, outputs_VD, targets_T, weights_T, smoothing, top_k, temperature, wanted
    )


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states_TD: Tensor,
        outputs_VD: Tensor,
        targets_T: Tensor,
        weights_T: Tensor,
        smoothing: float,
        top_k: int | None,
        temperature: float,
        wanted: bool,
    ) -> tuple[Tensor, Tensor]:
        device = states_TD.device.type
        kind = states_TD.dtype
        if torch.is_autocast_enabled(device):  # the products are in half precision, the rest is not
            kind = torch.get_autocast_dtype(device)
        full = outputs_VD.dtype
        tokens, vocabulary = len(states_TD), len(outputs_VD)
        rows = max(1, min(tokens, CHUNK_BYTES[device] // (4 * vocabulary)))
        scaled_TD = (states_TD / temperature if temperature != 1 else states_TD).to(kind)
        matrix_VD = outputs_VD.to(kind)
        mean_D = outputs_VD.mean(0)
        nll_T = torch.empty(tokens, dtype=full, device=states_TD.device)
        smooth_T = torch.empty_like(nll_T)
        wanted = wanted and any(ctx.needs_input_grad)
        if wanted:
            grad_TD = torch.empty(states_TD.shape, dtype=full, device=states_TD.device)
            grad_VD = torch.zeros_like(outputs_VD)
            weighted_TD = (scaled_TD * weights_T[:, None]).to(kind)
        logits_CV = torch.empty(rows, vocabulary, dtype=kind, device=states_TD.device)
        logs_CV = torch.empty(rows, vocabulary, dtype=full, device=states_TD.device)
        for begin in range(0, tokens, rows):
            part = slice(begin, min(begin + rows, tokens))
            target = targets_T[part, None]
            z = torch.mm(scaled_TD[part], matrix_VD.t(), out=logits_CV[: len(target)])
            z_target = z.gather(1, target)
            if top_k and top_k < vocabulary:
                z.masked_fill_(z < z.topk(top_k).values[:, -1:], -torch.inf)
                z.scatter_(1, target, z_target)
            log_p = torch.log_softmax(z, 1, dtype=full, out=logs_CV[: len(target)])
            log_p_target = log_p.gather(1, target)[:, 0]
            nll_T[part] = -log_p_target
            # The mean of all logits is a product with the mean row: no pass over them.
            smooth_T[part] = z_target[:, 0] - log_p_target - (scaled_TD[part].to(full) @ mean_D)
            if wanted:
                p = log_p.exp_().to(kind)
                grad_TD[part] = p @ matrix_VD
                if kind == full:
                    grad_VD.addmm_(p.t(), weighted_TD[part])
                else:
                    grad_VD += p.t() @ weighted_TD[part]
        if wanted:
            # Of p - (1 - smoothing) [target] - smoothing / V, times the matrix, the last two terms.
            grad_TD.add_(outputs_VD[targets_T], alpha=smoothing - 1).sub_(mean_D, alpha=smoothing)
            grad_TD.mul_(weights_T[:, None] / temperature)
            weighted_TD = weighted_TD.to(full)
            grad_VD.index_add_(0, targets_T, weighted_TD, alpha=smoothing - 1)
            grad_VD.sub_(weighted_TD.sum(0), alpha=smoothing / vocabulary)
            ctx.save_for_backward(grad_TD, grad_VD)
        ctx.mark_non_differentiable(nll_T)
        loss_T = nll_T.lerp(smooth_T, smoothing) if smoothing else nll_T
        return (loss_T * weights_T).sum(), nll_T

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        first_derivative_only()
        grad_TD, grad_VD = ctx.saved_tensors
        return grad_TD * grad, grad_VD * grad, None, None, None, None, None, None
