"""The compiled loops against slow references in plain Python."""

import random
from itertools import pairwise

import mmh3
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metabt.data import kernels
from metabt.data.readers import Lines

SEPARATORS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
FRAGMENTS = [
    *(b"a", b"abcdefgh", b" ", b"\t", b"\x01", b"\x1f", b"\x7f", b"\0", b"\x1b"),
    *(c.encode() for c in SEPARATORS if c != "\n"),
    *(b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xf0\x8f\xbf\xbf"),  # overlong
    *(b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff", b"\xfe"),
    *(b"\xc2", b"\xe2", b"\xe2\x80", b"\xf0\x9f", b"\xf0\x9f\x98", b"\x80", b"\xbf", b"\xa8"),
]
FRAGMENTS += [
    character.encode()
    for character in "é\x84\x86\u07ff\u0800\u2027\u202a\ud7ff\ue000\uffff\U00010000\U0010ffff"
]
text_bytes = st.binary(max_size=40) | st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(
    b"".join
)
lines_of_bytes = st.lists(text_bytes.map(lambda b: b.replace(b"\n", b"")), max_size=12)


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8)


def verdict(line: bytes) -> int:
    """The first thing wrong with a line, by Python's own decoder and its own idea of line ends."""
    if not line:
        return kernels.EMPTY
    try:
        text, valid = line.decode("utf-8"), True
    except UnicodeDecodeError as error:
        text, valid = line[: error.start].decode("utf-8"), False
    for character in text:
        if character == "\0":
            return kernels.NUL
        if len(f"a{character}a".splitlines()) > 1:
            return kernels.SEPARATOR
    return kernels.FINE if valid else kernels.INVALID_UTF8


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=10), st.binary(max_size=100), st.binary(max_size=10))
def test_hash_is_murmur3_of_exactly_the_line(before: bytes, line: bytes, after: bytes) -> None:
    start = len(before)
    got = kernels.murmur3_128(array(before + line + after), start, start + len(line))
    assert tuple(map(int, got)) == mmh3.hash64(line, 0, True, signed=False)


@settings(max_examples=1500, deadline=None)
@given(lines_of_bytes)
def test_verdicts_are_those_of_pythons_decoder(raw: list[bytes]) -> None:
    lines = Lines.of(raw)
    verdicts = np.full(len(raw), 99, dtype=np.uint8)
    keys = np.zeros((len(raw), 2), dtype=np.uint64)
    kernels.judge_lines(lines.text, lines.starts, lines.ends, verdicts, keys)
    assert verdicts.tolist() == [verdict(line) for line in raw]
    for i, line in enumerate(raw):
        if verdicts[i] == kernels.FINE:
            assert tuple(map(int, keys[i])) == mmh3.hash64(line, 0, True, signed=False)


@settings(max_examples=200, deadline=None)
@given(text_bytes, text_bytes, st.sampled_from([b"\x80", b"\xa8", b"\xbf\xbf\xbf", b"\n"]))
def test_verdicts_end_where_the_line_ends(before: bytes, line: bytes, after: bytes) -> None:
    starts, ends = np.array([len(before)]), np.array([len(before) + len(line)])
    verdicts, keys = np.empty(1, dtype=np.uint8), np.empty((1, 2), dtype=np.uint64)
    kernels.judge_lines(array(before + line + after), starts, ends, verdicts, keys)
    assert verdicts.tolist() == [verdict(line)]


def test_verdict_on_every_character_and_every_short_sequence() -> None:
    raw = [
        *(chr(c).encode("utf-8", "surrogatepass") for c in range(0x110000) if c != 10),
        *(bytes([a, b]) for a in range(256) for b in range(256) if 10 not in (a, b)),
        *(
            bytes([a, b, c])
            for a in range(0xE0, 0x100)
            for b in range(0x7F, 0xC1)
            for c in (0x7F, 0x80, 0xA7, 0xA8, 0xA9, 0xAA, 0xBF, 0xC0)
        ),
        *(
            bytes([a, b, c, d])
            for a in range(0xEF, 0xF6)
            for b in range(0x7F, 0xC1)
            for c in (0x7F, 0x80, 0xBF, 0xC0)
            for d in (0x7F, 0x80, 0xBF, 0xC0)
        ),
    ]
    # Characters also lie across the border of the fast path's words.
    raw = [b"abcdefgh"[: i % 9] + line for i, line in enumerate(raw)]
    lines = Lines.of(raw)
    verdicts = np.empty(len(raw), dtype=np.uint8)
    keys = np.empty((len(raw), 2), dtype=np.uint64)
    kernels.judge_lines(lines.text, lines.starts, lines.ends, verdicts, keys)
    wrong = [line for line, v in zip(raw, verdicts.tolist(), strict=True) if v != verdict(line)]
    assert wrong == []


