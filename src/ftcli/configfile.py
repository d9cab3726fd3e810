"""The table in a config file: TOML, YAML or JSON, of a size that a config file can have, with no key that stands twice."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ftcli.errors import FtcliError, SettingsError

MOST_BYTES, MOST_VALUES = 200_000, 10_000
"""What a config file may have. YAML takes 2 s for so much; its aliases let 300 bytes stand for 10⁹ values."""
POWER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")


class Bare(str):
    """What stands in YAML without quotes and is a number in its version 1.2 alone, as 1e-6: a text until it is known what is wanted."""

    __slots__ = ()


def plain(value: Any, *, table: bool = False) -> Any:
    """Without `Bare`: numbers inside of a table, whose fields no type tells, and texts elsewhere."""
    if isinstance(value, Bare):
        return float(value) if table else str(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(inner, table=True) for key, inner in value.items()}
    return [plain(inner, table=table) for inner in value] if isinstance(value, list) else value


def load_file(path: Path) -> dict[str, Any]:
    """The table in a .toml, .yaml, .yml or .json file.

    Raises:
        SettingsError: it cannot be read, is no table, or is larger than a config file can be.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SettingsError(f"{path}: {path.stat().st_size:,} bytes, a config file has {MOST_BYTES:,} at most", "Is it a config file?")
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".toml":
            loaded: Any = tomllib.loads(text)
        elif path.suffix in {".yaml", ".yml"}:
            loaded = _yaml(path, text)
        elif path.suffix == ".json":
            loaded = json.loads(text, object_pairs_hook=lambda pairs: _once(path, pairs))
        else:
            raise SettingsError(f"{path}: a config file ends in .toml, .yaml, .yml or .json", "Rename it.")
    except FtcliError:
        raise
    except FileNotFoundError:
        raise SettingsError(f"{path} does not exist", "Check its name and the folder.") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}", "Name a file that you may read.") from error
    except Exception as error:
        raise SettingsError(f"{path} cannot be read: {error}", "Fix the file.") from error
    if not isinstance(loaded, dict):
        raise SettingsError(
            f"{path}: the top level must be sections, found {type(loaded).__name__}",
            "Write [section] tables with field = value.",
        )
    return loaded


def _yaml(path: Path, text: str) -> Any:
    import yaml

    try:
        loaded = yaml.load(text, _loader()) or {}  # noqa: S506 - a SafeLoader
        if twice := _repeated(yaml.compose(text, yaml.SafeLoader)):
            raise SettingsError(f"{path}: {twice.value} is defined twice, again in line {twice.start_mark.line + 1}", "Remove one of them.")
    except yaml.MarkedYAMLError as error:  # its own words quote the file, which may hold a token
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SettingsError(f"{path} cannot be read: {error.problem}{line}", "Fix the file.") from None
    waiting, values = [loaded], 0
    while waiting:
        value = waiting.pop()
        values += 1
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if values > MOST_VALUES:
            raise SettingsError(f"{path}: its aliases expand to more than {MOST_VALUES:,} values", "Write the values out.")
    return loaded


@cache
def _loader() -> Any:
    """YAML 1.1 as PyYAML reads it, but for what is a number since YAML 1.2."""
    import yaml

    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_implicit_resolver("!bare", POWER, list("-+.0123456789"))
    loader.add_constructor("!bare", lambda _, node: Bare(node.value))
    return loader


def _repeated(root: Any) -> Any:
    """The node of a key that stands twice in one mapping of a YAML tree, where the last one would win in silence; what `<<` brings in may be there again."""
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        children = getattr(node, "value", None)
        if id(node) in seen or not isinstance(children, list):
            continue
        seen.add(id(node))
        keys = set()
        for child in children:
            key = child[0] if isinstance(child, tuple) else None
            if key is not None and isinstance(key.value, str) and key.value != "<<":
                if key.value in keys:
                    return key
                keys.add(key.value)
            waiting += child if isinstance(child, tuple) else (child,)
    return None


def _once(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise SettingsError(f"{path}: {twice} is defined twice", "Remove one of them.")
    return found
