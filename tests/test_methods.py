"""The methods' equations against enumeration and explicit gradients, in double precision.

The language here has so few words that all sentences of up to two of them can be listed: what a
method does in expectation is then a finite sum.
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.func import functional_call
from toy import SGD, toy_forward, toy_run, write_toy, write_toy_models

from metabt.data.encode import encode_corpus
from metabt.data.subwords import BOS, EOS, UNK
from metabt.methods.blocks.run import ForwardRun
from metabt.methods.blocks.sentences import Numbered, Pairs, Translations
from metabt.methods.blocks.task import ForwardTask
from metabt.nmt.ragged import Ragged
from metabt.nmt.threads import ComputeThreads
from metabt.nmt.transformer import FIRST_OUTPUT
from metabt.training.distributed import Group
from metabt.training.learner import Machine
from metabt.training.pretrain import Start, pretrain
from metabt.training.run import read_description

ALONE = Group(0, 1, torch.device("cpu"))
LIMIT = 2  # words of a pseudo source


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy_models(tmp_path_factory.mktemp("methods"))


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def task(path, threads=1, micro_tokens=4096):
    machine = Machine(ALONE, ComputeThreads(threads), micro_tokens)
    return ForwardTask(read_description(path, ForwardRun), machine, Path())


def exact_task(toy, algorithm, options=(), rate=1.0, smoothing=0.1, **others):
    """Without dropout, all by gradient descent: what psi moves by is the gradient itself."""
    training = {"optimiser": {**SGD, "rate": rate}, "label_smoothing": smoothing}
    options = {"backward_optimiser": SGD, **dict(options)}
    shape = {"dropout": 0.0}
    path = toy_forward(
        toy, algorithm, options=options, transformer=shape, training={**BASE, **training}, **others
    )
    return task(path)


BASE = {"steps": 10, "batch": {"sentences": 22}, "validate_every": 100}


def outputs(subwords):
    return [i for i in range(UNK, subwords.size) if i != EOS]


def all_sources(subwords, limit=LIMIT):
    """Every pseudo source of at most so many words, and whether its end mark counts."""
    words = outputs(subwords)
    for length in range(limit + 1):
        for ids in itertools.product(words, repeat=length):
            yield np.array(ids, np.uint16), length < limit


def log_probs(model, parameters, target, sources):
    """log P(x | y) of each source, by a slow path: one at a time, all logits."""
    result = []
    for ids, complete in sources:
        batch = (Ragged.of([target], last=EOS), Ragged.of([ids], first=BOS))
        states = functional_call(model, parameters, batch)
        outputs_VD = parameters["embedding.weight"][FIRST_OUTPUT:]
        logs = (states @ outputs_VD.T).log_softmax(1)
        wanted = torch.tensor([*ids.tolist(), EOS]) - FIRST_OUTPUT
        token_logs = logs.gather(1, wanted[:, None])[:, 0]
        result.append(token_logs.sum() if complete else token_logs[:-1].sum())
    return torch.stack(result)


def parameters_of(model, values=None):
    named = dict(model.named_parameters())
    if values is None:
        return {name: p.detach().clone().requires_grad_() for name, p in named.items()}
    parts = values.split([p.numel() for p in named.values()])
    return {name: part.view_as(p) for part, (name, p) in zip(parts, named.items(), strict=True)}


def flat(gradients):
    return torch.cat([g.reshape(-1) for g in gradients])


def slow_loss(model, parameters, pairs, smoothing):
    """Label-smoothed losses of sentences, from all logits."""
    losses = []
    for source, target in zip(pairs.sources, pairs.targets, strict=True):
        batch = (Ragged.of([source], last=EOS), Ragged.of([target], first=BOS))
        states = functional_call(model, parameters, batch)
        logs = (states @ parameters["embedding.weight"][FIRST_OUTPUT:].T).log_softmax(1)
        wanted = torch.tensor([*target.tolist(), EOS]) - FIRST_OUTPUT
        token = -logs.gather(1, wanted[:, None])[:, 0]
        losses.append(((1 - smoothing) * token - smoothing * logs.mean(1)).sum())
    return torch.stack(losses)


# --- the reward -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("optimiser", ["sgd", "adam", "lamb"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_reward_is_the_product_of_two_gradients(toy, optimiser, threads):
    """Of the sentence's own with MetaDev's, times the optimiser's diagonal."""
    settings = {**SGD, "name": optimiser, "rate": 0.01, "betas": [0.9, 0.98], "epsilon": 1e-6}
    path = toy_forward(
        toy,
        "metabt",
        transformer={"dropout": 0.0},
        training={**BASE, "optimiser": settings, "label_smoothing": 0.1},
    )
    one = task(path, threads, micro_tokens=30)
    method = one.method
    for number in range(1, 4):
        one.step(number)
    model, theta = method.theta.saved.model, method.theta
    before = theta.values()
    pairs = method.parallel.next()
    drawn = Translations(pairs.targets, pairs.sources, np.zeros(6), np.ones(6, bool))
    gradients = []  # each step's, for Adam's averages by hand
    vector = theta.learner.vector
    state = {k: v.clone() for k, v in theta.learner.optimiser.state.items()}
    theta.descend(4, pairs)

    metadev = method.metadev.next()
    loss, v = theta.gradient(metadev)
    now = parameters_of(model, theta.values())
    explicit = {n: p.clone().requires_grad_() for n, p in now.items()}
    tokens = sum(len(t) + 1 for t in metadev.targets)
    slow = slow_loss(model, explicit, metadev, 0.0).sum() / tokens
    expected_v = flat(torch.autograd.grad(slow, list(explicit.values())))
    assert loss == pytest.approx(slow.item(), rel=1e-9)
    torch.testing.assert_close(v, expected_v, rtol=1e-7, atol=1e-10)

    # Per-sentence gradients at theta_(t-1), one by one.
    old = {n: p.clone().requires_grad_() for n, p in parameters_of(model, before).items()}
    losses = slow_loss(model, old, pairs, 0.1)
    for loss in losses:
        gradients.append(flat(torch.autograd.grad(loss, list(old.values()), retain_graph=True)))
    step_gradient = sum(gradients) / sum(len(t) + 1 for t in pairs.targets)

    diagonal = torch.ones_like(v)
    if optimiser != "sgd":
        t = int(state["steps"]) + 1
        square = 0.98 * state["square"] + 0.02 * step_gradient**2
        mean = 0.9 * state["mean"] + 0.1 * step_gradient
        scale = (square / (1 - 0.98**t)).sqrt() + 1e-6
        diagonal = 0.1 / (1 - 0.9**t) / scale
        if optimiser == "lamb":
            towards = mean / (1 - 0.9**t) / scale
            sizes = vector.sizes
            trusts = [
                (w.norm() / d.norm() if w.norm() > 0 else torch.tensor(1.0)).expand(len(w))
                for w, d in zip(before.split(sizes), towards.split(sizes), strict=True)
            ]
            diagonal = diagonal * torch.cat(trusts)
    expected = np.array([(g * diagonal * expected_v).sum().item() for g in gradients])

    theta.precondition_(v)
    found = theta.slopes(drawn.reversed, at=before, along=v)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert torch.equal(theta.values(), vector.values)
    # A positive reward means: a step on this pair alone lowers the MetaDev loss.
    for gradient, reward in zip(gradients, expected, strict=True):
        if optimiser == "sgd" and abs(reward) > 1e-3 * np.abs(expected).max():
            moved = parameters_of(model, theta.values() - 1e-5 * gradient)
            with torch.no_grad():
                after = slow_loss(model, moved, metadev, 0.0).sum() / tokens
            assert (after < slow) == (reward > 0)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_compiled_slopes_are_those_of_double_precision(toy, norm):
    """The way that training on a CPU takes, against torch's operators."""
    path = toy_forward(toy, "metabt", transformer={"norm": norm}, training=BASE)
    found = {}
    for kind in (torch.float32, torch.float64):
        torch.set_default_dtype(kind)
        try:
            theta = task(path, threads=2, micro_tokens=40).method.theta
        finally:
            torch.set_default_dtype(torch.float32)
        generator = torch.Generator().manual_seed(1)
        if not found:
            values = theta.values()
            values += 0.1 * torch.randn(values.shape, generator=generator)
            along = torch.randn(values.shape, generator=generator)
        words = outputs(theta.saved.subwords)
        rng = np.random.default_rng(1)
        sides = [[rng.choice(words, n).astype(np.uint16) for n in rng.integers(0, 9, 20)] * 2] * 2
        pairs = Pairs(*sides)
        found[kind] = theta.slopes(pairs, at=values.to(kind), along=along.to(kind))
    a, b = found.values()
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())


