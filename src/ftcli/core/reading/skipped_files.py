"""What lies among data and is none: what ftcli itself made there, and the results that `datasets` keeps beside a saved set."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path

from ftcli.core.files.streams import natural
from ftcli.core.reading.readable import home_of, leads_out
from ftcli.errors import DataError
from ftcli.records import MANIFEST_NAME, REPORT_SCHEMA, RUN_NAME
from ftcli.settings import Settings

MARKS = (MANIFEST_NAME, RUN_NAME)
"""Files of which a folder has one that was prepared or trained."""
TAIL = 100
"""The last bytes of a report, in which its schema stands."""


class SkippedFiles:
    """Tells such folders and files below `base`: a directory that was named, or the part of a pattern that is fixed. `base` itself is never asked about."""

    def __init__(self, settings: Settings, base: str) -> None:
        self._base = base
        written = (settings.dataset.output_dir, settings.train.output_dir, settings.runtime.report_dir)
        self._written = {place for path in written if path and (place := _place(path))}
        self._made, self._results = set[str](), set[str]()
        self._is_made = cache(self._is_made_)
        self._results_in = cache(lambda folder: _results(folder, os.listdir(folder)))  # noqa: PTH208

    def folder(self, path: str) -> bool:
        """Whether a folder below `base` is left out."""
        if path == self._base or not self._is_made(path):
            return False
        self._made.add(self._name(path))
        return True

    def files(self, folder: str, names: Collection[str]) -> set[str]:
        """The files of one of the walk's folders, given all that it holds, that are left out."""
        results = _results(folder, names)
        pages = {name for name in names if name.endswith(".html")}
        documents = (name for name in names if name.endswith(".json") and f"{name[:-5]}.html" in pages)
        reports = {name for name in documents if _is_report(f"{folder}/{name}")}
        self._results |= {self._name(f"{folder}/{name}") for name in results}
        self._made |= {self._name(f"{folder}/{name}") for name in reports}
        return results | reports

    def file(self, path: str) -> bool:
        """Whether a file that a pattern matches is left out, by itself or with a folder below `base`."""
        above = os.path.relpath(path, self._base).split("/")[:-1]
        if any(self.folder(os.path.join(self._base, *above[: depth + 1])) for depth in range(len(above))):  # noqa: PTH118 - keeps "./" as given
            return True
        folder, name = os.path.split(path)
        if path.endswith(".json") and os.path.isfile(f"{path[:-5]}.html") and _is_report(path):  # noqa: PTH113
            self._made.add(self._name(path))
        elif path.endswith(".arrow") and name in self._results_in(folder or "."):
            self._results.add(self._name(path))
        else:
            return False
        return True

    def groups(self) -> list[tuple[str, list[str]]]:
        """What was left out: in words, and the names."""
        met = {"output of ftcli": self._made, "files that datasets keeps beside a saved dataset": self._results}
        return [(what, sorted(names, key=natural)) for what, names in met.items() if names]

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._base)

    def _is_made_(self, folder: str) -> bool:
        return any(os.path.isfile(f"{folder}/{mark}") for mark in MARKS) or _place(folder) in self._written  # noqa: PTH113


def inside(folder: str, out: SkippedFiles) -> tuple[list[str], list[str]]:
    """Below a directory: the files that are neither hidden nor in `out`, and the links that are not followed.

    Raises:
        DataError: a directory cannot be listed.
    """
    found: list[str] = []
    left: list[str] = []
    home = home_of(folder)
    for root, folders, names in os.walk(folder, onerror=_unreadable):
        if out.folder(root):
            folders.clear()
            continue
        beside = out.files(root, names)
        inner = os.path.relpath(root, folder)
        prefix = "" if inner == "." else inner + "/"
        left += [f"{prefix}{name}" for name in folders if os.path.islink(os.path.join(root, name))]  # noqa: PTH114, PTH118
        folders[:] = [name for name in folders if not name.startswith(".")]
        with os.scandir(root) as entries:  # a look at every one of 100,000 files takes three times as long
            links = {entry.name for entry in entries if entry.is_symlink()}
        for name in names:
            if not name.startswith(".") and name not in beside:
                out_of_it = name in links and leads_out(os.path.join(root, name), home)  # noqa: PTH118
                (left if out_of_it else found).append(prefix + name)
    return found, left


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be listed: {error.strerror}", "Check its permissions.")


def _place(path: str | Path) -> tuple[int, int] | None:
    with suppress(OSError, ValueError):
        status = os.stat(path)  # noqa: PTH116 - a million folders are looked at
        return status.st_dev, status.st_ino
    return None


def _is_report(path: str) -> bool:
    with suppress(OSError), Path(path).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        return f'"schema": "{REPORT_SCHEMA}"'.encode() in file.read()
    return False


def _results(folder: str, names: Collection[str]) -> set[str]:
    """The .arrow files of a folder with a saved set that are none of its own: `map` and others keep there what they made of its rows."""
    arrows = {name for name in names if name.endswith(".arrow")}
    if arrows and "state.json" in names:
        with suppress(OSError, ValueError, KeyError, TypeError):  # another state.json
            own = {entry["filename"] for entry in json.loads(Path(folder, "state.json").read_bytes())["_data_files"]}
            if own & arrows:
                return arrows - own
    return {name for name in arrows if name.startswith("cache-")} if "dataset_info.json" in names else set()
