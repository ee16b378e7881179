"""Figures, tables and comparisons, against slow computations and on hostile input."""

import csv
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from metabt.analysis.compare import compare_page
from metabt.analysis.curves import curve, interval, share_in_bins
from metabt.analysis.examples import write_differing, write_pseudo
from metabt.analysis.figures import draw
from metabt.analysis.results import cost_row, write_beside_paper, write_results
from metabt.analysis.significance import write_significance
from metabt.analysis.translations import (
    LENGTH_LIMITS,
    count_words,
    first_common_run,
    length_differences,
    word_f1,
)
from metabt.cli import main
from metabt.errors import UserError
from metabt.tables import read_tsv, write_readable, write_tsv

REFERENCES = [f"the cat number {i} sat on a mat , happy ." for i in range(12)]
METHODS = {
    "nobt": "the cat sat .",
    "mle": "a cat sat on a mat",
    "metabt": "the cat number {i} sat on a",
}


def make_run(folder, method, seed, status="finished", texts=None, metrics=None):
    directory = folder / method / f"seed{seed}"
    directory.mkdir(parents=True)
    (directory / "training.json").write_text(json.dumps({"status": status, "steps": 100}))
    if texts is not None:
        (directory / "test.hyp").write_text("".join(f"{text}\n" for text in texts))
    if metrics is not None:
        pd.DataFrame(metrics).to_csv(directory / "metrics.csv", index=False)
    return directory


@pytest.fixture
def pair(tmp_path):
    """A pair's directory: three methods, two seeds."""
    folder = tmp_path / "en-de"
    for method, text in METHODS.items():
        for seed in (1, 2):
            texts = [text.format(i=i) if (i + seed) % 3 else REFERENCES[i] for i in range(12)]
            make_run(folder, method, seed, texts=texts)
    (tmp_path / "references").write_text("".join(f"{line}\n" for line in REFERENCES))
    (tmp_path / "source").write_text("".join(f"quelle {i}\n" for i in range(12)))
    return folder


def translations(folder):
    return [folder / m / f"seed{s}" / "test.hyp" for m in METHODS for s in (1, 2)]


# --- curves ---------------------------------------------------------------------------------------


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=6))
def test_intervals_are_students(values):
    rows = pd.DataFrame({"method": "m", "step": 5, "value": values})
    band = interval(rows, ["method", "step"]).iloc[0]
    assert band["mean"] == pytest.approx(np.mean(values), abs=1e-9)
    assert (band["min"], band["max"]) == (min(values), max(values))
    if np.std(values) > 1e-9:
        of_mean = {"loc": np.mean(values), "scale": stats.sem(values)}
        low, high = stats.t.interval(0.95, len(values) - 1, **of_mean)
        assert (band["low"], band["high"]) == (pytest.approx(low), pytest.approx(high))


def test_one_run_has_no_interval_and_a_missing_column_no_curve():
    metrics = pd.DataFrame({"method": "m", "seed": "seed1", "step": [50, 100], "x": [1.0, None]})
    band = curve(metrics, "x")
    assert band[["step", "mean", "runs"]].values.tolist() == [[50, 1, 1]]
    assert band[["low", "high"]].isna().all().all()
    assert curve(metrics, "y").empty


def test_an_interval_wider_than_its_runs_does_not_squeeze_them(tmp_path):
    files = []
    for seed, known in (("seed1", 600), ("seed2", 700)):
        path = tmp_path / "metabt" / seed / "metrics.csv"
        path.parent.mkdir(parents=True)
        path.write_text(
            "step,pseudo_words,pseudo_known_words\n" + f"50,1000,{known}\n100,1000,{known}\n"
        )
        files.append(path)
    draw("vocabulary", tmp_path / "vocabulary", files)
    assert all(float(row["high"]) > 100 for row in read_tsv(tmp_path / "vocabulary.tsv"))
    texts = [text.strip() for text in ET.parse(tmp_path / "vocabulary.svg").getroot().itertext()]
    shares = [float(text) for text in texts if re.fullmatch("[0-9]{2,}", text) and text != "10"]
    assert 59 < min(shares) < 63
    assert 67 < max(shares) < 71


