"""The import law, by reading the source: imports go down only, light layers stay light, built-ins use the public door."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ftcli.plugins
import pytest

import ftcli
from ftcli.pluginmanager import BUILT_INS
from timing import PATIENCE

SOURCE = Path(ftcli.__file__).parent
PLUGINS = Path(ftcli.plugins.__file__).parent
HEAVY = {"torch", "transformers", "datasets", "numpy", "pyarrow"}
LAYERS = (
    {"ftcli", "errors", "records", "contracts", "contracts_executor", "contracts_export", "hookspecs", "markers"},
    {
        "configfile",
        "fields",
        "home",
        "masking",
        "settings",
        "settings_train",
        "settings_launch",
        "wanted",
        "sources",
        "versions",
        "machine",
        "registry",
        "pluginfaults",
        "pluginparts",
        "plugincode",
        "pluginmanager",
        "environment",
        "context",
    },
    {"core"},
    {"commands"},
    {"cli", "__main__"},
    {"testing"},
)
"""L0 to L4 and the test helpers above them: modules and packages of ftcli."""
STAGES = (
    {"", "corpus"},
    {"files", "processes", "reports"},
    {"distributed", "doctor", "engines", "publishing"},
    {"reading"},
    {"tokenizer"},
    {"prepare", "storage"},
    {"batches", "inspect"},
    {"models"},
    {"training"},
    {"convert", "verify"},
    {"benchmark"},
)
"""The packages of ftcli.core from the lowest up; "" are the modules beside them. Those of one line do not know each other."""
MOST_LINES = 350


@dataclass(frozen=True, slots=True)
class Import:
    """An import statement: the full name of a module, where it stands and when it happens."""

    module: str
    line: int
    lazy: bool
    """Inside a function, so not on import."""


@cache
def imports(path: Path, package: str) -> tuple[Import, ...]:
    """Every import of a file that happens at run time; those under TYPE_CHECKING do not."""
    return tuple(_imports(ast.parse(path.read_text(encoding="utf-8")), package, lazy=False))


def _imports(node: ast.AST, package: str, *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = ".".join([package.rsplit(".", child.level - 1)[0] if child.level else "", child.module or ""]).strip(".")
            yield from (Import(f"{base}.{alias.name}", child.lineno, lazy) for alias in child.names)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _imports(child, package, lazy=lazy or inside)


@cache
def modules() -> dict[str, Path]:
    """Full name → file of everything under src/ftcli (plugins and profiles lie elsewhere in the source tree)."""
    files = (path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in {"plugins", "profiles"})
    return {".".join(["ftcli", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__"): path for path in files}


@cache
def plugin_files() -> list[Path]:
    return sorted(PLUGINS.glob("*.py"))


def package_of(name: str, path: Path) -> str:
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def layer(name: str) -> int:
    """The layer of a full name below ftcli; -1 when it has none."""
    part = name.split(".")[1] if "." in name else "ftcli"
    if f"ftcli.{part}" not in {*modules(), "ftcli.core", "ftcli.commands", "ftcli.cli"}:
        part = "ftcli"  # `from ftcli import hookimpl`
    return next((number for number, names in enumerate(LAYERS) if part in names), -1)


def root(module: str) -> str:
    return module.partition(".")[0]


def stage(name: str) -> str:
    """The package of ftcli.core that a full name belongs to; "" when it lies in none."""
    part = name.split(".")[2]
    return part if f"ftcli.core.{part}" in modules() and modules()[f"ftcli.core.{part}"].name == "__init__.py" else ""


def height(name: str) -> int:
    return next(number for number, names in enumerate(STAGES) if stage(name) in names)


# -- controls: the reader sees what it should ---------------------------------------------------------------------------


def test_the_reader_sees_imports_wherever_they_hide() -> None:
    code = """
import torch.nn as nn
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import pyarrow
class A:
    from . import b
    def f(self):
        try:
            from ..core import store
        except ImportError:
            import numpy
