"""From the name of a dataset to files: where they are on the web and how they are read."""

import contextlib
import functools
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from metabt.config import Dataset, Pair
from metabt.data.download import Resource
from metabt.data.sources import File, Format, Source
from metabt.errors import UserError

if TYPE_CHECKING:
    from metabt.experiment import Experiment

TABLE = Path("resources/datasets.yaml")
DOWNLOADS = Path("resources/downloads")


@dataclass(frozen=True)
class Located:
    """A source, and what must be downloaded before it can be read."""

    source: Source
    resources: tuple[Resource, ...]


@functools.cache
def _table() -> dict[str, Any]:
    # The table belongs to the repository: beside the package, wherever the command is run from.
    path = Path(__file__).parents[2] / TABLE
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def resource(url: str, checksum: str | None = None) -> Resource:
    """The file at an address, with what the table knows of it."""
    known = _table()["files"].get(url, {})
    return Resource(
        url=url,
        mirrors=tuple(known.get("mirrors", ())),
        size=known.get("size"),
        checksum=checksum or known.get("checksum"),
    )


def locate(dataset: Dataset, sides: list[str], ted_archive: str) -> Located:
    """Find out what a dataset of the config is: its files, its format, what to fetch for it."""
    located = _LOCATORS[dataset.kind](dataset, sides, ted_archive)
    first, end = dataset.line_range
    cut = {"first": first, "end": end, "every": dataset.lines_of_every}
    source = Source(**{**vars(located.source), **cut})
    return Located(source, located.resources)


def locate_pair(pair: Pair, ted_archive: str) -> dict[str, list[Located]]:
    """All sets of a pair: role -> its datasets."""
    return {
        role: [locate(dataset, pair.sides(role), ted_archive) for dataset in datasets]
        for role, datasets in pair.roles().items()
    }


def faults(experiment: "Experiment") -> list[str]:
    """Every dataset of an experiment that means nothing, with its path in the config."""
    found = []
    for name, pair in experiment.pairs.items():
        for role, datasets in pair.roles().items():
            for i, dataset in enumerate(datasets):
                try:
                    locate(dataset, pair.sides(role), experiment.ted_archive)
                except UserError as error:
                    found.append(f"pairs.{name}, {role}[{i}]: {error}")
    return found


def resources(experiment: "Experiment") -> dict[str, tuple[Resource, list[str]]]:
    """Every file that an experiment downloads, with the pairs that need it; keyed by its path."""
    found: dict[str, tuple[Resource, list[str]]] = {}
    for name, pair in experiment.pairs.items():
        for located in locate_pair(pair, experiment.ted_archive).values():
            for item in (r for entry in located for r in entry.resources):
                known, pairs = found.get(item.path, (item, []))
                if known.checksum and item.checksum and known.checksum != item.checksum:
                    raise UserError(f"{item.url}: named twice, with different checksums")
                best = known if known.checksum else item
                found[item.path] = (best, pairs if name in pairs else [*pairs, name])
    return found


# ------------------------------------------------------------------------- one function a kind


def _text(name: str, files: list[File], format: Format = "text", **more: Any) -> Source:
    return Source(name=name, format=format, files=tuple(files), **more)


def _downloaded(item: Resource) -> str:
    return str(DOWNLOADS / item.path)


def _locate_url(dataset: Dataset, sides: list[str], ted_archive: str) -> Located:
    assert dataset.url
    if isinstance(dataset.sha256, dict) and not set(sides) <= set(dataset.sha256):
        raise UserError(f"{dataset.url}: sha256 must be given for {' and '.join(sides)}")
    urls = [dataset.url.replace("{lang}", side) for side in sides]
    items = []
    for url, side in zip(urls, sides, strict=True):
        digest = dataset.sha256.get(side) if isinstance(dataset.sha256, dict) else dataset.sha256
        items.append(resource(url, digest and f"sha256:{digest}"))
    source = _from_paths(dataset, dataset.url, sides, [_downloaded(i) for i in items])
    return Located(source, tuple(dict.fromkeys(items)))


def _locate_file(dataset: Dataset, sides: list[str], ted_archive: str) -> Located:
    assert dataset.file
    paths = [dataset.file.replace("{lang}", side) for side in sides]
    return Located(_from_paths(dataset, dataset.file, sides, paths), ())


def _from_paths(dataset: Dataset, name: str, sides: list[str], paths: list[str]) -> Source:
    files = []
    for path, side in zip(paths, sides, strict=True):
        files.append(File(path, dataset.member and dataset.member.replace("{lang}", side)))
    if dataset.format != "tsv":
        if len(set(files)) != len(sides):
            raise UserError(
                f"{name}: the same file for {' and '.join(sides)}; "
                "put {lang} into its name or member"
            )
        return _text(name, files, dataset.format)
    columns = dataset.columns or list(range(len(sides)))
    if len(columns) != len(sides):
        raise UserError(f"{name}: columns must be {len(sides)} numbers, for {', '.join(sides)}")
    return _text(name, files[:1], "tsv", columns=tuple(columns))


