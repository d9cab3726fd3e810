"""Rounds of the three ways in turn, and the ratios between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.equal import DifferentError, rows_of, same_ids
from benchmarks.inputs import Library, Source, beginning
from benchmarks.process import Outcome
from benchmarks.ways import TINY, Bench
from benchmarks.works import JOB_RSS_MB, JOB_SECONDS, SCALING, Work

from ftcli.core.benchmark.measure import interval

Say = Callable[[str], None]


def compare(bench: Bench, library: Library, work: Work, *, repeats: int, baseline_bytes: int, say: Say) -> dict[str, Any]:
    """Measure one work; the ids are compared in the first round, before any ratio is formed.

    Raises:
        DifferentError: the ids are not the same.
        RunError: one of the ways failed.
    """
    source, tokenizer = library.get(work.source), bench.tokenizer(work.tokenizer)
    share, tiny = (beginning(source, bench.work / "beginnings" / work.source, size=size) for size in (baseline_bytes, TINY))
    say(
        f"{work.name}: {source.rows:,} rows, {source.file_bytes / 1e6:,.1f} MB; the usual way gets {share.file_bytes / 1e6:,.1f} MB of them"
    )
    bench.prove(source, tokenizer)
    rounds: list[dict[str, Any]] = []
    equal: tuple[int, int] | None = None
    shapes = {"processes": (bench.workers, 1), "threads": (1, bench.workers)}
    for number in range(repeats):
        ours = bench.ours(source, tokenizer, bench.workers)
        small = bench.naive(tiny, tokenizer) if tiny is not share else None
        naive = bench.naive(share, tokenizer)
        if equal is None:
            if rows_of(bench.output) != source.rows:
                raise DifferentError(f"{source.rows:,} rows went in, {rows_of(bench.output):,} came out")
            equal = same_ids(bench.output, bench.theirs)
            say(f"  ids equal: {equal[0]:,} rows, {equal[1]:,} tokens")
        alone = {}
        for shape, (processes, threads) in shapes.items():
            outcome, figures = bench.alone(ours.metrics["engine"], source, tokenizer, processes=processes, threads=threads)
            alone[shape] = {**record(outcome), "mb_per_second": figures["text_bytes"] / 1e6 / figures["seconds"]}
        rounds.append(
            {
                "ours": {**record(ours.outcome), "pipeline_seconds": ours.seconds, "engine": ours.metrics["engine"]},
                "ours_mb_per_second": source.file_bytes / 1e6 / ours.outcome.wall,
                "pipeline_text_mb_per_second": source.text_bytes / 1e6 / ours.seconds,
                "alone": alone,
                "naive": record(naive),
                "naive_mb_per_second": steady(share, naive, tiny, small),
                "naive_mb_per_second_with_start": share.file_bytes / 1e6 / naive.wall,
            }
        )
        say(f"  round {number + 1}: {_told(rounds[-1])}")
    fastest = max(shapes, key=lambda shape: float(np.median([each["alone"][shape]["mb_per_second"] for each in rounds])))
    assert equal is not None
    return {
        "work": work.name,
        "tokenizer": work.tokenizer,
        "engine": rounds[0]["ours"]["engine"],
        "rows": source.rows,
        "file_bytes": source.file_bytes,
        "text_bytes": source.text_bytes,
        "baseline_bytes": share.file_bytes,
        "rows_compared": equal[0],
        "tokens_compared": equal[1],
        "engine_alone": fastest,
        "over_naive": spread([each["ours_mb_per_second"] / each["naive_mb_per_second"] for each in rounds], work.over_naive),
        "pipeline_over_naive": spread(
            [each["pipeline_text_mb_per_second"] * source.file_bytes / source.text_bytes / each["naive_mb_per_second"] for each in rounds],
            work.over_naive,
        ),
        "of_engine": spread(
            [each["pipeline_text_mb_per_second"] / each["alone"][fastest]["mb_per_second"] for each in rounds], work.of_engine
        ),
        "rounds": rounds,
    }


def scaling(bench: Bench, library: Library, *, repeats: int, say: Say) -> dict[str, Any]:
    """One worker on one CPU against all workers on as many CPUs, in turn; and the engine alone in one process and in as many, which says how much
    more so many CPUs of this machine can do at all."""
    source, tokenizer = library.get("docs"), bench.tokenizer("qwen3")
    bench.prove(source, tokenizer)
    rounds = []
    for number in range(repeats):
        round_: dict[str, Any] = {}
        for name, workers in (("one", 1), ("all", bench.workers)):
            ours = bench.ours(source, tokenizer, workers)
            _, figures = bench.alone(ours.metrics["engine"], source, tokenizer, processes=workers, threads=1)
            round_[name] = {**record(ours.outcome), "pipeline_seconds": ours.seconds, "alone_seconds": figures["seconds"]}
        rounds.append(round_)
        told = (f"{each['pipeline_seconds']:.2f} s (engine alone {each['alone_seconds']:.2f} s)" for each in round_.values())
        say(f"scaling, round {number + 1}: {next(told)} with 1 worker, {next(told)} with {bench.workers}")
    ratios = {
        name: [each["one"][key] / each["all"][key] for each in rounds]
        for name, key in (("pipeline", "pipeline_seconds"), ("command", "wall"), ("engine", "alone_seconds"))
    }
    return {
        "work": "scaling",
        "workers": bench.workers,
        **{name: spread(each, SCALING if name == "pipeline" else None) for name, each in ratios.items()},
        "rounds": rounds,
    }


def job(bench: Bench, library: Library, *, baseline_bytes: int, say: Say) -> dict[str, Any]:
    """The big job once, whole: its time and memory; ids compared on a share.

    Raises:
        DifferentError, RunError: as `compare`.
    """
    source, tokenizer = library.get("job"), bench.tokenizer("qwen3")
    share = beginning(source, bench.work / "beginnings" / "job", size=baseline_bytes)
    bench.prove(source, tokenizer)
    say(f"job: {source.rows:,} rows, {source.file_bytes / 1e9:,.2f} GB")
    ours = bench.ours(source, tokenizer, bench.workers)
    bench.naive(share, tokenizer)
    rows, tokens = same_ids(bench.output, bench.theirs)
    say(f"  {ours.outcome.wall:.1f} s, {ours.outcome.peak_rss_mb:,.0f} MB; ids equal: {rows:,} rows, {tokens:,} tokens")
    return {
        "work": "job",
        "rows": source.rows,
        "file_bytes": source.file_bytes,
        "rows_compared": rows,
        "ours": {**record(ours.outcome), "pipeline_seconds": ours.seconds, "engine": ours.metrics["engine"]},
        "peak_rss_mb_by_ftcli": ours.metrics["peak_rss_mb"],
        "content_hash": ours.metrics["content_hash"],
        "required": {"seconds": JOB_SECONDS, "peak_rss_mb": JOB_RSS_MB},
        "met": ours.outcome.wall < JOB_SECONDS and ours.outcome.peak_rss_mb < JOB_RSS_MB,
    }


def spread(ratios: list[float], required: float | None) -> dict[str, Any]:
    """Median and 95 % interval of ratios; `met` when the median is at least what is required."""
    low, high = interval(np.array(ratios))
    median = float(np.median(ratios))
    return {
        "median": median,
        "low": low,
        "high": high,
        "n": len(ratios),
        "required": required,
        "met": None if required is None else median >= required,
    }


def steady(share: Source, naive: Outcome, tiny: Source, small: Outcome | None) -> float:
    """MB/s of the usual way without what it takes before it works: what a small run takes, bytes and all, is taken off."""
    if small is None or naive.wall <= small.wall:
        return share.file_bytes / 1e6 / naive.wall
    return (share.file_bytes - tiny.file_bytes) / 1e6 / (naive.wall - small.wall)


def record(outcome: Outcome) -> dict[str, float]:
    """What is kept of a run."""
    return {"wall": outcome.wall, "cpu": outcome.cpu, "peak_rss_mb": outcome.peak_rss_mb, "peak_pss_mb": outcome.peak_pss_mb}


def _told(round_: dict[str, Any]) -> str:
    alone = ", ".join(f"{shape} {figures['mb_per_second']:.0f}" for shape, figures in round_["alone"].items())
    return (
        f"ftcli {round_['ours']['wall']:.1f} s ({round_['ours_mb_per_second']:.1f} MB/s; pipeline {round_['pipeline_text_mb_per_second']:.1f} MB/s of text), "
        f"engine alone {alone} MB/s of text, usual way {round_['naive_mb_per_second']:.2f} MB/s"
    )
