"""The models against reference.py, in double precision (torch's operators) and compiled."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from metabt.config import Transformer as Shape
from metabt.data.subwords import BOS, EOS
from metabt.nmt.loss import cross_entropy
from metabt.nmt.operators import Dropout, drop, forward_mode
from metabt.nmt.ragged import Ragged
from metabt.nmt.transformer import LanguageModel, Linear, Transformer

VOCABULARY = 19
SMOOTHING = 0.1

norms = pytest.mark.parametrize("norm", ["post", "pre"])
kinds = pytest.mark.parametrize("kind", [Transformer, LanguageModel])
PRECISIONS = {"double": torch.float64, "single": torch.float32}
precisions = pytest.mark.parametrize("precision", PRECISIONS)

# (source, target) lengths: ragged, a rectangle, and sentences of one token.
LENGTHS = {
    "ragged": [(5, 1), (1, 4), (3, 6), (7, 2), (1, 1)],
    "rectangle": [(4, 3), (4, 3)],
    "ones": [(1, 1), (1, 1), (1, 1)],
    "alone": [(3, 5)],
}
batches = pytest.mark.parametrize("lengths", LENGTHS)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors are tiny here: threads would wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def shape_of(norm: str, dropout: float = 0.0) -> Shape:
    return Shape(layers=2, width=12, feed_forward=20, heads=3, dropout=dropout, norm=norm)


@cache
def prototype(kind: type[nn.Module], norm: str, dropout: float = 0.0) -> nn.Module:
    """A model none of whose parameters has a value (0, 1) that could hide a mistake."""
    generator = torch.Generator().manual_seed(1)
    model = kind(VOCABULARY, shape_of(norm, dropout))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            elif parameter.dim() == 1:  # a norm's
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(1.5 / math.sqrt(parameter.shape[1]) * noise)
    return model


def build(
    kind: type[nn.Module], norm: str, precision: str = "double", dropout: float = 0.0
) -> nn.Module:
    return copy.deepcopy(prototype(kind, norm, dropout)).to(PRECISIONS[precision])


@dataclass(frozen=True)
class Example:
    """A sentence pair: source, target input, target output, and a weight for each output token."""

    source: np.ndarray
    before: np.ndarray
    after: np.ndarray
    weights: np.ndarray


def examples_of(lengths: list[tuple[int, int]], seed: int = 1) -> list[Example]:
    random = np.random.default_rng(seed)
    return [
        Example(
            random.integers(VOCABULARY, size=s),
            random.integers(VOCABULARY, size=t),
            random.integers(VOCABULARY, size=t),
            random.uniform(0.5, 2, t).astype(np.float32).astype(np.float64),
        )
        for s, t in lengths
    ]


def states_of(model: nn.Module, examples: list[Example], weights=None) -> Tensor:
    before = Ragged.of([e.before for e in examples])
    call = (lambda *x: functional_call(model, weights, x)) if weights is not None else model
    if isinstance(model, LanguageModel):
        return call(before)
    return call(Ragged.of([e.source for e in examples]), before)


def loss_of(
    model: nn.Module, examples: list[Example], chosen: int | None = None, first: int = 0
) -> tuple[Tensor, Tensor]:
    """The loss (of one example, if chosen) and all negative log-probabilities.

    Ids below `first` are no outputs.
    """
    states = states_of(model, examples)
    targets = torch.from_numpy(np.concatenate([e.after for e in examples]))
    factors = [e.weights * (chosen in (None, i)) for i, e in enumerate(examples)]
    weights = torch.from_numpy(np.concatenate(factors)).to(states.dtype)
    outputs = model.embedding.weight[first:]
    return cross_entropy(states, outputs, targets - first, weights, SMOOTHING)


def gradients(total: Tensor, model: nn.Module) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(total, parameters), strict=True))


def close(got: Tensor, expected: Tensor, tolerance: float, largest: float | None = None) -> None:
    """Equal within a share of the largest value."""
    assert got.shape == expected.shape
    largest = expected.abs().max().item() if largest is None else largest
    assert (got.double() - expected.double()).abs().max().item() <= tolerance * largest


def close_gradients(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Each parameter's against its own largest value; one that is 0 but for rounding, to all's."""
    assert got.keys() == expected.keys()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in expected.items():
        own = max(gradient.abs().max().item(), 1e-3 * largest)
        try:
            close(got[name], gradient, tolerance, own)
        except AssertionError:
            raise AssertionError(f"gradient of {name}:\n{got[name]}\nnot\n{gradient}") from None


# --- against the reference ------------------------------------------------------------------------