def test_bins_hold_every_step_once():
    rng = np.random.default_rng(0)
    rows = [
        {"method": "m", "seed": seed, "step": step, "known": int(rng.integers(0, 50)), "words": 50}
        for seed in ("seed1", "seed2")
        for step in range(50, 1550, 50)
    ]
    band = share_in_bins(pd.DataFrame(rows), "known", "words")
    assert band["bin"].tolist() == list(range(1, 11))
    for number in (1, 10):
        shares = []
        for seed in ("seed1", "seed2"):
            low, high = (number - 1) * 150, number * 150
            inside = [r for r in rows if r["seed"] == seed and low < r["step"] <= high]
            assert len(inside) == 3
            shares.append(100 * sum(r["known"] for r in inside) / 150)
        assert band.set_index("bin").loc[number, "mean"] == pytest.approx(np.mean(shares))


# --- translations ---------------------------------------------------------------------------------


def test_length_differences_are_counted_as_words(pair, tmp_path):
    data = length_differences(translations(pair), tmp_path / "references")
    of_nobt = data[(data["method"] == "nobt") & (data["seed"] == "seed1")]
    assert of_nobt["sentences"].sum() == 12
    assert of_nobt["value"].sum() == pytest.approx(100)
    # "the cat sat ." is 4 words, the references have 11: 7 fewer.
    found = dict(zip(of_nobt["difference"], of_nobt["sentences"], strict=True))
    assert (found["−10 to −6"], found["0"]) == (8, 4)
    assert of_nobt["pathological"].iloc[0] == pytest.approx(100 * 8 / 12)
    assert len(found) == len(LENGTH_LIMITS) + 1


def test_word_f1_by_hand(tmp_path):
    """Word by word: what a person would count on paper."""
    (tmp_path / "references").write_text("a b c\nb d\n")
    make_run(tmp_path, "m", 1, texts=["a x c", "b b"])
    (tmp_path / "text").write_text("b b b b b b\nc\na a\n")
    count_words(tmp_path / "text", tmp_path / "counts")
    assert (tmp_path / "counts").read_text() == "b\t6\na\t2\nc\t1\n"
    data = word_f1(
        [tmp_path / "m" / "seed1" / "test.hyp"], tmp_path / "references", tmp_path / "counts"
    )
    found = {row.frequency: row for row in data.itertuples()}
    # b: two in the references, two in the output, one in the right sentence.
    assert found["5 to 9"].value == pytest.approx(50)
    assert (found["5 to 9"].reference_words, found["5 to 9"].matched_words) == (2, 1)
    assert (found["1"].value, found["2"].value) == (100, 100)
    assert (found["0"].value, found["0"].reference_words, found["0"].output_words) == (0, 1, 1)
    (tmp_path / "counts").write_text("a\n")
    with pytest.raises(UserError, match="counts, line 1: expected a word, a tab and a number"):
        word_f1(
            [tmp_path / "m" / "seed1" / "test.hyp"], tmp_path / "references", tmp_path / "counts"
        )


def test_examples_show_both_directions(pair, tmp_path):
    files = first_common_run(translations(pair), ["metabt", "nobt"])
    assert [path.parent.name for path in files] == ["seed1", "seed1"]
    systems = list(zip(["metabt", "nobt"], files, strict=True))
    files[1].write_text(
        "completely wrong words everywhere\n" + files[1].read_text().split("\n", 1)[1]
    )
    files[0].write_text(
        "".join(f"{line}\n" for line in files[0].read_text().split("\n")[:-2]) + "x\ty\n"
    )
    write_differing(tmp_path / "table", tmp_path / "source", tmp_path / "references", systems)
    rows = read_tsv(tmp_path / "table.tsv")
    difference = [float(r["bleu_metabt"]) - float(r["bleu_nobt"]) for r in rows]
    assert max(difference) > 0 > min(difference)
    assert difference[0] == max(difference)
    by_line = {r["line"]: r for r in rows}
    assert by_line["12"]["metabt"] == "x y"  # a tab would be another column
    assert by_line["1"]["reference"] == REFERENCES[0]
    assert "quelle 11" in (tmp_path / "table.html").read_text()
    assert "favour No BT" in (tmp_path / "table.md").read_text()