@pytest.mark.parametrize("odd", [*FRAGMENTS, b"\x09"])
def test_verdict_at_every_place_around_the_fast_path(odd: bytes) -> None:
    raw = [b" " * a + odd + b"~" * b for a in range(18) for b in range(18)]
    lines = Lines.of(raw)
    verdicts = np.empty(len(raw), dtype=np.uint8)
    keys = np.empty((len(raw), 2), dtype=np.uint64)
    kernels.judge_lines(lines.text, lines.starts, lines.ends, verdicts, keys)
    assert verdicts.tolist() == [verdict(line) for line in raw]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([b"\n", b"\x0b", b"\x8a", b"\x09", b"a"]), max_size=50), st.data())
def test_find_newlines(pieces: list[bytes], data: st.DataObject) -> None:
    text = b"".join(pieces)
    begin = data.draw(st.integers(0, len(text)))
    found = kernels.find_newlines(array(text), begin)
    assert found.tolist() == [i for i in range(begin, len(text)) if text[i] == 10]


@settings(max_examples=200, deadline=None)
@given(lines_of_bytes)
def test_strip_lines(raw: list[bytes]) -> None:
    lines = Lines.of(raw)
    kernels.strip_lines(lines.text, lines.starts, lines.ends)
    assert [lines.line(i) for i in range(len(raw))] == [line.strip(b" \t\r") for line in raw]


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([b"", b"a", b" b", b"c ", b" ", b"longer"]), st.booleans())),
    st.integers(0, 20),
    st.booleans(),
)
@example([(b"a", True), (b"", False), (b"b", True)], 0, False)
def test_copy_lines(raw: list[tuple[bytes, bool]], first: int, strip: bool) -> None:
    lines = Lines.of([line for line, _ in raw])
    if strip:
        kernels.strip_lines(lines.text, lines.starts, lines.ends)
    bits = [index % 2 == 0 for index in range(first)] + [keep for _, keep in raw] + [True] * 3
    bitmap = np.packbits(bits, bitorder="little")
    out = np.full(int((lines.ends - lines.starts).sum()) + len(raw), 0xEE, dtype=np.uint8)
    size = kernels.copy_lines(lines.text, lines.starts, lines.ends, bitmap, first, out)
    kept = [(line.strip(b" ") if strip else line) + b"\n" for line, keep in raw if keep]
    assert out[:size].tobytes() == b"".join(kept)
    assert (out[size:] == 0xEE).all()


def test_copy_lines_that_are_not_separated_by_newlines() -> None:
    out = np.empty(6, dtype=np.uint8)
    starts, ends = np.array([0, 2, 4]), np.array([1, 3, 5])
    bitmap = np.array([0b111], dtype=np.uint8)
    assert kernels.copy_lines(array(b"a\tb c\n"), starts, ends, bitmap, 0, out) == 6
    assert out.tobytes() == b"a\nb\nc\n"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2**64 - 1)), max_size=60))
def test_partition_keeps_fine_lines_in_order_within_their_group(raw: list[tuple[int, int]]) -> None:
    bits, first = 3, 1 << 40
    verdicts = np.array([v for v, _ in raw], dtype=np.uint8)
    keys = np.array([(k, i) for i, (_, k) in enumerate(raw)], dtype=np.uint64).reshape(-1, 2)
    fine = [(k, i, first + i) for i, (v, k) in enumerate(raw) if v == kernels.FINE]
    records = np.full((len(fine), 3), 7, dtype=np.uint64)
    bounds = np.full((1 << bits) + 1, 99, dtype=np.int64)
    kernels.partition(verdicts, keys, first, bits, records, bounds)
    groups = [[r for r in fine if r[0] >> 61 == group] for group in range(8)]
    got = [[tuple(r) for r in records[a:b].tolist()] for a, b in pairwise(bounds)]
    assert got == groups


