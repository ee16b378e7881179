"""The training of a forward model by a method, as the loop wants it."""

import csv
import io
from pathlib import Path
from typing import Any

from torch import Tensor

from metabt.files import write_text
from metabt.methods import METHODS
from metabt.methods.blocks.parts import Parts
from metabt.methods.blocks.run import ForwardRun
from metabt.methods.blocks.sentences import go_to, positions
from metabt.training.learner import Machine
from metabt.training.loop import Signals
from metabt.training.pretrain import Start, train
from metabt.training.run import read_description
from metabt.training.supervised import COLUMNS, Dev, open_shard, perplexity, sentences

PSEUDO_COLUMNS = [
    "pseudo_perplexity",  # of the targets, given pseudo sources, under the forward model
    "pseudo_log_p_forward",  # of a target sentence; mean
    "pseudo_log_p_backward",  # of a pseudo source; mean
    "pseudo_length",  # subwords, end mark included
    "pseudo_length_ratio",  # to the target's; mean over sentences
    "pseudo_cut",  # share that reached the limit of length
    "pseudo_words",  # looked up in the vocabulary of the low-resource language, and found:
    "pseudo_known_words",
    "pseudo_known_share",
    "pseudo_epoch",
]


class ForwardTask:
    def __init__(self, run: ForwardRun, machine: Machine, base: Path) -> None:
        self.run, self.training = run, run.training
        self.parts = Parts(run, machine, base)
        method = METHODS[run.method.algorithm]
        self.method: Any = method(run.method, self.parts)
        dev = open_shard(base / run.sets["dev"], 2, self.parts.digest, run.vocabulary)
        self.dev = Dev([sentences(dev, 0), sentences(dev, 1)], self.parts.subwords, machine)
        pseudo = PSEUDO_COLUMNS if "mono" in self.parts.streams else []
        self.columns = [*COLUMNS, *pseudo, *method.columns]

    @property
    def identity(self) -> Any:
        """A run goes on only from the same pre-trained models."""
        return {**self.run.model_dump(), "checksums": self.parts.checksums}

    def step(self, number: int) -> dict[str, float] | None:
        return self.method.step(number)

    def row(self, sums: dict[str, float]) -> dict[str, float]:
        steps = sums["steps"]
        row = {
            "train_loss": sums["loss"] / steps,
            "train_perplexity": perplexity(sums["nll"] / sums["tokens"]),
            "train_gradient_norm": sums["gradient_norm"] / steps,
            "train_tokens": sums["tokens"],
            "train_epoch": self.parts.streams["parallel"].position.epoch,
            "train_rate": sums["rate"] / steps,
        }
        if "pseudo_sentences" in sums:
            count, words = sums["pseudo_sentences"], sums["pseudo_words"]
            row |= {
                "pseudo_perplexity": perplexity(sums["pseudo_nll"] / sums["pseudo_tokens"]),
                "pseudo_log_p_forward": -sums["pseudo_nll"] / count,
                "pseudo_log_p_backward": sums["pseudo_log_prob"] / count,
                "pseudo_length": sums["pseudo_source_tokens"] / count,
                "pseudo_length_ratio": sums["pseudo_ratio"] / count,
                "pseudo_cut": sums["pseudo_cut"] / count,
                "pseudo_epoch": self.parts.streams["mono"].position.epoch,
            }
            if words:
                known = sums["pseudo_known_words"]
                row |= {
                    "pseudo_words": words,
                    "pseudo_known_words": known,
                    "pseudo_known_share": known / words,
                }
        if count := sums["with_columns"]:  # of these steps, those in which the method had its own
            row |= {name: sums[name] / count for name in self.method.columns}
        return row

    def measure(self, signals: Signals) -> dict[str, float]:
        return self.dev.measure(self.method.theta.saved.model, signals)

    def tensors(self) -> dict[str, Tensor]:
        return {**self.method.theta.tensors("theta"), **self.method.tensors()}

    def weights(self) -> dict[str, Tensor]:
        return dict(self.method.theta.saved.model.state_dict())

    def position(self) -> Any:
        return {"streams": positions(self.parts.streams), "examples": self.parts.examples}

    def go_to(self, position: Any) -> None:
        go_to(self.parts.streams, position["streams"])
        self.parts.examples = list(position["examples"])

    def finish(self, directory: Path) -> None:
        """Write the examples of pseudo pairs: examples.tsv."""
        names = ["step", "pseudo_source", "target", "log_p_backward", "log_p_forward", "reward"]
        text = io.StringIO()
        table = csv.DictWriter(text, names, delimiter="\t", lineterminator="\n")
        table.writeheader()
        for example in self.parts.examples:
            numbers = {k: f"{v:.6g}" for k, v in example.items() if isinstance(v, float)}
            table.writerow({**example, **numbers})
        write_text(directory / "examples.tsv", text.getvalue())


def train_forward(description: Path, directory: Path, start: Start) -> None:
    """Train the forward model that `run.json` describes."""
    run = read_description(description, ForwardRun)
    train(run, lambda machine: ForwardTask(run, machine, Path()), directory, start)
