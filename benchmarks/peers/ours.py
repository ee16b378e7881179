"""Our own engine with the command line of the peers' drivers.

DIR has, besides the text that the peers read, the shards it was taken from and a run.json.
"""

import argparse
import os
import time
from pathlib import Path

from measure import Meter, command_line, report_decoding, sentences, vocabulary

MODES = {"greedy": ("beam", 1), "beam5": ("beam", 5), "sampling": ("sampling", 1)}


def train(arguments: argparse.Namespace, meter: Meter) -> None:
    import torch

    from metabt.nmt.threads import ComputeThreads
    from metabt.training.distributed import Group
    from metabt.training.learner import Machine
    from metabt.training.run import read_run
    from metabt.training.supervised import Supervised

    os.chdir(arguments.data)
    machine = Machine(Group(0, 1, torch.device("cpu")), ComputeThreads(arguments.threads), 4096)
    task = Supervised(read_run(Path("run.json")), machine, Path())
    for step in range(1, meter.last + 1):
        sums = task.step(step)
        meter.batch(int(sums["tokens"]) if sums else 0)
        meter.update()


def decode(arguments: argparse.Namespace) -> None:
    import numpy as np

    from metabt.nmt.many import decode_many
    from metabt.nmt.model_files import load_model
    from metabt.nmt.threads import ComputeThreads
    from metabt.nmt.translate import Generation

    pieces = vocabulary(arguments.data)
    names = list(pieces)
    sources = [np.array([pieces[p] for p in row]) for row in sentences(arguments.data / "test.src")]
    saved = load_model(arguments.model)
    threads = ComputeThreads(arguments.threads)
    kind, beam = MODES[arguments.mode]
    generation = Generation(kind, beam, length_penalty=1.0)
    decode_many(
        sources[:4], lambda i, batch: generation(saved, i, batch), threads
    )  # compiles or loads kernels
    began = time.perf_counter()
    found = decode_many(
        sources,
        lambda i, batch: generation(saved, i, batch),
        threads,
        batch_tokens=arguments.batch // beam,  # as `metabt translate` does
    )
    seconds = time.perf_counter() - began
    report_decoding(arguments.output, seconds, [[names[i] for i in h[0].ids] for h in found])


if __name__ == "__main__":
    command_line(train, decode)
