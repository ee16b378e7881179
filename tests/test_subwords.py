"""Subwords: what goes in comes out, in every language, and the same bytes on every machine."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from metabt.data import subwords as module
from metabt.data.subwords import (
    BOS,
    EOS,
    MAX_VOCABULARY,
    PAD,
    SPECIALS,
    UNK,
    Subwords,
    encode_blocks,
    train_bpe,
    train_sentencepiece,
    write_vocabulary,
)
from metabt.errors import UserError

LATIN = "abcdefghijklmnopqrstuvwxyz"
LOWER = {
    "az": "abcçdeəfgğhxıijkqlmnoöprsştuüvyz",
    "be": "абвгдеёжзійклмнопрстуўфхцчшыьэюя",
    "gl": LATIN + "ñáéíóúüï",
    "sk": LATIN + "áäčďéíĺľňóôŕšťúýž",
    "tr": "abcçdefgğhıijklmnoöprsştuüvyzâîû",
    "ru": "абвгдеёжзийклмнопрстуфхцчшщъыьэюя",
    "pt": LATIN + "áâãàçéêíóôõúü",
    "cs": LATIN + "áčďéěíňóřšťúůýž",
    "en": LATIN,
    "de": LATIN + "äöüß",
    "fr": LATIN + "àâæçéèêëîïôœùûüÿ",
}
# str.upper knows nothing of the dotted and the dotless i, and makes two letters of ß.
UPPER = {
    language: "".join(
        {"i": "İ" if language in ("az", "tr") else "I", "ß": "ẞ"}.get(c, c.upper()) for c in lower
    )
    for language, lower in LOWER.items()
}
COMMON = "0123456789.,:;!?()[]{}<>/\\|-–—'\"’‘“”„«»&%$€§+*=@#_~^°"
ALPHABETS = {language: LOWER[language] + UPPER[language] + COMMON for language in LOWER}
EVERYTHING = "".join(sorted(set("".join(ALPHABETS.values()))))
SPACES = [" ", " ", " ", "  ", "\t", "\u00a0", "\u3000", "\u2581", " \u2581 "]


def corpus(language: str, lines: int = 250) -> list[str]:
    """Words of a made-up language in the letters of a real one, and each character a few times."""
    draw = random.Random(language)
    syllables = ["".join(draw.choices(LOWER[language], k=draw.choice((2, 3)))) for _ in range(80)]
    words = ["".join(draw.choices(syllables, k=draw.choice((1, 2, 3)))) for _ in range(400)]
    alphabet = " ".join(ALPHABETS[language]) + " " + ALPHABETS[language]
    return [" ".join(draw.choices(words, k=8)) + "." for _ in range(lines)] + [alphabet] * 2


def sentencepiece_model(lines: list[str], model: Path, size: int) -> None:
    train_sentencepiece(lines, model, size=size, model_type="unigram", character_coverage=1.0)


def bpe_model(lines: list[str], model: Path, size: int) -> None:
    train_bpe(lines, model, size=size)


@pytest.fixture(scope="session")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subwords]:
    """All eleven languages in one vocabulary, for both kinds, joint and separate."""
    found = {}
    train: Callable[[list[str], Path, int], None]
    for kind, train in (("sentencepiece", sentencepiece_model), ("bpe", bpe_model)):
        folder = tmp_path_factory.mktemp(kind)
        joint = folder / "joint.model"
        train([line for language in LOWER for line in corpus(language)], joint, 1200)
        write_vocabulary(dict.fromkeys(LOWER, joint), folder / "joint.json")
        separate = {language: folder / f"{language}.model" for language in LOWER}
        for language, model in separate.items():
            train(corpus(language), model, 260)
        write_vocabulary(separate, folder / "separate.json")
        for name in ("joint", "separate"):
            found[f"{kind} {name}"] = Subwords.load(folder / f"{name}.json")
    return found


ALL = ["sentencepiece joint", "sentencepiece separate", "bpe joint", "bpe separate"]


@pytest.fixture
def deadline() -> Iterator[None]:
    """A hang becomes a failure."""

    def expired(*_: object) -> None:
        raise TimeoutError("the test hangs")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# --- there and back -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_decode_gives_back_the_normal_form(
    vocabularies: dict[str, Subwords], name: str, data: st.DataObject
) -> None:
    subwords = vocabularies[name]
    language = data.draw(st.sampled_from(sorted(LOWER)))
    alphabet = EVERYTHING if name.endswith("joint") else ALPHABETS[language]
    token = st.one_of(
        st.sampled_from(alphabet),
        st.sampled_from(SPACES),
        st.sampled_from(
            [*corpus(language)[0].split(), "@@", "a@@", "</w>", "<s>", "</s>", "<unk>"]
        ),
    )
    letters = set(alphabet) | set(" \t\u00a0\u3000\u2581")
    line = "".join(data.draw(st.lists(token, max_size=40)))
    line = "".join(c for c in line if c in letters)
    (ids,) = subwords.encode([line], language)
    assert UNK not in ids.tolist()
    assert subwords.decode(ids) == subwords.normalise(line, language)
    # None of these letters changes in NFKC, so only white space may.
    assert subwords.normalise(line, language) == " ".join(line.replace("\u2581", " ").split())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("language", sorted(LOWER))
def test_real_looking_lines(vocabularies: dict[str, Subwords], name: str, language: str) -> None:
    subwords = vocabularies[name]
    lines = corpus(language)[:50]
    assert [subwords.decode(ids) for ids in subwords.encode(lines, language)] == lines
    assert [subwords.normalise(line, language) for line in lines] == lines


@pytest.mark.parametrize("name", ALL)
def test_empty_lines_have_no_ids(vocabularies: dict[str, Subwords], name: str) -> None:
    subwords = vocabularies[name]
    for blank in ("", " ", "\u3000 \t", "\u2581"):
        assert [ids.tolist() for ids in subwords.encode([blank, "a", blank], "en")][::2] == [[], []]
        assert subwords.normalise(blank, "en") == ""
    ids, lengths = subwords.encode_flat([], "en")
    assert ids.size == lengths.size == 0
    assert subwords.decode([]) == ""


def test_sentencepiece_normal_form(vocabularies: dict[str, Subwords]) -> None:
    subwords = vocabularies["sentencepiece joint"]
    for line, expected in [
        ("  two   words ", "two words"),
        ("ﬁne №２…", "fine No2..."),
        ("e\u0301a\u0308", "éä"),
        ("a\u200bb\u00a0c", "a b c"),
        ("\u2581a\u2581 \u2581b\u2581", "a b"),
        ("a\u0007b", "ab"),
    ]:
        assert subwords.normalise(line, "de") == expected
        assert subwords.decode(subwords.encode([line], "de")[0]) == expected


def test_bpe_leaves_text_alone(vocabularies: dict[str, Subwords]) -> None:
    subwords = vocabularies["bpe joint"]
    line = "a@@ @@ b@@@@ </w> x</w>y </w></w>"
    assert subwords.normalise("  " + line.replace(" ", " \u2581 "), "en") == line
    assert subwords.decode(subwords.encode([line], "en")[0]) == line


def test_a_merge_that_the_text_spells_with_the_end_mark(tmp_path: Path) -> None:
    lines = ["ba</w>b a</w> ba cba</w>c ba</w>"] * 20
    train_bpe(lines, tmp_path / "m", size=60)
    write_vocabulary({"en": tmp_path / "m"}, tmp_path / "v.json")
    subwords = Subwords.load(tmp_path / "v.json")
    for line in [*lines, "ba</w>ba</w>", "b</w>", "</w>", "cba</w></w>ba"]:
        (ids,) = subwords.encode([line], "en")
        assert subwords.decode(ids) == line
        assert UNK not in ids.tolist()


@pytest.mark.parametrize("name", ALL)
def test_unknown_characters(vocabularies: dict[str, Subwords], name: str) -> None:
    subwords = vocabularies[name]
    (ids,) = subwords.encode(["a 漢 b"], "en")
    assert ids.tolist().count(UNK) == 1
    assert subwords.decode(ids) == "a  \u2047  b"


@pytest.mark.parametrize("name", ALL)
def test_specials_vanish(vocabularies: dict[str, Subwords], name: str) -> None:
    subwords = vocabularies[name]
    (ids,) = subwords.encode(["two words"], "en")
    assert subwords.decode([BOS, *ids, EOS, PAD, PAD]) == "two words"
    assert subwords.decode(ids.astype(np.int64)) == "two words"


# --- one id space -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_vocabulary(vocabularies: dict[str, Subwords], name: str) -> None:
    subwords = vocabularies[name]
    assert tuple(subwords.pieces[:4]) == SPECIALS
    assert subwords.size == len(subwords.pieces) == len(set(subwords.pieces))
    assert subwords.languages == tuple(LOWER)
    stored = json.loads(subwords.path.read_text())
    assert set(stored["models"]) == set(LOWER)
    assert not any("/" in model for model in stored["models"].values())
    assert set(stored["sha256"]) == set(stored["models"].values())
    assert stored["kind"] == name.split()[0]


@pytest.mark.parametrize("name", ALL[:2])
@pytest.mark.parametrize("language", ["az", "ru", "en"])
def test_pieces_are_those_of_sentencepiece(
    vocabularies: dict[str, Subwords], name: str, language: str
) -> None:
    subwords = vocabularies[name]
    file = "joint" if name.endswith("joint") else language
    model = sentencepiece.SentencePieceProcessor(str(subwords.path.with_name(f"{file}.model")))
    lines = [*corpus(language), "漢 a漢字b"]
    for ids, line in zip(subwords.encode(lines, language), lines, strict=True):
        expected = [
            p if model.piece_to_id(p) else "<unk>" for p in model.encode(line, out_type=str)
        ]
        assert [subwords.pieces[i] for i in ids] == expected
    if name.endswith("joint"):
        draw = random.Random(1)
        for _ in range(300):
            sampled = draw.choices(range(model.get_piece_size()), k=8)
            assert subwords.decode([i + 3 for i in sampled]) == model.decode(sampled)


def test_union_by_surface(vocabularies: dict[str, Subwords]) -> None:
    subwords = vocabularies["sentencepiece separate"]
    models = {
        language: sentencepiece.SentencePieceProcessor(
            str(subwords.path.with_name(f"{language}.model"))
        )
        for language in subwords.languages
    }
    in_order = [m.id_to_piece(i) for m in models.values() for i in range(1, m.get_piece_size())]
    assert subwords.pieces == [*SPECIALS, *dict.fromkeys(in_order)]
    assert subwords.size < len(in_order)  # some pieces are shared
    digits = {subwords.encode(["2"], language)[0].tolist()[-1] for language in models}
    assert len(digits) == 1  # one surface, one id


@pytest.mark.parametrize("name", ["sentencepiece separate", "bpe separate"])
def test_mixed_languages_decode(vocabularies: dict[str, Subwords], name: str) -> None:
    subwords = vocabularies[name]
    az, tr, ru = (corpus(language)[0] for language in ("az", "tr", "ru"))
    mixed = np.concatenate(
        [
            subwords.encode([line], language)[0]
            for language, line in (("az", az), ("tr", tr), ("ru", ru))
        ]
    )
    assert subwords.decode(mixed) == f"{az} {tr} {ru}"


@pytest.mark.parametrize("name", ["sentencepiece separate", "bpe separate"])
def test_each_language_has_its_own_model(vocabularies: dict[str, Subwords], name: str) -> None:
    subwords = vocabularies[name]
    line = corpus("tr")[0]
    own, other = (subwords.encode([line], language)[0].tolist() for language in ("tr", "cs"))
    assert len(own) < len(other)
    assert UNK in subwords.encode(["я"], "en")[0].tolist()
    assert UNK not in subwords.encode(["я"], "be")[0].tolist()


@pytest.mark.parametrize("name", ALL)
def test_encode_flat(vocabularies: dict[str, Subwords], name: str) -> None:
    subwords = vocabularies[name]
    lines = ["", *corpus("gl"), "", "漢"]
    ids, lengths = subwords.encode_flat(lines, "gl")
    assert (ids.dtype, lengths.dtype) == (np.uint16, np.int64)
    each = subwords.encode(lines, "gl")
    assert np.array_equal(np.concatenate(each), ids)
    assert [len(one) for one in each] == lengths.tolist()
    alone = [subwords.encode([line], "gl")[0].tolist() for line in lines]
    assert alone == [one.tolist() for one in each]


def test_text_that_looks_like_a_special(tmp_path: Path) -> None:
    # SentencePiece cuts "<unk>" out of its training text: the letters must occur elsewhere too.
    lines = ["see <s> and </s>, <unk> and <pad> here", "<s>bulk</s> text<s> <pad>x<unk>"] * 200
    train_sentencepiece(lines, tmp_path / "sp", size=48, model_type="bpe", character_coverage=1.0)
    train_bpe(lines, tmp_path / "bpe", size=60)
    for model in ("sp", "bpe"):
        write_vocabulary({"en": tmp_path / model}, tmp_path / f"{model}.json")
        subwords = Subwords.load(tmp_path / f"{model}.json")
        assert model == "sp" or "\u2581<s>" in subwords.pieces
        for line in [*lines[:2], "<s>", "x <s>", "a<s>", "<unk>", "a </s><pad>"]:
            (ids,) = subwords.encode([line], "en")
            assert min(ids) > UNK
            assert subwords.decode(ids) == line


def test_bpe_word_cache_is_bounded(
    vocabularies: dict[str, Subwords], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CACHED_WORDS", 3)
    subwords = Subwords.load(vocabularies["bpe joint"].path)
    expected = vocabularies["bpe joint"].encode(corpus("fr"), "fr")
    assert all(map(np.array_equal, subwords.encode(corpus("fr"), "fr"), expected))
    assert len(subwords._models["fr"][0]._cache) <= 3  # type: ignore[union-attr]


# --- the same bytes everywhere ------------------------------------------------------------------

TRAIN = """
import os, sys
from pathlib import Path
os.sched_setaffinity(0, {int(sys.argv[1])})
from metabt.data.subwords import *
lines = Path(sys.argv[2]).read_text().split("\\n")
folder = Path(sys.argv[3])
train_sentencepiece(lines, folder / "sp", size=300, model_type="unigram", character_coverage=1.0)
train_bpe(lines, folder / "bpe", size=200)
for name in ("sp", "bpe"):
    write_vocabulary({"de": folder / name}, folder / (name + ".json"))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_training_is_deterministic(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join(corpus("de")))
    folders = []
    for i, cpu in enumerate([min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))]):
        folders.append(tmp_path / str(i))
        command = [sys.executable, "-c", TRAIN, str(cpu), str(tmp_path / "text"), str(folders[-1])]
        environment = os.environ | {
            "PYTHONHASHSEED": str(i),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert (done.stdout, done.stderr) == ("", "")
    here = tmp_path / "here"  # on all cores
    sentencepiece_model(corpus("de"), here / "sp", 300)
    bpe_model(corpus("de"), here / "bpe", 200)
    for name in ("sp", "bpe"):
        write_vocabulary({"de": here / name}, here / f"{name}.json")
    for name in ("sp", "bpe", "sp.json", "bpe.json"):
        contents = {(folder / name).read_bytes() for folder in (*folders, here)}
        assert len(contents) == 1, name
        assert str(tmp_path).encode() not in contents.pop()


def test_training_keeps_long_lines(tmp_path: Path) -> None:
    long = " ".join(corpus("en")) + " щука"
    assert len(long) > 10_000
    sentencepiece_model([long], tmp_path / "m", 300)
    write_vocabulary({"en": tmp_path / "m"}, tmp_path / "v.json")
    assert set("щука") <= set("".join(Subwords.load(tmp_path / "v.json").pieces))


@pytest.mark.parametrize("train", [sentencepiece_model, bpe_model])
def test_training_is_silent(
    train: Callable[..., None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(corpus("en"), tmp_path / "m", 300)
    with contextlib.suppress(UserError):
        train(corpus("en"), tmp_path / "m", 100_000)
    assert capfd.readouterr() == ("", "")


# --- mistakes -----------------------------------------------------------------------------------


def test_size_too_high(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"m: subwords\.size is 90000, .* at most (\d+) pieces"
    ) as raised:
        sentencepiece_model(corpus("en"), tmp_path / "m", 90_000)
    assert not (tmp_path / "m").exists()
    limit = int(str(raised.value).split()[-2])
    sentencepiece_model(corpus("en"), tmp_path / "m", limit)
    with pytest.raises(UserError, match=str(limit)):
        sentencepiece_model(corpus("en"), tmp_path / "m", limit + 1)


def test_size_too_low(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"subwords\.size is 9, .* characters"):
        sentencepiece_model(corpus("en"), tmp_path / "m", 9)
    with pytest.raises(UserError, match=r"subwords\.size is 0"):
        bpe_model(corpus("en"), tmp_path / "m", 0)


@pytest.mark.parametrize("train", [sentencepiece_model, bpe_model])
def test_bad_training_text(train: Callable[..., None], tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield from corpus("en")
        raise UserError("corpus.en, line 7: bad")

    with pytest.raises(UserError, match=r"m: the training text is empty"):
        train(["", "  "] if train is bpe_model else [], tmp_path / "m", 300)
    with pytest.raises(UserError, match=r"^corpus\.en, line 7: bad$"):
        train(broken(), tmp_path / "m", 300)
    assert not list(tmp_path.iterdir())


def test_vocabulary_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.iinfo(np.uint16).max == MAX_VOCABULARY
    bpe_model(corpus("en"), tmp_path / "m", 200)
    write_vocabulary({"en": tmp_path / "m"}, tmp_path / "v.json")
    size = Subwords.load(tmp_path / "v.json").size
    monkeypatch.setattr(module, "MAX_VOCABULARY", size)
    write_vocabulary({"en": tmp_path / "m"}, tmp_path / "v.json")
    monkeypatch.setattr(module, "MAX_VOCABULARY", size - 1)
    with pytest.raises(UserError, match=rf"w\.json: {size} pieces, .*subwords\.size"):
        write_vocabulary({"en": tmp_path / "m"}, tmp_path / "w.json")
    assert not (tmp_path / "w.json").exists()


def test_files_that_do_not_fit(vocabularies: dict[str, Subwords], tmp_path: Path) -> None:
    for name in ALL:
        folder = tmp_path / name
        folder.mkdir()
        original = vocabularies[name].path
        for file in original.parent.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        vocabulary = folder / original.name
        assert Subwords.load(vocabulary).pieces == vocabularies[name].pieces  # it can be moved
        stored = json.loads(vocabulary.read_text())
        model = folder / stored["models"]["tr"]
        content = model.read_bytes()
        other = original.with_name("joint.model" if "separate" in name else "tr.model")
        model.write_bytes(other.read_bytes())
        with pytest.raises(UserError, match="not the model"):
            Subwords.load(vocabulary)
        model.write_bytes(content[: len(content) // 2])
        with pytest.raises(UserError, match=f"{model.name}: not"):
            Subwords.load(vocabulary)
        model.unlink()
        with pytest.raises(UserError, match=f"{model.name}: cannot read"):
            Subwords.load(vocabulary)
        model.write_bytes(content)
        for change in ({"version": 2}, {"version": None}):
            vocabulary.write_text(json.dumps(stored | change))
            with pytest.raises(UserError, match="version 1"):
                Subwords.load(vocabulary)
        vocabulary.write_text(json.dumps(stored | {"pieces": stored["pieces"][:-1]}))
        with pytest.raises(UserError, match="is missing"):
            Subwords.load(vocabulary)


def test_kinds_do_not_mix(tmp_path: Path) -> None:
    sentencepiece_model(corpus("en"), tmp_path / "s", 300)
    bpe_model(corpus("tr"), tmp_path / "b", 100)
    with pytest.raises(UserError, match="one kind"):
        write_vocabulary({"en": tmp_path / "s", "tr": tmp_path / "b"}, tmp_path / "v.json")


def test_unknown_language(vocabularies: dict[str, Subwords]) -> None:
    with pytest.raises(UserError, match=r"json: no subwords for 'xx', only az, be"):
        vocabularies["bpe joint"].encode(["a"], "xx")


# --- many lines ---------------------------------------------------------------------------------


def joined(*sides: list[str]) -> tuple[bytes, ...]:
    return tuple("\n".join(lines).encode() for lines in sides)


def many_blocks(count: int) -> Iterator[tuple[list[str], list[str]]]:
    for i in range(count):
        source, target = corpus("az", 40 + i), corpus("en", 40 + i)
        yield [f"{i} {line}" for line in source], [*target[1:], ""]
    yield [""], [""]


@pytest.mark.parametrize("name", ["sentencepiece separate", "bpe separate"])
def test_threads_do_not_matter(vocabularies: dict[str, Subwords], name: str) -> None:
    path = vocabularies[name].path
    wanted = [
        array
        for block in many_blocks(20)
        for lines, language in zip(block, ("az", "en"), strict=True)
        for array in vocabularies[name].encode_flat(lines, language)
    ]
    for threads in (1, 2, 3):
        blocks = (joined(*block) for block in many_blocks(20))
        result = list(encode_blocks(path, blocks, ("az", "en"), threads))
        flat = [array for block in result for side in block for array in side]
        assert len(flat) == len(wanted)
        assert all(map(np.array_equal, flat, wanted))
        assert [array.dtype for array in flat] == [array.dtype for array in wanted]


def test_errors_reach_the_caller(vocabularies: dict[str, Subwords], deadline: None) -> None:
    path = vocabularies["sentencepiece joint"].path
    with pytest.raises(UserError, match="no subwords for 'xx'"):
        list(encode_blocks(path, [(b"a",)], ["xx"], 2))

    def broken() -> Iterator[tuple[bytes]]:
        yield (b"a",)
        raise UserError("corpus.en, line 2: bad")

    with pytest.raises(UserError, match=r"corpus\.en, line 2"):
        list(encode_blocks(path, broken(), ["en"], 2))


def test_blocks_in_flight_are_bounded(vocabularies: dict[str, Subwords], deadline: None) -> None:
    taken = 0

    def endless() -> Iterator[tuple[bytes]]:
        nonlocal taken
        while True:
            taken += 1
            yield (b"a",)

    results = encode_blocks(vocabularies["bpe joint"].path, endless(), ["en"], 2)
    for _ in range(30):
        next(results)
    assert taken <= 30 + 4
    results.close()  # type: ignore[attr-defined]
