"""The data side end to end: invented text, and real text where a mirror of it is at hand."""

import gzip
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import report
import yaml

from metabt.data.batches import BatchStream, Corpus
from metabt.data.shards import Shard
from metabt.data.subwords import UNK, Subwords
from metabt.tables import read_tsv

ROOT = Path(__file__).parents[1]
MIRROR = ROOT.parent / "shared" / "mirror"
TED_MINI = MIRROR / "phontron.com" / "data" / "ted_talks_mini.tar.gz"
needs_mirror = pytest.mark.skipif(
    not MIRROR.is_dir(), reason="needs a mirror of Multi30k and TED beside the repository"
)


def run_snakemake(*arguments):
    environment = {**os.environ, "METABT_MIRROR": str(MIRROR), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def snakemake(directory, config, *arguments, cores=2, fails=False):
    options = ["--directory", directory, "--configfile", ROOT / "config" / config]
    code, output = run_snakemake(*options, "--cores", cores, *arguments)
    assert bool(code) == fails, output[-3000:]
    return output


def produced(directory):
    """Every result that is not a log or a measurement of time."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted((directory / "results").rglob("*"))
        if path.is_file() and not {"logs", "benchmarks"} & set(path.parts)
    }


def lines(path):
    return Path(path).read_text(encoding="utf-8").split("\n")[:-1]


def check_pair(results, pair, sets):
    """What must hold of any pair's data."""
    corpus = results / pair / "corpus"
    held_out = {
        name: {s for side in ("source", "target") for s in lines(corpus / f"{name}.{side}")}
        for name in ("test", "dev", "metadev")
    }
    assert not held_out["metadev"] & (held_out["test"] | held_out["dev"])
    subwords = Subwords.load(results / pair / "vocab" / "vocab.json")
    statistics = json.loads((corpus / "stats.json").read_text())
    assert set(statistics) == set(sets)
    for name, counts in statistics.items():
        assert counts["read"] == sum(counts["dropped"].values()) + counts["kept"]
        sides = ["target"] if name == "mono" else ["source", "target"]
        texts = [lines(corpus / f"{name}.{side}") for side in sides]
        assert {len(text) for text in texts} == {counts["clean"]}
        if name not in held_out:
            together = list(zip(*texts, strict=True))
            assert len(set(together)) == len(together)
            everything = set().union(*texts)
            assert all(everything.isdisjoint(sentences) for sentences in held_out.values())
        shard = Shard.open(results / pair / "shards" / f"{name}.shard")
        assert len(shard) == counts["kept"]
        check_shard(shard, texts, subwords)


def check_shard(shard, texts, subwords):
    """Ids say what the text says; batches can be drawn."""
    if len(shard) == len(texts[0]):
        for index in range(0, len(shard), max(1, len(shard) // 200)):
            for side, language in enumerate(shard.sides):
                ids = shard.sentence(side, index)
                if UNK not in ids:  # a character that training never saw
                    expected = subwords.normalise(texts[side][index], language)
                    assert subwords.decode(ids) == expected
    batch = next(BatchStream(Corpus([shard]), seed=1, sentences=64))
    assert len(batch) == 64
    assert max(int(ids.max()) for side in batch.sides for ids in side) < subwords.size


def test_demo_data_from_nothing_twice_the_same(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    snakemake(one, "demo.yaml", "data", cores=2)
    snakemake(two, "demo.yaml", "data", cores=1)
    first, second = produced(one), produced(two)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    check_pair(one / "results", "qat-qas", ["test", "dev", "metadev", "parallel", "mono"])
    multilingual = ["test", "dev", "metadev", "parallel", "related", "mono"]
    check_pair(one / "results", "qas-qat", multilingual)
    assert "Nothing to be done" in snakemake(one, "demo.yaml", "data")
    check_what_a_config_edit_reruns(one, tmp_path)
    check_models(one, tmp_path)


def shortened(path):
    """The demo with one seed and few steps; 50 make the first row of a forward model's metrics.
    With a short warm-up they are enough for methods to differ in what they say."""
    config = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())
    for setting in config["settings"].values():
        setting["seeds"] = [1]
        model = setting["language_model"]["training"]
        optimiser = setting["forward"]["optimiser"] | {"warmup": 10}
        setting["forward"] |= {"steps": 50, "validate_every": 25, "optimiser": optimiser}
        for training in (setting["backward"], model):
            training |= {"steps": 20, "validate_every": 10}
    config["methods"]["metabt"]["start"] = 10
    path.write_text(yaml.safe_dump(config))
    return path


def check_models(directory, tmp_path):
    """Every model, trained briefly through the rules, and every method's score."""
    short = shortened(tmp_path / "short.yaml")
    snakemake(directory, short, "all")
    for pair, languages in (("qat-qas", ["qas", "qat"]), ("qas-qat", ["qat", "qas"])):
        results = directory / "results" / pair
        described = json.loads((results / "backward" / "model.json").read_text())
        assert (described["kind"], described["languages"]) == ("translation", languages)
        described = json.loads((results / "lm" / "model.json").read_text())
        assert (described["kind"], described["languages"]) == ("language-model", languages[1:])
        run = json.loads((results / "backward" / "run.json").read_text())
        assert run["sides"] == [1, 0]
        assert len(run["train"]) == (1 if pair == "qat-qas" else 2)
        for model in ("backward", "lm"):
            record = json.loads((results / model / "training.json").read_text())
            assert (record["status"], record["steps"]) == ("finished", 20)
        scores = json.loads((results / "backward" / "scores.json").read_text())
        assert scores["sentences"] == len(lines(results / "corpus" / "test.target"))
        assert 0 <= scores["bleu"]["score"] <= 100
        assert scores["bleu"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
        for method in ("nobt", "mle", "dualnmt", "metabt"):
            check_method(results, method)
        check_analyses(directory / "results", pair)
    check_tables(directory)
    check_report(directory, short)
    assert "Nothing to be done" in snakemake(directory, short, "all")
    # The language models' layers: these models and what begins with them, and no other.
    edited = tmp_path / "rate.yaml"
    edited.write_text(short.read_text().replace("layers: 1", "layers: 2"))
    plan = snakemake(directory, edited, "-n", "all", "--quiet", "progress")
    made = [line for line in plan.split("\n") if line.strip().startswith("output:")]
    weights = [line.split()[1].rstrip(",") for line in made if "model.safetensors" in line]
    pairs = ("qat-qas", "qas-qat")
    again = [f"results/{p}/{m}/model.safetensors" for p in pairs for m in ("lm", "dualnmt/seed1")]
    assert sorted(weights) == sorted(again)
    edited.write_text(short.read_text() + "# a comment\n")
    assert "Nothing to be done" in snakemake(directory, edited, "-n", "all")


def check_analyses(results, pair):
    """What there is to be about a pair, and nothing empty."""
    listed = lines(results / pair / "contents.txt")
    for path in listed:
        assert (results.parent / path).stat().st_size > 0, path
    figures = {Path(path).stem for path in listed if path.endswith(".svg")}
    expected = {"learning", "validation", "probability", "pseudo", "lengths"}
    expected |= {"rewards-metabt", "rewards-dualnmt"}
    assert figures == expected | ({"vocabulary", "frequency"} if pair == "qas-qat" else set())
    for name in figures:
        assert len(lines(results / "figures" / pair / f"{name}.tsv")) > 1
    tests = read_tsv(results / pair / "significance.tsv")
    assert len(tests) == 6
    assert all(0 < float(row["p"]) <= float(row["p_holm"]) <= 1 for row in tests)
    assert len(read_tsv(results / pair / "bootstrap.tsv")) == 4
    shares = [float(row["mean"]) for row in read_tsv(results / "figures/qas-qat/vocabulary.tsv")]
    assert all(0 <= share <= 100 for share in shares)
    assert max(shares) > 0


def check_tables(directory):
    """Every number of the table of results stands in the file that it names."""
    rows = read_tsv(directory / "results" / "tables" / "results.tsv")
    assert len(rows) == 8
    for row in rows:
        found = yaml.safe_load((directory / row["file"]).read_text())
        assert float(row["bleu"]) == found["bleu"]["mean"]
    costs = read_tsv(directory / "results" / "tables" / "cost.tsv")
    assert len(costs) == 2 * (2 + 4)
    for row in costs:
        cost = json.loads((directory / row["file"]).read_text())
        assert float(row["hours"]) == pytest.approx(cost["seconds"] / 3600, rel=1e-4)
        steps = "20" if row["model"] in ("backward", "lm") else "50"
        assert (row["steps"], row["device"]) == (steps, "cpu")
    assert not (directory / "results" / "tables" / "paper.html").exists()  # none of its pairs


def check_report(directory, config):
    """The report of everything, and of one pair, looked at in a browser."""
    snakemake(directory, config, "--report", "report.html", "--", "all")
    one_pair = "results/qas-qat/contents.txt"
    snakemake(directory, config, "--report", "one-pair.html", "--", one_pair)
    if not report.AVAILABLE:
        return
    with report.browser() as driver:
        whole = report.Report(driver, directory / "report.html")
        whole.open()
        assert "qas-qat (multilingual, with the related qar)" in " ".join(whole.text().split())
        assert "SentencePiece subwords" in whole.text()
        whole.open("1. Results")
        assert whole.items() == ["Table 1: BLEU of each method"]
        table = whole.view("Table 1")
        bleu = yaml.safe_load((directory / "results/qas-qat/metabt.bleu").read_text())["bleu"]
        assert f"{bleu['mean']:.2f}" in next(r for r in table.split("\n") if r.startswith("MetaBT"))
        whole.open("3. Data and cost")
        assert "metabt/seed1" in whole.view("Cost of training")
        whole.open("2. Analyses", "qas-qat")
        seen = {item: whole.view(item) for item in whole.items()}
        assert len(seen) == 18
        assert sum(text == "image" for text in seen.values()) == 9
        assert "Examples for Bucket" in seen["compare-mt: MetaBT and MLE"]
        # After so few steps MetaBT and MLE may say the same.
        assert "reference" in seen["Table 2: MetaBT and No BT"]
        partial = report.Report(driver, directory / "one-pair.html")
        partial.open("Results")  # a single category has no name of its own
        assert partial.items() == list(seen)
        assert not [c for c in whole.complaints() if "ERR_" in c or "Uncaught" in c]


def check_method(results, method):
    """What a method leaves: its score, and the record of its training."""
    summary = yaml.safe_load((results / f"{method}.bleu").read_text())
    seed = results / method / "seed1"
    scores = json.loads((seed / "scores.json").read_text())
    assert summary["bleu"] == {"mean": round(scores["bleu"]["score"], 2), "deviation": None}
    assert summary["runs"]["seed1"]["status"] == "finished"
    assert summary["bleu_signature"] == scores["bleu"]["signature"]
    run = json.loads((seed / "run.json").read_text())
    multilingual = results.name == "qas-qat"
    assert ("related" in run["sets"]) == (multilingual and method == "nobt")
    assert ("lm" in run and run["lm"] is not None) == (method == "dualnmt")
    assert run["low_resource"] == multilingual
    header = (seed / "metrics.csv").read_text().split("\n")[0].split(",")
    assert ("pseudo_known_share" in header) == (method != "nobt")
    assert ("alignment" in header) == (method == "metabt")
    examples = lines(seed / "examples.tsv")
    assert len(examples) == (1 if method == "nobt" else 1 + 2 * 3)


def check_what_a_config_edit_reruns(directory, tmp_path):
    """A comment reruns nothing; a subword size reruns that setting's vocabulary and shards."""
    text = (ROOT / "config" / "demo.yaml").read_text()
    edited = tmp_path / "edited.yaml"
    edited.write_text(text + "# one more comment\n")
    assert "Nothing to be done" in snakemake(directory, edited, "-n", "data")
    edited.write_text(text.replace("size: 450", "size: 400"))
    plan = snakemake(directory, edited, "-n", "data", "--quiet", "progress")
    assert "rule subwords" in plan
    assert "results/qas-qat/vocab" not in plan
    assert "rule clean_" not in plan


def test_the_readme_s_commands_are_commands(tmp_path):
    archive = tmp_path / "talks.tar.gz"
    archive.touch()
    text = (ROOT / "README.md").read_text().replace("/data/talks.tar.gz", str(archive))
    lines = [line for line in text.split("\n") if line.startswith(".venv/bin/snakemake")]
    assert len(lines) >= 6
    for number, line in enumerate(lines):
        if "--report" in line:  # needs a finished run: see check_report
            continue
        words = shlex.split(line, comments=True)[1:]
        if "--directory" in words:
            words[words.index("--directory") + 1] = str(tmp_path / str(number))
        else:
            words = ["--directory", str(tmp_path / "paper"), *words]
        code, output = run_snakemake("-n", *words)
        assert code == 0, f"{line}\n{output[-2000:]}"
        assert "This was a dry-run" in output


def test_methods_go_on_from_the_initial_model_of_their_pair(tmp_path):
    described = [
        f"results/az-en/{model}/run.json" for model in ("initial", "backward", "nobt/seed2")
    ]
    snakemake(tmp_path, "ted-small.yaml", *described)
    initial, backward, nobt = (json.loads((tmp_path / path).read_text()) for path in described)
    assert nobt["initial"] == "results/az-en/initial"
    assert (initial["languages"], initial["sides"]) == (["az", "en"], [0, 1])
    assert (backward["languages"], backward["sides"]) == (["en", "az"], [1, 0])
    assert (
        initial["train"]
        == backward["train"]
        == [f"results/az-en/shards/{name}.shard" for name in ("parallel", "related")]
    )
    plan = snakemake(tmp_path, "ted-small.yaml", "-n", "results/az-en/nobt/seed2/model.safetensors")
    assert "results/az-en/initial/model.safetensors" in plan
    assert "results/az-en/backward/model.safetensors" not in plan


def test_one_experiment_is_not_written_over_another(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "experiment.txt").write_text("Something else\n")
    output = snakemake(tmp_path, "demo.yaml", "-n", "all", fails=True)
    assert "results of 'Something else', not of 'Demo on invented languages'" in output
    assert "Traceback" not in output


@needs_mirror
def test_a_wrong_file_put_there_by_hand_is_refused(tmp_path):
    place = tmp_path / "resources" / "downloads" / "raw.githubusercontent.com" / "multi30k"
    place /= "dataset/master/data/task1/raw/val.en.gz"
    place.parent.mkdir(parents=True)
    place.write_bytes(gzip.compress(b"Something else.\n" * 1014))
    output = snakemake(tmp_path, "multi30k.yaml", "results/en-de/corpus/dev.source", fails=True)
    assert f"{place.relative_to(tmp_path)}: has sha256:" in output
    assert place.exists()
    assert not (tmp_path / "results" / "en-de" / "corpus" / "dev.source").exists()


@needs_mirror
def test_multi30k_from_its_addresses_to_shards(tmp_path):
    snakemake(tmp_path, "multi30k.yaml", "data")
    results = tmp_path / "results"
    check_pair(results, "en-de", ["test", "dev", "metadev", "parallel", "mono"])
    statistics = json.loads((results / "en-de" / "corpus" / "stats.json").read_text())
    read = {name: counts["read"] for name, counts in statistics.items()}
    assert read == {
        "test": 1000,
        "dev": 1014,
        "metadev": 1000,
        "parallel": 5000,
        "mono": 5 * 29_000 + 23_000,
    }
    assert (tmp_path / "resources" / "downloads" / "raw.githubusercontent.com").is_dir()
    # Another number of threads, the same bytes.
    before = produced(tmp_path)
    snakemake(tmp_path, "multi30k.yaml", "data", "--forceall", cores=1)
    assert produced(tmp_path) == before


@needs_mirror
def test_ted_layout_archive_to_shards(tmp_path):
    snakemake(tmp_path, "ted-small.yaml", "--config", f"ted_archive={TED_MINI}", "--", "data")
    results = tmp_path / "results"
    for pair, train, dev, test in (("az-en", 5946, 671, 903), ("gl-en", 10_017, 682, 1007)):
        sets = ["test", "dev", "metadev", "parallel", "related", "mono"]
        check_pair(results, pair, sets)
        statistics = json.loads((results / pair / "corpus" / "stats.json").read_text())
        read = {name: counts["read"] for name, counts in statistics.items()}
        assert read["parallel"] + read["metadev"] == train
        assert (read["dev"], read["test"]) == (dev, test)
        # One id space: az and tr (gl and pt) share pieces, English has its own model.
        shards = {name: Shard.open(results / pair / "shards" / f"{name}.shard") for name in sets}
        used = [set(np.unique(shards[name].ids[0]).tolist()) for name in ("parallel", "related")]
        assert len(used[0] & used[1]) > 200
        assert shards["parallel"].header["vocabulary"] == shards["mono"].header["vocabulary"]
        Corpus([shards["parallel"], shards["related"]])