@cache
def expected_of(kind: type[nn.Module], norm: str, lengths: str):
    """The reference's states, losses and gradients of a batch."""
    state = prototype(kind, norm).state_dict()
    p = {name: x.double().requires_grad_() for name, x in state.items()}
    shape = shape_of(norm)
    states, nlls, total = [], [], torch.zeros((), dtype=torch.float64)
    for e in examples_of(LENGTHS[lengths]):
        if kind is Transformer:
            x = reference.translation_states(p, shape, e.source, e.before)
        else:
            x = reference.language_states(p, shape, e.before)
        losses, nll = reference.token_losses(x, p["embedding.weight"], e.after, SMOOTHING)
        total = total + losses @ torch.from_numpy(e.weights)
        states.append(x.detach())
        nlls.append(nll.detach())
    grads = torch.autograd.grad(total, list(p.values()))
    by_name = dict(zip(p, grads, strict=True))
    return torch.cat(states), torch.cat(nlls), total.detach(), by_name


@batches
@norms
@kinds
@pytest.mark.parametrize(
    ("precision", "inside", "tolerance"),
    [
        ("double", nullcontext, 1e-9),
        ("single", nullcontext, 1e-4),
        ("double", forward_mode, 1e-9),
        ("single", forward_mode, 1e-4),
    ],
    ids=["double", "compiled", "double-forward-mode", "single-forward-mode"],
)
def test_states_losses_and_gradients(kind, norm, lengths, precision, inside, tolerance):
    """Of every parameter, and in every form of the operators."""
    states, nll, total, grads = expected_of(kind, norm, lengths)
    model, examples = build(kind, norm, precision), examples_of(LENGTHS[lengths])
    with inside():
        close(states_of(model, examples), states, tolerance / 10)
        got, got_nll = loss_of(model, examples)
        got_grads = gradients(got, model)
    close(got_nll, nll, tolerance / 10)
    close(got, total, tolerance / 10)
    close_gradients(got_grads, grads, tolerance)


@precisions
@kinds
def test_loss_of_sentences_without_marks(kind, precision):
    """Sources end with EOS, inputs begin with BOS, outputs end with EOS; PAD and BOS are none."""
    model, random = build(kind, "post", precision), np.random.default_rng(4)
    sources, targets = (
        [random.integers(2, VOCABULARY, size=n).astype(np.uint16) for n in lengths]
        for lengths in zip((3, 2), (1, 0), (0, 5), (4, 4), strict=True)
    )
    examples = [
        Example(
            np.array([*source, EOS], np.int64),
            np.array([BOS, *target], np.int64),
            np.array([*target, EOS], np.int64),
            np.full(len(target) + 1, 0.7),
        )
        for source, target in zip(sources, targets, strict=True)
    ]
    expected, expected_nll = loss_of(model, examples, first=2)
    sides = (sources, targets) if kind is Transformer else (targets,)
    got, nll = model.loss(sides, 0.7, SMOOTHING)
    tolerance = 1e-12 if precision == "double" else 1e-6
    close(nll, expected_nll, tolerance)
    close(got, expected, tolerance)
    close_gradients(gradients(got, model), gradients(expected, model), tolerance)


@norms
@kinds
def test_the_state_dict_is_parameters_only(kind, norm):
    """The reference takes all of it; nothing else is saved (positions are not)."""
    model = build(kind, norm, "single")
    states_of(model, examples_of(LENGTHS["ragged"]))
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


@norms
@precisions
def test_encoder_states(norm, precision):
    model, examples = build(Transformer, norm, precision), examples_of(LENGTHS["ragged"])
    p = {name: x.double() for name, x in prototype(Transformer, norm).state_dict().items()}
    expected = torch.cat([reference.encode(p, shape_of(norm), e.source) for e in examples])
    got = model.encode(Ragged.of([e.source for e in examples]))
    close(got, expected, 1e-10 if precision == "double" else 1e-5)


@precisions
def test_positions(precision):
    """Also of sentences longer than the first table, and after it has grown."""
    embedding = build(Transformer, "post", precision).embedding
    expected = reference.positions(400, 12)
    for length in (3, 400, 2):
        table = embedding.positions(length)[:length]
        assert table.dtype == PRECISIONS[precision]
        close(table, expected[:length], 1e-12 if precision == "double" else 1e-7)


def test_positions_follow_a_change_of_precision():
    """A model that has worked in single precision is as exact in double as a new one."""
    model, examples = build(Transformer, "post", "single"), examples_of(LENGTHS["ragged"])
    states_of(model, examples)
    close(states_of(model.double(), examples), expected_of(Transformer, "post", "ragged")[0], 1e-10)


# --- what a token sees ----------------------------------------------------------------------------


