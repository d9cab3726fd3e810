"""`ftcli tokenize --mode sft` beside `apply_chat_template` in `datasets.map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.compare import record, spread, steady
from benchmarks.equal import same_ids
from benchmarks.inputs import Library, beginning
from benchmarks.ways import TINY, Bench

MODE = ("--mode", "sft")


def conversations(bench: Bench, library: Library, *, repeats: int, baseline_bytes: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Both ways in turn; the ids are compared in the first round. Ours finds out what is learned as well, which the other does not.

    Raises:
        DifferentError: the ids are not the same.
        RunError: one of the ways failed.
    """
    source, tokenizer = library.get("sft"), bench.tokenizer("qwen3")
    share, tiny = (beginning(source, bench.work / "beginnings" / "sft", size=size) for size in (baseline_bytes, TINY))
    say(f"sft: {source.rows:,} rows, {source.file_bytes / 1e6:,.1f} MB; the usual way gets {share.file_bytes / 1e6:,.1f} MB of them")
    bench.ours(tiny, tokenizer, bench.workers, *MODE)  # the engine's proof is in the cache, as from the second command on
    rounds: list[dict[str, Any]] = []
    compared = (0, 0)
    for number in range(repeats):
        ours = bench.ours(source, tokenizer, bench.workers, *MODE)
        small = bench.naive(tiny, tokenizer) if tiny is not share else None
        naive = bench.naive(share, tokenizer)
        if not number:
            compared = same_ids(bench.output, bench.theirs)
            say(f"  ids equal: {compared[0]:,} rows, {compared[1]:,} tokens")
        rounds.append(
            {
                "ours": {**record(ours.outcome), "pipeline_seconds": ours.seconds, "engine": ours.metrics["engine"]},
                "ours_mb_per_second": source.file_bytes / 1e6 / ours.outcome.wall,
                "naive": record(naive),
                "naive_mb_per_second": steady(share, naive, tiny, small),
            }
        )
        rates = (f"{rounds[-1][name]:.2f} MB/s" for name in ("ours_mb_per_second", "naive_mb_per_second"))
        say(f"  round {number + 1}: ftcli {next(rates)}, usual way {next(rates)}")
    return {
        "work": "sft",
        "rows": source.rows,
        "file_bytes": source.file_bytes,
        "baseline_bytes": share.file_bytes,
        "rows_compared": compared[0],
        "tokens_compared": compared[1],
        "over_map": spread([each["ours_mb_per_second"] / each["naive_mb_per_second"] for each in rounds], None),
        "rounds": rounds,
    }
