"""What is wrong with a plugin, in words: hooks that could never be called, and where in its file an error arose."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from ftcli import hookspecs
from ftcli.errors import FtcliError, PluginError
from ftcli.markers import PROJECT

HOOKS = {name: hook for name, hook in vars(hookspecs).items() if hasattr(hook, f"{PROJECT}_spec")}
_NEEDED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NOT_THEIRS = tuple(str(Path(module.__file__ or "").parent) for module in (importlib, hookspecs, pluggy))
"""Folders of those between a plugin and its caller: Python's import, ftcli, pluggy."""
_OURS = Path(hookspecs.__file__ or "").parent
REMOTE = "transformers_modules"
"""Folder into which transformers copies code that came with weights."""
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})
_BACKPORT = "importlib_metadata"
"""Once it is imported, by whatever library, it finds the distributions in place of `importlib.metadata`, and loads their entry points."""


def misuse(plugin: Any) -> tuple[str, str] | None:
    """What keeps its hooks from being called, and what to do; None when nothing does."""
    if inspect.isclass(plugin):
        name = plugin.__name__
        return f"it is the class {name}, and a hook of a class has no self", f"Name an instance: {name.lower()} = {name}()."
    for name in dir(plugin):
        function = getattr(plugin, name, None)
        if not inspect.isroutine(function):
            continue
        options = getattr(function, f"{PROJECT}_impl", None)
        if options is None:
            if name in HOOKS and function.__module__ == _module_of(plugin):
                return (
                    f"{name} is not marked as a hook, so it would never be called",
                    "Write @ftcli.hookimpl above it, or give it another name.",
                )
            continue
        hook = options.get("specname") or name
        if hook not in HOOKS:
            near = difflib.get_close_matches(hook, HOOKS, n=1)
            return f"unknown hook {hook!r}", f"{f'Did you mean {near[0]!r}? ' if near else ''}Hooks are: {', '.join(sorted(HOOKS))}."
        if unrun := _unrun(function, options):
            return f"{name} is {unrun}, so its body would never run", "Write a plain function: no async, no yield (except in a wrapper)."
        given = list(inspect.signature(HOOKS[hook]).parameters)
        for argument in inspect.signature(function).parameters.values():
            if argument.kind in _NEEDED and argument.default is argument.empty and argument.name not in given:
                return (
                    f"{name} takes {argument.name!r}, which the hook does not give",
                    f"It gives {' and '.join(given)}; take what you need.",
                )
    return None


def _unrun(function: Any, options: Mapping[str, Any]) -> str:
    """What a function gives, in words, where calling it does not run its body; nothing where it does, and of a wrapper, which pluggy runs."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "a coroutine"
    wraps = options.get("wrapper") or options.get("hookwrapper")
    return "a generator" if inspect.isgeneratorfunction(function) and not wraps else ""


@contextmanager
def named(part: str, owner: str | None, hint: str) -> Iterator[None]:
    """What a plugin's part raises inside of the block comes as a `PluginError` that names both; of ftcli's own (None) it stays what it is, a bug of ours."""
    try:
        yield
    except FtcliError:
        raise
    except (Exception, SystemExit) as error:
        if owner is None:
            raise
        raise PluginError(f"the {part} of plugin {owner!r} broke: {reason_of(error)}", hint) from error


def culprit(error: BaseException, owners: Mapping[Path, str]) -> str | None:
    """Whose code an error is laid on: that of the deepest frame that is no library's. None: ftcli's own.

    Args:
        owners: files of plugins, and folders with all that is in them, with the plugin's name in words; a name of "" is ftcli's.
    """
    libraries, named_so = {Path(folder) for folder in _LIBRARIES}, {_OURS: "", **owners}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path not in owners and REMOTE in path.parts:
            return "the model's own code"
        near = next((place for place in (path, *path.parents) if place in libraries or place in named_so), None)
        if near is None and not frame.filename.startswith("<"):
            return None
        if near is not None and near not in libraries:
            return named_so[near] or None
    return None


def places(plugin: Any) -> Iterator[Path]:
    """Its file, the folder of that, and the folder of its package, whatever module of it the plugin is."""
    module = sys.modules.get(_module_of(plugin)) or plugin
    if file := getattr(module, "__file__", None):
        yield Path(file)
        yield Path(file).parent
    parts = module.__name__.split(".") if isinstance(module, ModuleType) else []
    for parent in (sys.modules.get(".".join(parts[:count])) for count in range(1, len(parts) + 1)):
        if file := getattr(parent, "__file__", None):  # a folder that distributions share has none
            if hasattr(parent, "__path__"):
                yield Path(file).parent
            return


def reason_of(error: BaseException) -> str:
    """An error in one line, with file and line where it arose in a plugin or what the plugin called."""
    words = " ".join(f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}".split())[:400].removesuffix(":")
    if isinstance(error, SyntaxError) and error.filename:
        return f"{words} ({Path(error.filename).name}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename)]
    frames = [frame for frame in frames if not _of_a_library(frame.filename)] or frames
    return f"{words} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else words


def _of_a_library(file: str) -> bool:
    """Whether it is Python's own or an installed package, which plugins and models call."""
    return any(Path(file).is_relative_to(folder) for folder in _LIBRARIES)


def _is_theirs(file: str) -> bool:
    path = Path(file)
    return not file.startswith("<") and path.parent.name != _BACKPORT and not any(path.is_relative_to(folder) for folder in _NOT_THEIRS)


def _module_of(plugin: Any) -> str:
    return plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
