"""The steps between matrix products, each in the form that suits the device.

On CPUs in float32 they are compiled loops without padding (kernels.py). Elsewhere they are torch's,
with its fused attention. Inside `forward_mode()` attention is written out, because forward-mode
derivatives know neither compiled loops nor fused kernels.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import make_dual, unpack_dual
from torch.nn import functional

from metabt.nmt import kernels
from metabt.nmt.ragged import Ragged

_forward_mode: ContextVar[str | None] = ContextVar("forward_mode", default=None)


@contextmanager
def forward_mode(compiled: bool = False) -> Iterator[None]:
    """Use operators that have forward-mode derivatives: torch's, or compiled ones for float32 on a
    CPU, which know the dual numbers of level 0 only (no torch.func) and drop nothing."""
    token = _forward_mode.set("compiled" if compiled else "torch")
    try:
        yield
    finally:
        _forward_mode.reset(token)


def has_kernels(x: Tensor) -> bool:
    """Is this where the compiled loops are for?"""
    if x.device.type != "cpu" or x.dtype != torch.float32 or torch.compiler.is_compiling():
        return False
    return _forward_mode.get() is None


def _split(*duals: Tensor) -> list[np.ndarray]:
    """The values of dual numbers, then their tangents (zeros where there are none), as arrays."""
    pairs = [unpack_dual(x, level=0) for x in duals]
    values = [pair.primal.contiguous() for pair in pairs]
    tangents = [
        torch.zeros_like(value) if pair.tangent is None else pair.tangent.contiguous()
        for value, pair in zip(values, pairs, strict=True)
    ]
    return [x.detach().numpy() for x in (*values, *tangents)]


def _join(value: np.ndarray, tangent: np.ndarray) -> Tensor:
    return make_dual(torch.from_numpy(value), torch.from_numpy(tangent), level=0)


def first_derivative_only() -> None:
    """Refuse to be differentiated twice, which would give wrong numbers without a word."""
    if torch.is_grad_enabled():
        raise RuntimeError("this operator has first derivatives only (create_graph=False)")


class Dropout:
    """A model's dropout: its rate, and the seed that decides what the next pass drops.

    Compiled operators take the seed and the number of the call, so threads do not disturb each
    other; torch's take its own generator, which the trainer seeds at every step.
    """

    def __init__(self, rate: float) -> None:
        self.rate, self.calls = rate, 0
        self.seed: tuple[int, ...] = (0,)

    def restart(self, seed: tuple[int, ...]) -> None:
        self.seed, self.calls = seed, 0

    def next_seed(self) -> tuple[np.uint32, np.uint32]:
        self.calls += 1
        words = np.random.SeedSequence([*self.seed, self.calls]).generate_state(2)
        return words[0], words[1]


# --- matrix products ------------------------------------------------------------------------------

_packed: ContextVar[dict[Tensor, Tensor]] = ContextVar("packed", default={})  # noqa: B039


class Packed:
    """Weights in the order in which oneDNN reads them, for as long as they do not change.

    `with packed:` has `linear` use them. Many products with the same weights are a tenth to a third
    faster so, and a row's result does not depend on how many rows there are. No derivatives.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._weights = {
            weight: torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
            for weight in weights
            if has_kernels(weight) and torch.backends.mkldnn.is_available()
        }

    def __enter__(self) -> None:
        self._token = _packed.set(self._weights)

    def __exit__(self, *_: object) -> None:
        _packed.reset(self._token)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if torch.compiler.is_compiling() or (packed := _packed.get().get(weight)) is None:
        return functional.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


# --- attention ------------------------------------------------------------------------------------


