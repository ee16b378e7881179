"""Translations of the test sets, their scores, and which differences between them are significant."""


localrules:
    detokenise,
    score,
    summarise,


rule translate:
    """Translate the test set with a trained model."""
    input:
        weights="results/{pair}/{model}/model.safetensors",
        description="results/{pair}/{model}/model.json",
        text=lambda w: test_text(w, "input"),
    output:
        "results/{pair}/{model}/test.hyp",
    log:
        "results/logs/{pair}/{model}/translate.log",
    benchmark:
        "results/benchmarks/{pair}/{model}/translate.tsv"
    threads: 1  # translations are many: as with trainings, side by side is faster
    resources:
        mem_mb=lambda w, attempt: 4000 * attempt,
        runtime=lambda w, attempt: 240 * attempt,
        gpu=1,
    params:
        beam=EXPERIMENT.evaluation.beam,
        length_penalty=EXPERIMENT.evaluation.length_penalty,
    shell:
        """
        metabt translate \
            --model results/{wildcards.pair}/{wildcards.model} \
            --input {input.text:q} \
            --output {output:q} \
            --beam {params.beam} \
            --length-penalty {params.length_penalty} \
            --threads {threads} \
            2>&1 | tee {log:q} >&2
        """


rule detokenise:
    """Join the words of tokenised text (TED), so that BLEU splits them in its own way."""
    input:
        "results/{pair}/{file}",
    output:
        "results/{pair}/{file}.detokenised",
    log:
        "results/logs/{pair}/{file}.detokenise.log",
    params:
        language=language_of_text,
    shell:
        """
        metabt detokenise {input:q} \
            --language {params.language} \
            --output {output:q} \
            2>&1 | tee {log:q} >&2
        """


rule score:
    """BLEU and chrF of a model on the test set."""
    input:
        hypotheses=lambda w: scored(w.pair, f"results/{w.pair}/{w.model}/test.hyp"),
        references=lambda w: scored(w.pair, test_text(w, "reference")),
    output:
        "results/{pair}/{model}/scores.json",
    log:
        "results/logs/{pair}/{model}/score.log",
    shell:
        """
        metabt score {input.hypotheses:q} {input.references:q} \
            --output {output:q} \
            2>&1 | tee {log:q} >&2
        """


rule summarise:
    """A method's result for a pair: the mean over seeds, and each of them."""
    input:
        scores=lambda w: forward_models([w.pair], [w.method], "scores.json"),
        records=lambda w: forward_models([w.pair], [w.method], "training.json"),
    output:
        "results/{pair}/{method}.bleu",
    log:
        "results/logs/{pair}/{method}.summarise.log",
    params:
        beam=EXPERIMENT.evaluation.beam,
        length_penalty=EXPERIMENT.evaluation.length_penalty,
    shell:
        """
        metabt summarise {input.scores:q} \
            --title "{wildcards.pair} {wildcards.method}" \
            --decoding "beam {params.beam}, length penalty {params.length_penalty}" \
            --output {output:q} \
            2>&1 | tee {log:q} >&2
        """


rule significance:
    """Which methods differ on the test set, and by how much seeds and sentences spread."""
    input:
        translations=translations_of_pair,
        records=lambda w: runs_of_pair(w, "training.json"),
        references=lambda w: scored(w.pair, f"results/{w.pair}/corpus/test.target"),
    output:
        tests="results/{pair}/significance.tsv",
        systems="results/{pair}/systems.tsv",
        bootstrap="results/{pair}/bootstrap.tsv",
        readable_tests=report(
            "results/{pair}/significance.html",
            caption="../report/significance.rst",
            category="2. Analyses",
            subcategory="{pair}",
            labels={"what": "Significance of differences"},
        ),
        readable_systems=report(
            "results/{pair}/systems.html",
            caption="../report/systems.rst",
            category="2. Analyses",
            subcategory="{pair}",
            labels={"what": "Spread over seeds and sentences"},
        ),
        markdown=expand(
            "results/{{pair}}/{table}.md", table=["significance", "systems"]
        ),
    log:
        "results/logs/{pair}/significance.log",
    benchmark:
        "results/benchmarks/{pair}/significance.tsv"
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 60 * attempt,
    params:
        trials=EXPERIMENT.evaluation.significance_trials,
    shell:
        """
        metabt significance {input.translations:q} \
            --references {input.references:q} \
            --trials {params.trials} \
            --pair {wildcards.pair} \
            --output results/{wildcards.pair} \
            2>&1 | tee {log:q} >&2
        """
