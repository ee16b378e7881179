"""Is one system better than another, or were the seeds and the sentences kind to it?

The test that the paper follows is the one of Clark et al. 2011, stratified approximate
randomisation: a trial exchanges hypotheses of the same sentence between the two systems, whatever
seed they come from. It takes seconds, because BLEU is a function of ten counts that add up over
sentences, and a trial is one row of a product of matrices.

Arrays: statistics_RSK are the counts of R runs, S sentences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

ORDER = 4
STATISTICS = 2 + 2 * ORDER  # lengths of system and reference; n-grams matched, and in all
CHUNK_BYTES = 64 << 20  # of the largest array of a chunk of trials
MOST_RUNS = 12
SACREBLEU_SAMPLES = 1000  # its default


def sentence_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """What BLEU is computed from, for each sentence."""
    metric = BLEU(effective_order=True)  # which the counts do not depend on
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        score = metric.sentence_score(hypothesis, [reference])
        rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    return np.array(rows, dtype=np.int64)


def bleu(sums: NDArray) -> NDArray[np.float64]:
    """sacreBLEU's corpus BLEU (exponential smoothing) of summed statistics, over the last axis."""
    sums = np.asarray(sums, dtype=np.float64)
    system, reference = sums[..., 0], sums[..., 1]
    matched, total = sums[..., 2 : 2 + ORDER], sums[..., 2 + ORDER :]
    with np.errstate(divide="ignore", invalid="ignore"):
        halvings = np.cumsum(matched == 0, axis=-1)
        precision = np.where(matched > 0, matched, 0.5**halvings) / total
        brevity = np.where(system < reference, np.exp(1 - reference / system), 1.0)
        score = 100 * brevity * np.exp(np.log(precision).mean(axis=-1))
    return np.where((total > 0).all(axis=-1) & (matched > 0).any(axis=-1), score, 0.0)


