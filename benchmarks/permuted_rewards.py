"""The control of an effect of MetaBT: the same run, with its rewards dealt out at random.

    python benchmarks/permuted_rewards.py --directory runs/demo \\
        --run results/qas-qat/metabt/seed1 --output permuted

What the backward model then does differently from MLE's is noise, and what the run with its own
rewards does differently from this one is due to the rewards. `metrics.csv` of the output has the
record, as for every run.
"""

import argparse
import os
from pathlib import Path
from unittest.mock import patch

import numpy as np

from metabt.methods.blocks.task import train_forward
from metabt.methods.blocks.translator import Translator
from metabt.training.pretrain import Start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--directory", type=Path, required=True, help="of the experiment")
    parser.add_argument("--run", type=Path, required=True, help="a MetaBT run, below the directory")
    parser.add_argument("--output", type=Path, required=True, help="below the directory")
    options = parser.parse_args()
    os.chdir(options.directory)
    true, rng = Translator.slopes, np.random.default_rng(1)
    with patch.object(Translator, "slopes", lambda *a, **k: rng.permutation(true(*a, **k))):
        train_forward(options.run / "run.json", options.output, Start(threads=1))


if __name__ == "__main__":
    main()