def attention(
    q_TD: Tensor, kv_TD: Tensor, queries: Ragged, memory: Ragged, *, heads: int, causal: bool
) -> Tensor:
    """softmax(q k' / sqrt(K)) v for each sentence and head.

    The columns of `kv_TD` end with keys and values; the first D columns of `q_TD` are the queries.
    So self-attention gives the same (T, 3D) twice.
    """
    width = kv_TD.shape[1] // 3 if q_TD is kv_TD else q_TD.shape[1]
    if has_kernels(q_TD):
        return _Attention.apply(q_TD, kv_TD, queries, memory, heads, width, causal)
    if _forward_mode.get() == "compiled":
        q, kv, d_q, d_kv = _split(q_TD, kv_TD)
        k0 = kv.shape[1] - 2 * width
        shape = (k0, k0 + width, queries.ends, memory.ends, heads, width, causal)
        result = np.empty((2, len(q), width), np.float32)
        kernels.attention_tangent(q, kv, d_q, d_kv, *shape, result[0], result[1])
        return _join(result[0], result[1])
    k_TD, v_TD = kv_TD[:, -2 * width : -width], kv_TD[:, -width:]
    q, k, v = (
        batch.pad(x_TD).unflatten(2, (heads, -1)).transpose(1, 2)
        for batch, x_TD in ((queries, q_TD[:, :width]), (memory, k_TD), (memory, v_TD))
    )
    # A token never looks at the padding after it, so a causal mask is enough.
    mask = None if causal or memory.full else memory.mask_BL[:, None, None, :]
    if _forward_mode.get() == "torch":
        scores = (q @ k.transpose(2, 3)) / math.sqrt(q.shape[3])
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        out = scores.softmax(-1) @ v
    else:
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    return queries.unpad(out.transpose(1, 2).flatten(2))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_TD: Tensor,
        kv_TD: Tensor,
        queries: Ragged,
        memory: Ragged,
        heads: int,
        width: int,
        causal: bool,
    ) -> Tensor:
        q_TD, kv_TD = q_TD.contiguous(), kv_TD.contiguous()
        k0 = kv_TD.shape[1] - 2 * width
        shape = (k0, k0 + width, queries.ends, memory.ends, heads, width, causal)
        out_TD = q_TD.new_empty(q_TD.shape[0], width)
        size = (
            int(
                (
                    (queries.lengths * (queries.lengths + 1) // 2)
                    if causal
                    else queries.lengths * memory.lengths
                ).sum()
            )
            * heads
        )
        weights = np.empty(size, np.float32)
        q, kv, out = q_TD.detach().numpy(), kv_TD.detach().numpy(), out_TD.numpy()
        kernels.attention_forward(q, kv, *shape, out, weights)
        ctx.save_for_backward(q_TD, kv_TD)
        ctx.shape, ctx.weights, ctx.same = shape, weights, q_TD is kv_TD
        return out_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        first_derivative_only()
        q_TD, kv_TD = ctx.saved_tensors
        grad_q = torch.zeros_like(q_TD)
        grad_kv = grad_q if ctx.same else torch.zeros_like(kv_TD)
        kernels.attention_backward(
            grad_TD.contiguous().numpy(),
            q_TD.detach().numpy(),
            kv_TD.detach().numpy(),
            *ctx.shape,
            ctx.weights,
            grad_q.numpy(),
            grad_kv.numpy(),
        )
        return grad_q, None if ctx.same else grad_kv, None, None, None, None, None


# --- relu(x + bias) -------------------------------------------------------------------------------


def relu(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    """relu(x + bias); x is overwritten."""
    if has_kernels(x_TF):
        return _Relu.apply(x_TF, bias_F)
    if _forward_mode.get() == "compiled":
        x, bias, d_x, d_bias = _split(x_TF, bias_F)
        kernels.relu_tangent(x, bias, d_x, d_bias)
        return _join(x, d_x)
    return (x_TF + bias_F).relu()


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, bias_F: Tensor) -> Tensor:
        kernels.relu_forward(x_TF.detach().numpy(), bias_F.detach().numpy())
        ctx.mark_dirty(x_TF)
        ctx.save_for_backward(x_TF)
        return x_TF

    @staticmethod
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor, Tensor]:
        first_derivative_only()
        (out_TF,) = ctx.saved_tensors
        grad_bias_F = out_TF.new_zeros(out_TF.shape[1])
        # Overwritten: it is a matrix product's fresh result, which nobody else reads.
        grad_TF = grad_TF.contiguous()
        kernels.relu_backward(grad_TF.numpy(), out_TF.detach().numpy(), grad_bias_F.numpy())
        return grad_TF, grad_bias_F


# --- norm(x + dropout(y + bias)) ------------------------------------------------------------------


