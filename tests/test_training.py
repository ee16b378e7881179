"""Training: optimisers against float64, accumulation, threads, processes, interruptions."""

import csv
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import corpus_bleu
from toy import sentences, toy_run, write_toy

from metabt.config import Optimiser as OptimiserSettings
from metabt.errors import Interrupted, UserError
from metabt.files import read_json
from metabt.nmt.model_files import load_model
from metabt.nmt.threads import ComputeThreads
from metabt.tensor_files import read_tensors, write_tensors
from metabt.training import supervised
from metabt.training.distributed import Group
from metabt.training.learner import Machine, micro_batches
from metabt.training.loop import Loop
from metabt.training.optimisers import clip, optimiser, rate_at
from metabt.training.pretrain import Start, pretrain
from metabt.training.run import read_run
from metabt.training.supervised import Supervised
from metabt.training.vector import ParameterVector

ROOT = Path(__file__).parents[1]
ALONE = Group(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("toy")
    write_toy(directory)
    return directory


def task(run_file, threads=1, micro_tokens=4096):
    machine = Machine(ALONE, ComputeThreads(threads), micro_tokens)
    return Supervised(read_run(run_file), machine, Path())


# --- optimisers -----------------------------------------------------------------------------------


def settings_of(name, **others):
    values = {"rate": 0.01, "schedule": "constant", "warmup": 0, "clip": 0, "epsilon": 1e-8}
    return OptimiserSettings(name=name, **{**values, **others})


@pytest.mark.parametrize("name", ["adam", "lamb", "sgd"])
def test_optimisers_follow_their_papers(name):
    """Ten steps against the equations written out in float64, parameter by parameter."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 2))
    vector = ParameterVector(model)
    values = [p.detach().double().numpy().copy() for p in model.parameters()]
    means = [np.zeros_like(v) for v in values]
    squares = [np.zeros_like(v) for v in values]
    settings_ = settings_of(name, betas=[0.9, 0.98])
    stepper = optimiser(vector, settings_)
    rng = np.random.default_rng(0)
    for step in range(1, 11):
        for i, parameter in enumerate(model.parameters()):
            grad = rng.normal(size=parameter.shape)
            parameter.grad.copy_(torch.tensor(grad))
            means[i] = 0.9 * means[i] + 0.1 * grad
            squares[i] = 0.98 * squares[i] + 0.02 * grad**2
            unit = means[i] / (1 - 0.9**step) / (np.sqrt(squares[i] / (1 - 0.98**step)) + 1e-8)
            towards = {
                "sgd": grad,
                "adam": unit,
                "lamb": unit * np.linalg.norm(values[i]) / np.linalg.norm(unit),
            }[name]
            values[i] = values[i] - 0.01 * towards
        stepper.step(0.01)
    for expected, parameter in zip(values, model.parameters(), strict=True):
        assert np.allclose(expected, parameter.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_lamb_moves_a_parameter_that_is_zero():
    model = torch.nn.Linear(3, 2)
    torch.nn.init.zeros_(model.weight)
    vector = ParameterVector(model)
    vector.grads.fill_(1.0)
    optimiser(vector, settings_of("lamb")).step(0.01)
    assert torch.allclose(model.weight, torch.full((2, 3), -0.01))


def test_the_rate_rises_and_falls():
    schedule = settings_of("adam", rate=1.0, schedule="inverse_sqrt", warmup=100)
    assert [rate_at(schedule, s) for s in (1, 50, 100, 400)] == [0.01, 0.5, 1.0, 0.5]
    # Vaswani et al. 2017: d^-0.5 min(step^-0.5, step warmup^-1.5).
    peak = 512**-0.5 * 4000**-0.5
    vaswani = settings_of("adam", rate=peak, schedule="inverse_sqrt", warmup=4000)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        assert rate_at(vaswani, step) == pytest.approx(
            512**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-9
        )
    assert rate_at(settings_of("adam", rate=0.3, warmup=2), 1) == 0.15
    assert rate_at(settings_of("adam", rate=0.3), 7) == 0.3


def test_clipping_limits_the_norm():
    model = torch.nn.Linear(10, 10)
    vector = ParameterVector(model)
    vector.grads.fill_(3.0)
    norm = vector.grads.norm().item()
    assert clip(vector, 0).item() == pytest.approx(norm)
    assert clip(vector, 2.0).item() == pytest.approx(norm)
    assert vector.grads.norm().item() == pytest.approx(2.0, rel=1e-4)
    clip(vector, 5.0)
    assert vector.grads.norm().item() == pytest.approx(2.0, rel=1e-4)


# --- steps ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=20), st.integers(1, 60))
def test_micro_batches_are_the_batch_in_order(lengths, tokens):
    sides = [[np.arange(pair[i]) for pair in lengths] for i in (0, 1)]
    parts = micro_batches(sides, tokens)
    for i in (0, 1):
        assert [len(s) for part in parts for s in part[i]] == [pair[i] for pair in lengths]
    for part in parts:
        size = sum(max(len(a), len(b)) + 1 for a, b in zip(*part, strict=True))
        assert size <= tokens or len(part[0]) == 1


@pytest.mark.parametrize(("threads", "micro_tokens"), [(1, 40), (2, 4096), (3, 30)])
def test_threads_and_micro_batches_do_not_change_the_step(toy, threads, micro_tokens):
    """The same losses and weights as in one pass, but for rounding (which Adam would magnify where
    a gradient is zero, as that of the keys' bias)."""
    run_file = toy_run(toy, transformer={"dropout": 0.0}, optimiser={"name": "sgd", "rate": 0.1})
    whole, parts = task(run_file), task(run_file, threads, micro_tokens)
    for step in range(1, 6):
        a, b = whole.step(step), parts.step(step)
        assert a["tokens"] == b["tokens"]
        for name in ("loss", "nll", "gradient_norm"):
            assert a[name] == pytest.approx(b[name], rel=1e-4)
    assert torch.allclose(whole.learner.vector.values, parts.learner.vector.values, atol=1e-5)


def test_threads_are_deterministic(toy):
    runs = [task(toy_run(toy), threads=2, micro_tokens=50) for _ in range(2)]
    for step in range(1, 6):
        assert runs[0].step(step) == runs[1].step(step)
    assert torch.equal(runs[0].learner.vector.values, runs[1].learner.vector.values)


def test_the_loss_is_the_mean_over_target_tokens(toy):
    run_file = toy_run(toy, transformer={"dropout": 0.0}, training={"label_smoothing": 0.0})
    one = task(run_file)
    sums = one.step(1)
    assert sums["loss"] == pytest.approx(sums["nll"] / sums["tokens"], rel=1e-4)


PROCESS = """
import json, sys
from pathlib import Path
import torch
from metabt.nmt.threads import ComputeThreads
from metabt.training.distributed import process_group
from metabt.training.run import read_run
from metabt.training.learner import Machine
from metabt.training.supervised import Supervised
class Never:
    def stop(self): return False
with process_group("cpu") as group:
    task = Supervised(read_run(Path(sys.argv[1])), Machine(group, ComputeThreads(1), 4096), Path())
    steps = [task.step(i) for i in range(1, 8)]
    scores = task.measure(Never())
    if group.first:
        values = task.learner.vector.values.double()
        print(json.dumps([steps, scores, values.sum().item(), values.norm().item()]))
"""


def test_two_processes_train_as_one(toy, tmp_path):
    """Started by torchrun, over gloo: the same losses, gradient norms and dev scores."""
    run_file = toy_run(toy, transformer={"dropout": 0.0})
    script = tmp_path / "process.py"
    script.write_text(PROCESS)
    outputs = []
    for processes in (1, 2):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={processes}", str(script), str(run_file)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        outputs.append(json.loads(done.stdout.strip().split("\n")[-1]))
    (steps, scores, total, norm), (steps2, scores2, total2, norm2) = outputs
    for a, b in zip(steps, steps2, strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    assert scores == pytest.approx(scores2, rel=1e-4)
    assert total == pytest.approx(total2, rel=1e-3)
    assert norm == pytest.approx(norm2, rel=1e-5)


def test_half_precision_stays_close(toy, monkeypatch):
    """What a GPU computes under autocast, here on the CPU through torch's operators."""
    run_file = toy_run(toy, transformer={"dropout": 0.0})
    exact, half = task(run_file), task(run_file)
    monkeypatch.setattr("metabt.nmt.operators.has_kernels", lambda x: False)
    expected = exact.step(1)
    monkeypatch.setattr(Machine, "autocast", lambda self: torch.autocast("cpu", torch.bfloat16))
    found = half.step(1)
    assert found["loss"] == pytest.approx(expected["loss"], rel=0.02)
    assert found["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=0.05)


@pytest.mark.slow
def test_torch_compile_does_not_change_the_step(toy):
    run_file = toy_run(toy, transformer={"dropout": 0.0})
    machine = Machine(ALONE, ComputeThreads(1), 4096, compile=True)
    plain, compiled = task(run_file), Supervised(read_run(run_file), machine, Path())
    for step in (1, 2, 3):
        assert plain.step(step) == pytest.approx(compiled.step(step), rel=1e-4)


# --- the loop -------------------------------------------------------------------------------------


def run_loop(run_file, directory, **options):
    one = task(run_file)
    loop = Loop(one, directory, ALONE, **options)
    return loop, loop.run()


def rows(directory):
    with (directory / "checkpoint" / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_loop_measures_selects_and_averages(toy, tmp_path):
    run_file = toy_run(toy, training={"steps": 65, "average": 2, "select": "bleu"})
    loop, state = run_loop(run_file, tmp_path)
    assert (state.status, state.step, len(state.best)) == ("finished", 65, 2)
    table = rows(tmp_path)
    measured = {int(r["step"]): float(r["dev_bleu"]) for r in table if r["dev_bleu"]}
    assert list(measured) == [10, 20, 30, 40, 50, 60, 65]
    best = sorted(measured, key=lambda step: (-measured[step], step))[:2]
    assert [step for _, step in state.best] == best
    assert [int(r["step"]) for r in table if r["train_loss"]] == [50]
    snapshots = {p.name for p in (tmp_path / "checkpoint").glob("best-*")}
    assert snapshots == {f"best-{step}.safetensors" for step in best}
    tensors = [read_tensors(tmp_path / "checkpoint" / name)[0] for name in snapshots]
    for name, weight in loop.best_weights().items():
        assert torch.allclose(weight, (tensors[0][name] + tensors[1][name]) / 2)


def test_the_loop_stops_when_nothing_gets_better(toy, tmp_path):
    run_file = toy_run(
        toy,
        training={"steps": 500, "validate_every": 2, "patience": 3},
        optimiser={"name": "sgd", "rate": 1e-30, "schedule": "constant", "warmup": 0},
    )
    _, state = run_loop(run_file, tmp_path)
    assert (state.status, state.step, state.best[0][1]) == ("stopped early", 8, 2)


def test_steps_that_are_not_finite_are_skipped_and_counted(toy, tmp_path, monkeypatch):
    run_file = toy_run(toy, training={"steps": 12, "diverged_after": 3})
    accumulate = supervised.Learner.accumulate
    bad = {2, 5, 6, 9}

    def poisoned(self, *arguments, dropout):
        sums = accumulate(self, *arguments, dropout=dropout)
        if dropout[1] in bad:
            self.vector.grads[3] = math.nan
        return sums

    monkeypatch.setattr(supervised.Learner, "accumulate", poisoned)
    _, state = run_loop(run_file, tmp_path / "a")
    assert (state.status, state.skipped) == ("finished", 4)
    bad |= {10, 11}
    loop, state = run_loop(run_file, tmp_path / "b")
    assert (state.status, state.step, state.skipped) == ("diverged", 11, 6)
    assert all(torch.isfinite(w).all() for w in loop.best_weights().values())


def test_a_diverged_run_ends_with_its_record(toy, tmp_path):
    run_file = toy_run(
        toy,
        training={"steps": 200, "diverged_after": 4},
        optimiser={"name": "sgd", "rate": 1e30, "schedule": "constant", "warmup": 0},
    )
    pretrain(run_file, tmp_path, Start(threads=1))
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["status"] == "diverged"
    assert record["skipped_steps"] >= 4
    load_model(tmp_path)  # whatever it is worth, it is whole


def test_a_checkpoint_of_another_run_is_not_continued(toy, tmp_path, capsys):
    run_loop(toy_run(toy, training={"steps": 3}), tmp_path)
    _, state = run_loop(toy_run(toy, training={"steps": 3}, seed=2), tmp_path)
    assert "starting anew" in capsys.readouterr().out
    assert state.step == 3


def test_a_run_under_way_can_be_made_longer_or_shorter(toy, tmp_path):
    """With the same result as if it had been so from the beginning."""
    results = []
    for i, lengths in enumerate([(20,), (30, 20), (12, 20)]):
        for steps in lengths:
            run_file = toy_run(toy, training={"steps": steps, "validate_every": 5})
            one = task(run_file)
            loop = Loop(one, tmp_path / str(i), ALONE)
            if steps != lengths[-1]:  # stop after 10 steps
                loop.task.measure = _interrupt_at(loop, 10)
                with pytest.raises(Interrupted):
                    loop.run()
            else:
                loop.run()
        results.append(
            ((tmp_path / str(i) / "checkpoint" / "metrics.csv").read_bytes(), loop.best_weights())
        )
    for metrics, weights in results[1:]:
        assert metrics == results[0][0]
        assert all(torch.equal(weights[name], results[0][1][name]) for name in weights)


def _interrupt_at(loop, step):
    measure = loop.task.measure

    def interrupted(signals):
        if loop.state.step == step:
            raise Interrupted
        return measure(signals)

    return interrupted


def test_a_finished_run_is_not_trained_again(toy, tmp_path, monkeypatch):
    run_file = toy_run(toy, training={"steps": 6})
    pretrain(run_file, tmp_path, Start(threads=1))
    before = (tmp_path / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "model.json", "training.json", "metrics.csv"):
        (tmp_path / name).unlink()  # as Snakemake does before it runs a rule again
    monkeypatch.setattr(Supervised, "step", lambda *_: pytest.fail("trained again"))
    pretrain(run_file, tmp_path, Start(threads=1))
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_language_model_learns(toy, tmp_path):
    pretrain(toy_run(toy, kind="language-model"), tmp_path, Start(threads=1))
    saved = load_model(tmp_path, kind="language-model")
    assert saved.languages == ["xx"]
    table = rows(tmp_path)
    losses = [float(r["dev_loss"]) for r in table if r["dev_loss"]]
    assert losses[-1] < losses[0]
    assert all(r["dev_bleu"] == "" for r in table)
    with pytest.raises(UserError, match="a language-model model, but a translation model"):
        load_model(tmp_path)


# --- files ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_damage_anywhere_in_a_tensor_file_is_noticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("t") / "x.safetensors"
    tensors = {"a": torch.arange(12.0).view(3, 4), "b": torch.tensor(7)}
    write_tensors(path, tensors, {"step": 3})
    good = path.read_bytes()
    read, description = read_tensors(path)
    assert description == {"step": 3}
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    bad = bytearray(good)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(good) - 1))
        bad[at] ^= data.draw(st.integers(1, 255))
    else:
        bad = bad[: data.draw(st.integers(0, len(good) - 1))]
    path.write_bytes(bad)
    try:
        read, description = read_tensors(path)
    except UserError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:  # a byte of the header that means nothing, such as its padding
        assert description == {"step": 3}
        assert all(torch.equal(read[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "nonsense"}, "kind"),
        ({"sides": [0]}, "2 sides"),
        ({"sides": [0, 2]}, "no side 2"),
        ({"unknown": 1}, "unknown"),
        ({"dev": "nowhere.shard"}, "nowhere.shard: no such file"),
        ({"vocabulary": "nowhere.json"}, "nowhere.json: no such file"),
    ],
)
def test_a_wrong_description_is_told_in_a_sentence(toy, tmp_path, change, message):
    run = {**json.loads(toy_run(toy).read_text()), **change}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    with pytest.raises(UserError, match=message):
        pretrain(path, tmp_path, Start(threads=1))


def test_a_shard_of_another_vocabulary_is_refused(toy, tmp_path):
    write_toy(tmp_path / "other", train=100, longest=3)
    run = json.loads(toy_run(toy).read_text())
    run["dev"] = str(tmp_path / "other" / "dev.shard")
    (tmp_path / "other" / "joint.model").write_bytes((toy / "joint.model").read_bytes())
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    if (tmp_path / "other" / "vocab.json").read_bytes() != (toy / "vocab.json").read_bytes():
        with pytest.raises(UserError, match="was not written with the vocabulary"):
            pretrain(path, tmp_path, Start(threads=1))


# --- interruptions --------------------------------------------------------------------------------


def start(run_file, directory, minutes="0", threads="1"):
    command = [sys.executable, "-m", "metabt", "train", str(run_file), "--output", str(directory)]
    command += ["--threads", threads, "--checkpoint-minutes", minutes]
    return subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def finished(directory):
    """All that a run leaves but for its clock."""
    names = ["model.safetensors", "model.json", "metrics.csv", "training.json"]
    return {name: (directory / name).read_bytes() for name in names}


def wait_for(path, process, seconds=120):
    end = time.monotonic() + seconds
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)


def kill_again_and_again(run_file, directory, kills, rng, threads="1"):
    """Kill -9 at random moments; returns how often a process was killed before it had finished."""
    killed = 0
    for _ in range(kills):
        process = start(run_file, directory, threads=threads)
        wait_for(directory / "checkpoint" / "last.safetensors", process)
        try:
            process.wait(timeout=rng.uniform(1.5, 6.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
    process = start(run_file, directory, threads=threads)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return killed


LONG = {"steps": 400, "validate_every": 60, "average": 2}


@pytest.fixture(scope="module")
def uninterrupted(toy, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    run_file = toy_run(toy, training=LONG)
    run_file = run_file.rename(directory / "run.json")
    pretrain(run_file, directory, Start(threads=2))
    return run_file, finished(directory)


def test_killed_runs_end_with_the_same_bits(uninterrupted, tmp_path):
    run_file, expected = uninterrupted
    assert kill_again_and_again(run_file, tmp_path, 3, random.Random(1), threads="2") >= 1
    assert finished(tmp_path) == expected


@pytest.mark.slow
def test_runs_killed_dozens_of_times_end_with_the_same_bits(uninterrupted, tmp_path):
    run_file, expected = uninterrupted
    killed = 0
    for seed in range(12):
        directory = tmp_path / str(seed)
        killed += kill_again_and_again(run_file, directory, 4, random.Random(seed), threads="2")
        assert finished(directory) == expected
    assert killed >= 24


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_leaves_with_its_own_code(uninterrupted, tmp_path, number):
    run_file, expected = uninterrupted
    process = start(run_file, tmp_path, minutes="60", threads="2")
    wait_for(tmp_path / "checkpoint" / "last.safetensors", process)  # after the first measurement
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75, errors
    assert "everything is saved" in errors
    assert not (tmp_path / "training.json").exists()
    _, description = read_tensors(tmp_path / "checkpoint" / "last.safetensors")
    assert 60 <= description["state"]["step"] < 400
    cost = read_json(tmp_path / "checkpoint" / "cost.json")
    assert cost["sittings"] == 1
    assert cost["device"] == "cpu"
    process = start(run_file, tmp_path, threads="2")
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert f"going on at step {description['state']['step']}" in out
    whole = read_json(tmp_path / "checkpoint" / "cost.json")
    assert whole["sittings"] == 2
    assert whole["seconds"] > cost["seconds"] > 0
    assert whole["peak_mb"] >= cost["peak_mb"] > 50
    assert finished(tmp_path) == expected


def test_a_signal_during_a_measurement_loses_nothing(uninterrupted, tmp_path, monkeypatch):
    run_file, expected = uninterrupted
    measure = supervised.Dev.measure

    def interrupted(self, model, signals):
        os.kill(os.getpid(), signal.SIGUSR1)
        return measure(self, model, signals)

    with monkeypatch.context() as patch:
        patch.setattr(supervised.Dev, "measure", interrupted)
        with pytest.raises(Interrupted):
            pretrain(run_file, tmp_path, Start(threads=2))
    pretrain(run_file, tmp_path, Start(threads=2))
    assert finished(tmp_path) == expected


# --- the whole of it ------------------------------------------------------------------------------


def test_reversal_is_learnt(tmp_path):
    """A model that turns sentences round, trained from nothing, to BLEU above 99."""
    write_toy(tmp_path, train=8000, dev=100, longest=9)
    run_file = toy_run(
        tmp_path,
        transformer={"layers": 2, "width": 64, "feed_forward": 128, "heads": 4, "dropout": 0.0},
        training={
            "steps": 500,
            "validate_every": 100,
            "batch": {"sentences": 128},
            "select": "bleu",
        },
        optimiser={"rate": 0.002, "warmup": 100},
    )
    pretrain(run_file, tmp_path / "model", Start(threads=2))
    new = sentences(200, 3, 9)
    source, out = tmp_path / "new.source", tmp_path / "out"
    source.write_text("".join(f"{line}\n" for line in new))
    command = ["translate", "--model", tmp_path / "model", "--input", source, "--output", out]
    subprocess.run([sys.executable, "-m", "metabt", *map(str, command)], cwd=ROOT, check=True)
    expected = [line[::-1] for line in new]
    assert corpus_bleu(out.read_text().splitlines(), [expected]).score > 99
