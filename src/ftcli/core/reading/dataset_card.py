"""What the card of a data set, its README.md, says of its files: the `configs` of its YAML head, as `datasets` reads them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from typing import Any

from ftcli.core.files.streams import natural
from ftcli.core.reading.split_names import ALIASES

CARD = "README.md"
MOST_HEAD, MOST_CONFIGS = 1 << 22, 200_000
"""Bytes that are looked at, and that YAML takes 2 s for."""
HEAD = re.compile(r"\s*---[ \t]*\r?\n(.*?\n)?---[ \t]*(?:\r?\n|$)", re.DOTALL)
CONFIGS = re.compile(r"^configs[ \t]*:.*(?:\r?\n(?:[ \t#-].*)?)*", re.MULTILINE)
"""Alone: the names and types of columns beside it may be a hundred times as long."""
SHOWN = 5

Patterns = dict[str, list[str]]
"""Split → patterns of paths below the folder."""


@dataclass(slots=True)
class Said:
    """`parts`: split → names of its files, empty where the card tells none. `data`: the names among which they are else found. `notes`: what to say of it."""

    data: list[str]
    parts: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def said_by_card(folder: str, names: Sequence[str], data: list[str]) -> Said:
    """What the card of a folder says; nothing where it has none, or one that maps no files.

    Args:
        names: of all files, below the folder.
        data: those of them that a pattern may mean.
    """
    said, card = Said(data), Path(folder, CARD)
    if CARD not in names or not card.is_file():
        return said
    try:
        configs = _configs(card)
        chosen = _chosen(configs)
        if chosen is None:
            said.notes += [_several(folder, configs)] if any(map(_maps, configs.values())) else []
            return said
        below, patterns = _folder(chosen), _patterns(chosen)
    except ValueError as error:
        said.notes.append(f"{card}: {error}; its list of files is ignored")
        return said
    if not patterns:
        inside = [name for name in data if below == "." or name.startswith(f"{below}/")]
        said.data = inside or data
        missing = [] if inside else [below]
    else:
        every_name = set(names)
        found = {pattern: _matching(pattern, every_name, data) for every in patterns.values() for pattern in every}
        parts = {split: sorted({name for one in every for name in found[one]}, key=natural) for split, every in patterns.items()}
        said.parts = {split: files for split, files in parts.items() if files}
        missing = [pattern for pattern, files in found.items() if not files]
    if missing and data:
        said.notes.append(f"{card}: names {', '.join(missing[:SHOWN])}{' …' if len(missing) > SHOWN else ''}, which are not present")
    return said


def _configs(card: Path) -> dict[str, Mapping[str, Any]]:
    """Name → what a config says.

    Raises:
        ValueError: what is wrong with the card.
    """
    import yaml

    try:
        with card.open("rb") as file:
            text = file.read(MOST_HEAD).decode("utf-8-sig", "replace")
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    head = HEAD.match(text)
    block = CONFIGS.search((head.group(1) or "") if head else text if text.lstrip().startswith("---") else "")
    if block is None:
        return {}
    if head is None:
        raise ValueError("its YAML header is not closed")
    if len(block.group()) > MOST_CONFIGS:
        raise ValueError(f"its configs section has more than {MOST_CONFIGS:,} characters")
    try:
        configs = yaml.safe_load(block.group())["configs"]
    except yaml.MarkedYAMLError as error:
        line = text.count("\n", 0, head.start(1) + block.start()) + error.problem_mark.line + 1 if error.problem_mark else None
        raise ValueError(f"its YAML header is invalid ({error.problem}{f' in line {line}' if line else ''})") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ValueError("its YAML header is invalid") from None
    if not isinstance(configs or [], list) or not all(isinstance(one, dict) and "config_name" in one for one in configs or ()):
        raise ValueError("its configs are not a list of entries with a config_name")
    return {str(one["config_name"]): one for one in configs or ()}


def _chosen(configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The only one, or the default; None where there is none, or several."""
    wanted = [one for name, one in configs.items() if len(configs) == 1 or name == "default" or one.get("default")]
    return wanted[0] if len(wanted) == 1 else None


def _maps(config: Mapping[str, Any]) -> bool:
    return bool(config.get("data_files") or config.get("data_dir"))


def _folder(config: Mapping[str, Any]) -> str:
    return posixpath.normpath(str(config.get("data_dir") or "."))


def _patterns(config: Mapping[str, Any]) -> Patterns:
    """Empty where the config leaves the splits to the names of its files."""
    given = config.get("data_files")
    items = given if isinstance(given, list) else [] if given is None else [given]
    patterns: Patterns = {}
    for item in items:
        split, paths = (item.get("split"), item.get("path")) if isinstance(item, dict) else ("train", item)
        paths = paths if isinstance(paths, list) else [paths]
        if not isinstance(split, str) or not all(isinstance(path, str) for path in paths):
            raise ValueError("its data_files are neither paths nor pairs of split and path")
        patterns.setdefault(split, []).extend(posixpath.normpath(posixpath.join(_folder(config), path)) for path in paths)
    return patterns


def _matching(pattern: str, names: Collection[str], data: Sequence[str]) -> list[str]:
    """The files of a pattern. One that leads out of the folder has none: only names below it are compared."""
    if pattern in names:
        return [pattern]
    parts = re.sub(r"(?:\*\*/)+", "**/", pattern).split("/")
    return [name for name in data if _matches(name.split("/"), parts)] if has_magic(pattern) else []


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "**":
        return _matches(name, pattern[1:]) or (bool(name) and _matches(name[1:], pattern))
    return bool(name) and fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])


def _several(folder: str, configs: Mapping[str, Mapping[str, Any]]) -> str:
    """What to say of a card with several configs, of which none is the default."""
    config = next(filter(_maps, configs.values()))
    try:
        first = {ALIASES.get(split.lower(), "train"): every[0] for split, every in _patterns(config).items()}
    except ValueError:
        first = {}
    words = " ".join(f"'{split}={folder.rstrip('/')}/{pattern}'" for split, pattern in (first or {"train": f"{_folder(config)}/*"}).items())
    names = ", ".join([*configs][:SHOWN]) + (f" and {len(configs) - SHOWN} more" if len(configs) > SHOWN else "")
    return (
        f"{folder}: {CARD} has {len(configs)} configs ({names}), none marked as the default: the files of all are read. "
        f"To read one, name its files: {words}"
    )
