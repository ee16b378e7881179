"""`metabt estimate`: what an experiment will take, before it is run. Arithmetic, not a measurement.

A training step takes 6 floating-point operations for each weight of a matrix and each token that
passes it (2 forward, 4 backward). What a method does beyond training on its batch (sampling,
rewards, the backward model's step) is taken from how much longer its steps were measured to be.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from metabt.config import Setting, Training, Transformer
from metabt.experiment import Experiment
from metabt.methods import METHODS

TOKENS = 28  # of a sentence, on either side: news in 32,000 pieces
# A step's time to that of No BT with the same batch, measured on CPUs (docs/performance.md).
TIME_TO_NO_BT = {"nobt": 1.0, "mle": 1.6, "dualnmt": 2.1, "metabt": 2.6, "unmt": 5.7}
# Vectors as long as the parameters, of 4 bytes each, measured there, too; No BT's by counting.
VECTORS = {"nobt": 5.0, "mle": 5.7, "dualnmt": 8.8, "metabt": 11.8, "unmt": 8.9}
MICRO_TOKENS = 16384  # of one pass on a GPU
ACTIVATIONS_MB = 0.78 / (6 * 1024)  # a token, layer and unit of width: measured on Transformer-Big


@dataclass(frozen=True)
class Estimate:
    pair: str
    model: str
    runs: int
    parameters: float
    pflop: float  # of one run
    gpu_gb: float


def weights(shape: Transformer, vocabulary: int) -> tuple[float, float]:
    """Weights of matrices that a source token and a target token pass."""
    width, inner = shape.width, 2 * shape.width * shape.feed_forward
    source = shape.layers * (4 * width**2 + inner + 2 * width**2)  # and the decoder's keys, values
    target = shape.layers * (6 * width**2 + inner) + width * vocabulary
    return float(source), float(target)


def _sentences(training: Training, tokens: float) -> float:
    batch = training.batch
    return batch.sentences if batch.sentences is not None else (batch.tokens or 0) / tokens


def _pflop(weights_of_a_pair: float, training: Training, tokens: float) -> float:
    return 6 * weights_of_a_pair * tokens * _sentences(training, tokens) * training.steps / 1e15


def _gpu_gb(parameters: float, vectors: float, shape: Transformer) -> float:
    activations = ACTIVATIONS_MB * shape.layers * shape.width * MICRO_TOKENS / 1000
    return 4 * vectors * parameters / 1e9 + activations


def estimates(experiment: Experiment, tokens: float = TOKENS) -> Iterator[Estimate]:
    for pair in experiment.pairs:
        setting = experiment.setting(pair)
        languages = len(experiment.pairs[pair].languages)
        yield from _of_pair(experiment, pair, setting, languages, tokens)


def _of_pair(
    experiment: Experiment, pair: str, setting: Setting, languages: int, tokens: float
) -> Iterator[Estimate]:
    vocabulary = setting.subwords.vocabulary_limit(languages)
    shape = setting.transformer
    both = sum(weights(shape, vocabulary))
    memory = _gpu_gb(both, VECTORS["nobt"], shape)
    yield Estimate(pair, "backward", 1, both, _pflop(both, setting.backward, tokens), memory)
    if setting.initial:
        yield Estimate(pair, "initial", 1, both, _pflop(both, setting.initial, tokens), memory)
    algorithms = {name: experiment.methods[name].algorithm for name in setting.methods}
    if any("lm" in METHODS[algorithm].reads for algorithm in algorithms.values()):
        of_lm = setting.language_model
        small = of_lm.transformer
        own = weights(small, vocabulary)[1] - 2 * small.layers * small.width**2  # no other side
        memory = _gpu_gb(own, VECTORS["nobt"], small)
        yield Estimate(pair, "lm", 1, own, _pflop(own, of_lm.training, tokens), memory)
    for name, algorithm in algorithms.items():
        pflop = _pflop(both, setting.forward, tokens) * TIME_TO_NO_BT[algorithm]
        memory = _gpu_gb(both, VECTORS[algorithm], shape)
        yield Estimate(pair, name, len(setting.seeds), both, pflop, memory)


def table(experiment: Experiment, tflops: float, tokens: float) -> str:
    """All models of an experiment, with the sums of its pairs."""
    found = list(estimates(experiment, tokens))
    hours = {id(one): one.pflop * 1e3 / tflops / 3600 for one in found}
    lines = [
        f"{experiment.name}: an estimate, at {tflops:g} TFLOP/s sustained and {tokens:g} subwords "
        "a sentence; no early stopping",
        f"{'pair':<8} {'model':<16} {'runs':>4} {'weights':>8} {'PFLOP/run':>10} {'hours/run':>9} "
        f"{'GPU hours':>9} {'GPU GB':>6}",
    ]
    for pair in experiment.pairs:
        those = [one for one in found if one.pair == pair]
        lines += [
            f"{one.pair:<8} {one.model:<16} {one.runs:>4} {one.parameters / 1e6:>7.1f}M "
            f"{one.pflop:>10,.1f} {hours[id(one)]:>9,.1f} {hours[id(one)] * one.runs:>9,.1f} "
            f"{one.gpu_gb:>6.1f}"
            for one in those
        ]
        total = sum(hours[id(one)] * one.runs for one in those)
        lines.append(
            f"{pair:<8} {'all':<16} {sum(o.runs for o in those):>4} {'':>29} {total:>9,.1f}"
        )
    everything = sum(hours[id(one)] * one.runs for one in found)
    lines.append(f"{'all':<25} {sum(o.runs for o in found):>4} {'':>29} {everything:>9,.1f}")
    return "\n".join(lines)
