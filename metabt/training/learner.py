"""A model that learns: gradients by micro-batches and threads, and the optimiser's step."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metabt.config import Optimiser as OptimiserSettings
from metabt.config import Sampling
from metabt.nmt.threads import ComputeThreads
from metabt.nmt.transformer import LanguageModel, Sides, TokenWeights, Transformer
from metabt.training.distributed import Group
from metabt.training.optimisers import clip, optimiser, rate_at
from metabt.training.vector import ParameterVector


@dataclass(frozen=True)
class Machine:
    """Where a run happens; nothing of this belongs to its description."""

    group: Group
    threads: ComputeThreads
    micro_tokens: int  # of a forward and backward pass, on the longer side
    compile: bool = False

    def autocast(self) -> AbstractContextManager[Any]:
        if self.group.device.type == "cuda":
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()

    @property
    def workers(self) -> int:
        """Copies of a model that compute side by side."""
        return self.threads.threads if self.group.device.type == "cpu" else 1


class Learner:
    """A model with its optimiser, and copies of it for other threads.

    `accumulate` adds the gradient of a batch's loss to the vector's; `update` makes the step.
    """

    def __init__(
        self, model: Transformer | LanguageModel, settings: OptimiserSettings, machine: Machine
    ) -> None:
        self.machine, self.settings = machine, settings
        self.model = model.to(machine.group.device)
        self.vector = ParameterVector(self.model)
        self.optimiser = optimiser(self.vector, settings)
        self.workers = [self.vector, *(self.vector.replica() for _ in range(machine.workers - 1))]
        if machine.compile:
            for worker in self.workers:
                worker.model.compile(dynamic=True)

    def accumulate(
        self,
        sides: Sides,
        weights: TokenWeights,
        smoothing: float = 0.0,
        *,
        dropout: Sequence[int] | None = None,
        sampling: Sampling | None = None,
    ) -> tuple[float, np.ndarray]:
        """Add the gradient of the weighted sum of token losses, micro-batch by micro-batch.

        Returns that sum, and -log p of each sentence. The sentences are dealt out to the threads;
        every thread has a gradient of its own, and they are added in a fixed order, so the result
        does not depend on who was faster. `dropout` is a seed; without one, nothing is dropped.
        """
        nll = np.zeros(len(sides[0]))

        def work(number: int) -> float:
            worker = self.workers[number]
            worker.model.train(dropout is not None)
            total = 0.0
            mine = np.arange(number, len(nll), len(self.workers))
            own = [[side[int(i)] for i in mine] for side in sides]
            for i, part in enumerate(micro_batches(own, self.machine.micro_tokens)):
                here, mine = np.split(mine, [len(part[0])])
                worker.model.dropout.restart((*(dropout or ()), number, i))
                part_weights = weights if isinstance(weights, float) else [weights[j] for j in here]
                with self.machine.autocast():
                    loss, nll_T = worker.model.loss(part, part_weights, smoothing, sampling)
                loss.backward()
                total += loss.item()
                nll[here] = by_sentence(nll_T, part[-1])
            return total

        total = sum(self.machine.threads.map(work, range(len(self.workers))))
        for worker in self.workers[1:]:
            self.vector.grads.add_(worker.grads)
            worker.grads.zero_()
        return total, nll

    def update(self, step: int, loss: float) -> float | None:
        """Reduce over processes, clip, step; the gradient's norm.

        If it or the loss is not finite, nothing happens and None is returned.
        """
        self.machine.group.add_up(self.vector.grads)
        norm = clip(self.vector, self.settings.clip).item()
        finite = bool(np.isfinite(norm) and np.isfinite(loss))
        if finite:
            self.optimiser.step(rate_at(self.settings, step))
        self.vector.grads.zero_()
        return norm if finite else None

    def take_gradient(self) -> Tensor:
        """What was accumulated, over all processes; then there is nothing."""
        gradient = self.machine.group.add_up(self.vector.grads).clone()
        self.vector.grads.zero_()
        return gradient

    def tensors(self, name: str) -> dict[str, Tensor]:
        state = {f"{name}.{key}": value for key, value in self.optimiser.state.items()}
        return {f"{name}.values": self.vector.values, **state}


def micro_batches(sides: Sides, tokens: int) -> list[Sides]:
    """Cut a batch, in order, where the longer side would have more than so many tokens."""
    if not len(sides[0]):
        return []
    lengths = np.maximum.reduce([[len(s) + 1 for s in side] for side in sides])
    cuts, total = [0], 0
    for i, length in enumerate(lengths.tolist()):
        total += length
        if total > tokens and i > cuts[-1]:
            cuts.append(i)
            total = length
    cuts.append(len(lengths))
    return [[side[a:b] for side in sides] for a, b in pairwise(cuts)]


def by_sentence(values_T: Tensor, sentences: Sequence[np.ndarray]) -> np.ndarray:
    """The sum over each sentence's tokens (and its end mark)."""
    lengths = np.array([len(sentence) + 1 for sentence in sentences])
    values = values_T.detach().double().cpu().numpy()
    return np.add.reduceat(values, np.cumsum(lengths) - lengths)


@torch.inference_mode()
def score(model: Transformer | LanguageModel, sides: Sides, machine: Machine) -> np.ndarray:
    """-log p of each sentence, without dropout."""
    model.eval()
    order = np.argsort([len(s) for s in sides[-1]], kind="stable")
    parts = micro_batches([[side[i] for i in order] for side in sides], machine.micro_tokens)

    def work(part: Sides) -> np.ndarray:
        with torch.inference_mode(), machine.autocast():
            _, nll_T = model.loss(part, 1.0, 0.0)
        return by_sentence(nll_T, part[-1])

    nll = np.zeros(len(order))
    nll[order] = np.concatenate([np.zeros(0), *machine.threads.map(work, parts)])
    return nll
