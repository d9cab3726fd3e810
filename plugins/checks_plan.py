"""Checks of what the planned run costs: padding, outliers by length, steps, tokens and time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

from .checks_schedule import plan_of

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

SAMPLE = 200_000
"""Lengths that stand for all."""
WASTE = 0.25
"""Share of empty slots that warns, where another collator leaves at most half of it. Bucketed rows of the real sets: 0.0 to 3 %."""


def padding(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.batches.order import wasted
    from ftcli.core.batches.slots import rows_a_batch
    from ftcli.core.verify.verdict import noted, passed, warned

    split = probe.train_split
    lengths = split.lengths
    if len(lengths) > SAMPLE:
        lengths = np.random.default_rng(0).choice(lengths, SAMPLE, replace=False)
    size, planned = rows_a_batch(probe.settings, lengths), probe.collator_name
    names = ("packed",) if split.packed else ("fixed", "dynamic", "bucketed")
    shares = {name: wasted(lengths, size, name, probe.store.max_length) for name in names}
    evidence = {
        "collator": planned,
        "rows_a_batch": size,
        "rows_looked_at": len(lengths),
        **{name: round(share or 0.0, 4) for name, share in shares.items()},
    }
    mine = 0.0 if planned == "packed" and not split.packed else shares.get(planned)  # then the model leaves padding out
    if mine is None:
        return noted(f"collator {planned} is a plugin's: FT301 shows its padding", **evidence)
    best = min(shares, key=lambda name: shares[name] or 0.0)
    words = f"{mine:.1%} of the slots are padding with the collator {planned} at {size} rows per batch"
    if mine > WASTE and (shares[best] or 0.0) <= mine / 2:
        return warned(words, f"Use --collator {best} (or leave it unset): it leaves {shares[best]:.1%} empty.", **evidence)
    return passed(words, **evidence)


def outliers(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import noted, passed

    lengths = probe.train_split.lengths
    if probe.train_split.packed:
        raise Missing("packed rows have no padding")
    if not len(lengths):
        raise Missing("the train split has no rows")
    median, tail, longest = float(np.median(lengths)), float(np.percentile(lengths, 99.9)), int(lengths.max())
    far = np.flatnonzero(lengths > max(4 * np.percentile(lengths, 99), 64))
    evidence = {
        "median": median,
        "p999": tail,
        "longest": longest,
        "row": int(lengths.argmax()),
        "far": len(far),
        "first_rows": far[:5].tolist(),
    }
    if len(far):
        return noted(
            f"{len(far):,} rows are over 4 times as long as 99% of the rows, the longest has {longest:,} tokens (row {int(lengths.argmax())}, median {median:.0f})",
            **evidence,
        )
    return passed(f"the longest row has {longest:,} tokens, the median {median:.0f}", **evidence)


def run(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import noted

    train, rows = probe.settings.train, len(probe.train_split)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    batches = probe.token_batches
    plan = plan_of(probe)
    steps, epochs = plan.schedule.steps, plan.schedule.steps / plan.steps_an_epoch
    dropped = rows % (train.per_device_train_batch_size * world) if train.dataloader_drop_last else 0
    tokens = int(epochs * int(probe.train_split.lengths.sum()) * (1 - dropped / max(1, rows)))
    evidence: dict[str, Any] = {"steps": steps, "epochs": round(epochs, 3), "tokens": tokens, "rows": int(epochs * (rows - dropped))}
    rows_a_batch = train.per_device_train_batch_size if batches is None else rows / max(1, len(batches))
    evidence["rows_a_step"] = round(rows_a_batch * world * train.gradient_accumulation_steps)
    words = (
        f"{steps:,} steps of {'' if batches is None else 'about '}{evidence['rows_a_step']:,} rows, {epochs:.3g} epochs, {tokens:,} tokens"
    )
    rate, where = _rate(probe)
    if rate is None:
        return noted(f"{words}; to estimate the time, measure the rate: ftcli benchmark train", **evidence)
    seconds = tokens / rate
    evidence |= {"tokens_per_second": rate, "rate_from": where, "seconds": round(seconds, 1)}
    return noted(f"{words}: about {_duration(seconds)} at the {rate:,.0f} tokens/s of {where}", **evidence)


def _rate(probe: Probe) -> tuple[float | None, str]:
    """Tokens a second of an earlier run of the same data in the output folder, on a machine with the same processor and GPUs."""
    folder = probe.settings.train.output_dir
    path = None if folder is None else Path(folder) / "ftcli-run.json"
    try:
        report = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}
        rate = report.get("metrics", {}).get("real_tokens_per_second")
        machine = report.get("machine") or {}
        same = machine.get("cpu_model") == probe.machine.cpu_model and len(machine.get("gpus", ())) == len(probe.machine.gpus)
        keys = ("dataset.sources", "model.config", "model.name_or_path", "train.per_device_train_batch_size", "train.max_tokens_per_batch")
        was = {key: (report.get("settings", {}).get(key) or {}).get("value") for key in keys}
    except (OSError, ValueError, AttributeError):
        return None, ""
    settings = probe.settings
    now: dict[str, Any] = {
        "dataset.sources": settings.dataset.sources,
        "model.config": None if settings.model.config is None else str(settings.model.config),
        "model.name_or_path": settings.model.name_or_path,
        "train.per_device_train_batch_size": settings.train.per_device_train_batch_size,
        "train.max_tokens_per_batch": settings.train.max_tokens_per_batch,
    }
    return (float(rate), str(path)) if rate and same and was == now else (None, "")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


CHECKS = (
    CheckKind("FT211", "data", "Padding", padding, ("store",), severity="warn", after=("FT201",)),
    CheckKind("FT212", "data", "Outliers by length", outliers, ("store",), severity="info", after=("FT201",)),
    CheckKind("FT213", "data", "Planned run", run, ("store",), severity="info", after=("FT201",)),
)
