"""Corpora in the three invented languages of grammar.py, in the forms that a config can name.

Plain text for the standard setting, and an archive in the layout of TED for the multilingual one:
all its rows have T and S', but only the first of its training part have S.
"""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from metabt.data.grammar import RELATED, Difficulty, Lexicon, S, Speaker, T
from metabt.files import atomic_write

ROWS_PER_TALK = 100


@dataclass(frozen=True)
class Sizes:
    """Sentences of each corpus."""

    pairs: int = 700  # T-S, plain text
    mono: int = 5000  # S, plain text
    low_resource: int = 900  # rows of the archive's training part that have S
    related: int = 5000  # rows of the archive's training part: T-S'
    held_out: int = 300  # each of MetaDev, dev and test


def synthesise(output: Path, sizes: Sizes, difficulty: Difficulty, seed: int) -> None:
    """Write {train,metadev,dev,test}.{qat,qas}, mono.qas and talks.tar."""
    speaker = Speaker(Lexicon(difficulty, seed), seed)
    held_out = dict.fromkeys(("metadev", "dev", "test"), sizes.held_out)
    for name, count in {"train": sizes.pairs, **held_out}.items():
        sentences = [speaker.sentence() for _ in range(count)]
        for language in (T, S):
            _write(output / f"{name}.{language}", [speaker.say(s, language) for s in sentences])
    mono = [speaker.say(speaker.sentence(), S) for _ in range(sizes.mono)]
    _write(output / f"mono.{S}", mono)
    parts = {"train": (sizes.related, sizes.low_resource)}
    parts |= dict.fromkeys(("dev", "test"), (sizes.held_out, sizes.held_out))
    with atomic_write(output / "talks.tar") as handle, tarfile.open(None, "w", handle) as archive:
        for name, (rows, with_s) in parts.items():
            text = _table(speaker, name, rows, with_s)
            member = tarfile.TarInfo(f"all_talks_{name}.tsv")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))


def _write(path: Path, lines: list[str]) -> None:
    with atomic_write(path) as handle:
        handle.write("".join(f"{line}\n" for line in lines).encode("utf-8"))


def _table(speaker: Speaker, part: str, rows: int, with_s: int) -> bytes:
    lines = ["\t".join(["talk_name", T, S, RELATED])]
    for row in range(rows):
        sentence = speaker.sentence()
        said = {language: speaker.say(sentence, language) for language in (T, S, RELATED)}
        if row >= with_s:
            said[S] = "__NULL__"
        lines.append("\t".join([f"{part}_{row // ROWS_PER_TALK}", *said.values()]))
    return ("\n".join(lines) + "\n").encode("utf-8")
