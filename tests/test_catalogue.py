"""From a dataset's name to its files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from metabt.config import Dataset
from metabt.data.catalogue import File, Source, locate, resources
from metabt.errors import UserError
from metabt.experiment import load

ROOT = Path(__file__).parents[1]
TED = "http://phontron.com/data/ted_talks.tar.gz"


def test_the_paper_s_archives_are_all_listed_once():
    found = resources(load(ROOT / "config.yaml"))
    assert len(found) == 33
    sizes = {path: item.size for path, (item, _) in found.items()}
    assert sizes["www.statmt.org/wmt13/training-parallel-europarl-v7.tgz"] == 657632379
    assert sizes["www.statmt.org/wmt10/training-giga-fren.tar"] == 2595102720
    assert sum("news-crawl/de" in path for path in found) == 11
    assert sum("news-crawl/fr" in path for path in found) == 11
    assert found["phontron.com/data/ted_talks.tar.gz"][1] == ["az-en", "be-en", "gl-en", "sk-en"]
    unknown = {path for path, (item, _) in found.items() if item.checksum is None}
    assert all("news-crawl/fr" in path for path in unknown)


def test_every_kind_of_name():
    file = locate(
        Dataset(mtdata="Statmt-commoncrawl_wmt13-1-deu-eng"), ["en", "de"], TED
    ).source.files
    # The entry is German first; the sides are ours.
    assert [f.member for f in file] == ["commoncrawl.de-en.en", "commoncrawl.de-en.de"]
    mono = locate(Dataset(mtdata="Statmt-news_crawl-2007-deu"), ["de"], TED)
    assert mono.resources[0].checksum == "sha1:9d746b9df345f764e6e615119113c70e3fb0858c"
    test = locate(Dataset(sacrebleu="wmt14/full"), ["en", "de"], TED)
    assert test.source.format == "sgm"
    assert test.resources[0].checksum == "md5:a8cd784e006feb32ac6f3d9ec7eb389a"
    assert test.source.files[1].member == "test-full/newstest2014-deen-ref.de.sgm"
    ted = locate(Dataset(ted="train", aligned_with="tr"), ["en"], "some/archive.tar.gz")
    assert ted.resources == ()
    assert ted.source.files == (File("some/archive.tar.gz", "all_talks_train.tsv"),)
    assert (ted.source.languages, ted.source.required) == (("en",), ("tr",))
    url = locate(
        Dataset(url="https://h.org/a.tgz", member="x/y.{lang}", lines="11-20"), ["en", "de"], TED
    )
    assert [r.url for r in url.resources] == ["https://h.org/a.tgz"]
    assert [f.member for f in url.source.files] == ["x/y.en", "x/y.de"]
    assert (url.source.first, url.source.end) == (10, 20)
    tsv = Dataset(file="a.tsv", format="tsv", columns=[3, 1])
    assert locate(tsv, ["en", "de"], TED).source.columns == (3, 1)


def test_sources_survive_json():
    for pair in load(ROOT / "config.yaml").pairs.values():
        for role, datasets in pair.roles().items():
            for dataset in datasets:
                source = locate(dataset, pair.sides(role), TED).source
                assert Source.from_json(json.loads(json.dumps(source.to_json()))) == source


@pytest.mark.parametrize(
    ("dataset", "sides", "message"),
    [
        (Dataset(sacrebleu="wmt99"), ["en", "de"], "no test set 'wmt99'"),
        (Dataset(sacrebleu="wmt13"), ["en", "az"], "no pair en-az"),
        (Dataset(sacrebleu="wmt13"), ["de"], "no pair de"),
        (Dataset(mtdata="Statmt-commoncrawl_wmt13-1-deu-eng"), ["en", "fr"], "is not in"),
        (Dataset(url="http://h.org/a.gz"), ["en", "de"], "the same file for en and de"),
        (
            Dataset(url="http://h.org/{lang}.gz", sha256={"en": "0" * 64, "fr": "0" * 64}),
            ["en", "de"],
            "sha256 must be given for en and de",
        ),
        (Dataset(file="a", format="tsv", columns=[1]), ["en", "de"], "must be 2 numbers"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_names_that_mean_nothing(dataset, sides, message):
    with pytest.raises(UserError, match=message):
        locate(dataset, sides, TED)


def test_the_table_s_entries_are_mtdata_s_own(tmp_path):
    """Against the real index, in a process of its own: mtdata takes hold of logging."""
    script = (
        "import json, sys; from metabt.data.catalogue import look_up_mtdata\n"
        "print(json.dumps({n: look_up_mtdata(n) for n in sys.argv[1:]}))\n"
        "from metabt.config import Dataset; from metabt.data.catalogue import locate\n"
        "ted = locate(Dataset(mtdata=sys.argv[-1]), ['az', 'en'], '')\n"
        "print(json.dumps(ted.source.to_json()))"
    )
    table = yaml.safe_load((ROOT / "resources" / "datasets.yaml").read_text())["mtdata"]
    extra = ["OPUS-giga_fren-v2-eng-fra", "Neulab-tedtalks_train-1-eng-aze"]
    done = subprocess.run(
        [sys.executable, "-c", script, *table, *extra],
        env={**os.environ, "MTDATA": str(tmp_path / "mtdata")},
        capture_output=True,
        text=True,
        check=True,
    )
    index, ted = map(json.loads, done.stdout.splitlines())
    assert (ted["format"], ted["languages"]) == ("ted", ["az", "en"])
    assert ted["files"][0]["member"] == "all_talks_train.tsv"
    codes = {"de": "deu", "fr": "fra", "en": "eng"}
    for name, entry in table.items():
        expected = {**entry, "languages": [codes[code] for code in entry["languages"]]}
        assert index[name] == expected
    assert index["OPUS-giga_fren-v2-eng-fra"]["members"] == ["*.en", "*.fr"]
    assert index["Neulab-tedtalks_train-1-eng-aze"]["format"] == "ted"
