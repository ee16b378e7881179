"""Batches: every sentence once an epoch, the same everywhere, split over ranks, resumed exactly."""

import hashlib
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metabt.data.batches import BatchStream, Corpus, Position, permute
from metabt.data.shards import Shard, ShardWriter
from metabt.errors import UserError


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63))
@settings(max_examples=80, deadline=None)
def test_permute_is_a_permutation(size, seed):
    assert sorted(permute(np.arange(size), size, seed).tolist()) == list(range(size))


def test_permutations_look_random_and_differ_by_seed():
    size, trials = 12, 6000
    places = np.array([permute(np.arange(size), size, seed) for seed in range(trials)])
    # Where element 0 ... 11 lands must be uniform: a chi-square test for each, with 11 degrees.
    for column in places.T:
        counts = np.bincount(column, minlength=size)
        chi_square = ((counts - trials / size) ** 2 / (trials / size)).sum()
        assert chi_square < 38  # p = 1e-4
    # and neighbours must not stay neighbours
    large = permute(np.arange(100_000), 100_000, 3)
    assert np.abs(np.diff(large)).min() >= 1
    assert abs(np.corrcoef(large[:-1], large[1:])[0, 1]) < 0.02


def test_permute_is_the_same_on_every_machine():
    values = permute(np.arange(1000), 220_000_000, 42).astype("<i8").tobytes()
    assert hashlib.sha256(values).hexdigest()[:16] == "caa30fd07111ad13"


def make_corpus(tmp_path, sizes=(97, 41), seed=0):
    rng = np.random.default_rng(seed)
    shards = []
    for number, size in enumerate(sizes):
        path = tmp_path / f"{number}.shard"
        with ShardWriter(path, ["az", "en"], "v", 1000) as writer:
            lengths = [rng.integers(1, 40, size), rng.integers(1, 40, size)]
            ids = [rng.integers(4, 9000, n.sum()).astype(np.uint16) for n in lengths]
            writer.add(list(zip(ids, lengths, strict=True)))
            writer.finish()
        shards.append(Shard.open(path))
    return Corpus(shards)


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path)


def seen(stream, count):
    return [batch.indices.tolist() for batch in islice(stream, count)]


def test_each_epoch_sees_every_sentence_once(corpus):
    # 138 sentences: 24 batches of 23 are four epochs.
    batches = seen(BatchStream(corpus, seed=5, sentences=23), 24)
    assert all(len(batch) == 23 for batch in batches)
    counts = Counter(i for batch in batches for i in batch)
    assert set(counts.values()) == {4}
    assert len(counts) == 138


def test_a_batch_holds_the_sentences_of_its_indices(corpus):
    for batch in islice(BatchStream(corpus, seed=1, sentences=10), 30):
        for side in (0, 1):
            for index, ids in zip(batch.indices, batch.sides[side], strict=True):
                shard, local = (0, index) if index < 97 else (1, index - 97)
                expected = corpus.shards[shard].sentence(side, int(local))
                assert ids.tolist() == expected.tolist()


