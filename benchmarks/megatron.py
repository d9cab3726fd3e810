"""`ftcli tokenize` and `ftcli export --format megatron` beside Megatron-LM's own way to the same two files."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.compare import record, spread, steady
from benchmarks.equal import DifferentError
from benchmarks.inputs import Library, beginning
from benchmarks.ways import TINY, Bench

HEAD = 34
"""Bytes of the index before the lengths: magic, version, code of the type, two counts."""


def installed() -> bool:
    """Whether megatron-core is."""
    return find_spec("megatron") is not None and find_spec("megatron.core") is not None


def megatron(bench: Bench, library: Library, *, repeats: int, baseline_bytes: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Both ways in turn; in the first round the tokens and their places are compared.

    Raises:
        DifferentError: the files do not hold the same.
        RunError: one of the ways failed.
    """
    source, tokenizer = library.get("docs"), bench.tokenizer("qwen3")
    share, tiny = (beginning(source, bench.work / "beginnings" / "docs", size=size) for size in (baseline_bytes, TINY))
    say(f"megatron: {source.rows:,} rows, {source.file_bytes / 1e6:,.1f} MB; Megatron's way gets {share.file_bytes / 1e6:,.1f} MB of them")
    bench.prove(source, tokenizer)
    rounds: list[dict[str, Any]] = []
    compared = 0
    for number in range(repeats):
        ours, exported = bench.ours(source, tokenizer, bench.workers).outcome, bench.exported()
        small = bench.indexed(tiny, tokenizer) if tiny is not share else None
        theirs = bench.indexed(share, tokenizer)
        if not compared:
            compared = same_tokens(bench.files / "train", bench.theirs_indexed, json.loads(theirs.output.splitlines()[-1])["rows"])
            say(f"  tokens equal: {compared:,}")
        rate = source.file_bytes / 1e6 / (ours.wall + exported.wall)
        rounds.append({"ours": record(ours), "export": record(exported), "megatron": record(theirs), "ours_mb_per_second": rate})
        rounds[-1]["megatron_mb_per_second"] = steady(share, theirs, tiny, small)
        say(f"  round {number + 1}: ftcli {rate:.1f} MB/s, Megatron's way {rounds[-1]['megatron_mb_per_second']:.2f} MB/s")
    return {
        "work": "megatron",
        "rows": source.rows,
        "file_bytes": source.file_bytes,
        "baseline_bytes": share.file_bytes,
        "tokens_compared": compared,
        "over_megatron": spread([each["ours_mb_per_second"] / each["megatron_mb_per_second"] for each in rounds], None),
        "rounds": rounds,
    }


def same_tokens(ours: Path, theirs: Path, rows: int) -> int:
    """Tokens of the first `rows` texts, which have to be the same in both, and as long.

    Args:
        ours: path without `.bin` and `.idx`; it may hold more texts.

    Raises:
        DifferentError: they are not.
    """
    mine, other = (np.fromfile(f"{path}.idx", "<i4", rows, offset=HEAD) for path in (ours, theirs))
    if not np.array_equal(mine, other):
        raise DifferentError(f"the first {rows:,} texts of {ours}.idx are not as long as those of {theirs}.idx")
    with Path(f"{ours}.bin").open("rb") as first, Path(f"{theirs}.bin").open("rb") as second:
        while wanted := second.read(1 << 24):
            if first.read(len(wanted)) != wanted:
                raise DifferentError(f"{ours}.bin and {theirs}.bin hold different tokens before byte {second.tell():,}")
    return int(mine.sum())
