"""transformers without torch, for what only tokenizes: importing torch takes 2 to 3 s of CPU, and `AutoTokenizer` imports it wherever it is installed."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ftcli.core.tokenizer.quick_import import scanned_once

T = TypeVar("T")
_QUIET = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


@contextmanager
def without_torch(cache_dir: Path | None = None) -> Iterator[Light]:
    """Inside, `Light.load(build)` calls `build` as if torch were not installed; at the end transformers is forgotten, to be imported anew with torch.

    `cache_dir` is where what transformers' files export is kept from run to run; None keeps nothing.

    Where torch or transformers are imported already, nothing is hidden and nothing forgotten: there is no time left to save, and classes must not exist twice.
    """
    before = set(sys.modules)
    light = Light(can_hide(), cache_dir)
    try:
        yield light
    finally:
        if light.used:
            _forget(before)


def can_hide() -> bool:
    """Whether neither torch nor transformers is imported yet."""
    return not any(name.partition(".")[0] in {"torch", "transformers"} for name in sys.modules)


class Light:
    """Loads without torch. By itself, outside of `without_torch`, for a process that never needs torch: nothing is forgotten."""

    def __init__(self, hides: bool, cache_dir: Path | None = None) -> None:
        self.hides = hides
        self._cache_dir = cache_dir
        self.used = False
        """Whether transformers was imported without torch and must be forgotten."""

    def load(self, build: Callable[[], T]) -> T:
        """`build()` without torch; should it fail so, once more with it: a tokenizer's own code may need torch."""
        if not self.hides or sys.modules.get("torch") is not None:
            return build()
        before, quiet = set(sys.modules), os.environ.get(_QUIET)
        sys.modules["torch"] = None  # type: ignore[assignment]  # what makes `import torch` fail and `find_spec` find nothing
        os.environ[_QUIET] = "1"  # transformers would advise to install it
        self.used = True
        try:
            with scanned_once(self._cache_dir), uncollected():
                return build()
        except Exception as error:
            if not _wants_torch(error):
                raise
        finally:
            sys.modules.pop("torch", None)
            if quiet is None:
                os.environ.pop(_QUIET, None)
        _forget(before)
        self.hides = self.used = False
        return build()


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside, nobody looks for garbage among the objects that a vocabulary, or a list of sources, becomes, of which none is: it takes 0.2 to 0.3 s of
    7 s of CPU, and half of the time for 100,000 sources."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _wants_torch(error: BaseException | None) -> bool:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if "torch" in str(error).lower():
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def _forget(before: set[str]) -> None:
    """Drop transformers, and modules of ours that took something from it, which were imported since `before`."""
    for name in [name for name in sys.modules if name not in before]:
        if name.partition(".")[0] == "transformers" or (name.startswith("ftcli.") and _holds_transformers(sys.modules[name])):
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            with suppress(AttributeError):
                delattr(sys.modules.get(parent), child)


def _holds_transformers(module: Any) -> bool:
    values = list(vars(module).values())
    names = {str(getattr(value, "__module__", "")) for value in values} | {str(getattr(value, "__name__", "")) for value in values}
    return any(name.partition(".")[0] == "transformers" for name in names)