@kinds
@norms
@precisions
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_the_future_does_not_matter(kind, norm, precision, data):
    """Another target token changes the states from its place on, not those before it."""
    model = build(kind, norm, precision)
    lengths = data.draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(2, 8)), min_size=1, max_size=3)
    )
    examples = examples_of(lengths)
    which = data.draw(st.integers(0, len(examples) - 1))
    place = data.draw(st.integers(1, lengths[which][1] - 1))
    with torch.no_grad():
        first = states_of(model, examples)
        examples[which].before[place] = (examples[which].before[place] + 1) % VOCABULARY
        second = states_of(model, examples)
    begin = sum(t for _, t in lengths[:which])
    end = begin + lengths[which][1]
    tolerance = 1e-13 if precision == "double" else 1e-6
    rest = [*range(begin + place), *range(end, len(first))]
    close(second[rest], first[rest], tolerance)
    assert ((second - first)[begin + place : end].abs().amax(1) > 1e-4).all()


@norms
@precisions
def test_every_source_token_matters_to_its_sentence_only(norm, precision):
    """Each changes all states of its own target, wherever it stands, and no other's."""
    model, lengths = build(Transformer, norm, precision), LENGTHS["ragged"]
    with torch.no_grad():
        first = states_of(model, examples_of(lengths))
        ends = np.cumsum([t for _, t in lengths])
        for which, (size, _) in enumerate(lengths):
            own = np.zeros(len(first), bool)
            own[ends[which] - lengths[which][1] : ends[which]] = True
            for place in range(size):
                examples = examples_of(lengths)
                token = examples[which].source[place]
                examples[which].source[place] = (token + 1) % VOCABULARY
                difference = (states_of(model, examples) - first).abs().amax(1).numpy()
                assert (difference[own] > 1e-5).all()
                assert (difference[~own] <= (1e-13 if precision == "double" else 1e-6)).all()


@kinds
@norms
@precisions
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=5),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_company_and_order_do_not_matter(kind, norm, precision, lengths, seed, data):
    """A sentence's loss and its gradient are the same alone and in any batch."""
    model, examples = build(kind, norm, precision), examples_of(lengths, seed)
    order = data.draw(st.permutations(range(len(examples))))
    place = data.draw(st.integers(0, len(examples) - 1))
    total, nll = loss_of(model, [examples[order[place]]])
    expected = gradients(total, model)
    got, got_nll = loss_of(model, [examples[i] for i in order], chosen=place)
    # Single precision: of inputs by chance, some would have a relu within rounding of its kink.
    tolerance = 1e-12 if precision == "double" else 1e-5
    ends = np.cumsum([lengths[i][1] for i in order])
    close(got_nll[ends[place] - len(nll) : ends[place]], nll, tolerance)
    close(got, total, tolerance)
    # Against all gradients: one that is 0 but for rounding has no precision of its own.
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in gradients(got, model).items():
        close(gradient, expected[name], tolerance, largest)


@kinds
@norms
@precisions
def test_backward_adds_up(kind, norm, precision):
    """Two backward passes leave the sum of their gradients."""
    model = build(kind, norm, precision)
    batches = [examples_of(LENGTHS["ragged"], seed) for seed in (1, 2)]
    first, second = (gradients(loss_of(model, batch)[0], model) for batch in batches)
    for factor, batch in zip((2.0, -1.0), batches, strict=True):
        (factor * loss_of(model, batch)[0]).backward()
    got = {name: x.grad for name, x in model.named_parameters()}
    expected = {name: 2 * first[name] - second[name] for name in first}
    close_gradients(got, expected, 1e-12 if precision == "double" else 1e-5)


@kinds
@norms
@precisions
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_states_without_gradients(kind, norm, precision, context):
    model, examples = build(kind, norm, precision), examples_of(LENGTHS["ragged"])
    expected = states_of(model, examples)
    with context():
        got = states_of(model, examples)
    close(got, expected.detach(), 1e-14 if precision == "double" else 1e-6)
    assert not got.requires_grad


