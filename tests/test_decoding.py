"""Decoding against exhaustive enumeration, exact distributions, and itself in other batches."""

import gc
import itertools
import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from metabt.config import Sampling
from metabt.config import Transformer as Shape
from metabt.data.subwords import BOS, EOS, UNK
from metabt.nmt import decoding, noise
from metabt.nmt.decoding import beam_search, greedy, length_penalty, sample
from metabt.nmt.incremental import Decoding
from metabt.nmt.loss import cross_entropy
from metabt.nmt.many import decode_many
from metabt.nmt.ragged import Ragged
from metabt.nmt.threads import ComputeThreads
from metabt.nmt.transformer import FIRST_OUTPUT, Transformer


def tiny(vocabulary=7, norm="post", sharpness=2.0, seed=0):
    """An untrained model whose distributions are far from uniform."""
    torch.manual_seed(seed)
    shape = Shape(layers=2, width=16, feed_forward=32, heads=2, dropout=0.3, norm=norm)
    model = Transformer(vocabulary, shape).eval()
    with torch.no_grad():
        model.embedding.weight.mul_(sharpness)
    return model


def log_probs(model, source, ids, complete, top_k=None, temperature=1.0):
    """The model's own score: teacher forcing, in one pass."""
    target = np.array([*ids, EOS] if complete else ids, np.int64)
    states = model(Ragged.of([source], last=EOS), Ragged.of([target[:-1]], first=BOS))
    _, nll = cross_entropy(
        states,
        model.embedding.outputs_VD,
        torch.tensor(target) - FIRST_OUTPUT,
        torch.ones(len(target)),
        top_k=top_k,
        temperature=temperature,
    )
    return -nll.detach().double().sum().item()


