"""Whose words does a backward model write? A run of MetaBT once more, its pseudo sources counted.

    python benchmarks/pseudo_words.py --directory runs/ted \\
        --run results/az-en/metabt/seed1 --output counted

The share of words that are known in S (the report's figure 4) rises with more S, but also with
more words that S has in common with S', and with the repetition of frequent ones. So words are told
apart by the training text that has them, and distinct words are counted, too. `--output` is a run
as any other; what is counted is printed, a line for every 50 steps.
"""

import argparse
import os
from collections import Counter
from pathlib import Path
from unittest.mock import patch

from metabt.methods.blocks.run import ForwardRun
from metabt.methods.blocks.sentences import Numbered, Translations
from metabt.methods.blocks.task import train_forward
from metabt.methods.blocks.translator import Translator
from metabt.training.pretrain import Start

STEPS = 50  # of a line
SAMPLE = 2000  # words among which distinct ones are counted, so that length does not matter


def words_of(path: Path) -> set[str]:
    return set(path.read_text(encoding="utf-8").split())


def told_apart(text: list[str], ours: set[str], related: set[str]) -> str:
    kinds = Counter((word in ours, word in related) for word in text)
    names = {(True, False): "S alone", (True, True): "both", (False, True): "S' alone"}
    names[False, False] = "neither"
    shares = ", ".join(f"{kinds[kind] / len(text):.1%} of {name}" for kind, name in names.items())
    distinct = len(set(text[:SAMPLE]))
    return f"{len(text):,} words, {shares}; {distinct:,} distinct among the first {SAMPLE:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--directory", type=Path, required=True, help="of the experiment")
    parser.add_argument("--run", type=Path, required=True, help="a MetaBT run, below the directory")
    parser.add_argument("--output", type=Path, required=True, help="below the directory")
    options = parser.parse_args()
    os.chdir(options.directory)
    description = options.run / "run.json"
    run = ForwardRun.model_validate_json(description.read_text(encoding="utf-8"))
    corpus = options.run.parent.parent / "corpus"
    ours, related = (words_of(corpus / f"{name}.source") for name in ("parallel", "related"))
    translate = Translator.translate
    text: list[str] = []

    def counted(self: Translator, batch: Numbered, number: int) -> Translations:
        drawn = translate(self, batch, number)
        first = drawn.targets[: run.pseudo_batch.sentences]
        text.extend(word for ids in first for word in self.saved.subwords.decode(ids).split())
        if number % STEPS == 0:
            print(f"{number - STEPS + 1}-{number}: {told_apart(text, ours, related)}", flush=True)
            text.clear()
        return drawn

    with patch.object(Translator, "translate", counted):
        train_forward(description, options.output, Start(threads=1))


if __name__ == "__main__":
    main()
