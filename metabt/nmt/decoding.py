"""Sampling, greedy and beam search over a batch of sentences.

The longest output is the source's length plus 50 (Vaswani et al. 2017). Finished sentences leave
the batch. What comes out for a sentence does not depend on the others in it: random numbers are a
function of the seed, the sentence's own number and the step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metabt.config import Sampling
from metabt.data.subwords import BOS, EOS
from metabt.nmt import kernels
from metabt.nmt.incremental import Decoding
from metabt.nmt.operators import has_kernels
from metabt.nmt.ragged import Ragged
from metabt.nmt.transformer import FIRST_OUTPUT, Transformer

EXTRA_LENGTH = 50
COMPACT_BELOW = 1.0  # of the sentences still going: then the finished ones leave the batch
BLOCK = kernels.BLOCK  # of the vocabulary, in the search for a sampled token


@dataclass(frozen=True)
class Hypothesis:
    """Ids without marks; `complete` says that the end mark was reached (its probability counts)."""

    ids: np.ndarray
    log_prob: float
    score: float
    complete: bool = True


def largest(x_NV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values of each row, in order, and their columns."""
    if not has_kernels(x_NV):
        values_NK, columns_NK = x_NV.topk(count)
        return values_NK, columns_NK
    values_NK = x_NV.new_empty(len(x_NV), count)
    columns_NK = torch.empty(len(x_NV), count, dtype=torch.int64)
    kernels.largest(x_NV.numpy(), values_NK.numpy(), columns_NK.numpy())
    return values_NK, columns_NK


def log_total(logits_NV: Tensor, best_N: Tensor) -> Tensor:
    """log sum exp(logits - best)."""
    if not has_kernels(logits_NV):
        return (logits_NV - best_N[:, None]).exp_().sum(1).log_()
    total_N = torch.empty_like(best_N)
    kernels.log_totals(logits_NV.numpy(), best_N.numpy(), total_N.numpy())
    return total_N


# --- sampling -------------------------------------------------------------------------------------


