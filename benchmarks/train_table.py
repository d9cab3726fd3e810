"""The result of `benchmarks/train.py` as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from benchmarks.tables import _machine, _spread, _table

NAMES = {
    "fixed": "`Trainer`, fp32, padded to `max_length`",
    "dynamic": "`Trainer`, fp32, padded to the longest row",
    "best": "`Trainer`, best settings by hand",
    "torch": "torch loop",
    "trl": "TRL `SFTTrainer`",
}


def markdown(document: Mapping[str, Any]) -> str:
    """The table of ratios, what stands behind it, and the machine."""
    rows = []
    for each in document["results"]:
        for way, ratio in each["ratios"].items():
            wall = ratio["wall"]
            required = "reported" if wall["required"] is None else f"{wall['required']:g}×: {'met' if wall['met'] else 'NOT met'}"
            speeds = [f"{_speed(each, name):,.0f}" for name in ("ftcli", way)]
            rows.append((each["work"], NAMES[way], *speeds, _spread(wall), required, _spread(ratio["cpu"])))
    head = ("work", "beside", "`ftcli train`, real tokens/s", "that, real tokens/s", "times as fast", "required", "by CPU seconds")
    parts = [_table(head, rows)] if rows else []
    if document["results"]:
        parts.append(_method(document))
    if "error" in document:
        parts.append(f"**FAILED**: {document['error']}")
    return "\n\n".join([*parts, _machine(document)])


def _method(document: Mapping[str, Any]) -> str:
    given = document["arguments"]
    works = "; ".join(f"{each['work']} {each['rows']:,} rows, {each['batch']} a batch" for each in document["results"])
    gaps = [gap for each in document["results"] for gap in each["equal"].values()]
    where = {"cpu": "CPU", "cuda": "GPU"}[document.get("device", "cpu")]
    bf16 = (
        f"The {where} has bfloat16: ftcli and the best `Trainer` use it"
        if document["bf16"]
        else f"The {where} has no bfloat16: every way computes in fp32"
    )
    lines = [
        f"- One epoch: {works}; {given['threads']} threads; {given['repeats']} rounds, in each every way once in a fresh process, forth and back.",
        "- Ratios are formed round by round, (low to high) is their 95 % interval; the first step is not counted.",
        f"- {bf16}.",
    ]
    if gaps:
        loss, gradient = (max(gap[name] for gap in gaps) for name in ("loss", "gradient"))
        lines.append(
            f"- Equal before any ratio: one step on the same rows from the same weights, loss within {loss:.1e}, gradient {gradient:.1e}."
        )
    for each in document["results"]:
        if any(one["ftcli"].get("mfu") is not None for one in each["rounds"]):
            mfu, memory = (float(np.median([one["ftcli"][name] for one in each["rounds"]])) for name in ("mfu", "peak_gpu_mb"))
            lines.append(
                f"- {each['work']}: `ftcli train` at {mfu:.1%} of the device's peak (MFU), {memory / 1e3:.0f} GB of its memory at most."
            )
    return "\n".join(lines)


def _speed(result: Mapping[str, Any], way: str) -> float:
    return float(np.median([each[way]["real_tokens_per_second"] for each in result["rounds"]]))
