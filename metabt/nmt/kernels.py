"""Compiled loops for CPUs, in training and decoding: many passes of torch over memory, in one.

All of them work on float32 rows of tokens without padding (ragged.py), in one thread, without the
interpreter's lock: the trainer gives each thread sentences of its own. tests/test_operators.py
holds them against torch's own operators. GPUs never come here.
"""

import numpy as np
from numba import float32, int32, njit, uint32

_MIX1 = np.uint32(0x7FEB352D)
_MIX2 = np.uint32(0x846CA68B)
BLOCK = 128  # numbers of a row that are looked at together

# Sums in any order, but a value that is not finite stays so: the trainer looks for it.
_OPTIONS = {
    "nogil": True,
    "cache": True,
    "fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"},
    "error_model": "numpy",
}
_compiled = njit(**_OPTIONS)
# What the loops share becomes a part of each. If it were called, a loop that was just compiled and
# the same loop read from numba's cache would be linked to copies that add up in different orders
# (_exp, _maximum and _longest have one order only, and are called).
_part = njit(inline="always", **_OPTIONS)


@njit(nogil=True, cache=True, inline="always")
def _hash(i, low, high):
    """32 bits that look random, of a counter and a seed of 64 bits."""
    x = uint32(uint32(i) ^ low)  # numba makes 64 bits of every operation on 32
    x = uint32(x ^ (x >> uint32(16)))
    x = uint32(x + high)
    x = uint32(x * _MIX1)
    x = uint32(x ^ (x >> uint32(15)))
    x = uint32(x * _MIX2)
    x = uint32(x ^ (x >> uint32(16)))
    return x


# --- norm(x + dropout(y + bias)) ------------------------------------------------------------------
# An element is dropped if the hash of its number is below `dropped` of 2^32. The mask is never
# stored: the backward pass computes it again.


@_compiled
def residual_forward(x, y, bias, dropped, scale, low, high):
    """y becomes x + dropout(y + bias)."""
    rows, width = x.shape
    for t in range(rows):
        for d in range(width):
            keep = _hash(t * width + d, low, high) >= dropped
            y[t, d] = x[t, d] + ((y[t, d] + bias[d]) * scale if keep else float32(0))


@_compiled
def norm_forward(x, weight, bias, epsilon, out, mean, rstd):
    rows, width = x.shape
    share = float32(1) / float32(width)
    for t in range(rows):
        total = float32(0)
        for d in range(width):
            total += x[t, d]
        centre = total * share
        squares = float32(0)
        for d in range(width):
            squares += (x[t, d] - centre) * (x[t, d] - centre)
        inverse = float32(1) / np.sqrt(squares * share + float32(epsilon))
        mean[t], rstd[t] = centre, inverse
        for d in range(width):
            out[t, d] = (x[t, d] - centre) * inverse * weight[d] + bias[d]


@_compiled
def norm_backward(grad, x, weight, mean, rstd, grad_x, grad_weight, grad_bias):
    rows, width = x.shape
    share = float32(1) / float32(width)
    for t in range(rows):
        centre, inverse = mean[t], rstd[t]
        total = float32(0)
        dot = float32(0)
        for d in range(width):
            normal = (x[t, d] - centre) * inverse
            slope = grad[t, d] * weight[d]
            total += slope
            dot += slope * normal
            grad_weight[d] += grad[t, d] * normal
            grad_bias[d] += grad[t, d]
        total *= share
        dot *= share
        for d in range(width):
            normal = (x[t, d] - centre) * inverse
            grad_x[t, d] = (grad[t, d] * weight[d] - total - normal * dot) * inverse


@_compiled
def residual_backward(grad, dropped, scale, low, high, grad_y, grad_bias):
    rows, width = grad.shape
    for t in range(rows):
        for d in range(width):
            keep = _hash(t * width + d, low, high) >= dropped
            value = grad[t, d] * scale if keep else float32(0)
            grad_y[t, d] = value
            grad_bias[d] += value


# --- relu(x + bias) -------------------------------------------------------------------------------


@_compiled
def relu_forward(x, bias):
    rows, width = x.shape
    for t in range(rows):
        for d in range(width):
            value = x[t, d] + bias[d]
            x[t, d] = float32(0) if value < float32(0) else value


