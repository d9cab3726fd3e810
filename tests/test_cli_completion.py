"""What shells offer, and the scripts that make them ask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli_process import ended, spawn
from ftcli.cli.catalog import COMMANDS
from ftcli.cli.complete import complete
from ftcli.testing import run


def test_completion_offers_commands_options_choices_and_profiles() -> None:
    def offered(*words: str) -> list[str]:
        variables = {"_FTCLI_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["ftcli", *words]), "COMP_CWORD": str(len(words))}
        return ended(spawn(env={**os.environ, **variables})).stdout.splitlines()

    assert offered("t") == ["tokenize", "train", "train-tokenizer"]
    assert offered("tokenize", "--memory-mode", "b") == ["balanced"]
    assert offered("tokenize", "--max-l") == ["--max-length"]
    assert offered("train", "--no-bf") == ["--no-bf16"]
    assert offered("settings", "--profile", "") == ["auto", "highend", "lowmem", "standard", "workstation"]


@pytest.mark.parametrize(
    ("command", "typed", "incomplete", "offers"),
    [
        ("benchmark", [], "t", ["tokenize", "train"]),
        ("benchmark", ["--repeats", "3"], "b", ["batch"]),
        ("benchmark", ["train"], "", []),
        ("profiles", ["show"], "h", ["highend"]),
        ("plugins", ["new"], "", []),
        ("train", ["--mode"], "", ["classify", "regress", "pretrain", "sft"]),
        ("train", ["--eval_strategy", "="], "e", ["epoch"]),
        ("train", ["--report-to"], "m", ["mlflow"]),
        ("export", ["prepared", "--format"], "m", ["mds", "megatron"]),
        ("settings", ["import", "--from"], "a", ["axolotl"]),
        ("train", ["--bf16"], "", []),
        ("train", ["--torch-compile"], "", ["auto"]),
        ("tokenize", [], "", []),
        ("train", [], "--adam", []),
    ],
)
def test_completion_knows_positions_values_and_what_is_hidden(command: str, typed: list[str], incomplete: str, offers: list[str]) -> None:
    assert [item.value for item in complete(COMMANDS[command], typed, incomplete)] == offers


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_exist_for_the_three_shells(shell: str) -> None:
    result = run("--show-completion", shell)

    assert result.exit_code == 0
    assert "_FTCLI_COMPLETE" in result.stdout
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=result.stdout, text=True).returncode == 0


def test_completion_is_installed_in_the_home_of_the_user() -> None:
    result = run("--install-completion", "bash")

    assert result.exit_code == 0
    assert (Path.home() / ".bash_completions" / "ftcli.sh").is_file()


def test_completion_for_another_shell_is_refused() -> None:
    result = run("--show-completion", env={"SHELL": "/bin/tcsh"})

    assert result.exit_code == 2
    assert "not 'tcsh'" in result.stderr


@pytest.mark.parametrize(("words", "home"), [(["--show-completion", "bash"], "/"), (["--install-completion", "bash"], "/dev/null")])
def test_completion_that_cannot_be_written_is_said(words: list[str], home: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "ftcli", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, "HOME": home}, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("error: completion cannot be written to ")
    assert "Traceback" not in done.stderr