def residual(
    x_TD: Tensor,
    y_TD: Tensor,
    bias_D: Tensor,
    dropout: Dropout,
    norm: nn.LayerNorm | None,
    training: bool,
) -> Tensor:
    """norm(x + dropout(y + bias)), or without norm; y, a product's result, is overwritten."""
    rate = dropout.rate if training else 0.0
    if has_kernels(x_TD):
        seed = dropout.next_seed() if rate else (np.uint32(0), np.uint32(0))
        drop = (np.uint32(round(rate * 2**32)), np.float32(1 / (1 - rate)), *seed)
        if not torch.is_grad_enabled():
            return _residual_in_place(x_TD, y_TD, bias_D, drop, norm)
        x_TD = _Residual.apply(x_TD, y_TD, bias_D, drop)
        return x_TD if norm is None else _Norm.apply(x_TD, norm.weight, norm.bias, norm.eps)
    x_TD = x_TD + functional.dropout(y_TD + bias_D, rate, training)
    if norm is not None and _forward_mode.get() == "compiled":
        x, weight, bias, d_x, d_weight, d_bias = _split(x_TD, norm.weight, norm.bias)
        kernels.norm_tangent(x, weight, bias, norm.eps, d_x, d_weight, d_bias)
        return _join(x, d_x)
    return x_TD if norm is None else norm(x_TD)


def _residual_in_place(
    x_TD: Tensor, y_TD: Tensor, bias_D: Tensor, drop: tuple[Any, ...], norm: nn.LayerNorm | None
) -> Tensor:
    """Where nothing is kept for a backward pass: everything happens in y."""
    y = y_TD.numpy()
    kernels.residual_forward(x_TD.contiguous().numpy(), y, bias_D.detach().numpy(), *drop)
    if norm is not None:
        weight, bias = norm.weight.detach().numpy(), norm.bias.detach().numpy()
        moments = np.empty((2, len(y)), np.float32)
        kernels.norm_forward(y, weight, bias, norm.eps, y, moments[0], moments[1])
    return y_TD


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, y_TD: Tensor, bias_D: Tensor, drop: tuple[Any, ...]
    ) -> Tensor:
        x, y = x_TD.detach().contiguous().numpy(), y_TD.detach().numpy()
        kernels.residual_forward(x, y, bias_D.detach().numpy(), *drop)
        ctx.mark_dirty(y_TD)
        ctx.drop = drop
        return y_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        first_derivative_only()
        grad_TD = grad_TD.contiguous()
        grad_y_TD = torch.empty_like(grad_TD)
        grad_bias_D = grad_TD.new_zeros(grad_TD.shape[1])
        kernels.residual_backward(
            grad_TD.numpy(), *ctx.drop, grad_y_TD.numpy(), grad_bias_D.numpy()
        )
        return grad_TD, grad_y_TD, grad_bias_D, None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float) -> Tensor:
        out_TD = torch.empty_like(x_TD)
        mean, rstd = np.empty(len(x_TD), np.float32), np.empty(len(x_TD), np.float32)
        arrays = (a.detach().numpy() for a in (x_TD, weight_D, bias_D))
        kernels.norm_forward(*arrays, epsilon, out_TD.numpy(), mean, rstd)
        ctx.save_for_backward(x_TD, weight_D)
        ctx.moments = mean, rstd
        return out_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        first_derivative_only()
        x_TD, weight_D = ctx.saved_tensors
        grad_x_TD = torch.empty_like(x_TD)
        grad_weight_D, grad_bias_D = torch.zeros_like(weight_D), torch.zeros_like(weight_D)
        kernels.norm_backward(
            grad_TD.contiguous().numpy(),
            x_TD.detach().numpy(),
            weight_D.detach().numpy(),
            *ctx.moments,
            grad_x_TD.numpy(),
            grad_weight_D.numpy(),
            grad_bias_D.numpy(),
        )
        return grad_x_TD, grad_weight_D, grad_bias_D, None


def drop(x_TD: Tensor, dropout: Dropout, training: bool) -> Tensor:
    """Dropout alone; x is overwritten."""
    rate = dropout.rate if training else 0.0
    if has_kernels(x_TD) and rate:
        zero = x_TD.new_zeros(())
        return residual(
            zero.expand_as(x_TD), x_TD, zero.expand(x_TD.shape[1]), dropout, None, training
        )
    return functional.dropout(x_TD, rate, training)
