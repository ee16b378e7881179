"""The arithmetic of `metabt estimate`, held against real models and by hand."""

from pathlib import Path

import pytest

from metabt.estimate import TIME_TO_NO_BT, VECTORS, estimates, table, weights
from metabt.experiment import load
from metabt.methods import METHODS
from metabt.nmt.transformer import LanguageModel, Transformer

ROOT = Path(__file__).parents[1]


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_weights_are_those_of_real_models():
    """But for biases, norms and positions: under half a percent."""
    experiment = load(ROOT / "config.yaml")
    found = {(one.pair, one.model): one for one in estimates(experiment)}
    setting = experiment.settings["standard"]
    real = parameters(Transformer(32004, setting.transformer))
    assert sum(weights(setting.transformer, 32004)) == pytest.approx(real, rel=0.005)
    assert found["en-de", "metabt"].parameters == pytest.approx(real, rel=0.005)
    real = parameters(LanguageModel(32004, setting.language_model.transformer))
    assert found["en-de", "lm"].parameters == pytest.approx(real, rel=0.005)


def test_every_method_has_its_factors():
    assert set(TIME_TO_NO_BT) == set(VECTORS) == set(METHODS)


def test_hours_by_hand():
    experiment = load(ROOT / "config.yaml")
    nobt = next(o for o in estimates(experiment) if (o.pair, o.model) == ("en-de", "nobt"))
    assert nobt.pflop * 1e15 == pytest.approx(6 * nobt.parameters * 28 * 2048 * 200_000, rel=1e-6)
    text = table(experiment, tflops=60, tokens=28)
    line = next(line for line in text.split("\n") if line.startswith("en-de    nobt"))
    assert f"{nobt.pflop / 0.06 / 3600:.1f}" in line
    assert text.split("\n")[-1].split()[:2] == ["all", "84"]
