"""The chunked cross entropy against torch's own, which holds all logits."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from metabt.nmt import loss
from metabt.nmt.loss import cross_entropy

precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=["f64", "f32"]
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors are tiny here: threads would wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def inputs(
    tokens: int, vocabulary: int, width: int, seed: int, dtype: torch.dtype, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States and embedding (leaves), targets, weights; numbers that float32 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    states = scale * torch.randn(tokens, width, generator=generator)
    embedding = torch.randn(vocabulary, width, generator=generator)
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    weights = torch.randn(tokens, generator=generator)
    return (
        states.to(dtype).requires_grad_(),
        embedding.to(dtype).requires_grad_(),
        targets,
        weights.to(dtype),
    )


def plain(states: Tensor, embedding: Tensor, targets: Tensor, weights: Tensor, smoothing: float):
    logits = states @ embedding.T
    losses = functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    nll = functional.cross_entropy(logits, targets, reduction="none")
    return losses @ weights, nll


def close(got: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal within a share of the largest value."""
    assert got.shape == expected.shape
    largest = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    difference = (got.double() - expected.double()).abs()
    assert difference.numel() == 0 or difference.max().item() <= tolerance * largest


@precisions
@given(
    tokens=st.integers(1, 20),
    vocabulary=st.integers(2, 30),
    width=st.integers(1, 9),
    smoothing=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    chunk=st.integers(1, 3000),
    upstream=st.sampled_from([1.0, -0.25, 7.0, 0.0]),
    seed=st.integers(0, 2**32 - 1),
)
@example(tokens=8, vocabulary=10, width=4, smoothing=0.1, chunk=160, upstream=2.0, seed=1)  # 4 + 4
@example(tokens=9, vocabulary=10, width=4, smoothing=0.1, chunk=160, upstream=2.0, seed=1)  # a rest
@example(tokens=5, vocabulary=10, width=4, smoothing=0.1, chunk=1, upstream=2.0, seed=1)  # of 1
@settings(max_examples=40, deadline=None)
def test_value_and_gradients(
    dtype, tolerance, tokens, vocabulary, width, smoothing, chunk, upstream, seed
):
    """Whatever the chunks, also if the loss is one term of many; weights may be negative."""
    states, embedding, targets, weights = inputs(tokens, vocabulary, width, seed, torch.float64)
    total, nll = plain(states, embedding, targets, weights, smoothing)
    gradients = torch.autograd.grad(upstream * total, [states, embedding])
    got_states, got_embedding, _, got_weights = inputs(tokens, vocabulary, width, seed, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss, "CHUNK_BYTES", {"cpu": chunk})
        got, got_nll = cross_entropy(got_states, got_embedding, targets, got_weights, smoothing)
    assert got.dtype == got_nll.dtype == dtype
    close(got, total, tolerance * tokens)
    close(got_nll, nll, tolerance)
    assert not got_nll.requires_grad
    got_gradients = torch.autograd.grad(upstream * got, [got_states, got_embedding])
    for got_gradient, gradient in zip(got_gradients, gradients, strict=True):
        close(got_gradient, gradient, tolerance)


@precisions
@given(
    tokens=st.integers(1, 20),
    vocabulary=st.integers(2, 30),
    top_k=st.none() | st.integers(1, 40),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    smoothing=st.sampled_from([0.0, 0.1]),
    chunk=st.integers(1, 3000),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=30, deadline=None)
def test_top_k_and_temperature(
    dtype, tolerance, tokens, vocabulary, top_k, temperature, smoothing, chunk, seed
):
    """The softmax of logits over the temperature, of the k largest and the target's own."""
    smoothing = 0.0 if top_k else smoothing
    states, outputs, targets, weights = inputs(tokens, vocabulary, 5, seed, torch.float64)
    logits = states @ outputs.T / temperature
    if top_k:
        inside = torch.zeros_like(logits, dtype=torch.bool)
        inside.scatter_(1, logits.topk(min(top_k, vocabulary)).indices, True)
        inside.scatter_(1, targets[:, None], True)
        logits = logits.masked_fill(~inside, -torch.inf)
    losses = functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    gradients = torch.autograd.grad(losses @ weights, [states, outputs])
    got_states, got_outputs, _, got_weights = inputs(tokens, vocabulary, 5, seed, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss, "CHUNK_BYTES", {"cpu": chunk})
        got, got_nll = cross_entropy(
            *(got_states, got_outputs, targets, got_weights, smoothing),
            top_k=top_k,
            temperature=temperature,
        )
    close(got, losses @ weights, tolerance * tokens)
    close(got_nll, functional.cross_entropy(logits, targets, reduction="none"), tolerance)
    got_gradients = torch.autograd.grad(got, [got_states, got_outputs])
    for got_gradient, gradient in zip(got_gradients, gradients, strict=True):
        close(got_gradient, gradient, tolerance)


