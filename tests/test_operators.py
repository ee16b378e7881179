"""Each operator against plain torch in float64, one sentence and one head at a time."""

import math
import os
import subprocess
import sys
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from metabt.nmt.operators import (
    Dropout,
    Packed,
    attention,
    drop,
    forward_mode,
    linear,
    relu,
    residual,
)
from metabt.nmt.ragged import Ragged

lengths_lists = st.lists(st.integers(1, 9), min_size=1, max_size=5)
heads_counts = st.integers(1, 4)
head_sizes = st.sampled_from([1, 2, 3, 5, 8, 16, 17])
widths = st.sampled_from([1, 2, 3, 7, 15, 16, 17, 33, 50])
row_counts = st.integers(1, 12)
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=20, deadline=None)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors are tiny here: threads would wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def normal(seed: int, *shapes: tuple[int, ...], scale: float = 1.0) -> list[Tensor]:
    """Random numbers in float64 that float32 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return [(scale * torch.randn(s, generator=generator)).double() for s in shapes]


def ragged(lengths: list[int]) -> Ragged:
    return Ragged.of([np.zeros(n, np.int64) for n in lengths])


def leaves(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [t.to(dtype, copy=True).requires_grad_() for t in tensors]


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Equal within a share of the largest value."""
    assert got.shape == expected.shape
    largest = max(1.0, expected.abs().max().item())
    assert (got.double() - expected.double()).abs().max().item() <= tolerance * largest


def compare(got: Tensor, got_inputs: list[Tensor], expected: Tensor, inputs: list[Tensor], **kw):
    """The same values, and the same gradients of a random linear function of them.

    Its last step is a matrix product, as in the models, where a gradient is nobody else's.
    """
    close(got, expected, **kw)
    (out,) = normal(7, (expected.shape[1], 3))
    (slopes,) = normal(8, (expected.shape[0], 3))
    got_grads = torch.autograd.grad(
        ((got @ out.to(got.dtype)) * slopes.to(got.dtype)).sum(), got_inputs
    )
    grads = torch.autograd.grad(((expected @ out) * slopes).sum(), inputs)
    for got_grad, grad in zip(got_grads, grads, strict=True):
        close(got_grad, grad, **kw)


# --- attention ------------------------------------------------------------------------------------


def plain_attention(q, k, v, q_lengths, m_lengths, heads, causal):
    """softmax(q k' / sqrt(K)) v with -inf where a query must not look."""
    outputs = []
    parts = (x.split(n) for x, n in ((q, q_lengths), (k, m_lengths), (v, m_lengths)))
    for q_b, k_b, v_b in zip(*parts, strict=True):
        columns = []
        for q_h, k_h, v_h in zip(*(x.chunk(heads, 1) for x in (q_b, k_b, v_b)), strict=True):
            scores = q_h @ k_h.T / math.sqrt(q_h.shape[1])
            if causal:
                scores = scores + torch.full_like(scores, -math.inf).triu(1)
            columns.append(scores.softmax(1) @ v_h)
        outputs.append(torch.cat(columns, 1))
    return torch.cat(outputs)


FORMS = {  # what an operator may use: its type, whether forward mode is on, how exact it is
    "compiled": (torch.float32, nullcontext, 1e-5),
    "torch": (torch.float64, nullcontext, 1e-12),
    "forward mode": (torch.float64, forward_mode, 1e-12),
    "forward mode in single precision": (torch.float32, forward_mode, 1e-5),
}
forms = pytest.mark.parametrize("form", FORMS)


@forms
@pytest.mark.parametrize("causal", [False, True])
@given(lengths=lengths_lists, heads=heads_counts, size=head_sizes, seed=seeds)
@few
def test_self_attention(form, causal, lengths, heads, size, seed):
    dtype, mode, tolerance = FORMS[form]
    width = heads * size
    data = normal(seed, (sum(lengths), 3 * width))
    (x,) = leaves(data, torch.float64)
    expected = plain_attention(*x.chunk(3, 1), lengths, lengths, heads, causal)
    (y,) = leaves(data, dtype)
    batch = ragged(lengths)
    with mode():
        got = attention(y, y, batch, batch, heads=heads, causal=causal)
        compare(got, [y], expected, [x], tolerance=tolerance)


