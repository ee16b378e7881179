"""Functions by which rules ask which models there are, what each is made from, and what comes of it."""

from metabt.analysis.labels import label
from metabt.analysis.paper import paper_scores
from metabt.methods import METHODS as METHODS_BY_ALGORITHM
from metabt.methods.blocks.run import ForwardRun
from metabt.training.run import Run


def algorithm_of(wildcards):
    """The algorithm of a forward model (metabt/seed1); none of a pre-trained one."""
    if "/" not in wildcards.model:
        return None
    return EXPERIMENT.methods[wildcards.model.split("/")[0]].algorithm


def sets_of_run(wildcards):
    """The sets that a model is trained on or chosen by."""
    algorithm = algorithm_of(wildcards)
    if algorithm:
        reads = METHODS_BY_ALGORITHM[algorithm].reads
    else:
        reads = ["parallel"] + (["related"] if wildcards.model != "lm" else [])
    return [name for name in sets_of(wildcards.pair) if name in (*reads, "dev")]


def shards_of_run(wildcards):
    return [
        f"results/{wildcards.pair}/shards/{name}.shard"
        for name in sets_of_run(wildcards)
    ]


def models_of_run(wildcards):
    """The pre-trained models that a forward model's run begins with."""
    if algorithm_of(wildcards) is None:
        return []
    method = wildcards.model.split("/")[0]
    return [
        f"results/{wildcards.pair}/{name}/model.safetensors"
        for name in pretrained(wildcards.pair, [method])
    ]


def pretrained(pair, methods):
    """The models that some methods begin with: of the backward, initial forward and language one,
    those that they read."""
    reads = {
        name
        for method in methods
        for name in METHODS_BY_ALGORITHM[EXPERIMENT.methods[method].algorithm].reads
    }
    if EXPERIMENT.setting(pair).initial:
        reads.add("initial")
    return [name for name in ("backward", "initial", "lm") if name in reads]


def run_description(wildcards):
    """The run.json of a model."""
    if algorithm_of(wildcards):
        return forward_run(wildcards).model_dump_json(indent=1)
    return pretraining_run(wildcards).model_dump_json(indent=1)


def pretraining_run(wildcards):
    """Of a backward model, of the model that forward ones begin as, or of the language model of the
    source language."""
    pair = EXPERIMENT.pairs[wildcards.pair]
    setting = EXPERIMENT.setting(wildcards.pair)
    sets = dict(zip(sets_of_run(wildcards), shards_of_run(wildcards)))
    dev = sets.pop("dev")
    if wildcards.model == "backward":
        kind, shape, training = "translation", setting.transformer, setting.backward
        languages, sides = [pair.target, pair.source], [1, 0]
    elif wildcards.model == "initial":
        kind, shape, training = "translation", setting.transformer, setting.initial
        languages, sides = [pair.source, pair.target], [0, 1]
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


def priority_to_train(wildcards):
    """First what others wait for, then the methods that read most: they take longest, and the last
    one should not run alone."""
    algorithm = algorithm_of(wildcards)
    return len(METHODS_BY_ALGORITHM[algorithm].reads) if algorithm else 100


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
            f"results/{pair}/compare/{tested}-vs-{other}.html",
            f"results/{pair}/examples/{tested}-vs-{other}.html",
        ]
    if methods_with(pair, "pseudo"):
        files.append(f"results/{pair}/examples/pseudo.html")
    return files


def all_tables():
    """The tables about all pairs."""
    names = ["results", "cost", "data"]
    if set(EXPERIMENT.pairs) & set(paper_scores()):
        names.append("paper")
    return expand(
        "results/tables/{name}.{format}", name=names, format=["tsv", "md", "html"]
    )


def pretrained_models(pairs):
    """The models that some pairs' methods begin with."""
    return [
        f"results/{pair}/{model}"
        for pair in pairs
        for model in pretrained(pair, EXPERIMENT.setting(pair).methods)
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


def scores_so_far():
    """Those scores of forward models that are there."""
    wanted = [
        path
        for pair in EXPERIMENT.pairs
        for path in forward_models(
            [pair], EXPERIMENT.setting(pair).methods, "scores.json"
        )
    ]
    return [path for path in wanted if Path(path).exists()]


def finished_pairs():
    """The contents of those pairs of which all is there."""
    return [
        path
        for path in expand("results/{pair}/contents.txt", pair=EXPERIMENT.pairs)
        if Path(path).exists()
    ]


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
        count = next(iter(counts.values()))
        mean = f"mean over {count} seeds and their standard deviation"
        return "one seed" if count == 1 else mean
    many = ", ".join(f"{name}: {count}" for name, count in counts.items())
    return f"mean over seeds ({many}) and their standard deviation"


def two_methods(wildcards):
    """How the report calls a comparison."""
    return f"{label(wildcards.tested)} and {label(wildcards.other)}"


# How the report calls the figures.
FIGURE_TITLES = {
    "probability": "Figure 2: probability of pseudo pairs",
    "learning": "Figure 3: training perplexity and dev BLEU",
    "vocabulary": "Figure 4: words of S in pseudo sources",
    "validation": "Appendix: dev perplexity and BLEU",
    "pseudo": "More: log-probability and length of pseudo sources",
}
