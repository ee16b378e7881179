"""The checked config, and the functions by which rules ask it."""

import json
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from metabt import experiment as experiment_file
from metabt import config_file
from metabt.data import catalogue
from metabt.errors import UserError
from metabt.methods import METHODS as METHODS_BY_ALGORITHM
from metabt.methods.blocks.run import ForwardRun
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


def one_of(names):
    return "|".join(map(re.escape, names)) or "(?!)"


wildcard_constraints:
    pair=one_of(EXPERIMENT.pairs),
    download=one_of(RESOURCES),
    set=one_of(TRAINING_SETS + HELD_OUT_SETS),
    model=f"backward|lm|(?:{one_of(METHODS)})/seed[0-9]+",
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


def algorithm_of(wildcards):
    """The algorithm of a forward model (metabt/seed1); none of a backward or language model."""
    if "/" not in wildcards.model:
        return None
    return EXPERIMENT.methods[wildcards.model.split("/")[0]].algorithm


def sets_of_run(wildcards):
    """The sets that a model is trained on or chosen by."""
    algorithm = algorithm_of(wildcards)
    if algorithm:
        reads = METHODS_BY_ALGORITHM[algorithm].reads
    else:
        reads = ["parallel"] + (["related"] if wildcards.model == "backward" else [])
    return [name for name in sets_of(wildcards.pair) if name in (*reads, "dev")]


def shards_of_run(wildcards):
    return [
        f"results/{wildcards.pair}/shards/{name}.shard"
        for name in sets_of_run(wildcards)
    ]


def models_of_run(wildcards):
    """The pre-trained models that a method begins with."""
    algorithm = algorithm_of(wildcards)
    reads = METHODS_BY_ALGORITHM[algorithm].reads if algorithm else []
    return [
        f"results/{wildcards.pair}/{name}/model.safetensors"
        for name in ("backward", "lm")
        if name in reads
    ]


def run_description(wildcards):
    """The run.json of a model."""
    if algorithm_of(wildcards):
        return forward_run(wildcards).model_dump_json(indent=1)
    return pretraining_run(wildcards).model_dump_json(indent=1)


def pretraining_run(wildcards):
    """Of a backward model, or of the language model of the source language."""
    pair = EXPERIMENT.pairs[wildcards.pair]
    setting = EXPERIMENT.setting(wildcards.pair)
    sets = dict(zip(sets_of_run(wildcards), shards_of_run(wildcards)))
    dev = sets.pop("dev")
    if wildcards.model == "backward":
        kind, shape, training = "translation", setting.transformer, setting.backward
        languages, sides = [pair.target, pair.source], [1, 0]
    else:
        model = setting.language_model
        kind, shape, training = "language-model", model.transformer, model.training
        languages, sides = [pair.source], [0]
    return Run(
        kind=kind,
        languages=languages,
        sides=sides,
        train=list(sets.values()),
        dev=dev,
        vocabulary=f"results/{wildcards.pair}/vocab/vocab.json",
        transformer=shape,
        training=training,
        seed=setting.seeds[0],
    )


def forward_run(wildcards):
    """Of a method's forward model, such as metabt/seed1."""
    pair = EXPERIMENT.pairs[wildcards.pair]
    setting = EXPERIMENT.setting(wildcards.pair)
    method, seed = Path(wildcards.model).parts
    models = {
        path.split("/")[2]: str(Path(path).parent) for path in models_of_run(wildcards)
    }
    return ForwardRun(
        method=EXPERIMENT.methods[method],
        languages=[pair.source, pair.target],
        sets=dict(zip(sets_of_run(wildcards), shards_of_run(wildcards))),
        **models,
        low_resource=pair.related is not None,
        vocabulary=f"results/{wildcards.pair}/vocab/vocab.json",
        transformer=setting.transformer,
        training=setting.forward,
        pseudo_batch=setting.pseudo_batch,
        metadev_batch=setting.metadev_batch,
        sampling=setting.sampling,
        seed=int(seed.removeprefix("seed")),
    )


def threads_to_train(wildcards):
    """Runs of forward models are many, and two side by side on a thread each are faster than one
    after the other on two; a pre-trained model is waited for by all."""
    return 1 if algorithm_of(wildcards) else 4


def test_text(wildcards, what):
    """The test set's side that a model reads, or that its translations are held against."""
    backward = wildcards.model == "backward"
    side = "target" if backward == (what == "input") else "source"
    return f"results/{wildcards.pair}/corpus/test.{side}"


def scored(pair, path):
    """The text of a pair that is scored: as it is, or with its words joined."""
    return f"{path}.detokenised" if EXPERIMENT.pairs[pair].tokenised else path


def language_of_text(wildcards):
    """Of a side of the test set, or of a model's translation of it."""
    pair = EXPERIMENT.pairs[wildcards.pair]
    of_source = wildcards.file in ("corpus/test.source", "backward/test.hyp")
    return pair.source if of_source else pair.target


