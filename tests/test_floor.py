"""What the machine could do at best, and a run beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ftcli.core.benchmark import floor
from ftcli.core.benchmark.floor import Floor, beside_machine, disk_rates, limit, measure_floor, shares, stage_seconds, verdict
from ftcli.errors import DataError
from ftcli.records import Piece, ShardPlan
from tokenizing import context, corpus, prepare, small_tokenizers, without_plots, write

__all__ = ["small_tokenizers", "without_plots"]

RAN = {"read": 1.0, "encode": 8.0, "write": 0.5, "wait": 0.5}
METRICS = {"tokens_per_second": 7.1e6, "megabytes_per_second": 50.0, "bytes_read": 1_000_000_000, "bytes_written": 600_000_000}


class Here:
    """An executor in this process."""

    def run(self, function: Callable[[ShardPlan], Any], shards: Sequence[ShardPlan], on_progress: Callable[..., None]) -> Iterator[Any]:
        return map(function, shards)


class Clock:
    """The time as the measurement sees it: reading it costs a little, sleeping what it says."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.perf_counter()

    def perf_counter(self) -> float:
        self.now += 1e-4
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Encoder:
    """A token a byte, after a while."""

    def encode(self, texts: pa.Array) -> Any:
        floor.time.sleep(0.01)
        return type("Encoded", (), {"ids": range(sum(len(text.encode()) for text in texts.to_pylist()))})