@torch.inference_mode()
def sample(
    model: Transformer,
    sources: Sequence[np.ndarray],
    seed: int,
    numbers: Sequence[int] | np.ndarray,
    sampling: Sampling | None = None,
) -> list[Hypothesis]:
    """One sample for each source from the model's distribution, or from its k best and sharpened.

    `numbers` are the sentences' own: together with the seed they decide the sample.
    """
    sampling = sampling or Sampling()

    def choose(logits_NV: Tensor, step: int, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        uniform_N = _uniform(seed, np.asarray(numbers)[rows], step).to(logits_NV.device)
        if sampling.temperature != 1:
            logits_NV /= sampling.temperature
        if sampling.top_k:
            best_NK, ids_NK = largest(logits_NV, min(sampling.top_k, logits_NV.shape[1]))
            log_probs_NK = best_NK.log_softmax(1)
            chosen_N = _inverse(log_probs_NK.exp().double().cumsum(1), uniform_N)
            index = chosen_N[:, None]
            return ids_NK.gather(1, index)[:, 0], log_probs_NK.gather(1, index)[:, 0]
        return draw(logits_NV, uniform_N)

    return _follow(model, sources, choose)


@torch.inference_mode()
def greedy(model: Transformer, sources: Sequence[np.ndarray]) -> list[Hypothesis]:
    """The most probable token at every step."""

    def choose(logits_NV: Tensor, step: int, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        best_N1, ids_N1 = largest(logits_NV, 1)
        return ids_N1[:, 0], -log_total(logits_NV, best_N1[:, 0])

    return _follow(model, sources, choose)


Choose = Callable[[Tensor, int, np.ndarray], tuple[Tensor, Tensor]]


def _follow(model: Transformer, sources: Sequence[np.ndarray], choose: Choose) -> list[Hypothesis]:
    """Extend one hypothesis a sentence until all have ended."""
    device = model.embedding.weight.device
    limits = np.array([len(source) + EXTRA_LENGTH for source in sources])
    rows = np.arange(len(sources))  # of the sentences still in the batch
    state = Decoding(model, Ragged.of(sources, last=EOS, device=device), 1, int(limits.max()))
    tokens_N = torch.full((len(sources),), BOS, device=device)
    ids = np.zeros((len(sources), int(limits.max())), np.uint16)
    lengths = limits.copy()
    log_probs = np.zeros(len(sources))
    going = np.ones(len(sources), bool)
    complete = np.zeros(len(sources), bool)
    for step in range(int(limits.max())):
        logits_NV = state.logits(tokens_N[:, None])
        columns_N, token_log_probs_N = choose(logits_NV, step, rows)
        tokens_N = columns_N + FIRST_OUTPUT
        here = going[rows]
        tokens = tokens_N.cpu().numpy()
        log_probs[rows[here]] += token_log_probs_N.double().cpu().numpy()[here]
        ended = here & (tokens == EOS)
        ids[rows[here], step] = tokens[here]
        lengths[rows[ended]] = step
        complete[rows[ended]] = True
        going[rows[ended | (limits[rows] == step + 1)]] = False
        left = going[rows]
        if not left.any():
            break
        if left.mean() < COMPACT_BELOW:
            kept = torch.from_numpy(np.flatnonzero(left)).to(device)
            state.keep(kept)
            tokens_N, rows = tokens_N[kept], rows[left]
    return [
        Hypothesis(
            ids[i, : lengths[i]], float(log_probs[i]), float(log_probs[i]), bool(complete[i])
        )
        for i in range(len(sources))
    ]


def _uniform(seed: int, numbers: np.ndarray, step: int) -> Tensor:
    """A number in [0, 1) for each sentence: 53 bits of a counter-based hash (splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.asarray(numbers, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for word in (seed, step):
            x = x + np.uint64(word & 0xFFFFFFFFFFFFFFFF) * np.uint64(0xD1342543DE82EF95)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
    return torch.from_numpy((x >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def draw(logits_NV: Tensor, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    """The column at which the cumulated softmax passes u, and its log-probability.

    The logits are overwritten.
    """
    if has_kernels(logits_NV):
        chosen_N = torch.empty(len(logits_NV), dtype=torch.int64)
        log_probs_N = logits_NV.new_empty(len(logits_NV))
        kernels.draw(logits_NV.numpy(), uniform_N.numpy(), chosen_N.numpy(), log_probs_N.numpy())
        return chosen_N, log_probs_N
    probs_NV = logits_NV.softmax(1)
    rows, vocabulary = probs_NV.shape
    # First the block of the vocabulary, then the place in it.
    blocks_NGB = functional.pad(probs_NV, (0, -vocabulary % BLOCK)).view(rows, -1, BLOCK)
    ends_NG = blocks_NGB.sum(2).double().cumsum(1)
    block_N = _inverse(ends_NG, uniform_N)
    index = block_N[:, None]
    begin_N = torch.where(block_N > 0, ends_NG.gather(1, (index - 1).clamp(min=0))[:, 0], 0.0)
    share_N = (uniform_N * ends_NG[:, -1] - begin_N) / (ends_NG.gather(1, index)[:, 0] - begin_N)
    inner_NB = blocks_NGB.gather(1, index[:, :, None].expand(-1, -1, BLOCK))[:, 0]
    chosen_N = block_N * BLOCK + _inverse(inner_NB.double().cumsum(1), share_N)
    return chosen_N, probs_NV.gather(1, chosen_N[:, None])[:, 0].log()


def _inverse(ends_NK: Tensor, uniform_N: Tensor) -> Tensor:
    """The first place whose cumulated weight is above u of the whole."""
    level_N1 = (uniform_N * ends_NK[:, -1])[:, None]
    first_N = torch.searchsorted(ends_NK, level_N1, right=True)[:, 0]
    last_N = torch.searchsorted(ends_NK, ends_NK[:, -1:].contiguous())[:, 0]
    # After the last one, none has any weight.
    return first_N.minimum(last_N)


# --- beam search ----------------------------------------------------------------------------------


def length_penalty(length: int, alpha: float) -> float:
    """Wu et al. 2016; the length counts the end mark."""
    return float(((5 + length) / 6) ** alpha)


@torch.inference_mode()
def beam_search(
    model: Transformer, sources: Sequence[np.ndarray], beam: int, alpha: float, n_best: int = 1
) -> list[list[Hypothesis]]:
    """The n best of the hypotheses that a beam finds, by log-probability over length penalty.

    A sentence ends when it has `beam` complete hypotheses, or when none that goes on can become
    better than its n best. Incomplete ones are returned only where the limit of length comes first.
    """
    device = model.embedding.weight.device
    limits = np.array([len(source) + EXTRA_LENGTH for source in sources])
    finished = [_Finished(beam, alpha, n_best, int(limit)) for limit in limits]
    rows = np.arange(len(sources))  # of the sentences still in the batch
    state = Decoding(model, Ragged.of(sources, last=EOS, device=device), beam, int(limits.max()))
    tokens_BW = torch.full((len(sources), beam), BOS, device=device)
    parents_BW: Tensor | None = None
    alive_BW = torch.full((len(sources), beam), -torch.inf, device=device)
    alive_BW[:, 0] = 0  # all hypotheses begin alike: one of them is enough
    history = np.zeros((len(sources), beam, 0), np.uint16)
    for step in range(int(limits.max())):
        logits_NV = state.logits(tokens_BW, parents_BW)
        # Of 2W candidates at most W end, so W can always go on.
        best_NK, ids_NK = largest(logits_NV, min(2 * beam, logits_NV.shape[1]))
        best_N = best_NK[:, 0].clone()
        best_NK -= (best_N + log_total(logits_NV, best_N))[:, None]
        scores_BC = (alive_BW.reshape(-1, 1) + best_NK).view(len(rows), -1)
        top_BK, order_BK = scores_BC.topk(min(2 * beam, scores_BC.shape[1]))
        ids_BK = ids_NK.view(len(rows), -1).gather(1, order_BK) + FIRST_OUTPUT
        places_BK = order_BK // best_NK.shape[1]
        ends_BK = ids_BK == EOS
        going_BK, index_BK = top_BK.masked_fill(ends_BK, -torch.inf).sort(
            dim=1, descending=True, stable=True
        )
        alive_BW, index_BW = going_BK[:, :beam], index_BK[:, :beam]
        tokens_BW, parents_BW = ids_BK.gather(1, index_BW), places_BK.gather(1, index_BW)

        top, places, ends = (x[:, :beam].cpu().numpy() for x in (top_BK, places_BK, ends_BK))
        for b, w in zip(*np.nonzero(ends & np.isfinite(top)), strict=True):
            finished[rows[b]].add(history[b, places[b, w]], top[b, w], step + 1)
        parents, tokens = parents_BW.cpu().numpy(), tokens_BW.cpu().numpy().astype(np.uint16)
        history = np.take_along_axis(history, parents[:, :, None], axis=1)
        history = np.concatenate([history, tokens[:, :, None]], axis=2)
        alive = alive_BW.cpu().numpy()
        left = np.array(
            [not finished[row].done(step + 1, history[b], alive[b]) for b, row in enumerate(rows)]
        )
        if not left.any():
            break
        if left.mean() < COMPACT_BELOW:
            kept_B = torch.from_numpy(np.flatnonzero(left)).to(device)
            state.keep(kept_B)
            alive_BW, tokens_BW, parents_BW = (
                x.index_select(0, kept_B) for x in (alive_BW, tokens_BW, parents_BW)
            )
            rows, history = rows[left], history[left]
    return [sentence.best() for sentence in finished]


class _Finished:
    """The complete hypotheses of one sentence."""

    def __init__(self, beam: int, alpha: float, n_best: int, limit: int) -> None:
        self.beam, self.alpha, self.n_best, self.limit = beam, alpha, n_best, limit
        self.hypotheses: list[Hypothesis] = []
        self.closed = False

    def add(self, ids: np.ndarray, log_prob: float, length: int, complete: bool = True) -> None:
        if not self.closed:
            score = float(log_prob) / length_penalty(length, self.alpha)
            self.hypotheses.append(Hypothesis(ids.copy(), float(log_prob), score, complete))

    def done(self, steps: int, history: np.ndarray, alive: np.ndarray) -> bool:
        """Is there nothing more to find? At the limit of length, what goes on is taken as it is."""
        if self.closed:
            return True
        if steps == self.limit:
            missing = max(0, self.n_best - len(self.hypotheses))
            for ids, log_prob in zip(history[:missing], alive, strict=False):
                if np.isfinite(log_prob):
                    self.add(ids, log_prob, steps, complete=False)
            self.closed = True
        elif len(self.hypotheses) >= max(self.beam, self.n_best):
            self.closed = True
        elif len(self.hypotheses) >= self.n_best:
            # Log-probabilities only fall, and the penalty is largest at the limit.
            bound = alive[0] / length_penalty(self.limit, self.alpha)
            self.closed = bool(self.best()[-1].score >= bound)
        return self.closed

    def best(self) -> list[Hypothesis]:
        return sorted(self.hypotheses, key=lambda h: -h.score)[: self.n_best]
