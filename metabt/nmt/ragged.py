"""Sentences of different lengths without padding.

A batch is one long row of tokens (T) and the length of each sentence (B). Everything that works on
single tokens (projections, feed-forward, norms, the softmax) sees no padding at all; only attention
needs a rectangle (B, L), and these functions go there and back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """Token ids of a batch, sentence after sentence."""

    ids_T: Tensor
    lengths: np.ndarray

    @classmethod
    def of(
        cls,
        sentences: Sequence[np.ndarray],
        first: int | None = None,
        last: int | None = None,
        device: torch.device | str = "cpu",
    ) -> "Ragged":
        """Join sentences, each between a first and a last mark where these are given."""
        marks = (first is not None) + (last is not None)
        lengths = np.fromiter((len(s) + marks for s in sentences), np.int64, len(sentences))
        ids = np.empty(int(lengths.sum()), np.int64)
        at = 0
        for sentence, length in zip(sentences, lengths.tolist(), strict=True):
            begin = at
            if first is not None:
                ids[begin] = first
                begin += 1
            ids[begin : begin + len(sentence)] = sentence
            at += length
            if last is not None:
                ids[at - 1] = last
        return cls(torch.from_numpy(ids).to(device, non_blocking=True), lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.max(initial=0))

    @cached_property
    def lengths_B(self) -> Tensor:
        return torch.from_numpy(self.lengths).to(self.ids_T.device)

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each sentence ends in the row."""
        return self.lengths.cumsum()

    @cached_property
    def full(self) -> bool:
        """Are all sentences equally long, the row therefore a rectangle already?"""
        return len(self) * self.longest == self.ids_T.shape[0]

    @cached_property
    def mask_BL(self) -> Tensor:
        """True where there is a token."""
        return torch.arange(self.longest, device=self.ids_T.device) < self.lengths_B[:, None]

    @cached_property
    def cells_T(self) -> Tensor:
        """Each token's cell in the rectangle (counted row by row)."""
        return self.mask_BL.view(-1).nonzero().squeeze(1)

    @cached_property
    def tokens_R(self) -> Tensor:
        """Each cell's token in the row; a padding cell has some token or other."""
        begins_B = self.lengths_B.cumsum(0) - self.lengths_B
        columns_L = torch.arange(self.longest, device=self.ids_T.device)
        tokens_BL = begins_B[:, None] + columns_L.minimum(self.lengths_B[:, None] - 1)
        return tokens_BL.view(-1)

    @cached_property
    def positions_T(self) -> Tensor:
        """Each token's place in its sentence."""
        begins = np.repeat(self.ends - self.lengths, self.lengths)
        return torch.from_numpy(np.arange(len(begins)) - begins).to(self.ids_T.device)

    @cached_property
    def sentences_T(self) -> Tensor:
        """The number of each token's sentence."""
        sentences = np.repeat(np.arange(len(self)), self.lengths)
        return torch.from_numpy(sentences).to(self.ids_T.device)

    def pad(self, x_TD: Tensor) -> Tensor:
        """Rows to the rectangle; what stands in padding cells must not matter to the caller."""
        if not self.full:
            x_TD = _Pad.apply(x_TD, self.tokens_R, self.cells_T)
        return x_TD.view(len(self), self.longest, -1)

    def unpad(self, x_BLD: Tensor) -> Tensor:
        """The rectangle's tokens as rows."""
        x_RD = x_BLD.reshape(len(self) * self.longest, -1)
        return x_RD if self.full else _Unpad.apply(x_RD, self.cells_T)

    def sum_by_sentence(self, x_T: Tensor) -> Tensor:
        return x_T.new_zeros(len(self)).index_add(0, self.sentences_T, x_T)


class _Pad(torch.autograd.Function):
    """Gathers in both directions, where torch would scatter-add the gradient in one thread."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x_TD: Tensor, tokens_R: Tensor, cells_T: Tensor) -> Tensor:
        return x_TD.index_select(0, tokens_R)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        _, tokens_R, cells_T = inputs
        ctx.save_for_backward(cells_T)
        ctx.save_for_forward(tokens_R)

    @staticmethod
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor, None, None]:
        (cells_T,) = ctx.saved_tensors
        return grad_RD.index_select(0, cells_T), None, None

    @staticmethod
    def jvp(ctx: Any, x_TD: Tensor, *_: None) -> Tensor:
        (tokens_R,) = ctx.saved_tensors
        return x_TD.index_select(0, tokens_R)


class _Unpad(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x_RD: Tensor, cells_T: Tensor) -> Tensor:
        return x_RD.index_select(0, cells_T)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x_RD, cells_T = inputs
        ctx.save_for_backward(cells_T)
        ctx.save_for_forward(cells_T)
        ctx.cells = x_RD.shape[0]

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, None]:
        (cells_T,) = ctx.saved_tensors
        grad_RD = grad_TD.new_zeros(ctx.cells, grad_TD.shape[1])
        return grad_RD.index_copy_(0, cells_T, grad_TD), None

    @staticmethod
    def jvp(ctx: Any, x_RD: Tensor, *_: None) -> Tensor:
        (cells_T,) = ctx.saved_tensors
        return x_RD.index_select(0, cells_T)
