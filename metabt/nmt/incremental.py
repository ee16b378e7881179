"""The decoder, one token at a time.

B sentences have W hypotheses each (the beam; 1 for greedy search and sampling). What a layer has
seen is kept in order of time, and is never reordered when hypotheses are: each of them knows in
which of the W places its tokens stand at every step, and attention is masked to these. The W
hypotheses of a sentence share its keys: a step is a few well-shaped products, nothing is copied.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from metabt.nmt.ragged import Ragged
from metabt.nmt.transformer import Transformer


class Past:
    """Keys and values of one layer's self-attention: (B, H, steps * W, K)."""

    def __init__(self, sentences: int, beam: int, state: "Decoding") -> None:
        self.beam, self.state = beam, state
        self.keys = self.values = torch.empty(0)

    def attend(self, qkv_ND: Tensor, heads: int) -> Tensor:
        """Remember the new keys and values, and let the queries look at all so far."""
        columns = qkv_ND.view(-1, self.beam, 3, heads, qkv_ND.shape[1] // (3 * heads))
        q, k, v = columns.permute(2, 0, 3, 1, 4)
        begin = self.state.step * self.beam
        end = begin + self.beam
        if self.keys.dim() == 1 or end > self.keys.shape[2]:
            self._grow(k)
        self.keys[:, :, begin:end] = k
        self.values[:, :, begin:end] = v
        mask = self.state.mask
        out = scaled_attention(q, self.keys[:, :, :end], self.values[:, :, :end], mask)
        return out.transpose(1, 2).reshape(qkv_ND.shape[0], -1)

    def _grow(self, k: Tensor) -> None:
        """Room for twice the steps."""
        used = self.state.step * self.beam
        room = max(2 * used, 16 * self.beam)
        sentences, heads, _, size = k.shape
        for name in ("keys", "values"):
            larger = k.new_empty(sentences, heads, room, size)
            if used:
                larger[:, :, :used] = getattr(self, name)[:, :, :used]
            setattr(self, name, larger)

    def keep(self, rows_B: Tensor) -> None:
        used = self.state.step * self.beam
        self.keys = self.keys[:, :, :used].index_select(0, rows_B)
        self.values = self.values[:, :, :used].index_select(0, rows_B)


class Memory:
    """Keys and values of one layer's attention to the source: (B, H, S, K)."""

    def __init__(self, kv_TD: Tensor, source: Ragged, beam: int, heads: int) -> None:
        padded = source.pad(kv_TD).unflatten(2, (2, heads, -1))
        self.keys, self.values = padded.permute(2, 0, 3, 1, 4).contiguous()
        self.mask = None if source.full else source.mask_BL[:, None, None, :]
        self.beam = beam

    def attend(self, q_ND: Tensor, heads: int) -> Tensor:
        q = q_ND.view(-1, self.beam, heads, q_ND.shape[1] // heads).transpose(1, 2)
        out = scaled_attention(q, self.keys, self.values, self.mask)
        return out.transpose(1, 2).reshape(q_ND.shape)

    def keep(self, rows_B: Tensor) -> None:
        self.keys, self.values = (x.index_select(0, rows_B) for x in (self.keys, self.values))
        self.mask = None if self.mask is None else self.mask.index_select(0, rows_B)


def scaled_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if q.device.type != "cpu":
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = torch.matmul(q * (1 / math.sqrt(q.shape[3])), k.transpose(2, 3))
    if mask is not None:
        scores.masked_fill_(~mask, -math.inf)
    return torch.matmul(scores.softmax(-1), v)


class Decoding:
    """The state of a batch that is being decoded."""

    def __init__(self, model: Transformer, source: Ragged, beam: int) -> None:
        self.model, self.beam, self.step = model, beam, 0
        encoded_TD = model.encode(source)
        heads = model.shape.heads
        self.memories = [
            Memory(layer.cross_attention.function.key_value(encoded_TD), source, beam, heads)
            for layer in model.decoder
        ]
        self.pasts = [Past(len(source), beam, self) for _ in model.decoder]
        self.places_BWL = torch.empty(
            len(source), beam, 0, dtype=torch.int64, device=encoded_TD.device
        )
        self.mask: Tensor | None = None

    def logits(self, tokens_BW: Tensor, parents_BW: Tensor | None = None) -> Tensor:
        """Feed a token to each hypothesis, which continues one of the last step's (its parent).

        The first column is that of FIRST_OUTPUT, the end mark.
        """
        model, beam = self.model, self.beam
        if beam > 1:
            self._remember(tokens_BW, parents_BW)
        embedding = model.embedding
        x_ND = embedding.weight[tokens_BW.reshape(-1)] * math.sqrt(embedding.embedding_dim)
        x_ND = x_ND + embedding.positions(self.step + 1)[self.step]
        for layer, past, memory in zip(model.decoder, self.pasts, self.memories, strict=True):
            x_ND = layer.step(x_ND, past, memory)
        self.step += 1
        return functional.linear(model.decoder_norm(x_ND), embedding.outputs_VD)

    def _remember(self, tokens_BW: Tensor, parents_BW: Tensor | None) -> None:
        """Where the tokens of each hypothesis stand, and the mask that follows from it."""
        own_W = torch.arange(self.beam, device=tokens_BW.device)
        own_BW1 = own_W.expand(len(tokens_BW), -1)[:, :, None]
        if parents_BW is not None:
            index = parents_BW[:, :, None].expand_as(self.places_BWL)
            self.places_BWL = self.places_BWL.gather(1, index)
        self.places_BWL = torch.cat([self.places_BWL, own_BW1], dim=2)
        seen_BWLW = self.places_BWL[..., None] == own_W
        self.mask = seen_BWLW.flatten(2)[:, None]

    def keep(self, rows_B: Tensor) -> None:
        """Go on with these sentences only."""
        for past, memory in zip(self.pasts, self.memories, strict=True):
            past.keep(rows_B)
            memory.keep(rows_B)
        self.places_BWL = self.places_BWL.index_select(0, rows_B)
