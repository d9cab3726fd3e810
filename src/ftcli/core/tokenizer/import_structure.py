"""What the source files below a folder of transformers export, kept from run to run.

To read 2,500 files takes 0.6 s of the 6 s of CPU that `ftcli verify --level quick` took on a loaded machine, to ask for their sizes and times 0.04 s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ftcli.core.files.cached_document import kept
from ftcli.core.files.manifest import hash_bytes

Structure = dict[Any, Any]
"""As `transformers.utils.import_utils.create_import_structure_from_path` gives it: name of a folder (str) → its structure; and the libraries that
modules need (frozenset of str) → module → the names that it exports (set of str)."""


def kept_structure(folder: str, scanner: str, cache_dir: Path, scan: Callable[[], Structure]) -> Structure:
    """What `scan` finds, or found in an earlier run, since when no file below `folder` was written, came or went, nor the scanner's own."""
    stamp = hash_bytes(os.fsencode("\n".join([*sorted(_stamps(folder)), _stamp(scanner, os.stat(scanner))])))  # noqa: PTH116 - as below
    path = cache_dir / f"exports-{hash_bytes(os.fsencode(folder))}.json"
    return _structure(kept(path, lambda: {"stamp": stamp, **_document(scan())}, lambda found: found.get("stamp") == stamp))


def _stamps(folder: str) -> Iterator[str]:
    """A line for every file that the scan may read. The time of change cannot be set back, as that of modification can."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == "__pycache__":
                continue
            if entry.is_dir():
                yield from _stamps(entry.path)
            else:
                yield _stamp(entry.path, entry.stat())


def _stamp(path: str, stat: os.stat_result) -> str:
    return f"{path} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"


def _document(structure: Structure) -> dict[str, Any]:
    """The structure as JSON can hold it."""
    return {
        "folders": {name: _document(below) for name, below in structure.items() if isinstance(name, str)},
        "modules": [
            [sorted(needed), {module: sorted(names) for module, names in modules.items()}]
            for needed, modules in structure.items()
            if not isinstance(needed, str)
        ],
    }


def _structure(document: dict[str, Any]) -> Structure:
    folders = {name: _structure(below) for name, below in document["folders"].items()}
    return folders | {
        frozenset(needed): {module: set(names) for module, names in modules.items()} for needed, modules in document["modules"]
    }
