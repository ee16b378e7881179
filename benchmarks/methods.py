"""What a step of each method costs, in time and memory, beside MLE's, in one run on one machine.

    python benchmarks/methods.py [--repeats 3] [--steps 6] [--threads 2]

Multi30k, the models of config/multi30k.yaml, and the paper's batch sizes divided by eight: 256
sentences a step, 128 of them pseudo pairs, 64 of MetaDev. Methods take turns, each in a process of
its own; medians and ratios are printed.
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


def task(method: str, threads: int) -> Any:
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
            "backward": str(PAIR / "backward"),
            "lm": str(PAIR / "lm"),
            "low_resource": False,
            "vocabulary": str(PAIR / "vocab" / "vocab.json"),
            "transformer": setting.transformer.model_dump(),
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
    options = parser.parse_args()
    common = ["--steps", str(options.steps), "--threads", str(options.threads)]
    if options.one:
        print(json.dumps(measure(options.one, options.steps, options.threads)))
        return
    prepare()
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
