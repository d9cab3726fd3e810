"""benchmarks/train.py: rows of the lengths it says, the same step by every way, and a difference ends it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ftcli.testing import run as ftcli

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "benchmarks" / "train.py").exists():
    pytest.skip("the benchmarks are in the source tree only", allow_module_level=True)
sys.path.insert(0, str(ROOT))
try:
    from benchmarks import train, train_table, train_way, train_works
    from benchmarks.equal import DifferentError
finally:
    sys.path.remove(str(ROOT))

TINY = {**train_works.MODEL, "vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 4}


def test_lengths_are_those_of_incident_1_and_of_a_long_tail() -> None:
    generator = np.random.default_rng(0)
    found = train_works.incident1(20_000, generator)
    assert found.mean() == pytest.approx(211.5, abs=1)
    assert found.max() == 287
    found = train_works.long_tail(20_000, generator)
    assert np.median(found) == pytest.approx(120, abs=3)
    assert found.max() == 1_024
    assert set(train_works.equal(9, generator).tolist()) == {256}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> train_works.Made:
    def here(command: list[str], *_: Any) -> None:
        assert ftcli(*command[3:]).exit_code == 0  # without "python -m ftcli"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_works.process, "run", here)
        work = train_works.Work("incident1", train_works.incident1, 64, "classify", 4)
        return train_works.make(replace(work, model=TINY), 8, tmp_path_factory.mktemp("work"))


def way(name: str, made: train_works.Made, output: Path, *more: str) -> dict[str, Any]:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    try:
        words = ["--way", name, "--task", "classify", "--store", made.store, "--tokenizer", made.tokenizer, "--model", made.model]
        return train_way.main([*map(str, words), "--output", str(output), "--batch", "4", "--max-length", "64", *more])
    finally:
        torch.set_rng_state(state)
        torch.set_num_threads(threads)


def test_ways_take_the_same_step_and_another_model_is_told_from_it(made: train_works.Made, tmp_path: Path) -> None:
    found = {name: way(name, made, tmp_path / name, "--equal")["loss"] for name in ("dynamic", "fixed", "torch")}
    assert found["fixed"] == pytest.approx(found["dynamic"], rel=train.LOSS)
    for name in ("fixed", "torch"):
        assert train.differences(made.model, tmp_path / "dynamic", tmp_path / name) < train.GRADIENT
    assert train.differences(made.model, tmp_path / "dynamic", made.model) > 1  # no step was taken


def test_rates_leave_the_first_step_out(made: train_works.Made, tmp_path: Path) -> None:
    found = way("torch", made, tmp_path / "run")
    assert found["steps"] == 2
    assert found["real_tokens_per_second"] > 0
    clock = train_way.Clock("cpu")
    clock.tokens, clock.readings = [1_000, 30, 20, 99], [(10.0, 1.0), (12.0, 2.0), (15.0, 3.0)]  # a batch is fetched ahead of its step
    assert clock.rates() == {"real_tokens_per_second": 10.0, "real_tokens_per_cpu_second": 25.0, "steps": 3}


class Doubles(train.Bench):
    """Ways that answer at once."""

    def __init__(self, folder: Path, losses: dict[str, float]) -> None:
        super().__init__(folder, 1, device="cpu", bf16=False, options=[])
        self.losses, self.asked = losses, list[str]()

    def run(self, way: str, _work: Any, _made: Any, *, equal: bool = False) -> dict[str, Any]:
        if equal:
            return {"loss": self.losses[way]}
        self.asked.append(way)
        rate = {"ftcli": 300.0, "fixed": 100.0, "best": 250.0}[way]
        return {"real_tokens_per_second": rate, "real_tokens_per_cpu_second": rate / 2}


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "differences", lambda *_: 1e-6)
    monkeypatch.setattr(train, "make", lambda *_: train_works.Made(Path(), Path(), Path()))


@pytest.mark.usefixtures("no_weights")
def test_ways_alternate_and_a_ratio_is_held_against_what_is_required(tmp_path: Path) -> None:
    bench = Doubles(tmp_path, {"ftcli": 5.6, "fixed": 5.6, "best": 5.6})
    found = train.compare(bench, train_works.WORKS["incident1"], 96, 2, ["ftcli", "fixed", "best"])
    assert bench.asked == ["ftcli", "fixed", "best", "best", "fixed", "ftcli"]
    assert (found["ratios"]["fixed"]["wall"]["median"], found["ratios"]["fixed"]["wall"]["met"]) == (3.0, True)
    assert found["ratios"]["best"]["cpu"]["required"] is None
    document = {"results": [found], "arguments": {"threads": 1, "repeats": 2}, "bf16": False, "versions": {}, "load_average_after": 0.0}
    card = {"cpu_model": "m", "cores": 1, "memory_bytes": 2**30, "disk_kind": "d", "platform": "p", "python": "3", "load_average": 0.0}
    table = train_table.markdown(json.loads(json.dumps({**document, "machine": card})))
    assert "| 3.00× (3.00 to 3.00) | 3×: met |" in table


@pytest.mark.usefixtures("no_weights")
def test_another_loss_ends_it_before_any_ratio(tmp_path: Path) -> None:
    bench = Doubles(tmp_path, {"ftcli": 5.6, "fixed": 5.6001})
    with pytest.raises(DifferentError, match="ftcli and fixed differ"):
        train.compare(bench, train_works.WORKS["incident1"], 96, 1, ["ftcli", "fixed"])
    assert bench.asked == []


def test_unknown_works_and_ways_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--works", "nothing"], ["--ways", "fixed,nobody"], ["--rows", "9"]):
        with pytest.raises(SystemExit):
            train.arguments(words)
        assert "there is no" in (said := capsys.readouterr().err) or "64 rows" in said
    assert train.arguments(["--quick"]).rows == 96
