"""Training of every model: results/{pair}/{model}, where a model is the backward one, the initial
forward one, the language model lm, or a method's forward model such as metabt/seed1."""


localrules:
    describe_run,


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
    priority: priority_to_train
    threads: threads_to_train
    resources:
        mem_mb=lambda w, attempt: 8000 * attempt,
        runtime="1d",  # does not grow: what is not done by then goes on in the next job
        gpu=1,
    shell:
        """
        trap : TERM USR1 # the trainer gets them, too, and saves: this shell waits for it
        metabt train {input.run:q} \
            --output results/{wildcards.pair}/{wildcards.model} \
            --threads {threads} \
            --processes {resources.gpu} \
            2>&1 | keep_log {log:q} >&2 || again $? >&2
        """
