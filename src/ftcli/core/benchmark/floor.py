"""What this machine could do at best, measured after the work: the engine alone on rows of the data, the disk alone.

Everything takes under 1.5 s together, and nothing stays on the disk. A figure that could not be measured is None.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ftcli.context import Context
from ftcli.contracts import Executor
from ftcli.core.prepare.job import Job, load_here
from ftcli.core.reading.read import read_shard
from ftcli.errors import FtcliError
from ftcli.records import ShardPlan

WORTH_SECONDS = 60.0
"""A shorter run is not measured against the machine unless `runtime.floor` asks for it: up to 1.5 s at the end of a run of 10 s is too much."""
ENGINE_SECONDS = 0.5
"""Of encoding, in every worker; reading the rows comes on top."""
DEADLINE = 0.9
"""Seconds after which no worker begins with a further sample."""
SAMPLES = 4
"""Shards that each worker takes rows from, spread over the plan."""
DISK_SIZES = (8_000_000, 64_000_000)
"""Bytes written; the second only where the first went fast enough for it."""
DISK_SECONDS = 0.04
"""For the first size, at most, so that the second stays under 0.35 s."""

SHARES = ("share_of_engine", "disk_write_share")
"""Metrics of a run beside its machine; None where nothing was measured."""

Sampled = tuple[int, int, float]
"""Text bytes, tokens and seconds of one sample."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Rates of the parts alone."""

    engine_tokens_per_second: float | None
    """All workers at once, on rows in memory, engine loaded and warm."""
    engine_text_mb_per_second: float | None
    workers: int
    disk_write_mb_per_second: float | None
    """Sequential, in the output's folder, fsync included."""
    disk_read_mb_per_second: float | None
    """Sequential, from the disk and not from memory."""


def beside_machine(
    context: Context,
    executor: Executor,
    job: Job,
    shards: Sequence[ShardPlan],
    workers: int,
    metrics: Mapping[str, Any],
    seconds: Mapping[str, float],
    wall: float,
) -> dict[str, Any]:
    """What the report says of a run beside its machine: "shares" (metrics) and "details" (`time`, and `floor` where it was measured).

    Args:
        metrics: of the run.
        seconds: by stage, summed over the workers.
        wall: of the run.
    """
    details: dict[str, Any] = {"time": stage_seconds(seconds, workers, wall)}
    found: dict[str, float | None] = dict.fromkeys(SHARES)
    wanted, speed = context.settings.runtime.floor, metrics["megabytes_per_second"]
    output = context.settings.dataset.output_dir
    if speed is not None and output is not None and (wanted == "always" or (wanted == "auto" and wall >= WORTH_SECONDS)):
        floor = measure_floor(executor, job, shards, workers, output.parent, speed * 1e6)
        found, details["floor"] = shares(floor, metrics), asdict(floor)
    return {"shares": found, "details": details}


