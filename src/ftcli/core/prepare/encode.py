"""One shard of sources → Arrow files of rows: read, encode, length policy, split, pack, write. Runs in any process."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from ftcli.contracts import Encoded, Packs
from ftcli.core import deferred, progress
from ftcli.core.engines.engine import load_encoder
from ftcli.core.engines.row_encoder import REFERENCE, RowEncoder
from ftcli.core.files.stamps import check_unchanged
from ftcli.core.prepare.accept import accept
from ftcli.core.prepare.dialogue import encode_conversations
from ftcli.core.prepare.job import Job, plugins_of
from ftcli.core.prepare.join import Group, as_batch, joined
from ftcli.core.prepare.packs import pack
from ftcli.core.prepare.pairs import encode_pairs
from ftcli.core.prepare.policy import Counts, Documents, without_first
from ftcli.core.prepare.window import Routed, by_split, windows
from ftcli.core.prepare.write import RowWriter, batch_tokens
from ftcli.core.publishing.shard import ShardWriter
from ftcli.core.ragged import Ids, how_often, take_ranges, to_offsets
from ftcli.core.reading.label_lists import Labels, kinds_of_lists
from ftcli.core.reading.read import read_shard, scan_labels
from ftcli.core.reading.reject import Fault, Rejects
from ftcli.core.targets import TARGET
from ftcli.errors import WorkerDied
from ftcli.pluginmanager import Plugins
from ftcli.records import Piece, ShardPlan, Split

NO_LABEL = -1
"""In place of a label's id."""


@dataclass(slots=True)
class ShardTally:
    """What happened in one shard; the record that is committed beside its files."""

    counts: Counts = field(default_factory=Counts)
    rows: Counter[str] = field(default_factory=Counter)
    """Rows written per split (packs, when packing)."""
    texts: Counter[str] = field(default_factory=Counter)
    """Documents written per split; parts of a text count each."""
    tokens: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    """Documents by length in tokens, after the length policy."""
    labels: Counter[int] = field(default_factory=Counter)
    """Rows by label id; a row of several labels counts with each, one without any as `NO_LABEL`."""
    targets: Counter[str] = field(default_factory=Counter)
    """Tokens that are learned, by split; counted for conversations only."""
    lists: Counter[str] = field(default_factory=Counter)
    """Rows by what their list of labels may be: see `kinds_of_lists`."""
    shapes: Counter[str] = field(default_factory=Counter)
    """Rows read, by the shape of the conversation."""
    sources: dict[str, Counts] = field(default_factory=dict)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    texts_by_reference: int = 0
    texts_audited: int = 0
    """Texts that the reference encoded as well, with the same ids."""
    failures: list[str] = field(default_factory=list)
    """Where the engine failed and the reference stood in, in words."""


def shard_name(shard: ShardPlan) -> str:
    return f"shard-{shard.index:06d}"


def encode_shard(job: Job, shard: ShardPlan) -> dict[str, Any]:
    """Write the shard's files and commit them; returns the record, which holds its `ShardTally`.

    Raises:
        DataError: a bad row, an unknown label or a text too long; names the file.
        PublishError: the disk is full or the attempt is gone.
        PluginError: other plugins are found here than the run was planned with.
    """
    plugins = plugins_of(job)
    tally = ShardTally()
    names = {split: name for (index, split), name in job.files.items() if index == shard.index}
    with ExitStack() as held:
        writer = held.enter_context(ShardWriter(job.directory, shard_name(shard)))
        rejects = Rejects(shard, job.settings, plugins.registry("source"), writer)
        with ExitStack() as stack:
            writers = {
                split: stack.enter_context(
                    RowWriter(
                        writer.path(name),
                        labels=job.label_ids is not None and not job.columns.multi_label,
                        numbers=job.columns.number,
                        flags=job.classes if job.columns.multi_label else 0,
                        targets=job.chat,
                        pair=job.policy.pair,
                        packed=job.policy.packed,
                        tokens=batch_tokens(shard.size),
                        buffer_rows=job.buffer_rows,
                    )
                )
                for split, name in names.items()
            }
            documents_of = _encoded(job, shard, plugins, tally, rejects)
            for split, documents, labels in windows(documents_of) if job.policy.packed else documents_of:
                clock = time.perf_counter()
                _write(writers[split], split, documents, labels, job, plugins, tally)
                tally.seconds["write"] += time.perf_counter() - clock
            clock = time.perf_counter()
        tally.seconds["write"] += time.perf_counter() - clock  # the rest of the rows, as the files end
        for path, count in rejects.rows.items():
            for counts in (tally.counts, tally.sources.setdefault(path, Counts())):
                counts.add(Counts(rows_read=count, rows_rejected=count))
        part = rejects.commit(shard_name(shard))
        _check_sources(job, shard)  # else a shard of other rows waits for the next run
        made = {name: writers[split].file for split, name in names.items()}
        record = writer.place(list(names.values()), {"shard": shard.index, "tally": tally, "rejects": part}, made)
        return deferred.finish(partial(_settled, held.pop_all(), writer, record))


