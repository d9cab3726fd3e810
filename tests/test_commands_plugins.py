"""`ftcli plugins`: list, doctor, and a new plugin that works."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ftcli.pluginmanager import BUILT_INS
from ftcli.testing import run

GOOD = "from ftcli import hookimpl\n@hookimpl\ndef on_step(step): ...\n"
CHECK = """
from ftcli import hookimpl
from ftcli.contracts import CheckKind

@hookimpl
def register_checks(register):
    register("x", CheckKind({id!r}, {stage!r}, "title", print{rest}))
"""
ENVIRONMENT = "from ftcli import hookimpl\n@hookimpl\ndef environment(settings, machine):\n    return {}\n"
COLLATOR = """
from ftcli import hookimpl
from ftcli.contracts import CollatorKind

@hookimpl
def register_collators(register):
    register("x", CollatorKind({}))
"""
MINE = """
from ftcli import hookimpl

class Mine:
    name = "mine"
    splits = False
    def pack(self, lengths, max_length):
        import numpy as np
        from ftcli.contracts import Packs
        rows = np.arange(len(lengths))
        return Packs(rows, 0 * rows, lengths, np.arange(len(lengths) + 1))

@hookimpl
def register_packers(register):
    register("mine", Mine)
"""
BROKEN = {
    "mark": ("def on_step(step): ...\n", "on_step is not marked as a hook, so it would never be called"),
    "syntax": ("x = 1\ndef on_step(step)\n    pass\n", "SyntaxError: expected ':' (bad.py, line 2)"),
    "name": ("x = 1\n@hookimpl\ndef on_step(step): ...\n", "NameError: name 'hookimpl' is not defined (bad.py, line 2)"),
    "import": ("import no_such_module", "no_such_module"),
    "hook": ("from ftcli import hookimpl\n@hookimpl\ndef on_stpe(step): ...\n", "unknown hook 'on_stpe'"),
    "argument": ("from ftcli import hookimpl\n@hookimpl\ndef on_step(stop): ...\n", "on_step takes 'stop', which the hook does not give"),
    "register": ("from ftcli import hookimpl\n@hookimpl\ndef register_checks(register):\n    1 / 0\n", "ZeroDivisionError"),
    "clash": ("from ftcli import hookimpl\n@hookimpl\ndef register_packers(register):\n    register('bfd', object)\n", "'bfd'"),
    "twice": (
        "from ftcli import hookimpl\n@hookimpl\ndef register_packers(register):\n    for _ in 'ab':\n        register('x', object)\n",
        "registers the packer 'x' twice",
    ),
    "instance": (
        "from ftcli import hookimpl\n@hookimpl\ndef register_packers(register):\n    register('x', object())\n",
        "the packer 'x' as an object, which cannot be called",
    ),
    "class": (
        "from ftcli import hookimpl\n@hookimpl\ndef register_collators(register):\n    register('x', object)\n",
        "the collator 'x' as a class, not as ftcli.contracts.CollatorKind",
    ),
    "order": (COLLATOR.format('lambda spec: print, order="sorted"'), "plugin 'bad' registers the collator 'x' with the order 'sorted'"),
    "packed": (COLLATOR.format('lambda spec: print, packed="no"'), "plugin 'bad' registers the collator 'x' with the packed 'no'"),
    "no maker": (COLLATOR.format("None"), "plugin 'bad' registers the collator 'x' with the make None"),
    "one need": (
        CHECK.format(id="x", stage="env", rest=", needs=('store')"),
        "plugin 'bad' registers the check 'x' with the needs 'store'",
    ),
    "severity": (CHECK.format(id="x", stage="env", rest=", severity='error'"), "registers the check 'x' with the severity 'error'"),
    "needs": (CHECK.format(id="x", stage="env", rest=", needs=('tokeniser',)"), "check 'x' needs 'tokeniser', which a probe does not have"),
    "circle": (CHECK.format(id="x", stage="env", rest=", after=('x',)"), "checks wait for each other: x after x"),
    "tweak": (ENVIRONMENT.format('{"MINE": "2"}'), "plugin 'bad': MINE = '2' is not a Tweak of a string"),
    "no tweaks": (ENVIRONMENT.format("None"), "plugin 'bad': environment() returned None"),
    "environment": (ENVIRONMENT.format("1 / 0"), "failed in environment: ZeroDivisionError: division by zero (bad.py, line 4)"),
    "no packs": (MINE.replace("return Packs", "Packs"), "the packer mine of plugin 'bad' returned NoneType, not Packs"),
    "no batch": (
        COLLATOR.format("lambda spec: lambda rows: None"),
        "the collator x of plugin 'bad' makes an unusable batch: it is NoneType",
    ),
    "collator": (COLLATOR.format("lambda spec: lambda rows: rows.nothing"), "the collator x of plugin 'bad' broke: AttributeError"),
    "no collator": (COLLATOR.format("lambda spec: None"), "the collator x of plugin 'bad' is None, which cannot be called"),
    "no check": (
        "from ftcli import hookimpl\n@hookimpl\ndef register_checks(register):\n    register('x', 3)\n",
        "the check 'x' as an int, not as ftcli.contracts.CheckKind",
    ),
    "stage": (CHECK.format(id="x", stage="envy", rest=""), "the stage 'envy'"),
    "id": (CHECK.format(id="y", stage="env", rest=""), "registers the check 'x' with the id 'y'"),
}


def folder_of(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / f"{name}.py").write_text(text)
    return path


def checks(*words: str | Path) -> dict[str, dict[str, str]]:
    return {check["id"]: check for check in run("plugins", "doctor", "--json", *words).report["checks"]}


def test_the_list_has_the_built_ins_and_local_files_with_hash_and_hooks(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "p", extra=GOOD)

    result = run("plugins", "--plugins-dir", folder, "--json")

    rows = result.report["details"]["table"]["rows"]
    assert len(rows) == len(BUILT_INS) + 1
    assert rows[-1][0] == "extra"
    assert rows[-1][2] == str(folder / "extra.py")
    assert len(rows[-1][3]) == 16
    assert rows[-1][4] == "on_step"
    assert [each["name"] for each in result.report["plugins"]] == [row[0] for row in rows]


def test_the_list_refuses_a_broken_plugin_and_names_it(tmp_path: Path) -> None:
    result = run("plugins", "--plugins-dir", folder_of(tmp_path / "p", extra="import no_such_module"))

    assert result.exit_code == 1
    assert "plugin 'extra'" in result.stderr


def test_the_doctor_finds_the_built_ins_well() -> None:
    result = run("plugins", "doctor")

    assert result.exit_code == 0
    assert "pass     plugin:built-ins" in result.stdout


@pytest.mark.parametrize("case", BROKEN)
def test_the_doctor_finds_each_kind_of_damage_and_ends_with_1(tmp_path: Path, case: str) -> None:
    text, symptom = BROKEN[case]
    folder = folder_of(tmp_path / "p", bad=text, good=GOOD)

    result = run("plugins", "doctor", "--json", "--plugins-dir", folder)

    found = {check["id"]: check for check in result.report["checks"]}
    assert result.exit_code == 1
    assert found["plugin:bad"]["status"] == "fail"
    assert symptom in found["plugin:bad"]["summary"]
    assert found["plugin:bad"]["fix"]
    assert found["plugin:good"]["status"] == "pass"


def test_the_doctor_finds_two_plugins_that_only_clash_together(tmp_path: Path) -> None:
    found = checks("--plugins-dir", folder_of(tmp_path / "p", one=MINE, two=MINE))

    assert found["plugin:one"]["status"] == found["plugin:two"]["status"] == "pass"
    assert found["plugin:all together"]["status"] == "fail"
    assert "'one' and 'two' both register" in found["plugin:all together"]["summary"]


def test_the_doctor_warns_of_a_plugin_without_a_hook_and_the_list_says_so(tmp_path: Path) -> None:
    empty = folder_of(tmp_path / "b", extra="x = 1\n")

    assert "has no hook" in checks("--plugins-dir", empty)["plugin:extra"]["summary"]
    assert run("plugins", "doctor", "--plugins-dir", empty).exit_code == 0
    assert "plugin extra (" in run("plugins", "--plugins-dir", empty).stderr
    assert "has no hook, and does nothing" in run("plugins", "--plugins-dir", empty).stderr


def test_the_doctor_says_what_a_plugin_offers(tmp_path: Path) -> None:
    found = checks("--plugins-dir", folder_of(tmp_path / "p", one=MINE, two=GOOD))

    assert found["plugin:one"]["summary"] == "offers packer mine; hooks: register_packers"
    assert found["plugin:two"]["summary"] == "offers no part; hooks: on_step; not tried, which takes a run: on_step"


@pytest.mark.parametrize(
    ("maker", "packed", "left"),
    [
        ("Dynamic", False, ""),
        ("Packed", True, ""),
        ("lambda spec: lambda rows: {'input_ids': torch.ones(3, 5).int(), 'labels': torch.from_numpy(rows.labels)}", False, ""),
        ("refusing", False, "; not tried, which takes a run: collator x (it refuses made-up rows: only pairs)"),
    ],
)
def test_the_doctor_tries_collators_on_rows_of_its_own(tmp_path: Path, maker: str, packed: bool, left: str) -> None:
    text = f"""
