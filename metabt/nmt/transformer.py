"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), and a language model of it.

Letters at the end of a tensor's name are its axes:
  B sentences   T tokens of all sentences in one row (see ragged.py)   V vocabulary
  S, L padded source and target length   D width   F feed-forward   H heads   K width of a head
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from metabt.config import Sampling
from metabt.config import Transformer as Shape
from metabt.data.subwords import BOS, EOS
from metabt.nmt.loss import cross_entropy
from metabt.nmt.operators import Dropout, attention, drop, linear, relu, residual
from metabt.nmt.ragged import Ragged

if TYPE_CHECKING:
    from metabt.nmt.incremental import Memory, Past

NORM_EPSILON = 1e-5
FIRST_OUTPUT = EOS  # of the ids that a model can produce

Sides = Sequence[Sequence[np.ndarray]]  # sentences as ids without marks: source and target, or one
TokenWeights = float | Sequence[np.ndarray]  # one for all, or one a token and end mark


class Linear(nn.Linear):
    """A linear map of one or several matrices stacked, each with Glorot's initialisation."""

    def __init__(self, inputs: int, outputs: int, stacked: int = 1) -> None:
        self.stacked = stacked
        super().__init__(inputs, outputs * stacked)

    def reset_parameters(self) -> None:
        for matrix in self.weight.chunk(self.stacked):
            nn.init.xavier_uniform_(matrix)
        nn.init.zeros_(self.bias)

    def forward(self, x_TD: Tensor) -> Tensor:
        return linear(x_TD, self.weight, self.bias)

    def product(self, x_TD: Tensor) -> Tensor:
        """Without the bias, which the operator that follows adds."""
        return linear(x_TD, self.weight)