def _settled(held: ExitStack, writer: ShardWriter, record: dict[str, Any]) -> dict[str, Any]:
    with held:
        writer.settle(record)
    return record


class Rescue:
    """A shard whose worker crashed, or hung, is encoded by the reference, once: the engine is the likeliest cause, and its ids are the same."""

    def __init__(self, job: Job, note: Callable[[str], None]) -> None:
        self._job, self._note = job, note
        self._rescued: set[int] = set()

    def __call__(self, died: WorkerDied, shard: ShardPlan) -> Callable[[ShardPlan], dict[str, Any]]:
        spec = self._job.encoder
        if spec.engine == REFERENCE or shard.index in self._rescued:
            raise died
        self._rescued.add(shard.index)
        self._note(
            f"{died.message}; the engine {spec.engine} {spec.version} is assumed to be the cause; the reference engine encodes that shard"
        )
        return partial(encode_shard, replace(self._job, encoder=spec.by_reference()))


def collect_labels(job: Job, shard: ShardPlan) -> list[str | int]:
    """The distinct labels of a shard.

    Raises:
        DataError: a bad row, or a source changed meanwhile.
    """
    formats = plugins_of(job).registry("source")
    labels: list[str | int] = list(scan_labels(shard, job.columns, job.settings, formats))
    _check_sources(job, shard)  # else labels of other rows wait for the next run
    progress.report(shard.size, 0, 0)
    return labels


def _check_sources(job: Job, shard: ShardPlan) -> None:
    check_unchanged(job.hashes, dict.fromkeys(piece.path for piece in shard.pieces))


def encode_rows(job: Job, encoder: RowEncoder, rows: pa.RecordBatch) -> tuple[Encoded, dict[int, Fault], Sequence[str]]:
    """Ids of a batch (with marks of the targets, where the texts are conversations, and of the second text, where rows have two), the rows that cannot
    be encoded, and the shapes of the conversations."""
    texts = rows.column("text")
    if job.policy.pair is not None:
        return encode_pairs(encoder, texts, rows.column("pair")), {}, ()
    if not job.chat:
        return encoder.encode(texts), {}, ()
    spoken = encode_conversations(job, encoder, texts)
    return spoken.encoded, spoken.faults, spoken.shapes