def test_a_tested_method_that_diverged_blocks_nothing(pair, tmp_path):
    for seed in (1, 2):
        record = pair / "metabt" / f"seed{seed}" / "training.json"
        record.write_text(json.dumps({"status": "diverged", "steps": 7}))
    files = translations(pair)
    assert first_common_run(files, ["metabt", "mle"]) is None
    common = ["--methods", "metabt", "mle", "--source", str(tmp_path / "source")]
    common += ["--references", str(tmp_path / "references")]
    names = [str(path) for path in files]
    (tmp_path / "counts").write_text("cat\t3\n")
    counts = ["--counts", str(tmp_path / "counts")]
    assert main(["compare", *names, *common, *counts, "--output", str(tmp_path / "page")]) == 0
    assert "diverged" in (tmp_path / "page" / "index.html").read_text()
    assert main(["table", "examples", *names, *common, "--output", str(tmp_path / "e")]) == 0
    assert "diverged" in (tmp_path / "e.md").read_text()
    figure = [*names, "--references", str(tmp_path / "references")]
    tested = [*counts, "--tested", "metabt"]
    assert main(["figure", "frequency", *figure, *tested, "--output", str(tmp_path / "f")]) == 0
    assert "MetaBT diverged" in (tmp_path / "f.svg").read_text()
    assert main(["figure", "lengths", *figure, "--output", str(tmp_path / "l")]) == 0
    assert {row["method"] for row in read_tsv(tmp_path / "l.tsv")} == {"nobt", "mle"}
    write_significance(tmp_path / "s", tmp_path / "references", files, 99, "en-de")
    rows = {(r["method"], r["against"]): r for r in read_tsv(tmp_path / "s" / "significance.tsv")}
    assert rows["metabt", "mle"]["runs"] == "0"
    assert rows["metabt", "mle"]["p"] == ""
    assert float(rows["mle", "nobt"]["p"]) <= 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: f.write_text("one line\n"), "has 1 lines, but .*references has 12"),
        (lambda f: f.write_bytes(b"\xff\n" * 12), "not valid UTF-8"),
        (lambda f: (f.parent / "training.json").unlink(), "training.json: no such file"),
    ],
)
def test_broken_translations_are_named(pair, tmp_path, damage, message):
    damage(pair / "mle" / "seed2" / "test.hyp")
    with pytest.raises(UserError, match=f"mle/seed2/.*{message}"):
        write_significance(tmp_path, tmp_path / "references", translations(pair), 99, "en-de")
    assert not (tmp_path / "significance.tsv").exists()


# --- compare-mt -----------------------------------------------------------------------------------


def test_compare_mt_writes_its_page(pair, tmp_path):
    count_words(tmp_path / "references", tmp_path / "counts")
    files = first_common_run(translations(pair), ["metabt", "mle"])
    systems = list(zip(["metabt", "mle"], files, strict=True))
    output = tmp_path / "pages" / "metabt-vs-mle"
    for _ in range(2):  # the second replaces the first
        compare_page(
            output, tmp_path / "source", tmp_path / "references", systems, tmp_path / "counts"
        )
    page = (output / "index.html").read_text()
    for part in ("MetaBT", "Word Accuracy", "len(output)-len(reference)", "Sentence Examples"):
        assert part in page, part
    assert list(output.glob("*.png"))
    assert {path.name for path in output.parent.iterdir()} == {output.name, f"{output.name}.html"}
    whole = output.with_name(f"{output.name}.html").read_text()
    assert whole.count('src="data:image/png;base64,') == page.count(".png") > 2
    assert ".png" not in whole
    links = re.findall(r'href="([^"]*)"', whole)
    assert links
    assert all(f'<a name="{link.removeprefix("#")}">' in whole for link in links)
    assert 'charset="utf-8"' in page
    (tmp_path / "counts").write_text("a\tmany\n")
    with pytest.raises(UserError, match="compare-mt failed: ValueError"):
        compare_page(
            output, tmp_path / "source", tmp_path / "references", systems, tmp_path / "counts"
        )
    assert (output / "index.html").read_text() == page


# --- figures --------------------------------------------------------------------------------------


