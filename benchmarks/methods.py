"""What a step of each method costs, in time and memory, beside MLE's, in one run on one machine.

    python benchmarks/methods.py [--repeats 3] [--steps 6] [--threads 2]

Multi30k, the models of config/multi30k.yaml, and the paper's batch sizes divided by eight: 256
sentences a step, 128 of them pseudo pairs, 64 of MetaDev. Methods take turns, each in a process of
its own; medians and ratios are printed. `--memory` measures instead how many vectors of the
model's size each method keeps, on growing models, and `--activations` what Transformer-Big keeps of
a token for its backward pass in bf16: what large models need follows from these.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
from measure import peak_mb  # noqa: E402

RUN = ROOT / "runs" / "multi30k"
PAIR = Path("results/en-de")
BATCHES = {"batch": 256, "pseudo": 128, "metadev": 64}
RATE = {"name": "adam", "rate": 1e-5, "schedule": "constant", "warmup": 0, "clip": 1.0}
METHODS: dict[str, dict[str, Any]] = {
    "mle": {"algorithm": "mle", "generation": "sampling"},
    "nobt": {"algorithm": "nobt"},
    "mle-beam": {"algorithm": "mle", "generation": "beam"},
    "dualnmt": {"algorithm": "dualnmt", "alpha": 0.01, "backward_optimiser": RATE},
    "metabt": {
        "algorithm": "metabt",
        "reward": "sentence",
        "precondition": True,
        "baseline": 0.01,
        "backward_optimiser": RATE,
    },
    "unmt": {"algorithm": "unmt", "backward_optimiser": RATE},
}
WARM_UP = 3


def prepare() -> None:
    """The data and the pre-trained models, through the workflow."""
    targets = [PAIR / "lm" / "model.json", PAIR / "backward" / "model.json"]
    targets += [PAIR / "shards" / f"{name}.shard" for name in ("mono", "metadev")]
    command = [sys.executable, "-m", "snakemake", "--directory", RUN, "--quiet", "rules"]
    command += ["--configfile", ROOT / "config" / "multi30k.yaml", "--cores", "2", "--"]
    subprocess.run([*map(str, command), *map(str, targets)], cwd=ROOT, check=True)


def task(method: str, threads: int, shape: Any = None, backward: Path = PAIR / "backward") -> Any:
    import torch

    from metabt.experiment import load
    from metabt.methods.blocks.run import ForwardRun
    from metabt.methods.blocks.task import ForwardTask
    from metabt.nmt.threads import ComputeThreads
    from metabt.training.distributed import Group
    from metabt.training.learner import Machine

    setting = load(ROOT / "config" / "multi30k.yaml").settings["standard"]
    training = setting.forward.model_dump() | {"batch": {"sentences": BATCHES["batch"]}}
    run = ForwardRun.model_validate(
        {
            "method": METHODS[method],
            "languages": ["en", "de"],
            "sets": {
                name: str(PAIR / "shards" / f"{name}.shard")
                for name in ("parallel", "mono", "metadev", "dev")
            },
            "backward": str(backward),
            "lm": str(PAIR / "lm"),
            "low_resource": False,
            "vocabulary": str(PAIR / "vocab" / "vocab.json"),
            "transformer": shape or setting.transformer.model_dump(),
            "training": training,
            "pseudo_batch": {"sentences": BATCHES["pseudo"]},
            "metadev_batch": {"sentences": BATCHES["metadev"]},
            "sampling": setting.sampling.model_dump(),
            "seed": 1,
        }
    )
    machine = Machine(Group(0, 1, torch.device("cpu")), ComputeThreads(threads), 4096)
    return ForwardTask(run, machine, RUN)


def measure(method: str, steps: int, threads: int) -> dict[str, Any]:
    one = task(method, threads)
    for number in range(1, WARM_UP + 1):
        one.step(number)
    began = time.perf_counter()
    for number in range(WARM_UP + 1, WARM_UP + steps + 1):
        one.step(number)
    seconds = (time.perf_counter() - began) / steps
    return {"seconds": seconds, "peak_mb": peak_mb()}


def grow(method: str, width: int) -> dict[str, Any]:
    """Parameters of models of a width, and what memory they took in a few small steps."""
    import tempfile

    from metabt.config import Transformer as Shape
    from metabt.data.subwords import Subwords
    from metabt.nmt.model_files import save_model
    from metabt.nmt.transformer import Transformer

    shape = {"layers": 4, "width": width, "feed_forward": 4 * width, "heads": 4, "dropout": 0.1}
    vocabulary = RUN / PAIR / "vocab" / "vocab.json"
    BATCHES.update(batch=16, pseudo=8, metadev=4)
    with tempfile.TemporaryDirectory() as place:
        model = Transformer(Subwords.load(vocabulary).size, Shape.model_validate(shape))
        weights = model.state_dict()
        parameters = sum(weight.numel() for weight in weights.values())
        save_model(Path(place), weights, "translation", model.shape, ["de", "en"], vocabulary)
        del model, weights
        one = task(method, 1, shape, Path(place))
        for number in range(1, 4):
            one.step(number)
    return {"parameters": parameters, "peak_mb": peak_mb()}


def compare_memory(methods: list[str], widths: list[int]) -> None:
    """The slope of the peak over the parameters: vectors of four-byte numbers."""
    print("| method | " + " | ".join(f"width {width}" for width in widths) + " | vectors |")
    print("|---|" + "---:|" * (len(widths) + 1))
    for name in methods:
        found = [child("--one", name, "--width", str(width)) for width in widths]
        first, last = found[0], found[-1]
        more = (last["peak_mb"] - first["peak_mb"]) * 2**20
        vectors = more / 4 / (last["parameters"] - first["parameters"])
        cells = [f"{f['parameters'] / 1e6:.1f} M: {f['peak_mb']:,} MB" for f in found]
        print(f"| {name} | {' | '.join(cells)} | {vectors:.1f} |", flush=True)


def kept_bytes(model: Any, sentences: int, length: int) -> tuple[int, int]:
    """Target tokens of a batch, and the bytes kept for its backward pass besides the parameters."""
    import numpy as np
    import torch

    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    sides = [[np.arange(4, 4 + length, dtype=np.uint16)] * sentences] * 2
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
    with torch.autocast("cpu", dtype=torch.bfloat16), hooks:
        loss, _ = model.loss(sides, 1.0, 0.1)
    loss.backward()
    return sentences * (length + 1), sum(kept.values())


def measure_activations() -> None:
    """Transformer-Big by torch's operators, as on a GPU, where autocast keeps bf16 weights, too."""
    from unittest.mock import patch

    from metabt.config import Transformer as Shape
    from metabt.nmt import operators
    from metabt.nmt.transformer import Transformer

    sizes = {"layers": 6, "width": 1024, "feed_forward": 4096, "heads": 16, "dropout": 0.1}
    model = Transformer(32000, Shape.model_validate(sizes))
    parameters = sum(p.numel() for p in model.parameters())
    with patch.object(operators, "has_kernels", lambda _: False):
        found = [kept_bytes(model.train(), sentences, 31) for sentences in (4, 16)]
    (tokens, kept), (more_tokens, more) = found
    slope = (more - kept) / (more_tokens - tokens)
    print(f"{parameters / 1e6:.0f} M parameters; {slope / 1e6:.2f} MB a target token (source and")
    print(f"target of the same length), and {(kept - slope * tokens) / 1e6:,.0f} MB in any case")