@kinds
def test_threads_do_not_disturb_each_other(kind):
    """Threads with sentences of their own: the results of one thread after the other."""
    model = build(kind, "post", "single")
    parts = [examples_of(LENGTHS["ragged"] * 3, seed) for seed in range(8)]

    def work(examples: list[Example]) -> tuple[Tensor, dict[str, Tensor]]:
        total, _ = loss_of(model, examples)
        return total.detach(), gradients(total, model)

    expected = [work(part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        for (total, grads), (a, b) in zip(pool.map(work, parts), expected, strict=True):
            close(total, a, 1e-6)
            close_gradients(grads, b, 1e-4)


# --- initialisation, size -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "outputs", "stacked"), [(64, 64, 3), (64, 64, 2), (64, 200, 1), (200, 64, 1)]
)
def test_glorot_for_each_of_the_stacked_matrices(inputs, outputs, stacked):
    """Uniform between -+sqrt(6 / (inputs + outputs)) of one matrix, not of the stack."""
    torch.manual_seed(1)
    linear = Linear(inputs, outputs, stacked)
    assert linear.weight.shape == (stacked * outputs, inputs)
    limit = math.sqrt(6 / (inputs + outputs))
    for matrix in linear.weight.split(outputs):
        assert 0.99 * limit < matrix.abs().max() <= limit
        assert abs(matrix.mean()) < 5 * limit / math.sqrt(3 * matrix.numel())
        assert matrix.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.05)
    assert (linear.bias == 0).all()


@norms
@kinds
def test_initialisation(kind, norm):
    """Every matrix Glorot's, the embedding normal with D^-0.5, biases 0, norms 1."""
    torch.manual_seed(2)
    shape = Shape(layers=1, width=32, feed_forward=64, heads=2, dropout=0.1, norm=norm)
    model = kind(500, shape)
    stacks = {"qkv": 3, "key_value": 2, "query": 1, "out": 1, "inner": 1}
    for name, x in model.named_parameters():
        if name == "embedding.weight":
            assert x.std().item() == pytest.approx(32**-0.5, rel=0.03)
            assert abs(x.mean()) < 5 * 32**-0.5 / math.sqrt(x.numel())
            assert x.abs().max() > 3 * 32**-0.5  # not uniform
        elif name.endswith("bias"):
            assert (x == 0).all()
        elif x.dim() == 1:
            assert "norm" in name
            assert (x == 1).all()
        else:
            for matrix in x.chunk(stacks[name.split(".")[-2]]):
                limit = math.sqrt(6 / sum(matrix.shape))
                assert 0.97 * limit < matrix.abs().max() <= limit


def test_size_of_transformer_base():
    """6 layers, width 512, feed-forward 2048, a joint vocabulary of 32000, written out."""
    shape = Shape(layers=6, width=512, feed_forward=2048, heads=8, dropout=0.1)
    with torch.device("meta"):
        model, language_model = Transformer(32000, shape), LanguageModel(32000, shape)
    embedding = 32000 * 512  # 16 384 000: of source, target and softmax
    attention = 4 * (512 * 512 + 512)  # 1 050 624: queries, keys, values, output
    feed_forward = 512 * 2048 + 2048 + 2048 * 512 + 512  # 2 099 712
    norm = 512 + 512
    encoder_layer = attention + norm + feed_forward + norm  # 3 152 384
    decoder_layer = attention + norm + attention + norm + feed_forward + norm  # 4 204 032
    total = embedding + 6 * encoder_layer + 6 * decoder_layer
    assert total == 60_522_496
    assert sum(x.numel() for x in model.parameters()) == total
    assert sum(x.numel() for x in language_model.parameters()) == embedding + 6 * encoder_layer
    with torch.device("meta"):
        model = Transformer(32000, shape.model_copy(update={"norm": "pre"}))
    assert sum(x.numel() for x in model.parameters()) == total + 2 * norm


# --- forward mode ---------------------------------------------------------------------------------


def tangents_of(model: nn.Module, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(x.shape, generator=generator, dtype=torch.float64)
        for name, x in model.named_parameters()
    }


