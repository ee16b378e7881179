"""`metabt score`: sacreBLEU's own figures, and clear words about files that do not fit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sacrebleu.metrics import BLEU, CHRF

from metabt.cli import main
from metabt.errors import UserError
from metabt.evaluation.scores import read_lines, score_files

ROOT = Path(__file__).parents[1]
SYSTEM = [
    "The cat sat on the mat, and it was happy there.",
    "",
    "Нет ничего лучше плохой погоды!",
    "A completely different sentence was written in this place.",
]
REFERENCE = [
    "the Cat sat on the mat and it was quite happy.",
    "Something that was forgotten.",
    "Нет ничего лучше хорошей погоды!",
    "A completely different sentence was found in this place.",
]


def write(path, lines, ending="\n"):
    path.write_bytes(("\n".join(lines) + ending).encode())
    return path


@pytest.fixture
def files(tmp_path):
    return write(tmp_path / "system.txt", SYSTEM), write(tmp_path / "reference.txt", REFERENCE)


def test_the_figures_are_those_of_sacrebleu(files):
    """BLEU, lower-case BLEU and chrF as sacreBLEU gives them, with its signatures."""
    result = score_files(*files)
    assert result["sentences"] == 4
    metrics = {"bleu": BLEU(), "bleu_lowercase": BLEU(lowercase=True), "chrf": CHRF()}
    for name, metric in metrics.items():
        expected = metric.corpus_score(SYSTEM, [REFERENCE]).score
        assert result[name]["score"] == pytest.approx(expected, abs=1e-4)
        assert result[name]["signature"] == str(metric.get_signature())
        assert "version:" in result[name]["signature"]
    assert "case:mixed" in result["bleu"]["signature"]
    assert "case:lc" in result["bleu_lowercase"]["signature"]
    assert result["bleu"]["score"] < result["bleu_lowercase"]["score"]


def test_a_perfect_translation_has_full_marks(files):
    _, reference = files
    result = score_files(reference, reference)
    assert [result[name]["score"] for name in ("bleu", "bleu_lowercase", "chrf")] == [100] * 3


def test_the_command_writes_json(files, tmp_path):
    """From the command line the same figures, in a file, and nothing on standard output."""
    out = tmp_path / "new" / "scores.json"
    command = [sys.executable, "-m", "metabt", "score", *map(str, files), "--output", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads(out.read_text()) == score_files(*files)


def test_the_last_newline_does_not_matter(files, tmp_path):
    """But an empty last line does: it is a sentence."""
    bare = write(tmp_path / "bare.txt", SYSTEM, ending="")
    assert score_files(bare, files[1]) == score_files(*files)
    assert len(read_lines(write(tmp_path / "one.txt", [*SYSTEM, ""]))) == 5


def test_only_a_newline_ends_a_line(files, tmp_path):
    """Other characters that separate lines somewhere are text, as they are for `translate`."""
    for mark in ("\u2028", "\x85", "\x0b", "\x0c", "\r"):
        marked = write(tmp_path / "marked.txt", [SYSTEM[0].replace(", ", mark), *SYSTEM[1:]])
        assert len(read_lines(marked)) == 4, f"{mark!r}"


def test_files_of_different_lengths_are_refused(files, tmp_path, capsys):
    short = write(tmp_path / "short.txt", SYSTEM[:3])
    out = tmp_path / "scores.json"
    assert main(["score", str(short), str(files[1]), "--output", str(out)]) == 1
    error = capsys.readouterr().err
    assert error == f"metabt: error: {short} has 3 lines, but {files[1]} has 4\n"
    assert not out.exists()


def test_invalid_utf8_is_refused(files, tmp_path, capsys):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine\n\xff\xfe\n")
    for pair in ((bad, files[1]), (files[0], bad)):
        assert main(["score", *map(str, pair), "--output", str(tmp_path / "out")]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"metabt: error: {bad}: not valid UTF-8")
        assert error.count("\n") == 1


def test_a_missing_file_is_named(files, tmp_path, capsys):
    nowhere = tmp_path / "nowhere.txt"
    assert main(["score", str(nowhere), str(files[1]), "--output", str(tmp_path / "out")]) == 1
    assert f"metabt: error: {nowhere}: No such file" in capsys.readouterr().err


def test_empty_files_are_refused_in_a_sentence(tmp_path):
    """Nothing was measured: no score, no traceback, but a word about which file is empty."""
    empty, other = tmp_path / "empty.txt", tmp_path / "other.txt"
    empty.touch()
    other.touch()
    with pytest.raises(UserError, match=r"empty\.txt.*(empty|no lines|nothing)"):
        score_files(empty, other)


def test_empty_lines_are_scored(tmp_path):
    """A system that says nothing at all gets nothing."""
    system = write(tmp_path / "system.txt", ["", ""])
    result = score_files(system, write(tmp_path / "reference.txt", ["one two", "three"]))
    assert result["bleu"]["score"] == result["chrf"]["score"] == 0
