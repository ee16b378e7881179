"""Models that are trained before any back-translation: backward models and language models."""


localrules:
    describe_run,


rule describe_run:
    """Write down all that a model depends on: an edit of the config that changes nothing here
    retrains nothing."""
    output:
        "results/{pair}/{model}/run.json",
    log:
        "results/logs/{pair}/describe_{model}.log",
    params:
        run=pretraining_run,
    shell:
        """
        printf '%s\\n' {params.run:q} >{output:q}
        """


rule train:
    """Train a backward model (T to S), or the language model of S. An interrupted run goes on from
    its checkpoint, which is not declared here because Snakemake would delete it."""
    input:
        run="results/{pair}/{model}/run.json",
        shards=pretraining_shards,
        vocabulary="results/{pair}/vocab/vocab.json",
        models=subword_model_files,
    output:
        weights="results/{pair}/{model}/model.safetensors",
        description="results/{pair}/{model}/model.json",
        metrics="results/{pair}/{model}/metrics.csv",
        record="results/{pair}/{model}/training.json",
    log:
        "results/logs/{pair}/train_{model}.log",
    benchmark:
        "results/benchmarks/{pair}/train_{model}.tsv"
    threads: 4
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


rule translate_backward:
    """Translate the test set from T to S with the backward model."""
    input:
        weights="results/{pair}/backward/model.safetensors",
        description="results/{pair}/backward/model.json",
        text="results/{pair}/corpus/test.target",
    output:
        "results/{pair}/backward/test.hyp",
    log:
        "results/logs/{pair}/translate_backward.log",
    benchmark:
        "results/benchmarks/{pair}/translate_backward.tsv"
    threads: 4
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
            --model results/{wildcards.pair}/backward \
            --input {input.text:q} \
            --output {output:q} \
            --beam {params.beam} \
            --length-penalty {params.length_penalty} \
            --threads {threads} \
            2>&1 | tee {log:q} >&2
        """


rule score_backward:
    """How good the backward model is: BLEU and chrF on the test set."""
    input:
        hypotheses="results/{pair}/backward/test.hyp",
        references="results/{pair}/corpus/test.source",
    output:
        "results/{pair}/backward/scores.json",
    log:
        "results/logs/{pair}/score_backward.log",
    resources:
        mem_mb=1000,
        runtime="10m",
    shell:
        """
        metabt score {input.hypotheses:q} {input.references:q} \
            --output {output:q} \
            2>&1 | tee {log:q} >&2
        """
