"""How fast models train and decode, beside other toolkits, in one run on one machine.

    python benchmarks/engine.py [--only train decode] [--peers fairseq ...] [--repeats 3]

Multi30k English to German, one model for all: 3+3 layers, width 256, feed-forward 1024, 4 heads,
about 8,000 pieces with shared embeddings, label smoothing, dropout 0.1, about 4,096 target tokens a
batch, fp32, two threads. Peers are installed into environments of their own
(peers/environments.py); one that cannot be had is reported. Within a repeat they take turns;
medians and ratios are printed, and all runs are kept in runs/benchmarks/engine.json.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HERE = ROOT / "benchmarks" / "peers"
WORK = ROOT / "runs" / "benchmarks"
TCMALLOC = ("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",)
SHAPE = {"layers": 3, "width": 256, "feed_forward": 1024, "heads": 4, "dropout": 0.1}
RATE = {"name": "adam", "schedule": "inverse_sqrt", "betas": [0.9, 0.98], "clip": 0}
THREADS = 2
TRAINERS = ["ours", "fairseq", "opennmt", "sockeye", "huggingface", "joeynmt"]
DECODERS = ["ours", "ctranslate2", "huggingface", "fairseq"]
MODES = ["greedy", "beam5", "sampling"]
# Settings worth trying; the best median counts, for every side.
BATCHES = {
    "ours": [["--batch", "8192"]],
    "ctranslate2": [
        ["--batch", "64", "--inter-threads", "2"],
        ["--batch", "128", "--inter-threads", "2"],
    ],
    "huggingface": [["--batch", "64"]],
    "fairseq": [["--batch", "64"], ["--batch", "128"]],
}


@dataclass
class Contender:
    """A toolkit in one setting, and what it did in each repeat."""

    name: str
    setting: str
    command: list[str]
    environment: dict[str, str]
    runs: list[dict[str, Any]] = field(default_factory=list)

    def take_turn(self) -> None:
        done = subprocess.run(
            self.command, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).split("\n")[-1]
            print(f"{self.name} ({self.setting}) failed: {last}", flush=True)
            return
        self.runs.append(json.loads(done.stdout.strip().split("\n")[-1]))
        print(f"{self.name} ({self.setting}): {self.runs[-1]}", flush=True)

    def median(self, key: str) -> float:
        return statistics.median(run[key] for run in self.runs)


def prepare() -> Path:
    """Multi30k through our own workflow, and as pieces for the peers."""
    results = ROOT / "runs" / "multi30k-full" / "results" / "de-en"
    config = ROOT / "config" / "multi30k-full.yaml"
    shards = [results / "shards" / f"{name}.shard" for name in ("parallel", "dev", "test")]
    if not all(path.exists() for path in shards):
        command = [sys.executable, "-m", "snakemake", "--directory", results.parents[1]]
        command += ["--configfile", config, "--cores", "2", "--quiet", "rules", "--"]
        targets = [path.relative_to(results.parents[1]) for path in shards]
        subprocess.run([*map(str, command), *map(str, targets)], cwd=ROOT, check=True)
    from metabt.data.shards import Shard
    from metabt.data.subwords import Subwords

    data = WORK / "data"
    data.mkdir(parents=True, exist_ok=True)
    vocabulary = results / "vocab" / "vocab.json"
    pieces = Subwords.load(vocabulary).pieces
    (data / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    for path, name in zip(shards, ("train", "dev", "test"), strict=True):
        shard = Shard.open(path)
        for side, ending in ((1, "src"), (0, "tgt")):
            rows = (shard.sentence(side, i) for i in range(len(shard)))
            text = "".join(" ".join(pieces[i] for i in row) + "\n" for row in rows)
            (data / f"{name}.{ending}").write_text(text)
    run = {
        "kind": "translation",
        "languages": ["en", "de"],
        "sides": [1, 0],
        "train": [str(shards[0])],
        "dev": str(shards[1]),
        "vocabulary": str(vocabulary),
        "transformer": SHAPE,
        "training": {
            "steps": 250,  # of the model that is decoded with
            "batch": {"tokens": 4110},
            "label_smoothing": 0.1,
            "validate_every": 250,
            "optimiser": {**RATE, "rate": 2e-3, "warmup": 100},
        },
        "seed": 1,
    }
    (data / "run.json").write_text(json.dumps(run, indent=1))
    return data


def environment(preload: str | None = None) -> dict[str, str]:
    values = {**os.environ, "PYTHONPATH": str(ROOT)}
    return {**values, "LD_PRELOAD": preload} if preload else values


def python_of(name: str) -> str | None:
    """The interpreter of a peer, which is installed if it is not there."""
    if name == "ours":
        return sys.executable
    command = [sys.executable, str(HERE / "environments.py"), name, str(WORK / "environments")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"absent: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    return done.stdout.strip().split("\n")[-1]


def train(data: Path, peers: list[str], repeats: int, updates: int) -> list[Contender]:
    tcmalloc = next((path for path in TCMALLOC if Path(path).exists()), None)
    if tcmalloc is None:
        print("absent: tcmalloc (apt-get install libtcmalloc-minimal4)")
    contenders = []
    for name in [n for n in TRAINERS if n in peers]:
        python = python_of(name)
        if python is None:
            continue
        command = [python, "-W", "ignore", str(HERE / f"{name}.py"), "train", "--data", str(data)]
        command += ["--updates", str(updates), "--warmup-updates", "4", "--threads", str(THREADS)]
        contenders.append(Contender(name, "plain", command, environment()))
        if tcmalloc and name != "ours":  # ours sets its allocator by itself
            contenders.append(Contender(name, "tcmalloc", command, environment(tcmalloc)))
    return take_turns(contenders, repeats)


def decode(data: Path, peers: list[str], repeats: int) -> dict[str, list[Contender]]:
    model, exported = WORK / "model", WORK / "model-ctranslate2"
    if not (model / "training.json").exists():
        start = [sys.executable, "-m", "metabt", "train", data / "run.json", "--output", model]
        subprocess.run([*map(str, start), "--threads", str(THREADS)], check=True, cwd=ROOT)
    shutil.rmtree(exported, ignore_errors=True)
    export = [sys.executable, "-m", "metabt", "export", "--model", model, "--output", exported]
    subprocess.run([*map(str, export), "--to", "ctranslate2"], check=True, cwd=ROOT)
    pythons = {name: python_of(name) for name in DECODERS if name in peers}
    results = {}
    for mode in MODES:
        contenders = []
        for name, python in pythons.items():
            for options in BATCHES[name] if python else []:
                command = [str(python), "-W", "ignore", str(HERE / f"{name}.py"), "decode"]
                command += ["--data", str(data), "--mode", mode, "--threads", str(THREADS)]
                command += ["--model", str(exported if name == "ctranslate2" else model)]
                command += ["--output", str(WORK / f"{name}.{mode}"), *options]
                contenders.append(Contender(name, " ".join(options), command, environment()))
        results[mode] = take_turns(contenders, repeats)
    return results


def take_turns(contenders: list[Contender], repeats: int) -> list[Contender]:
    for _ in range(repeats):
        for contender in contenders:
            contender.take_turn()
    return [c for c in contenders if c.runs]


def table(title: str, contenders: list[Contender], key: str, faster: str) -> None:
    """Every setting; the ratio is ours to theirs (more is better for us)."""
    values = [c.median(key) for c in contenders if c.name == "ours"]
    ours = (min if faster == "low" else max)(values)
    print(f"\n| {title} | setting | {key} (median) | all runs | peak MB | ours is faster by |")
    print("|---|---|---:|---|---:|---:|")
    for c in contenders:
        value = c.median(key)
        ratio = value / ours if faster == "low" else ours / value
        every = ", ".join(f"{run[key]:,.4g}" for run in c.runs)
        memory = f"{c.median('peak_mb'):,.0f}"
        print(f"| {c.name} | {c.setting} | {value:,.4g} | {every} | {memory} | {ratio:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", nargs="+", choices=["train", "decode"], default=["train", "decode"]
    )
    every = sorted({*TRAINERS, *DECODERS})
    parser.add_argument("--peers", nargs="+", choices=every, default=every)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=12, help="measured in a training run")
    options = parser.parse_args()
    peers = sorted({*options.peers, "ours"})
    data = prepare()
    record: dict[str, Any] = {}
    if "train" in options.only:
        trained = train(data, peers, options.repeats, options.updates)
        table("training", trained, "target_tokens_per_second", "high")
        record["train"] = {f"{c.name} {c.setting}": c.runs for c in trained}
    if "decode" in options.only:
        for mode, decoded in decode(data, peers, options.repeats).items():
            table(mode, decoded, "seconds", "low")
            record[mode] = {f"{c.name} {c.setting}": c.runs for c in decoded}
    (WORK / "engine.json").write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
