"""Workers that prepare the texts of a benchmark: as many as the whole run has, where its few texts are enough for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftcli.core.benchmark.ceilings import Ceilings
from ftcli.core.prepare.workload import is_small
from ftcli.settings import Settings, update

if TYPE_CHECKING:
    from ftcli.core.benchmark.full_path import Texts

WORKERS = "dataset.num_proc"
SHARD_BYTES = 1_000_000
"""Of a shard, at least: opening, syncing and naming the files of a smaller one takes as long as its work."""
LEAST_SHARDS, SHARDS = 2, 4
"""Shards of each worker, at least and at best: with one each, all wait for the slowest."""


def workers(settings: Settings, texts: Texts, cores: int, known: Ceilings) -> int:
    """Workers that the whole run of a configuration has: with few bytes one, and never more than its sources have shards.

    Args:
        known: what of the settings came from a profile, which is cut to the cores.
    """
    asked = settings.dataset.num_proc
    if asked is None:
        asked = 1 if is_small(texts.source_bytes, texts.files) else cores
    elif (WORKERS, asked) in known:
        asked = min(asked, cores)
    return max(1, min(asked, texts.shards))


def too_few(texts: Texts, most: int) -> str | None:
    """Why these texts do not tell how fast so many workers are, with how many would; None if they do."""
    needed = LEAST_SHARDS * SHARD_BYTES * most
    if most == 1 or texts.bytes >= needed:
        return None
    rows = -(-needed * texts.cut // max(1, texts.bytes))
    return f"{texts.cut:,} rows are {texts.bytes / 1e6:.1f} MB, too few for {most} workers: use --rows {rows}"


def with_workers(settings: Settings, texts: Texts, cores: int, known: Ceilings, most: int) -> tuple[Settings, Ceilings]:
    """The settings with which these texts are prepared by as many workers as all of them would be, and what of them counts as a profile's: a number that
    nobody asked for is cut to the memory that is free.

    Args:
        most: workers of the configuration that has the most; where that is one, nothing is changed.
    """
    if texts.prepared or most == 1:
        return settings, known
    number, asked = workers(settings, texts, cores, known), settings.dataset.num_proc
    made = update(settings, {WORKERS: number, "dataset.shard_bytes": max(SHARD_BYTES, texts.bytes // (SHARDS * most))})
    return made, known | {(WORKERS, number)} if asked is None or (WORKERS, asked) in known else known
