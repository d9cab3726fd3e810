"""Documents on their way to the writer: by split, and, when packing, in windows whose borders no setting changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ftcli.contracts import Encoded
from ftcli.core.prepare.job import Job
from ftcli.core.prepare.policy import Documents
from ftcli.core.ragged import row_hash, take_ranges, to_offsets
from ftcli.core.reading.label_lists import Labels
from ftcli.records import ShardPlan, Split

Routed = tuple[Split, Documents, Labels | None]
"""Documents, the split they go to, and the labels of their rows."""
PACK_WINDOW_TOKENS = 16_000_000
"""Documents are packed in windows of this many tokens (64 MB), so that memory does not grow with the shard. The one short pack that
ends a window costs under 0.01 % at 1,024."""


def by_split(documents: Documents, labels: Labels | None, encoded: Encoded, shard: ShardPlan, job: Job) -> Iterator[Routed]:
    """Rows by split: the shard's own, or by a hash of the whole text's ids, so that equal texts never stand on both sides."""
    if labels is not None:
        labels = labels[documents.source]
    if shard.split != "train" or not any(job.fractions):
        yield shard.split, documents, labels
        return
    validation, test = job.fractions
    place = row_hash(encoded.ids, np.diff(encoded.offsets), job.settings.dataset.seed)[documents.source] / 2.0**64
    starts = to_offsets(documents.lengths)[:-1]
    which = np.where(place < test, 2, np.where(place < test + validation, 1, 0))
    names: Sequence[Split] = ("train", "validation", "test")
    for number, split in enumerate(names):
        chosen = np.flatnonzero(which == number)
        if len(chosen):
            lengths = documents.lengths[chosen]
            part = Documents(take_ranges(documents.ids, starts[chosen], lengths), lengths, documents.source[chosen])
            yield split, part, None if labels is None else labels[chosen]


def windows(arriving: Iterable[Routed]) -> Iterator[Routed]:
    """The same documents in windows of PACK_WINDOW_TOKENS a split, whatever the batches they come in."""
    waiting: dict[Split, list[Documents]] = {}
    filled: Counter[Split] = Counter()
    for split, arrived, _ in arriving:
        rest: Documents | None = arrived
        while rest is not None:
            head, rest = _cut(rest, PACK_WINDOW_TOKENS - filled[split])
            waiting.setdefault(split, []).append(head)
            filled[split] += len(head.ids)
            if filled[split] >= PACK_WINDOW_TOKENS:
                yield split, _join(waiting.pop(split)), None
                filled[split] = 0
    for split, parts in waiting.items():
        yield split, _join(parts), None


def _cut(documents: Documents, tokens: int) -> tuple[Documents, Documents | None]:
    """The first documents, up to and with the one that reaches `tokens`, and the rest."""
    offsets = to_offsets(documents.lengths)
    count = int(np.searchsorted(offsets, tokens, side="left"))
    if count >= len(documents.lengths):
        return documents, None
    at = int(offsets[count])
    head = Documents(documents.ids[:at], documents.lengths[:count], documents.source[:count])
    return head, Documents(documents.ids[at:], documents.lengths[count:], documents.source[count:])


def _join(parts: Sequence[Documents]) -> Documents:
    return Documents(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "lengths", "source")))