def _chunks(trials: int, bytes_per_trial: int) -> list[int]:
    size = max(1, CHUNK_BYTES // bytes_per_trial)
    return [min(size, trials - start) for start in range(0, trials, size)]


def randomisation_test(a_RSK: NDArray, b_RSK: NDArray, trials: int, seed: int = 1) -> float:
    """p of |BLEU(a) - BLEU(b)|, both over all their runs, if the two systems were the same.

    In a trial, each run of a sentence is exchanged by a coin, with any of the other system's runs
    of that sentence: k coins exchange k of a's runs for k of b's.
    """
    runs, sentences, _ = a_RSK.shape
    if a_RSK.shape != b_RSK.shape:
        raise ValueError(f"different shapes: {a_RSK.shape} and {b_RSK.shape}")
    if runs > MOST_RUNS:
        raise ValueError(f"{runs} runs are more than {MOST_RUNS}")
    everything_K = (a_RSK + b_RSK).sum(axis=(0, 1))
    observed = abs(bleu(a_RSK.sum(axis=(0, 1))) - bleu(b_RSK.sum(axis=(0, 1))))
    a, b = (x.transpose(1, 0, 2).reshape(-1, STATISTICS).astype(np.float64) for x in (a_RSK, b_RSK))
    # Every choice among the runs, those of one size beside each other.
    chosen = [set(c) for size in range(runs + 1) for c in combinations(range(runs), size)]
    choices = np.array([[run in choice for run in range(runs)] for choice in chosen], dtype=float)
    sizes = choices.sum(axis=1).astype(int)
    first = np.searchsorted(sizes, np.arange(runs + 1))
    many = np.array([comb(runs, size) for size in range(runs + 1)])
    random = np.random.default_rng(seed)
    as_extreme = 0
    for count in _chunks(trials, 8 * a.shape[0]):
        leave = random.integers(0, len(choices), (count, sentences), dtype=np.int16)
        size = sizes[leave]
        draw = random.random((count, sentences), dtype=np.float32)
        enter = first[size] + np.minimum((draw * many[size]).astype(np.int64), many[size] - 1)
        new_a = (1 - choices)[leave].reshape(count, -1) @ a + choices[enter].reshape(count, -1) @ b
        difference = np.abs(bleu(new_a) - bleu(everything_K - new_a))
        as_extreme += int((difference >= observed).sum())
    return (as_extreme + 1) / (trials + 1)


def bootstrap(statistics_RSK: NDArray, trials: int, seed: int = 1) -> NDArray[np.float64]:
    """BLEU of each run, and in the last column of all runs together, on resampled sentences. The
    same seed draws the same sentences."""
    runs, sentences, _ = statistics_RSK.shape
    together = np.concatenate([statistics_RSK, statistics_RSK.sum(axis=0, keepdims=True)])
    flat = together.transpose(1, 0, 2).reshape(sentences, -1).astype(np.float64)
    random = np.random.default_rng(seed)
    scores = []
    for count in _chunks(trials, 8 * sentences):
        drawn = random.integers(0, sentences, (count, sentences))
        places = (drawn + sentences * np.arange(count)[:, None]).ravel()
        times = np.bincount(places, minlength=count * sentences).reshape(count, sentences)
        sums = (times.astype(np.float64) @ flat).reshape(count, runs + 1, STATISTICS)
        scores.append(bleu(sums))
    return np.concatenate(scores)


@dataclass(frozen=True)
class System:
    """A method's runs. `spread_optimiser` (Clark et al.: s_opt) is the standard deviation of BLEU
    over seeds, `spread_selection` (s_sel) that over test sets like this one."""

    name: str
    statistics: dict[str, NDArray]  # by seed

    def of(self, seeds: Sequence[str]) -> NDArray:
        return np.stack([self.statistics[seed] for seed in seeds])

    def describe(self, trials: int) -> dict[str, float | str | None]:
        seeds = list(self.statistics)
        if not seeds:
            return {"method": self.name, "runs": 0}
        each = bleu(self.of(seeds).sum(axis=1))
        resampled = bootstrap(self.of(seeds), trials)
        low, high = np.percentile(resampled[:, -1], [2.5, 97.5])
        return {
            "method": self.name,
            "runs": len(seeds),
            "bleu": float(each.mean()),
            "spread_optimiser": float(each.std(ddof=1)) if len(seeds) > 1 else None,
            "spread_selection": float(resampled[:, :-1].std(axis=0, ddof=1).mean()),
            "low": float(low),
            "high": float(high),
        }


def compare(a: System, b: System, trials: int) -> dict[str, float | str | None]:
    """b against a: the difference of BLEU over the seeds that both have, its 95% interval over test
    sets like this one, and p."""
    seeds = [seed for seed in a.statistics if seed in b.statistics]
    row: dict[str, float | str | None] = {"method": b.name, "against": a.name, "runs": len(seeds)}
    if not seeds:
        return row
    of_a, of_b = a.of(seeds), b.of(seeds)
    score_a, score_b = (float(bleu(x.sum(axis=(0, 1)))) for x in (of_a, of_b))
    resampled = bootstrap(of_b, trials)[:, -1] - bootstrap(of_a, trials)[:, -1]
    low, high = np.percentile(resampled, [2.5, 97.5])
    return {
        **row,
        "bleu": score_b,
        "bleu_against": score_a,
        "difference": score_b - score_a,
        "low": float(low),
        "high": float(high),
        "p": randomisation_test(of_a, of_b, trials),
        "trials": trials,
    }


def compare_all(systems: Sequence[System], trials: int) -> list[dict[str, float | str | None]]:
    """Every pair of systems, the later one against the earlier; `p_holm` is corrected for their
    number (Holm 1979), p is not."""
    rows = [compare(a, b, trials) for a, b in combinations(systems, 2)]
    tested = sorted((row for row in rows if "p" in row), key=lambda row: float(row["p"] or 0))
    largest = 0.0
    for rank, row in enumerate(tested):
        largest = max(largest, min(1.0, float(row["p"] or 0) * (len(tested) - rank)))
        row["p_holm"] = largest
    return rows


def sacrebleu_bootstrap(
    hypotheses: Mapping[str, Sequence[str]], references: Sequence[str]
) -> list[dict[str, float | str | None]]:
    """sacreBLEU's own paired bootstrap of one seed: each system against the last one."""
    names = list(hypotheses)[::-1]
    systems: list[tuple[str, Sequence[str]]] = [(name, list(hypotheses[name])) for name in names]
    test = PairedTest(
        systems, {"BLEU": BLEU()}, [list(references)], test_type="bs", n_samples=SACREBLEU_SAMPLES
    )
    results: list[Any] = test()[1]["BLEU"]
    return [
        {
            "method": name,
            "against": None if name == names[0] else names[0],
            "bleu": float(result.score),
            "mean": float(result.mean),
            "half_interval": float(result.ci),
            "p": None if result.p_value is None else float(result.p_value),
            "samples": SACREBLEU_SAMPLES,
        }
        for name, result in zip(names, results, strict=True)
    ]
