"""Encoded rows → documents: the length policy and the label map, and the rows that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache, partial
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ftcli.contracts import Encoded
from ftcli.core.arrays import values
from ftcli.core.prepare.job import Job, plugins_of
from ftcli.core.prepare.join import Group, as_batch, parted, share_out
from ftcli.core.prepare.policy import Counts, Documents, TooLong
from ftcli.core.ragged import Ints, take_ranges, to_offsets
from ftcli.core.reading.columns import shown
from ftcli.core.reading.label_columns import BETWEEN
from ftcli.core.reading.label_lists import Labels, is_list
from ftcli.core.reading.label_numbers import label_numbers
from ftcli.core.reading.reject import Fault
from ftcli.core.reading.split_arguments import only_splits

FLAG_HINT = "Correct the row, or quarantine such rows with --on-bad quarantine."
TEXTS = "Labels of this table are text, also where they look like numbers: --label-names {} names them, or leave it out."
UNLABELLED = "-1 says of a row that it has no label. Name the splits that have labels ({}), or put such rows aside with --on-bad quarantine and --max-bad."
Accepted = tuple[Encoded, Documents, Labels | None, Counts, dict[int, Fault]]
"""What was kept of a batch, its rows after the policy, their labels, the counts, and the rows that cannot be used."""


def accept(
    job: Job, group: Group, encoded: Encoded, broken: Mapping[int, Fault] = MappingProxyType({})
) -> Iterator[tuple[Group, Accepted, list[Counts]]]:
    """What a group became, with the counts of its members: all at once, or one by one where rows are bad or cut.

    Args:
        broken: rows of the group that are known to be bad.
    """
    accepted = _accepted(job, as_batch(group), encoded, broken)
    shares = None if accepted[4] and len(group) > 1 else share_out(group, accepted[1].source, accepted[3])
    if shares is not None:
        yield group, accepted, shares
        return
    at = 0
    for members, part in parted(group, encoded):
        rows = members[0][1]
        own = _accepted(job, rows, part, {row - at: fault for row, fault in broken.items() if at <= row < at + rows.num_rows})
        at += rows.num_rows
        yield members, own, [own[3]]


def _accepted(job: Job, rows: pa.RecordBatch, encoded: Encoded, broken: Mapping[int, Fault]) -> Accepted:
    """What the rows became: without those that cannot be used, which come last, by row."""
    labels, faults = _labels(rows, job)
    faults |= broken
    lengths = np.diff(encoded.offsets)
    most = job.settings.dataset.max_row_tokens
    if most is not None:
        faults |= {
            row: _too_long(job, rows, row, int(lengths[row]), most, "max_row_tokens") for row in np.flatnonzero(lengths > most).tolist()
        }
    kept, part = _without(encoded, lengths, faults)
    counts = Counts()
    try:
        documents = job.policy.apply(part, counts)
    except TooLong as error:
        limit = f"max_length {job.policy.max_length}"
        faults |= {int(kept[row]): _too_long(job, rows, int(kept[row]), tokens, error.limit, limit) for row, tokens in error.rows.items()}
        kept, part = _without(encoded, lengths, faults)
        counts = Counts()
        documents = job.policy.apply(part, counts)
    return part, documents, labels if labels is None or not faults else labels[kept], counts, faults


def _without(encoded: Encoded, lengths: Ints, faults: Mapping[int, Fault]) -> tuple[Ints, Encoded]:
    """The rows that have no fault: their numbers, and what they were encoded to."""
    kept = np.arange(len(lengths))
    if not faults:
        return kept, encoded
    kept = np.delete(kept, list(faults))
    return kept, Encoded(take_ranges(encoded.ids, encoded.offsets[:-1][kept], lengths[kept]), to_offsets(lengths[kept]))


def _too_long(job: Job, rows: pa.RecordBatch, row: int, tokens: int, limit: int, setting: str) -> Fault:
    return Fault(
        "too-many-tokens",
        f"the text has {tokens:,} tokens, {limit:,} fit into {setting}: {rows.column('text')[row].as_py()[:60]!r}…",
        job.columns.text,
        "Raise the limit, choose another --truncation-strategy, or quarantine such rows with --on-bad quarantine.",
    )


def _labels(rows: pa.RecordBatch, job: Job) -> tuple[Labels | None, dict[int, Fault]]:
    """The labels of the rows, and the rows of which one is unknown."""
    if job.columns.number:
        return label_numbers(rows.column("label"), job.columns.label or "")
    if job.label_ids is None:
        return None, {}
    column = rows.column("label")
    if not is_list(column.type):
        return _ids(column, job.label_ids, job)
    ids, unknown = _ids(column.flatten(), job.label_ids, job)
    row_of = np.repeat(np.arange(len(column)), values(pc.list_value_length(column)))
    found = np.zeros((len(column), job.classes), np.uint8)
    found[row_of, ids] = 1
    return found, {int(row_of[item]): fault for item, fault in reversed(unknown.items())}


def _ids(column: pa.Array, label_ids: Mapping[str | int, int], job: Job) -> tuple[Ints, dict[int, Fault]]:
    """Label ids, int64, and the places of labels that are unknown, in order."""
    # by the distinct labels of the batch: a search among all classes costs their number each time, 28 times the whole work of a million
    distinct = column.dictionary_encode()
    written = (
        label_ids if pa.types.is_integer(column.type) or isinstance(next(iter(label_ids)), str) else _as_text(tuple(label_ids.items()))
    )
    of_distinct = np.array([written.get(label, -1) for label in distinct.dictionary.to_pylist()] + [-1], np.int64)
    places = distinct.indices.fill_null(len(of_distinct) - 1) if distinct.indices.null_count else distinct.indices
    found: Ints = of_distinct[values(places)]
    faults = {}
    if (found < 0).any():
        known = [*label_ids]
        unlabelled = cache(partial(_unlabelled, job))
        hint = "Add it to --label-names, remove that option to accept all labels, or quarantine such rows with --on-bad quarantine."
        by_id = TEXTS.format(",".join(f"{place}={name}" for place, name in enumerate(known[:10])) + ",…" * (len(known) > 10))
        for row in np.flatnonzero(found < 0).tolist():
            label = column[row].as_py()
            if job.columns.flags:
                name, _, value = label.partition(BETWEEN)
                faults[row] = Fault(
                    "wrong-type", f"{name!r} is {value}; a label column must hold 0 or 1, or false or true", name, FLAG_HINT
                )
                continue
            reason = f"the label {shown(label).rpartition(' (')[0]} is not among the label names"
            way = (
                unlabelled() if label == -1 else by_id if str(label).isdigit() and not any(str(name).isdigit() for name in known) else hint
            )
            faults[row] = Fault("unknown-label", reason, job.columns.label or "", way)
        found = np.maximum(found, 0)
    return found, faults


@lru_cache(1)
def _as_text(label_ids: tuple[tuple[str | int, int], ...]) -> dict[str | int, int]:
    return {str(label): number for label, number in label_ids}


def _unlabelled(job: Job) -> str:
    readers = [make() for _, make in plugins_of(job).registry("source").items()]
    return UNLABELLED.format(only_splits(job.settings.dataset.sources or (), readers, ("train", "validation")))
