"""Models as directories, `metabt translate` on them, and their export to CTranslate2."""

import io
import json
import os
import pickle
import pickletools
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from toy import LETTERS, sentences, toy_run, write_toy

from metabt.cli import main
from metabt.config import Transformer as Shape
from metabt.data.subwords import train_bpe, write_vocabulary
from metabt.errors import UserError
from metabt.nmt import translate as translate_module
from metabt.nmt.decoding import beam_search, greedy
from metabt.nmt.export import to_ctranslate2
from metabt.nmt.model_files import load_model, save_model
from metabt.nmt.transformer import Transformer
from metabt.tensor_files import read_tensors, write_tensors
from metabt.training.pretrain import Start, pretrain

ROOT = Path(__file__).parents[1]
LINES = sentences(50, 7, longest=6)
# What may stand in a file: nothing, spaces, characters nobody knows, such as end a line elsewhere.
ODD_LINES = [
    "",
    "a b c",
    "   ",
    "\t",
    "",
    "a ж 漢 b",
    "\u2028",
    "a\x85b\x0bc\x0cd\re",
    "▁",
    "a\0b",
    "d",
]
FILES = {"model.safetensors", "model.json", "vocab/vocab.json", "vocab/joint.model"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two briefly trained models, one better than the other, whose training data are gone."""
    directory = tmp_path_factory.mktemp("models")
    write_toy(directory / "toy", train=2000, longest=6)
    shape = {"layers": 2, "width": 32, "feed_forward": 64, "heads": 4, "dropout": 0.0}
    for norm, steps in (("post", 200), ("pre", 60)):
        run_file = toy_run(
            directory / "toy",
            transformer={**shape, "norm": norm},
            training={"steps": steps, "validate_every": steps, "batch": {"sentences": 64}},
            optimiser={"rate": 0.006, "warmup": 40},
        )
        pretrain(run_file, directory / norm, Start(threads=1))
    shutil.rmtree(directory / "toy")
    return directory


@pytest.fixture(scope="module")
def trained(models):
    return models / "post"


@pytest.fixture
def copied(trained, tmp_path):
    """A model's directory to spoil: only what makes it a model."""
    for name in FILES:
        (tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(trained / name, tmp_path / "model" / name)
    return tmp_path / "model"


@pytest.fixture
def metabt(monkeypatch, capsysbinary, tmp_path_factory):
    """The command line in this process: exit code, standard output and error."""

    def run(*arguments, stdin=b""):
        path = tmp_path_factory.mktemp("stdin") / "text"
        path.write_bytes(stdin)
        with path.open("rb") as file:
            os.dup2(file.fileno(), 0)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(open(0, "rb", closefd=False)))
        capsysbinary.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    before = os.dup(0)
    yield run
    os.dup2(before, 0)
    os.close(before)


@pytest.fixture
def translate(metabt, trained):
    """Translated lines of a model, where all goes well."""

    def run(lines, *options, model=trained, threads=1):
        text = "".join(f"{line}\n" for line in lines).encode()
        code, out, err = metabt(
            "translate", "--model", model, "--threads", threads, *options, stdin=text
        )
        assert (code, err) == (0, "")
        assert out.endswith("\n") or not out
        return out.split("\n")[:-1]

    return run


def start(*arguments, cwd=ROOT, **streams):
    """The command line in a process of its own, which hears Control-C even if we are in the
    background and do not."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **streams}
    streams["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-m", "metabt", *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, env=environment, stderr=subprocess.PIPE, **streams)


def ended(process, seconds=60):
    """Exit code and standard error of a process whose standard input may still be open."""
    try:
        process.wait(timeout=seconds)
        return process.returncode, process.stderr.read().decode()
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                stream.close()


def answer(process, line, seconds=60):
    """Write a line and read one, while standard input stays open."""
    process.stdin.write(line.encode())
    process.stdin.flush()
    found = b""
    end = time.monotonic() + seconds
    while not found.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0, end - time.monotonic()))
        assert ready, "no answer before the end of the input"
        part = os.read(process.stdout.fileno(), 4096)
        assert part, process.stderr.read().decode()
        found += part
    return found.decode()


# --- the model's directory ------------------------------------------------------------------------


def test_a_saved_model_gives_the_same_outputs(trained, tmp_path):
    """Saved again and loaded again, every tensor and every translation is what it was."""
    saved = load_model(trained)
    weights = saved.model.state_dict()
    vocabulary = trained / "vocab" / "vocab.json"
    save_model(tmp_path, weights, saved.kind, saved.model.shape, saved.languages, vocabulary)
    again = load_model(tmp_path)
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == FILES
    for name, weight in again.model.state_dict().items():
        assert torch.equal(weight, weights[name])
    assert (again.kind, again.languages) == ("translation", ["xx", "yy"])
    assert again.subwords.pieces == saved.subwords.pieces
    assert not again.model.training
    sources = saved.subwords.encode(LINES, "xx")
    for a, b in zip(greedy(saved.model, sources), greedy(again.model, sources), strict=True):
        assert np.array_equal(a.ids, b.ids)
        assert a.log_prob == b.log_prob


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_file_is_named(copied, name):
    (copied / name).unlink()
    with pytest.raises(UserError, match=re.escape(str(copied / name))):
        load_model(copied)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b"\xff\xfe", b'{"version": 1}'])
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_damaged_file_is_named(copied, name, content):
    (copied / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(str(copied / name))):
        load_model(copied)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_cut_short_is_named(copied, name):
    content = (copied / name).read_bytes()
    (copied / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=re.escape(str(copied / name))):
        load_model(copied)


def test_a_changed_weight_is_noticed(copied):
    path = copied / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"{path}: damaged")):
        load_model(copied)


def test_weights_that_another_program_wrote_are_refused(copied):
    path = copied / "model.safetensors"
    tensors, _ = read_tensors(path)
    for about in (
        None,
        {"metabt": "{}"},
        {"metabt": '{"version": 1, "description": 1, "xxh3": 1}'},
    ):
        safetensors.torch.save_file(tensors, path, about)
        with pytest.raises(UserError, match=re.escape(str(path))):
            load_model(copied)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "language-model"}, "a language-model model, but a translation model is needed"),
        ({"kind": "nonsense"}, "a nonsense model"),
        ({"layers": 3}, "model.safetensors"),
        ({"width": 64}, "model.safetensors"),
        ({"feed_forward": 8}, "model.safetensors"),
        ({"norm": "pre"}, "model.safetensors"),
        ({"norm": "none"}, "model.json"),
        ({"heads": 3}, "model.json"),
        ({"width": "wide"}, "model.json"),
        ({"languages": 5}, "model.json"),
        ({"languages": []}, "model.json"),
        ({"transformer": None}, "model.json"),
    ],
)
def test_a_description_that_does_not_fit_is_told(copied, change, named):
    """Another kind, another shape, nonsense: a sentence that names the file."""
    path = copied / "model.json"
    description = json.loads(path.read_text())
    for key, value in change.items():
        (description if key in description else description["transformer"])[key] = value
    path.write_text(json.dumps(description))
    with pytest.raises(UserError, match=re.escape(named)) as caught:
        load_model(copied)
    assert str(copied) in str(caught.value)


@pytest.mark.parametrize("key", ["pieces", "models", "sha256"])
def test_an_incomplete_vocabulary_is_told(copied, key):
    path = copied / "vocab" / "vocab.json"
    stored = json.loads(path.read_text())
    del stored[key]
    path.write_text(json.dumps(stored))
    with pytest.raises(UserError, match=re.escape(str(path))):
        load_model(copied)


def test_a_vocabulary_of_another_size_is_told(copied):
    path = copied / "vocab" / "vocab.json"
    stored = json.loads(path.read_text())
    stored["pieces"].append("▁more")
    path.write_text(json.dumps(stored))
    with pytest.raises(UserError, match=re.escape(str(copied))):
        load_model(copied)


def test_a_missing_tensor_is_told(copied):
    path = copied / "model.safetensors"
    tensors, about = read_tensors(path)
    tensors.pop("embedding.weight")
    write_tensors(path, tensors, about)
    with pytest.raises(UserError, match=re.escape(f"{path}: its tensor 'embedding.weight'")):
        load_model(copied)


def test_a_model_that_is_not_there_is_told(metabt, tmp_path):
    code, out, err = metabt("translate", "--model", tmp_path / "nowhere", stdin=b"a\n")
    assert (code, out) == (1, "")
    assert err == f"metabt: error: {tmp_path / 'nowhere' / 'model.json'}: no such file\n"


def test_no_file_of_a_model_is_a_pickle(trained):
    """Not one of those that training leaves, checkpoint and all."""
    files = [path for path in trained.rglob("*") if path.is_file()]
    assert len(files) > len(FILES)
    for path in files:
        assert not zipfile.is_zipfile(path)  # torch.save's
        try:
            list(pickletools.genops(path.read_bytes()))
        except ValueError:
            continue
        pytest.fail(f"{path} is a pickle")


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_unpickles(copied, tmp_path, monkeypatch, metabt):
    """A model is used without pickle, and a pickle in its place is refused, not run."""
    text = "".join(f"{line}\n" for line in LINES).encode()
    command = ["translate", "--model", copied, "--beam", 2, "--threads", 1]
    expected = metabt(*command, stdin=text)
    hostile = pickle.dumps(Hostile(tmp_path / "run"))
    saved = io.BytesIO()
    torch.save(Hostile(tmp_path / "run"), saved)

    def refuse(*_, **__):
        pytest.fail("something was unpickled")

    for module in (pickle, __import__("_pickle")):
        for name in ("load", "loads", "Unpickler"):
            monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    assert expected[0] == 0
    assert metabt(*command, stdin=text) == expected
    for name in sorted(FILES):
        good = (copied / name).read_bytes()
        for content in (hostile, saved.getvalue()):
            (copied / name).write_bytes(content)
            code, out, err = metabt(*command, stdin=text)
            assert (code, out) == (1, "")
            assert err.startswith(f"metabt: error: {copied / name}: ")
        (copied / name).write_bytes(good)
    assert not (tmp_path / "run").exists()


# --- lines in, lines out --------------------------------------------------------------------------


def test_text_in_text_out(copied, tmp_path):
    """From another directory, by relative names; as many lines as came, each in its place."""
    lines = [*LINES, *ODD_LINES]
    (tmp_path / "in.txt").write_bytes("\n".join(lines).encode())  # no newline at the end
    options = ["--model", "model", "--input", "in.txt", "--output", "new/out.txt", "--threads", 1]
    process = start("translate", *options, cwd=tmp_path, stdin=subprocess.DEVNULL)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["out.txt"]
    text = (tmp_path / "new" / "out.txt").read_bytes().decode()
    assert text.endswith("\n")
    found = text.split("\n")[:-1]
    saved = load_model(copied)
    encoded = saved.subwords.encode(lines, "xx")
    expected = beam_search(saved.model, encoded, 4, 0.6)
    assert len(found) == len(lines)
    for ids, (best,), line in zip(encoded, expected, found, strict=True):
        assert line == (saved.subwords.decode(best.ids) if len(ids) else "")
    assert len(set(found)) > 30
    assert sum(line[::-1] == output for line, output in zip(LINES, found, strict=False)) > 10
    assert all(set(line) <= set(LETTERS) | {" "} for line in found[: len(LINES)])


def test_lines_are_counted_by_their_newlines_alone(translate):
    """Empty lines and lines of spaces stay empty, in their places; no other mark ends a line."""
    found = translate(ODD_LINES, "--beam", 1)
    assert len(found) == len(ODD_LINES)
    for line, output in zip(ODD_LINES, found, strict=True):
        if not line.strip():
            assert output == ""
    assert found[1] == translate(["a b c"], "--beam", 1)[0]
    assert translate(["", "", " "]) == ["", "", ""]
    assert translate([]) == []


@pytest.mark.parametrize(
    ("text", "lines"), [(b"", 0), (b"\n", 1), (b" ", 1), (b"a", 1), (b"a\n\nb", 3), (b"a\r\nb", 2)]
)
def test_any_end_of_the_file_will_do(metabt, trained, tmp_path, text, lines):
    """A last line without a newline is a line; what comes after the last newline is none."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.write_bytes(text)
    options = ["--model", trained, "--input", source, "--threads", 1, "--beam", 1]
    code, printed, _ = metabt("translate", *options)
    assert code == 0
    assert printed.count("\n") == lines
    assert metabt("translate", *options, "--output", out) == (0, "", "")
    assert out.read_text() == printed


def test_unknown_characters_are_translated_as_unknown(translate):
    """Whatever character it is that the model does not know, the rest is translated."""
    a, b, c = translate(["a b ж", "a b 漢", "a b c"], "--beam", 1)
    assert a == b != c


def test_more_lines_than_are_taken_at_once(translate, monkeypatch):
    """Blocks do not show: order, number and samples are the same."""
    lines = [*LINES, *ODD_LINES]
    for options in (["--beam", 1], ["--generation", "sampling"]):
        expected = translate(lines, *options)
        with monkeypatch.context() as patch:
            patch.setattr(translate_module, "LINES_AT_ONCE", 7)
            assert translate(lines, *options) == expected


def test_a_long_line_is_translated_in_pieces(metabt, translate, trained, monkeypatch):
    """Its pieces' translations, joined; standard error says which line it was."""
    parts = ["a b c d e", "f g h i j", "k l"]
    long = " ".join(parts)
    options = ["--beam", 2, "--n-best", 2, "--scores"]
    pieces = [line.split("\t") for line in translate(parts, *options)]
    short = translate(["c b a", "d"], *options)
    monkeypatch.setattr(translate_module, "LONGEST", 5)
    command = ["translate", "--model", trained, "--threads", 1, *options]
    code, out, err = metabt(*command, stdin=f"c b a\n{long}\nd\n".encode())
    assert code == 0
    assert err == "line 2: 12 subwords, translated in pieces of 5\n"
    found = out.split("\n")[:-1]
    for one, other in zip([*found[:2], *found[4:]], short, strict=True):
        (*scores, text), (*expected, same) = one.split("\t"), other.split("\t")
        assert text == same
        assert list(map(float, scores)) == pytest.approx(list(map(float, expected)), abs=1e-4)
    for rank in (0, 1):
        score, log_prob, text = found[2 + rank].split("\t")
        assert text == " ".join(piece[2] for piece in pieces[rank::2])
        for i, total in enumerate((score, log_prob)):
            expected = sum(float(piece[i]) for piece in pieces[rank::2])
            assert float(total) == pytest.approx(expected, abs=1e-4)


def test_a_line_of_more_than_500_subwords(metabt, trained):
    line = " ".join(LETTERS[i % 16] for i in range(501))
    command = ["translate", "--model", trained, "--threads", 1, "--beam", 1]
    code, out, err = metabt(*command, stdin=f"a\n{line}\n{line[:-2]}\n".encode())
    assert (code, out.count("\n")) == (0, 3)
    assert err == "line 2: 501 subwords, translated in pieces of 500\n"


@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"a \xc3", b"\xc0\x80"])
def test_invalid_utf8_is_told_with_file_and_line(metabt, trained, tmp_path, bad):
    """The output file stays as it was, and nothing lies beside it."""
    source, out = tmp_path / "in.txt", tmp_path / "out" / "out.txt"
    out.parent.mkdir()
    out.write_text("from before\n")
    source.write_bytes(b"a b\nc\n" + bad + b"\nd\n")
    options = ["--model", trained, "--threads", 1, "--beam", 1]
    code, printed, err = metabt("translate", *options, "--input", source, "--output", out)
    assert (code, printed) == (1, "")
    assert err.startswith(f"metabt: error: {source}: line 3 is not valid UTF-8")
    assert err.count("\n") == 1
    assert out.read_text() == "from before\n"
    assert [p.name for p in out.parent.iterdir()] == ["out.txt"]
    code, _, err = metabt("translate", *options, stdin=source.read_bytes())
    assert code == 1
    assert err.startswith("metabt: error: standard input: line 3 is not valid UTF-8")


