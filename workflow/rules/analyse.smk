"""Figures, tables and comparisons: what the paper prints, and the report shows."""


localrules:
    contents,
    cost_table,
    differing_examples,
    figure_by_step,
    figure_frequency,
    figure_lengths,
    figure_rewards,
    paper_table,
    pseudo_examples,
    results_table,


rule count_words:
    """How often each target word occurs in a training set."""
    input:
        "results/{pair}/corpus/{counted}.target",
    output:
        "results/{pair}/corpus/{counted}.counts",
    log:
        "results/logs/{pair}/count_words_{counted}.log",
    benchmark:
        "results/benchmarks/{pair}/count_words_{counted}.tsv"
    resources:
        mem_mb=lambda w, attempt: 4000 * attempt,
        runtime=lambda w, attempt: 240 * attempt,
    shell:
        """
        metabt count-words {input:q} \
            --output {output:q} \
            2>&1 | tee {log:q} >&2
        """


rule figure_by_step:
    """A figure of what the runs of a pair recorded while training."""
    input:
        lambda w: runs_of_pair(w, "metrics.csv"),
    output:
        report(
            "results/figures/{pair}/{figure}.svg",
            caption="../report/by_step.rst",
            category="2. Analyses",
            subcategory="{pair}",
            labels=lambda w: {"what": FIGURE_TITLES[w.figure]},
        ),
        "results/figures/{pair}/{figure}.tsv",
    log:
        "results/logs/{pair}/figure_{figure}.log",
    shell:
        """
        metabt figure {wildcards.figure} {input:q} \
            --output results/figures/{wildcards.pair}/{wildcards.figure} \
            2>&1 | tee {log:q} >&2
        """


rule figure_rewards:
    """The rewards that moved a method's backward models."""
    input:
        lambda w: forward_models([w.pair], [w.method], "metrics.csv"),
    output:
        report(
            "results/figures/{pair}/rewards-{method}.svg",
            caption="../report/rewards.rst",
            category="2. Analyses",
            subcategory="{pair}",
            labels=lambda w: {"what": f"More: rewards of {label(w.method)}"},
        ),
        "results/figures/{pair}/rewards-{method}.tsv",
    log:
        "results/logs/{pair}/figure_rewards_{method}.log",
    shell:
        """
        metabt figure rewards {input:q} \
            --output results/figures/{wildcards.pair}/rewards-{wildcards.method} \
            2>&1 | tee {log:q} >&2
        """


rule figure_lengths:
    """Lengths of translations beside those of the references."""
    input:
        translations=translations_of_pair,
        records=lambda w: runs_of_pair(w, "training.json"),
        references=lambda w: scored(w.pair, f"results/{w.pair}/corpus/test.target"),
    output:
        report(
            "results/figures/{pair}/lengths.svg",
            caption="../report/lengths.rst",
            category="2. Analyses",
            subcategory="{pair}",
            labels={"what": "Figure 5: length differences"},
        ),
        "results/figures/{pair}/lengths.tsv",
    log:
        "results/logs/{pair}/figure_lengths.log",
    shell:
        """
        metabt figure lengths {input.translations:q} \
            --references {input.references:q} \
            --output results/figures/{wildcards.pair}/lengths \
            2>&1 | tee {log:q} >&2
        """


rule figure_frequency:
    """Gain in word F1 by frequency in the related language's data."""
    input:
        translations=translations_of_pair,
        records=lambda w: runs_of_pair(w, "training.json"),
        references=lambda w: scored(w.pair, f"results/{w.pair}/corpus/test.target"),
        counts=lambda w: f"results/{w.pair}/corpus/{counted_set(w.pair)}.counts",
    output:
        report(
            "results/figures/{pair}/frequency.svg",
            caption="../report/frequency.rst",
            category="2. Analyses",
            subcategory="{pair}",
            labels={"what": "Figure 6: word F1 by frequency"},
        ),
        "results/figures/{pair}/frequency.tsv",
    log:
        "results/logs/{pair}/figure_frequency.log",
    params:
        tested=lambda w: tested_method(w.pair),
    shell:
        """
        metabt figure frequency {input.translations:q} \
            --references {input.references:q} \
            --counts {input.counts:q} \
            --tested {params.tested} \
            --output results/figures/{wildcards.pair}/frequency \
            2>&1 | tee {log:q} >&2
        """


rule compare_page:
    """compare-mt's page about two methods."""
    input:
        translations=lambda w: compared_translations(w),
        records=lambda w: forward_models([w.pair], [w.tested, w.other], "training.json"),
        source=lambda w: scored(w.pair, f"results/{w.pair}/corpus/test.source"),
        references=lambda w: scored(w.pair, f"results/{w.pair}/corpus/test.target"),
        counts=lambda w: f"results/{w.pair}/corpus/{counted_set(w.pair)}.counts",
    output:
        page=directory("results/{pair}/compare/{tested}-vs-{other}"),
        self_contained=report(
            "results/{pair}/compare/{tested}-vs-{other}.html",
            caption="../report/compare.rst",
            category="2. Analyses",
            subcategory="{pair}",
            labels=lambda w: {"what": f"compare-mt: {two_methods(w)}"},
        ),
    log:
        "results/logs/{pair}/compare_{tested}-vs-{other}.log",
    benchmark:
        "results/benchmarks/{pair}/compare_{tested}-vs-{other}.tsv"
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 60 * attempt,
    shell:
        """
        metabt compare {input.translations:q} \
            --methods {wildcards.tested} {wildcards.other} \
            --source {input.source:q} \
            --references {input.references:q} \
            --counts {input.counts:q} \
            --output {output.page:q} \
            >{log:q} 2>&1 || {{ tail -n 5 {log:q} >&2; exit 1; }}
        """


