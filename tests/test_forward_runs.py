"""Every method as the loop runs it: interruptions, divergence, several processes, descriptions."""

import csv
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toy import METHOD_OPTIONS, SGD, SHAPE, toy_forward, toy_run, write_toy_models

from metabt import methods
from metabt.errors import Interrupted, UserError
from metabt.methods import METHODS
from metabt.methods.blocks.task import train_forward
from metabt.tensor_files import read_tensors, write_tensors
from metabt.training.loop import Loop, Signals
from metabt.training.pretrain import Start, pretrain

FEW = {"steps": 12, "validate_every": 4, "batch": {"sentences": 24}, "average": 2}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy_models(tmp_path_factory.mktemp("methods"))


def finished(directory):
    names = ["model.safetensors", "metrics.csv", "training.json", "examples.tsv"]
    return {name: (directory / name).read_bytes() for name in names}


@pytest.mark.parametrize("algorithm", METHOD_OPTIONS)
def test_an_interrupted_run_ends_with_the_same_bits(toy, tmp_path, monkeypatch, algorithm):
    path = toy_forward(toy, algorithm, training=FEW).rename(tmp_path / "run.json")
    train_forward(path, tmp_path / "whole", Start(threads=2))
    expected = finished(tmp_path / "whole")

    rows = list(csv.DictReader(expected["metrics.csv"].decode().splitlines()))
    assert {row["step"] for row in rows} == {"4", "8", "12"}  # fewer than a row of training takes
    if algorithm != "nobt":
        examples = expected["examples.tsv"].decode().splitlines()
        assert len(examples) == 1 + 3 * 3

    stops = iter([3, 4, 7, 9])  # steps
    stop = [next(stops)]

    def asked(signals):
        return signals.group.first and loops[-1].state.step >= stop[0]

    loops = []
    create = Loop.__init__

    def watched(self, *arguments, **named):
        create(self, *arguments, **named)
        loops.append(self)

    monkeypatch.setattr(Loop, "__init__", watched)
    monkeypatch.setattr(Signals, "stop", asked)
    for following in (*stops, 1000):
        with pytest.raises(Interrupted):
            train_forward(path, tmp_path / "parts", Start(threads=2))
        stop[0] = following
    train_forward(path, tmp_path / "parts", Start(threads=2))
    assert len(loops) == 5
    assert finished(tmp_path / "parts") == expected


@pytest.mark.parametrize("algorithm", METHOD_OPTIONS)
def test_a_method_that_breaks_down_is_recorded_as_diverged(toy, tmp_path, algorithm):
    training = {**FEW, "steps": 30, "diverged_after": 3}
    training["optimiser"] = {**SGD, "rate": 1e30}
    train_forward(toy_forward(toy, algorithm, training=training), tmp_path, Start(threads=1))
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["status"] == "diverged"
    assert record["skipped_steps"] >= 3


def test_a_run_does_not_go_on_with_another_backward_model(toy, tmp_path, capsys):
    shutil.copytree(toy / "backward", tmp_path / "backward")
    backward = str(tmp_path / "backward")
    path = toy_forward(toy, "mle", training=FEW, backward=backward).rename(tmp_path / "run.json")
    train_forward(path, tmp_path / "model", Start(threads=1))
    before = finished(tmp_path / "model")
    train_forward(path, tmp_path / "model", Start(threads=1))
    assert finished(tmp_path / "model") == before
    tensors, about = read_tensors(tmp_path / "backward" / "model.safetensors")
    write_tensors(
        tmp_path / "backward" / "model.safetensors",
        {name: tensor * 1.5 for name, tensor in tensors.items()},
        about,
    )
    train_forward(path, tmp_path / "model", Start(threads=1))
    assert "of another run" in capsys.readouterr().out
    assert finished(tmp_path / "model")["model.safetensors"] != before["model.safetensors"]


