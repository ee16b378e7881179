"""The invented languages: read back by a reader that shares no code with their speaker."""

import io
import tarfile
from collections import defaultdict

import pytest

from metabt.cli import main
from metabt.data.grammar import (
    CHANGES,
    CLASSES,
    RELATED,
    Clause,
    Difficulty,
    Lexicon,
    Phrase,
    S,
    Speaker,
    T,
    change_sounds,
)

HARD = Difficulty(words=200, homonyms=0.5, kept=0.4, false_friends=0.1, second_clause=0.5)


class Reader:
    """Reads a sentence word by word; whatever the grammar does not allow is an error."""

    def __init__(self, lexicon, language):
        self.lexicon, self.language = lexicon, language
        self.meanings = defaultdict(list)  # stem -> (class, number)
        for name, stems in lexicon.stems[language].items():
            for number, stem in enumerate(stems):
                self.meanings[stem].append((name, number))

    def read(self, text):
        joint = {T: "and", S: "pe", RELATED: "pe"}[self.language]
        parts, part = [], []
        for word in text.split():
            if word == joint:
                parts.append(part)
                part = []
            else:
                part.append(word)
        clause = self.t_clause if self.language == T else self.s_clause
        return tuple(clause(words) for words in [*parts, part])

    def numbers(self, stem, name):
        return [number for found, number in self.meanings.get(stem, []) if found == name]

    def one(self, stem, name):
        (number,) = self.numbers(stem, name)
        return number

    # --- T ----------------------------------------------------------------------------------------

    def t_clause(self, words):
        words = [*words, None]
        subject, words = self.t_phrase(words)
        negated = words[0] == "not"
        words = words[negated:]
        verb, past, plural = self.t_verb(words[0])
        assert plural == subject.plural  # agreement
        words = words[1:]
        thing = place = adverb = None
        if words[0] in ("the", "a", "some"):
            thing, words = self.t_phrase(words)
        if self.numbers(words[0], "preposition"):
            preposition = self.one(words[0], "preposition")
            governed, words = self.t_phrase(words[1:])
            place = (preposition, governed)
        if words[0] is not None:
            adverb, words = self.one(words[0], "adverb"), words[1:]
        assert words == [None]
        number = self.one(verb, "transitive" if thing else "intransitive")
        return Clause(subject, number, thing, place, adverb, past, negated)

    def t_verb(self, word):
        for ending, past, plural in (
            ("eth", False, False),
            ("en", False, True),
            ("ed", True, False),
            ("ode", True, True),
        ):
            if word.endswith(ending):
                return word.removesuffix(ending), past, plural
        raise AssertionError(word)

    def t_phrase(self, words):
        article, adjectives = words[0], []
        words = words[1:]
        while found := self.numbers(words[0], "adjective"):
            adjectives += found
            words = words[1:]
        plural = words[0].endswith("es")
        noun = self.one(words[0].removesuffix("es"), "noun")
        assert article in (("the", "some") if plural else ("the", "a"))
        return Phrase(noun, tuple(adjectives), plural, article == "the"), words[1:]

    # --- S and S' ---------------------------------------------------------------------------------

    def s_clause(self, words):
        phrases, place, words = {}, None, list(words)
        while any(self.article(word) for word in words):
            phrase, case, words = self.s_phrase(words)
            if case == "place":
                assert not phrases  # it comes first
                place, words = (self.one(words[0], "preposition"), phrase), words[1:]
            else:
                assert case not in phrases
                phrases[case] = phrase
        assert list(phrases) == ["subject", "object"][: len(phrases)]
        adverb = None
        if len(words) == 2:
            adverb, words = self.one(words[0], "adverb"), words[1:]
        stem, negated, past, gender = self.s_verb(words[0])
        assert gender == self.lexicon.gender[phrases["subject"].noun]  # agreement
        # A verb that looks like another is known by its object.
        verb = self.one(stem, "transitive" if "object" in phrases else "intransitive")
        thing = phrases.get("object")
        return Clause(phrases["subject"], verb, thing, place, adverb, past, negated)

    def s_verb(self, word):
        for past, tense in ((True, "du"), (False, "no")):
            for gender, agreement in enumerate("rs"):
                if word.endswith(tense + agreement):
                    stem = word.removesuffix(tense + agreement)
                    return stem.removesuffix("me"), stem.endswith("me"), past, gender
        raise AssertionError(word)

    def article(self, word):
        """Definite?, gender and case of an article; None of another word."""
        for definite, first in ((True, "t"), (False, "m")):
            for gender, vowel in enumerate("ao"):
                for case, last in (("subject", ""), ("object", "s"), ("place", "f")):
                    if word == first + vowel + last:
                        return definite, gender, case
        return None

    def s_phrase(self, words):
        end = next(i for i, word in enumerate(words) if self.article(word))
        definite, gender, case = self.article(words[end])
        plural = words[0].endswith("lo")
        nouns = self.numbers(words[0].removesuffix("lo"), "noun")
        # A noun that looks like another is known by the gender of its article.
        (noun,) = [n for n in nouns if self.lexicon.gender[n] == gender]
        vowel = "ao"[gender]
        assert all(word.endswith(vowel) for word in words[1:end])  # agreement
        adjectives = [self.one(word.removesuffix(vowel), "adjective") for word in words[1:end]]
        return Phrase(noun, tuple(adjectives), plural, definite), case, words[end + 1 :]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("language", [T, S, RELATED])