# --- MetaBT's gradient of psi ---------------------------------------------------------------------


def enumerate_steps(one, target, draws):
    """What each pseudo source (or each tuple of them, one for each draw) makes psi move by, when
    the whole method's step is done with it."""
    method = one.method
    theta, psi = method.theta.learner.vector, method.psi.learner.vector
    theta_start, psi_start = theta.values.clone(), psi.values.clone()
    batch = Numbered(np.array([0]), [target])
    method.mono.next = lambda: batch
    moves = []
    for sources in draws:
        theta.values.copy_(theta_start)
        psi.values.copy_(psi_start)
        ids, complete = zip(*sources, strict=True)
        count = len(sources)
        drawn = Translations([target] * count, ids, np.zeros(count), np.array(complete))
        method.psi.translate = lambda *_, drawn=drawn: drawn
        assert one.step(1) is not None
        moves.append(psi.values - psi_start)
    theta.values.copy_(theta_start)
    psi.values.copy_(psi_start)
    return torch.stack(moves)


@pytest.mark.usefixtures("double")
def test_metabt_moves_psi_down_the_expected_metadev_loss(toy):
    """Appendix A.1: in expectation over every pseudo source, psi moves down the derivative of the
    one-step MetaDev loss."""
    rate = 1e-4
    options = {"baseline": None, "precondition": False}
    one = exact_task(toy, "metabt", options, rate=rate)
    method = one.method
    model, psi_model = method.theta.saved.model, method.psi.saved.model
    target = np.array(outputs(one.parts.subwords)[1:3], np.uint16)
    sources = list(all_sources(one.parts.subwords))
    pairs, metadev = method.parallel.next(), method.metadev.next()
    method.parallel.next, method.metadev.next = lambda: pairs, lambda: metadev

    psi = parameters_of(psi_model)
    probs = log_probs(psi_model, psi, target, sources).exp()
    assert probs.sum().item() == pytest.approx(1, abs=1e-12)
    moves = enumerate_steps(one, target, [(source,) for source in sources])
    found = (probs.detach()[:, None] * moves).sum(0)

    # The true one: E[J(theta_t(x^))] = sum over x^ of P(x^ | y; psi) * J(theta_t(x^)).
    theta = parameters_of(model)
    metadev_losses = []
    for ids, _ in sources:
        both = Pairs([*pairs.sources, ids], [*pairs.targets, target])
        loss = slow_loss(model, theta, both, 0.1).sum() / sum(len(t) + 1 for t in both.targets)
        gradients = torch.autograd.grad(loss, list(theta.values()))
        moved = {
            name: value.detach() - rate * g
            for (name, value), g in zip(theta.items(), gradients, strict=True)
        }
        with torch.no_grad():
            tokens = sum(len(t) + 1 for t in metadev.targets)
            metadev_losses.append(slow_loss(model, moved, metadev, 0.0).sum() / tokens)
    expected_loss = (probs * torch.stack(metadev_losses)).sum()
    true = flat(torch.autograd.grad(expected_loss, list(psi.values())))

    # The reward leaves out the rate, and the weight of the sentence in the mean loss.
    tokens = sum(len(t) + 1 for t in pairs.targets) + len(target) + 1
    torch.testing.assert_close(found * rate / tokens, -true, rtol=0, atol=1e-3 * true.norm().item())
    assert torch.nn.functional.cosine_similarity(found, -true, dim=0) > 0.9999

    # And so a step of psi along it lowers the expected MetaDev loss.
    start = method.psi.values()
    for sign in (1, -1):
        moved = parameters_of(psi_model, start + sign * 1e-3 * found / found.norm())
        with torch.no_grad():
            after = (log_probs(psi_model, moved, target, sources).exp()) @ torch.stack(
                metadev_losses
            )
        assert (after < expected_loss) == (sign > 0)