@forms
@given(
    pairs=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    heads=heads_counts,
    size=head_sizes,
    seed=seeds,
)
@example(pairs=[(2, 3), (2, 1)], heads=2, size=3, seed=1)  # only one of the sides has padding
@example(pairs=[(3, 2), (1, 2)], heads=2, size=3, seed=1)
@few
def test_cross_attention(form, pairs, heads, size, seed):
    dtype, mode, tolerance = FORMS[form]
    width = heads * size
    q_lengths, m_lengths = (list(x) for x in zip(*pairs, strict=True))
    data = normal(seed, (sum(q_lengths), width), (sum(m_lengths), 2 * width))
    q, kv = leaves(data, torch.float64)
    expected = plain_attention(q, *kv.chunk(2, 1), q_lengths, m_lengths, heads, causal=False)
    inputs = leaves(data, dtype)
    with mode():
        got = attention(*inputs, ragged(q_lengths), ragged(m_lengths), heads=heads, causal=False)
        compare(got, inputs, expected, [q, kv], tolerance=tolerance)


@forms
@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_scores_far_beyond_the_range_of_exp(form, causal):
    """Scores of thousands: nothing overflows, and most softmaxes choose one key."""
    dtype, mode, tolerance = FORMS[form]
    lengths, data = [6, 1, 4], normal(5, (11, 24), scale=60.0)
    (x,) = leaves(data, torch.float64)
    expected = plain_attention(*x.chunk(3, 1), lengths, lengths, 2, causal)
    (y,) = leaves(data, dtype)
    batch = ragged(lengths)
    with mode():
        got = attention(y, y, batch, batch, heads=2, causal=causal)
        close(got, expected, 100 * tolerance)
        got.sum().backward()
    assert y.grad.isfinite().all()


def test_attention_of_columns_of_a_larger_array():
    """Inputs need not be contiguous, nor the gradient that comes back."""
    lengths, data = [3, 5], normal(3, (24, 8))
    (x,) = leaves(data, torch.float64)
    expected = plain_attention(*x.T.chunk(3, 1), lengths, lengths, 2, causal=True)
    (y,) = leaves(data, torch.float32)
    transposed, batch = y.T, ragged(lengths)
    got = attention(transposed, transposed, batch, batch, heads=2, causal=True)
    compare(got, [y], expected, [x])
    got = attention(transposed, transposed, batch, batch, heads=2, causal=True)
    (grad,) = torch.autograd.grad(got.sum(), y)  # the sum's gradient is one number, expanded
    expected = plain_attention(*x.T.chunk(3, 1), lengths, lengths, 2, causal=True)
    close(grad, torch.autograd.grad(expected.sum(), x)[0])


def test_attention_leaves_its_inputs_alone():
    (x,) = normal(4, (7, 12))
    y = x.float()
    batch = ragged([3, 4])
    attention(y, y, batch, batch, heads=2, causal=True)
    assert torch.equal(y, x.float())


# --- ragged batches -------------------------------------------------------------------------------

sentence_lists = st.lists(
    st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=5
)


@given(
    sentences=sentence_lists,
    first=st.none() | st.integers(100, 102),
    last=st.none() | st.integers(103, 105),
)
@few
def test_sentences_in_one_row(sentences, first, last):
    """Marks, places and numbers of sentences, and sums by sentence, as lists would have them."""
    batch = Ragged.of([np.array(s, np.uint16) for s in sentences], first, last)
    before = [] if first is None else [first]
    after = [] if last is None else [last]
    marked = [before + s + after for s in sentences]
    assert batch.ids_T.tolist() == [token for s in marked for token in s]
    assert batch.ids_T.dtype == torch.int64
    assert len(batch) == len(sentences)
    assert batch.lengths.tolist() == batch.lengths_B.tolist() == [len(s) for s in marked]
    assert batch.longest == max(len(s) for s in marked)
    assert batch.full == (len({len(s) for s in marked}) == 1)
    assert batch.positions_T.tolist() == [i for s in marked for i in range(len(s))]
    assert batch.sentences_T.tolist() == [b for b, s in enumerate(marked) for _ in s]
    assert batch.sum_by_sentence(batch.ids_T).tolist() == [sum(s) for s in marked]
    assert batch.mask_BL.tolist() == [[i < len(s) for i in range(batch.longest)] for s in marked]