def test_a_bad_line_far_on_keeps_the_old_output(metabt, trained, tmp_path, monkeypatch):
    """Also where blocks before it have been translated; its number counts from the beginning."""
    monkeypatch.setattr(translate_module, "LINES_AT_ONCE", 4)
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(b"a b\n" * 10 + b"\xff\n")
    options = ["--model", trained, "--threads", 1, "--beam", 1]
    code, _, err = metabt("translate", *options, "--input", source, "--output", out)
    assert code == 1
    assert f"{source}: line 11 is not" in err
    assert [p.name for p in tmp_path.iterdir()] == ["in.txt"]


def test_a_missing_input_is_named(metabt, trained, tmp_path):
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    code, _, err = metabt("translate", "--model", trained, "--input", source, "--output", out)
    assert code == 1
    assert err == f"metabt: error: {source}: No such file or directory\n"
    assert list(tmp_path.iterdir()) == []


# --- ways of decoding -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ["--beam", 1],
        ["--beam", 4],
        ["--beam", 3, "--n-best", 3],
        ["--generation", "sampling", "--n-best", 2],
        ["--generation", "sampling", "--top-k", 3, "--temperature", 0.7],
        ["--generation", "noisy-beam", "--beam", 2],
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_batches_and_threads_change_the_speed_only(translate, options):
    lines = [*LINES[:30], *ODD_LINES]
    expected = translate(lines, *options)
    for batch_tokens, threads in ((1, 2), (50, 1), (100_000, 2)):
        found = translate(lines, *options, "--batch-tokens", batch_tokens, threads=threads)
        assert found == expected, (batch_tokens, threads)


def test_scores_stand_before_the_text(translate):
    """Score, log-probability, text, between tabs; the text is the same as without them."""
    for options in (["--beam", 4, "--length-penalty", 0.6], ["--beam", 1]):
        plain = translate([*LINES, ""], *options)
        for line, scored in zip(plain, translate([*LINES, ""], *options, "--scores"), strict=True):
            assert re.fullmatch(r"-?\d+\.\d{6}\t-?\d+\.\d{6}\t[^\t]*", scored)
            score, log_prob, text = scored.split("\t")
            assert text == line
            assert float(log_prob) <= float(score) <= 0
    assert translate([""], "--scores") == ["0.000000\t0.000000\t"]


def test_the_score_is_log_probability_over_length_penalty(translate, trained):
    """Wu et al. 2016; without penalty they are one."""
    subwords = load_model(trained).subwords
    for alpha in (0.0, 0.6, 1.0):
        for line in translate(LINES, "--length-penalty", alpha, "--scores"):
            score, log_prob, text = line.split("\t")
            (ids,) = subwords.encode([text], "yy")
            penalty = ((5 + len(ids) + 1) / 6) ** alpha
            assert float(score) == pytest.approx(float(log_prob) / penalty, abs=1e-5)


def test_the_n_best(translate):
    """N lines for every line, empty or not, the best first; the first is that of no list."""
    lines = [*LINES, "", "a"]
    one = translate(lines, "--beam", 5)
    found = translate(lines, "--beam", 5, "--n-best", 4, "--scores")
    assert len(found) == 4 * len(lines)
    for i in range(len(lines)):
        rows = [row.split("\t") for row in found[4 * i : 4 * i + 4]]
        scores = [float(row[0]) for row in rows]
        assert scores == sorted(scores, reverse=True)
        texts = [row[2] for row in rows]
        assert texts[0] == one[i]
        assert len(set(texts)) == (4 if lines[i] else 1)


