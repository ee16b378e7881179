"""Text on this machine, as the readers understand it: files, or members of archives, and a format.

A source serialises to JSON, because the workflow hands it from the config to commands on nodes.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Format = Literal["text", "sgm", "tsv", "ted"]


@dataclass(frozen=True)
class File:
    """A file on this machine, or a member of an archive that is."""

    path: str
    member: str | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else self.path


@dataclass(frozen=True)
class Source:
    """One dataset as the readers see it: a file a side (text, sgm), or one for all (tsv, ted)."""

    name: str
    format: Format
    files: tuple[File, ...]
    columns: tuple[int, ...] = ()  # of a tsv: the sides' columns
    languages: tuple[str, ...] = ()  # of TED: the sides' languages
    required: tuple[str, ...] = ()  # of TED: languages that must be there, beside the sides'
    first: int = 0  # the range of pairs to take, counted from 0
    end: int | None = None
    every: int | None = None  # the range is of every so many pairs, not of all

    def number(self, taken: int) -> int:
        """Which pair of the files (from 1) is the one that is taken after `taken` others."""
        if self.every is None:
            return self.first + taken + 1
        assert self.end is not None
        rounds, within = divmod(taken, self.end - self.first)
        return rounds * self.every + self.first + within + 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Source":
        files = tuple(File(**f) for f in values["files"])
        tuples = {k: tuple(values[k]) for k in ("columns", "languages", "required")}
        return cls(**{**values, "files": files, **tuples})
