"""The experiment's file: what the paper states is in it, and every fault is told at once."""

import json
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from metabt import config
from metabt.config_file import read_yaml
from metabt.data import subwords
from metabt.errors import UserError
from metabt.experiment import load, parse
from metabt.methods import METHODS

ROOT = Path(__file__).parents[1]
FILES = sorted([ROOT / "config.yaml", *(ROOT / "config").glob("*.yaml")])


def test_config_yaml_is_the_paper_s_experiment():
    paper = load(ROOT / "config.yaml")
    assert list(paper.pairs) == ["en-de", "en-fr", "az-en", "be-en", "gl-en", "sk-en"]
    related = {name: pair.related for name, pair in paper.pairs.items() if pair.related}
    assert related == {"az-en": "tr", "be-en": "ru", "gl-en": "pt", "sk-en": "cs"}
    standard, multilingual = paper.settings["standard"], paper.settings["multilingual"]
    for setting in (standard, multilingual):
        assert setting.methods == ["nobt", "mle", "dualnmt", "metabt"]
    assert (len(standard.seeds), len(multilingual.seeds)) == (1, 4)
    assert (standard.subwords.sharing, standard.subwords.size) == ("joint", 32_000)
    assert (multilingual.subwords.sharing, multilingual.subwords.size) == ("separate", 8_000)
    assert standard.max_subwords == 200
    base, small = standard.transformer, multilingual.transformer
    assert (base.layers, base.width, base.feed_forward, base.heads) == (6, 512, 2048, 8)
    assert (small.layers, small.width, small.feed_forward, small.heads) == (6, 512, 1024, 4)
    assert (standard.sampling.top_k, multilingual.sampling.top_k) == (None, 10)
    assert standard.forward.steps == 200_000
    metabt = paper.methods["metabt"]
    assert isinstance(metabt, METHODS["metabt"].Options)
    batches = (standard.forward.batch, standard.pseudo_batch, standard.metadev_batch)
    assert [batch.sentences for batch in batches] == [2048, 1024, 512]
    assert metabt.baseline
    german = paper.pairs["en-de"]
    assert [d.sacrebleu for d in german.metadev] == ["wmt10", "wmt11", "wmt12"]
    assert [d.sacrebleu for d in german.dev + german.test] == ["wmt13", "wmt14/full"]


def test_the_config_knows_the_limits_of_vocabularies():
    assert config.MAX_VOCABULARY == subwords.MAX_VOCABULARY == np.iinfo(np.uint16).max
    assert len(subwords.SPECIALS) == config.SPECIAL_TOKENS


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_shipped_configs_are_valid_also_for_editors(path):
    load(path)
    schema = json.loads((ROOT / "config" / "schema.json").read_text())
    jsonschema.validate(read_yaml(path), schema)
    wrong = read_yaml(path)
    wrong["evaluation"]["bean"] = 4
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def values():
    return deepcopy(read_yaml(ROOT / "config.yaml"))


def set_at(tree, path, value):
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


FAULTS = [
    (["pairs", "en-de", "dev"], [{"sacrebleu": "wmt14/full"}], "dev and test share text"),
    (["pairs", "en-de", "metadev"], [{"sacrebleu": "wmt13"}], "metadev and dev share text"),
    (["pairs", "gl-en", "parallel"], [{"ted": "train"}], "metadev and parallel share text"),
    (["pairs", "gl-en", "parallel"], [{"ted": "train", "lines": "900-"}], "share text"),
    (["pairs", "gl-en", "parallel"], [{"ted": "train", "lines": "2-9 of 10"}], "share text"),
    (["pairs", "gl-en", "parallel"], [{"ted": "train", "lines": "2-11 of 10"}], "no 11 in 10"),
    (["pairs", "en-de", "related"], "nl", "standard setting has no related language"),
    (["pairs", "az-en", "related"], None, "multilingual setting needs related"),
    (["pairs", "az-en", "related"], "az", "must differ"),
    (["pairs", "az-en", "source"], "de", "this pair's name is 'de-en'"),
    (["pairs", "az-en", "setting"], "std", "pairs.az-en.setting"),
    (["pairs", "az-en", "parallel"], [], "pairs.az-en.parallel"),
    (["pairs", "az-en", "parallel", 0, "lines"], "9-3", "is empty"),
    (["pairs", "az-en", "parallel", 0, "lines"], "all", "pairs.az-en.parallel[0].lines"),
    (["pairs", "en-de", "parallel", 0, "url"], "http://x/y", "exactly one of"),
    (["pairs", "en-de", "parallel", 2, "url"], "ftp://x/y", "not an http(s) address"),
    (["pairs", "en-de", "parallel", 0, "member"], "x", "`member` goes with url or file"),
    (["settings", "standard", "methods"], ["mle", "metabbt"], "no method 'metabbt'"),
    (["settings", "standard", "methods"], ["mle", "mle"], "twice"),
    (["settings", "standard", "subwords", "size"], 65_536, "65,535"),
    (["settings", "multilingual", "subwords", "size"], 22_000, "65,535"),
    (["settings", "standard", "transformer", "heads"], 7, "multiple of twice"),
    (["settings", "standard", "transformer", "headss"], 8, "transformer.headss: unknown key"),
    (["settings", "standard", "forward", "steps"], "many", "forward.steps"),
    (["settings", "standard", "forward", "batch"], {}, "sentences or by tokens"),
    (["settings", "standard", "pseudo_batch"], {"sentences": 2048}, "no room for parallel"),
    (["settings", "standard", "seeds"], [True, 2], "settings.standard.seeds[0]"),
    (["settings", "standard", "forward", "steps"], "5000", "settings.standard.forward.steps"),
    (["pairs", "en-de", "dev"], [{"file": "x.{lang}", "sha256": "0" * 64}], "goes with url"),
    (["settings", "standard", "forward", "optimiser", "warmup"], 0, "needs a warmup"),
    (["methods", "metabt", "algorithm"], "magic", "methods.metabt"),
    (["methods", "mle", "generation"], "greedy", "methods.mle.generation"),
    (["methods", "metabt", "alpha"], 0.1, "methods.metabt.alpha: unknown key"),
    (["evaluation", "beam"], 0, "evaluation.beam"),
    (["nam"], "x", "nam: unknown key"),
]


@pytest.mark.parametrize(("path", "value", "message"), FAULTS, ids=lambda v: str(v)[:40])
def test_a_fault_is_named_with_its_path(path, value, message):
    tree = values()
    set_at(tree, path, value)
    with pytest.raises(UserError) as error:
        parse(tree, ROOT / "config.yaml")
    assert message in str(error.value)
    assert "1 error\n" in str(error.value) or len(path) < 4


def test_all_faults_are_told_at_once(tmp_path):
    text = (ROOT / "config.yaml").read_text()
    edits = {
        "width: 512\n      feed_forward: 2048": "width: wide\n      feed_forward: 2048",
        "  beam: 4": "  beem: 4",
        "metabt] # [paper]\n    seeds: [1] ": "metabt, foo] # [paper]\n    seeds: [1] ",
        "related: tr": "related: en",
    }
    for old, new in edits.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load(path)
    message = str(error.value)
    lines = text.split("\n")
    for keys, token in [
        ("settings.standard.transformer.width", "width: wide"),
        ("evaluation.beem: unknown key", "beem: 4"),
        ("evaluation.beam: this key is missing", "evaluation:"),
        ("pairs.az-en", "az-en:"),
    ]:
        number = next(i for i, line in enumerate(lines, 1) if token in line)
        assert f"line {number}: {keys}" in message
    assert "4 errors" in message


def test_files_that_are_no_config(tmp_path):
    path = tmp_path / "c.yaml"
    for text, message in [
        ("a: [1", "not valid YAML"),
        ("pairs: {}\npairs: {}\n", "line 2: the key 'pairs' stands twice"),
        ("- 1\n- 2\n", "valid dictionary"),
        ("", "valid dictionary"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            load(path)
    path.write_bytes(b"name: \xff\xfe\n")
    with pytest.raises(UserError, match="cannot be read"):
        load(path)
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "none.yaml")


def snakemake(*arguments, directory=ROOT):
    command = [sys.executable, "-m", "snakemake", "--directory", str(directory), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_a_mistyped_target_says_what_there_is(tmp_path):
    for target, message in [
        ("results/en-xx/metabt.bleu", "there is no pair 'en-xx'. Pairs: en-de, en-fr, az-en"),
        ("results/en-de/metabtt.bleu", "no method 'metabtt' for en-de. Methods: nobt, mle, dual"),
    ]:
        done = snakemake("-n", target, directory=tmp_path)
        assert done.returncode != 0
        assert message in done.stdout + done.stderr


def test_dry_run_plans_the_whole_experiment(tmp_path):
    done = snakemake("-n", "all", "--quiet", "rules", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = snakemake("-n", "all", directory=tmp_path).stdout
    for pair in load(ROOT / "config.yaml").pairs:
        assert f"results/{pair}/shards/mono.shard" in plan


def test_another_config_inherits_nothing(tmp_path):
    arguments = ["--configfile", str(ROOT / "config" / "multi30k.yaml"), "-n", "all"]
    done = snakemake(*arguments, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "results/en-de/" in done.stdout
    assert "results/en-fr/" not in done.stdout
    assert "statmt" not in done.stdout


def test_a_wrong_config_stops_the_workflow_with_all_its_faults(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text((ROOT / "config" / "multi30k.yaml").read_text().replace("beam: 4", "bean: 4"))
    done = snakemake("--configfile", str(path), "-n", "all", directory=tmp_path)
    assert done.returncode != 0
    output = done.stdout + done.stderr
    assert "evaluation.bean: unknown key" in output
    assert "evaluation.beam: this key is missing" in output
    assert "Traceback" not in output
