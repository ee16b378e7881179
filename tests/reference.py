"""The models of "Attention Is All You Need" (Vaswani et al. 2017) once more, for comparison.

Slow and plain: float64, one sentence at a time, a loop over heads and one over queries, nothing of
metabt. `p` holds a model's parameters by their names in its state_dict; `shape` tells layers, heads
and norm ("post" or "pre"). All is differentiable, so torch gives the reference's gradients, too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Parameters = Mapping[str, Tensor]


def positions(length: int, width: int) -> Tensor:
    """sin(position * f_i) in the first half of the columns, cos(position * f_i) in the second."""
    half = width // 2
    table = torch.zeros(length, width, dtype=torch.float64)
    for position in range(length):
        for i in range(half):
            frequency = 10000 ** (-i / (half - 1))
            table[position, i] = math.sin(position * frequency)
            table[position, half + i] = math.cos(position * frequency)
    return table


def embed(p: Parameters, ids: Sequence[int]) -> Tensor:
    """sqrt(D) * embedding + position."""
    matrix = p["embedding.weight"]
    width = matrix.shape[1]
    rows = torch.stack([matrix[i] for i in ids])
    return math.sqrt(width) * rows + positions(len(ids), width)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight.T + bias


def layer_norm(p: Parameters, name: str, x: Tensor) -> Tensor:
    """(x - mean) / sqrt(variance + 1e-5) * weight + bias, token by token."""
    rows = []
    for row in x:
        mean = row.sum() / len(row)
        variance = ((row - mean) ** 2).sum() / len(row)
        normal = (row - mean) / torch.sqrt(variance + 1e-5)
        rows.append(normal * p[f"{name}.weight"] + p[f"{name}.bias"])
    return torch.stack(rows)


def softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.max())
    return e / e.sum()


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool) -> Tensor:
    """Concat(head_1 ... head_H), head = softmax(q k' / sqrt(K)) v; causal: keys until its own."""
    size = q.shape[1] // heads
    outputs = []
    for h in range(heads):
        columns = slice(h * size, (h + 1) * size)
        rows = []
        for i in range(len(q)):
            seen = i + 1 if causal else len(k)
            scores = k[:seen, columns] @ q[i, columns] / math.sqrt(size)
            rows.append(softmax(scores) @ v[:seen, columns])
        outputs.append(torch.stack(rows))
    return torch.cat(outputs, dim=1)


def self_attention(p: Parameters, name: str, x: Tensor, heads: int, causal: bool) -> Tensor:
    """The matrices of queries, keys and values are stacked in this order."""
    width = x.shape[1]
    weight, bias = p[f"{name}.qkv.weight"], p[f"{name}.qkv.bias"]
    q = linear(x, weight[:width], bias[:width])
    k = linear(x, weight[width : 2 * width], bias[width : 2 * width])
    v = linear(x, weight[2 * width :], bias[2 * width :])
    mixed = attend(q, k, v, heads, causal)
    return linear(mixed, p[f"{name}.out.weight"], p[f"{name}.out.bias"])


def cross_attention(p: Parameters, name: str, x: Tensor, encoded: Tensor, heads: int) -> Tensor:
    width = x.shape[1]
    weight, bias = p[f"{name}.key_value.weight"], p[f"{name}.key_value.bias"]
    q = linear(x, p[f"{name}.query.weight"], p[f"{name}.query.bias"])
    k = linear(encoded, weight[:width], bias[:width])
    v = linear(encoded, weight[width:], bias[width:])
    mixed = attend(q, k, v, heads, causal=False)
    return linear(mixed, p[f"{name}.out.weight"], p[f"{name}.out.bias"])


def feed_forward(p: Parameters, name: str, x: Tensor) -> Tensor:
    """max(0, x W1 + b1) W2 + b2."""
    inner = linear(x, p[f"{name}.inner.weight"], p[f"{name}.inner.bias"])
    inner = torch.where(inner > 0, inner, torch.zeros_like(inner))
    return linear(inner, p[f"{name}.out.weight"], p[f"{name}.out.bias"])


def sublayer(
    p: Parameters, name: str, x: Tensor, shape: Any, function: Callable[[str, Tensor], Tensor]
) -> Tensor:
    """Post-norm: norm(x + f(x)). Pre-norm: x + f(norm(x))."""
    if shape.norm == "post":
        return layer_norm(p, f"{name}.norm", x + function(f"{name}.function", x))
    return x + function(f"{name}.function", layer_norm(p, f"{name}.norm", x))


def encoder_layer(p: Parameters, name: str, x: Tensor, shape: Any, causal: bool) -> Tensor:
    x = sublayer(
        p,
        f"{name}.attention",
        x,
        shape,
        lambda function, y: self_attention(p, function, y, shape.heads, causal),
    )
    return sublayer(
        p, f"{name}.feed_forward", x, shape, lambda function, y: feed_forward(p, function, y)
    )


def decoder_layer(p: Parameters, name: str, x: Tensor, encoded: Tensor, shape: Any) -> Tensor:
    x = sublayer(
        p,
        f"{name}.self_attention",
        x,
        shape,
        lambda function, y: self_attention(p, function, y, shape.heads, causal=True),
    )
    x = sublayer(
        p,
        f"{name}.cross_attention",
        x,
        shape,
        lambda function, y: cross_attention(p, function, y, encoded, shape.heads),
    )
    return sublayer(
        p, f"{name}.feed_forward", x, shape, lambda function, y: feed_forward(p, function, y)
    )


def encode(p: Parameters, shape: Any, source: Sequence[int]) -> Tensor:
    x = embed(p, source)
    for i in range(shape.layers):
        x = encoder_layer(p, f"encoder.{i}", x, shape, causal=False)
    return x if shape.norm == "post" else layer_norm(p, "encoder_norm", x)


def translation_states(
    p: Parameters, shape: Any, source: Sequence[int], target: Sequence[int]
) -> Tensor:
    """The decoder's last states, one for each token of the target's input."""
    encoded = encode(p, shape, source)
    x = embed(p, target)
    for i in range(shape.layers):
        x = decoder_layer(p, f"decoder.{i}", x, encoded, shape)
    return x if shape.norm == "post" else layer_norm(p, "decoder_norm", x)


def language_states(p: Parameters, shape: Any, text: Sequence[int]) -> Tensor:
    x = embed(p, text)
    for i in range(shape.layers):
        x = encoder_layer(p, f"layers.{i}", x, shape, causal=True)
    return x if shape.norm == "post" else layer_norm(p, "norm", x)


def token_losses(
    states: Tensor, embedding: Tensor, targets: Sequence[int], smoothing: float
) -> tuple[Tensor, Tensor]:
    """For each token (1 - s) * -log p(target) + s * mean over V of -log p; and -log p(target)."""
    losses, nlls = [], []
    for state, target in zip(states, targets, strict=True):
        logits = embedding @ state
        highest = logits.max()
        log_p = logits - highest - torch.log(torch.exp(logits - highest).sum())
        nll = -log_p[target]
        losses.append((1 - smoothing) * nll + smoothing * -log_p.sum() / len(log_p))
        nlls.append(nll)
    return torch.stack(losses), torch.stack(nlls)
