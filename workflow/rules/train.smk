"""Training and test-set scores of every model: results/{pair}/{model}, where a model is the backward
one, the language model lm, or a method's forward model such as metabt/seed1."""


localrules:
    describe_run,
    summarise,


rule describe_run:
    """Write down all that a model depends on: an edit of the config that changes nothing here
    retrains nothing."""
    output:
        "results/{pair}/{model}/run.json",
    log:
        "results/logs/{pair}/{model}/describe.log",
    params:
        run=run_description,
    shell:
        """
        printf '%s\\n' {params.run:q} >{output:q}
        """


rule train:
    """Train a model. An interrupted run goes on from its checkpoint, which is not declared here
    because Snakemake would delete it; nor are the examples of pseudo pairs, which not all have.
    """
    input:
        run="results/{pair}/{model}/run.json",
        shards=shards_of_run,
        models=models_of_run,
        vocabulary="results/{pair}/vocab/vocab.json",
        subwords=subword_model_files,
    output:
        weights="results/{pair}/{model}/model.safetensors",
        description="results/{pair}/{model}/model.json",
        metrics="results/{pair}/{model}/metrics.csv",
        record="results/{pair}/{model}/training.json",
    log:
        "results/logs/{pair}/{model}/train.log",
    benchmark:
        "results/benchmarks/{pair}/{model}/train.tsv"
    threads: threads_to_train
    resources:
        mem_mb=lambda w, attempt: 8000 * attempt,
        runtime="2d",
        gpu=1,
    shell:
        """
        metabt train {input.run:q} \
            --output results/{wildcards.pair}/{wildcards.model} \
            --threads {threads} \
            2>&1 | tee {log:q} >&2
        """


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
    threads: 2
    resources:
        mem_mb=4000,
        runtime="4h",
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


rule score:
    """BLEU and chrF of a model on the test set."""
    input:
        hypotheses="results/{pair}/{model}/test.hyp",
        references=lambda w: test_text(w, "reference"),
    output:
        "results/{pair}/{model}/scores.json",
    log:
        "results/logs/{pair}/{model}/score.log",
    resources:
        mem_mb=1000,
        runtime="10m",
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