def test_sentences_without_tokens_but_marks():
    batch = Ragged.of([np.array([], np.int64), np.array([5])], first=1, last=2)
    assert batch.ids_T.tolist() == [1, 2, 1, 5, 2]
    assert len(Ragged.of([])) == 0


@given(lengths=lengths_lists, width=st.integers(1, 3), seed=seeds)
@few
def test_pad_and_unpad(lengths, width, seed):
    """Tokens to their cells and back, with derivatives in both directions."""
    batch = ragged(lengths)
    (x,) = leaves(normal(seed, (sum(lengths), width)), torch.float64)
    padded = batch.pad(x)
    assert padded.shape == (len(lengths), max(lengths), width)
    assert all(
        torch.equal(a[:n], b) for a, n, b in zip(padded, lengths, x.split(lengths), strict=True)
    )
    assert torch.equal(batch.unpad(padded), x)

    def masked(x: Tensor) -> Tensor:
        """What stands in padding cells must not matter."""
        return (batch.pad(x) * batch.mask_BL[:, :, None]).square()

    assert torch.autograd.gradcheck(masked, (x,), check_forward_ad=True)
    (y,) = leaves(normal(seed, (len(lengths), max(lengths), width)), torch.float64)
    assert torch.autograd.gradcheck(batch.unpad, (y,), check_forward_ad=True)


# --- relu -----------------------------------------------------------------------------------------


@forms
@given(rows=row_counts, width=widths, seed=seeds)
@few
def test_relu(form, rows, width, seed):
    dtype, mode, tolerance = FORMS[form]
    data = normal(seed, (rows, width), (width,))
    x, bias = leaves(data, torch.float64)
    inputs = leaves(data, dtype)
    with mode():
        got = relu(inputs[0] * 1, inputs[1])
        compare(got, inputs, (x + bias).clamp(min=0), [x, bias], tolerance=tolerance)


# --- residual, norm -------------------------------------------------------------------------------


def norm_of(width: int, data: list[Tensor], dtype: torch.dtype) -> nn.LayerNorm:
    norm = nn.LayerNorm(width, 1e-5, dtype=dtype)
    norm.load_state_dict({"weight": data[0].to(dtype), "bias": data[1].to(dtype)})
    return norm


def plain_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight + bias


def steepness(x: Tensor) -> float:
    """By how much a norm enlarges errors: rows of nearly equal numbers make it nearly a step."""
    variance = x.detach().var(1, correction=0).min().item() + 1e-5
    return max(1.0, x.detach().square().max().item() / variance)


@forms
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("training", [False, True])
@given(rows=row_counts, width=widths, seed=seeds)
@few
def test_residual_that_drops_nothing(form, with_norm, training, rows, width, seed):
    """norm(x + y + bias), if the rate is 0 or the model does not train."""
    dtype, mode, tolerance = FORMS[form]
    data = normal(seed, (rows, width), (rows, width), (width,))
    norm_data = normal(seed + 1, (width,), (width,))
    x, y, bias = reference = leaves(data, torch.float64)
    expected = x + y + bias
    if with_norm:
        reference += (weights := leaves(norm_data, torch.float64))
        expected = plain_norm(expected, *weights)
    inputs = leaves(data, dtype)
    norm = norm_of(width, norm_data, dtype) if with_norm else None
    with mode():
        got = residual(
            inputs[0], inputs[1] * 1, inputs[2], Dropout(0.0 if training else 0.5), norm, training
        )
        if norm is not None:
            inputs += [norm.weight, norm.bias]
            tolerance *= steepness(x + y + bias)
        compare(got, inputs, expected, reference, tolerance=tolerance)


def test_norm_of_rows_far_from_zero():
    """The variance is of distances from the mean: no cancellation of large squares."""
    (x,) = normal(2, (5, 33))
    y = (x + 1000).float()
    norm_data = normal(3, (33,), (33,))
    zero = torch.zeros(33)
    got = residual(
        y, torch.zeros(5, 33), zero, Dropout(0.0), norm_of(33, norm_data, zero.dtype), True
    )
    close(got, plain_norm(y.double(), *norm_data), 1e-4)


