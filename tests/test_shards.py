"""Shards: what goes in comes out, and nothing damaged is taken for whole."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metabt.data.shards import Shard, ShardWriter
from metabt.errors import UserError

Sentence = st.lists(st.integers(0, 65_535), max_size=12)
Pairs = st.lists(st.tuples(Sentence, Sentence), min_size=1, max_size=30)


def flat(sentences):
    ids = np.array([i for s in sentences for i in s], dtype=np.uint16)
    return ids, np.array([len(s) for s in sentences], dtype=np.int64)


def write(path, blocks, limit=1000, sides=("en", "de")):
    with ShardWriter(path, sides, "vocabulary", limit) as writer:
        for block in blocks:
            writer.add([flat(side) for side in zip(*block, strict=True)])
        writer.finish()
    return writer


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.lists(Pairs, min_size=1, max_size=4), limit=st.one_of(st.none(), st.integers(0, 12))
)
def test_sentences_come_back_in_order_without_the_long_ones(tmp_path_factory, blocks, limit):
    path = tmp_path_factory.mktemp("shard") / "a.shard"
    writer = write(path, blocks, limit)
    everything = [pair for block in blocks for pair in block]
    lengths = [(min(map(len, pair)), max(map(len, pair))) for pair in everything]
    expected = [
        pair
        for pair, (shortest, longest) in zip(everything, lengths, strict=True)
        if limit is None or (shortest > 0 and longest <= limit)
    ]
    shard = Shard.open(path)
    assert len(shard) == len(expected) == writer.sentences
    assert writer.too_long == sum(limit is not None and longest > limit for _, longest in lengths)
    assert writer.too_long + writer.no_subwords == len(everything) - len(expected)
    for index, pair in enumerate(expected):
        for side in (0, 1):
            assert shard.sentence(side, index).tolist() == pair[side]
    indices = np.arange(len(expected))
    assert shard.lengths(1, indices).tolist() == [len(target) for _, target in expected]
    assert shard.sides == ["en", "de"]


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "a.shard"
    write(path, [[([5, 6, 7], [8]), ([9], [10, 11])] * 40])
    return path


def test_any_damaged_byte_is_noticed(shard):
    good = shard.read_bytes()
    header = json.loads(good[32 : 16 + int.from_bytes(good[8:16], "little")])
    meaningful = len(good) - header["bytes"]
    spans = [(meaningful + s["at"], s["bytes"]) for s in header["sections"]]
    inside = [at for start, size in spans for at in range(start, start + size, 17)]
    head = range(16 + int.from_bytes(good[8:16], "little"))
    for at in [*head, *inside]:
        bad = bytearray(good)
        bad[at] ^= 0x10
        shard.write_bytes(bad)
        with pytest.raises(UserError, match=r"a\.shard"):
            Shard.open(shard)
    shard.write_bytes(good)
    assert len(Shard.open(shard)) == 80


def test_any_other_length_is_noticed(shard):
    good = shard.read_bytes()
    for size in [0, 3, 15, 16, 40, len(good) // 2, len(good) - 1]:
        shard.write_bytes(good[:size])
        with pytest.raises(UserError, match=r"a\.shard"):
            Shard.open(shard)
    shard.write_bytes(good + b"x")
    with pytest.raises(UserError, match="bytes"):
        Shard.open(shard)


def test_versions_and_strangers_are_named(shard, tmp_path):
    data = bytearray(shard.read_bytes())
    data[6] = 9
    shard.write_bytes(data)
    with pytest.raises(UserError, match="version 9"):
        Shard.open(shard)
    (tmp_path / "text").write_text("a sentence that is long enough to be a header\n")
    with pytest.raises(UserError, match="not a shard"):
        Shard.open(tmp_path / "text")
    with pytest.raises(UserError, match="no such file"):
        Shard.open(tmp_path / "nothing")


def test_an_unfinished_shard_leaves_nothing(tmp_path):
    with (
        pytest.raises(RuntimeError),
        ShardWriter(tmp_path / "a.shard", ["en"], "vocabulary", 10) as writer,
    ):
        writer.add([flat([[1, 2]])])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_same_sentences_give_the_same_bytes(tmp_path):
    pairs = [([i, i + 1], [i]) for i in range(1000)]
    write(tmp_path / "one", [pairs])
    write(tmp_path / "many", [pairs[i : i + 7] for i in range(0, 1000, 7)])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()
