"""Helpers of the command-line tests: fresh processes, and folders with one plugin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ftcli.testing import Result
from timing import PATIENCE


def spawn(*words: str | Path, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ftcli", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload,no-any-return]


def ended(process: subprocess.Popen[str]) -> Result:
    out, err = process.communicate(timeout=PATIENCE)
    return Result(process.returncode, out, err)


def plugin(folder: Path, text: str, name: str = "extra.py") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder
