"""The decoder, one token at a time.

B sentences have W hypotheses each (the beam; 1 for greedy search and sampling), N = B * W in all.
What a layer has seen is kept in order of time, and is never reordered when hypotheses are: each of
them knows in which of the W places its tokens stand at every step, and attends to these. Nor are
finished sentences cut out of it where the compiled loops work: those that go on know their rows.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metabt.nmt import kernels
from metabt.nmt.operators import Packed, has_kernels, linear
from metabt.nmt.ragged import Ragged
from metabt.nmt.transformer import Linear, Transformer

FIRST_ROOM = 16  # steps


class Decoding:
    """A batch that is being decoded, for at most `limit` steps."""

    def __init__(self, model: Transformer, source: Ragged, beam: int, limit: int) -> None:
        self.model, self.outputs_VD = model, model.embedding.outputs_VD
        matrices = [part.weight for part in model.modules() if isinstance(part, Linear)]
        self.packed = Packed([*matrices, self.outputs_VD])
        with self.packed:
            encoded_TD = model.encode(source)
            self.memories = [
                Memory(layer.cross_attention.function.key_value(encoded_TD), source, beam)
                for layer in model.decoder
            ]
        self.hypotheses = Hypotheses(len(source), beam, limit, encoded_TD.device)
        self.pasts = [Past(len(source), self.hypotheses) for _ in model.decoder]

    def logits(self, tokens_BW: Tensor, parents_BW: Tensor | None = None) -> Tensor:
        """Feed a token to each hypothesis, which continues one of the last step's (its parent).

        The first column is that of FIRST_OUTPUT, the end mark.
        """
        model, step = self.model, self.hypotheses.step
        self.hypotheses.continue_from(parents_BW)
        embedding = model.embedding
        x_ND = embedding.weight[tokens_BW.reshape(-1)] * math.sqrt(embedding.embedding_dim)
        x_ND = x_ND + embedding.positions(step + 1)[step]
        with self.packed:
            for layer, past, memory in zip(model.decoder, self.pasts, self.memories, strict=True):
                x_ND = layer.step(x_ND, past, memory)
            self.hypotheses.step += 1
            return linear(model.decoder_norm(x_ND), self.outputs_VD)

    def keep(self, rows_B: Tensor) -> None:
        """Go on with these sentences only."""
        self.hypotheses.keep(rows_B)
        for past, memory in zip(self.pasts, self.memories, strict=True):
            past.keep(rows_B)
            memory.keep(rows_B)


class Hypotheses:
    """How far they are, and where the tokens of each stand."""

    def __init__(self, sentences: int, beam: int, limit: int, device: torch.device) -> None:
        self.beam, self.limit, self.step = beam, limit, 0
        self.own_BW = torch.arange(beam, device=device).expand(sentences, beam)
        self.places_BWL = torch.empty(sentences, beam, 0, dtype=torch.int64, device=device)

    def continue_from(self, parents_BW: Tensor | None) -> None:
        if self.beam == 1:
            return
        if parents_BW is not None:
            index = parents_BW[:, :, None].expand_as(self.places_BWL)
            self.places_BWL = self.places_BWL.gather(1, index)
        own_BW1 = (self.own_BW + self.step * self.beam)[:, :, None]
        self.places_BWL = torch.cat([self.places_BWL, own_BW1], dim=2)

    def keep(self, rows_B: Tensor) -> None:
        self.own_BW = self.own_BW[: len(rows_B)]
        self.places_BWL = self.places_BWL.index_select(0, rows_B)


class Past:
    """Keys and values of one layer's self-attention: (B, steps * W, 2D)."""

    def __init__(self, sentences: int, hypotheses: Hypotheses) -> None:
        self.sentences, self.hypotheses = sentences, hypotheses
        self.owners = np.arange(sentences)  # of the sentences still there, in kv
        self.kv = torch.empty(0, 0, 0)

    def attend(self, qkv_ND: Tensor, heads: int) -> Tensor:
        """Remember the new keys and values, and let the queries look at all so far."""
        beam, step, width = self.hypotheses.beam, self.hypotheses.step, qkv_ND.shape[1] // 3
        begin, end = step * beam, (step + 1) * beam
        if end > self.kv.shape[1]:
            # Memory that was never written to costs nothing on a CPU.
            steps = self.hypotheses.limit if has_kernels(qkv_ND) else max(2 * step, FIRST_ROOM)
            larger = qkv_ND.new_empty(self.sentences, steps * beam, 2 * width)
            if begin:
                larger[:, :begin] = self.kv[:, :begin]
            self.kv = larger
        places = self.hypotheses.places_BWL
        if has_kernels(qkv_ND):
            kernels.remember(qkv_ND.numpy(), width, self.kv.numpy(), self.owners, begin, beam)
            lengths = np.full(len(self.owners), end)
            return _step(qkv_ND, self.kv, self.owners, lengths, places.numpy(), beam, heads)
        self.kv[:, begin:end] = qkv_ND[:, width:].unflatten(0, (-1, beam))
        mask = None
        if beam > 1:
            mask = places.new_zeros(self.sentences, beam, end, dtype=torch.bool)
            mask = mask.scatter_(2, places, True)
        return _attend(qkv_ND[:, :width], self.kv[:, :end], mask, beam, heads)

    def keep(self, rows_B: Tensor) -> None:
        if has_kernels(self.kv):
            self.owners = self.owners[rows_B.numpy()]
            return
        used = self.hypotheses.step * self.hypotheses.beam
        self.kv = self.kv[:, :used].index_select(0, rows_B)
        self.sentences = len(rows_B)