def _locate_ted(dataset: Dataset, sides: list[str], ted_archive: str) -> Located:
    items = (resource(ted_archive),) if re.match(r"https?://", ted_archive) else ()
    path = _downloaded(items[0]) if items else ted_archive
    file = File(path, f"all_talks_{dataset.ted}.tsv")
    required = (dataset.aligned_with,) if dataset.aligned_with else ()
    name = f"TED {dataset.ted} {'-'.join([*required, *sides])}"
    source = _text(name, [file], "ted", languages=tuple(sides), required=required)
    return Located(source, items)


def _locate_sacrebleu(dataset: Dataset, sides: list[str], ted_archive: str) -> Located:
    from sacrebleu.dataset import DATASETS

    assert dataset.sacrebleu
    test_set = DATASETS.get(dataset.sacrebleu)
    if test_set is None:
        raise UserError(f"sacreBLEU has no test set '{dataset.sacrebleu}' (sacrebleu --list)")
    if len(sides) != 2 or "-".join(sides) not in test_set.langpairs:
        raise UserError(
            f"sacreBLEU's {dataset.sacrebleu} has no pair {'-'.join(sides)} "
            f"(it has {', '.join(sorted(test_set.langpairs))})"
        )
    members: list[str] = list(test_set.langpairs["-".join(sides)] or [])
    if not (test_set.data and test_set.md5) or len(test_set.data) != 1 or len(members) != 2:
        raise UserError(f"sacreBLEU's {dataset.sacrebleu} is not one archive with two sides")
    item = resource(test_set.data[0], f"md5:{test_set.md5[0]}")
    files = [File(_downloaded(item), member) for member in members]
    format: Format = "sgm" if members[0].endswith(".sgm") else "text"
    return Located(_text(f"sacreBLEU {dataset.sacrebleu}", files, format), (item,))


def _locate_mtdata(dataset: Dataset, sides: list[str], ted_archive: str) -> Located:
    assert dataset.mtdata
    entry = _table()["mtdata"].get(dataset.mtdata) or look_up_mtdata(dataset.mtdata)
    order = _mtdata_order(dataset.mtdata, entry["languages"], sides)
    urls = entry["url"] if isinstance(entry["url"], list) else [entry["url"]]
    items = tuple(resource(url) for url in urls)
    members: list[str] = entry.get("members") or []
    columns: tuple[int, ...] = ()
    format = entry.get("format", "text")
    if format == "ted":
        file = File(_downloaded(items[0]), members[0])
        return Located(_text(dataset.mtdata, [file], "ted", languages=tuple(sides)), items)
    if format == "tsv":
        files = [File(_downloaded(items[0]), members[0] if members else None)]
        both = entry.get("columns") or (0, 1)
        columns = tuple(both[i] for i in order)
    elif members:
        files = [File(_downloaded(items[0]), members[i]) for i in order]
    else:
        files = [File(_downloaded(items[i])) for i in order]
    if format != "tsv" and len(set(files)) != len(sides):
        raise UserError(f"mtdata's {dataset.mtdata} has the same file for {' and '.join(sides)}")
    return Located(_text(dataset.mtdata, files, format, columns=columns), items)


_LOCATORS = {
    "url": _locate_url,
    "file": _locate_file,
    "ted": _locate_ted,
    "sacrebleu": _locate_sacrebleu,
    "mtdata": _locate_mtdata,
}


def _mtdata_order(name: str, languages: list[str], sides: list[str]) -> list[int]:
    """At which place of an mtdata entry each of our sides stands."""
    if not set(sides) <= set(languages):
        # mtdata writes three letters where we write two. Imported only now, because it takes hold
        # of the program's logging.
        from mtdata.iso.bcp47 import bcp47

        languages = [bcp47(language).lang for language in languages]
        sides = [bcp47(side).lang for side in sides]
    if not set(sides) <= set(languages):
        raise UserError(f"mtdata's {name} is not in {' and '.join(sides)}")
    return [languages.index(side) for side in sides]


def look_up_mtdata(name: str) -> dict[str, Any]:
    """An entry of mtdata's own index: languages, url, members, format. Nothing is downloaded."""
    # The index reports its making at length on standard error.
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        from mtdata.entry import DatasetId
        from mtdata.index import Index

        index = Index.get_instance()
        try:
            entry = index.entries.get(DatasetId.parse(name))
        except Exception as error:
            raise UserError(f"'{name}' is not an mtdata id: {error}") from error
    if entry is None:
        raise UserError(f"mtdata has no dataset '{name}' (mtdata list -id lists them)")
    extension = entry.in_ext or entry.ext.removesuffix(".gz")
    format = {"tsv": "tsv", "sgm": "sgm", "txt": "text", "": "text", "gz": "text"}.get(extension)
    if name.startswith("Neulab-tedtalks_"):
        format = "ted"  # a table with a header and gaps, of which mtdata knows only the columns
    if format is None:
        raise UserError(f"mtdata's {name} is in the format '{extension}', which is not read here")
    found: dict[str, Any] = {"languages": name.split("-")[3:]}
    found["url"] = list(entry.url) if isinstance(entry.url, tuple) else entry.url
    if entry.in_paths:
        found["members"] = list(entry.in_paths)
    if format != "text":
        found["format"] = format
    if format == "tsv" and entry.cols:
        found["columns"] = list(entry.cols)
    return found
