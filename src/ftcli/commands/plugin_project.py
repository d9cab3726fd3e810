"""The project that `ftcli plugins new NAME` writes: small, installable, tested."""

from __future__ import annotations

import keyword
import re
import shutil
from pathlib import Path
from string import Template

from ftcli import __version__
from ftcli.errors import PublishError, UsageError

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "ftcli-$dashed"
version = "0.1.0"
description = "A plugin for ftcli."
requires-python = ">=3.11"
dependencies = ["ftcli>=$version"]

[project.entry-points.ftcli]
$name = "ftcli_$name"

[tool.setuptools]
py-modules = ["ftcli_$name"]
package-dir = { "" = "src" }
"""

MODULE = '''\
"""An ftcli plugin: a check for `ftcli verify`, and a watch on the loss of `ftcli train`.

Hooks and their arguments are in `ftcli.hookspecs`; leave out what you do not need. Keep heavy imports (torch, transformers,
numpy) inside functions, so that ftcli starts fast.
"""

from __future__ import annotations

import math
from typing import Any

from ftcli import hookimpl
from ftcli.contracts import CheckKind
from ftcli.errors import TrainError
from ftcli.records import Check, Step

FREE_GB = 5


def disk_has_room(probe: Any) -> Check:
    """A check gets a probe (`probe.machine`, `probe.settings`, `probe.tokenizer`, `probe.store` …) and returns its verdict."""
    free = probe.machine.disk_free_bytes / 1e9
    evidence = {"free_gb": round(free, 1), "wanted_gb": FREE_GB}
    if free < FREE_GB:
        return Check("", "", "warn", f"{free:.1f} GB are free on the disk", evidence, "Make room before a long run.")
    return Check("", "", "pass", f"{free:.0f} GB are free on the disk", evidence)


@hookimpl
def register_checks(register: Any) -> None:
    """`ftcli verify` runs it with all others; `ftcli verify --select $name-disk` runs it alone."""
    register("$name-disk", CheckKind("$name-disk", "env", "The disk has room", disk_has_room, severity="warn"))


@hookimpl
def on_step(step: Step) -> None:
    """Called after every logged optimizer step of `ftcli train`; raising stops the run."""
    if step.loss is not None and math.isinf(step.loss):
        raise TrainError(f"the loss is infinite at step {step.step}", "Lower --learning-rate, then continue from the last checkpoint.")
'''

TEST = '''\
"""Run with: pytest"""

from pathlib import Path
from types import SimpleNamespace

import ftcli_$name
import pytest
from ftcli.errors import TrainError
from ftcli.records import Step
from ftcli.testing import run

FOLDER = str(Path(ftcli_$name.__file__).parent)


@pytest.mark.parametrize(("free_bytes", "status"), [(100e9, "pass"), (1e9, "warn")])
def test_a_full_disk_is_a_warning(free_bytes: float, status: str) -> None:
    probe = SimpleNamespace(machine=SimpleNamespace(disk_free_bytes=free_bytes))

    assert ftcli_$name.disk_has_room(probe).status == status


def test_an_infinite_loss_stops_the_run() -> None:
    with pytest.raises(TrainError, match="step 3"):
        ftcli_$name.on_step(Step(step=3, epoch=0.1, loss=float("inf"), grad_norm=None, learning_rate=None))


def test_ftcli_loads_the_plugin() -> None:
    result = run("plugins", "doctor", "--plugins-dir", FOLDER, "--json")

    assert result.exit_code == 0, result.stderr
    found = {check["id"] for check in result.report["checks"]}
    assert found & {"plugin:$name", "plugin:ftcli_$name"}  # installed it has the name of its entry point
'''

CONFTEST = '''\
"""Makes the plugin importable without installing it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
'''

README = """\
# ftcli-$dashed

A plugin for ftcli: a check for `ftcli verify` and a watch on the loss of `ftcli train`.

    pip install -e .                        # ftcli finds it by its entry point
    ftcli plugins list
    ftcli plugins doctor

Without installing: `ftcli verify --plugins-dir src …`. Tests: `pytest`.
"""

FILES = {
    "pyproject.toml": PYPROJECT,
    "README.md": README,
    "src/ftcli_$name.py": MODULE,
    "tests/conftest.py": CONFTEST,
    "tests/test_ftcli_$name.py": TEST,
}


def write_project(name: str, output: Path) -> Path:
    """Write `output`/ftcli-NAME and return it.

    Args:
        name: letters, digits, - and _; it becomes the module ftcli_NAME.

    Raises:
        UsageError: the name cannot be a Python module, or the folder is there already.
        PublishError: it cannot be written.
    """
    words = {"name": name.replace("-", "_"), "dashed": name.replace("_", "-"), "version": __version__}
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", words["name"]) or keyword.iskeyword(words["name"]):
        raise UsageError(
            f"a plugin cannot be called {name!r}", "Use lower-case letters, digits and -, beginning with a letter and not ending with -."
        )
    folder = output / f"ftcli-{words['dashed']}"
    if folder.exists():
        raise UsageError(f"{folder} already exists", "Choose another name or --output.")
    try:
        for path, text in FILES.items():
            target = folder / Template(path).substitute(words)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(Template(text).substitute(words), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # half a project would be in the way of the next try
        raise PublishError(f"{folder} cannot be written: {error.strerror}", "Choose another --output.") from error
    return folder