rule differing_examples:
    """The sentences that two methods translate most differently."""
    input:
        translations=lambda w: compared_translations(w),
        records=lambda w: forward_models([w.pair], [w.tested, w.other], "training.json"),
        source="results/{pair}/corpus/test.source",
        references=lambda w: scored(w.pair, f"results/{w.pair}/corpus/test.target"),
    output:
        report(
            "results/{pair}/examples/{tested}-vs-{other}.html",
            caption="../report/examples.rst",
            category="2. Analyses",
            subcategory="{pair}",
            labels=lambda w: {"what": f"Table 2: {two_methods(w)}"},
        ),
        expand(
            "results/{{pair}}/examples/{{tested}}-vs-{{other}}.{format}",
            format=["tsv", "md"],
        ),
    log:
        "results/logs/{pair}/examples_{tested}-vs-{other}.log",
    shell:
        """
        metabt table examples {input.translations:q} \
            --methods {wildcards.tested} {wildcards.other} \
            --source {input.source:q} \
            --references {input.references:q} \
            --output results/{wildcards.pair}/examples/{wildcards.tested}-vs-{wildcards.other} \
            2>&1 | tee {log:q} >&2
        """


rule pseudo_examples:
    """Pseudo pairs as the backward models wrote them, at the beginning, middle and end."""
    input:
        lambda w: forward_models(
            [w.pair], methods_with(w.pair, "pseudo"), "training.json"
        ),
    output:
        report(
            "results/{pair}/examples/pseudo.html",
            caption="../report/pseudo_examples.rst",
            category="2. Analyses",
            subcategory="{pair}",
            labels={"what": "More: pseudo pairs during training"},
        ),
        expand("results/{{pair}}/examples/pseudo.{format}", format=["tsv", "md"]),
    log:
        "results/logs/{pair}/examples_pseudo.log",
    params:
        examples=lambda w: forward_models(
            [w.pair], methods_with(w.pair, "pseudo"), "examples.tsv"
        ),
    shell:
        """
        metabt table pseudo {params.examples:q} \
            --output results/{wildcards.pair}/examples/pseudo \
            2>&1 | tee {log:q} >&2
        """


rule results_table:
    """The paper's Table 1, with our figures."""
    input:
        scores=all_scores(),
        significance=expand("results/{pair}/significance.tsv", pair=EXPERIMENT.pairs),
    output:
        report(
            "results/tables/results.html",
            caption="../report/results.rst",
            category="1. Results",
            labels={"what": "Table 1: BLEU of each method"},
        ),
        expand("results/tables/results.{format}", format=["tsv", "md"]),
    log:
        "results/logs/results_table.log",
    params:
        seeds=seeds_in_words(),
    shell:
        """
        metabt table results {input.scores:q} \
            --significance {input.significance:q} \
            --seeds {params.seeds:q} \
            --output results/tables/results \
            2>&1 | tee {log:q} >&2
        """


rule paper_table:
    """Our figures beside the paper's."""
    input:
        all_scores(),
    output:
        report(
            "results/tables/paper.html",
            caption="../report/paper.rst",
            category="1. Results",
            labels={"what": "Table 1 beside the paper's"},
        ),
        expand("results/tables/paper.{format}", format=["tsv", "md"]),
    log:
        "results/logs/paper_table.log",
    params:
        same_data="--same-data" if EXPERIMENT.name == PAPER else "",
    shell:
        """
        metabt table paper {input:q} \
            {params.same_data} \
            --output results/tables/paper \
            2>&1 | tee {log:q} >&2
        """


rule cost_table:
    """Time and memory of every training run."""
    input:
        records=expand("results/{run}/training.json", run=all_runs()),
        benchmarks=expand("results/benchmarks/{run}/train.tsv", run=all_runs()),
    output:
        report(
            "results/tables/cost.html",
            caption="../report/cost.rst",
            category="3. Data and cost",
            labels={"what": "Cost of training"},
        ),
        expand("results/tables/cost.{format}", format=["tsv", "md"]),
    log:
        "results/logs/cost_table.log",
    shell:
        """
        metabt table cost \
            --records {input.records:q} \
            --benchmarks {input.benchmarks:q} \
            --output results/tables/cost \
            2>&1 | tee {log:q} >&2
        """


rule contents:
    """A list of all that there is about a pair; the target for a report of one pair."""
    input:
        scores=lambda w: expand(
            "results/{pair}/{method}.bleu",
            pair=w.pair,
            method=EXPERIMENT.setting(w.pair).methods,
        ),
        analyses=lambda w: analyses_of(w.pair),
    output:
        "results/{pair}/contents.txt",
    log:
        "results/logs/{pair}/contents.log",
    shell:
        """
        printf '%s\\n' {input:q} >{output:q} 2>{log:q}
        """