@_compiled
def relu_backward(grad, out, grad_bias):
    """grad becomes that of x."""
    rows, width = grad.shape
    for t in range(rows):
        for d in range(width):
            value = float32(0) if out[t, d] == float32(0) else grad[t, d]
            grad[t, d] = value
            grad_bias[d] += value


# --- attention ------------------------------------------------------------------------------------
# Queries are the first columns of one array; keys and values are columns of another one or the
# same, beginning at k0 and v0. Sentence b has the rows from ends[b - 1] to ends[b].


@_part
def _dot(a, b):
    total = float32(0)
    for d in range(len(a)):
        total += a[d] * b[d]
    return total


@_part
def _add(a, factor, b):
    for d in range(len(a)):
        a[d] += factor * b[d]


@njit(nogil=True, cache=True, error_model="numpy")
def _exp(x):
    """exp(x) for x <= 0 to 3e-7 of it, in operations that run on many numbers at once."""
    halves = np.floor(x * float32(1.4426950408889634) + float32(0.5))
    r = (x - halves * float32(0.693359375)) + halves * float32(2.12194440e-4)
    power = float32(1.9875691500e-4) * r + float32(1.3981999507e-3)
    power = power * r + float32(8.3334519073e-3)
    power = power * r + float32(4.1665795894e-2)
    power = power * r + float32(1.6666665459e-1)
    power = power * r + float32(5.0000001201e-1)
    power = power * r * r + r + float32(1)
    scale = np.int32(int32(int32(halves) + int32(127)) << int32(23)).view(np.float32)
    return float32(0) if x < float32(-87) else power * scale