class Memory:
    """Keys and values of one layer's attention to the source: (B, S, 2D)."""

    def __init__(self, kv_TD: Tensor, source: Ragged, beam: int) -> None:
        self.kv, self.beam = source.pad(kv_TD), beam
        self.owners, self.lengths = np.arange(len(source)), source.lengths
        self.mask_BS = source.mask_BL
        self.everyone = np.empty((1, 1, 0), np.int64)

    def attend(self, q_ND: Tensor, heads: int) -> Tensor:
        if has_kernels(q_ND):
            parts = (self.owners, self.lengths, self.everyone)
            return _step(q_ND, self.kv, *parts, self.beam, heads)
        return _attend(q_ND, self.kv, self.mask_BS[:, None], self.beam, heads)

    def keep(self, rows_B: Tensor) -> None:
        if has_kernels(self.kv):
            rows = rows_B.numpy()
            self.owners, self.lengths = self.owners[rows], self.lengths[rows]
            return
        self.kv = self.kv.index_select(0, rows_B)
        self.mask_BS = self.mask_BS.index_select(0, rows_B)


def _step(
    q_ND: Tensor,
    kv: Tensor,
    owners: np.ndarray,
    lengths: np.ndarray,
    rows: np.ndarray,
    beam: int,
    heads: int,
) -> Tensor:
    width = kv.shape[2] // 2
    out_ND = q_ND.new_empty(q_ND.shape[0], width)
    shape = (beam, heads, width, out_ND.numpy())
    kernels.attention_step(q_ND.numpy(), kv.numpy(), 0, width, owners, lengths, rows, *shape)
    return out_ND


def _attend(q_ND: Tensor, kv: Tensor, mask: Tensor | None, beam: int, heads: int) -> Tensor:
    """The same by torch: the hypotheses of a sentence are its queries; mask is (B, W or 1, S)."""
    q = q_ND.unflatten(0, (-1, beam)).unflatten(2, (heads, -1)).transpose(1, 2)
    k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in kv.chunk(2, dim=2))
    mask = None if mask is None else mask[:, None]
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out.transpose(1, 2).flatten(2).flatten(0, 1)
