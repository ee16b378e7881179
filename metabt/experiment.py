"""A whole experiment, as `config.yaml` describes it.

`parse` reports everything that is wrong at once, each fault with its path (and line) in the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Union

from pydantic import Field, TypeAdapter, ValidationError

from metabt.config import MAX_VOCABULARY, Count, Model, Name, Pair, Setting, SettingName
from metabt.config_file import Fault, describe, read_yaml
from metabt.errors import UserError
from metabt.methods import METHODS

# One of the options of the methods, told apart by `algorithm`.
_OPTIONS: Any = Union[tuple(method.Options for method in METHODS.values())]  # noqa: UP007
Method = Annotated[_OPTIONS, Field(discriminator="algorithm")]


class Evaluation(Model):
    beam: Count
    length_penalty: Annotated[float, Field(ge=0)]
    significance_trials: Count = Field(description="of the randomisation test")


class Experiment(Model):
    """A whole experiment: what `config.yaml` holds."""

    name: str
    ted_archive: str = Field(description="where the TED archive is: an http(s) address or a file")
    pairs: Annotated[dict[str, Pair], Field(min_length=1)]
    settings: dict[SettingName, Setting]
    methods: dict[Name, Method]
    evaluation: Evaluation

    def setting(self, pair: str) -> Setting:
        return self.settings[self.pairs[pair].setting]


# --------------------------------------------------------------------------------- reading a file


def load(path: Path) -> Experiment:
    """Read and check an experiment's file."""
    return parse(read_yaml(path), path)


def parse(values: Any, path: Path | None = None) -> Experiment:
    """Check the values of an experiment; one error names every fault in them."""
    faults: list[Fault] = []
    try:
        experiment = Experiment.model_validate(values)
    except ValidationError as error:
        faults = [(tuple(e["loc"]), _message(e)) for e in error.errors()]
        experiment = None
    faults += _contradictions(_valid_parts(values))
    if faults or experiment is None:
        raise UserError(describe(faults, path))
    return experiment


def _valid_parts(values: Any) -> dict[str, dict[str, Any]]:
    """Those pairs, settings and methods that are right in themselves, to be checked together."""
    models: dict[str, Any] = {"pairs": Pair, "settings": Setting, "methods": Method}
    parts: dict[str, dict[str, Any]] = {section: {} for section in models}
    if not isinstance(values, Mapping):
        return parts
    for section, model in models.items():
        entries = values.get(section)
        for name, value in entries.items() if isinstance(entries, Mapping) else ():
            try:
                parts[section][str(name)] = TypeAdapter(model).validate_python(value)
            except ValidationError:
                parts[section][str(name)] = None
    return parts


def _contradictions(parts: dict[str, dict[str, Any]]) -> list[Fault]:
    """What is wrong between the sections of a file."""
    faults: list[Fault] = []
    pairs, settings, methods = parts["pairs"], parts["settings"], parts["methods"]
    for name, pair in pairs.items():
        if pair is None:
            continue
        at = ("pairs", name)
        if name != f"{pair.source}-{pair.target}":
            expected = f"{pair.source}-{pair.target}"
            faults.append((at, f"source and target say that this pair's name is '{expected}'"))
        if pair.setting not in settings:
            faults.append(((*at, "setting"), f"there is no settings.{pair.setting}"))
    for name, setting in settings.items():
        if setting is None:
            continue
        limit = setting.subwords.vocabulary_limit(languages=3 if name == "multilingual" else 2)
        if limit > MAX_VOCABULARY:
            faults.append(
                (
                    ("settings", name, "subwords", "size"),
                    f"a vocabulary may then have {limit:,} entries, but ids are of 16 bits: "
                    f"{MAX_VOCABULARY:,} at most",
                )
            )
        for i, method in enumerate(setting.methods):
            if method not in methods:
                known = ", ".join(methods) or "none"
                faults.append(
                    (("settings", name, "methods", i), f"no method '{method}' (there are: {known})")
                )
    return faults


def _message(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown key"
    if error["type"] == "missing":
        return "this key is missing"
    message = error["msg"].removeprefix("Value error, ")
    value = error["input"]
    if isinstance(value, str | int | float) and error["type"] != "value_error":
        message += f" (it is {value!r})"
    return message