class SelfAttention(nn.Module):
    def __init__(self, shape: Shape, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = shape.heads, causal
        self.qkv = Linear(shape.width, shape.width, stacked=3)
        self.out = Linear(shape.width, shape.width)

    def forward(self, x_TD: Tensor, batch: Ragged) -> Tensor:
        qkv_TD = self.qkv(x_TD)
        mixed_TD = attention(qkv_TD, qkv_TD, batch, batch, heads=self.heads, causal=self.causal)
        return self.out.product(mixed_TD)

    def step(self, x_ND: Tensor, past: "Past") -> Tensor:
        """One new token for each of N hypotheses."""
        return self.out.product(past.attend(self.qkv(x_ND), self.heads))


class CrossAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query = Linear(shape.width, shape.width)
        self.key_value = Linear(shape.width, shape.width, stacked=2)
        self.out = Linear(shape.width, shape.width)

    def forward(self, x_TD: Tensor, batch: Ragged, encoded_TD: Tensor, source: Ragged) -> Tensor:
        q_TD, kv_TD = self.query(x_TD), self.key_value(encoded_TD)
        mixed_TD = attention(q_TD, kv_TD, batch, source, heads=self.heads, causal=False)
        return self.out.product(mixed_TD)

    def step(self, x_ND: Tensor, memory: "Memory") -> Tensor:
        return self.out.product(memory.attend(self.query(x_ND), self.heads))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.inner = Linear(shape.width, shape.feed_forward)
        self.out = Linear(shape.feed_forward, shape.width)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.out.product(relu(self.inner.product(x_TD), self.inner.bias))


class Sublayer(nn.Module):
    """norm(x + dropout(f(x))) as in the paper, or x + dropout(f(norm(x)))."""

    def __init__(self, function: Any, shape: Shape, dropout: Dropout) -> None:
        super().__init__()
        self.function: Any = function
        self.norm = nn.LayerNorm(shape.width, NORM_EPSILON)
        self.dropout, self.pre_norm = dropout, shape.norm == "pre"

    def forward(self, x_TD: Tensor, *others: Ragged | Tensor) -> Tensor:
        return self.around(self.function, x_TD, *others)

    def around(self, function: Callable[..., Tensor], x_TD: Tensor, *others: Any) -> Tensor:
        y_TD = function(self.norm(x_TD) if self.pre_norm else x_TD, *others)
        norm = None if self.pre_norm else self.norm
        bias_D = self.function.out.bias
        return residual(x_TD, y_TD, bias_D, self.dropout, norm, self.training)


class EncoderLayer(nn.Module):
    """Also the layer of a language model, whose attention is causal."""

    def __init__(self, shape: Shape, dropout: Dropout, causal: bool = False) -> None:
        super().__init__()
        self.attention = Sublayer(SelfAttention(shape, causal), shape, dropout)
        self.feed_forward = Sublayer(FeedForward(shape), shape, dropout)

    def forward(self, x_TD: Tensor, batch: Ragged) -> Tensor:
        return self.feed_forward(self.attention(x_TD, batch))


class DecoderLayer(nn.Module):
    def __init__(self, shape: Shape, dropout: Dropout) -> None:
        super().__init__()
        self.self_attention = Sublayer(SelfAttention(shape, causal=True), shape, dropout)
        self.cross_attention = Sublayer(CrossAttention(shape), shape, dropout)
        self.feed_forward = Sublayer(FeedForward(shape), shape, dropout)

    def forward(self, x_TD: Tensor, batch: Ragged, encoded_TD: Tensor, source: Ragged) -> Tensor:
        x_TD = self.self_attention(x_TD, batch)
        x_TD = self.cross_attention(x_TD, batch, encoded_TD, source)
        return self.feed_forward(x_TD)

    def step(self, x_ND: Tensor, past: "Past", memory: "Memory") -> Tensor:
        x_ND = self.self_attention.around(self.self_attention.function.step, x_ND, past)
        x_ND = self.cross_attention.around(self.cross_attention.function.step, x_ND, memory)
        return self.feed_forward(x_ND)


class Embedding(nn.Embedding):
    """Token plus position, with dropout; the matrix is the softmax's, too."""

    def __init__(self, vocabulary: int, shape: Shape, dropout: Dropout) -> None:
        super().__init__(vocabulary, shape.width)
        self.dropout = dropout
        self.positions_LD: Tensor
        self.register_buffer("positions_LD", torch.empty(0, shape.width), persistent=False)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    @property
    def outputs_VD(self) -> Tensor:
        """The softmax's matrix: padding and begin mark, which are no outputs, have no row."""
        return self.weight[FIRST_OUTPUT:]

    def forward(self, batch: Ragged) -> Tensor:  # type: ignore[override]
        x_TD = super().forward(batch.ids_T) * math.sqrt(self.embedding_dim)
        x_TD = x_TD + self.positions(batch.longest)[batch.positions_T]
        return drop(x_TD, self.dropout, self.training)

    def _apply(self, *arguments: Any, **options: Any) -> "Embedding":
        """Forget the positions when precision or device change: they are computed anew."""
        super()._apply(*arguments, **options)
        self.positions_LD = self.positions_LD[:0]
        return self

    def positions(self, length: int) -> Tensor:
        """sin(position * f) in the first half, cos in the second; f from 1 down to 1/10000."""
        if length > self.positions_LD.shape[0]:
            frequencies = torch.logspace(0, -4, self.embedding_dim // 2, dtype=torch.float64)
            angles = torch.arange(max(length, 256), dtype=torch.float64)[:, None] * frequencies
            table = torch.cat([angles.sin(), angles.cos()], dim=1)
            self.positions_LD = table.to(self.weight)
        return self.positions_LD


class Transformer(nn.Module):
    """A translation model. Sources end with EOS; targets begin with BOS (input) or end with EOS."""

    def __init__(self, vocabulary: int, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.dropout = Dropout(shape.dropout)
        self.embedding = Embedding(vocabulary, shape, self.dropout)
        self.encoder: Any = nn.ModuleList(
            EncoderLayer(shape, self.dropout) for _ in range(shape.layers)
        )
        self.decoder: Any = nn.ModuleList(
            DecoderLayer(shape, self.dropout) for _ in range(shape.layers)
        )
        # Where layers begin with a norm, the last one's output has none yet.
        self.encoder_norm, self.decoder_norm = final_norm(shape), final_norm(shape)

    def encode(self, source: Ragged) -> Tensor:
        x_TD = self.embedding(source)
        for layer in self.encoder:
            x_TD = layer(x_TD, source)
        return self.encoder_norm(x_TD)

    def forward(self, source: Ragged, target: Ragged) -> Tensor:
        """The decoder's last states; times `embedding.outputs_VD` they are the logits."""
        encoded_TD = self.encode(source)
        x_TD = self.embedding(target)
        for layer in self.decoder:
            x_TD = layer(x_TD, target, encoded_TD, source)
        return self.decoder_norm(x_TD)

    def loss(
        self,
        pairs: Sides,
        weights: TokenWeights,
        smoothing: float,
        sampling: Sampling | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The weighted sum of all target tokens' label-smoothed losses, and each one's -log p.

        With `sampling`, p is the distribution that was sampled from.
        """
        device = self.embedding.weight.device
        sources, targets = pairs
        states_TD = self(
            Ragged.of(sources, last=EOS, device=device),
            Ragged.of(targets, first=BOS, device=device),
        )
        return token_loss(states_TD, self.embedding, targets, weights, smoothing, sampling)


class LanguageModel(nn.Module):
    """The decoder alone: an encoder with a causal mask."""

    def __init__(self, vocabulary: int, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.dropout = Dropout(shape.dropout)
        self.embedding = Embedding(vocabulary, shape, self.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(shape, self.dropout, causal=True) for _ in range(shape.layers)
        )
        self.norm = final_norm(shape)

    def forward(self, text: Ragged) -> Tensor:
        x_TD = self.embedding(text)
        for layer in self.layers:
            x_TD = layer(x_TD, text)
        return self.norm(x_TD)

    def loss(
        self,
        texts: Sides,
        weights: TokenWeights,
        smoothing: float,
        sampling: Sampling | None = None,
    ) -> tuple[Tensor, Tensor]:
        device = self.embedding.weight.device
        (sentences,) = texts
        states_TD = self(Ragged.of(sentences, first=BOS, device=device))
        return token_loss(states_TD, self.embedding, sentences, weights, smoothing, sampling)


def token_loss(
    states_TD: Tensor,
    embedding: Embedding,
    sentences: Sequence[np.ndarray],
    weights: TokenWeights,
    smoothing: float,
    sampling: Sampling | None,
) -> tuple[Tensor, Tensor]:
    expected = Ragged.of(sentences, last=EOS, device=states_TD.device)
    if isinstance(weights, float):
        weights_T = embedding.weight.new_full(expected.ids_T.shape, weights)
    else:
        weights_T = torch.from_numpy(np.concatenate(weights)).to(embedding.weight)
    sampling = sampling or Sampling()
    return cross_entropy(
        states_TD,
        embedding.outputs_VD,
        expected.ids_T - FIRST_OUTPUT,
        weights_T,
        smoothing,
        top_k=sampling.top_k,
        temperature=sampling.temperature,
    )


def final_norm(shape: Shape) -> nn.Module:
    return nn.LayerNorm(shape.width, NORM_EPSILON) if shape.norm == "pre" else nn.Identity()