def test_top_k_has_no_smoothing():
    with pytest.raises(ValueError, match="smoothing"):
        cross_entropy(*inputs(3, 5, 2, 1, torch.float32), 0.1, top_k=2)


def test_half_precision():
    """Inside autocast: nearly the same numbers, and gradients in full precision."""
    states, outputs, targets, weights = inputs(20, 30, 8, 1, torch.float32)
    total, nll = plain(states, outputs, targets, weights, 0.1)
    gradients = torch.autograd.grad(total, [states, outputs])
    with torch.autocast("cpu", torch.bfloat16):
        got, got_nll = cross_entropy(states, outputs, targets, weights, 0.1)
    assert got.dtype == got_nll.dtype == torch.float32
    close(got, total, 0.05)
    close(got_nll, nll, 0.05)
    got_gradients = torch.autograd.grad(got, [states, outputs])
    for got_gradient, gradient in zip(got_gradients, gradients, strict=True):
        assert got_gradient.dtype == torch.float32
        close(got_gradient, gradient, 0.05)


@precisions
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_huge_logits(dtype, tolerance, smoothing):
    """Logits of tens of thousands, whose exponentials no format holds."""
    arguments = inputs(12, 17, 6, 3, torch.float64, scale=1e4)
    total, nll = plain(*arguments, smoothing)
    assert nll.max() > 1000
    gradients = torch.autograd.grad(total, arguments[:2])
    arguments = inputs(12, 17, 6, 3, dtype, scale=1e4)
    got, got_nll = cross_entropy(*arguments, smoothing)
    close(got, total, tolerance)
    close(got_nll, nll, tolerance)
    for got_gradient, gradient in zip(
        torch.autograd.grad(got, arguments[:2]), gradients, strict=True
    ):
        assert got_gradient.isfinite().all()
        close(got_gradient, gradient, 10 * tolerance)


@precisions
def test_tokens_of_weight_zero_do_not_count(dtype, tolerance):
    """They have a negative log-probability, but no share of the loss and no gradient."""
    states, embedding, targets, weights = inputs(10, 13, 5, 2, dtype)
    weights[3:7] = 0
    some = [0, 1, 2, 7, 8, 9]
    total, nll = cross_entropy(states, embedding, targets, weights, 0.1)
    grad_states, grad_embedding = torch.autograd.grad(total, [states, embedding])
    expected, expected_nll = plain(states[some], embedding, targets[some], weights[some], 0.1)
    close(total, expected, tolerance)
    close(nll[some], expected_nll, tolerance)
    assert (grad_states[3:7] == 0).all()
    close(grad_embedding, torch.autograd.grad(expected, embedding)[0], tolerance)


def test_all_weights_zero():
    states, embedding, targets, weights = inputs(10, 13, 5, 2, torch.float32)
    total, _ = cross_entropy(states, embedding, targets, weights * 0, 0.1)
    gradients = torch.autograd.grad(total, [states, embedding])
    assert total.item() == 0
    assert all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_one_input(which):
    """States of a frozen model, or a frozen embedding."""
    states, embedding, targets, weights = inputs(7, 11, 4, 1, torch.float64)
    total, _ = plain(states, embedding, targets, weights, 0.1)
    (expected,) = torch.autograd.grad(total, [(states, embedding)[which]])
    pair = [states.detach(), embedding.detach()]
    pair[which].requires_grad_()
    total, _ = cross_entropy(*pair, targets, weights, 0.1)
    total.backward()
    close(pair[which].grad, expected, 1e-12)
    assert pair[1 - which].grad is None


def test_states_that_are_not_contiguous():
    states, embedding, targets, weights = inputs(7, 11, 4, 1, torch.float64)
    total, nll = plain(states, embedding, targets, weights, 0.1)
    expected = torch.autograd.grad(total, [states, embedding])
    pair = [x.detach().T.contiguous().T.requires_grad_() for x in (states, embedding)]
    got, got_nll = cross_entropy(*pair, targets, weights, 0.1)
    close(got, total, 1e-12)
    close(got_nll, nll, 1e-12)
    for got_gradient, gradient in zip(torch.autograd.grad(got, pair), expected, strict=True):
        close(got_gradient, gradient, 1e-12)