def expected_move(toy, reward, samples):
    """Of psi, over all that may be drawn; theta's rate is so small that MetaDev's gradient does not
    depend on what was. Also each single source's move, and its pair's loss."""
    options = {"baseline": None, "reward": reward, "samples": samples}
    one = exact_task(toy, "metabt", options, rate=1e-7)
    method = one.method
    target = np.array(outputs(one.parts.subwords)[1:3], np.uint16)
    sources = list(all_sources(one.parts.subwords, limit=1))
    pairs, metadev = method.parallel.next(), method.metadev.next()
    method.parallel.next, method.metadev.next = lambda: pairs, lambda: metadev
    psi, model = method.psi.saved.model, method.theta.saved.model
    with torch.no_grad():
        probs = log_probs(psi, parameters_of(psi), target, sources).exp()
        drawn = Pairs([ids for ids, _ in sources], [target] * len(sources))
        losses = slow_loss(model, parameters_of(model), drawn, 0.0)
    moves = enumerate_steps(one, target, itertools.product(sources, repeat=samples))
    together = torch.tensor(
        [math.prod(p) for p in itertools.product(probs.tolist(), repeat=samples)]
    )
    return together @ moves, moves, losses


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("reward", ["sentence", "relative"])
def test_two_draws_move_psi_as_one_does_in_expectation(toy, reward):
    one, _, _ = expected_move(toy, reward, samples=1)
    two, _, _ = expected_move(toy, reward, samples=2)
    torch.testing.assert_close(two, one, rtol=0, atol=1e-4 * one.norm().item())