def directional(kind, norm, lengths: str, count: int = 1):
    """A model, tangents, a linear function of its states and that function's derivatives."""
    model, examples = build(kind, norm), examples_of(LENGTHS[lengths])
    states = states_of(model, examples)
    slopes = torch.randn(
        states.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    grads = gradients((states * slopes).sum(), model)
    tangents = [tangents_of(model, seed) for seed in range(count)]
    expected = [sum((grads[name] * t[name]).sum() for name in t) for t in tangents]
    primals = {name: x.detach() for name, x in model.named_parameters()}

    def function(weights: dict[str, Tensor]) -> Tensor:
        return (states_of(model, examples, weights) * slopes).sum()

    return function, primals, tangents, torch.stack(expected)


@kinds
@norms
@batches
def test_forward_derivative(kind, norm, lengths):
    """torch.func.jvp and dual numbers: the gradient's product with the tangent."""
    function, primals, (tangent,), expected = directional(kind, norm, lengths)
    with forward_mode():
        value, got = torch.func.jvp(function, (primals,), (tangent,))
        with forward_ad.dual_level():
            duals = {name: forward_ad.make_dual(x, tangent[name]) for name, x in primals.items()}
            dual = forward_ad.unpack_dual(function(duals))
    outside = function(primals)
    close(value, outside, 1e-10)
    close(dual.primal, outside, 1e-10)
    close(got, expected[0], 1e-9)
    assert dual.tangent is not None
    close(dual.tangent, expected[0], 1e-9)


@kinds
def test_compiled_loops_refuse_forward_derivatives(kind):
    """Outside `forward_mode()`: an error, not a derivative that misses something."""
    model, examples = build(kind, "post", "single"), examples_of(LENGTHS["ragged"])
    with forward_ad.dual_level(), pytest.raises((RuntimeError, NotImplementedError)):
        duals = {
            name: forward_ad.make_dual(x.detach(), torch.ones_like(x))
            for name, x in model.named_parameters()
        }
        states_of(model, examples, duals)


@kinds
def test_forward_derivatives_of_several_directions_at_once(kind):
    function, primals, tangents, expected = directional(kind, "post", "ragged", 3)
    stacked = {name: torch.stack([t[name] for t in tangents]) for name in primals}
    with forward_mode():
        got = torch.func.vmap(lambda t: torch.func.jvp(function, (primals,), (t,))[1])(stacked)
    close(got, expected, 1e-9)


@kinds
def test_forward_over_reverse(kind):
    """The gradient's derivative in a direction is the difference quotient of gradients."""
    function, primals, (tangent,), _ = directional(kind, "post", "ragged")

    def gradient_at(step: float) -> dict[str, Tensor]:
        at = {name: x + step * tangent[name] for name, x in primals.items()}
        return torch.func.grad(function)(at)

    with forward_mode():
        _, got = torch.func.jvp(torch.func.grad(function), (primals,), (tangent,))
        step = 1e-6
        above, below = gradient_at(step), gradient_at(-step)
    expected = {name: (above[name] - below[name]) / (2 * step) for name in primals}
    close_gradients(got, expected, 1e-5)


# --- dropout --------------------------------------------------------------------------------------


@kinds
@norms
@precisions
def test_dropout_only_in_training(kind, norm, precision):
    examples = examples_of(LENGTHS["ragged"])
    model = build(kind, norm, precision, dropout=0.3)
    expected = states_of(build(kind, norm, precision), examples)
    assert torch.equal(states_of(model.eval(), examples), expected)
    assert not torch.allclose(states_of(model.train(), examples), expected)


@kinds
def test_dropout_is_decided_by_the_seed(kind):
    examples, model = examples_of(LENGTHS["ragged"]), build(kind, "post", "single", dropout=0.3)

    def run(seed: int) -> Tensor:
        model.dropout.restart((seed,))
        return states_of(model, examples)

    assert torch.equal(run(1), run(1))
    assert not torch.allclose(run(1), run(2))
    model.dropout.restart((1,))
    assert not torch.allclose(states_of(model, examples), states_of(model, examples))


@norms
def test_dropout_is_where_the_paper_has_it(norm, monkeypatch):
    """After each sublayer (2 in the encoder's layers, 3 in the decoder's) and both embeddings."""
    examples = examples_of(LENGTHS["ragged"])
    counted, original = [], torch.nn.functional.dropout

    def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
        counted.append((rate, training))
        return original(x, rate, training)

    for kind, places in ((Transformer, 2 * 2 + 2 * 3 + 2), (LanguageModel, 2 * 2 + 1)):
        model = build(kind, norm, "single", dropout=0.3)
        model.dropout.restart((1,))
        states_of(model, examples)
        assert model.dropout.calls == places
        counted.clear()
        monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
        states_of(model.double(), examples)
        monkeypatch.undo()
        assert counted == [(0.3, True)] * places


@kinds
@norms
def test_training_with_dropout(kind, norm, monkeypatch):
    """Compiled loops against torch with the same masks: states, loss and gradients."""
    examples = examples_of(LENGTHS["ragged"])
    model = build(kind, norm, "single", dropout=0.3)
    model.dropout.restart((5,))
    states = states_of(model, examples)
    model.dropout.restart((5,))
    total, _ = loss_of(model, examples)
    got = gradients(total, model)

    replayed = Dropout(0.3)

    def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
        """What the same call of the compiled dropout makes of ones, times x."""
        return x * drop(torch.ones(x.shape), replayed, True).double()

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    model = build(kind, norm, "double", dropout=0.3)
    replayed.restart((5,))
    close(states, states_of(model, examples), 1e-5)
    replayed.restart((5,))
    expected, _ = loss_of(model, examples)
    close(total, expected, 1e-5)
    close_gradients(got, gradients(expected, model), 1e-4)