@njit(nogil=True, cache=True, inline="always")
def _ordered(x):
    """An integer for each float, in the same order (a maximum of integers is found faster)."""
    return np.int32(x ^ (np.int32(x >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@njit(nogil=True, cache=True, error_model="numpy")
def _maximum(values):
    bits = values.view(np.int32)
    highest = _ordered(bits[0])
    for j in range(len(bits)):
        value = _ordered(bits[j])
        highest = value if value > highest else highest
    return np.int32(_ordered(highest)).view(np.float32)


@_part
def _exponentiate(scores):
    """exp(scores - max) in place; what they must be multiplied by to sum to 1."""
    highest = float32(-np.inf)
    for j in range(len(scores)):
        highest = max(highest, scores[j])
    total = float32(0)
    for j in range(len(scores)):
        scores[j] = np.exp(scores[j] - highest)
        total += scores[j]
    return float32(1) / total


@njit(nogil=True, cache=True)
def _longest(ends):
    """The length of the longest sentence."""
    longest = 0
    for b in range(len(ends)):
        longest = max(longest, ends[b] - (ends[b - 1] if b else 0))
    return longest


@_compiled
def attention_forward(queries, memory, k0, v0, q_ends, m_ends, heads, width, causal, out, weights):
    """`weights` receives every softmax, one after the other: sentence, head, query."""
    size = width // heads
    scale = float32(1 / np.sqrt(size))
    at = 0
    q_begin = m_begin = 0
    for b in range(len(q_ends)):
        q_end, m_end = q_ends[b], m_ends[b]
        for h in range(heads):
            q1, k1, v1 = h * size, k0 + h * size, v0 + h * size
            for i in range(q_begin, q_end):
                seen = i - q_begin + 1 if causal else m_end - m_begin
                softmax = weights[at : at + seen]
                query = queries[i, q1 : q1 + size]
                for j in range(seen):
                    softmax[j] = scale * _dot(query, memory[m_begin + j, k1 : k1 + size])
                total = _exponentiate(softmax)
                result = out[i, q1 : q1 + size]
                result[:] = 0
                for j in range(seen):
                    softmax[j] *= total
                    _add(result, softmax[j], memory[m_begin + j, v1 : v1 + size])
                at += seen
        q_begin, m_begin = q_end, m_end


@_compiled
def attention_backward(
    grad, queries, memory, k0, v0, q_ends, m_ends, heads, width, causal, weights, grad_q, grad_m
):
    """Adds to `grad_q` and `grad_m`, which have the columns of `queries` and `memory`."""
    size = width // heads
    scale = float32(1 / np.sqrt(size))
    at = 0
    q_begin = m_begin = 0
    longest = _longest(m_ends)
    slopes = np.empty(longest, np.float32)
    for b in range(len(q_ends)):
        q_end, m_end = q_ends[b], m_ends[b]
        for h in range(heads):
            q1, k1, v1 = h * size, k0 + h * size, v0 + h * size
            for i in range(q_begin, q_end):
                seen = i - q_begin + 1 if causal else m_end - m_begin
                softmax = weights[at : at + seen]
                slope = grad[i, q1 : q1 + size]
                query = queries[i, q1 : q1 + size]
                grad_query = grad_q[i, q1 : q1 + size]
                total = float32(0)
                for j in range(seen):
                    slopes[j] = _dot(slope, memory[m_begin + j, v1 : v1 + size])
                    total += slopes[j] * softmax[j]
                    _add(grad_m[m_begin + j, v1 : v1 + size], softmax[j], slope)
                for j in range(seen):
                    factor = softmax[j] * (slopes[j] - total) * scale
                    _add(grad_query, factor, memory[m_begin + j, k1 : k1 + size])
                    _add(grad_m[m_begin + j, k1 : k1 + size], factor, query)
                at += seen
        q_begin, m_begin = q_end, m_end


# --- forward-mode derivatives ---------------------------------------------------------------------
# Each value with its tangent (d_...), in one pass; nothing is dropped.


@_compiled
def relu_tangent(x, bias, d_x, d_bias):
    """x becomes relu(x + bias), and d_x its tangent."""
    for t in range(x.shape[0]):
        for f in range(x.shape[1]):
            value = x[t, f] + bias[f]
            d_x[t, f] = d_x[t, f] + d_bias[f] if value > 0 else float32(0)
            x[t, f] = max(value, float32(0))


@_compiled
def norm_tangent(x, weight, bias, epsilon, d_x, d_weight, d_bias):
    """x becomes norm(x), and d_x its tangent."""
    rows, width = x.shape
    share = float32(1) / float32(width)
    for t in range(rows):
        total, d_total = float32(0), float32(0)
        for d in range(width):
            total += x[t, d]
            d_total += d_x[t, d]
        mean, d_mean = total * share, d_total * share
        squares, products = float32(0), float32(0)
        for d in range(width):
            centred = x[t, d] - mean
            squares += centred * centred
            products += centred * d_x[t, d]
        rstd = float32(1) / np.sqrt(squares * share + float32(epsilon))
        slope = products * share * rstd * rstd
        for d in range(width):
            centred = x[t, d] - mean
            d_x[t, d] = (
                (d_x[t, d] - d_mean - centred * slope) * rstd * weight[d]
                + centred * rstd * d_weight[d]
                + d_bias[d]
            )
            x[t, d] = centred * rstd * weight[d] + bias[d]


@_compiled
def attention_tangent(
    queries, memory, d_queries, d_memory, k0, v0, q_ends, m_ends, heads, width, causal, out, d_out
):
    """As attention_forward, with the tangent of what it writes."""
    size = width // heads
    scale = float32(1 / np.sqrt(size))
    longest = _longest(m_ends)
    softmax, slopes = np.empty(longest, np.float32), np.empty(longest, np.float32)
    q_begin = m_begin = 0
    for b in range(len(q_ends)):
        q_end, m_end = q_ends[b], m_ends[b]
        for h in range(heads):
            q1, k1, v1 = h * size, k0 + h * size, v0 + h * size
            for i in range(q_begin, q_end):
                seen = i - q_begin + 1 if causal else m_end - m_begin
                query, d_query = queries[i, q1 : q1 + size], d_queries[i, q1 : q1 + size]
                for j in range(seen):
                    key = memory[m_begin + j, k1 : k1 + size]
                    d_key = d_memory[m_begin + j, k1 : k1 + size]
                    softmax[j] = scale * _dot(query, key)
                    slopes[j] = scale * (_dot(d_query, key) + _dot(query, d_key))
                total = _exponentiate(softmax[:seen])
                mean = float32(0)
                for j in range(seen):
                    softmax[j] *= total
                    mean += softmax[j] * slopes[j]
                result, d_result = out[i, q1 : q1 + size], d_out[i, q1 : q1 + size]
                result[:] = 0
                d_result[:] = 0
                for j in range(seen):
                    value = memory[m_begin + j, v1 : v1 + size]
                    _add(result, softmax[j], value)
                    _add(d_result, softmax[j] * (slopes[j] - mean), value)
                    _add(d_result, softmax[j], d_memory[m_begin + j, v1 : v1 + size])
        q_begin, m_begin = q_end, m_end


# --- decoding -------------------------------------------------------------------------------------


@_compiled
def attention_step(queries, memory, k0, v0, owners, lengths, rows, beam, heads, width, out):
    """One query for each of `beam` hypotheses a sentence, which share the sentence's memory.

    Sentence b has memory[owners[b]]. Its hypothesis w sees rows[b, w] of it; if there are no rows,
    the first lengths[b].
    """
    size = width // heads
    scale = float32(1 / np.sqrt(size))
    chosen = rows.shape[2]
    softmax = np.empty(memory.shape[1], np.float32)
    for b in range(len(owners)):
        mine = memory[owners[b]]
        for w in range(beam):
            n = b * beam + w
            seen = chosen if chosen else lengths[b]
            for h in range(heads):
                q1, k1, v1 = h * size, k0 + h * size, v0 + h * size
                query = queries[n, q1 : q1 + size]
                for j in range(seen):
                    row = rows[b, w, j] if chosen else j
                    softmax[j] = scale * _dot(query, mine[row, k1 : k1 + size])
                total = _exponentiate(softmax[:seen])
                result = out[n, q1 : q1 + size]
                result[:] = 0
                for j in range(seen):
                    row = rows[b, w, j] if chosen else j
                    _add(result, softmax[j] * total, mine[row, v1 : v1 + size])


@_compiled
def remember(states, first, memory, owners, begin, beam):
    """Copy the columns of `states` from `first` on to the next rows of each sentence's memory."""
    width = memory.shape[2]
    for b in range(len(owners)):
        for w in range(beam):
            memory[owners[b], begin + w, :] = states[b * beam + w, first : first + width]


@njit(nogil=True, cache=True, fastmath=True, error_model="numpy")
def largest(x, values, places):
    """The k largest of each row, in order; of equal ones the first. A block is looked through only
    if its maximum is one of them."""
    rows, width = x.shape
    k = values.shape[1]
    for n in range(rows):
        row, best, where = x[n], values[n], places[n]
        best[:] = -np.inf
        where[:] = 0
        for begin in range(0, width, BLOCK):
            block = row[begin : begin + BLOCK]
            if _maximum(block) > best[k - 1]:
                for j in range(len(block)):
                    value = block[j]
                    if value > best[k - 1]:
                        i = k - 1
                        while i > 0 and best[i - 1] < value:
                            best[i], where[i] = best[i - 1], where[i - 1]
                            i -= 1
                        best[i], where[i] = value, begin + j


@_compiled
def log_totals(x, shift, out):
    """log sum exp(x - shift) of each row; shift is its maximum."""
    for n in range(len(x)):
        row = x[n]
        total = float32(0)
        for j in range(len(row)):
            total += _exp(row[j] - shift[n])
        out[n] = np.log(total)


@_compiled
def draw(x, uniform, places, log_probs):
    """For each row the place at which the cumulated softmax passes u; x is overwritten."""
    rows, width = x.shape
    blocks = (width + BLOCK - 1) // BLOCK
    sums = np.empty(blocks, np.float64)
    for n in range(rows):
        row = x[n]
        highest = _maximum(row)
        whole = 0.0
        for g in range(blocks):
            block = row[g * BLOCK : (g + 1) * BLOCK]
            total = float32(0)
            for j in range(len(block)):
                block[j] = _exp(block[j] - highest)
                total += block[j]
            sums[g] = total
            whole += total
        level = uniform[n] * whole
        g = 0
        while g < blocks - 1 and level >= sums[g]:
            level -= sums[g]
            g += 1
        # Rounding may leave nothing to pass u: then the last place with any weight is taken.
        while g > 0 and sums[g] == 0:
            g -= 1
        chosen = g * BLOCK
        for j in range(g * BLOCK, min((g + 1) * BLOCK, width)):
            if row[j] > 0:
                chosen = j
                if level < row[j]:
                    break
                level -= row[j]
        places[n] = chosen
        log_probs[n] = np.log(row[chosen] / whole)
