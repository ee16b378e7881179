"""The checked config, and the functions by which rules ask it."""

import json
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from metabt import config as experiment_config
from metabt import config_file
from metabt.data import catalogue
from metabt.errors import UserError
from metabt.training.run import Run

# Rules call `metabt`: the one that belongs to this Snakemake, whether its environment is active or not.
shell.prefix(f"set -euo pipefail; export PATH='{Path(sys.executable).parent}':$PATH; ")


def checked(function, *arguments):
    """Call a function; what the user can mend is shown without a traceback."""
    try:
        return function(*arguments)
    except UserError as error:
        raise WorkflowError(str(error))


def checked_experiment():
    """The config, with every fault in it told at once."""
    for path in workflow.configfiles:
        experiment_config.read_yaml(
            path
        )  # a key that stands twice, which Snakemake lets pass
    experiment = experiment_config.parse(config, Path(workflow.configfiles[-1]))
    if faults := catalogue.faults(experiment):
        raise UserError("\n  ".join([f"{workflow.configfiles[-1]}:", *faults]))
    return experiment


EXPERIMENT = checked(checked_experiment)
RESOURCES = checked(catalogue.resources, EXPERIMENT)
METHODS = sorted({m for s in EXPERIMENT.settings.values() for m in s.methods})
PAPER = "Meta Back-Translation, WMT14 and TED"  # the experiment that has figures to compare with
TRAINING_SETS = ["parallel", "related", "mono"]
HELD_OUT_SETS = ["test", "dev", "metadev"]


def one_of(names):
    return "|".join(map(re.escape, names)) or "(?!)"


wildcard_constraints:
    pair=one_of(EXPERIMENT.pairs),
    download=one_of(RESOURCES),
    set=one_of(TRAINING_SETS + HELD_OUT_SETS),
    model="backward|lm",


def check_targets(targets):
    """Say at once which pairs and methods there are, where a target names another."""
    for target in targets:
        match = re.match(
            r"(?:\./)?results/([a-z]{2,3}-[a-z]{2,3})/(?:([^/]+)\.bleu$)?", target
        )
        if not match:
            continue
        pair, method = match.groups()
        if pair not in EXPERIMENT.pairs:
            raise WorkflowError(
                f"{target}: there is no pair '{pair}'. "
                f"Pairs: {', '.join(EXPERIMENT.pairs)}. Methods: {', '.join(METHODS)}."
            )
        if method and method not in EXPERIMENT.setting(pair).methods:
            raise WorkflowError(
                f"{target}: there is no method '{method}' for {pair}. "
                f"Methods: {', '.join(EXPERIMENT.setting(pair).methods)}. "
                f"Pairs: {', '.join(EXPERIMENT.pairs)}."
            )


# Snakemake knows its targets only after the rules are read, and then complains of a missing rule.
check_targets(sys.argv[1:])


def check_directory():
    """Refuse to write one experiment's results over another's."""
    note = Path("results/experiment.txt")
    if note.exists() and note.read_text().strip() != EXPERIMENT.name:
        raise WorkflowError(
            f"{note.absolute()}: these are the results of '{note.read_text().strip()}', not of "
            f"'{EXPERIMENT.name}'. Give each experiment a directory: "
            "snakemake --directory runs/NAME ... (or delete that file, if only its name changed)."
        )


check_directory()


onstart:
    Path("results").mkdir(exist_ok=True)
    Path("results/experiment.txt").write_text(f"{EXPERIMENT.name}\n")


def sets_of(pair):
    """The sets of a pair: test, dev, metadev, parallel, mono and perhaps related."""
    return list(EXPERIMENT.pairs[pair].roles())


def all_shards():
    return [
        f"results/{pair}/shards/{name}.shard"
        for pair in EXPERIMENT.pairs
        for name in sets_of(pair)
    ]


def sides_of(name):
    return ["target"] if name == "mono" else ["source", "target"]


def corpus_texts(wildcards):
    """The clean text of a set, a file a side."""
    return [
        f"results/{wildcards.pair}/corpus/{wildcards.set}.{side}"
        for side in sides_of(wildcards.set)
    ]


