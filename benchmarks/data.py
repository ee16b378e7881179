"""How fast the data side is, beside its peers, in one run on one machine.

    python benchmarks/data.py [--lines 5000000] [--encode-lines 2000000] [--repeats 3]

Deduplication (the whole `metabt clean` command: start-up, validation, order kept, fsync) against
GNU `sort -u` and a Python dictionary; the encode+filter+write pass against SentencePiece's
own multi-threaded batch encoding. Peers take turns within each repeat; medians and ratios are
printed. Memory is the peak resident size of the process.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from metabt.data.sources import File, Source

THREADS = 2
DUPLICATES = 0.1
WORDS = 60_000
MEMORY_MB = 1000


def generate(path: Path, lines: int, seed: int = 1) -> None:
    """Lines of 5 to 35 words by Zipf's law, some accented; a tenth stands there twice or more."""
    draw = random.Random(seed)
    letters, weights = "etaoinshrdlucmfwypvbgkjqxzäöüß", [*range(30, 4, -1), 2, 2, 2, 2]
    words = np.array(
        ["".join(draw.choices(letters, weights, k=draw.randint(1, 9))) for _ in range(WORDS)],
        dtype=object,
    )
    rng = np.random.default_rng(seed)
    seen: list[str] = []
    with path.open("w", encoding="utf-8") as out:
        for start in range(0, lines, 100_000):
            count = min(100_000, lines - start)
            lengths = rng.integers(5, 36, count)
            ranks = np.minimum((WORDS ** rng.random(lengths.sum())).astype(int), WORDS - 1)
            chosen = iter(words[ranks])
            block = [" ".join(next(chosen) for _ in range(n)) for n in lengths]
            if seen:
                for i in np.flatnonzero(rng.random(count) < DUPLICATES):
                    block[i] = seen[int(rng.integers(len(seen)))]
            seen = [*seen[-50_000:], *block[:5000]]
            out.write("\n".join(block) + "\n")


def head(path: Path, lines: int, to: Path) -> Path:
    with path.open("rb") as source, to.open("wb") as out:
        for _ in range(lines):
            out.write(source.readline())
    return to


# A process begins its account of memory with that of the process that started it: a small one.
LAUNCHER = """
import os, sys, time
began = time.perf_counter()
redirect = [(os.POSIX_SPAWN_OPEN, 1, sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)]
child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ, file_actions=redirect)
_, status, usage = os.wait4(child, 0)
print(time.perf_counter() - began, usage.ru_maxrss / 1024, status)
"""