class _Meter:
    """Tells how many of a shard's source bytes are done: within a byte range by the text that came out of it, of a table's rows by their share, else
    piece by piece."""

    def __init__(self, shard: ShardPlan) -> None:
        self._size, self._told = shard.size, 0
        self._before = dict(zip(shard.pieces, accumulate((piece.size for piece in shard.pieces), initial=0), strict=False))
        self._read: Counter[Piece] = Counter()

    def add(self, group: Group, tokens: int) -> None:
        for piece, rows in group:
            self._read[piece] += rows.nbytes if piece.unit == "bytes" else rows.num_rows
        piece = group[-1][0]
        read = self._read[piece]
        share = {"bytes": read, "rows": piece.size * read // max(1, piece.stop - piece.start)}.get(piece.unit, 0)
        done = self._before[piece] + min(piece.size, share)
        self._tell(done, sum(rows.num_rows for _, rows in group), tokens, piece.path)

    def finish(self) -> None:
        self._tell(self._size, 0, 0, "")

    def _tell(self, done: int, rows: int, tokens: int, file: str) -> None:
        progress.report(done - self._told, rows, tokens, file)
        self._told = done


def _encoded(job: Job, shard: ShardPlan, plugins: Plugins, tally: ShardTally, rejects: Rejects) -> Iterator[Routed]:
    """Documents of the shard, batch by batch, each with its split and the labels of its rows."""
    encoder = load_encoder(job.encoder, plugins)
    before, audited, failed = encoder.rows_by_reference, encoder.texts_audited, len(encoder.failures)  # it serves all shards of the process
    reader = read_shard(shard, job.columns, job.settings, plugins.registry("source"), rejects)
    meter = _Meter(shard)
    given: Counter[Piece] = Counter()
    clock = time.perf_counter()
    for group in joined(reader, job.batch_size):
        tally.seconds["read"] += time.perf_counter() - clock
        clock = time.perf_counter()
        whole, broken, shapes = encode_rows(job, encoder, as_batch(group))
        tally.shapes.update(shapes)
        if job.columns.multi_label and not job.columns.flags:
            for _, rows in group:
                tally.lists.update(kinds_of_lists(rows.column("label")))
        for members, (encoded, documents, labels, _, faults), shares in accept(job, group, whole, broken):
            if faults:
                piece = members[0][0]
                rejects.encoded(piece, {given[piece] + row: faults[row] for row in sorted(faults)})
            for (piece, rows), counts in zip(members, shares, strict=True):
                given[piece] += rows.num_rows
                tally.counts.add(counts)
                tally.sources.setdefault(piece.path, Counts()).add(counts)
            tally.seconds["encode"] += time.perf_counter() - clock
            meter.add(members, len(documents.ids))
            yield from by_split(documents, labels, encoded, shard, job)
            clock = time.perf_counter()
    meter.finish()
    tally.texts_by_reference, tally.texts_audited = encoder.rows_by_reference - before, encoder.texts_audited - audited
    tally.failures = encoder.failures[failed:]


def _write(
    writer: RowWriter, split: Split, documents: Documents, labels: Labels | None, job: Job, plugins: Plugins, tally: ShardTally
) -> None:
    lengths, counts = how_often(documents.lengths)
    tally.lengths.update(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))
    tally.texts[split] += len(documents.lengths)
    tally.tokens[split] += len(documents.ids)
    if job.chat:
        documents = without_first(documents)
        tally.targets[split] += int(np.count_nonzero(documents.ids & TARGET))
    if labels is not None and not job.columns.number:
        found, times = (
            how_often(np.asarray(labels, np.int64)) if labels.ndim == 1 else (np.arange(labels.shape[1]), labels.sum(0, dtype=np.int64))
        )
        tally.labels.update(dict(zip(found.tolist(), times.tolist(), strict=True)))
        if labels.ndim == 2 and (none := int(np.count_nonzero(~labels.any(1)))):
            tally.labels[NO_LABEL] += none
    if not job.policy.packed:
        tally.rows[split] += len(documents.lengths)
        writer.add(documents.ids, documents.lengths, labels)
        return
    packs, ids = packed(job, plugins, documents)
    row_lengths = np.diff(to_offsets(packs.length)[packs.pack_offsets])
    tally.rows[split] += len(row_lengths)
    writer.add(ids, row_lengths, None, (packs.length.astype(np.int32), np.diff(packs.pack_offsets)))


def packed(job: Job, plugins: Plugins, documents: Documents) -> tuple[Packs, Ids]:
    """A window's documents in packs, and the ids of all packs one after the other."""
    packer = plugins.registry("packer").get(job.packing, "packing.strategy")()
    packs = pack(packer, documents.lengths, job.policy.max_length, plugins.outsider("packer", job.packing))
    starts = to_offsets(documents.lengths)[packs.document] + packs.start
    return packs, take_ranges(documents.ids, starts, packs.length)
