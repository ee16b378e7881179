"""Three small invented languages: T, S, and S's relative S'.

One tree of meanings is drawn and said in each of them, so that the three are translations of each
other. Everything follows from a seed.

T (qat)   subject [not] verb object [place] [adverb]
          phrase: article adjective* noun; the verb agrees with its subject in number
          "the rud mibes not goraden a fest tul the dal"

S (qas)   [place] subject object [adverb] verb
          phrase: noun adjective* article; adjectives, articles and verbs agree with a gender that
          is never seen on the noun itself; the article also says the case

S' (qar)  S after regular sound changes, with some words of its own, some borrowed from T, and some
          false friends: words of S that mean something else

Copying is not translating, and neither is a dictionary. Two nouns of S, of different genders, may
have the same form: the article beside them tells which is meant. A verb with an object and one
without may have the same form, too: whether there is an object tells.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from metabt.errors import UserError

T, S, RELATED = "qat", "qas", "qar"

# Sounds. Every sound that changes on the way from S to S' stands in `CHANGES`.
T_CONSONANTS = ("b", "d", "f", "g", "k", "l", "m", "n", "r", "s", "st", "t", "th", "w")
T_VOWELS = "aeiou"
S_CONSONANTS = ("d", "f", "h", "l", "m", "n", "p", "r", "s", "t", "c", "v", "ş", "ğ")
S_VOWELS = "aeiouöü"
CHANGES = (("ş", "x"), ("ğ", "gh"), ("v", "b"), ("ö", "oa"), ("ü", "ui"), ("c", "tz"))

# Words and endings of grammar. No sound of S's changes: S' has the same, and nothing but its words
# tells the two apart.
T_JOINT, T_NOT, T_PLURAL = "and", "not", "es"
T_ARTICLE = {True: ("the", "the"), False: ("a", "some")}  # definite or not: singular, plural
T_TENSE = {True: ("ed", "ode"), False: ("eth", "en")}  # past or not: singular, plural
S_JOINT, S_NOT, S_PLURAL = "pe", "me", "lo"
S_ARTICLE = {True: "t", False: "m"}  # definite or not; then the gender's vowel and the case
S_GENDER = ("a", "o")
S_CASE = {"subject": "", "object": "s", "place": "f"}
S_TENSE = {True: "du", False: "no"}  # past or not; then the subject's gender
S_AGREEMENT = ("r", "s")

# Classes of words, and their shares of the lexicon.
CLASSES = {
    "noun": 0.48,
    "adjective": 0.18,
    "transitive": 0.16,
    "intransitive": 0.1,
    "adverb": 0.05,
    "preposition": 0.03,
}


@dataclass(frozen=True)
class Difficulty:
    """How large the lexicon is, how ambiguous S, and how near S' is to it.

    Of the words of S', `kept` have the form of S, `different` are their own, `borrowed` come from
    T, and `false_friends` have the form of another word of S; all others differ from S by the
    sound changes.
    """

    words: int = 140
    homonyms: float = 0.2  # share of the nouns, and of the verbs without object, that have a twin
    kept: float = 0.1
    different: float = 0.15
    borrowed: float = 0.15
    false_friends: float = 0.3
    second_clause: float = 0.05  # share of the sentences with two clauses

    def __post_init__(self) -> None:
        if self.kept + self.different + self.borrowed + self.false_friends > 1:
            raise UserError("kept, different, borrowed and false friends: more than all words")


@dataclass(frozen=True)
class Phrase:
    noun: int
    adjectives: tuple[int, ...]
    plural: bool
    definite: bool


@dataclass(frozen=True)
class Clause:
    """A verb without object is one of the intransitive ones."""

    subject: Phrase
    verb: int
    object: Phrase | None
    place: tuple[int, Phrase] | None  # a preposition and what it governs
    adverb: int | None
    past: bool
    negated: bool


Sentence = tuple[Clause, ...]
Stems = dict[str, list[str]]  # of one language, by class


def change_sounds(word: str) -> str:
    """What S' made of a word of S."""
    for old, new in CHANGES:
        word = word.replace(old, new)
    return word


