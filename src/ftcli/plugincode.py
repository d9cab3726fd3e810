"""The source of a plugin as one hash, so that a manifest can tell an edited plugin from the one that made it.

What counts, by names and bytes (neither where the files lie nor what this process happened to import before):

    the module       where it belongs to a package, every .py file of the package
    the distribution every .py file that was installed with it
    the helpers      what the plugin's files import by name, wherever the statement stands, unless it belongs to Python or ftcli or lies in
                     site-packages: a file with the helpers that it imports in turn, or every .py file of a package
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackagePath
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ftcli.markers import PROJECT

INSTALLED = frozenset({"site-packages", "dist-packages"})
EDITABLE = "__editable__"
"""How the files begin by which an editable install is found: paths of this machine."""


def source_hash(plugin: Any, *, built_in: bool, shipped: Iterable[PackagePath]) -> str:
    """
    Args:
        built_in: its file alone counts; the version of ftcli stands for the others.
        shipped: the files that its distribution installed.
    """
    module = plugin if isinstance(plugin, ModuleType) else inspect.getmodule(type(plugin))
    path = getattr(module, "__file__", None)
    if module is None or not path:
        return ""
    top = module.__name__.partition(".")[0]
    if built_in or top == PROJECT:
        files = {Path(path).name: Path(path)}
    else:
        own = dict(_files(_package(module.__name__))) or {Path(path).name: Path(path)}
        own |= {str(file): Path(str(file.locate())) for file in shipped if file.suffix == ".py" and not file.name.startswith(EDITABLE)}
        files = own | _helpers(own, top)
    hashes = sorted((name, hashlib.sha256(file.read_bytes()).hexdigest()) for name, file in files.items() if file.is_file())
    whole = hashes[0][1] if len(hashes) == 1 else hashlib.sha256(repr(hashes).encode()).hexdigest()
    return whole[:16]


def _package(name: str) -> str:
    """The outermost package with a file of its own that a module is in: several distributions may share one that has none."""
    parts = name.split(".")
    outwards = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return next((outer for outer in outwards if getattr(sys.modules.get(outer), "__file__", None)), name)


def _helpers(own: dict[str, Path], top: str) -> dict[str, Path]:
    """Name → file of what these files import from outside of Python, ftcli and site-packages."""
    found: dict[str, Path] = {}
    known, new = {top, PROJECT, *sys.stdlib_module_names}, [file for file in own.values() if not INSTALLED & set(file.parts)]
    while new:
        names = {name for file in new for name in _imported(file)} - known
        known |= names
        new = []
        for name in names:
            files = {key: file for key, file in _files(name, installed=False) if not INSTALLED & set(file.parts)}
            found |= files
            if list(files) == [f"{name}.py"]:  # a package may be a library of thousands
                new += files.values()
    return found


def _files(name: str, *, installed: bool = True) -> Iterator[tuple[str, Path]]:
    """(name, file) of a module or of everything in a package; nothing where there is none of that name here, or none made of files.

    Args:
        installed: walk packages in site-packages, too: 2,000 files and 0.3 s for torch.
    """
    try:
        spec = find_spec(name)
    except (ImportError, ValueError, AttributeError):  # something in sys.modules that says nothing of itself
        return
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if spec.origin and spec.origin.endswith(".py"):
            yield f"{name}.py", Path(spec.origin)
        return
    for folder in spec.submodule_search_locations:
        if not installed and INSTALLED & set(Path(folder).parts):
            continue
        for file in Path(folder).rglob("*.py"):
            yield f"{name}/{file.relative_to(folder).as_posix()}", file


def _imported(file: Path) -> Iterator[str]:
    """The first names of what a file imports; those of relative imports belong to its own package."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