def test_no_tokens():
    states, embedding, targets, weights = inputs(0, 11, 4, 1, torch.float32)
    total, nll = cross_entropy(states, embedding, targets, weights, 0.1)
    gradients = torch.autograd.grad(total, [states, embedding])
    assert total.item() == 0
    assert nll.shape == (0,)
    assert all((gradient == 0).all() for gradient in gradients)


def test_inputs_are_left_alone():
    arguments = inputs(9, 11, 4, 1, torch.float32)
    copies = [a.detach().clone() for a in arguments]
    total, _ = cross_entropy(*arguments, 0.1)
    total.backward()
    assert all(torch.equal(a, b) for a, b in zip(arguments, copies, strict=True))


def test_without_gradients():
    """The same numbers, nothing to differentiate."""
    arguments = inputs(9, 11, 4, 1, torch.float32)
    total, nll = cross_entropy(*arguments, 0.1)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            got, got_nll = cross_entropy(*arguments, 0.1)
        assert torch.equal(got, total)
        assert torch.equal(got_nll, nll)
        assert not got.requires_grad


@precisions
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_second_backward_pass_is_right_or_refused(dtype, tolerance):
    """With retain_graph: never silently wrong."""
    states, embedding, targets, weights = inputs(9, 11, 4, 1, dtype)
    total, _ = cross_entropy(states, embedding, targets, weights, 0.1)
    first = torch.autograd.grad(3 * total, [states, embedding], retain_graph=True)
    first = [gradient.clone() for gradient in first]
    try:
        second = torch.autograd.grad(3 * total, [states, embedding])
    except RuntimeError:
        return
    for a, b in zip(first, second, strict=True):
        close(b, a, tolerance)


def test_a_second_derivative_is_right_or_refused():
    """With create_graph: never silently zero, nor without the loss's own curvature."""
    states, embedding, targets, weights = inputs(6, 7, 3, 1, torch.float64)
    matrix = torch.eye(3, dtype=torch.float64, requires_grad=True)

    def second(function) -> Tensor:
        total, _ = function(states @ matrix, embedding, targets, weights, 0.1)
        (gradient,) = torch.autograd.grad(total, states, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), matrix)[0]

    expected = second(plain)
    try:
        got = second(cross_entropy)
    except RuntimeError:
        return
    close(got, expected, 1e-10)


def test_a_forward_derivative_is_right_or_refused():
    states, embedding, targets, weights = inputs(6, 7, 3, 1, torch.float64)
    tangent = torch.ones_like(states)
    total, _ = plain(states, embedding, targets, weights, 0.1)
    expected = (torch.autograd.grad(total, states)[0] * tangent).sum()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(states.detach(), tangent)
        try:
            got, _ = cross_entropy(dual, embedding.detach(), targets, weights, 0.1)
        except (RuntimeError, NotImplementedError):
            return
        got = torch.autograd.forward_ad.unpack_dual(got).tangent
        assert got is not None
        close(got, expected, 1e-12)


# --- memory ---------------------------------------------------------------------------------------


def peak_bytes(function) -> int:
    """The most that lives at once of what a function allocates, as torch's profiler sees it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = sorted(profile.events(), key=lambda event: event.time_range.end)
    alive = peak = 0
    for event in events:
        alive += event.self_cpu_memory_usage
        peak = max(peak, alive)
    return peak


@pytest.mark.parametrize("with_gradient", [True, False])
def test_logits_are_never_all_there(monkeypatch, with_gradient):
    """What lives at once is some chunks and gradients, not tokens times vocabulary."""
    tokens, vocabulary, width = 1500, 1200, 8
    arguments = inputs(tokens, vocabulary, width, 1, torch.float32)
    chunk = 200_000
    monkeypatch.setattr(loss, "CHUNK_BYTES", {"cpu": chunk})

    def run(function) -> None:
        with torch.set_grad_enabled(with_gradient):
            total, _ = function(*arguments, 0.1)
            if with_gradient:
                torch.autograd.grad(total, arguments[:2])

    logits = 4 * tokens * vocabulary
    assert peak_bytes(lambda: run(plain)) >= logits  # so it would be seen
    rows = 4 * (tokens + vocabulary) * width
    assert peak_bytes(lambda: run(cross_entropy)) < 6 * chunk + 6 * rows < logits / 3


def test_evaluation_computes_no_gradients():
    """Without gradients a pass needs one matrix product of the logits' size, not three."""
    tokens, vocabulary, width = 64, 50, 8
    arguments = inputs(tokens, vocabulary, width, 1, torch.float32)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=activities) as profile:
        cross_entropy(*arguments, 0.1)
    products = [e for e in profile.events() if e.name in ("aten::mm", "aten::addmm_")]
    assert len(products) == 1
