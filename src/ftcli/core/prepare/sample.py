"""Sources before they are prepared: whether their first rows can be read as they would be then."""

from __future__ import annotations

from dataclasses import dataclass

from ftcli.context import Context
from ftcli.core.prepare.recipe import task_of
from ftcli.core.publishing.source_versions import Stamps
from ftcli.core.reading.read import make_plan, read_shard

PLACES = 8
"""Shards whose first rows are read, the first and the last among them."""
GONE_THROUGH = ("json",)
"""Formats that are read from end to end to be cut: 0.8 s of CPU for an array of 200 MB. Their first rows are enough here."""


@dataclass(frozen=True, slots=True)
class Sample:
    rows: int
    files: int
    bytes: int
    """Of all files."""


def sample(context: Context) -> Sample:
    """Plan the sources of `dataset` as `ftcli tokenize` does, without hashing them, and read the beginning of a few shards.

    Raises:
        FtcliError: what `ftcli tokenize` would refuse there.
    """
    formats = context.plugins.registry("source")
    task_of(context)
    plan = make_plan(context.settings, formats, hashes=Stamps(context.settings), uncut=GONE_THROUGH)
    count = len(plan.shards)
    places = sorted({place * (count - 1) // max(1, min(PLACES, count) - 1) for place in range(min(PLACES, count))})
    firsts = (next(read_shard(plan.shards[place], plan.columns, context.settings, formats), None) for place in places)
    return Sample(sum(first[1].num_rows for first in firsts if first is not None), len(plan.files), plan.bytes)