def languages_of(wildcards):
    return EXPERIMENT.pairs[wildcards.pair].sides(wildcards.set)


def located(pair):
    return checked(
        catalogue.locate_pair, EXPERIMENT.pairs[pair], EXPERIMENT.ted_archive
    )


def datasets_of(wildcards):
    """What a pair's text is made of, as `metabt clean` reads it."""
    pair = EXPERIMENT.pairs[wildcards.pair]
    roles = {
        role: {
            "languages": pair.sides(role),
            "sources": [entry.source.to_json() for entry in entries],
        }
        for role, entries in located(wildcards.pair).items()
    }
    return json.dumps({"pair": wildcards.pair, "roles": roles}, indent=1)


def files_of(pair, roles):
    """The files that some of a pair's sets are read from, and the proof that downloads are right."""
    entries = [
        entry
        for role, found in located(pair).items()
        if role in roles
        for entry in found
    ]
    files = {file.path for entry in entries for file in entry.source.files}
    proofs = {
        f"results/verified/{resource.path}"
        for entry in entries
        for resource in entry.resources
    }
    return sorted(files | proofs)


def clean_input(name):
    """What the cleaning of a training set reads: its files and all held-out text."""
    return {
        "datasets": "results/{pair}/corpus/datasets.json",
        "files": lambda w: files_of(w.pair, [name or w.set]),
        "held_out": expand(
            "results/{{pair}}/corpus/{set}.{side}",
            set=HELD_OUT_SETS,
            side=["source", "target"],
        ),
    }


def subword_models(pair):
    """Language -> name of its subword model."""
    names = EXPERIMENT.pairs[pair].languages
    joint = EXPERIMENT.setting(pair).subwords.sharing == "joint"
    return {name: "joint" if joint else name for name in names}


def subword_model_files(wildcards):
    names = dict.fromkeys(subword_models(wildcards.pair).values())
    return [f"results/{wildcards.pair}/vocab/{name}.model" for name in names]


def subword_texts(wildcards):
    """The clean parallel text in the languages of a subword model."""
    models = subword_models(wildcards.pair)
    pair = EXPERIMENT.pairs[wildcards.pair]
    return [
        f"results/{wildcards.pair}/corpus/{name}.{side}"
        for name in ("parallel", "related")
        if name in pair.roles()
        for side, language in zip(sides_of(name), pair.sides(name))
        if models[language] == wildcards.model
    ]


def pretraining_shards(wildcards):
    """What a backward model or a language model is trained on, and the dev set."""
    backward = [
        name for name in ("parallel", "related") if name in sets_of(wildcards.pair)
    ]
    names = backward if wildcards.model == "backward" else ["parallel"]
    return [f"results/{wildcards.pair}/shards/{name}.shard" for name in [*names, "dev"]]


def pretraining_run(wildcards):
    """The run.json of a backward model, or of the language model of the source language."""
    pair = EXPERIMENT.pairs[wildcards.pair]
    setting = EXPERIMENT.setting(wildcards.pair)
    *train, dev = pretraining_shards(wildcards)
    if wildcards.model == "backward":
        kind, shape, training = "translation", setting.transformer, setting.backward
        languages, sides = [pair.target, pair.source], [1, 0]
    else:
        model = setting.language_model
        kind, shape, training = "language-model", model.transformer, model.training
        languages, sides = [pair.source], [0]
    run = Run(
        kind=kind,
        languages=languages,
        sides=sides,
        train=train,
        dev=dev,
        vocabulary=f"results/{wildcards.pair}/vocab/vocab.json",
        transformer=shape,
        training=training,
        seed=setting.seeds[0],
    )
    return run.model_dump_json(indent=1)


def pretrained_models():
    """Every pair's backward model, scored, and the language models that DualNMT needs."""
    targets = [f"results/{pair}/backward/scores.json" for pair in EXPERIMENT.pairs]
    for pair in EXPERIMENT.pairs:
        methods = [EXPERIMENT.methods[m] for m in EXPERIMENT.setting(pair).methods]
        if any(method.algorithm == "dualnmt" for method in methods):
            targets.append(f"results/{pair}/lm/training.json")
    return targets
