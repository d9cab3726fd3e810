"""Some rows of sources that are not prepared, as `ftcli tokenize` would write them: the same readers, template, ids, policy and packs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ftcli.context import Context, Quiet
from ftcli.contracts import Encoded
from ftcli.core.engines.engine import load_encoder
from ftcli.core.files.stamps import Hashed, SourceHashes, Stamp
from ftcli.core.inspect.look import Looked, together
from ftcli.core.inspect.row_selection import RowSelection
from ftcli.core.prepare.accept import accept
from ftcli.core.prepare.encode import encode_rows, packed
from ftcli.core.prepare.job import Job, plugins_of
from ftcli.core.prepare.join import Group, as_batch, joined
from ftcli.core.prepare.labels import named_labels
from ftcli.core.prepare.own_texts import drawn_pieces, drawn_rows
from ftcli.core.prepare.pairs import types_of, unmarked
from ftcli.core.prepare.policy import Counts, Documents, LengthPolicy, without_first
from ftcli.core.prepare.recipe import Recipe, settle
from ftcli.core.prepare.window import Routed, by_split, windows
from ftcli.core.prepare.workload import settle_workload
from ftcli.core.ragged import to_offsets
from ftcli.core.reading.read import read_shard
from ftcli.core.reading.reject import Fault
from ftcli.core.reading.shards import UNCUT
from ftcli.core.storage.label_flags import names_of
from ftcli.core.storage.store import Ragged, Rows
from ftcli.core.targets import labels_of, plain
from ftcli.core.tokenizer.spelling import Spelling
from ftcli.errors import DataError, UsageError
from ftcli.records import SPLITS, Piece, ShardPlan, Split
from ftcli.settings import update

BATCH_ROWS = 200
"""Rows encoded at a time: the first ones are wanted soon."""
DRAWN, MOST_DRAWN = 400, 20_000
"""Random rows of a place that are held: what goes to another split, or is left out, is found when they are encoded."""


Rowed = Iterator[tuple[Piece, pa.RecordBatch]]
"""What `read_shard` gives."""


class Unhashed(SourceHashes):
    """Sources that are looked at once need no content hash, which would read all of them."""

    def take(self, path: str) -> Hashed:
        return Hashed("", Stamp.of(path))


@dataclass(frozen=True, slots=True)
class Text:
    """A text before the length policy."""

    tokens: int
    label: str | None


@dataclass(slots=True)
class Row:
    """A row on its way to be shown. `ids` carry the marks of what is learned (`ftcli.core.targets`) where there are such."""

    ids: Any
    documents: list[int]
    label: str | None
    label_id: int | None
    notes: list[str]
    place: str = ""


@dataclass(slots=True)
class _Reading:
    """A job, and what is kept of the texts that went by. Documents know their text by a number that goes on over all batches."""

    job: Job
    names: Sequence[str] | None
    """Label names in id order, where they were given."""
    counts: Counts = field(default_factory=Counts)
    texts: dict[int, Text] = field(default_factory=dict)
    read: int = 0

    def documents(self, shard: ShardPlan, choose: Callable[[Rowed], Rowed] = iter) -> Iterator[Routed]:
        """As `ftcli.core.prepare.encode` makes them, batch by batch, of the rows that are chosen.

        Raises:
            DataError: a row cannot be used, in strict mode.
        """
        job, plugins = self.job, plugins_of(self.job)
        encoder = load_encoder(job.encoder, plugins)
        rows = read_shard(shard, job.columns, job.settings, plugins.registry("source"))
        for group in joined(choose(rows), job.batch_size):
            whole, broken, _ = encode_rows(job, encoder, as_batch(group))
            for members, (encoded, documents, labels, counts, faults), _ in accept(job, group, whole, broken):
                self._refuse(members, faults)
                self.counts.add(counts)
                self._keep(members, encoded, faults, documents)
                before, self.read = self.read, self.read + len(encoded.offsets) - 1
                for split, part, ids in by_split(documents, labels, encoded, shard, job):
                    yield split, replace(part, source=part.source + before), ids

    def _refuse(self, members: Group, faults: dict[int, Fault]) -> None:
        if faults and self.job.settings.dataset.on_bad == "strict":
            fault = faults[min(faults)]
            raise DataError(f"{members[0][0].path}: {fault.reason}", fault.hint)

    def _keep(self, members: Group, encoded: Encoded, faults: dict[int, Fault], documents: Documents) -> None:
        batch = as_batch(members)
        kept = np.delete(np.arange(batch.num_rows), list(faults))
        policy = self.job.policy
        lengths = np.diff(encoded.offsets) - (0 if policy.packed else policy.own_eos(encoded))
        for row in np.unique(documents.source).tolist():
            label = batch.column("label")[int(kept[row])].as_py() if "label" in batch.schema.names else None
            shown = together(map(str, sorted(set(label)))) if isinstance(label, list) else None if label is None else str(label)
            self.texts[self.read + row] = Text(int(lengths[row]), shown)

    def rows(self, shard: ShardPlan, split: Split) -> Iterator[tuple[int, Iterator[Row]]]:
        """Rows of the shard that go to `split`, window by window, with their number; to be taken before the next window is."""
        job = self.job
        routed = self.documents(shard)
        for name, arrived, ids in windows(routed) if job.policy.packed else routed:
            if name == split:
                documents = without_first(arrived) if job.chat else arrived
                yield self._packed(documents) if job.policy.packed else self.single(documents, ids)
            gone = np.unique(arrived.source)[: -1 if job.policy.packed else None]  # the last one of a window may go on in the next
            for number in gone.tolist():
                del self.texts[number]

    def single(self, documents: Documents, label_ids: Any) -> tuple[int, Iterator[Row]]:
        offsets, parts = to_offsets(documents.lengths), _parts(documents)
        classes = label_ids is not None and label_ids.ndim == 1 and label_ids.dtype.kind in "iu"

        def rows() -> Iterator[Row]:
            for number, (low, high) in enumerate(pairwise(offsets.tolist())):
                text = self.texts[int(documents.source[number])]
                note = _cut(self.job.policy, text.tokens, int(parts[number]), "the text")
                label_id = int(label_ids[number]) if classes else None
                label = text.label if label_id is None or self.names is None else self.names[label_id]
                if label_ids is not None and label_ids.ndim > 1 and self.names is not None:
                    label = together(names_of(label_ids[number], list(self.names)))
                yield Row(documents.ids[low:high], [high - low], label, label_id, note)

        return len(documents.lengths), rows()

    def _packed(self, documents: Documents) -> tuple[int, Iterator[Row]]:
        packs, ids = packed(self.job, plugins_of(self.job), documents)
        ends, parts = to_offsets(packs.length), _parts(documents)

        def rows() -> Iterator[Row]:
            for first, last in pairwise(packs.pack_offsets.tolist()):
                notes = []
                for place in range(first, last):
                    number = int(packs.document[place])
                    whole = packs.length[place] == documents.lengths[number]
                    name = "the text" if last - first == 1 else f"document {place - first + 1}"
                    text = self.texts[int(documents.source[number])]
                    notes += _cut(self.job.policy, text.tokens, int(parts[number]) if whole else 2, name)
                yield Row(ids[ends[first] : ends[last]], packs.length[first:last].tolist(), None, None, notes)

        return len(packs.pack_offsets) - 1, rows()


def of_sources(context: Context, split: str | None, picked: RowSelection) -> tuple[Looked, Spelling, dict[str, int]]:
    """Rows, the texts of their tokens, and what the length policy did to the rows that were read on the way.

    Raises:
        UsageError: no tokenizer, no such split or row; DataError, TokenizerError: sources or tokenizer cannot be used.
    """
    settings = update(context.settings, {"dataset.output_dir": Path("not-written")})
    if settings.tokenizer.engine == "auto":  # every engine gives the reference's ids, and it needs no proof
        settings = update(settings, {"tokenizer.engine": "hf"})
    if (settings.packing.strategy or "none") == "none":  # else a shard's end ends a pack
        settings = update(settings, {"dataset.shard_bytes": UNCUT})
    context = replace(context.with_settings(settings), notes=context.notes)
    recipe = settle(context, hashes=Unhashed(None))
    name = _split(recipe, split)
    reading = _reading(context, recipe)
    rows = _drawn(context, recipe, reading, name, picked) if picked.random is not None else _numbered(recipe, reading, name, picked)
    task = context.plugins.registry("task").get(recipe.task, "train.mode")()
    numbers = range(len(rows)) if picked.numbers is None else picked.numbers
    labelled = settings.dataset.labelled
    looked = Looked(
        name,
        _as_rows(
            rows,
            numbers,
            packed=reading.job.policy.packed and picked.random is None,
            targets=reading.job.chat,
            types=reading.job.policy.pair is not None,
        ),
        task,
        [row.label for row in rows] if labelled else None,
        [row.label_id for row in rows] if labelled else None,
        {place: row.notes for place, row in enumerate(rows) if row.notes},
        [row.place for row in rows] if picked.random is not None else None,
    )
    counts = {key: getattr(reading.counts, key) for key in ("rows_read", "rows_filtered", "rows_truncated", "texts_split")}
    return looked, Spelling(recipe.tokenizer, looked.rows.input_ids.values), counts


def _split(recipe: Recipe, asked: str | None) -> Split:
    there = recipe.splits()
    if asked is None:
        return there[0]
    for name in SPLITS:
        if name == asked and name in there:
            return name
    raise UsageError(f"the sources have no split {asked!r}", f"Splits: {', '.join(there)}.")


def _reading(context: Context, recipe: Recipe) -> _Reading:
    quiet = replace(context, progress=Quiet(), notes=[])  # workers and memory are of no interest here
    dataset = context.settings.dataset
    names, ids = (named_labels(dataset, recipe.plan) if dataset.labelled else None) or (None, None)
    job = settle_workload(quiet, recipe).job(quiet, recipe, recipe.output, ids)
    return _Reading(replace(job, batch_size=min(job.batch_size, BATCH_ROWS)), names)


def _numbered(recipe: Recipe, reading: _Reading, split: Split, picked: RowSelection) -> list[Row]:
    """The rows that the store would have under these numbers."""
    wanted = None if picked.numbers is None else set(picked.numbers)
    found: list[Row] = []
    total = 0
    for shard in recipe.plan.shards:
        if (shard.index, split) not in recipe.files():
            continue
        for count, rows in reading.rows(shard, split):
            if wanted is None or not wanted.isdisjoint(range(total, total + count)):
                first = islice(enumerate(rows, total), picked.last + 1 - total)
                found += [row for number, row in first if wanted is None or number in wanted]
            total += count
            if total > picked.last:
                return found
    picked.of(total, split)
    return found


def _drawn(context: Context, recipe: Recipe, reading: _Reading, split: Split, picked: RowSelection) -> list[Row]:
    """Random rows of random places; a row's number is not known without reading all before it. Texts that would be packed stand alone."""
    if reading.job.policy.packed:
        context.note("random rows of sources are shown one text a row: which texts share a pack is known in order only (--rows)")
    assert picked.random is not None
    draw = np.random.default_rng(picked.seed)
    own = any(shard.split == split for shard in recipe.plan.shards)
    origin: Split = split if own else "train"
    pieces = list(drawn_pieces(context, context.settings, [file for file in recipe.plan.found if (file.split or "train") == origin], draw))
    share = getattr(context.settings.dataset, f"{split}_fraction", 0.0) if split != origin else 1.0
    found: list[tuple[int, Row]] = []
    for done, number in enumerate(
        sorted(range(len(pieces)), key=lambda number: pieces[number].size)
    ):  # what small ones lack, larger ones give
        piece, there = pieces[number], list[Row]()
        wanted = -(-(picked.random - len(found)) // (len(pieces) - done))
        most = min(MOST_DRAWN, max(DRAWN, int(4 * wanted / share)))
        for name, documents, ids in reading.documents(ShardPlan(0, origin, (piece,)), partial(_some, piece, most, draw)):
            if name == split:
                there += reading.single(without_first(documents) if reading.job.chat else documents, ids)[1]
            if len(there) >= wanted:
                break
        where = f"{piece.path}, {piece.unit} {piece.start:,} to {piece.stop:,}"
        chosen = sorted(draw.choice(len(there), size=min(wanted, len(there)), replace=False).tolist())
        found += [(number, replace(there[place], place=where)) for place in chosen]
    if len(found) < picked.random:
        places = "the 1 place that was drawn holds" if len(pieces) == 1 else f"the {len(pieces)} places that were drawn hold"
        context.note(f"{len(found):,} random rows are shown, {picked.random:,} were asked for: {places} no more of the split")
    return [row for _, row in sorted(found, key=lambda one: one[0])]


def _some(piece: Piece, most: int, draw: np.random.Generator, rows: Rowed) -> Rowed:
    chosen = drawn_rows((batch for _, batch in rows), most, draw)
    return iter([] if chosen is None else [(piece, chosen)])


def _parts(documents: Documents) -> Any:
    """Of each document, how many its text has become."""
    _, which, counts = np.unique(documents.source, return_inverse=True, return_counts=True)
    return counts[which]


def _cut(policy: LengthPolicy, before: int, parts: int, name: str) -> list[str]:
    """What the length policy did to a text of `before` tokens that became so many parts."""
    if parts > 1:
        return [f"{name} is a part of one of {before:,} tokens (split)"]
    room = policy.max_length - len(policy.prefix) - len(policy.suffix) if policy.packed else policy.room
    if policy.truncation in {"keep_start", "keep_end"} and before > room:
        return [f"{name} was cut: it has {before:,} tokens ({policy.truncation})"]
    return []


def _as_rows(rows: Sequence[Row], numbers: Sequence[int], *, packed: bool, targets: bool, types: bool) -> Rows:
    def ragged(parts: Sequence[Any]) -> Ragged:
        values = np.concatenate([np.asarray(part, np.int32) for part in parts]) if parts else np.zeros(0, np.int32)
        return Ragged(values, to_offsets(np.array([len(part) for part in parts], np.int64)))

    return Rows(
        np.array(numbers, np.int64),
        ragged([unmarked(plain(row.ids)) for row in rows]),
        None,
        ragged([row.documents for row in rows]) if packed else None,
        ragged([labels_of(row.ids) for row in rows]) if targets else None,
        types=ragged([types_of(row.ids) for row in rows]) if types else None,
    )