def measure_floor(executor: Executor, job: Job, shards: Sequence[ShardPlan], workers: int, folder: Path, speed: float) -> Floor:
    """Measure, without ever failing the run that is done already.

    Args:
        executor: with the workers that did the run, their engines loaded.
        folder: on the disk of the output.
        speed: source bytes a second that the run reached; it decides how large the samples are.
    """
    size = max(20_000, int(speed / workers * ENGINE_SECONDS / SAMPLES))
    count = min(len(shards), workers * SAMPLES)
    chosen = [shards[number * len(shards) // count] for number in range(count)]
    sample = partial(_encode_sample, job, size, time.monotonic() + DEADLINE)
    found: list[Sampled] = []
    with suppress(FtcliError):
        found = [each for each in executor.run(sample, chosen, lambda *_: None) if each is not None]
    size, tokens, seconds = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0, 0.0)
    busy = min(workers, len(found))  # as many at once
    write, read = disk_rates(folder)
    return Floor(
        engine_tokens_per_second=tokens * busy / seconds if seconds else None,
        engine_text_mb_per_second=size * busy / seconds / 1e6 if seconds else None,
        workers=busy or workers,
        disk_write_mb_per_second=write,
        disk_read_mb_per_second=read,
    )


def _encode_sample(job: Job, size: int, deadline: float, shard: ShardPlan) -> Sampled | None:
    """Encode about `size` bytes of the shard's first rows, in a worker; None when it is too late for that, or there is no row."""
    if time.monotonic() > deadline:
        return None
    encoder, formats = load_here(job)
    texts: list[pa.Array] = []
    held = 0
    for _, batch in read_shard(shard, job.columns, job.settings, formats):
        texts.append(_first(batch.column("text"), size - held))
        held += texts[-1].nbytes
        if held >= size:
            break
    rows = pa.concat_arrays(texts) if texts else pa.array([], pa.large_string())
    if not len(rows):
        return None
    clock = time.perf_counter()
    encoded = encoder.encode(rows)
    return text_bytes(rows), len(encoded.ids), time.perf_counter() - clock


def _first(texts: pa.Array, size: int) -> pa.Array:
    """The first rows, up to and with the one that reaches `size` bytes."""
    ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return texts.slice(0, int(np.searchsorted(ends[1:] - ends[0], size)) + 1)


def text_bytes(texts: pa.Array) -> int:
    """Bytes of the texts of a large_string array, without its offsets."""
    ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return int(ends[-1] - ends[0])


def disk_rates(folder: Path) -> tuple[float | None, float | None]:
    """MB/s of writing with fsync and of reading, sequentially, in `folder`; None where it cannot be told.

    The file has no name (or loses it at once), so that nothing stays behind, whatever happens.
    """
    write = read = None
    with suppress(OSError), tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        descriptor, block = file.fileno(), os.urandom(1_000_000)  # random: some disks compress
        for size in DISK_SIZES:
            file.seek(0)
            clock = time.perf_counter()
            for _ in range(size // len(block)):
                file.write(block)
            os.fsync(descriptor)
            took = time.perf_counter() - clock
            write = size / took / 1e6
            if took > DISK_SECONDS:
                break
        if hasattr(os, "posix_fadvise"):  # elsewhere a read would come from memory
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            clock = time.perf_counter()
            done = 0
            while chunk := file.read(len(block)):
                done += len(chunk)
            read = done / (time.perf_counter() - clock) / 1e6
    return write, read


def stage_seconds(seconds: Mapping[str, float], workers: int, wall: float) -> dict[str, float]:
    """Seconds of a run per worker, by stage; `wait` is what no stage accounts for: start-up, the last shards, publishing a shard."""
    stages = {stage: seconds.get(stage, 0.0) / workers for stage in ("read", "encode", "write")}
    return {**stages, "wait": max(0.0, wall - sum(stages.values()))}


def limit(stages: Mapping[str, float], disk_share: float | None, *, templated: bool = False) -> str:
    """Which stage limits the run, in words: the one that took the most of a worker's time; `templated`: a chat template is rendered for every row."""
    most = max(stages, key=lambda stage: stages[stage])
    if most == "wait":
        return f"the workers waited for data {_percent(stages['wait'] / sum(stages.values()))} of the time"
    if most == "write" and disk_share is not None and disk_share > 0.7:
        return "the disk is the limit"
    encoding = "the chat template and the engine are the limit" if templated else "the engine is the limit"
    return {"read": "reading is the limit", "encode": encoding, "write": "writing is the limit"}[most]


def shares(floor: Floor, metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """How much of the engine's and of the disk's own rate the run reached: `share_of_engine`, `disk_write_share`."""
    tokens, read = metrics["tokens_per_second"], metrics["megabytes_per_second"]
    engine = tokens / floor.engine_tokens_per_second if tokens is not None and floor.engine_tokens_per_second else None
    disk = None
    if read and floor.disk_write_mb_per_second:
        seconds = metrics["bytes_read"] / 1e6 / read  # as long as all of it takes at this speed, resumed shards included
        disk = metrics["bytes_written"] / 1e6 / seconds / floor.disk_write_mb_per_second
    return {"share_of_engine": engine, "disk_write_share": disk}


def verdict(
    speed: float, word: str | None, found: Mapping[str, float | None], stages: Mapping[str, float], *, templated: bool = False
) -> str:
    """The run beside the machine in one sentence.

    >>> found = {"share_of_engine": 0.71, "disk_write_share": 0.12}
    >>> verdict(23190, "very fast", found, {"read": 1.0, "encode": 8.0, "write": 0.5, "wait": 0.5})
    '23,190 examples/s: very fast; 71 % of the engine alone, disk at 12 % of its rate; the engine is the limit'
    """
    engine, disk = found.get("share_of_engine"), found.get("disk_write_share")
    beside = [f"{_percent(engine)} of the engine alone"] if engine is not None else []
    beside += [f"disk at {_percent(disk)} of its rate"] if disk is not None else []
    rated = f"{speed:,.0f} examples/s" + (f": {word}" if word else "")
    return "; ".join([rated, *([", ".join(beside)] if beside else []), limit(stages, disk, templated=templated)])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1g} %"