class Lexicon:
    """Stems of the three languages, by class and number, and the gender of each noun.

    Stems of a language are all different, but for the homonyms and false friends that are asked
    for. `origin` says of each meaning where S' has its word from.
    """

    def __init__(self, difficulty: Difficulty, seed: int) -> None:
        self.difficulty = difficulty
        self._random = random.Random(seed)
        self._taken = {T_JOINT, T_NOT, S_JOINT, *T_ARTICLE[True], *T_ARTICLE[False]}
        for article in S_ARTICLE.values():
            self._taken |= {article + g + c for g in S_GENDER for c in S_CASE.values()}
        self.stems: dict[str, Stems] = {T: {}, S: {}, RELATED: {}}
        self.origin: dict[str, list[str]] = {}
        for name, share in CLASSES.items():
            count = max(4, round(share * difficulty.words))
            self.origin[name] = self._origins(count)
            self.stems[T][name] = [self._new_t() for _ in range(count)]
            self.stems[S][name] = [self._new_s(origin) for origin in self.origin[name]]
        # Frequent and rare nouns are of both genders.
        self.gender = [number % 2 for number in range(len(self.stems[T]["noun"]))]
        self.homonyms = {"noun": self._join_nouns(), "verb": self._join_verbs()}
        for name in CLASSES:
            self.stems[RELATED][name] = self._relatives(name)

    # --- drawing words ----------------------------------------------------------------------------

    def _origins(self, count: int) -> list[str]:
        """Where each word of S' is from: as many of each kind as the shares say, in any order."""
        d = self.difficulty
        shares = {
            "kept": d.kept,
            "different": d.different,
            "borrowed": d.borrowed,
            "false friend": d.false_friends,
        }
        origins = [name for name, share in shares.items() for _ in range(round(share * count))]
        if origins.count("false friend") == 1:  # it takes two
            origins.remove("false friend")
        origins += ["changed"] * (count - len(origins))
        self._random.shuffle(origins)
        return origins[:count]

    def _new(self, make: Callable[[], str], fits: Callable[[str], bool]) -> str:
        """A word that no language has, nor would have after the sound changes."""
        while True:
            word = make()
            if fits(word) and not {word, change_sounds(word)} & self._taken:
                self._taken |= {word, change_sounds(word)}
                return word

    def _word(self, consonants: tuple[str, ...], vowels: str, ends: str) -> str:
        pick = self._random.choice
        count = self._random.choice((1, 2, 2, 3))
        return "".join(pick(consonants) + pick(vowels) for _ in range(count)) + pick(ends)

    def _new_t(self) -> str:
        return self._new(lambda: self._word(T_CONSONANTS, T_VOWELS, "bdfgklmnrt"), bool)

    def _new_s(self, origin: str) -> str:
        """A word of S; of those that S' keeps, or takes for another meaning, no sound changes."""
        same = origin in ("kept", "false friend")
        return self._new(
            lambda: self._word(S_CONSONANTS, S_VOWELS, "dfhlmnprst"),
            lambda word: (change_sounds(word) == word) == same,
        )

    # --- words that look alike --------------------------------------------------------------------

    def _join_nouns(self) -> list[tuple[int, int]]:
        """Pairs of nouns of different genders that get one form in S."""
        wanted = round(self.difficulty.homonyms * len(self.gender) / 2)
        pairs = []
        for origin in ("kept", "changed"):
            numbers = [n for n, found in enumerate(self.origin["noun"]) if found == origin]
            by_gender = [[n for n in numbers if self.gender[n] == g] for g in (0, 1)]
            pairs += list(zip(*by_gender, strict=False))
        pairs = sorted(pairs, key=lambda pair: pair[0])[:wanted]
        for one, other in pairs:
            self.stems[S]["noun"][other] = self.stems[S]["noun"][one]
        return pairs

    def _join_verbs(self) -> list[tuple[int, int]]:
        """Pairs of a transitive and an intransitive verb that get one form in S."""
        wanted = round(self.difficulty.homonyms * len(self.origin["intransitive"]))
        pairs = []
        for origin in ("kept", "changed"):
            by_class = [
                [n for n, found in enumerate(self.origin[name]) if found == origin]
                for name in ("transitive", "intransitive")
            ]
            pairs += list(zip(*by_class, strict=False))
        pairs = sorted(pairs, key=lambda pair: pair[0])[:wanted]
        for one, other in pairs:
            self.stems[S]["intransitive"][other] = self.stems[S]["transitive"][one]
        return pairs

    def _relatives(self, name: str) -> list[str]:
        """The words of S' of one class."""
        own, words = self.stems[S][name], []
        friends = [n for n, origin in enumerate(self.origin[name]) if origin == "false friend"]
        meant_by = dict(zip(friends, friends[1:] + friends[:1], strict=True))
        for number, origin in enumerate(self.origin[name]):
            if origin == "different":
                words.append(change_sounds(self._new_s("different")))
            elif origin == "borrowed":
                words.append(self.stems[T][name][number])
            else:
                words.append(change_sounds(own[meant_by.get(number, number)]))
        return words