def test_every_figure_is_svg_with_its_data_beside_it(pair, tmp_path):
    steps = np.arange(50, 1050, 50)
    for method in ("nobt", "mle", "metabt"):
        for seed in (1, 2):
            rng = np.random.default_rng(seed)
            metrics = {"step": steps, "train_perplexity": 100 / steps, "dev_bleu": steps / 50}
            metrics |= {"dev_perplexity": 50 / steps}
            if method != "nobt":
                metrics |= {"pseudo_perplexity": 10 + rng.random(len(steps)), "pseudo_words": 50}
                metrics |= {"pseudo_known_words": 30, "pseudo_log_p_backward": -3.0}
                metrics |= {"pseudo_length_ratio": 1.0, "reward_mean": rng.random(len(steps))}
                metrics |= {"reward_spread": 1.0}
            pd.DataFrame(metrics).to_csv(pair / method / f"seed{seed}" / "metrics.csv", index=False)
    count_words(tmp_path / "references", tmp_path / "counts")
    for name in ("learning", "validation", "probability", "pseudo", "rewards", "vocabulary",
                 "lengths", "frequency"):  # fmt: skip
        files = translations(pair)
        if name not in ("lengths", "frequency"):
            files = [path.parent / "metrics.csv" for path in files]
        more = (tmp_path / "references", tmp_path / "counts", "metabt")
        images = []
        for _ in range(2):
            draw(name, tmp_path / name, files, *more)
            images.append((tmp_path / f"{name}.svg").read_bytes())
        assert images[0] == images[1], "the same data must give the same file"
        text = "".join(ET.fromstring(images[0].decode()).itertext())
        assert "MetaBT" in text or "over MLE" in text
        assert ("No BT" in text) == (name in ("learning", "validation", "lengths", "frequency"))
        with (tmp_path / f"{name}.tsv").open() as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        assert rows
        assert all(None not in row.values() for row in rows)
    draw("vocabulary", tmp_path / "none", [pair / "nobt" / "seed1" / "metrics.csv"])
    assert "no run counted words" in (tmp_path / "none.svg").read_text()
    broken = pair / "nobt" / "seed1" / "metrics.csv"
    broken.write_text("")
    with pytest.raises(UserError, match=r"nobt/seed1/metrics.csv: not a table of metrics"):
        draw("learning", tmp_path / "learning", [broken])


# --- tables ---------------------------------------------------------------------------------------


def summary(mean, deviation=0.1, diverged=0):
    status = ["diverged"] * diverged + ["finished"] * (3 - diverged)
    return {
        "bleu": {"mean": mean, "deviation": deviation},
        "chrf": {"mean": 50.0, "deviation": 0.2},
        "runs": {f"seed{i}": {"status": s} for i, s in enumerate(status, 1)},
    }


@pytest.fixture
def scores(tmp_path):
    """Two pairs. In the first MetaBT wins clearly; in the second not, and DualNMT diverged."""
    made = {
        "en-de": {"nobt": summary(20.0), "mle": summary(22.0), "metabt": summary(23.0)},
        "en-fr": {
            "nobt": summary(30.0),
            "dualnmt": summary(None, None, diverged=3),
            "mle": summary(31.0, 0.3, diverged=1),
            "metabt": summary(31.2),
        },
    }
    files, tests = [], []
    for pair, methods in made.items():
        (tmp_path / pair).mkdir()
        for method, found in methods.items():
            files.append(tmp_path / pair / f"{method}.bleu")
            files[-1].write_text(yaml.safe_dump(found))
        rows = [
            {"method": "metabt", "against": other, "difference": 1.0, "low": 0.5, "high": 1.5}
            | {"p": p if pair == "en-de" else 0.2, "p_holm": 0.3}
            for other, p in (("nobt", 0.5), ("mle", 0.0001))
        ]
        tests.append(tmp_path / pair / "significance.tsv")
        write_tsv(
            tests[-1], rows, ["method", "against", "difference", "low", "high", "p", "p_holm"]
        )
    return files, tests


def test_the_table_of_results(scores, tmp_path):
    """Stars against the best baseline only; diverged runs as dashes and footnotes."""
    write_results(tmp_path / "results", *scores, "over 3 seeds")
    text = (tmp_path / "results.md").read_text()
    table = {
        cells[1].strip(): [cell.strip() for cell in cells[2:4]]
        for cells in (line.split("|") for line in text.split("\n") if line.startswith("|"))
    }
    assert table[""] == ["en-de", "en-fr"]
    assert table["No BT"] == ["20.00 ± 0.10", "30.00 ± 0.10"]
    assert table["MetaBT"] == ["23.00 ± 0.10*", "31.20 ± 0.10"]
    assert table["MLE"] == ["22.00 ± 0.10", "31.00 ± 0.30 [1]"]
    assert table["DualNMT"] == ["–", "– [2]"]
    assert list(table)[-1] == "MetaBT"
    assert "en-fr, DualNMT: 3 of 3 runs diverged" in text
    assert "en-fr, MLE: 1 of 3 runs diverged" in text
    assert "en-de: MetaBT less MLE, the best of the others: +1.00 BLEU" in text
    assert "p = 0.0001" in text
    assert "p = 0.2000" in text
    rows = {(r["pair"], r["method"]): r for r in read_tsv(tmp_path / "results.tsv")}
    assert rows["en-de", "metabt"]["star"] == "*"
    assert rows["en-fr", "metabt"]["star"] == ""
    assert rows["en-de", "mle"]["p"] == ""
    assert all(
        (tmp_path / r["pair"] / f"{r['method']}.bleu").samefile(r["file"]) for r in rows.values()
    )


