"""What MetaBT could gain at most: train on the samples that its reward prefers.

    python benchmarks/selection.py --directory runs/multi30k --run results/en-de/metabt/seed1 \
        --by relative --start 300

The backward model stays as it is. For each target it draws several sources, and the forward model
learns from the one with the highest reward. That is where REINFORCE would move the backward
model if it had no noise and all the time it wants. With `--by chance` it is MLE; `lowest` takes
the one with the lowest reward, so it should do harm where `sentence` helps; `known` takes the one
with the most words of the low-resource language, whatever its reward.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch

from metabt.methods.blocks.run import ForwardRun
from metabt.methods.blocks.sentences import Pairs, Translations
from metabt.methods.blocks.task import ForwardTask
from metabt.methods.metabt import MetaBT
from metabt.nmt.threads import ComputeThreads
from metabt.training.distributed import Group
from metabt.training.learner import Machine
from metabt.training.loop import Signals

KINDS = ("chance", "sentence", "relative", "lowest", "short", "known")


class Selection:
    def __init__(self, run: ForwardRun, by: str, samples: int) -> None:
        self.machine = Machine(Group(0, 1, torch.device("cpu")), ComputeThreads(1), 4096)
        self.task = ForwardTask(run, self.machine, Path())
        self.method: MetaBT = self.task.method
        self.by, self.samples = by, samples

    def step(self, number: int, select: bool) -> Pairs:
        method = self.method
        batch = method.mono.next()
        samples = self.samples if select else 1
        drawn = method.psi.translate(batch.times(samples), number)
        merits = self.merits(drawn) if select else np.zeros(len(batch.sentences))
        chosen = np.argmax(merits.reshape(samples, -1), 0)
        count = len(batch.sentences)
        sources = [drawn.targets[k * count + i] for i, k in enumerate(chosen)]
        pseudo = Pairs(sources, batch.sentences)
        method.theta.descend(number, method.parallel.next(), pseudo)
        return pseudo

    def merits(self, drawn: Translations) -> np.ndarray:
        """Of each target's samples the one with the most is learnt from."""
        if self.by == "chance":
            return np.zeros(len(drawn.targets))
        if self.by == "short":
            return np.array([-len(ids) for ids in drawn.targets])
        if self.by == "known":
            counts = np.array([self.task.parts.known(ids) for ids in drawn.targets])
            return counts[:, 0] / np.maximum(1, counts[:, 1])
        theta = self.method.theta
        _, gradient = theta.gradient(self.method.metadev.next())
        if self.method.options.precondition:
            theta.precondition_(gradient)
        rewards = theta.slopes(drawn.reversed, at=theta.values(), along=gradient)
        if self.by == "relative":
            rewards = rewards / theta.losses(drawn.reversed)
        return -rewards if self.by == "lowest" else rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--directory", type=Path, required=True, help="of the experiment")
    parser.add_argument("--run", type=Path, required=True, help="a MetaBT run, below the directory")
    parser.add_argument("--by", choices=KINDS, required=True)
    parser.add_argument("--samples", type=int, default=4, help="for each target")
    parser.add_argument("--start", type=int, default=2, help="chance decides before this step")
    parser.add_argument("--steps", type=int, help="if not the run's")
    parser.add_argument("--seed", type=int, help="if not the run's")
    options = parser.parse_args()
    os.chdir(options.directory)
    run = json.loads((options.run / "run.json").read_text(encoding="utf-8"))
    if options.seed is not None:
        run["seed"] = options.seed
    one = Selection(ForwardRun.model_validate(run), options.by, options.samples)
    steps = options.steps or run["training"]["steps"]
    ratios = []
    for number in range(1, steps + 1):
        pseudo = one.step(number, number >= options.start)
        ratios += [len(s) / len(t) for s, t in zip(pseudo.sources, pseudo.targets, strict=True)]
        if number % run["training"]["validate_every"] == 0 or number == steps:
            found = one.task.measure(Signals(one.machine.group))
            print(
                f"{options.by} seed {run['seed']} step {number}: dev BLEU {found['dev_bleu']:.2f}, "
                f"loss {found['dev_loss']:.3f}, pseudo source / target {np.mean(ratios):.3f}",
                flush=True,
            )
            ratios = []


if __name__ == "__main__":
    main()
