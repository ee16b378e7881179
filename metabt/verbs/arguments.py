"""What all verbs are built with."""

import argparse
from collections.abc import Callable

Verbs = argparse._SubParsersAction  # argparse has no public name for it


def add_verb(
    verbs: Verbs, name: str, run: Callable[[argparse.Namespace], None], help: str, more: str = ""
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}. {more}")
    parser.set_defaults(run=run)
    return parser


def positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError("must be between 0 and 1")
    return value


def add_machine(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--threads", type=count, help="on a CPU (default: all that there are)")
    verb.add_argument("--device", choices=["cpu", "cuda"], help="default: a GPU if there is one")
