"""benchmarks/false_alarms.py: every pair once, its verdicts kept, and those shown that nobody has looked into."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from verifying import World, texts

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="the benchmarks are in the source tree only")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module("benchmarks.false_alarms")
    finally:
        sys.path.remove(str(ROOT))


def test_each_pair_is_prepared_verified_and_kept(
    program: ModuleType, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(world.bpe, tmp_path / "data" / "tokenizers" / "own")
    sound = [(text, "ab"[number % 2]) for number, text in enumerate(texts(40, 2))]
    sets = {
        "sound": lambda _: {"train": sound, "test": [(text, "ab"[number % 2]) for number, text in enumerate(texts(40, 3))]},
        "leaking": lambda _: {"train": sound, "test": sound},
    }
    monkeypatch.setattr(program, "_sets", lambda: sets)
    words = ["--data", str(tmp_path / "data"), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"), "--modes", "classify"]
    assert program.main([*words, "--datasets", "sound"]) == 0
    assert program.main(words) == 1
    records = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [(record["dataset"], [verdict["id"] for verdict in record["verdicts"]]) for record in records] == [
        ("sound", []),
        ("leaking", ["FT205"]),
    ]
    assert "own × leaking, classify, quick: FT205 fail: 100.00% of the test rows" in capsys.readouterr().out
    assert program.main([*words, "--redo", "FT2"]) == 1
    assert len((tmp_path / "out").read_text().splitlines()) == 3  # the sound pair was not tried again
    assert list((tmp_path / "work").iterdir()) == []


def test_verdicts_that_are_known_to_be_true_are_passed_over(program: ModuleType) -> None:
    def record(*ids: str, error: str | None = None) -> dict[str, Any]:
        return {"verdicts": [{"id": name, "status": "warn", "summary": name} for name in ids], "not_prepared": error}

    pair = program.Pair("phi-3-mini", "gsm8k", "pretrain", "quick")
    packed = program.Pair("phi-3-mini", "gsm8k", "pretrain-packed", "quick")
    assert program.unknown({pair: record("FT103"), packed: record()}) == []
    assert len(program.unknown({packed: record("FT103")})) == 1
    assert len(program.unknown({packed: record(error="no rows")})) == 1
    assert not program.is_done(None, ())
    assert program.is_done(record("FT103"), ())
    assert not program.is_done(record("FT103"), ("FT1",))
    assert program.is_done(record(), ("FT1",))
