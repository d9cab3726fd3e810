"""What a command may not import, in any of its processes: each of these costs every run a share of a second of CPU at least."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ftcli.testing import run
from timing import PATIENCE
from tokenizing import corpus, small_tokenizers, write  # noqa: F401 - a fixture
from verifying import World

pytestmark = pytest.mark.slow

ALWAYS = {"torch", "datasets", "pandas", "matplotlib", "mpl_toolkits", "sklearn", "scipy", "accelerate", "ray", "mlflow"}
TOKENIZE = ALWAYS | {
    "transformers",
    "huggingface_hub",
    "PIL",
    "ftcli.core.reports.plots",
    "ftcli.plugins.checks_steps",
    "ftcli.plugins.checks_tokenizer",
}
"""From the second run with a tokenizer on; the first one loads it with transformers. The mends come with the checks."""
VERIFY = ALWAYS | {"ftcli.core.reports.plots"}


def imported(folder: Path, *words: str) -> set[str]:
    """Modules and packages that statements of a command and its workers imported (`importlib.import_module` is not told of)."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPROFILEIMPORTTIME": "1", "DATASET_SHARD_BYTES": "2000"}
    command = [sys.executable, "-m", "ftcli", *words, "--json", "--report-dir", "reports"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["paths"]["html"]
    names = re.findall(r"^import time: .*\| +([\w.]+)$", done.stderr, flags=re.MULTILINE)
    return {*names, *(name.partition(".")[0] for name in names)}


def test_tokenize_imports_nothing_heavy(small_tokenizers: dict[str, Path], tmp_path: Path) -> None:  # noqa: F811
    source = write(tmp_path / "data.jsonl", corpus(300))
    words = ("tokenize", str(source), "--tokenizer-path", str(small_tokenizers["bpe"]), "--num-proc", "2", "--output-dir")
    first = run(*words, "first", env={"XDG_CACHE_HOME": str(tmp_path / "cache")}, cwd=tmp_path)  # in this process its proof is a short one
    assert first.exit_code == 0, first.stderr
    found = imported(tmp_path, *words, "second")
    assert {
        "gigatoken",
        "ftcli.core.prepare.encode",
        "ftcli.core.reports.bars",
    } <= found  # a worker's imports are seen, and a plot was drawn
    assert found & TOKENIZE == set()


def test_a_quick_verify_imports_nothing_heavy(world: World, tmp_path: Path) -> None:
    words = ("verify", "--level", "quick", "--tokenizer-path", str(world.bpe), "--dataset", str(world.labelled), "--mode", "classify")
    found = imported(tmp_path, *words)
    assert {"transformers", "ftcli.plugins.mends", "ftcli.core.tokenizer.round_trip"} <= found
    assert found & VERIFY == set()
