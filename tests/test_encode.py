"""Samples, encoding of whole corpora, statistics and the command line around them."""

import json

import numpy as np
import pytest

from metabt.cli import main
from metabt.data.encode import encode_corpus, sample_lines
from metabt.data.grammar import Difficulty, Lexicon, Speaker, T
from metabt.data.shards import Shard
from metabt.data.statistics import pair_statistics, table_rows, write_table
from metabt.data.subwords import Subwords, train_sentencepiece, write_vocabulary
from metabt.errors import UserError


def texts(tmp_path, *contents):
    paths = [tmp_path / f"text{i}" for i in range(len(contents))]
    for path, lines in zip(paths, contents, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


def test_a_sample_is_drawn_evenly_without_replacement_and_by_seed(tmp_path):
    paths = texts(tmp_path, range(3000), range(3000, 4000))
    sample = [int(line) for line in sample_lines(paths, 1000, seed=1)]
    assert len(set(sample)) == 1000
    assert sample == sorted(sample)
    # 250 of 1,000 are expected from the second file; four standard deviations are 48.
    assert abs(sum(n >= 3000 for n in sample) - 250) < 48
    assert sample == [int(line) for line in sample_lines(paths, 1000, seed=1)]
    assert sample != [int(line) for line in sample_lines(paths, 1000, seed=2)]
    assert sample_lines(paths, 5000, seed=1) == [str(n) for n in range(4000)]


def test_a_sample_has_each_line_once(tmp_path):
    paths = texts(tmp_path, ["b", "a", "b"], ["a", "c"])
    assert sample_lines(paths, 100, seed=1) == ["b", "a", "c"]


def sentences(seed, count):
    speaker = Speaker(Lexicon(Difficulty(), seed), seed)
    return [speaker.say(speaker.sentence(), T) for _ in range(count)]


@pytest.fixture
def vocabulary(tmp_path):
    lines = sentences(3, 600)
    model, path = tmp_path / "joint.model", tmp_path / "vocab.json"
    train_sentencepiece(lines, model, size=200, model_type="unigram", character_coverage=1.0)
    write_vocabulary({T: model}, path)
    return path


def test_encoding_keeps_order_and_leaves_long_sentences_out(tmp_path, vocabulary):
    lines = sentences(4, 3000)
    (path,) = texts(tmp_path, lines)
    subwords = Subwords.load(vocabulary)
    lengths = [len(ids) for ids in subwords.encode(lines, T)]
    limit = int(np.median(lengths))
    counts = encode_corpus(vocabulary, [path], [T], tmp_path / "a.shard", limit, threads=2)
    shard = Shard.open(tmp_path / "a.shard")
    short = [line for line, length in zip(lines, lengths, strict=True) if length <= limit]
    assert [subwords.decode(shard.sentence(0, i)) for i in range(len(shard))] == short
    assert counts["kept"] == len(short)
    assert counts["dropped"]["too_long"] == 3000 - len(short)
    assert counts["tokens"] == {T: sum(n for n in lengths if n <= limit)}
    with pytest.raises(UserError, match="1 to 0 subwords"):
        encode_corpus(vocabulary, [path], [T], tmp_path / "b.shard", 0, threads=1)
    assert not (tmp_path / "b.shard").exists()


def test_a_shard_can_be_read_back_by_hand(tmp_path, vocabulary, capsys):
    (path,) = texts(tmp_path, ["the red house", "a dog"])
    shard = str(tmp_path / "a.shard")
    options = ["--vocabulary", str(vocabulary)]
    assert main(["encode", str(path), "--languages", T, "--output", shard, *options]) == 0
    assert main(["decode", shard, *options, "--count", "1"]) == 0
    assert capsys.readouterr().out.split("\n")[0].endswith("house")


def test_statistics_of_cleaning_and_encoding_are_joined(tmp_path):
    cleaned = {"read": 10, "dropped": {"empty": 1, "duplicate": 2}, "kept": 7, "datasets": []}
    encoded = {"read": 7, "dropped": {"too_long": 3}, "kept": 4, "tokens": {"de": 40}}
    (tmp_path / "c.json").write_text(json.dumps(cleaned))
    (tmp_path / "s.json").write_text(json.dumps(encoded))
    counts = pair_statistics({"mono": tmp_path / "c.json"}, {"mono": tmp_path / "s.json"})
    assert counts["mono"]["read"] == sum(counts["mono"]["dropped"].values()) + 4
    assert table_rows({"en-de": counts}, with_paper=False)[0]["paper_read"] == "-"
    rows = table_rows({"en-de": counts}, with_paper=True)
    assert rows[0]["paper_read"] == "250M"
    assert (rows[0]["clean"], rows[0]["too_long"], rows[0]["kept"]) == ("7", "3", "4")
    write_table(rows, tmp_path / "data")
    header, row = (tmp_path / "data.tsv").read_text().splitlines()
    assert dict(zip(header.split("\t"), row.split("\t"), strict=True)) == rows[0]
    markdown = (tmp_path / "data.md").read_text()
    assert "250M" in markdown
    assert "NUL" not in markdown  # nothing to tell of it


def test_errors_of_the_command_line(tmp_path, capsys):
    assert main(["config", "check", str(tmp_path / "none.yaml")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main(["vocabulary", "en:model", "--output", str(tmp_path / "v")]) == 1
    assert "expected LANGUAGE=MODEL" in capsys.readouterr().err
    assert main(["decode", str(tmp_path / "x"), "--vocabulary", str(tmp_path / "v")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("metabt: error: ")
    assert error.count("\n") == 1
    with pytest.raises(SystemExit) as stop:
        main(["clean", "a.json", "nonsense", "--output", "x"])
    assert stop.value.code == 2
