"""A virtual environment for each peer toolkit, with everything pinned that matters.

    python benchmarks/peers/environments.py NAME DIR

makes DIR/NAME, or finds it finished and does nothing. All peers get the same torch as our own
engine, so that what is compared is the toolkits and not the tensor library below them.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Peer:
    packages: tuple[str, ...]  # installed with what they depend on
    bare: tuple[str, ...] = ()  # installed alone: their declared pins contradict our torch
    built: tuple[str, ...] = ()  # compiled here, before torch comes, lest they use it
    tools: tuple[str, ...] = ()  # with which to compile them
    imports: tuple[str, ...] = ()  # must work for the environment to count as finished


PEERS = {
    "opennmt": Peer(
        packages=(
            "configargparse==1.7.1",
            "ctranslate2==4.8.4",
            "fasttext-predict==0.9.2.4",  # the part of fasttext that needs no compiler
            "numpy==1.26.4",
            "pyahocorasick==2.2.0",
            "pyonmttok==1.38.1",
            "pyyaml",
            "rapidfuzz",
            "sacrebleu==2.5.1",
            "sentencepiece==0.2.2",
            "setuptools<81",
            "six",
            "spacy==3.8.18",
            "tensorboard==2.20.0",
        ),
        bare=("OpenNMT-py==3.5.1",),
        imports=("onmt", "onmt.trainer", "onmt.train_single"),
    ),
    "sockeye": Peer(
        packages=("numpy==1.26.4", "portalocker", "pyyaml", "sacrebleu==2.5.1"),
        bare=("sockeye==3.1.34",),
        imports=("sockeye.train", "sockeye.translate"),
    ),
    "joeynmt": Peer(
        packages=(
            "datasets",
            "importlib-metadata",
            "matplotlib",
            "numpy==1.26.4",
            "packaging",
            "pandas<3",
            "pyyaml",
            "sacrebleu==2.5.1",
            "sacremoses",
            "seaborn",
            "sentencepiece==0.2.2",
            "setuptools<81",
            "subword-nmt==0.3.8",
            "tensorboard==2.20.0",
        ),
        bare=("joeynmt==2.3.0",),
        imports=("joeynmt.training", "joeynmt.prediction"),
    ),
    "huggingface": Peer(
        packages=("transformers==5.22.2", "accelerate", "safetensors", "numpy"),
        imports=("transformers.models.marian.modeling_marian", "transformers.trainer"),
    ),
    "fairseq": Peer(
        packages=(
            "bitarray",
            "cffi",
            "hydra-core==1.0.7",
            "omegaconf==2.0.6",
            "regex",
            "sacrebleu==2.5.1",
            "safetensors",
            "tqdm",
        ),
        built=("fairseq==0.12.2",),
        tools=("cython<3.1", "numpy==1.26.4", "setuptools<81", "wheel"),
        imports=("bitarray", "sacrebleu", "torch"),  # itself: see its driver
    ),
    "ctranslate2": Peer(
        packages=("ctranslate2==4.8.4", "numpy"),
        imports=("ctranslate2",),
    ),
}


class SetupError(Exception):
    pass


def run(*command: str | Path, what: str) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        errors = [line for line in lines if "rror" in line] or lines
        raise SetupError(f"{what}: {errors[-1].strip()}")


def create(name: str, directory: Path) -> Path:
    """The environment's python, after making the environment where it was not finished."""
    peer, home = PEERS[name], directory / name
    python, mark = home / "bin/python", home / "finished"
    recipe = hashlib.sha256(json.dumps([TORCH, asdict(peer)]).encode()).hexdigest()
    if mark.exists() and mark.read_text() == recipe:
        return python
    venv.create(home, clear=True, with_pip=True)
    constraints = home / "constraints.txt"
    constraints.write_text(TORCH + "\n")
    pip = (python, "-m", "pip", "install", "--quiet", "--constraint", constraints)
    if peer.built:
        run(*pip, *peer.tools, what="the tools to build it")
        alone = ("--no-deps", "--no-build-isolation")
        run(*pip, *alone, *peer.built, what=f"building {' '.join(peer.built)}")
    run(*pip, TORCH, what="torch")
    run(*pip, *peer.packages, what="its dependencies")
    if peer.bare:
        run(*pip, "--no-deps", *peer.bare, what=" ".join(peer.bare))
    run(python, "-c", f"import {', '.join(peer.imports)}", what="importing it")
    mark.write_text(recipe)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(PEERS))
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    try:
        print(create(arguments.name, arguments.directory.resolve()))
    except (SetupError, OSError) as error:
        print(f"{arguments.name} cannot be set up: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
