"""`ftcli settings`: values with origins, and shell lines that a shell understands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ftcli.commands.settings import as_text
from ftcli.testing import run

PLUGIN = """
from ftcli import hookimpl
from ftcli.records import Tweak

@hookimpl
def environment(settings, machine):
    return {"EXTRA_PLACES": Tweak("it's {0:2}; $HOME", "two\\nlines of reason"), "EXTRA_SET": Tweak("new", "wanted")}
"""


def test_what_is_set_is_listed_with_its_origin_and_the_rest_is_counted(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("dataset:\n  sources: [a.jsonl, b.jsonl]\n")

    result = run("settings", "--config", config, "--set", "train.bf16=true", env={"DATASET_NUM_PROC": "3"})

    lines = result.stdout.splitlines()
    assert lines[0].startswith("3 of ")
    assert [line.split("  ")[0] for line in lines[2:]] == ["dataset.num_proc", "dataset.sources", "train.bf16"]
    assert lines[2].split() == ["dataset.num_proc", "3", "DATASET_NUM_PROC"]
    assert lines[3].split()[1:] == ["a.jsonl,b.jsonl", str(config)]
    assert lines[4].split()[1:] == ["true", "--set"]


def test_all_lists_every_setting() -> None:
    result = run("settings", "--all", "--json")

    assert len(result.report["details"]["table"]["rows"]) == len(result.report["settings"]) > 100


def test_nothing_set_says_so() -> None:
    assert run("settings").stdout.startswith("0 of ")


def test_values_read_as_they_would_be_typed() -> None:
    assert [as_text(value) for value in (None, True, False, ["a", "b"], 3, Path("x"))] == ["unset", "true", "false", "a,b", "3", "x"]
    assert as_text(Path("s3://bucket/sets")) == "s3://bucket/sets"  # a Path keeps one of the slashes


def test_exported_lines_are_quoted_for_the_shell_and_carry_their_reason(tmp_path: Path) -> None:
    (tmp_path / "extra.py").write_text(PLUGIN)

    result = run("settings", "--export-env", "--plugins-dir", tmp_path)

    assert result.exit_code == 0
    assert any(line.startswith("export EXTRA_PLACES=") and line.endswith("# two lines of reason") for line in result.stdout.splitlines())
    shell = f'{result.stdout}\nprintf "%s|%s" "$EXTRA_PLACES" "$EXTRA_SET"'
    assert subprocess.run(["bash", "-eu", "-c", shell], capture_output=True, text=True).stdout == "it's {0:2}; $HOME|new"
    assert "EXTRA_PLACES" not in os.environ


def test_a_variable_that_the_user_set_is_not_exported(tmp_path: Path) -> None:
    (tmp_path / "extra.py").write_text(PLUGIN)

    result = run("settings", "--export-env", "--plugins-dir", tmp_path, env={"EXTRA_SET": "mine"})

    assert "export EXTRA_SET" not in result.stdout
    assert "# EXTRA_SET stays mine, which is already set; ftcli would set new: wanted" in result.stdout.splitlines()
    assert all(line.startswith(("export ", "# ")) for line in result.stdout.splitlines())


def test_exported_lines_follow_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    result = run("settings", "--export-env", "--set", "runtime.threads=3")

    assert "export OMP_NUM_THREADS=3  # 3 by runtime.threads" in result.stdout.splitlines()