def test_what_is_said_can_be_read(language, seed):
    """Agreement holds, and context leaves one meaning to every sentence."""
    lexicon = Lexicon(HARD, seed)
    speaker, reader = Speaker(lexicon, seed), Reader(lexicon, language)
    for _ in range(400):
        sentence = speaker.sentence()
        assert reader.read(speaker.say(sentence, language)) == sentence


def test_words_of_s_mean_different_things_in_different_contexts():
    lexicon = Lexicon(HARD, 1)
    stems = lexicon.stems
    assert len(lexicon.homonyms["noun"]) == round(0.5 * len(stems[S]["noun"]) / 2)
    for one, other in lexicon.homonyms["noun"]:
        assert stems[S]["noun"][one] == stems[S]["noun"][other]
        assert stems[T]["noun"][one] != stems[T]["noun"][other]
        assert lexicon.gender[one] != lexicon.gender[other]
    for one, other in lexicon.homonyms["verb"]:
        assert stems[S]["transitive"][one] == stems[S]["intransitive"][other]
        assert stems[T]["transitive"][one] != stems[T]["intransitive"][other]
    # In text, too: the same noun and verb of S, another of T.
    speaker, seen = Speaker(lexicon, 1), defaultdict(set)
    for _ in range(3000):
        phrase = speaker.sentence()[0].subject
        seen[stems[S]["noun"][phrase.noun]].add(stems[T]["noun"][phrase.noun])
    assert sum(len(meanings) == 2 for meanings in seen.values()) >= 10
    assert max(map(len, seen.values())) == 2
    # Without homonyms, none.
    assert Lexicon(Difficulty(homonyms=0), 1).homonyms == {"noun": [], "verb": []}


def test_the_relative_has_as_much_of_s_as_is_asked_for():
    difficulty = Difficulty(
        words=1000, kept=0.25, different=0.1, borrowed=0.15, false_friends=0.2, homonyms=0.1
    )
    lexicon = Lexicon(difficulty, 3)
    for name in CLASSES:
        t, s, related = (lexicon.stems[language][name] for language in (T, S, RELATED))
        words = list(zip(t, s, related, strict=True))
        total = len(words)
        assert sum(a == b for _, a, b in words) == round(0.25 * total)
        assert sum(a == b for a, _, b in words) == round(0.15 * total)
        friends = [n for n, word in enumerate(related) if word in s and word != s[n]]
        assert len(friends) == round(0.2 * total)
        cognates = sum(b == change_sounds(a) != a for _, a, b in words)
        assert cognates == total - sum(round(x * total) for x in (0.25, 0.1, 0.15, 0.2))
        assert len(set(t)) == len(t)
        assert len(set(related)) >= len(set(s))
    vowels_and_more = {old for old, _ in CHANGES}
    assert not any(old in word for old in vowels_and_more for word in related)
    with pytest.raises(Exception, match="more than all words"):
        Difficulty(kept=0.9, borrowed=0.2)


def test_copying_is_not_translating():
    lexicon = Lexicon(Difficulty(), 1)
    speaker = Speaker(lexicon, 1)
    copied = words = 0
    for _ in range(500):
        sentence = speaker.sentence()
        t, s = (speaker.say(sentence, language).split() for language in (T, S))
        words += len(s)
        copied += len(set(s) & set(t))
    assert copied == 0 < words


def test_files(tmp_path, capsys):
    numbers = {"pairs": 40, "mono": 30, "related": 25, "low-resource": 10, "held-out": 20}
    sizes = [word for name, n in numbers.items() for word in (f"--{name}", str(n))]
    for name in ("one", "two"):
        assert main(["synthesise", "--output", str(tmp_path / name), *sizes]) == 0
    other = ["--seed", "2", *sizes]
    assert main(["synthesise", "--output", str(tmp_path / "other"), *other]) == 0
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) == 10
    for name in files:
        first = (tmp_path / "one" / name).read_bytes()
        assert first == (tmp_path / "two" / name).read_bytes()
        assert first != (tmp_path / "other" / name).read_bytes()
        if name != "talks.tar":
            count = {"train": 40, "mono": 30}.get(name.split(".")[0], 20)
            assert first.count(b"\n") == count
    with tarfile.open(tmp_path / "one" / "talks.tar") as archive:
        tables = {
            name: io.TextIOWrapper(archive.extractfile(name), encoding="utf-8").read().splitlines()
            for name in archive.getnames()
        }
    train = [line.split("\t") for line in tables["all_talks_train.tsv"]]
    assert train[0] == ["talk_name", T, S, RELATED]
    assert [row[2] == "__NULL__" for row in train[1:]] == [False] * 10 + [True] * 15
    assert [len(tables[f"all_talks_{part}.tsv"]) for part in ("dev", "test")] == [21, 21]
    assert main(["synthesise", "--output", str(tmp_path / "x"), "--kept", "0.99"]) == 1
    assert "more than all words" in capsys.readouterr().err