def forward_models(pairs, methods, file):
    """A file of every forward model of some pairs and methods."""
    return [
        f"results/{pair}/{method}/seed{seed}/{file}"
        for pair in pairs
        for method in methods
        for seed in EXPERIMENT.setting(pair).seeds
    ]


def runs_of_pair(wildcards, file):
    """A file of every forward model of a pair."""
    methods = EXPERIMENT.setting(wildcards.pair).methods
    return forward_models([wildcards.pair], methods, file)


def translations_of_pair(wildcards):
    return [
        scored(wildcards.pair, path) for path in runs_of_pair(wildcards, "test.hyp")
    ]


def methods_with(pair, column):
    """The methods that record this column of metrics.csv; those about pseudo pairs are recorded by
    every method that reads monolingual text."""
    classes = {
        method: METHODS_BY_ALGORITHM[EXPERIMENT.methods[method].algorithm]
        for method in EXPERIMENT.setting(pair).methods
    }
    return [
        method
        for method, found in classes.items()
        if column in found.columns or (column == "pseudo" and "mono" in found.reads)
    ]


def tested_method(pair):
    """The last of a pair's methods is the one that is put to the test, against all others."""
    return EXPERIMENT.setting(pair).methods[-1]


def figures_of(pair):
    """Names of the figures that there are about a pair."""
    pseudo = methods_with(pair, "pseudo")
    related = EXPERIMENT.pairs[pair].related is not None
    return [
        "learning",
        "validation",
        *(["probability", "pseudo"] if pseudo else []),
        *(["vocabulary"] if pseudo and related else []),
        *(f"rewards-{method}" for method in methods_with(pair, "reward_mean")),
        "lengths",
        *(
            ["frequency"]
            if related and len(EXPERIMENT.setting(pair).methods) > 1
            else []
        ),
    ]


def counted_set(pair):
    """The training set by whose words' frequency translations are analysed: the paper's choice in
    the multilingual setting, and what there is in the other."""
    return "related" if EXPERIMENT.pairs[pair].related else "parallel"


def analyses_of(pair):
    """All files that the report shows of a pair."""
    files = [
        f"results/{pair}/significance.html",
        f"results/{pair}/systems.html",
        *(f"results/figures/{pair}/{name}.svg" for name in figures_of(pair)),
    ]
    tested = tested_method(pair)
    for other in EXPERIMENT.setting(pair).methods[:-1]:
        files += [
            f"results/{pair}/compare/{tested}-vs-{other}",
            f"results/{pair}/examples/{tested}-vs-{other}.html",
        ]
    if methods_with(pair, "pseudo"):
        files.append(f"results/{pair}/examples/pseudo.html")
    return files


def all_tables():
    """The tables about all pairs."""
    names = ["results", "paper", "cost", "data"]
    return expand(
        "results/tables/{name}.{format}", name=names, format=["tsv", "md", "html"]
    )


def pretrained_models(pairs):
    """The backward models and language models that some pairs' methods begin with."""
    return [
        f"results/{pair}/{model}"
        for pair in pairs
        for model in ("backward", "lm")
        if any(
            model in METHODS_BY_ALGORITHM[EXPERIMENT.methods[method].algorithm].reads
            for method in EXPERIMENT.setting(pair).methods
        )
    ]


def all_runs():
    """Every model that is trained, as PAIR/MODEL."""
    models = pretrained_models(EXPERIMENT.pairs)
    for pair in EXPERIMENT.pairs:
        methods = EXPERIMENT.setting(pair).methods
        models += [
            str(Path(path).parent)
            for path in forward_models([pair], methods, "run.json")
        ]
    return [model.removeprefix("results/") for model in models]


def all_scores():
    """The score of every pair and method."""
    return [
        f"results/{pair}/{method}.bleu"
        for pair in EXPERIMENT.pairs
        for method in EXPERIMENT.setting(pair).methods
    ]


def compared_translations(wildcards):
    """The translations of two methods, all seeds."""
    paths = forward_models(
        [wildcards.pair], [wildcards.tested, wildcards.other], "test.hyp"
    )
    return [scored(wildcards.pair, path) for path in paths]


def seeds_in_words():
    """How many seeds there are: of each setting, where they differ."""
    settings = {EXPERIMENT.pairs[pair].setting for pair in EXPERIMENT.pairs}
    counts = {name: len(EXPERIMENT.settings[name].seeds) for name in sorted(settings)}
    if len(set(counts.values())) == 1:
        return f"over {next(iter(counts.values()))} seeds"
    return "over seeds (" + ", ".join(f"{n}: {c}" for n, c in counts.items()) + ")"


# How the report calls the figures.
FIGURE_TITLES = {
    "learning": "Training perplexity and dev BLEU",
    "validation": "Dev perplexity and BLEU",
    "probability": "Probability of pseudo pairs",
    "pseudo": "Log-probability and length of pseudo sources",
    "vocabulary": "Words of S in pseudo sources",
}