def child(*arguments: str) -> Any:
    command = [sys.executable, "-W", "ignore", __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.strip().split("\n")[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="measured in a process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--width", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help="measure memory on growing models")
    parser.add_argument("--activations", action="store_true", help="of Transformer-Big, in bf16")
    options = parser.parse_args()
    if options.activations:
        measure_activations()
        return
    common = ["--steps", str(options.steps), "--threads", str(options.threads)]
    if options.width:
        print(json.dumps(grow(options.one, options.width)))
        return
    if options.one:
        print(json.dumps(measure(options.one, options.steps, options.threads)))
        return
    prepare()
    if options.memory:
        compare_memory(["mle", "dualnmt", "metabt", "unmt"], [512, 768, 1024])
        return
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    for _ in range(options.repeats):
        for name in METHODS:
            runs[name].append(child("--one", name, *common))
            print(f"{name}: {runs[name][-1]}", flush=True)
    base = {key: statistics.median(run[key] for run in runs["mle"]) for key in runs["mle"][0]}
    print("\n| method | s/step (median) | all runs | to MLE's | peak MB | to MLE's |")
    print("|---|---:|---|---:|---:|---:|")
    for name, found in runs.items():
        seconds = statistics.median(run["seconds"] for run in found)
        memory = statistics.median(run["peak_mb"] for run in found)
        every = ", ".join(f"{run['seconds']:.3f}" for run in found)
        ratios = seconds / base["seconds"], memory / base["peak_mb"]
        print(
            f"| {name} | {seconds:.3f} | {every} | {ratios[0]:.2f} | {memory:,.0f} "
            f"| {ratios[1]:.2f} |"
        )


if __name__ == "__main__":
    main()
