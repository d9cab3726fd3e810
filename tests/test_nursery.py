"""What tests of kills start is born in the nursery: where it is not, they say the same and take several times as long."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import nursery
from ftcli.core.processes import child, dies_with_parent


class Started:
    """In place of a process: what it was to be."""

    returncode, stdout, stderr = 0, "", ""

    def __init__(self, words: list[str], *, env: dict[str, str] | None = None, **_: Any) -> None:
        asked.append((words, env))


asked: list[tuple[list[str], dict[str, str] | None]] = []


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked.clear()
    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(subprocess, "run", Started)


def born() -> list[bool]:
    return [nursery.takes(words, env, os.environ) for words, env in asked]


def test_a_child_and_a_tied_command_are_born() -> None:
    child.Child(threads=1)
    dies_with_parent.run(["--version"], os.environ)
    assert born() == [True, True]


def test_what_is_no_part_of_ftcli_is_not() -> None:
    subprocess.run([sys.executable, "-P", "-c", "import sys; sys.path[:] = []; print(1)"])
    subprocess.run([sys.executable, "-m", "pip"])
    subprocess.run(["python3", "-m", "ftcli"])
    assert born() == [False, False, False]