def test_norm_of_constant_rows():
    x = torch.full((4, 10), 3.0, requires_grad=True)
    norm = norm_of(10, normal(3, (10,), (10,)), torch.float32)
    got = residual(x, torch.zeros(4, 10), torch.zeros(10), Dropout(0.0), norm, True)
    close(got, norm.bias.expand(4, 10))
    (grad,) = torch.autograd.grad((got @ torch.randn(10, 2)).sum(), x)
    assert grad.isfinite().all()


@pytest.mark.parametrize("operator", ["relu", "residual", "norm", "attention"])
def test_nan_is_not_hidden(operator):
    """Training that diverges must show: a NaN in a token's input is one in its output."""
    x, zero = torch.ones(3, 12), torch.zeros(12)
    x[1, 5] = math.nan
    if operator == "relu":
        out = relu(x, zero)
    elif operator == "attention":
        out = attention(x, x, ragged([3]), ragged([3]), heads=1, causal=False)
    else:
        norm = nn.LayerNorm(12) if operator == "norm" else None
        out = residual(torch.zeros(3, 12), x, zero, Dropout(0.0), norm, True)
    assert out[1].isnan().any()


@pytest.mark.parametrize("operator", ["norm", "attention"])
def test_a_second_derivative_is_right_or_refused(operator):
    """With create_graph: never silently without the operator's own curvature."""

    def second(dtype: torch.dtype) -> Tensor:
        x, slopes = (t.to(dtype) for t in normal(1, (5, 12), (12, 2)))
        x.requires_grad_()
        matrix = torch.eye(12, dtype=dtype, requires_grad=True)
        y = x @ matrix
        if operator == "attention":
            out = attention(y, y, ragged([3, 2]), ragged([3, 2]), heads=2, causal=True)
            slopes = slopes[:4]
        else:
            zero = torch.zeros(12, dtype=dtype)
            norm = nn.LayerNorm(12, dtype=dtype)
            out = residual(torch.zeros_like(x), y, zero, Dropout(0.0), norm, True)
        (gradient,) = torch.autograd.grad((out @ slopes).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), matrix)[0]

    with forward_mode():
        expected = second(torch.float64)
    try:
        got = second(torch.float32)
    except RuntimeError:
        return
    close(got, expected, 1e-4)


# --- dropout --------------------------------------------------------------------------------------

compiled_or_torch = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def kept(dropout: Dropout, rows: int, width: int) -> np.ndarray:
    """The next mask, 1 where an element is kept."""
    return (drop(torch.ones(rows, width), dropout, True) != 0).double().numpy()


def restarted(rate: float, seed: int, calls: int = 0) -> Dropout:
    dropout = Dropout(rate)
    dropout.restart((seed,))
    for _ in range(calls):
        dropout.next_seed()
    return dropout


@compiled_or_torch
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_dropout_keeps_the_right_share_and_scales_it(dtype, rate):
    """The number kept is binomial (5 standard deviations); what is kept is divided by its share."""
    torch.manual_seed(1)
    rows, width = 400, 250
    out = drop(torch.full((rows, width), 3.0, dtype=dtype), restarted(rate, 11), True)
    keep = out != 0
    assert torch.allclose(out[keep], torch.tensor(3 / (1 - rate), dtype=dtype))
    for axis, numbers in ((None, rows * width), (0, rows), (1, width)):
        shares = keep.double().mean() if axis is None else keep.double().mean(axis)
        deviation = math.sqrt(rate * (1 - rate) / numbers)
        # 5 of the whole, 6 of each row and column: of the rate 0.01 the tail is not normal.
        limit = 5 if axis is None else 6 + 2 * (rate < 0.05)
        assert ((shares - (1 - rate)).abs() < limit * deviation).all()


