"""What there is of an experiment that is not finished: a table, and a target for a report."""


localrules:
    so_far,
    table_so_far,


rule table_so_far:
    """BLEU of the seeds that are there. They are no inputs: whatever else is missing or out of date,
    nothing is made for this table but the table.
    """
    output:
        report(
            "results/tables/so-far.html",
            caption="../report/so_far.rst",
            category="0. So far",
            labels={"what": "BLEU so far"},
        ),
        expand("results/tables/so-far.{format}", format=["tsv", "md"]),
    log:
        "results/logs/table_so_far.log",
    params:
        scores=scores_so_far(),
        # A score that was made again makes the table out of date.
        times=[Path(path).stat().st_mtime_ns for path in scores_so_far()],
    shell:
        """
        metabt table so-far {params.scores:q} \
            --output results/tables/so-far \
            2>&1 | tee {log:q} >&2
        """


# For `snakemake --report so-far.html so_far`: the table, and the pairs that are finished.
rule so_far:
    input:
        "results/tables/so-far.html",
        finished_pairs(),
