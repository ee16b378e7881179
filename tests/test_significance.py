"""The randomisation test and the bootstrap, against sacreBLEU and against enumeration."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from metabt.evaluation import significance
from metabt.evaluation.significance import (
    System,
    bleu,
    bootstrap,
    compare,
    compare_all,
    randomisation_test,
    sentence_statistics,
)

WORDS = [f"w{i}" for i in range(40)]
SENTENCES = st.lists(st.lists(st.sampled_from(WORDS[:6]), max_size=9).map(" ".join), min_size=1)


def references(count, seed=0):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(4, 25))) for _ in range(count)]


def worse(texts, share, seed):
    """The texts with a share of their words replaced."""
    random = np.random.default_rng(seed)
    return [
        " ".join(w if random.random() > share else random.choice(WORDS) for w in text.split())
        for text in texts
    ]


def system(texts, share, seeds):
    return np.stack([sentence_statistics(worse(texts, share, seed), texts) for seed in seeds])


@given(SENTENCES, SENTENCES)
def test_bleu_of_summed_statistics_is_sacrebleus(hypotheses, texts):
    """Also of empty sentences, of texts without any match, and of none with four words."""
    count = min(len(hypotheses), len(texts))
    hypotheses, texts = hypotheses[:count], texts[:count]
    expected = BLEU().corpus_score(hypotheses, [texts]).score
    found = bleu(sentence_statistics(hypotheses, texts).sum(axis=0))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def exact_p(a, b):
    """By enumeration of all coins and of all pairings of the two systems' runs, per sentence."""
    runs, sentences, _ = a.shape
    exchanges = []
    for s in range(sentences):
        results = []
        for order in itertools.permutations(range(runs)):
            for coins in itertools.product([False, True], repeat=runs):
                new_a = sum(b[order[r], s] if coins[r] else a[r, s] for r in range(runs))
                results.append(new_a)
        exchanges.append(results)
    total = a.sum(axis=(0, 1)) + b.sum(axis=(0, 1))
    observed = abs(bleu(a.sum(axis=(0, 1))) - bleu(b.sum(axis=(0, 1))))
    sums = np.array([sum(choice) for choice in itertools.product(*exchanges)])
    return float((np.abs(bleu(sums) - bleu(total - sums)) >= observed).mean())


@pytest.mark.parametrize(("runs", "sentences"), [(1, 9), (2, 5), (3, 3)])
def test_randomisation_agrees_with_enumeration(runs, sentences):
    texts = references(sentences)
    a, b = system(texts, 0.4, range(runs)), system(texts, 0.2, range(10, 10 + runs))
    exact, trials = exact_p(a, b), 40_000
    assert 0.005 < exact < 0.995
    error = np.sqrt(exact * (1 - exact) / trials)
    assert randomisation_test(a, b, trials) == pytest.approx(exact, abs=4.5 * error + 1e-4)


def test_of_one_seed_it_is_sacrebleus_paired_randomisation():
    texts = references(300)
    hypotheses = {"a": worse(texts, 0.30, 1), "b": worse(texts, 0.29, 2)}
    test = PairedTest(
        list(hypotheses.items()), {"BLEU": BLEU()}, [texts], test_type="ar", n_samples=10_000
    )
    expected = test()[1]["BLEU"][1].p_value
    a, b = (sentence_statistics(h, texts)[None] for h in hypotheses.values())
    assert 0.01 < expected < 0.9
    error = np.sqrt(2 * expected * (1 - expected) / 10_000)
    assert randomisation_test(a, b, 10_000) == pytest.approx(expected, abs=4 * error)


def test_equal_systems_do_not_differ_and_very_different_ones_do():
    texts = references(60)
    a = system(texts, 0.3, [1, 2])
    assert randomisation_test(a, a, 100) == 1
    assert randomisation_test(a, system(texts, 0.9, [3, 4]), 999) == 1 / 1000
    with pytest.raises(ValueError, match="different shapes"):
        randomisation_test(a, a[:1], 10)


def test_p_is_uniform_where_there_is_nothing_to_find():
    """Two systems of the same quality: p below a tenth in a tenth of the cases, and so on."""
    texts = references(40)
    ps = [
        randomisation_test(system(texts, 0.3, [s, s + 1]), system(texts, 0.3, [s + 2, s + 3]), 200)
        for s in range(0, 800, 4)
    ]
    for limit in (0.1, 0.3, 0.5, 0.8):
        share = np.mean(np.array(ps) <= limit)
        assert share == pytest.approx(limit, abs=3.5 * np.sqrt(limit * (1 - limit) / len(ps)))


def test_memory_is_bounded(monkeypatch):
    """Ten times the trials take no more memory: the largest arrays are a chunk's."""
    monkeypatch.setattr(significance, "CHUNK_BYTES", 1 << 20)
    texts = references(200)
    a, b = system(texts, 0.3, [1, 2, 3]), system(texts, 0.3, [4, 5, 6])
    peaks = []
    for trials in (1_000, 10_000):
        tracemalloc.start()
        randomisation_test(a, b, trials)
        bootstrap(a, trials)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + 1e6


def test_bootstrap_resamples_whole_sentences():
    """Its spread is that of a slow loop over random samples; the same seed draws the same ones."""
    texts = references(80)
    a = system(texts, 0.3, [1, 2])
    scores = bootstrap(a, 4_000)
    assert scores.shape == (4_000, 3)
    np.testing.assert_array_equal(scores, bootstrap(a, 4_000))
    random = np.random.default_rng(7)
    slow = [bleu(a[:, random.integers(0, 80, 80)].sum(axis=(0, 1))) for _ in range(4_000)]
    assert scores[:, -1].mean() == pytest.approx(np.mean(slow), abs=5 * np.std(slow) / 60)
    assert scores[:, -1].std() == pytest.approx(np.std(slow), rel=0.06)


@settings(max_examples=20)
@given(st.lists(st.floats(0.2, 0.5), min_size=2, max_size=4))
def test_every_pair_is_compared_once(shares):
    """Holm's correction by its definition; p itself is left as it is."""
    texts = references(20)
    systems = [
        System(f"m{i}", dict(enumerate(system(texts, share, [i, i + 50]))))
        for i, share in enumerate(shares)
    ]
    rows = compare_all(systems, 99)
    assert [(r["against"], r["method"]) for r in rows] == [
        (a.name, b.name) for a, b in itertools.combinations(systems, 2)
    ]
    ps = sorted(r["p"] for r in rows)
    for row in rows:
        assert row["low"] <= row["high"]
        assert row["difference"] == pytest.approx(row["bleu"] - row["bleu_against"])
        before = [p for p in ps if p <= row["p"]]
        corrected = max(min(1, p * (len(ps) - i)) for i, p in enumerate(before))
        assert row["p_holm"] == pytest.approx(corrected)


def test_only_seeds_that_both_have_are_compared():
    texts = references(30)
    one, two, three = system(texts, 0.3, [1, 2, 3])
    a, b = System("a", {"seed1": one, "seed2": two}), System("b", {"seed2": two, "seed3": three})
    row = compare(a, b, 99)
    assert (row["runs"], row["difference"], row["p"]) == (1, 0, 1)
    assert compare(a, System("gone", {}), 99) == {"method": "gone", "against": "a", "runs": 0}
    assert System("gone", {}).describe(99) == {"method": "gone", "runs": 0}
    described = a.describe(500)
    assert described["bleu"] == pytest.approx((bleu(one.sum(0)) + bleu(two.sum(0))) / 2)
    assert described["low"] < described["bleu"] < described["high"]