@compiled_or_torch
def test_no_dropout_unless_training(dtype):
    x = torch.arange(12.0, dtype=dtype).view(3, 4)
    assert torch.equal(drop(x * 1, Dropout(0.5), False), x)
    assert torch.equal(drop(x * 1, Dropout(0.0), True), x)
    zero = torch.zeros(4, dtype=dtype)
    assert torch.equal(residual(x, x * 1, zero, Dropout(0.5), None, False), 2 * x)


@given(seed=st.integers(0, 2**63), calls=st.integers(0, 5))
@few
def test_the_mask_is_decided_by_seed_and_call(seed, calls):
    def mask(seed: int, calls: int) -> np.ndarray:
        return kept(restarted(0.5, seed, calls), 10, 13)

    first = mask(seed, calls)
    assert np.array_equal(first, mask(seed, calls))
    assert not np.array_equal(first, mask(seed, calls + 1))
    assert not np.array_equal(first, mask(seed + 1, calls))
    assert not np.array_equal(first, mask(seed + 2**32, calls))


def test_both_words_of_a_seed_matter(monkeypatch):
    """A seed has 64 bits: with 32, a long training would meet masks again."""
    masks = []
    for low, high in ((5, 0x3C6EF372), (5, 0xA54FF53A), (5, 0x510E527F), (6, 0x3C6EF372)):
        words = np.uint32(low), np.uint32(high)
        monkeypatch.setattr(Dropout, "next_seed", lambda _, words=words: words)
        masks.append(kept(Dropout(0.5), 200, 100))
    assert all(correlation(a, b) < 5 for i, a in enumerate(masks) for b in masks[:i])


def test_seeds_of_several_numbers():
    """Of a run, a step and so on: each of them, and their order, matters."""
    masks = []
    dropout = Dropout(0.5)
    for seed in ((1,), (2,), (1, 1), (1, 2), (2, 1), (1, 2, 3), (1, 3, 2), (0, 1), (0, 0, 1)):
        dropout.restart(seed)
        masks += [kept(dropout, 10, 13) for _ in range(3)]
    assert len({mask.tobytes() for mask in masks}) == len(masks)


def test_restart_begins_again():
    dropout = restarted(0.5, 3)
    first = [kept(dropout, 5, 40) for _ in range(3)]
    dropout.restart((3,))
    assert all(np.array_equal(mask, kept(dropout, 5, 40)) for mask in first)
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize("with_norm", [False, True])
@given(rows=row_counts, width=widths, rate=st.sampled_from([0.1, 0.3, 0.7]), seed=seeds)
@few
def test_residual_with_dropout(with_norm, rows, width, rate, seed):
    """norm(x + mask * (y + bias) / (1 - rate)), forward and backward with the same mask."""
    data = normal(seed, (rows, width), (rows, width), (width,))
    norm_data = normal(seed + 1, (width,), (width,))
    mask = torch.from_numpy(kept(restarted(rate, seed), rows, width))
    x, y, bias = reference = leaves(data, torch.float64)
    expected = x + mask * (y + bias) / (1 - rate)
    if with_norm:
        reference += (weights := leaves(norm_data, torch.float64))
        expected = plain_norm(expected, *weights)
    inputs = leaves(data, torch.float32)
    norm = norm_of(width, norm_data, torch.float32) if with_norm else None
    got = residual(inputs[0], inputs[1] * 1, inputs[2], restarted(rate, seed), norm, True)
    tolerance = 1e-5
    if norm is not None:
        inputs += [norm.weight, norm.bias]
        tolerance *= steepness(x + mask * (y + bias) / (1 - rate))
    compare(got, inputs, expected, reference, tolerance=tolerance)


@given(rows=row_counts, width=widths, rate=st.sampled_from([0.1, 0.3, 0.7]), seed=seeds)
@few
def test_drop_with_gradient(rows, width, rate, seed):
    """The backward pass drops what the forward pass dropped."""
    data = normal(seed, (rows, width))
    mask = torch.from_numpy(kept(restarted(rate, seed), rows, width))
    (x,) = leaves(data, torch.float64)
    (y,) = leaves(data, torch.float32)
    got = drop(y * 1, restarted(rate, seed), True)
    compare(got, [y], mask * x / (1 - rate), [x])