@pytest.mark.usefixtures("double")
def test_a_relative_reward_is_divided_by_the_loss_of_its_pair(toy):
    _, relative, losses = expected_move(toy, "relative", samples=1)
    _, sentence, _ = expected_move(toy, "sentence", samples=1)
    torch.testing.assert_close(relative * losses[:, None], sentence, rtol=1e-4, atol=1e-12)


@pytest.mark.usefixtures("double")
def test_the_derivative_at_the_expected_theta_is_exact(toy):
    """With MetaDev's gradient taken at the expected parameters, as the derivation has it before its
    single-sample approximation, there is no error at all, however long the step."""
    rate = 0.5
    one = exact_task(toy, "metabt", {"baseline": None, "precondition": False}, rate=rate)
    method = one.method
    theta, psi = method.theta, method.psi
    target = np.array(outputs(one.parts.subwords)[:2], np.uint16)
    sources = list(all_sources(one.parts.subwords))
    metadev = method.metadev.next()
    tokens = sum(len(t) + 1 for t in metadev.targets)

    psi_parameters = parameters_of(psi.saved.model)
    probs = log_probs(psi.saved.model, psi_parameters, target, sources).exp()
    start = theta.values()
    parameters = parameters_of(theta.saved.model)
    each = []
    for ids, _ in sources:
        loss = slow_loss(theta.saved.model, parameters, Pairs([ids], [target]), 0.1).sum()
        each.append(flat(torch.autograd.grad(loss, list(parameters.values()))))
    expected_theta = start - rate * (probs[:, None] * torch.stack(each)).sum(0)
    named = parameters_of(theta.saved.model, expected_theta)
    outer = slow_loss(theta.saved.model, named, metadev, 0.0).sum() / tokens
    true = flat(torch.autograd.grad(outer, list(psi_parameters.values())))

    theta.learner.vector.values.copy_(expected_theta.detach())
    _, v = theta.gradient(metadev)
    found = torch.zeros_like(true)
    psi_start = psi.values()
    for (ids, complete), prob in zip(sources, probs.tolist(), strict=True):
        drawn = Translations([target], [ids], np.zeros(1), np.array([complete]))
        rewards = theta.slopes(drawn.reversed, at=start, along=v)
        psi.reinforce(1, drawn, rewards)
        found += prob * (psi.values() - psi_start)
        psi.learner.vector.values.copy_(psi_start)
    torch.testing.assert_close(rate * found, -true, rtol=1e-6, atol=1e-10)