@pytest.mark.parametrize("kind", ["beam", "noisy-beam"])
def test_more_than_the_beam_holds_is_refused(metabt, trained, kind):
    options = ["--model", trained, "--beam", 2, "--n-best", 3, "--generation", kind]
    code, out, err = metabt("translate", *options, stdin=b"a\n")
    assert (code, out) == (1, "")
    assert err == "metabt: error: --n-best 3 needs a --beam of at least as many\n"


def test_samples_are_a_matter_of_the_seed(translate):
    """Reproducible by it, different with another, different for equal lines; several are, too."""
    options = ["--generation", "sampling"]
    one = translate(LINES, *options, "--seed", 1)
    assert one == translate(LINES, *options, "--seed", 1)
    two = translate(LINES, *options, "--seed", 2)
    assert sum(a != b for a, b in zip(one, two, strict=True)) > 20
    assert len(set(translate(["a b c d e f"] * 50, *options))) > 10
    several = translate(LINES, *options, "--seed", 1, "--n-best", 5)  # more than the beam's 4
    assert several[::5] == one
    assert sum(len(set(several[5 * i : 5 * i + 5])) > 2 for i in range(50)) > 20


def test_sampling_among_one_is_greedy(translate):
    assert translate(LINES, "--generation", "sampling", "--top-k", 1) == translate(
        LINES, "--beam", 1
    )