def test_beside_the_paper(scores, tmp_path):
    write_beside_paper(tmp_path / "paper", scores[0], same_data=False)
    rows = {(r["pair"], r["method"]): r for r in read_tsv(tmp_path / "paper.tsv")}
    assert float(rows["en-de", "metabt"]["difference"]) == pytest.approx(23 - 30.39)
    assert rows["en-fr", "dualnmt"]["paper"] == rows["en-fr", "dualnmt"]["difference"] == ""
    assert "Not the paper's data" in (tmp_path / "paper.md").read_text()
    write_beside_paper(tmp_path / "paper", scores[0], same_data=True)
    assert "Not the paper's data" not in (tmp_path / "paper.md").read_text()


def test_a_summary_that_is_none_is_named(tmp_path):
    path = tmp_path / "mle.bleu"
    path.write_text("just text\n")
    with pytest.raises(UserError, match=r"mle\.bleu: not a summary of scores"):
        write_results(tmp_path / "results", [path], [], "over seeds")


def test_cost_prefers_the_record_of_all_sittings(tmp_path):
    run = make_run(tmp_path / "results" / "en-de", "mle", 1)
    benchmark = tmp_path / "train.tsv"
    benchmark.write_text("s\th:m:s\tmax_rss\n50.0\t0:00:50\t123.4\n")
    row = cost_row(run / "training.json", benchmark)
    assert (row["pair"], row["model"], row["steps_per_second"]) == ("en-de", "mle/seed1", 2.0)
    assert (row["peak_mb"], row["gpu_hours"], row["file"]) == (123.4, 0.0, str(benchmark))
    (run / "checkpoint").mkdir()
    cost = {"seconds": 7200, "sittings": 3, "peak_mb": 900, "device": "A GPU", "processes": 2}
    (run / "checkpoint" / "cost.json").write_text(json.dumps(cost))
    row = cost_row(run / "training.json", benchmark)
    assert (row["hours"], row["gpu_hours"], row["sittings"]) == (2.0, 4.0, 3)
    assert row["file"].endswith("cost.json")
    benchmark.write_text("s\th:m:s\tmax_rss\n")
    with pytest.raises(UserError, match=r"train\.tsv: has no line"):
        cost_row(run / "training.json", benchmark)


def test_pseudo_pairs_at_three_moments(tmp_path):
    columns = ["step", "pseudo_source", "target", "log_p_backward", "log_p_forward", "reward"]
    run = make_run(tmp_path, "metabt", 1)
    rows = [
        {"step": step, "pseudo_source": f'say "{step}', "target": "t", "log_p_backward": -1.5}
        for step in (1, 51, 101, 151, 201)
        for _ in range(3)
    ]
    write_tsv(run / "examples.tsv", rows, columns)
    missing = make_run(tmp_path, "nobt", 1) / "examples.tsv"
    write_pseudo(tmp_path / "pseudo", [missing, run / "examples.tsv"])
    shown = read_tsv(tmp_path / "pseudo.tsv")
    assert [row["step"] for row in shown] == ["1"] * 3 + ["101"] * 3 + ["201"] * 3
    assert {row["method"] for row in shown} == {"metabt"}
    assert shown[0]["pseudo_source"] == 'say "1'
    assert "say &quot;201" in (tmp_path / "pseudo.html").read_text()


def test_tables_survive_what_is_in_them(tmp_path):
    write_tsv(tmp_path / "t.tsv", [{"a": "x\ty\nz", "b": None}, {"a": '"', "b": 0.5}], ["a", "b"])
    assert read_tsv(tmp_path / "t.tsv") == [{"a": "x y z", "b": ""}, {"a": '"', "b": "0.5"}]
    write_readable(tmp_path / "t", "<b>", ["a|b", "n"], [["<script>", "1|2"]], ["a & b"])
    page = (tmp_path / "t.html").read_text()
    assert "<script>" not in page
    assert "a &amp; b" in page
    assert r"a\|b" in (tmp_path / "t.md").read_text()


def test_detokenise(tmp_path):
    (tmp_path / "text").write_text('It &apos;s a " test " , isn \'t it ?\n\nfine .\n')
    arguments = [str(tmp_path / "text"), "--language", "en", "--output", str(tmp_path / "out")]
    assert main(["detokenise", *arguments]) == 0
    assert (tmp_path / "out").read_text() == "It's a \"test\", isn't it?\n\nfine.\n"
