"""Verbs about models: training, translating, exporting."""

import argparse
import sys
from pathlib import Path

from metabt.errors import EXIT_INTERRUPTED
from metabt.files import read_json
from metabt.verbs.arguments import Verbs, add_machine, add_verb, count, positive


def add(verbs: Verbs) -> None:
    _add_training(verbs)
    _add_models(verbs)


def _add_training(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "train",
        _train,
        "train the model that a run.json describes",
        "Goes on from the last checkpoint in the output directory, if there is one of the same "
        f"run. SIGTERM and SIGUSR1 save and stop with exit code {EXIT_INTERRUPTED}. "
        "Where another process trains in the directory, it waits for it.",
    )
    verb.add_argument("run_file", type=Path, metavar="RUN.json")
    verb.add_argument("--output", type=Path, required=True, metavar="DIR")
    add_machine(verb)
    verb.add_argument(
        "--micro-tokens",
        type=count,
        help="tokens of one forward and backward pass; a batch is accumulated from as many as it "
        "takes (default: 4096, on a GPU 16384). Lower it if memory runs out",
    )
    verb.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="that train the model together, with a GPU each where there are any; 0: one for each "
        "GPU that can be seen (default: 1). For several machines, use torchrun",
    )
    verb.add_argument("--compile", action="store_true", help="use torch.compile")
    verb.add_argument(
        "--checkpoint-minutes", type=float, default=10.0, help="at most between two (default: 10)"
    )


def _add_models(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "translate",
        _translate,
        "translate text with a trained model",
        "One sentence a line in, one line out (or n), in the same order, as soon as it is there.",
    )
    verb.add_argument("--model", type=Path, required=True, metavar="DIR")
    verb.add_argument("--input", type=Path, help="default: standard input")
    verb.add_argument("--output", type=Path, help="default: standard output")
    verb.add_argument("--generation", choices=["beam", "sampling", "noisy-beam"], default="beam")
    verb.add_argument("--beam", type=int, default=4, help="1 is greedy search (default: 4)")
    verb.add_argument("--length-penalty", type=float, default=0.6, help="default: 0.6")
    verb.add_argument("--n-best", type=int, default=1, metavar="N", help="lines a sentence")
    verb.add_argument("--top-k", type=count, help="sample among the k best (default: among all)")
    verb.add_argument("--temperature", type=positive, default=1.0)
    verb.add_argument("--seed", type=int, default=1, help="of sampling and noise")
    verb.add_argument(
        "--scores",
        action="store_true",
        help="put the score, the log-probability and a tab before each line",
    )
    verb.add_argument("--batch-tokens", type=count, default=8192, help="changes the speed only")
    add_machine(verb)
    verb = add_verb(verbs, "export", _export, "convert a trained model for other software")
    verb.add_argument("--model", type=Path, required=True, metavar="DIR")
    verb.add_argument("--to", choices=["ctranslate2"], required=True)
    verb.add_argument("--output", type=Path, required=True, metavar="DIR")


def _train(options: argparse.Namespace) -> None:
    processes = options.processes or _visible_gpus()
    if processes > 1:
        _train_together(options, processes)
        return
    from metabt.training.pretrain import Start, pretrain

    start = Start(
        options.threads,
        options.micro_tokens,
        options.compile,
        options.device,
        60 * options.checkpoint_minutes,
    )
    run = read_json(options.run_file)
    if isinstance(run, dict) and run.get("kind") == "forward":
        from metabt.methods.blocks.task import train_forward

        train_forward(options.run_file, options.output, start)
    else:
        pretrain(options.run_file, options.output, start)


def _visible_gpus() -> int:
    import torch

    return max(1, torch.cuda.device_count())


def _train_together(options: argparse.Namespace, processes: int) -> None:
    """The same command, several times over. The waiting for another trainer is done before:
    processes that have found each other do not wait for long."""
    from metabt.training.presence import locked
    from metabt.training.processes import run_processes

    with locked(options.output):
        pass
    command = [sys.executable, "-m", "metabt", "train", str(options.run_file)]
    for name in ("output", "threads", "device", "micro_tokens", "checkpoint_minutes"):
        value = getattr(options, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    run_processes(processes, command + ["--compile"] * options.compile)


def _translate(options: argparse.Namespace) -> None:
    from metabt.config import Sampling
    from metabt.nmt.translate import Generation, translate

    generation = Generation(
        options.generation,
        options.beam,
        options.length_penalty,
        options.n_best,
        Sampling(top_k=options.top_k, temperature=options.temperature),
        options.seed,
    )
    translate(
        options.model,
        options.input,
        options.output,
        generation,
        scores=options.scores,
        batch_tokens=options.batch_tokens,
        threads=options.threads,
        device=options.device,
    )


def _export(options: argparse.Namespace) -> None:
    from metabt.nmt.export import to_ctranslate2

    to_ctranslate2(options.model, options.output)