async def g(): from datasets import load
"""
    found = {(each.module, each.lazy) for each in _imports(ast.parse(code), "ftcli.cli", lazy=False)}

    assert found == {
        ("torch.nn", False),
        ("typing.TYPE_CHECKING", False),
        ("ftcli.cli.b", False),
        ("ftcli.core.store", True),
        ("numpy", True),
        ("datasets.load", True),
    }


def test_there_is_something_to_read_and_every_module_has_its_layer() -> None:
    names = modules()

    assert len(names) > 60
    assert len(plugin_files()) > len(BUILT_INS)
    assert [name for name in names if layer(name) < 0] == []
    assert [
        layer(name)
        for name in ("ftcli", "ftcli.errors", "ftcli.machine", "ftcli.core.storage.store", "ftcli.commands.train", "ftcli.cli.main")
    ] == [
        0,
        0,
        1,
        2,
        3,
        4,
    ]


# -- the law -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", modules())
def test_imports_go_down_only(name: str) -> None:
    path = modules()[name]
    up = [
        f"{path.name}:{each.line} {each.module}"
        for each in imports(path, package_of(name, path))
        if root(each.module) == "ftcli" and layer(each.module) > layer(name)
    ]

    assert up == []


@pytest.mark.parametrize("name", [name for name in modules() if name.startswith("ftcli.core.")])
def test_the_stages_of_core_know_only_those_below(name: str) -> None:
    path = modules()[name]
    found = [each for each in imports(path, package_of(name, path)) if each.module.startswith("ftcli.core.")]

    assert [
        f"{path.name}:{each.line} {each.module}"
        for each in found
        if stage(each.module) != stage(name) and height(each.module) >= height(name)
    ] == []


def test_every_stage_of_core_has_its_height() -> None:
    assert {stage(name) for name in modules() if name.startswith("ftcli.core.")} == set().union(*STAGES)
    assert height("ftcli.core.reading.read") < height("ftcli.core.training.train")


@pytest.mark.parametrize("name", [name for name in modules() if layer(name) in {0, 1, 4}])
def test_the_light_layers_never_import_a_heavy_library_not_even_later(name: str) -> None:
    path = modules()[name]

    assert [f"{path.name}:{each.line} {each.module}" for each in imports(path, package_of(name, path)) if root(each.module) in HEAVY] == []


def test_only_the_plugin_manager_names_the_built_ins_and_only_in_its_list() -> None:
    named = []
    for name, path in modules().items():
        named += [(name, each.module) for each in imports(path, package_of(name, path)) if each.module.startswith("ftcli.plugins")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("ftcli.plugins."):
                named.append((name, node.value))

    expected = {("ftcli.pluginmanager", value) for value in (*BUILT_INS, "ftcli.plugins.")}
    assert set(named) == expected


def test_every_built_in_is_a_file_of_the_plugins_folder() -> None:
    assert {name.removeprefix("ftcli.plugins.") for name in BUILT_INS} <= {path.stem for path in plugin_files()}


@pytest.mark.parametrize("path", plugin_files(), ids=lambda path: path.stem)
def test_plugins_import_only_ftcli_and_the_standard_library_on_import(path: Path) -> None:
    allowed = {"ftcli", *sys.stdlib_module_names}
    at_once = [each for each in imports(path, "ftcli.plugins") if not each.lazy]

    assert [f"{path.name}:{each.line} {each.module}" for each in at_once if root(each.module) not in allowed] == []


def test_loading_everything_light_and_every_plugin_imports_nothing_heavy() -> None:
    """What the source cannot show: a light-looking core module that imports a heavy one."""
    light = [name for name in modules() if layer(name) in {0, 1, 4} and not name.endswith("__main__")]
    code = f"import importlib, sys\nfor name in {[*light, *BUILT_INS]!r}: importlib.import_module(name)\n"
    code += f"print(*sorted({HEAVY | {'loguru', 'pydantic_settings', 'matplotlib', 'jinja2'}!r} & set(sys.modules)))"
    allowed = {"pydantic_settings"}  # sources.py, which no command needs for its help

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)

    assert set(done.stdout.split()) <= allowed


def test_the_commit_layer_stands_on_the_standard_library_and_xxhash() -> None:
    """It is killed at every system call by its tests; whatever it imports takes part."""
    allowed = {*sys.stdlib_module_names, "xxhash"}
    waiting, seen = ["ftcli.core.publishing.publish"], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for each in imports(modules()[name], "ftcli.core"):
            module = each.module if each.module in modules() else each.module.rpartition(".")[0]
            if root(module) == "ftcli":
                assert module in {"ftcli.errors", "ftcli.records"} or module.startswith("ftcli.core."), (name, each)
                waiting += [module] if module.startswith("ftcli.core.") else []
            else:
                assert root(each.module) in allowed, (name, each)

    assert {"ftcli.core.publishing.publish", "ftcli.core.files.manifest", "ftcli.core.files.lease"} <= seen


def test_commands_do_not_know_the_command_line() -> None:
    found = [
        (name, each.module)
        for name, path in modules().items()
        if layer(name) < 4
        for each in imports(path, package_of(name, path))
        if root(each.module) in {"typer", "click", "rich"}
    ]

    assert found == []


@pytest.mark.parametrize("path", [*modules().values(), *plugin_files()], ids=lambda path: path.stem)
def test_a_file_stays_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
