"""Compiled loops over raw text: look at every line once, at the speed of memory.

A block of text is a uint8 array and its lines are two int64 arrays, `starts` and `ends`. Nothing
here allocates per line and everything releases the interpreter's lock, so that plain threads work
on several blocks at once.
"""

import numpy as np
from numba import njit, uint64

# What is wrong with a line. The names, in this order, are clean.REASONS.
FINE, EMPTY, INVALID_UTF8, NUL, SEPARATOR, HELD_OUT, DUPLICATE = range(7)

_C1 = np.uint64(0x87C37B91114253D5)
_C2 = np.uint64(0x4CF5AD432745937F)
_FMIX1 = np.uint64(0xFF51AFD7ED558CCD)
_FMIX2 = np.uint64(0xC4CEB9FE1A85EC53)
_HIGH_BITS = np.uint64(0x8080808080808080)
_SPACES = np.uint64(0x2020202020202020)
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)
_ONES = np.uint64(0x0101010101010101)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@njit(nogil=True, cache=True, inline="always")
def _load64(text, at):
    """Eight bytes as a little-endian integer.

    An unsigned index cannot be counted from the end, so that this compiles to one unaligned load.
    """
    i = uint64(at)
    return (
        uint64(text[i])
        | (uint64(text[i + uint64(1)]) << uint64(8))
        | (uint64(text[i + uint64(2)]) << uint64(16))
        | (uint64(text[i + uint64(3)]) << uint64(24))
        | (uint64(text[i + uint64(4)]) << uint64(32))
        | (uint64(text[i + uint64(5)]) << uint64(40))
        | (uint64(text[i + uint64(6)]) << uint64(48))
        | (uint64(text[i + uint64(7)]) << uint64(56))
    )


@njit(nogil=True, cache=True, inline="always")
def _rotate(x, by):
    return (x << uint64(by)) | (x >> uint64(64 - by))


@njit(nogil=True, cache=True, inline="always")
def _mix(x):
    x ^= x >> uint64(33)
    x *= _FMIX1
    x ^= x >> uint64(33)
    x *= _FMIX2
    x ^= x >> uint64(33)
    return x


@njit(nogil=True, cache=True)
def murmur3_128(text, start, end):
    """MurmurHash3_x64_128 with seed 0: two 64-bit halves.

    With 128 bits, two of 250 million different lines collide with probability 1e-22: equal keys are
    equal lines.
    """
    length = end - start
    h1 = _ZERO
    h2 = _ZERO
    at = start
    while at + 16 <= end:
        k1 = _load64(text, at) * _C1
        h1 ^= _rotate(k1, 31) * _C2
        h1 = (_rotate(h1, 27) + h2) * uint64(5) + uint64(0x52DCE729)
        k2 = _load64(text, at + 8) * _C2
        h2 ^= _rotate(k2, 33) * _C1
        h2 = (_rotate(h2, 31) + h1) * uint64(5) + uint64(0x38495AB5)
        at += 16
    k1 = _ZERO
    k2 = _ZERO
    for i in range(at, min(at + 8, end)):
        k1 |= uint64(text[i]) << uint64(8 * (i - at))
    for i in range(at + 8, end):
        k2 |= uint64(text[i]) << uint64(8 * (i - at - 8))
    h2 ^= _rotate(k2 * _C2, 33) * _C1
    h1 ^= _rotate(k1 * _C1, 31) * _C2
    h1 ^= uint64(length)
    h2 ^= uint64(length)
    h1 += h2
    h2 += h1
    h1 = _mix(h1)
    h2 = _mix(h2)
    h1 += h2
    h2 += h1
    return h1, h2


@njit(nogil=True, cache=True, inline="always")
def _first_marked(marks):
    """Which byte of eight is the first to have its high bit set, where at least one has."""
    marks >>= uint64(7)  # to the low bit of each byte
    below = (marks & (~marks + _ONE)) - _ONE  # all bits below the first mark
    return ((below & _ONES) * _ONES) >> uint64(56)  # the sum of eight bytes, each 0 or 1