def shards(count: int) -> list[ShardPlan]:
    return [ShardPlan(number, "train", (Piece(f"{number}.jsonl", "jsonl", 0, 100, "bytes", 100),)) for number in range(count)]


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every shard has 1,000 rows of 10 bytes; returns the numbers of the shards that were read."""
    read: list[int] = []

    def read_shard(shard: ShardPlan, *_: Any) -> Iterator[tuple[None, pa.RecordBatch]]:
        read.append(shard.index)
        if shard.index == 99:
            raise DataError("damaged")
        for _ in range(10):
            yield None, pa.record_batch({"text": pa.array(["x" * 10] * 100, pa.large_string())}).slice(10)

    monkeypatch.setattr(floor, "time", Clock())
    monkeypatch.setattr(floor, "read_shard", read_shard)
    monkeypatch.setattr(floor, "load_here", lambda _: (Encoder(), None))
    return read


class Job:
    columns = settings = None


def measured(tmp_path: Path, count: int, workers: int = 2, speed: float = 1e6) -> Floor:
    return measure_floor(Here(), Job(), shards(count), workers, tmp_path, speed)  # type: ignore[arg-type]


def test_the_engine_is_measured_on_rows_of_shards_spread_over_the_data(tmp_path: Path, reading: list[int]) -> None:
    found = measured(tmp_path, 80)

    assert reading == [0, 10, 20, 30, 40, 50, 60, 70]
    assert found.workers == 2
    # 9,000 bytes (all rows there are) in a little over 0.01 s, by two workers at once
    assert found.engine_tokens_per_second is not None
    assert 1.7e6 < found.engine_tokens_per_second < 1.8e6
    assert found.engine_text_mb_per_second == pytest.approx(found.engine_tokens_per_second / 1e6)


def test_a_sample_is_cut_by_the_speed_of_the_run(tmp_path: Path, reading: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(Encoder, "encode", lambda _, texts: sizes.append(texts.nbytes) or type("E", (), {"ids": range(len(texts))}))
    monkeypatch.setattr(floor, "ENGINE_SECONDS", 0.5)
    measured(tmp_path, 4, workers=1, speed=1.0)  # 20,000 bytes at least: more than there is

    assert len(sizes) == 4
    texts = pa.array(["ab", "c" * 10, "d" * 50], pa.large_string())
    assert [len(floor._first(texts, size)) for size in (0, 1, 2, 3, 11, 12, 13, 500)] == [1, 1, 1, 2, 2, 2, 3, 3]


def test_what_cannot_be_measured_is_none(tmp_path: Path, reading: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "DEADLINE", -1.0)
    late = measured(tmp_path, 8)
    monkeypatch.setattr(floor, "DEADLINE", 5.0)
    damaged = measured(tmp_path, 100, workers=25)

    for found in (late, damaged):
        assert found.engine_tokens_per_second is None
        assert found.engine_text_mb_per_second is None
        assert found.disk_write_mb_per_second is not None
    assert disk_rates(tmp_path / "missing") == (None, None)


def test_the_disk_is_measured_and_nothing_stays(tmp_path: Path) -> None:
    write, read = disk_rates(tmp_path)

    assert write is not None
    assert write > 1
    assert read is None or read > 1
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_gets_the_small_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = os.fsync

    def slow(descriptor: int) -> None:
        calls.append(os.fstat(descriptor).st_size)
        time.sleep(0.05)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    disk_rates(tmp_path)

    assert calls == [8_000_000]


def test_stage_seconds_are_those_of_a_worker_and_the_rest_is_waiting() -> None:
    assert stage_seconds({"read": 2.0, "encode": 10.0}, 2, 8.0) == {"read": 1.0, "encode": 5.0, "write": 0.0, "wait": 2.0}
    assert stage_seconds({"read": 8.0, "encode": 10.0}, 1, 12.0)["wait"] == 0.0  # stages that overlap


@pytest.mark.parametrize(
    ("stages", "disk", "words"),
    [
        ({}, None, "the engine is the limit"),
        ({"read": 9.0}, 0.9, "reading is the limit"),
        ({"write": 9.0}, 0.9, "the disk is the limit"),
        ({"write": 9.0}, 0.2, "writing is the limit"),
        ({"write": 9.0}, None, "writing is the limit"),
        ({"wait": 9.5}, 0.2, "the workers waited for data 50 % of the time"),
    ],
)
def test_the_limit_is_the_stage_that_took_most(stages: Mapping[str, float], disk: float | None, words: str) -> None:
    assert limit({**RAN, **stages}, disk) == words


def test_shares_are_rates_of_the_run_over_rates_alone() -> None:
    found = shares(Floor(10e6, 50.0, 2, 250.0, 900.0), METRICS)

    assert found == {"share_of_engine": pytest.approx(0.71), "disk_write_share": pytest.approx(0.12)}
    nothing = {"share_of_engine": None, "disk_write_share": None}
    assert shares(Floor(None, None, 2, None, None), METRICS) == nothing
    assert shares(Floor(10e6, 50.0, 2, 250.0, None), {**METRICS, "tokens_per_second": None, "megabytes_per_second": None}) == nothing


def test_the_verdict_is_one_sentence_without_what_is_unknown() -> None:
    both = {"share_of_engine": 0.71, "disk_write_share": 0.12}

    assert verdict(23190, "very fast", both, RAN) == (
        "23,190 examples/s: very fast; 71 % of the engine alone, disk at 12 % of its rate; the engine is the limit"
    )
    assert verdict(400, None, dict.fromkeys(both), RAN) == "400 examples/s; the engine is the limit"
    assert verdict(400, None, dict.fromkeys(both), RAN, templated=True).endswith("; the chat template and the engine are the limit")
    assert "disk at 0.4 % of its rate" in verdict(400, None, {"share_of_engine": None, "disk_write_share": 0.0042}, RAN)


@pytest.mark.parametrize(
    ("wanted", "wall", "measured"), [("auto", 59.0, False), ("auto", 61.0, True), ("always", 0.1, True), ("never", 11.0, False)]
)
def test_short_runs_are_measured_on_demand_only(
    tmp_path: Path, reading: list[int], small_tokenizers: Mapping[Any, Path], wanted: str, wall: float, measured: bool
) -> None:
    made = context(small_tokenizers["bpe"], tmp_path / "a.jsonl", tmp_path / "out", runtime__floor=wanted)
    found = beside_machine(made, Here(), Job(), shards(3), 1, METRICS, {"encode": 5.0}, wall)  # type: ignore[arg-type]

    assert ("floor" in found["details"]) == measured
    assert (found["shares"]["share_of_engine"] is not None) == measured
    assert found["details"]["time"]["encode"] == 5.0


def test_a_run_says_how_it_stands_beside_its_machine(tmp_path: Path, small_tokenizers: Mapping[Any, Path], without_plots: None) -> None:
    source = write(tmp_path / "data.jsonl", corpus(300))
    report = prepare(small_tokenizers["bpe"], source, tmp_path / "out", runtime__floor="always")

    assert report.metrics["share_of_engine"] > 0  # how much is a matter of what else the machine does
    assert report.metrics["disk_write_share"] > 0
    assert report.metrics["peak_rss_mb"] >= report.details["peak_rss_mb_of_one_process"] > 50
    assert report.details["verdict"].startswith(f"{report.metrics['examples_per_second']:,.0f} examples/s")
    assert set(report.details["time"]) == {"read", "encode", "write", "wait"}
    again = prepare(small_tokenizers["bpe"], source, tmp_path / "out", runtime__floor="always")
    assert again.metrics["share_of_engine"] is None