def test_a_forward_model_begins_as_the_one_it_is_given(toy, tmp_path):
    few = {"steps": 3, "batch": {"sentences": 8}}
    given = tmp_path / "initial"
    pretrain(toy_run(toy, training=few).rename(tmp_path / "initial.json"), given, Start(threads=1))
    still = {**FEW, "steps": 4, "average": 1, "optimiser": {**SGD, "rate": 1e-30}}
    path = toy_forward(toy, "mle", training=still, initial=str(given)).rename(tmp_path / "run.json")
    train_forward(path, tmp_path / "model", Start(threads=1))
    before, _ = read_tensors(given / "model.safetensors")
    after, _ = read_tensors(tmp_path / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():  # zeros have moved by less than nothing
        assert torch.allclose(tensor, after[name], rtol=0, atol=1e-20), name

    for change, message in (
        ({"initial": str(toy / "backward")}, "translates yy to xx, this run xx to yy"),
        ({"transformer": {**SHAPE, "width": 32}}, "is not of this model"),
        ({"initial": str(toy / "lm")}, "a language-model model, but a translation"),
    ):
        other = tmp_path / "other.json"
        other.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        with pytest.raises(UserError, match=message):
            train_forward(other, tmp_path / "other", Start(threads=1))


PROCESS = """
import json, sys
from pathlib import Path
import torch
torch.set_default_dtype(torch.float64)
from metabt.methods.blocks.run import ForwardRun
from metabt.methods.blocks.task import ForwardTask, train_forward
from metabt.nmt.ragged import Ragged
from metabt.nmt.threads import ComputeThreads
from metabt.nmt.transformer import FIRST_OUTPUT
from metabt.tensor_files import read_tensors, write_tensors
from metabt.training.distributed import process_group
from metabt.training.learner import Machine
from metabt.training.run import read_description
with process_group("cpu") as group:
    run = read_description(Path(sys.argv[1]), ForwardRun)
    task = ForwardTask(run, Machine(group, ComputeThreads(1), 4096), Path())
    steps = [task.step(number) for number in range(1, 5)]
    if group.first:
        tensors = {name: t.reshape(-1).tolist() for name, t in task.tensors().items()}
        print(json.dumps({"steps": steps, "tensors": tensors}))
"""


def run_processes(path, ranks):
    """The steps and tensors of a run in so many processes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(path)],
            env={**os.environ, **world, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    return json.loads(outputs[0].strip().split("\n")[-1])


@pytest.mark.parametrize(
    ("algorithm", "more"), [("dualnmt", {}), ("metabt", {}), ("metabt", {"samples": 3})]
)
def test_two_processes_are_as_one(toy, algorithm, more):
    """Rewards, baselines, gradients and records are those of the whole batch."""
    rate = {"name": "adam", "rate": 1e-3, "schedule": "constant", "warmup": 0, "clip": 0.5}
    options = {"backward_optimiser": {**rate, "epsilon": 1e-4}, **more}
    optimiser = {**rate, "epsilon": 1e-4, "clip": 0}
    training = {"steps": 10, "batch": {"sentences": 22}, "optimiser": optimiser}
    path = toy_forward(
        toy, algorithm, options=options, transformer={"dropout": 0.0}, training=training
    )
    one, two = run_processes(path, 1), run_processes(path, 2)
    for a, b in zip(one["steps"], two["steps"], strict=True):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-9)
    for name, values in one["tensors"].items():
        assert values == pytest.approx(two["tensors"][name], rel=1e-5, abs=1e-8)


# --- descriptions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backward": None}, "mle needs 'backward'"),
        ({"method": {"algorithm": "magic"}}, "no algorithm 'magic'"),
        ({"method": {"algorithm": "mle"}}, "generation"),
        (
            {
                "method": {"algorithm": "metabt", **METHOD_OPTIONS["metabt"]}
                | {"reward": "batch", "samples": 2}
            },
            "`samples` goes with a reward for each sentence",
        ),
        ({"pseudo_batch": {"tokens": 100}}, "given by sentences"),
        ({"pseudo_batch": {"sentences": 32}}, "no room"),
        ({"vocabulry": "x"}, "vocabulry"),
    ],
)
def test_a_faulty_description_is_refused(toy, tmp_path, change, message):
    path = toy_forward(toy, "mle").rename(tmp_path / "run.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=message) as error:
        train_forward(path, tmp_path / "model", Start(threads=1))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_example_of_the_documentation_is_a_method(toy, tmp_path, monkeypatch):
    """docs/methods.md: a file in the folder is all it takes."""
    text = (Path(__file__).parents[1] / "docs" / "methods.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) < 60
    (tmp_path / "example.py").write_text(code)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    found = methods._find()
    (name,) = found.keys() - METHODS.keys()
    monkeypatch.setitem(METHODS, name, found[name])
    options = {"backward_optimiser": SGD}
    path = toy_forward(toy, name, options=options, training=FEW).rename(tmp_path / "run.json")
    train_forward(path, tmp_path / "model", Start(threads=1))
    record = json.loads((tmp_path / "model" / "training.json").read_text())
    assert record["status"] == "finished"