@njit(nogil=True, cache=True)
def _verdict(text, start, end):
    """FINE, or the first thing wrong with the bytes of one line.

    Eight bytes at a time while they are printable ASCII; otherwise one character at a time by the
    table of well-formed UTF-8 sequences (Unicode 15, table 3-7). A separator is whatever
    `str.splitlines` would break at: left in, it misaligns files for the next tool that reads them.
    """
    if start == end:
        return EMPTY
    at, stop = uint64(start), uint64(end)
    while at < stop:
        if at + uint64(8) <= stop:
            # A byte below 0x20 borrows in the subtraction and so shows its high bit, as bytes from
            # 0x80 do anyway. Only the first such byte is certain; up to it all is well.
            word = _load64(text, at)
            odd = (word | (word - _SPACES)) & _HIGH_BITS
            if odd == _ZERO:
                at += uint64(8)
                continue
            at += _first_marked(odd)
        byte = text[at]
        if byte < 0x80:
            if byte == 0:
                return NUL
            if 0x0A <= byte <= 0x0D or 0x1C <= byte <= 0x1E:
                return SEPARATOR
            at += _ONE
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return INVALID_UTF8
        second = at + _ONE
        if at + uint64(more) >= stop or text[second] < low or text[second] > high:
            return INVALID_UTF8
        for i in range(2, more + 1):
            if text[at + uint64(i)] < 0x80 or text[at + uint64(i)] > 0xBF:
                return INVALID_UTF8
        if byte == 0xC2 and text[second] == 0x85:
            return SEPARATOR
        if byte == 0xE2 and text[second] == 0x80 and 0xA8 <= text[second + _ONE] <= 0xA9:
            return SEPARATOR
        at += uint64(more + 1)
    return FINE


@njit(nogil=True, cache=True)
def find_newlines(text, begin):
    """Where the newlines from `begin` on are."""
    count = 0
    for byte in text[begin:]:
        count += byte == 0x0A
    found = np.empty(count, dtype=np.int64)
    noted = 0
    at, stop = uint64(begin), uint64(len(text))
    while at + uint64(8) <= stop:
        # The classic test for a zero byte, here for a byte equal to a newline. Again only the first
        # mark is certain.
        word = _load64(text, at) ^ _NEWLINES
        marks = (word - _ONES) & ~word & _HIGH_BITS
        if marks == _ZERO:
            at += uint64(8)
            continue
        at += _first_marked(marks)
        found[noted] = at
        noted += 1
        at += _ONE
    while at < stop:
        if text[at] == 0x0A:
            found[noted] = at
            noted += 1
        at += _ONE
    return found


@njit(nogil=True, cache=True, inline="always")
def _blank(byte):
    return byte == 0x20 or byte == 0x09 or byte == 0x0D


@njit(nogil=True, cache=True)
def strip_lines(text, starts, ends):
    """Move the bounds of every line past blanks, tabs and carriage returns, in place."""
    for i in range(len(starts)):
        start, end = starts[i], ends[i]
        while start < end and _blank(text[start]):
            start += 1
        while end > start and _blank(text[end - 1]):
            end -= 1
        starts[i] = start
        ends[i] = end


@njit(nogil=True, cache=True)
def judge_lines(text, starts, ends, verdicts, keys):
    """Verdict on every line, and its 128-bit key if it is fine."""
    for i in range(len(starts)):
        verdict = _verdict(text, starts[i], ends[i])
        verdicts[i] = verdict
        if verdict == FINE:
            keys[i, 0], keys[i, 1] = murmur3_128(text, starts[i], ends[i])


@njit(nogil=True, cache=True)
def combine_pairs(verdicts, keys, other_verdicts, other_keys):
    """Fold the second side of a pair into the first: first fault wins, one key for the pair."""
    for i in range(len(verdicts)):
        if verdicts[i] == FINE:
            verdicts[i] = other_verdicts[i]
        # Not symmetric: (a, b) and (b, a) are different pairs.
        h1 = keys[i, 0] * _C1 + _rotate(other_keys[i, 0], 31)
        h2 = keys[i, 1] * _C2 + _rotate(other_keys[i, 1], 27)
        keys[i, 0] = _mix(h1 + h2)
        keys[i, 1] = _mix(h2 ^ _rotate(h1, 17))


@njit(nogil=True, cache=True, inline="always")
def _slot(table, key0, key1):
    """Where a key is in an open-addressing table of (key, key) rows, or the free row for it.

    The size of the table is a power of two; a free row is (0, 0).
    """
    mask = uint64(len(table) - 1)
    slot = key1 & mask
    while True:
        row0, row1 = table[slot, 0], table[slot, 1]
        if (row0 == key0 and row1 == key1) or (row0 == _ZERO and row1 == _ZERO):
            return slot
        slot = (slot + _ONE) & mask


