# The experiment of "Meta Back-Translation", from the web to the report.
#
#   snakemake -n all                                               what would be done
#   snakemake --cores 4 results/en-de/shards/mono.shard            one target
#   snakemake --report report.html all                             after a run: the report
#   snakemake --directory runs/multi30k --configfile config/multi30k.yaml --cores 2 all   another one

# Snakemake merges a --configfile over this one, and another experiment would inherit the paper's
# pairs; so this one is loaded only where no other was given.
if not workflow.configfiles:

    configfile: f"{workflow.basedir}/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/cluster.smk"
include: "workflow/rules/runs.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/vocab.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/so_far.smk"


report: "workflow/report/workflow.rst"


# Data only: downloaded, cleaned, encoded, counted. Needs no GPU.
rule data:
    input:
        all_shards(),
        expand("results/tables/data.{format}", format=["tsv", "md", "html"]),


# Everything that the config describes.
rule all:
    default_target: True
    input:
        rules.data.input,
        expand("results/{pair}/backward/scores.json", pair=EXPERIMENT.pairs),
        expand("results/{pair}/contents.txt", pair=EXPERIMENT.pairs),
        all_tables(),