def test_a_noisy_beam_is_the_beam_with_noise(translate):
    """Words are dropped, blanked and moved a little, by the seed; equal lines get other noise."""
    options = ["--generation", "noisy-beam", "--beam", 2]
    clean, one, two = (
        translate(LINES, "--beam", 2),
        translate(LINES, *options),
        translate(LINES, *options, "--seed", 2),
    )
    assert one == translate(LINES, *options)
    assert one != two
    for before, after in zip(clean, one, strict=True):
        kept = after.replace("\u2047", " ").split()
        assert set(kept) <= set(before.split())
        assert len(after.split()) <= len(before.split())
    assert any("\u2047" in line for line in one)
    assert sum(a != b for a, b in zip(clean, one, strict=True)) > 10
    assert len(set(translate(["a b c d e f g h"] * 50, *options))) > 5
    assert translate(["", "a", " "], *options)[::2] == ["", ""]


@pytest.mark.parametrize(
    "options",
    [
        ["--beam", 0],
        ["--beam", -1],
        ["--n-best", 0],
        ["--n-best", -1],
        ["--generation", "sampling", "--n-best", 0],
        ["--generation", "sampling", "--top-k", 0],
        ["--generation", "sampling", "--temperature", 0],
        ["--generation", "noisy-beam", "--seed", -1],
        ["--threads", -1],
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_a_number_that_makes_no_sense_is_refused(metabt, trained, options):
    """By a sentence and an exit code, whoever says it; no traceback, no lines lost in silence."""
    try:
        code, out, err = metabt("translate", "--model", trained, *options, stdin=b"a\nb\n")
    except SystemExit as stop:
        assert stop.code == 2  # noqa: PT017
    else:
        assert code == 1, (out, err)
        assert err.startswith("metabt: error: ")
        assert out == ""


# --- while the lines come -------------------------------------------------------------------------


def test_a_line_is_answered_before_the_next_comes(trained, translate):
    """Through pipes: what comes out does not depend on when it came in."""
    options = ["--generation", "sampling", "--seed", 3]
    lines = ["a b c", "", "d e f", "g"]
    expected = translate(lines, *options)
    process = start("translate", "--model", trained, "--threads", 1, *options)
    try:
        found = [answer(process, f"{line}\n") for line in lines[:3]]
        process.stdin.write(b"g")  # its end is that of the input
        process.stdin.close()
        found.append(process.stdout.read().decode())
    finally:
        code, err = ended(process)
    assert found == [f"{line}\n" for line in expected]
    assert (code, err) == (0, "")


def no_crash(code, err):
    assert "Traceback" not in err, err
    assert "Fatal Python error" not in err, err
    assert code >= 0, f"killed by {signal.Signals(-code).name}"


def test_nobody_reads_on(trained):
    """As with `head -1`, while standard input stays open: it ends, and does not crash."""
    process = start("translate", "--model", trained, "--threads", 1, "--beam", 1)
    answer(process, "a b c\n")
    process.stdout.close()
    process.stdin.write(b"a\n")
    process.stdin.flush()
    code, err = ended(process)
    no_crash(code, err)
    assert (code, err) == (1, "")


def test_a_bad_line_while_the_input_stays_open(trained):
    """The message, exit code 1, and nothing else."""
    process = start("translate", "--model", trained, "--threads", 1, "--beam", 1)
    process.stdin.write(b"a\n\xff\n")
    process.stdin.flush()
    code, err = ended(process)
    no_crash(code, err)
    assert code == 1
    assert err == (
        "metabt: error: standard input: line 2 is not valid UTF-8 (invalid start byte)\n"
    )


def test_interrupted_by_the_keyboard(trained):
    """Control-C while it waits for a line."""
    process = start("translate", "--model", trained, "--threads", 1, "--beam", 1)
    answer(process, "a b c\n")
    process.send_signal(signal.SIGINT)
    code, err = ended(process)
    no_crash(code, err)
    assert (code, err) == (130, "metabt: interrupted\n")


def test_no_standard_input_at_all(trained, monkeypatch, capsys):
    """Python has none where the shell closed it (`<&-`): a sentence, no traceback."""
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["translate", "--model", str(trained), "--threads", "1"]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


# --- CTranslate2 ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(models):
    """Each model here and there."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    both = {}
    for norm in ("post", "pre"):
        output = models / "exported" / norm
        command = ["export", "--model", str(models / norm), "--to", "ctranslate2"]
        assert main([*command, "--output", str(output)]) == 0
        translator = ctranslate2.Translator(str(output), intra_threads=1, compute_type="float32")
        both[norm] = load_model(models / norm), translator
    return both


def as_pieces(saved, sentences):
    return [[saved.subwords.pieces[i] for i in ids] for ids in sentences]


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_ctranslate2_translates_the_same(exported, norm, beam):
    """The same tokens, and the same log-probability of the whole."""
    saved, translator = exported[norm]
    sources = saved.subwords.encode([*LINES, "a ж b"], "xx")
    ours = (
        [[h] for h in greedy(saved.model, sources)]
        if beam == 1
        else beam_search(saved.model, sources, beam, 0.0)
    )
    theirs = translator.translate_batch(
        as_pieces(saved, sources),
        beam_size=beam,
        # Next to none: with none at all it goes on until its best one has ended, whereas we end
        # with as many as the beam holds.
        length_penalty=0 if beam == 1 else 1e-6,
        min_decoding_length=0,  # its default, 1, takes the end mark from the first distribution
        return_scores=True,
    )
    assert sum(best.complete for best, *_ in ours) >= 45
    for (mine,), other in zip(ours, theirs, strict=True):
        if mine.complete:  # the limits of length differ
            assert as_pieces(saved, [mine.ids]) == other.hypotheses
            assert other.scores[0] == pytest.approx(mine.log_prob, abs=1e-3)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_ctranslate2_scores_the_same(exported, norm):
    """Every token's log-probability under teacher forcing, the end mark's with them."""
    saved, translator = exported[norm]
    sources, targets = (saved.subwords.encode(sentences(50, seed), "xx") for seed in (11, 12))
    with torch.no_grad():
        _, nll = saved.model.loss((sources, targets), 1.0, 0.0)
    scored = translator.score_batch(as_pieces(saved, sources), as_pieces(saved, targets))
    theirs = np.concatenate([np.array(result.log_probs) for result in scored])
    assert len(theirs) == sum(len(target) + 1 for target in targets)
    assert np.abs(theirs + nll.numpy()).max() < 1e-3


def test_text_that_looks_like_a_mark_is_exported_as_text(tmp_path):
    """A piece "<s>" of the vocabulary, as web pages have it, is another one than the begin mark."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    bpe, vocabulary = tmp_path / "joint.model", tmp_path / "vocab.json"
    train_bpe(["a<s> b<s> c</s> d</s> e<unk> f<unk> n"] * 20, bpe, size=30)
    write_vocabulary({"xx": bpe, "yy": bpe}, vocabulary)
    torch.manual_seed(0)
    shape = Shape(layers=1, width=16, feed_forward=32, heads=2, dropout=0.0)
    size = len(json.loads(vocabulary.read_text())["pieces"])
    weights = Transformer(size, shape).state_dict()
    save_model(tmp_path / "model", weights, "translation", shape, ["xx", "yy"], vocabulary)
    to_ctranslate2(tmp_path / "model", tmp_path / "exported")
    translator = ctranslate2.Translator(str(tmp_path / "exported"), intra_threads=1)
    saved = load_model(tmp_path / "model")
    for line, piece in (("n a", "a"), ("n<s>", "<s>"), ("n</s>", "</s>"), ("n<unk>", "<unk>")):
        (ids,) = saved.subwords.encode([line], "xx")
        (pieces,) = as_pieces(saved, [ids])
        assert pieces[-1] == piece
        with torch.no_grad():
            _, nll = saved.model.loss(([ids], [ids]), 1.0, 0.0)
        (scored,) = translator.score_batch([pieces], [pieces])
        assert scored.log_probs == pytest.approx((-nll).tolist(), abs=1e-3), line


def test_an_export_is_not_written_over(models, exported, capsys):
    output = models / "exported" / "post"
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    command = ["export", "--model", str(models / "pre"), "--to", "ctranslate2"]
    assert main([*command, "--output", str(output)]) == 1
    assert capsys.readouterr().err == f"metabt: error: {output}: there is a model already\n"
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
    assert sorted(path.name for path in output.parent.iterdir()) == ["post", "pre"]


def failing_save(self, directory):
    (Path(directory) / "model.bin").write_bytes(b"half")
    raise OSError(28, "No space left on device")


def test_an_export_that_fails_leaves_no_model(trained, tmp_path, monkeypatch, capsys):
    """No directory under the name that was asked for, and the next attempt succeeds."""
    specs = pytest.importorskip("ctranslate2.specs")
    output = tmp_path / "out"
    command = ["export", "--model", str(trained), "--to", "ctranslate2", "--output", str(output)]
    with monkeypatch.context() as patch:
        patch.setattr(specs.TransformerSpec, "save", failing_save)
        assert main(command) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert not output.exists()
    assert main(command) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_export_that_fails_tidies_up(trained, tmp_path, monkeypatch):
    """Nothing half-written under any name."""
    specs = pytest.importorskip("ctranslate2.specs")
    monkeypatch.setattr(specs.TransformerSpec, "save", failing_save)
    with pytest.raises(OSError, match="No space left"):
        to_ctranslate2(trained, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_export_beside_other_files(trained, tmp_path, capsys):
    """A directory that is not empty: into it, or a word that names it; never something half."""
    pytest.importorskip("ctranslate2")
    output = tmp_path / "out"
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    command = ["export", "--model", str(trained), "--to", "ctranslate2", "--output", str(output)]
    code = main(command)
    assert (output / "notes.txt").read_text() == "mine"
    assert (output / "model.bin").exists() == (code == 0)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert code == 0 or f"metabt: error: {output}: " in capsys.readouterr().err


def test_an_export_into_an_empty_directory(trained, tmp_path):
    pytest.importorskip("ctranslate2")
    to_ctranslate2(trained, tmp_path)
    assert (tmp_path / "model.bin").exists()


def test_a_damaged_model_is_not_exported(copied, tmp_path):
    pytest.importorskip("ctranslate2")
    (copied / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=re.escape(str(copied / "model.safetensors"))):
        to_ctranslate2(copied, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_export_without_ctranslate2(trained, tmp_path, monkeypatch, capsys):
    """It is optional: how to get it is said in a sentence."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "ctranslate2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    output = tmp_path / "out"
    command = ["export", "--model", str(trained), "--to", "ctranslate2", "--output", str(output)]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert error == "metabt: error: ctranslate2 is not installed: pip install ctranslate2\n"
    assert list(tmp_path.iterdir()) == []