from ftcli import hookimpl
from ftcli.contracts import CollatorKind
from ftcli.errors import DataError

def refusing(spec):
    raise DataError("only pairs")

@hookimpl
def register_collators(register):
    import torch
    from ftcli.core.batches.collate import Dynamic, Packed
    register("x", CollatorKind({maker}, packed={packed}))
"""
    found = checks("--plugins-dir", folder_of(tmp_path / "p", mine=text))["plugin:mine"]
    assert (found["status"], found["summary"]) == ("pass", f"offers collator x; hooks: register_collators{left}")


def test_the_doctor_examines_one_file_too(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "p", extra=GOOD, other="import no_such_module")

    assert checks("--plugins-dir", folder / "extra.py")["plugin:extra"]["status"] == "pass"


def test_a_new_plugin_is_a_project_that_passes_its_own_test(tmp_path: Path) -> None:
    result = run("plugins", "new", "short-rows", "--output", tmp_path, "--json")
    folder = tmp_path / "ftcli-short-rows"

    assert result.exit_code == 0
    assert result.report["paths"] == {"output": str(folder)}
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["entry-points"] == {"ftcli": {"short_rows": "ftcli_short_rows"}}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests")]
    done = subprocess.run(tests, cwd=folder, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_a_new_plugin_is_loaded_and_its_check_runs_in_verify(tmp_path: Path) -> None:
    run("plugins", "new", "rows", "--output", tmp_path)
    source = tmp_path / "ftcli-rows" / "src"

    result = run("verify", "--json", "--plugins-dir", source, "--select", "rows-disk", "--report-dir", tmp_path / "reports")

    assert [(check["id"], check["stage"]) for check in result.report["checks"]] == [("rows-disk", "env")]
    assert "ftcli_rows" in [each["name"] for each in result.report["plugins"]]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["new"], 2, "new needs a name"),
        (["doctor", "x"], 2, "takes no name"),
        (["new", "Bad Name"], 2, "a plugin cannot be called 'Bad Name'"),
        (["new", "foo-"], 2, "a plugin cannot be called 'foo-'"),
        (["new", "foo_"], 2, "a plugin cannot be called 'foo_'"),
        (["new", "class"], 2, "a plugin cannot be called 'class'"),
        (["new", "x", "--output", "/dev/null/no"], 1, "cannot be written"),
    ],
)
def test_a_new_plugin_that_cannot_be_is_refused(words: list[str], code: int, message: str) -> None:
    result = run("plugins", *words)

    assert (result.exit_code, message in result.stderr) == (code, True)


def test_a_new_plugin_on_a_full_disk_leaves_nothing_in_the_way_of_the_next_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def full(path: Path, *rest: Any, **named: Any) -> int:
        if path.name == "conftest.py":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        assert "No space left on device" in run("plugins", "new", "rows", "--output", tmp_path).stderr
    assert list(tmp_path.iterdir()) == []
    assert run("plugins", "new", "rows", "--output", tmp_path).exit_code == 0


def test_a_new_plugin_never_overwrites(tmp_path: Path) -> None:
    run("plugins", "new", "rows", "--output", tmp_path)

    result = run("plugins", "new", "rows", "--output", tmp_path)

    assert result.exit_code == 2
    assert "already exists" in result.stderr