class Speaker:
    """Draws sentences as trees, and says them in any of the languages."""

    def __init__(self, lexicon: Lexicon, seed: int) -> None:
        self.lexicon = lexicon
        self._random = random.Random(seed)
        # Some words are much more frequent than others, but none is most of the text.
        self._weights = {
            name: list(accumulate(1 / (rank + 5) for rank in range(len(stems))))
            for name, stems in lexicon.stems[T].items()
        }

    # --- meaning ----------------------------------------------------------------------------------

    def _pick(self, name: str) -> int:
        weights = self._weights[name]
        return self._random.choices(range(len(weights)), cum_weights=weights)[0]

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _phrase(self) -> Phrase:
        adjectives = tuple(self._pick("adjective") for _ in range(self._chance(0.4)))
        return Phrase(self._pick("noun"), adjectives, self._chance(0.3), self._chance(0.6))

    def _clause(self) -> Clause:
        has_object = self._chance(0.65)
        return Clause(
            subject=self._phrase(),
            verb=self._pick("transitive" if has_object else "intransitive"),
            object=self._phrase() if has_object else None,
            place=(self._pick("preposition"), self._phrase()) if self._chance(0.25) else None,
            adverb=self._pick("adverb") if self._chance(0.25) else None,
            past=self._chance(0.5),
            negated=self._chance(0.15),
        )

    def sentence(self) -> Sentence:
        second = self._chance(self.lexicon.difficulty.second_clause)
        return tuple(self._clause() for _ in range(1 + second))

    # --- speech -----------------------------------------------------------------------------------

    def say(self, sentence: Sentence, language: str) -> str:
        stems = self.lexicon.stems[language]
        speak, joint = (self._t_clause, T_JOINT) if language == T else (self._s_clause, S_JOINT)
        words = list(speak(sentence[0], stems))
        for clause in sentence[1:]:
            words += [joint, *speak(clause, stems)]
        return " ".join(words)

    def _t_clause(self, clause: Clause, stems: Stems) -> Iterator[str]:
        yield from self._t_phrase(clause.subject, stems)
        if clause.negated:
            yield T_NOT
        yield self._verb(clause, stems) + T_TENSE[clause.past][clause.subject.plural]
        if clause.object:
            yield from self._t_phrase(clause.object, stems)
        if clause.place:
            yield stems["preposition"][clause.place[0]]
            yield from self._t_phrase(clause.place[1], stems)
        if clause.adverb is not None:
            yield stems["adverb"][clause.adverb]

    def _t_phrase(self, phrase: Phrase, stems: Stems) -> Iterator[str]:
        yield T_ARTICLE[phrase.definite][phrase.plural]
        yield from (stems["adjective"][number] for number in phrase.adjectives)
        yield stems["noun"][phrase.noun] + (T_PLURAL if phrase.plural else "")

    def _s_clause(self, clause: Clause, stems: Stems) -> Iterator[str]:
        if clause.place:
            yield from self._s_phrase(clause.place[1], "place", stems)
            yield stems["preposition"][clause.place[0]]
        yield from self._s_phrase(clause.subject, "subject", stems)
        if clause.object:
            yield from self._s_phrase(clause.object, "object", stems)
        if clause.adverb is not None:
            yield stems["adverb"][clause.adverb]
        agreement = S_AGREEMENT[self.lexicon.gender[clause.subject.noun]]
        ending = (S_NOT if clause.negated else "") + S_TENSE[clause.past] + agreement
        yield self._verb(clause, stems) + ending

    def _s_phrase(self, phrase: Phrase, case: str, stems: Stems) -> Iterator[str]:
        gender = S_GENDER[self.lexicon.gender[phrase.noun]]
        yield stems["noun"][phrase.noun] + (S_PLURAL if phrase.plural else "")
        yield from (stems["adjective"][number] + gender for number in phrase.adjectives)
        yield S_ARTICLE[phrase.definite] + gender + S_CASE[case]

    def _verb(self, clause: Clause, stems: Stems) -> str:
        return stems["transitive" if clause.object else "intransitive"][clause.verb]
