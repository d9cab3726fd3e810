"""transformers imported without half of what its import costs: it reads its 3,300 source files twice for the names they export, here once.

Its memory of what it read holds 128 folders, and there are 550; and it cuts a file into lines to find the one line that begins with `__all__`. A
scan takes 0.77 s of CPU of the 7.3 s that `ftcli verify --level quick` took on the same loaded machine; one that looks at the end of a file only 0.30 s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

MODULE = "transformers.utils.import_utils"
"""Where the scan is."""


@contextmanager
def scanned_once() -> Iterator[None]:
    """Inside, transformers is imported so, if it is imported at all. A version that scans otherwise is left as it is."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == MODULE else None
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        create: Any = getattr(module, "create_import_structure_from_path", None)
        fetch: Callable[[str], list[str]] | None = getattr(module, "fetch__all__", None)
        if hasattr(create, "cache_clear") and callable(fetch):
            names: dict[str, Any] = vars(module)
            names["create_import_structure_from_path"] = lru_cache(maxsize=None)(create.__wrapped__)
            names["fetch__all__"] = lambda content: fetch(last_all(content))


def last_all(content: str) -> str:
    """A source file from its last line that begins with `__all__` on; all of it where no line but the first does."""
    return content[content.rfind("\n__all__") + 1 :]
