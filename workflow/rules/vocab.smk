"""From clean text to shards of token ids."""


localrules:
    vocabulary,


rule subwords:
    """Train one subword model on a seeded sample of the parallel text."""
    input:
        subword_texts,
    output:
        "results/{pair}/vocab/{model}.model",
    log:
        "results/logs/{pair}/subwords_{model}.log",
    benchmark:
        "results/benchmarks/{pair}/subwords_{model}.tsv"
    wildcard_constraints:
        model="joint|[a-z]{2,3}",
    priority: BEFORE_TRAINING
    threads: 4
    resources:
        # Measured: 7 KB a line of the sample.
        mem_mb=lambda w, attempt: attempt
        * (2000 + EXPERIMENT.setting(w.pair).subwords.sample * 8 // 1000),
        runtime=lambda w, attempt: 240 * attempt,
    params:
        kind=lambda w: EXPERIMENT.setting(w.pair).subwords.kind,
        size=lambda w: EXPERIMENT.setting(w.pair).subwords.size,
        algorithm=lambda w: EXPERIMENT.setting(w.pair).subwords.algorithm,
        coverage=lambda w: EXPERIMENT.setting(w.pair).subwords.character_coverage,
        sample=lambda w: EXPERIMENT.setting(w.pair).subwords.sample,
        seed=lambda w: EXPERIMENT.setting(w.pair).subwords.seed,
    shell:
        """
        metabt subwords {input:q} \
            --output {output:q} \
            --kind {params.kind} \
            --size {params.size} \
            --algorithm {params.algorithm} \
            --character-coverage {params.coverage} \
            --sample {params.sample} \
            --seed {params.seed} \
            2>&1 | tee {log:q} >&2
        """


rule vocabulary:
    """Unite the pieces of all subword models of a pair."""
    input:
        subword_model_files,
    output:
        "results/{pair}/vocab/vocab.json",
    log:
        "results/logs/{pair}/vocabulary.log",
    params:
        models=lambda w: [
            f"{language}=results/{w.pair}/vocab/{name}.model"
            for language, name in subword_models(w.pair).items()
        ],
    shell:
        """
        metabt vocabulary {params.models:q} \
            --output {output:q} \
            2>&1 | tee {log:q} >&2
        """


rule encode:
    """Encode a set into a shard; too long training sentences are left out in the same pass."""
    input:
        texts=corpus_texts,
        vocabulary="results/{pair}/vocab/vocab.json",
        models=subword_model_files,
    output:
        shard="results/{pair}/shards/{set}.shard",
        statistics="results/{pair}/shards/{set}.json",
    log:
        "results/logs/{pair}/encode_{set}.log",
    benchmark:
        "results/benchmarks/{pair}/encode_{set}.tsv"
    priority: BEFORE_TRAINING
    threads: lambda w: 1 if w.set in HELD_OUT_SETS else 8
    resources:
        mem_mb=lambda w, threads, attempt: attempt * (500 + 250 * threads),
        runtime=lambda w, attempt: 360 * attempt,
    params:
        languages=languages_of,
        # Dev and test sets are scored whole, however long their sentences.
        limit=lambda w: (
            ""
            if w.set in ("dev", "test")
            else f"--max-subwords {EXPERIMENT.setting(w.pair).max_subwords}"
        ),
    shell:
        """
        metabt encode {input.texts:q} \
            --languages {params.languages} \
            --vocabulary {input.vocabulary:q} \
            --output {output.shard:q} \
            {params.limit} \
            --threads {threads} \
            2>&1 | tee {log:q} >&2
        """
