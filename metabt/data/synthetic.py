"""Three small invented languages, so that the whole workflow runs without any corpus.

T (qat)  The dogs saw a red house.        subject verb object, articles, adjectives before nouns
S (qas)  dog-PL house red-ACC see-PAST    subject object verb, adjectives after, case and number
S' (qar) S after regular sound changes, with a share of words of its own: a relative, as Portuguese
         is of Galician

One tree of concepts is drawn and said in each language, so that the three are translations of each
other. All words are made of syllables; everything follows from the seed.
"""

import io
import random
import tarfile
from dataclasses import dataclass
from pathlib import Path

from metabt.files import atomic_write

T, S, RELATED = "qat", "qas", "qar"
SYLLABLES = {
    T: (["b", "d", "f", "g", "k", "l", "m", "n", "r", "s", "st", "t", "th", "w"], "aeiou"),
    S: (["c", "d", "f", "h", "l", "m", "n", "p", "r", "s", "t", "v", "ş", "ğ"], "aeioöuü"),
}
SOUND_CHANGES = (("ş", "x"), ("ğ", "gh"), ("v", "b"), ("ö", "o"), ("ü", "u"), ("c", "tz"))
OWN_WORDS = 0.2  # the share of S' words that are not S's
NOUNS, VERBS, ADJECTIVES, ADVERBS = 400, 150, 100, 40


@dataclass(frozen=True)
class NounPhrase:
    noun: int
    adjectives: tuple[int, ...]
    plural: bool
    definite: bool


@dataclass(frozen=True)
class Clause:
    subject: NounPhrase
    verb: int
    object: NounPhrase | None
    adverb: int | None
    past: bool


class World:
    """The lexicons of the three languages, and clauses to be said in them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        sizes = {"noun": NOUNS, "verb": VERBS, "adjective": ADJECTIVES, "adverb": ADVERBS}
        self.words = {
            language: {kind: self._stems(language, n) for kind, n in sizes.items()}
            for language in (T, S)
        }
        self.words[RELATED] = {
            kind: [self._relative(stem) for stem in stems] for kind, stems in self.words[S].items()
        }

    def _stems(self, language: str, count: int) -> list[str]:
        consonants, vowels = SYLLABLES[language]
        stems: dict[str, None] = {}
        while len(stems) < count:
            syllables = self._random.choice((1, 2, 2, 2, 3))
            pick = self._random.choice
            stems["".join(pick(consonants) + pick(vowels) for _ in range(syllables))] = None
        return list(stems)

    def _relative(self, stem: str) -> str:
        if self._random.random() < OWN_WORDS:
            stem = self._stems(S, 1)[0]
        return change_sounds(stem)

    def _zipf(self, count: int) -> int:
        """Frequent words are much more frequent than rare ones."""
        return min(int(count ** self._random.random()), count) - 1

    def _noun_phrase(self) -> NounPhrase:
        number = self._random.choice((0, 0, 1, 1, 2))
        adjectives = tuple(self._zipf(ADJECTIVES) for _ in range(number))
        flags = self._random.random() < 0.3, self._random.random() < 0.6
        return NounPhrase(self._zipf(NOUNS), adjectives, *flags)

    def clauses(self) -> list[Clause]:
        """A sentence: one clause, sometimes two."""
        return [
            Clause(
                self._noun_phrase(),
                self._zipf(VERBS),
                self._noun_phrase() if self._random.random() < 0.7 else None,
                self._zipf(ADVERBS) if self._random.random() < 0.3 else None,
                self._random.random() < 0.5,
            )
            for _ in range(self._random.choice((1, 1, 2)))
        ]

    def say(self, clauses: list[Clause], language: str) -> str:
        speak = self._say_t if language == T else self._say_s
        joint = {T: " and ", S: " ve ", RELATED: " be "}[language]
        text = joint.join(speak(clause, self.words[language]) for clause in clauses)
        return text[0].upper() + text[1:] + "."

    def _say_t(self, clause: Clause, words: dict[str, list[str]]) -> str:
        def phrase(np: NounPhrase) -> list[str]:
            article = ["the"] if np.definite else [] if np.plural else ["a"]
            noun = words["noun"][np.noun] + ("s" if np.plural else "")
            return [*article, *(words["adjective"][a] for a in np.adjectives), noun]

        said = [*phrase(clause.subject), words["verb"][clause.verb] + ("ed" if clause.past else "")]
        said += phrase(clause.object) if clause.object else []
        said += [words["adverb"][clause.adverb] + "ly"] if clause.adverb is not None else []
        return " ".join(said)

    def _say_s(self, clause: Clause, words: dict[str, list[str]]) -> str:
        related = words is self.words[RELATED]

        def ending(suffix: str) -> str:
            return change_sounds(suffix) if related else suffix

        def phrase(np: NounPhrase, case: str) -> list[str]:
            noun = words["noun"][np.noun] + (ending("lör") if np.plural else "")
            said = [noun, *(words["adjective"][a] for a in np.adjectives)]
            return [*said[:-1], said[-1] + case + (ending("ü") if np.definite else "")]

        said = phrase(clause.subject, "")
        said += phrase(clause.object, ending("şi")) if clause.object else []
        said += [words["adverb"][clause.adverb]] if clause.adverb is not None else []
        tense = ending("dü") if clause.past else ending("ğor")
        return " ".join([*said, words["verb"][clause.verb] + tense])


def change_sounds(word: str) -> str:
    """What S' made of a word of S."""
    for old, new in SOUND_CHANGES:
        word = word.replace(old, new)
    return word


def synthesise(output: Path, pairs: int, low_resource: int, seed: int) -> None:
    """Write `pairs` T-S sentence pairs and more T text as plain files, and a TED-layout archive.

    In the archive's training part only the first `low_resource` rows have S; all have S'.
    """
    world = World(seed)
    for name, count in (("train", pairs), ("metadev", 300), ("dev", 300), ("test", 300)):
        sentences = [world.clauses() for _ in range(count)]
        for language in (T, S):
            _write(output / f"{name}.{language}", [world.say(s, language) for s in sentences])
    _write(output / f"mono.{S}", [world.say(world.clauses(), S) for _ in range(2 * pairs)])
    parts = {
        f"all_talks_{part}.tsv": _table(world, part, rows, with_s)
        for part, rows, with_s in (
            ("train", pairs, low_resource),
            ("dev", 300, 300),
            ("test", 300, 300),
        )
    }
    with atomic_write(output / "talks.tar") as handle, tarfile.open(None, "w", handle) as archive:
        for name, text in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))


def _write(path: Path, lines: list[str]) -> None:
    with atomic_write(path) as handle:
        handle.write("".join(f"{line}\n" for line in lines).encode("utf-8"))


def _table(world: World, part: str, rows: int, with_s: int) -> bytes:
    lines = ["\t".join(["talk_name", T, S, RELATED])]
    for row in range(rows):
        clauses = world.clauses()
        s = world.say(clauses, S) if row < with_s else "__NULL__"
        cells = [f"{part}_{row // 100}", world.say(clauses, T), s, world.say(clauses, RELATED)]
        lines.append("\t".join(cells))
    return ("\n".join(lines) + "\n").encode("utf-8")
