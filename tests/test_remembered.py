"""Answers about a tokenizer that are kept: given again for the same folder, computed again for any other, never needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftcli.context import Context
from ftcli.core.remembered import remembered
from ftcli.testing import tiny_tokenizer


@pytest.fixture
def context(tmp_path: Path) -> Context:
    tiny_tokenizer(tmp_path / "tokenizer")
    return Context.make({"tokenizer.path": str(tmp_path / "tokenizer"), "runtime.cache_dir": tmp_path / "cache"})


def test_an_answer_is_computed_once_a_tokenizer(context: Context, tmp_path: Path) -> None:
    asked = []

    def compute() -> dict[str, int]:
        asked.append(1)
        return {"answer": len(asked)}

    assert [remembered(context, "one", compute) for _ in range(2)] == [{"answer": 1}] * 2
    assert remembered(context, "other", compute) == {"answer": 2}
    path = tmp_path / "tokenizer" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 7}))
    assert remembered(context, "one", compute) == {"answer": 3}


def test_a_damaged_answer_is_computed_again(context: Context, tmp_path: Path) -> None:
    remembered(context, "one", lambda: {"answer": 1})
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    assert remembered(context, "one", lambda: {"answer": 3}) == {"answer": 3}


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(context: Context, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert remembered(context, "one", lambda: {"answer": 1}) == {"answer": 1}
    assert remembered(context, "one", lambda: {"answer": 2}) == {"answer": 2}