# --- DualNMT --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_dualnmt_moves_psi_up_the_expected_reward(toy, alpha):
    one = exact_task(toy, "dualnmt", {"alpha": alpha, "baseline": None}, smoothing=0.1)
    method = one.method
    model, psi_model = method.theta.saved.model, method.psi.saved.model
    judge = method.language_model.saved.model
    target = np.array(outputs(one.parts.subwords)[1:3], np.uint16)
    sources = list(all_sources(one.parts.subwords))
    pairs = method.parallel.next()
    method.parallel.next = lambda: pairs

    rewards = []
    theta = parameters_of(model)
    with torch.no_grad():
        for ids, _ in sources:
            states = judge(Ragged.of([ids], first=BOS))
            logs = (states @ judge.embedding.weight[FIRST_OUTPUT:].T).log_softmax(1)
            wanted = torch.tensor([*ids.tolist(), EOS]) - FIRST_OUTPUT
            fluency = logs.gather(1, wanted[:, None]).mean()
            reconstruction = -slow_loss(model, theta, Pairs([ids], [target]), 0.0)[0]
            rewards.append(alpha * fluency + (1 - alpha) * reconstruction)
    psi = parameters_of(psi_model)
    probs = log_probs(psi_model, psi, target, sources).exp()
    true = flat(torch.autograd.grad((probs * torch.stack(rewards)).sum(), list(psi.values())))
    moves = enumerate_steps(one, target, [(source,) for source in sources])
    found = (probs.detach()[:, None] * moves).sum(0)
    torch.testing.assert_close(found, true, rtol=1e-6, atol=1e-9)


# --- top-k: the probability is that of the distribution that was sampled from


@pytest.mark.usefixtures("double")
def test_reinforce_follows_the_distribution_that_was_sampled_from(toy):
    one = exact_task(toy, "metabt", sampling={"top_k": 3, "temperature": 0.7})
    psi = one.method.psi
    drawn = psi.translate(one.method.mono.next(), 1)
    start = psi.values()
    chosen = np.zeros(len(drawn.targets))
    chosen[0] = len(chosen)  # so the mean is the first one's
    psi.reinforce(1, drawn, chosen)
    found = psi.values() - start

    psi.learner.vector.values.copy_(start)
    parameters = parameters_of(psi.saved.model)
    ids = drawn.targets[0]
    batch = (Ragged.of([drawn.sources[0]], last=EOS), Ragged.of([ids], first=BOS))
    states = functional_call(psi.saved.model, parameters, batch)
    logits = states @ parameters["embedding.weight"][FIRST_OUTPUT:].T / 0.7
    logits = torch.where(logits < logits.topk(3).values[:, -1:], -torch.inf, logits)
    wanted = torch.tensor([*ids.tolist(), EOS]) - FIRST_OUTPUT
    logs = logits.log_softmax(1).gather(1, wanted[:, None])[:, 0]
    log_prob = logs.sum() if drawn.complete[0] else logs[:-1].sum()
    assert log_prob.item() == pytest.approx(drawn.log_probs[0], rel=1e-6)
    true = flat(torch.autograd.grad(log_prob, list(parameters.values())))
    torch.testing.assert_close(found, true, rtol=1e-6, atol=1e-10)


def test_before_its_start_metabt_is_mle(toy):
    options = {"start": 4, "samples": 3, "backward_optimiser": {**SGD, "rate": 0.1}}
    metabt = task(toy_forward(toy, "metabt", options=options, training=BASE))
    mle = task(toy_forward(toy, "mle", options={"generation": "sampling"}, training=BASE))
    pretrained = metabt.method.psi.values()
    for number in range(1, 4):
        metabt_sums, mle_sums = metabt.step(number), mle.step(number)
        assert metabt_sums == mle_sums
    assert torch.equal(metabt.method.theta.values(), mle.method.theta.values())
    assert torch.equal(metabt.method.psi.values(), pretrained)
    assert "reward_mean" not in metabt.row(metabt_sums)

    last = metabt.step(4)
    assert not torch.equal(metabt.method.psi.values(), pretrained)
    both = {name: metabt_sums.get(name, 0.0) + value for name, value in last.items()}
    assert metabt.row(both)["reward_mean"] == last["reward_mean"]  # of the one step that has it


# --- MLE ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ["sampling", "beam", "noisy-beam"])
def test_mle_leaves_psi_as_it_is(toy, generation):
    weights = (toy / "backward" / "model.safetensors").read_bytes()
    one = task(toy_forward(toy, "mle", options={"generation": generation}, training=BASE))
    model = one.method.psi.saved.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for number in range(1, 6):
        assert one.step(number) is not None
    assert all(torch.equal(tensor, before[n]) for n, tensor in model.state_dict().items())
    assert (toy / "backward" / "model.safetensors").read_bytes() == weights
    assert not any(name.startswith("psi") for name in one.tensors())


# --- a bandit -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bandit(tmp_path_factory):
    """One-word sentences of eight words. The backward model was trained on two sources for every
    target, the right one and another target's, so that it draws either; pairs and MetaDev know only
    the right one."""
    directory = tmp_path_factory.mktemp("bandit")
    write_toy(directory, train=200, dev=16, longest=1, letters="abcdefgh")
    words = "abcdefgh"
    right = [(w, w) for w in words]
    wrong = [(words[(i + 1) % 8], w) for i, w in enumerate(words)]
    texts = {"train": right * 8, "dev": right, "metadev": right * 8, "both": (right + wrong) * 8}
    for name, pairs in texts.items():
        files = [directory / f"{name}.{side}" for side in ("source", "target")]
        for file, side in zip(files, zip(*pairs, strict=True), strict=True):
            file.write_text("".join(f"{word}\n" for word in side))
        shard = directory / f"{name}.shard"
        encode_corpus(directory / "vocab.json", files, ["xx", "yy"], shard, None, 1)
    run = json.loads(
        toy_run(
            directory, training={"steps": 250, "label_smoothing": 0.0, "validate_every": 250}
        ).read_text()
    )
    run |= {"sides": [1, 0], "train": [str(directory / "both.shard")]}
    (directory / "backward.json").write_text(json.dumps(run))
    pretrain(directory / "backward.json", directory / "backward", Start(threads=1))
    return directory


def right_share(one, draws=20):
    """How often the backward model draws the right word."""
    right = total = 0
    batch = one.method.mono.next()
    for number in range(10_000, 10_000 + draws):
        drawn = one.method.psi.translate(batch, number)
        right += sum(
            a.tolist() == b.tolist() for a, b in zip(drawn.sources, drawn.targets, strict=True)
        )
        total += len(drawn.sources)
    return right / total


@pytest.mark.parametrize("reward", ["MetaDev's", "permuted"])
def test_the_backward_model_learns_what_helps_and_nothing_from_noise(bandit, monkeypatch, reward):
    rate = {"name": "adam", "rate": 3e-3, "schedule": "constant", "warmup": 0, "clip": 0}
    options = {"backward_optimiser": rate, "baseline": 0.3}
    training = {**BASE, "batch": {"sentences": 64}, "label_smoothing": 0.1}
    batches = {"pseudo_batch": {"sentences": 48}, "metadev_batch": {"sentences": 32}}
    one = task(toy_forward(bandit, "metabt", options=options, training=training, **batches))
    before = right_share(one)
    assert 0.35 < before < 0.65
    if reward == "permuted":
        rng = np.random.default_rng(0)
        theta = one.method.theta
        true = theta.slopes
        monkeypatch.setattr(theta, "slopes", lambda *a, **k: rng.permutation(true(*a, **k)))
    for number in range(1, 201):
        assert one.step(number) is not None
    after = right_share(one)
    if reward == "permuted":
        assert after < 0.7
    else:
        assert after > 0.85
