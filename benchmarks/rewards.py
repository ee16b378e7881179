"""What MetaBT's reward can tell apart, and how many steps it takes until it shows.

    python benchmarks/rewards.py --directory runs/multi30k --run results/en-de/metabt/seed1 \
        --state results/en-de/mle/seed1/checkpoint/last.safetensors

A forward model is taken as a checkpoint of an unfinished run has it (any method's; the data are
those of `--run`). Three questions are put to it. In the first two, true pairs, pairs with a pseudo
source and pairs with another sentence's source stand for good, middling and bad pseudo pairs:

1. How often has a true pair a higher reward than the same target with a wrong source? Half the time
   would be chance. With MetaDev's gradient before and after the step, plain and preconditioned.
2. What becomes of the loss on MetaDev after 1, 3, 10 and 30 steps on each kind beside parallel
   pairs?
3. Of several samples for the same target, which have the higher reward? Its correlation with their
   length, with their likeness to the true source (chrF), with what both models think of them, and
   with their share of words that the low-resource language's training text has.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch

from metabt.data.batches import BatchStream, Corpus
from metabt.data.shards import Shard
from metabt.methods.blocks.run import ForwardRun
from metabt.methods.blocks.sentences import Numbered, Pairs, PairStream
from metabt.methods.blocks.task import ForwardTask
from metabt.methods.metabt import MetaBT
from metabt.nmt.threads import ComputeThreads
from metabt.tensor_files import read_tensors
from metabt.training.distributed import Group
from metabt.training.learner import Machine
from metabt.training.optimisers import rate_at

HORIZONS = (1, 3, 10, 30)
JUDGED = 400  # sentences of MetaDev


class Bench:
    """A run of MetaBT whose forward model can be set back to one state again and again."""

    def __init__(self, description: Path, state: Path, metadev: int | None) -> None:
        run = ForwardRun.model_validate_json(description.read_text(encoding="utf-8"))
        if metadev:
            run = run.model_copy(
                update={"metadev_batch": type(run.metadev_batch)(sentences=metadev)}
            )
        self.machine = Machine(Group(0, 1, torch.device("cpu")), ComputeThreads(1), 4096)
        self.task = ForwardTask(run, self.machine, Path())
        self.method: MetaBT = self.task.method
        # True pairs that the forward model has not learnt yet: those of dev.
        batch, dev = run.pseudo_batch, Corpus([Shard.open(Path(run.sets["dev"]))])
        self.unseen = PairStream(BatchStream(dev, 1, batch.sentences, batch.tokens))
        self.saved, about = read_tensors(state)
        self.step = int(about["state"]["step"])
        self.set_back()

    def set_back(self) -> None:
        for name, tensor in self.method.theta.tensors("theta").items():
            tensor.copy_(self.saved[name])

    def anneal(self, steps: int) -> None:
        """Train on, as MLE does, with a rate that falls to zero, and begin from there."""
        theta, learner = self.method.theta, self.method.theta.learner
        settings = learner.settings
        first = rate_at(settings, self.step)
        for left in range(steps, 0, -1):
            falling = {"schedule": "constant", "warmup": 0, "rate": first * left / steps}
            learner.settings = settings.model_copy(update=falling)
            self.step += 1
            theta.descend(self.step, self.method.parallel.next(), self.pseudo(self.step))
        learner.settings = settings
        self.saved = {name: tensor.clone() for name, tensor in theta.tensors("theta").items()}

    def pseudo(self, number: int) -> Pairs:
        return self.method.psi.translate(self.method.mono.next(), number).reversed

    def judges(self) -> Pairs:
        shard = self.method.metadev.stream.corpus.shards[0]
        first = range(min(JUDGED, len(shard)))
        return Pairs(*([shard.sentence(side, i) for i in first] for side in (0, 1)))


def wrong(pairs: Pairs) -> Pairs:
    """Every target with its neighbour's source."""
    return Pairs([*pairs.sources[1:], pairs.sources[0]], pairs.targets)


def tell_apart(bench: Bench, steps: int) -> None:
    theta, method = bench.method.theta, bench.method
    higher: dict[str, list[float]] = {}
    for number in range(bench.step + 1, bench.step + steps + 1):
        pseudo, metadev, before = bench.pseudo(number), method.metadev.next(), theta.values()
        _, early = theta.gradient(metadev)
        theta.descend(number, method.parallel.next(), pseudo)
        _, late = theta.gradient(metadev)
        true = bench.unseen.next()
        for name, gradient in (("before the step", early), ("after the step", late)):
            for kind in ("plain", "preconditioned"):
                if kind == "preconditioned":
                    theta.precondition_(gradient)
                both = (true, wrong(true))
                good, bad = (theta.slopes(pairs, at=before, along=gradient) for pairs in both)
                higher.setdefault(f"{kind}, {name}", []).append(float((good > bad).mean()))
                good, bad = good / theta.losses(both[0]), bad / theta.losses(both[1])
                higher.setdefault(f"{kind}, {name}, relative", []).append(
                    float((good > bad).mean())
                )
    print(f"step {bench.step}; a true pair's reward is higher than a wrong pair's in")
    for name, shares in higher.items():
        error = np.std(shares, ddof=1) / np.sqrt(len(shares))
        print(f"  {np.mean(shares):6.1%} ± {error:.1%} of the targets ({name})")