@njit(nogil=True, cache=True, inline="always")
def _not_free(key0, key1):
    """The key (0, 0), which the hash gives to no line that anybody will meet, becomes (0, 1)."""
    return _ONE if key0 == _ZERO and key1 == _ZERO else key1


@njit(nogil=True, cache=True)
def insert(table, key0, key1):
    """Put a key into a table; False if it was there already."""
    key1 = _not_free(key0, key1)
    slot = _slot(table, key0, key1)
    if table[slot, 0] == key0 and table[slot, 1] == key1:
        return False
    table[slot, 0] = key0
    table[slot, 1] = key1
    return True


@njit(nogil=True, cache=True)
def contains(table, key0, key1):
    key1 = _not_free(key0, key1)
    slot = _slot(table, key0, key1)
    return table[slot, 0] == key0 and table[slot, 1] == key1


@njit(nogil=True, cache=True)
def mark_held_out(table, verdicts, keys):
    for i in range(len(verdicts)):
        if verdicts[i] == FINE and contains(table, keys[i, 0], keys[i, 1]):
            verdicts[i] = HELD_OUT


@njit(nogil=True, cache=True)
def partition(verdicts, keys, first_index, bits, records, bounds):
    """Group the fine lines of a block by the top `bits` of their key, in order within a group.

    `records` rows are (key, key, index of the line); group p is records[bounds[p]:bounds[p + 1]].
    """
    shift = uint64(64 - bits)
    bounds[:] = 0
    for i in range(len(verdicts)):
        if verdicts[i] == FINE:
            bounds[(keys[i, 0] >> shift) + uint64(1)] += 1
    for p in range(1, len(bounds)):
        bounds[p] += bounds[p - 1]
    cursor = bounds[:-1].copy()
    for i in range(len(verdicts)):
        if verdicts[i] == FINE:
            p = keys[i, 0] >> shift
            row = cursor[p]
            cursor[p] += 1
            records[row, 0] = keys[i, 0]
            records[row, 1] = keys[i, 1]
            records[row, 2] = uint64(first_index + i)


@njit(nogil=True, cache=True)
def first_occurrences(table, filled, records, start, kept):
    """Go through records from `start`: note the index of every key met for the first time.

    Stops when the table is two thirds full. Returns where it stopped, how many keys are in the
    table and how many indices were noted in `kept`.
    """
    noted = 0
    limit = len(table) * 2 // 3
    for i in range(start, len(records)):
        if filled >= limit:
            return i, filled, noted
        if insert(table, records[i, 0], records[i, 1]):
            filled += 1
            kept[noted] = records[i, 2]
            noted += 1
    return len(records), filled, noted


@njit(nogil=True, cache=True)
def grow(table):
    """The same keys in a table of twice the size."""
    larger = np.zeros((2 * len(table), 2), dtype=np.uint64)
    for i in range(len(table)):
        if table[i, 0] != _ZERO or table[i, 1] != _ZERO:
            insert(larger, table[i, 0], table[i, 1])
    return larger


@njit(nogil=True, cache=True)
def set_bits(bitmap, indices):
    for i in range(len(indices)):
        bitmap[indices[i] >> uint64(3)] |= np.uint8(1 << (indices[i] & uint64(7)))


@njit(nogil=True, cache=True, inline="always")
def _copy(text, begin, end, out, size):
    out[size : size + end - begin] = text[begin:end]
    size += end - begin
    out[size] = 0x0A
    return size + 1


@njit(nogil=True, cache=True)
def copy_lines(text, starts, ends, bitmap, first_index, out):
    """The lines whose bit is set, each with a newline, one after the other; the bytes written.

    Neighbours that follow each other in the text, newline between, are copied in one piece.
    """
    size = 0
    begin = end = -1  # the piece that is being put together
    for i in range(len(starts)):
        index = first_index + i
        if not bitmap[index >> 3] & np.uint8(1 << (index & 7)):
            continue
        if begin >= 0 and starts[i] == end + 1 and text[end] == 0x0A:
            end = ends[i]
            continue
        if begin >= 0:
            size = _copy(text, begin, end, out, size)
        begin, end = starts[i], ends[i]
    if begin >= 0:
        size = _copy(text, begin, end, out, size)
    return size
