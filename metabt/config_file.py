"""An experiment's YAML file: reading it, and naming the place of a fault in it."""

import re
from pathlib import Path
from typing import Any

import yaml

from metabt.errors import UserError

Fault = tuple[tuple[Any, ...], str]  # where: keys and indices on the way to it; and what


class _Loader(yaml.SafeLoader):
    """YAML in which a key may not stand twice and 1e-9 is a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _mapping_without_duplicates(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if key.value in seen and key.value != "<<":
            raise UserError(
                f"{key.start_mark.name}, line {key.start_mark.line + 1}: "
                f"the key '{key.value}' stands twice"
            )
        seen.add(key.value)
    loader.flatten_mapping(node)
    return {
        loader.construct_object(k, deep=True): loader.construct_object(v, deep=True)
        for k, v in node.value
    }


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping_without_duplicates)


def read_yaml(path: Path) -> Any:
    try:
        with Path(path).open(encoding="utf-8") as handle:
            return yaml.load(handle, _Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def describe(faults: list[Fault], path: Path | None) -> str:
    """All faults of a file, each with its line and path, in the order of the file."""
    tree = None
    if path is not None and Path(path).is_file():
        tree = yaml.compose(Path(path).read_text(encoding="utf-8"), _Loader)
    rows = []
    for location, message in dict.fromkeys(faults):
        line, keys = _find(tree, location)
        where = re.sub(r"\.\[", "[", ".".join(keys)) or "the file"
        rows.append((line, f"  {f'line {line}: ' if line else ''}{where}: {message}"))
    count = f"{len(rows)} error{'s' if len(rows) > 1 else ''}"
    return f"{path or 'config'}: {count}\n" + "\n".join(row for _, row in sorted(rows))


def _find(tree: Any, location: tuple[Any, ...]) -> tuple[int, list[str]]:
    """The line of a path in the YAML tree (0 if unknown), and the path as one writes it.

    pydantic puts the tag of a union into its paths; what is not in the tree on the way is left out.
    """
    line, keys, node = 0, [], tree
    for i, part in enumerate(location):
        last = i == len(location) - 1
        if isinstance(part, int):
            keys.append(f"[{part}]")
            if isinstance(node, yaml.SequenceNode) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            continue
        found = None
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == part), None)
        if found:
            line, node = found[0].start_mark.line + 1, found[1]
            keys.append(str(part))
        elif last or tree is None:
            keys.append(str(part))
    return line, keys
