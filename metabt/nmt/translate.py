"""`metabt translate`: lines of text in, lines of text out, in order, while they come."""

import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import numpy as np
import torch

from metabt.config import Sampling
from metabt.errors import UserError
from metabt.files import atomic_write
from metabt.nmt.decoding import Hypothesis, beam_search, greedy, sample
from metabt.nmt.many import BATCH_TOKENS, decode_many
from metabt.nmt.model_files import SavedModel, load_model
from metabt.nmt.noise import add_noise, word_beginnings
from metabt.nmt.threads import ComputeThreads
from metabt.progress import Progress

LINES_AT_ONCE = 4000
PATIENCE = 0.05  # seconds without a further line after which those that have come are translated
LONGEST = 500  # subwords; a longer line is translated in pieces


@dataclass(frozen=True)
class Generation:
    """How translations are found: by a beam (1: greedy), by a beam with noise, or by sampling."""

    kind: str = "beam"
    beam: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 1

    def __call__(
        self, saved: SavedModel, numbers: np.ndarray, sources: list[np.ndarray]
    ) -> list[list[Hypothesis]]:
        """The n best, or n samples, of each source; its number decides what is random."""
        if self.kind == "sampling":
            seeds = [self.seed + (i << 32) for i in range(self.n_best)]
            drawn = [sample(saved.model, sources, seed, numbers, self.sampling) for seed in seeds]
            return [list(several) for several in zip(*drawn, strict=True)]
        if self.beam == 1:
            found = [[hypothesis] for hypothesis in greedy(saved.model, sources)]
        else:
            found = beam_search(saved.model, sources, self.beam, self.length_penalty, self.n_best)
        if self.kind == "noisy-beam":
            begins = word_beginnings(saved.subwords.pieces)
            for number, hypotheses in zip(numbers.tolist(), found, strict=True):
                rng = np.random.default_rng([self.seed, number])
                hypotheses[:] = [replace(h, ids=add_noise(h.ids, begins, rng)) for h in hypotheses]
        return found


def translate(
    directory: Path,
    source: Path | None,
    target: Path | None,
    generation: Generation,
    *,
    scores: bool = False,
    batch_tokens: int = BATCH_TOKENS,
    threads: int | None = None,
    device: str | None = None,
) -> None:
    """Translate a file or standard input. An output file is written whole or not at all."""
    least = {"--beam": (generation.beam, 1), "--n-best": (generation.n_best, 1)}
    least |= {"--seed": (generation.seed, 0), "--threads": (threads or 1, 1)}
    for name, (value, bound) in least.items():
        if value < bound:
            raise UserError(f"{name} {value}: at least {bound} is needed")
    if generation.n_best > generation.beam and generation.kind != "sampling":
        raise UserError(f"--n-best {generation.n_best} needs a --beam of at least as many")
    saved = load_model(directory, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    compute = ComputeThreads(threads)
    with ExitStack() as stack:
        lines = stack.enter_context(source.open("rb")) if source else _standard_input()
        out: IO[bytes] = stack.enter_context(atomic_write(target)) if target else sys.stdout.buffer
        bar = stack.enter_context(Progress("translating", None, "lines"))
        number = 0
        for block in _blocks(lines):
            texts = [_text(source, number + i, line) for i, line in enumerate(block)]
            results = _translate_lines(saved, generation, texts, number, compute, batch_tokens, bar)
            for line in results:
                for text, hypothesis in line:
                    marks = f"{hypothesis.score:.6f}\t{hypothesis.log_prob:.6f}\t" if scores else ""
                    out.write(f"{marks}{text}\n".encode())
            out.flush()
            number += len(block)


def _standard_input() -> IO[bytes]:
    """A reader of our own: a thread blocked in sys.stdin's makes Python abort when it ends."""
    try:
        return open(0, "rb", closefd=False)
    except OSError as error:
        raise UserError(f"standard input: {error.strerror}") from error


def _text(source: Path | None, index: int, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        name = source or "standard input"
        raise UserError(f"{name}: line {index + 1} is not valid UTF-8 ({error.reason})") from error


def _translate_lines(
    saved: SavedModel,
    generation: Generation,
    lines: list[str],
    first: int,
    threads: ComputeThreads,
    batch_tokens: int,
    bar: Progress,
) -> list[list[tuple[str, Hypothesis]]]:
    """Each line's translations and what is known of them. An empty line is its own translation."""
    encoded = saved.subwords.encode(lines, saved.languages[0])
    pieces: list[np.ndarray] = []
    numbers: list[int] = []
    for i, ids in enumerate(encoded):
        if len(ids) > LONGEST:
            print(
                f"line {first + i + 1}: {len(ids):,} subwords, translated in pieces of {LONGEST}",
                file=sys.stderr,
            )
        for begin in range(0, len(ids), LONGEST):
            pieces.append(ids[begin : begin + LONGEST])
            numbers.append(first + i + (begin // LONGEST << 40))
    owners = np.array(numbers, np.int64)
    found = decode_many(
        pieces,
        lambda indices, batch: generation(saved, owners[indices], batch),
        threads,
        max(1, batch_tokens // (1 if generation.kind == "sampling" else generation.beam)),
        bar,
    )
    nothing = Hypothesis(np.empty(0, np.uint16), 0.0, 0.0)
    results: list[list[tuple[str, Hypothesis]]] = [[] for _ in lines]
    for number, hypotheses in zip(numbers, found, strict=True):
        line = results[(number & ((1 << 40) - 1)) - first]
        for rank in range(generation.n_best):
            # A beam may find fewer than asked for: the last one stands for those that are missing.
            piece = hypotheses[min(rank, len(hypotheses) - 1)]
            text = saved.subwords.decode(piece.ids)
            if rank < len(line):
                before, whole = line[rank]
                line[rank] = f"{before} {text}", _joined(whole, piece)
            else:
                line.append((text, piece))
    return [line or [("", nothing)] * generation.n_best for line in results]


def _joined(a: Hypothesis, b: Hypothesis) -> Hypothesis:
    ids = np.concatenate([a.ids, b.ids])
    return Hypothesis(ids, a.log_prob + b.log_prob, a.score + b.score, a.complete and b.complete)


def _blocks(lines: IO[bytes]) -> Iterator[list[bytes]]:
    """Lines that are there, many at once; one that comes alone does not wait for others."""
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(2 * LINES_AT_ONCE)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line.removesuffix(b"\n"))
            waiting.put(None)
        except BaseException as error:  # told to the one who is waiting
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    block: list[bytes] = []
    while True:
        try:
            item = waiting.get(timeout=PATIENCE if block else None)
        except queue.Empty:
            yield block
            block = []
            continue
        if isinstance(item, BaseException):
            raise item
        if item is not None:
            block.append(item)
        if block and (item is None or len(block) == LINES_AT_ONCE):
            yield block
            block = []
        if item is None:
            return
