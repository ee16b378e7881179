"""What the peers' drivers share: their command line, the clock, and the memory.

A driver is named after its toolkit, so that `import sockeye` in `sockeye.py` would find itself:
drivers import the toolkit by `toolkit("sockeye.train")` instead.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

LAYERS, WIDTH, FEED_FORWARD, HEADS = 3, 256, 1024, 4
DROPOUT, SMOOTHING = 0.1, 0.1
LEARNING_WARMUP, PEAK_RATE = 4000, (256 * 4000) ** -0.5
TOKENS = 4096  # target tokens in an update
PAD, BEGIN, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"


def toolkit(module: str) -> Any:
    """A module of the peer, never one of this directory."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    return import_module(module)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def vocabulary(data: Path) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(lines(data / "vocab.txt"))}


def sentences(path: Path) -> list[list[str]]:
    return [line.split() for line in lines(path)]


def peak_mb() -> int:
    """The sum of the largest resident sizes that this process and its living children had."""
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = Path("/proc") / str(waiting.pop())
        try:
            status = (process / "status").read_text()
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:  # it ended while we looked
            continue
        total += sum(int(row.split()[1]) for row in status.splitlines() if row[:6] == "VmHWM:")
    return total // 1024


class Finished(Exception):  # noqa: N818
    """Enough updates were measured: leaves the toolkit's training loop."""


class Meter:
    """Counts target tokens and updates; the clock runs from the end of the warm-up."""

    def __init__(self, warmup: int, updates: int) -> None:
        self.first, self.last = warmup, warmup + updates
        self.updates = self.tokens = self.pending = 0
        self.started = self.seconds = self.processor = 0.0

    def batch(self, tokens: int) -> None:
        """A batch went through the model."""
        self.pending += int(tokens)

    def watch(self) -> None:
        """Has every step of every torch optimiser counted as an update."""
        hooks = import_module("torch.optim.optimizer")
        hooks.register_optimizer_step_post_hook(lambda *_: self.update())

    def update(self) -> None:
        self.updates += 1
        if self.updates > self.first:
            self.tokens += self.pending
        self.pending = 0
        if self.updates == self.first:
            self.started, self.processor = time.perf_counter(), time.process_time()
        if self.updates == self.last:
            self.seconds = time.perf_counter() - self.started
            self.processor = time.process_time() - self.processor
            raise Finished

    def report(self) -> None:
        count = self.last - self.first
        result = {
            "target_tokens_per_second": round(self.tokens / self.seconds, 1),
            "target_tokens_per_update": round(self.tokens / count, 1),
            "target_tokens": self.tokens,
            "updates": count,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.processor, 3),
            "peak_mb": peak_mb(),
        }
        print(json.dumps(result), flush=True)


def after(target: Any, name: str, then: Callable[..., None]) -> None:
    """Has `then` called with the same arguments whenever `target.name` has returned."""
    method = getattr(target, name)

    def both(*positional: Any, **named: Any) -> Any:
        result = method(*positional, **named)
        then(*positional, **named)
        return result

    setattr(target, name, both)


def report_decoding(output: Path, seconds: float, pieces: Sequence[Sequence[str]]) -> None:
    """Writes the hypotheses; the end marks count as tokens, for they had to be decoded."""
    output.write_text("".join(" ".join(line) + "\n" for line in pieces), encoding="utf-8")
    result = {
        "seconds": round(seconds, 3),
        "sentences": len(pieces),
        "target_tokens": sum(len(line) + 1 for line in pieces),
        "peak_mb": peak_mb(),
    }
    print(json.dumps(result), flush=True)


def command_line(
    train: Callable[[argparse.Namespace, Meter], None] | None,
    decode: Callable[[argparse.Namespace], None] | None = None,
    options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Runs a driver: `train` must end by the meter's exception, `decode` must report by itself."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    if train:
        command = commands.add_parser("train")
        command.add_argument("--updates", type=int, required=True)
        command.add_argument("--warmup-updates", type=int, default=5)
        command.add_argument("--batch", type=int, help="in the toolkit's own unit")
    if decode:
        command = commands.add_parser("decode")
        command.add_argument("--model", type=Path, required=True)
        command.add_argument("--mode", choices=["greedy", "beam5", "sampling"], required=True)
        command.add_argument("--batch", type=int, default=64)
        command.add_argument("--output", type=Path, required=True)
        command.add_argument("--max-tokens", type=int, default=128, help="of one hypothesis")
    for command in commands.choices.values():
        command.add_argument("--data", type=Path, required=True)
        command.add_argument("--threads", type=int, default=2)
        if options:
            options(command)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before the peer loads OpenMP
    if arguments.command == "decode" and decode:
        decode(arguments)
    elif train:
        meter = Meter(max(1, arguments.warmup_updates), arguments.updates)
        try:
            train(arguments, meter)
        except Finished:
            meter.report()
        else:
            sys.exit("the toolkit's training loop ended too early")
