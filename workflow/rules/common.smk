"""The checked config, and the functions by which rules ask it."""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from metabt import experiment as experiment_file
from metabt import config_file
from metabt.data import catalogue
from metabt.errors import UserError

# Rules call `metabt`: the one that belongs to this Snakemake, whether its environment is active or not.
shell.prefix(
    f"set -euo pipefail; export PATH='{Path(sys.executable).parent}':$PATH; "
    f". '{workflow.basedir}/workflow/scripts/jobs.sh'; "
)
if not (Path(sys.executable).parent / "metabt").exists() and not shutil.which("metabt"):
    raise WorkflowError(
        f"There is no `metabt` beside {sys.executable}: this Snakemake is not the project's. "
        "`make install` makes one; call it as .venv/bin/snakemake."
    )

# Slurm's warning before a time limit goes to all processes of a job. The trainer saves and leaves;
# the Snakemake around it must live until then (and is not to pass this on to what it starts, as it
# would if the signal were ignored).
if "SLURM_JOB_ID" in os.environ:
    signal.signal(signal.SIGUSR1, lambda *_: None)


def checked(function, *arguments):
    """Call a function; what the user can mend is shown without a traceback."""
    try:
        return function(*arguments)
    except UserError as error:
        raise WorkflowError(str(error))


def checked_experiment():
    """The config, with every fault in it told at once."""
    for path in workflow.configfiles:
        config_file.read_yaml(
            path
        )  # a key that stands twice, which Snakemake lets pass
    experiment = experiment_file.parse(config, Path(workflow.configfiles[-1]))
    if faults := catalogue.faults(experiment):
        raise UserError("\n  ".join([f"{workflow.configfiles[-1]}:", *faults]))
    return experiment


EXPERIMENT = checked(checked_experiment)
RESOURCES = checked(catalogue.resources, EXPERIMENT)
METHODS = sorted({m for s in EXPERIMENT.settings.values() for m in s.methods})
PAPER = "Meta Back-Translation, WMT14 and TED"  # the experiment that has figures to compare with
TRAINING_SETS = ["parallel", "related", "mono"]
HELD_OUT_SETS = ["test", "dev", "metadev"]

# Data come first. They take several threads: on a small machine, trainings of one thread each would
# never leave them room, and whatever waits for them would begin last.
BEFORE_TRAINING = 200


def one_of(names):
    return "|".join(map(re.escape, names)) or "(?!)"


wildcard_constraints:
    pair=one_of(EXPERIMENT.pairs),
    download=one_of(RESOURCES),
    set=one_of(TRAINING_SETS + HELD_OUT_SETS),
    model=f"backward|initial|lm|(?:{one_of(METHODS)})/seed[0-9]+",
    method=one_of(METHODS),
    tested=one_of(METHODS),
    other=one_of(METHODS),
    counted=one_of(["parallel", "related"]),
    figure="learning|validation|probability|pseudo|vocabulary",


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
    check_cluster()
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
