"""transformers imported without half of what its import costs: it reads its 3,300 source files twice for the names they export, here once.

Its memory of what it read holds 128 folders, and there are 550; and it cuts a file into lines to find the one line that begins with `__all__`. A
scan takes 0.77 s of CPU of the 7.3 s that `ftcli verify --level quick` took on the same loaded machine; one that looks at the end of a file only 0.30 s;
one that an earlier run has kept (`ftcli.core.tokenizer.import_structure`) 0.05 s.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from ftcli.core.tokenizer.import_structure import Structure, kept_structure

MODULE = "transformers.utils.import_utils"
"""Where the scan is."""


@contextmanager
def scanned_once(cache_dir: Path | None = None) -> Iterator[None]:
    """Inside, transformers is imported so, if it is imported at all. A version that scans otherwise is left as it is.

    Args:
        cache_dir: where what the scan finds is kept for the next run; None keeps nothing.
    """
    finder = _Finder(cache_dir)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def __init__(self, cache_dir: Path | None) -> None:
        self._cache_dir = cache_dir

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == MODULE else None
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
            spec.loader.cache_dir = self._cache_dir
        return spec


class _Loader(SourceFileLoader):
    cache_dir: Path | None = None

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        create: Any = getattr(module, "create_import_structure_from_path", None)
        fetch: Callable[[str], list[str]] | None = getattr(module, "fetch__all__", None)
        if hasattr(create, "cache_clear") and callable(fetch):
            names: dict[str, Any] = vars(module)
            names["create_import_structure_from_path"] = _Scan(create.__wrapped__, self.path, self.cache_dir)
            names["fetch__all__"] = lambda content: fetch(last_all(content))


class _Scan:
    """`create_import_structure_from_path`, which calls itself by its name for the folders below, with a memory of all of them."""

    def __init__(self, plain: Callable[[str], Structure], scanner: str, cache_dir: Path | None) -> None:
        self._plain, self._scanner, self._cache_dir = plain, scanner, cache_dir
        self._known: dict[str, Structure] = {}

    def __call__(self, module_path: str | Path) -> Structure:
        folder = os.path.dirname(module_path) if os.path.isfile(module_path) else str(module_path)  # noqa: PTH113, PTH120 - 550 times
        if folder not in self._known:
            cache_dir, self._cache_dir = self._cache_dir, None  # the first scan is of all folders, and those below it belong to it
            if cache_dir is None:
                self._known[folder] = self._plain(folder)
            else:
                self._keep(folder, kept_structure(folder, self._scanner, cache_dir, lambda: self._plain(folder)))
        return self._known[folder]

    def _keep(self, folder: str, structure: Structure) -> None:
        self._known[folder] = structure
        for name, below in structure.items():
            if isinstance(name, str):
                self._keep(os.path.join(folder, name), below)  # noqa: PTH118 - as transformers does


def last_all(content: str) -> str:
    """A source file from its last line that begins with `__all__` on; all of it where no line but the first does."""
    return content[content.rfind("\n__all__") + 1 :]