def first_indices(keys: list[tuple[int, int]]) -> list[int]:
    seen: dict[tuple[int, int], int] = {}
    for index, key in enumerate(keys):
        seen.setdefault(key, index)
    return list(seen.values())


def occurrences(keys: list[tuple[int, int]], slots: int) -> tuple[list[int], int]:
    """The indices of first occurrences by the kernels, and the size of the table at the end."""
    records = np.array([(a, b, i) for i, (a, b) in enumerate(keys)], dtype=np.uint64)
    records = records.reshape(-1, 3)
    table = np.zeros((slots, 2), dtype=np.uint64)
    found: list[int] = []
    at = filled = 0
    kept = np.empty(len(records), dtype=np.uint64)
    while at < len(records):
        at, filled, noted = kernels.first_occurrences(table, filled, records, at, kept)
        found += kept[:noted].tolist()
        assert filled == len(found) < len(table)
        if at < len(records):
            table = kernels.grow(table)
    return found, len(table)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)).filter(any)))
def test_first_occurrences_when_keys_share_their_slots(keys: list[tuple[int, int]]) -> None:
    assert occurrences(keys, 4)[0] == first_indices(keys)


def test_first_occurrences_beyond_the_first_table() -> None:
    draw = random.Random(1)
    pool = [(draw.getrandbits(64), draw.getrandbits(64)) for _ in range(60_000)]
    keys = draw.choices(pool, k=150_000)
    found, slots = occurrences(keys, 1 << 14)
    assert found == first_indices(keys)
    assert slots == 1 << 17


def test_the_key_that_marks_a_free_row_is_a_key_like_others() -> None:
    table = np.zeros((8, 2), dtype=np.uint64)
    zero = np.uint64(0)
    assert not kernels.contains(table, zero, zero)
    assert kernels.insert(table, zero, zero)
    assert not kernels.insert(table, zero, zero)
    assert kernels.contains(table, zero, zero)
    assert not kernels.contains(table, zero, np.uint64(2))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 99)))
def test_set_bits(indices: list[int]) -> None:
    bitmap = np.zeros(13, dtype=np.uint8)
    kernels.set_bits(bitmap, np.array(indices, dtype=np.uint64))
    assert np.flatnonzero(np.unpackbits(bitmap, bitorder="little")).tolist() == sorted({*indices})


def test_every_word_of_both_keys_counts_in_both_words_of_the_pair() -> None:
    fine = np.zeros(1, dtype=np.uint8)
    seen = []
    for place in (None, 0, 1, 2, 3):
        words = np.array([11, 22, 33, 44], dtype=np.uint64)
        if place is not None:
            words[place] += np.uint64(1)
        pair = words[None, :2].copy()
        kernels.combine_pairs(fine.copy(), pair, fine, words[None, 2:].copy())
        seen.append(pair[0])
    assert all(len(set(half.tolist())) == 5 for half in np.array(seen).T)


def test_combine_pairs() -> None:
    """Every verdict with every other; and as many keys as there are different pairs."""
    words = [f"word {i}".encode() for i in range(700)]
    lines = Lines.of([*words, b"", b"\xff", b"\0", b"\x0b"])
    single = np.empty(len(lines), dtype=np.uint8)
    keys = np.zeros((len(lines), 2), dtype=np.uint64)
    kernels.judge_lines(lines.text, lines.starts, lines.ends, single, keys)
    single[0] = kernels.HELD_OUT
    left, right = (a.ravel() for a in np.mgrid[: len(lines), : len(lines)])
    verdicts, pair_keys = single[left].copy(), keys[left].copy()
    kernels.combine_pairs(verdicts, pair_keys, single[right], keys[right])
    expected = np.where(single[left] != kernels.FINE, single[left], single[right])
    assert (verdicts == expected).all()
    fine = pair_keys[verdicts == kernels.FINE]
    assert len(fine) == 699 * 699
    assert len(np.unique(fine, axis=0)) == len(fine)
    # Each half alone is as good as random: no structure of the pairs shows in it.
    assert len(np.unique(fine[:, 0])) == len(np.unique(fine[:, 1])) == len(fine)
    per_group = np.bincount((fine[:, 0] >> np.uint64(56)).astype(int), minlength=256)
    assert abs(per_group - len(fine) / 256).max() < 6 * (len(fine) / 256) ** 0.5
