"""Several processes that train one model, as torchrun starts them; or just this one.

Each process sees its part of every batch. Gradients are one vector (vector.py), so one all-reduce
after the backward pass is all there is to it; methods with several backward passes a step need it
that way, too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Group:
    rank: int
    ranks: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.ranks > 1:
            dist.all_reduce(tensor)
        return tensor

    def sums(self, values: dict[str, float]) -> dict[str, float]:
        """Named numbers, added up over all processes."""
        exact = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        return dict(zip(values, self.add_up(exact).tolist(), strict=True))

    def any(self, flag: bool) -> bool:
        return bool(self.add_up(torch.tensor(int(flag), device=self.device)).item())

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, on all of them."""
        if self.ranks == 1:
            return [value]
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        if self.ranks > 1:
            dist.barrier()


@contextmanager
def process_group(device: str | None = None) -> Iterator[Group]:
    """The processes that torchrun has started, with a GPU each where there are any."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":
        where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(where)
    else:
        where = torch.device(kind)
    if ranks == 1:
        yield Group(0, 1, where)
        return
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield Group(rank, ranks, where)
    finally:
        dist.destroy_process_group()