def look_ahead(bench: Bench, repeats: int) -> None:
    theta, method, last = bench.method.theta, bench.method, max(HORIZONS)
    judged = bench.judges()
    tokens = judged.tokens
    losses: dict[str, list[list[float]]] = {}
    for repeat in range(repeats):
        beside = [method.parallel.next() for _ in range(last)]
        true = [bench.unseen.next() for _ in range(last)]
        kinds = {
            "true pairs": true,
            "pseudo pairs": [bench.pseudo(repeat * last + i) for i in range(last)],
            "wrong pairs": [wrong(pairs) for pairs in true],
        }
        for name, batches in kinds.items():
            bench.set_back()
            row = []
            for number, (parallel, extra) in enumerate(zip(beside, batches, strict=True), 1):
                theta.descend(bench.step + number, parallel, extra)
                if number in HORIZONS:
                    row.append(theta.losses(judged).sum() / tokens)
            losses.setdefault(name, []).append(row)
    bench.set_back()
    start = theta.losses(judged).sum() / tokens
    print(f"\n| loss on MetaDev, now {start:.4f} | {' | '.join(f'{n} steps' for n in HORIZONS)} |")
    print("|---|" + "---:|" * len(HORIZONS))
    for name, rows in losses.items():
        print(f"| {name} | {' | '.join(f'{value:.4f}' for value in np.mean(rows, axis=0))} |")


def go_with(bench: Bench, count: int, samples: int) -> None:
    from sacrebleu import sentence_chrf

    theta, decode = bench.method.theta, bench.task.parts.subwords.decode
    bench.set_back()
    sources, targets = (side[:count] for side in bench.task.dev.sides)
    batch, true = Numbered(np.arange(len(targets)), targets), [decode(ids) for ids in sources]
    drawn = [bench.method.psi.translate(batch, number) for number in range(samples)]
    features = {
        "length": [[len(ids) for ids in one.targets] for one in drawn],
        "chrF with the true source": [
            [sentence_chrf(decode(ids), [text]).score for ids, text in pairs]
            for pairs in (zip(one.targets, true, strict=True) for one in drawn)
        ],
        "log P under psi": [one.log_probs for one in drawn],
        "loss under theta": [theta.losses(one.reversed) for one in drawn],
    }
    parts = bench.task.parts
    if parts.known_words:
        counts = np.array([[parts.known(ids) for ids in one.targets] for one in drawn])
        features["known words"] = counts[..., 0] / np.maximum(1, counts[..., 1])
    _, gradient = theta.gradient(bench.judges())
    print(f"\n| of {samples} samples for each of {count} targets | " + " | ".join(features) + " |")
    print("|---|" + "---:|" * len(features))
    for kind in ("plain", "preconditioned"):
        if kind == "preconditioned":
            theta.precondition_(gradient)
        plain = np.array(
            [theta.slopes(one.reversed, at=theta.values(), along=gradient) for one in drawn]
        )
        relative = plain / np.array([theta.losses(one.reversed) for one in drawn])
        for name, rewards in ((kind, plain), (f"{kind}, relative", relative)):
            cells = (f"{within(rewards, np.array(f)):+.2f}" for f in features.values())
            share = 1 - rewards.mean(0).var(ddof=1) / rewards.var(ddof=1)
            print(
                f"| correlation with the reward, {name} | {' | '.join(cells)} | "
                f"{share:.0%} of its variance is within targets"
            )


def within(one: np.ndarray, other: np.ndarray) -> float:
    """The correlation of what is left when each column's mean is taken away."""
    x, y = one - one.mean(0), other - other.mean(0)
    return float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--directory", type=Path, required=True, help="of the experiment")
    parser.add_argument("--run", type=Path, required=True, help="a MetaBT run, below the directory")
    parser.add_argument("--state", type=Path, required=True, help="a checkpoint's last.safetensors")
    parser.add_argument(
        "--metadev", type=int, help="sentences of a MetaDev batch, if not the run's"
    )
    parser.add_argument(
        "--anneal", type=int, default=0, help="steps of training with a falling rate before"
    )
    parser.add_argument("--steps", type=int, default=12, help="on which rewards are compared")
    parser.add_argument("--repeats", type=int, default=2, help="of looking ahead")
    options = parser.parse_args()
    os.chdir(options.directory)
    bench = Bench(options.run / "run.json", options.state, options.metadev)
    bench.anneal(options.anneal)
    tell_apart(bench, options.steps)
    look_ahead(bench, options.repeats)
    go_with(bench, count=160, samples=6)


if __name__ == "__main__":
    main()