def run(command: Sequence[str], output: Path | None = None) -> tuple[float, float]:
    """Wall seconds and peak memory (MB) of a command."""
    launcher = [sys.executable, "-S", "-c", LAUNCHER, str(output or os.devnull), *command]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(launcher, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds, megabytes, status = map(float, done.stdout.split())
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    return seconds, megabytes


def sort_unique(text: Path, scratch: Path) -> tuple[float, float]:
    return run(["sort", "-u", f"--parallel={THREADS}", str(text)], scratch / "sorted")


def python_dictionary(text: Path, scratch: Path) -> tuple[float, float]:
    code = (
        "import sys; source, out = open(sys.argv[1], 'rb'), open(sys.argv[2], 'wb')\n"
        "out.writelines(dict.fromkeys(source))"
    )
    return run([sys.executable, "-c", code, str(text), str(scratch / "dictionary")])


def metabt_clean(text: Path, scratch: Path) -> tuple[float, float]:
    source = Source("generated", "text", (File(str(text)),)).to_json()
    description = scratch / "datasets.json"
    description.write_text(
        json.dumps({"roles": {"mono": {"languages": ["de"], "sources": [source]}}})
    )
    command = [sys.executable, "-m", "metabt", "clean", str(description), "mono"]
    options = ["--threads", str(THREADS), "--memory-mb", str(MEMORY_MB)]
    return run([*command, "--output", str(scratch), *options])


def compare(
    what: str,
    peers: Mapping[str, Callable[[], tuple[float, float]]],
    lines: int,
    repeats: int,
    scratch: Path,
) -> dict[str, float]:
    """Let peers take turns; print lines/s, memory and the ratio to the first; return medians."""
    times: dict[str, list[float]] = {name: [] for name in peers}
    memory: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(repeats):
        for name, peer in peers.items():
            clear(scratch)
            seconds, megabytes = peer()
            times[name].append(seconds)
            memory[name].append(megabytes)
    medians = {name: statistics.median(values) for name, values in times.items()}
    first = next(iter(medians.values()))
    print(f"\n{what}, {lines:,} lines, median of {repeats}\n")
    print("| | lines/s | seconds | peak MB | ratio |\n|---|---:|---:|---:|---:|")
    for name, seconds in medians.items():
        row = f"{lines / seconds:,.0f} | {seconds:.2f} | {max(memory[name]):,.0f}"
        print(f"| {name} | {row} | {first / seconds:.2f} |", flush=True)
    return medians


OUTPUTS = ("sorted", "dictionary", "mono.target", "mono.shard")


def clear(scratch: Path) -> None:
    """Every run begins with nothing to overwrite, and with the memory of the last one's output."""
    for name in OUTPUTS:
        (scratch / name).unlink(missing_ok=True)
    os.sync()  # nobody waits for what another has left to write


def check_same(text: Path, scratch: Path) -> None:
    """The result is the dictionary's (order kept), and as a set that of `sort -u`."""
    sizes = set()
    for peer in (sort_unique, python_dictionary, metabt_clean):
        clear(scratch)
        peer(text, scratch)
        name = {sort_unique: "sorted", python_dictionary: "dictionary"}.get(peer, "mono.target")
        data = (scratch / name).read_bytes()
        ordered = peer is not sort_unique
        sizes.add((data.count(b"\n"), xxhash.xxh3_128_hexdigest(data) if ordered else ""))
    counts = {count for count, _ in sizes}
    if len(counts) != 1 or len(sizes) != 2:
        raise SystemExit(f"the results differ: {sizes}")


def bare_sentencepiece(model: Path, text: Path, scratch: Path) -> tuple[float, float]:
    """Encoding alone, from a list in memory: neither start-up nor reading nor writing."""
    code = (
        "import sys, time, sentencepiece\n"
        "sp = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])\n"
        "lines = open(sys.argv[2], encoding='utf-8').read().split('\\n')[:-1]\n"
        "began = time.perf_counter()\n"
        f"sp.encode(lines, out_type=int, num_threads={THREADS})\n"
        "print(time.perf_counter() - began)"
    )
    out = scratch / "seconds"
    _, megabytes = run([sys.executable, "-c", code, str(model), str(text)], out)
    return float(out.read_text()), megabytes


def encode_pass(vocabulary: Path, text: Path, scratch: Path) -> tuple[float, float]:
    command = [sys.executable, "-m", "metabt", "encode", str(text), "--languages", "de"]
    options = ["--vocabulary", str(vocabulary), "--output", str(scratch / "mono.shard")]
    return run([*command, *options, "--max-subwords", "200", "--threads", str(THREADS)])


def metabt(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "metabt", *map(str, arguments)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--encode-lines", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metabt-bench-") as name:
        scratch = Path(name)
        text = scratch / "text"
        generate(text, options.lines)
        megabytes = text.stat().st_size / 1e6
        print(f"{options.lines:,} lines, {megabytes:,.0f} MB, {os.cpu_count()} CPUs", flush=True)
        small = head(text, options.lines // 5, scratch / "fifth")
        metabt_clean(small, scratch)  # compile once
        growth: dict[int, dict[str, float]] = {}
        for part, count in ((small, options.lines // 5), (text, options.lines)):
            peers = {
                "GNU sort -u": partial(sort_unique, part, scratch),
                "Python dictionary": partial(python_dictionary, part, scratch),
                "metabt clean": partial(metabt_clean, part, scratch),
            }
            medians = compare("Deduplication", peers, count, options.repeats, scratch)
            growth[count] = medians
            check_same(part, scratch)
        (less, fifth), (more, whole) = growth.items()
        print(f"\nFrom {less:,} to {more:,} lines, that is without start-up:\n")
        for name in whole:
            seconds = whole[name] - fifth[name]
            print(f"- {name}: {seconds:.2f} s more, {(more - less) / seconds:,.0f} lines/s")

        sample = head(text, options.encode_lines, scratch / "sample")
        model, vocabulary = scratch / "joint.model", scratch / "vocab.json"
        metabt("subwords", sample, "--output", model, "--size", 32_000, "--sample", 200_000)
        metabt("vocabulary", f"de={model}", "--output", vocabulary)
        compare(
            "Encoding (ours: read, encode, filter, write the shard, start-up included)",
            {
                "SentencePiece, batch of all lines": partial(
                    bare_sentencepiece, model, sample, scratch
                ),
                "metabt encode": partial(encode_pass, vocabulary, sample, scratch),
            },
            options.encode_lines,
            options.repeats,
            scratch,
        )


if __name__ == "__main__":
    main()
