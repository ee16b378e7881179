"""From a dataset's name to clean text."""


localrules:
    synthesise,
    download,
    verify,
    describe_datasets,
    data_statistics,
    data_table,


rule synthesise:
    """Write the demo's invented languages."""
    output:
        texts=expand(
            "resources/synthetic/{set}.{language}",
            set=["train", "metadev", "dev", "test"],
            language=["qat", "qas"],
        ),
        mono="resources/synthetic/mono.qas",
        archive="resources/synthetic/talks.tar",
    log:
        "results/logs/synthesise.log",
    shell:
        """
        metabt synthesise \
            --output resources/synthetic \
            2>&1 | tee {log:q} >&2
        """


rule download:
    """Fetch one file: resumed, verified, atomic. A stopped download goes on in its .part file. It
    runs where Snakemake does: on many clusters only login nodes have the internet.
    """
    output:
        "resources/downloads/{download}",
    log:
        "results/logs/download/{download}.log",
    benchmark:
        "results/benchmarks/download/{download}.tsv"
    params:
        url=lambda w: RESOURCES[w.download][0].url,
        checksum=lambda w: RESOURCES[w.download][0].checksum or "",
    shell:
        """
        metabt download {params.url:q} \
            --to resources/downloads \
            $(test -z {params.checksum:q} || echo --checksum {params.checksum:q}) \
            2>&1 | tee {log:q} >&2
        """


rule verify:
    """Check a download that is there, whoever put it there; costs nothing if it is known."""
    input:
        "resources/downloads/{download}",
    output:
        touch("results/verified/{download}"),
    log:
        "results/logs/verify/{download}.log",
    params:
        url=lambda w: RESOURCES[w.download][0].url,
        checksum=lambda w: RESOURCES[w.download][0].checksum or "",
    shell:
        """
        metabt download {params.url:q} \
            --to resources/downloads \
            $(test -z {params.checksum:q} || echo --checksum {params.checksum:q}) \
            2>&1 | tee {log:q} >&2
        """


rule describe_datasets:
    """Write down what a pair's text is made of: an edit of the config that changes nothing here
    changes nothing downstream."""
    output:
        "results/{pair}/corpus/datasets.json",
    log:
        "results/logs/{pair}/describe_datasets.log",
    params:
        datasets=datasets_of,
    shell:
        """
        printf '%s\\n' {params.datasets:q} >{output:q}
        """


rule hold_out:
    """Write the test, dev and MetaDev sets, read strictly."""
    input:
        datasets="results/{pair}/corpus/datasets.json",
        files=lambda w: files_of(w.pair, HELD_OUT_SETS),
    output:
        expand(
            "results/{{pair}}/corpus/{set}.{part}",
            set=HELD_OUT_SETS,
            part=["source", "target", "json"],
        ),
    log:
        "results/logs/{pair}/hold_out.log",
    benchmark:
        "results/benchmarks/{pair}/hold_out.tsv"
    resources:
        mem_mb=lambda w, attempt: 1000 * attempt,
        runtime=lambda w, attempt: 30 * attempt,
    shell:
        """
        metabt hold-out {input.datasets:q} \
            --output results/{wildcards.pair}/corpus \
            2>&1 | tee {log:q} >&2
        """


rule clean_parallel:
    """Write a set of training pairs: valid, none twice, none that is held out."""
    input:
        **clean_input(None),
    output:
        source="results/{pair}/corpus/{set}.source",
        target="results/{pair}/corpus/{set}.target",
        statistics="results/{pair}/corpus/{set}.json",
    log:
        "results/logs/{pair}/clean_{set}.log",
    benchmark:
        "results/benchmarks/{pair}/clean_{set}.tsv"
    wildcard_constraints:
        set="parallel|related",
    priority: BEFORE_TRAINING
    threads: 2
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 240 * attempt,
    shell:
        """
        metabt clean {input.datasets:q} {wildcards.set} \
            --output results/{wildcards.pair}/corpus \
            --held-out {input.held_out:q} \
            --threads {threads} \
            --memory-mb $(({resources.mem_mb} * 3 / 4)) \
            2>&1 | tee {log:q} >&2
        """


rule clean_mono:
    """Write the monolingual sentences: valid, none twice, none that is held out."""
    input:
        **clean_input("mono"),
    output:
        target="results/{pair}/corpus/mono.target",
        statistics="results/{pair}/corpus/mono.json",
    log:
        "results/logs/{pair}/clean_mono.log",
    benchmark:
        "results/benchmarks/{pair}/clean_mono.tsv"
    priority: BEFORE_TRAINING
    threads: 2
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 240 * attempt,
    shell:
        """
        metabt clean {input.datasets:q} mono \
            --output results/{wildcards.pair}/corpus \
            --held-out {input.held_out:q} \
            --threads {threads} \
            --memory-mb $(({resources.mem_mb} * 3 / 4)) \
            2>&1 | tee {log:q} >&2
        """


rule data_statistics:
    """Join what cleaning and the subword filter counted."""
    input:
        corpus=lambda w: expand(
            "results/{pair}/corpus/{set}.json", pair=w.pair, set=sets_of(w.pair)
        ),
        shards=lambda w: expand(
            "results/{pair}/shards/{set}.json", pair=w.pair, set=sets_of(w.pair)
        ),
    output:
        "results/{pair}/corpus/stats.json",
    log:
        "results/logs/{pair}/data_statistics.log",
    shell:
        """
        metabt statistics \
            --corpus {input.corpus:q} \
            --shards {input.shards:q} \
            --output {output:q} \
            2>&1 | tee {log:q} >&2
        """


rule data_table:
    """All pairs' data beside the paper's figures."""
    input:
        expand("results/{pair}/corpus/stats.json", pair=EXPERIMENT.pairs),
    output:
        report(
            "results/tables/data.html",
            caption="../report/data.rst",
            category="3. Data and cost",
            labels={"what": "Sentences of each set"},
        ),
        expand("results/tables/data.{format}", format=["tsv", "md"]),
    log:
        "results/logs/data_table.log",
    params:
        paper="--paper" if EXPERIMENT.name == PAPER else "",
    shell:
        """
        metabt data-table {input:q} \
            --output results/tables/data \
            {params.paper} \
            2>&1 | tee {log:q} >&2
        """