@compiled_or_torch
@given(rate=st.sampled_from([0.1, 0.5]), seed=seeds)
@few
def test_the_gradient_of_dropout_is_its_mask(dtype, rate, seed):
    """Found by itself: where the output moves with the input, and only there, is a gradient."""
    torch.manual_seed(seed)
    (x,) = leaves(normal(seed, (6, 11)), dtype)
    got = drop(x * 1, restarted(rate, seed), True)
    (grad,) = torch.autograd.grad(got.sum(), x)
    assert torch.allclose(grad * x, got)
    assert torch.equal(grad != 0, got != 0)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """In standard deviations of what independent masks would have."""
    return abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * math.sqrt(a.size)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_elements_are_dropped_independently(rate):
    """No correlation at any of the distances at which a counter's hash could show one."""
    mask = kept(restarted(rate, 1), 700, 512).ravel()
    assert mask.min() == 0
    distances = [*range(1, 40), *(2**k for k in range(6, 18)), 511, 513, 1536]
    assert all(correlation(mask[:-n], mask[n:]) < 5 for n in distances)
    bits = np.arange(2**18)
    for k in range(18):  # and between numbers that differ in one bit
        assert correlation(mask[bits], mask[bits ^ (1 << k)]) < 5 * math.sqrt(2)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_are_independent(rate):
    """Of consecutive seeds and of consecutive calls, also shifted by an element or a row."""
    masks = [kept(restarted(rate, s, c), 200, 100) for s in range(12) for c in range(4)]
    assert all(mask.min() == 0 for mask in masks)
    worst = max(correlation(a, b) for i, a in enumerate(masks) for b in masks[:i])
    assert worst < 5.5
    for a, b in pairwise(masks):
        assert correlation(a[:, 1:], b[:, :-1]) < 5
        assert correlation(a[1:], b[:-1]) < 5


def test_forward_mode_ends_with_its_block():
    """Also after an error; and inside, dropout follows torch's generator."""
    with pytest.raises(KeyError), forward_mode():
        raise KeyError
    ones = torch.ones(20, 30)
    with forward_mode():
        torch.manual_seed(4)
        inside = drop(ones * 1, restarted(0.5, 1), True)
    torch.manual_seed(4)
    assert torch.equal(inside, functional.dropout(ones, 0.5))
    assert not torch.equal(inside, drop(ones * 1, restarted(0.5, 1), True))


# --- numba's cache --------------------------------------------------------------------------------

ATTEND = """
import hashlib
import numpy as np
from metabt.nmt import kernels

random, ends = np.random.default_rng(1), np.array([50, 120])
x, d_x = random.standard_normal((2, 120, 288), np.float32)
out, d_out = np.zeros((2, 120, 96), np.float32)
weights, grads = np.zeros(40000, np.float32), np.zeros((120, 288), np.float32)
shape = (96, 192, ends, ends, 4, 96, True)
kernels.attention_tangent(x, x, d_x, d_x, *shape, out, d_out)
kernels.attention_forward(x, x, *shape, out, weights)
kernels.attention_backward(out, x, x, *shape, weights, grads, grads)
print(*(hashlib.sha256(a.tobytes()).hexdigest() for a in (d_out, out, weights, grads)))
"""


def test_kernels_from_the_cache_give_the_same_bits_as_when_they_were_compiled(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", ATTEND]
    compiled, cached = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert list(tmp_path.rglob("*.nbc")), "nothing was cached"
    assert compiled == cached


# --- packed weights -------------------------------------------------------------------------------


@few
@given(rows=row_counts, inputs=widths, outputs=widths, seed=seeds)
def test_products_with_packed_weights(rows, inputs, outputs, seed):
    x, weight, bias = normal(seed, (rows, inputs), (outputs, inputs), (outputs,))
    packed = weight.float()
    with torch.inference_mode(), Packed([packed]):
        got = linear(x.float(), packed, bias.float())
        close(got, functional.linear(x, weight, bias))
        close(linear(x.float(), packed), functional.linear(x, weight))
        alone = [linear(row[None], packed, bias.float()) for row in x.float()]
        assert torch.equal(torch.cat(alone), got), "a row depends on the others"
        other = weight.float()  # equal, but not what was packed
        close(linear(x.float(), other), functional.linear(x, weight))