@given(
    cut=st.integers(0, 60),
    sentences=st.one_of(st.none(), st.integers(4, 50)),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_resumes_at_the_exact_sentence(tmp_path_factory, cut, sentences, seed):
    corpus = make_corpus(tmp_path_factory.mktemp("c"))
    arguments = {"sentences": sentences, "tokens": None if sentences else 300}
    whole = seen(BatchStream(corpus, seed, **arguments), 100)
    stream = BatchStream(corpus, seed, **arguments)
    first = seen(stream, cut)
    state = Position(**vars(stream.position))
    again = BatchStream(corpus, seed, **arguments, position=state)
    assert first + seen(again, 100 - cut) == whole


@given(ranks=st.integers(1, 6), tokens=st.one_of(st.none(), st.integers(480, 900)))
@settings(max_examples=30, deadline=None)
def test_ranks_share_the_global_batch_without_overlap(tmp_path_factory, ranks, tokens):
    corpus = make_corpus(tmp_path_factory.mktemp("c"))
    arguments = {"sentences": None if tokens else 12, "tokens": tokens}
    whole = seen(BatchStream(corpus, 3, **arguments), 40)
    parts = [
        seen(BatchStream(corpus, 3, **arguments, rank=rank, ranks=ranks), 40)
        for rank in range(ranks)
    ]
    for number, batch in enumerate(whole):
        shares = [part[number] for part in parts]
        assert sorted(i for share in shares for i in share) == sorted(batch)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(tokens=st.integers(1, 9000), side=st.sampled_from([0, 1]), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_token_batches_are_as_full_as_they_can_be(tmp_path_factory, tokens, side, seed):
    """Counted with end marks, on the side that is asked for; an epoch leaves less than a batch."""
    corpus = make_corpus(tmp_path_factory.mktemp("c"), sizes=(300,))
    lengths = corpus.lengths(side, np.arange(300)) + 1
    stream = BatchStream(corpus, seed, tokens=tokens, side=side)
    epochs: dict[int, list[list[int]]] = {}
    while stream.position.epoch < 2:
        batch = next(stream).indices.tolist()
        epochs.setdefault(stream.position.epoch, []).append(batch)
    for batches in (epochs[0], epochs[1]):
        used = [i for batch in batches for i in batch]
        assert len(set(used)) == len(used)
        for batch in batches[:-1]:
            assert lengths[batch].sum() <= tokens or len(batch) == 1
            assert lengths[batch].sum() + lengths.max() > tokens
        if epochs[0] is batches:
            left = lengths.sum() - lengths[used].sum()
            assert left <= tokens or left <= lengths.max()


def test_batches_mix_sentences_of_all_lengths(tmp_path):
    """Longest first within a batch, but no batch is made of one length."""
    corpus = make_corpus(tmp_path, sizes=(5000,))
    means = []
    for batch in islice(BatchStream(corpus, 1, sentences=100), 50):
        lengths = [len(ids) for ids in batch.sides[1]]
        assert lengths == sorted(lengths, reverse=True)
        means.append(np.mean(lengths))
    everything = corpus.lengths(1, np.arange(5000))
    assert np.std(means) < 3 * np.std(everything) / np.sqrt(100)


@given(size=st.integers(1, 200), sentences=st.integers(1, 150), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_batches_are_full_and_have_no_sentence_twice(tmp_path_factory, size, sentences, seed):
    corpus = make_corpus(tmp_path_factory.mktemp("c"), sizes=(size,))
    stream = BatchStream(corpus, seed, sentences=sentences)
    for _ in range(3):
        batches = seen(stream, max(1, size // sentences))  # an epoch
        assert all(len(batch) == min(sentences, size) for batch in batches)
        used = [i for batch in batches for i in batch]
        assert len(set(used)) == len(used)


def test_seeds_and_epochs_give_different_orders(corpus):
    one, two = (seen(BatchStream(corpus, s, sentences=23), 12) for s in (1, 2))
    assert one != two
    assert one[:6] != one[6:]


def test_unfit_requests_are_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match="one of the two"):
        BatchStream(corpus, 1)
    with pytest.raises(ValueError, match="one of the two"):
        BatchStream(corpus, 1, sentences=3, tokens=4)
    with pytest.raises(UserError, match="4 ranks"):
        next(BatchStream(corpus, 1, sentences=3, ranks=4))
    with pytest.raises(UserError, match="4 ranks"):
        next(BatchStream(corpus, 1, tokens=8, ranks=4))
    path = tmp_path / "other.shard"
    with ShardWriter(path, ["az", "en"], "another vocabulary", 10) as writer:
        writer.add([(np.ones(1, np.uint16), np.ones(1, np.int64))] * 2)
        writer.finish()
    with pytest.raises(UserError, match="vocabulary"):
        Corpus([*corpus.shards, Shard.open(path)])
