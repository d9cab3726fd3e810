"""benchmarks/footprint.py: a step is really made, and its table names both figures and their ratio."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="the benchmarks are in the source tree only")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module("benchmarks.footprint")
    finally:
        sys.path.remove(str(ROOT))


@pytest.mark.parametrize("head", [None, 3])
def test_a_small_step_is_made_and_estimated(program: ModuleType, head: int | None) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 100}
    found = program.measure({"type": "bert" if head else "gpt2", "config": sizes, "head": head, "rows": 2, "width": 8})
    assert found["estimated"] > 0
    assert set(found) == {"estimated", "measured", "model"}


def test_the_table_says_how_far_the_estimate_is_from_what_was_measured(program: ModuleType) -> None:
    lines = program.table({"a case": {"estimated": 750.0, "measured": 1000.0, "model": 20.0}})
    assert lines[-1] == "| a case | 750 | 1,000 | 0.75 |"