def all_sentences(vocabulary, limit):
    """Every output of at most `limit` tokens: complete, or cut off at the limit."""
    words = [i for i in range(FIRST_OUTPUT, vocabulary) if i != EOS]
    for length in range(limit + 1):
        for ids in itertools.product(words, repeat=length):
            if length < limit:
                yield ids, True
            else:
                yield ids, False


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_token_at_a_time_is_the_same_as_all_at_once(norm):
    model = tiny(40, norm)
    rng = np.random.default_rng(1)
    sources = [rng.integers(3, 40, n) for n in (5, 1, 9)]
    target = rng.integers(3, 40, (3, 24))  # more steps than the first allocation holds
    state = Decoding(model, Ragged.of(sources, last=EOS), beam=1, limit=60)
    inputs = np.concatenate([np.full((3, 1), BOS), target], axis=1)
    with torch.inference_mode():
        steps = [state.logits(torch.tensor(inputs[:, t : t + 1])) for t in range(25)]
        states = model(Ragged.of(sources, last=EOS), Ragged.of(list(target), first=BOS))
        expected = (states @ model.embedding.outputs_VD.T).view(3, 25, -1)
    assert torch.allclose(torch.stack(steps, 1), expected, atol=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_wide_beam_finds_what_exhaustive_search_finds(monkeypatch, alpha, norm):
    monkeypatch.setattr(decoding, "EXTRA_LENGTH", 2)
    model = tiny(6, norm, sharpness=1.0)
    for source in (np.array([4, 5]), np.array([5])):
        limit = len(source) + 2
        scored = []
        for ids, complete in all_sentences(6, limit):
            if complete:
                log_prob = log_probs(model, source, ids, True)
                scored.append((log_prob / length_penalty(len(ids) + 1, alpha), ids, log_prob))
        scored.sort(reverse=True)
        (found,) = beam_search(model, [source], 200, alpha, n_best=5)
        for hypothesis, (score, ids, log_prob) in zip(found, scored[:5], strict=True):
            assert tuple(hypothesis.ids) == ids
            assert hypothesis.score == pytest.approx(score, rel=1e-4)
            assert hypothesis.log_prob == pytest.approx(log_prob, rel=1e-4)
            assert hypothesis.complete


@pytest.mark.parametrize("beam", [2, 3])
def test_a_narrow_beam_is_the_textbook_algorithm(monkeypatch, beam):
    """Against a plain Python beam search that scores every prefix anew."""
    monkeypatch.setattr(decoding, "EXTRA_LENGTH", 4)
    model = tiny(9, sharpness=1.2, seed=3)
    for source in (np.array([4, 5, 8]), np.array([7]), np.array([3, 3, 6, 6, 5])):
        limit, alive, done = len(source) + 4, [((), 0.0)], []
        for step in range(1, limit + 1):
            candidates = [
                ((*ids, token), log_probs(model, source, [*ids, token], False))
                for ids, _ in alive
                for token in range(FIRST_OUTPUT, 9)
            ]
            candidates.sort(key=lambda c: -c[1])
            done += [(ids[:-1], p, step) for ids, p in candidates[:beam] if ids[-1] == EOS]
            alive = [c for c in candidates[: 2 * beam] if c[0][-1] != EOS][:beam]
            best = max((p / length_penalty(n, 0.6) for _, p, n in done), default=-math.inf)
            if len(done) >= beam or best >= alive[0][1] / length_penalty(limit, 0.6):
                break
        else:
            if not done:
                done = [(*alive[0], limit)]
        expected = max(done, key=lambda d: d[1] / length_penalty(d[2], 0.6))
        ((found,),) = beam_search(model, [source], beam, 0.6)
        assert tuple(found.ids) == expected[0]
        assert found.log_prob == pytest.approx(expected[1], rel=1e-4)


def test_greedy_is_a_beam_of_one():
    model = tiny(30)
    rng = np.random.default_rng(0)
    sources = [rng.integers(3, 30, rng.integers(1, 9)) for _ in range(12)]
    for one, (other,) in zip(
        greedy(model, sources), beam_search(model, sources, 1, 0.6), strict=True
    ):
        assert np.array_equal(one.ids, other.ids)
        assert one.complete == other.complete
        assert one.log_prob == pytest.approx(other.log_prob, rel=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_k": 2, "temperature": 1.5}]
)
def test_samples_follow_the_exact_distribution(monkeypatch, options):
    """Frequencies of whole sentences against their probabilities, by a chi-square test."""
    monkeypatch.setattr(decoding, "EXTRA_LENGTH", 2)
    model = tiny(8, sharpness=0.7)
    source, count = np.array([4]), 20_000
    drawn = sample(model, [source] * count, 5, range(count), Sampling(**options))
    seen = {}
    for hypothesis in drawn:
        key = (tuple(hypothesis.ids.tolist()), hypothesis.complete)
        seen[key] = seen.get(key, 0) + 1
    exact = {}
    for ids, complete in all_sentences(8, 3):
        probability = math.exp(log_probs(model, source, ids, complete, **options))
        if not (
            options.get("top_k") and not _within_top_k(model, source, ids, complete, **options)
        ):
            exact[ids, complete] = probability
    assert sum(exact.values()) == pytest.approx(1, abs=1e-4)
    assert set(seen) <= set(exact)
    common = [key for key, p in exact.items() if p * count >= 5]
    observed = np.array([seen.get(key, 0) for key in common] + [0.0])
    expected = np.array([exact[key] * count for key in common] + [0.0])
    observed[-1], expected[-1] = count - observed.sum(), count - expected.sum()
    if expected[-1] < 5:
        observed, expected = observed[:-1], expected[:-1]
        expected *= observed.sum() / expected.sum()
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def _within_top_k(model, source, ids, complete, top_k, temperature=1.0):
    target = [*ids, EOS] if complete else list(ids)
    states = model(
        Ragged.of([source], last=EOS), Ragged.of([np.array(target[:-1], int)], first=BOS)
    )
    best = (states @ model.embedding.outputs_VD.T).topk(top_k).indices + FIRST_OUTPUT
    return all(token in row for token, row in zip(target, best.tolist(), strict=True))


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 10}, {"temperature": 0.5}, {"top_k": 4, "temperature": 2.0}]
)
def test_a_sample_comes_with_its_own_log_probability(options):
    model = tiny(50)
    rng = np.random.default_rng(0)
    sources = [rng.integers(3, 50, rng.integers(1, 12)) for _ in range(20)]
    drawn = sample(model, sources, 3, range(20), Sampling(**options))
    assert len({tuple(h.ids.tolist()) for h in drawn}) > 10
    for source, hypothesis in zip(sources, drawn, strict=True):
        own = log_probs(model, source, hypothesis.ids, hypothesis.complete, **options)
        assert hypothesis.log_prob == pytest.approx(own, rel=1e-4, abs=1e-4)


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_nothing_depends_on_the_rest_of_the_batch(data):
    """Any subset in any order, whenever finished sentences leave: the same outputs."""
    model = tiny(20, sharpness=1.3, seed=4)
    rng = np.random.default_rng(0)
    sources = [rng.integers(3, 20, rng.integers(1, 10)) for _ in range(10)]
    chosen = data.draw(st.permutations(range(10)))[: data.draw(st.integers(1, 10))]
    compact = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    before, decoding.COMPACT_BELOW = decoding.COMPACT_BELOW, compact
    try:
        for decode in (
            lambda indices: [[h] for h in greedy(model, [sources[i] for i in indices])],
            lambda indices: [[h] for h in sample(model, [sources[i] for i in indices], 9, indices)],
            lambda indices: beam_search(model, [sources[i] for i in indices], 3, 0.6, n_best=2),
        ):
            together = decode(range(10))
            for i, some in zip(chosen, decode(chosen), strict=True):
                for a, b in zip(some, together[i], strict=True):
                    assert np.array_equal(a.ids, b.ids)
                    assert a.score == pytest.approx(b.score, rel=1e-4, abs=1e-5)
    finally:
        decoding.COMPACT_BELOW = before


def test_seeds_and_numbers_decide_a_sample():
    model = tiny(50, sharpness=0.5)
    source = np.arange(3, 9)

    def ids(seed, number):
        return sample(model, [source], seed, [number])[0].ids.tolist()

    assert ids(1, 1) == ids(1, 1)
    assert len({tuple(ids(seed, number)) for seed in range(4) for number in range(4)}) == 16


def test_decoding_many_keeps_the_order_and_is_the_same_for_any_batch_size():
    model = tiny(30)
    rng = np.random.default_rng(0)
    sources = [rng.integers(3, 30, rng.integers(1, 20)) for _ in range(50)]
    alone = [greedy(model, [source])[0] for source in sources]
    for tokens, threads in ((1, 1), (40, 2), (100_000, 3)):
        pool = ComputeThreads(threads)
        many = decode_many(sources, lambda _, batch: greedy(model, batch), pool, tokens)
        pool.close()
        assert all(np.array_equal(a.ids, b.ids) for a, b in zip(alone, many, strict=True))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(3, 20), max_size=40), st.integers(0, 1000))
def test_noise_moves_whole_words_a_little(ids, seed):
    """Pieces 3, 6, 9, ... begin words here."""
    begins = np.arange(21) % 3 == 0
    ids = np.array(ids, np.uint16)
    noisy = noise.add_noise(ids, begins, np.random.default_rng(seed))
    starts = np.flatnonzero(begins[ids])
    words = [tuple(w.tolist()) for w in np.split(ids, starts[starts > 0])] if len(ids) else []
    allowed = set(words) | {(UNK,)}
    starts = np.flatnonzero(begins[noisy])
    found = [tuple(w.tolist()) for w in np.split(noisy, starts[starts > 0])] if len(noisy) else []
    if (
        ids.size and begins[ids[0]]
    ):  # otherwise a first word without its mark may be joined to another
        assert all(word in allowed for word in found)
    assert len(noisy) <= len(ids)
    assert bool(len(noisy)) == bool(len(ids))


def test_noise_has_the_rates_and_distance_of_the_paper(monkeypatch):
    begins = np.ones(20_004, bool)
    ids = np.arange(4, 20_004)
    noisy = noise.add_noise(ids, begins, np.random.default_rng(0))
    assert len(noisy) / len(ids) == pytest.approx(0.9, abs=0.01)
    assert (noisy == UNK).mean() == pytest.approx(0.1, abs=0.01)
    monkeypatch.setattr(noise, "DROP", 0.0)
    monkeypatch.setattr(noise, "BLANK", 0.0)
    moved = noise.add_noise(ids, begins, np.random.default_rng(0)) - ids
    assert abs(moved).max() == 3
    assert (moved != 0).mean() > 0.5


def test_the_same_without_compiled_loops():
    """In double precision decoding goes through torch's operators, as it does on GPUs."""
    model = tiny(30, sharpness=1.3)
    rng = np.random.default_rng(0)
    sources = [rng.integers(3, 30, rng.integers(1, 9)) for _ in range(12)]
    found = [
        [
            greedy(m, sources),
            *(list(x) for x in zip(*beam_search(m, sources, 3, 0.6, 2), strict=True)),
        ]
        for m in (model, tiny(30, sharpness=1.3).double())
    ]
    for compiled, plain in zip(*found, strict=True):
        for a, b in zip(compiled, plain, strict=True):
            assert np.array_equal(a.ids, b.ids)
            assert a.log_prob == pytest.approx(b.log_prob, rel=1e-4)


def test_nothing_of_a_batch_stays_in_memory(monkeypatch):
    """Keys and values are large: they must not wait for the garbage collector."""
    states = []

    class Watched(Decoding):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            states.append(weakref.ref(self.pasts[0]))

    monkeypatch.setattr(decoding, "Decoding", Watched)
    gc.disable()
    try:
        greedy(tiny(), [np.array([4, 5])])
        beam_search(tiny(), [np.array([4, 5])], beam=2, alpha=0.6)
        assert [state() for state in states] == [None, None]
    finally:
        gc.enable()


@settings(deadline=None)
@given(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=300), st.integers(1, 5))
def test_the_largest_and_the_total(values, count):
    row = torch.tensor([values])
    best, places = decoding.largest(row, min(count, len(values)))
    assert best[0].tolist() == sorted(values, reverse=True)[:count]
    assert row[0, places[0]].tolist() == best[0].tolist()
    exact = torch.logsumexp(row.double(), 1) - row.double().amax(1)
    found = decoding.log_total(row, row.amax(1))
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6)


@settings(deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=300),
    st.floats(0, 1, exclude_max=True),
)
def test_a_drawn_token_is_where_the_cumulated_softmax_passes_u(values, uniform):
    logits = torch.tensor([values])
    probs = logits.double().softmax(1)[0]
    ends = probs.cumsum(0)
    (place,), (log_prob,) = decoding.draw(logits.clone(), torch.tensor([uniform]).double())
    assert ends[place] - probs[place] <= uniform + 1e-5
    assert uniform <= ends[place] + 1e-5
    assert probs[place] > 0
    torch.testing.assert_close(log_prob.double(), probs[place].log(), rtol=1e-5, atol=1e-5)
