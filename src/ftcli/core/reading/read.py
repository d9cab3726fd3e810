"""Reading: sources are planned into shards that depend on their content only, and a shard is read as checked record batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ftcli.contracts import Columns, Reject, SourceFormat
from ftcli.core.files.pointers import refuse_pointer
from ftcli.core.files.stamps import Hashed, SourceHashes
from ftcli.core.files.streams import data_errors, refuse_undecodable
from ftcli.core.reading import jq
from ftcli.core.reading.class_labels import names_in
from ftcli.core.reading.columns import CONVERT, REGRESS, WORDS, Kind
from ftcli.core.reading.conversation import columns_of
from ftcli.core.reading.copies import notes_on_copies
from ftcli.core.reading.file_notes import OwnFormat, notes_on_files, notes_on_labels, way_without_labels
from ftcli.core.reading.find import Finder, Found
from ftcli.core.reading.label_columns import joined_labels
from ftcli.core.reading.label_lists import is_list, item_type, parted
from ftcli.core.reading.of_plugins import batches, owner_of
from ftcli.core.reading.reject import Rejects, passing
from ftcli.core.reading.shards import UNCUT, joined_pieces, pieces_of, shard_size
from ftcli.core.room import require_readers
from ftcli.errors import DataError, UsageError
from ftcli.records import SPLITS, Piece, ShardPlan, Split
from ftcli.registry import AnyRegistry
from ftcli.settings import Settings

if TYPE_CHECKING:
    from ftcli.context import Progress

CHAT_FORMATS = ("jsonl", "json", "parquet", "arrow", "hf", "csv")
"""Formats that know how to read conversations."""
HASH_THREADS = 4
HASH_GROUP, HASH_GROUP_BYTES = 256, 4 << 20
"""Files that a thread hashes at a time: handing over a small file takes longer than hashing it."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that is read, with the hash of its bytes as they lie on disk."""

    path: str
    format: str
    split: Split
    bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be read. `shards` and `files` stand in the order train, validation, test, and inside a split as they were named."""

    shards: tuple[ShardPlan, ...]
    files: tuple[SourceFile, ...]
    columns: Columns
    notes: tuple[str, ...]
    found: tuple[Found, ...]
    """The files as they were found, in the order of `files`."""
    hashes: Mapping[str, Hashed]
    """Path → content hash with the stamp of the version that was hashed."""
    beside: tuple[str, ...] = ()
    """Of conversations: the columns with texts, lists or objects."""
    label_names: tuple[str, ...] = ()
    """What the files call the numbers of the label column, from 0, where they say so and the settings do not."""

    @property
    def bytes(self) -> int:
        """Bytes on disk of all files."""
        return sum(file.bytes for file in self.files)


def find_sources(settings: Settings, formats: AnyRegistry, progress: Progress | None = None) -> tuple[Finder, list[Found]]:
    """The files of `settings.dataset.sources` in the order train, validation, test, and the finder with its notes.

    Raises:
        DataError: a source is missing or cannot be used.
    """
    finder = Finder(settings, formats, progress)
    found = finder.find()
    for file in found:
        refuse_undecodable(file.path)
    return finder, sorted(found, key=lambda file: SPLITS.index(file.split or "train"))


def make_plan(
    settings: Settings,
    formats: AnyRegistry,
    progress: Progress | None = None,
    hashes: SourceHashes | None = None,
    *,
    texts_alone: bool = False,
    uncut: Collection[str] = (),
) -> Plan:
    """Find the sources, cut them into shards of about `dataset.shard_bytes` (or `shard_size`), settle the label's kind and hash every file.

    The result depends on the files and on `sources`, `shard_bytes` and what says how a file is read; on nothing else.

    Args:
        texts_alone: whoever asks has no use for labels, and no option for them.
        uncut: formats whose files are a piece each, because only their first rows are wanted.

    Raises:
        UsageError: no source was named, or text and label are one column.
        DataError: a file cannot be used; names it and the reason.
    """
    from ftcli.context import Quiet  # with it come pydantic_settings and asyncio: 0.15 s in every worker, which reads and plans nothing

    dataset = settings.dataset
    if not dataset.sources:
        raise UsageError("no data source given", "Give files, globs, directories or Hub ids; SPLIT=PATH sets the split.")
    if dataset.label_columns and (dataset.label_column or dataset.label_names or dataset.label_separator):
        raise UsageError(
            "label_columns already names the labels and their columns; it cannot be combined with label_column, label_names or label_separator",
            "Remove label_columns or the others.",
        )
    if dataset.label_columns and len(dataset.label_columns) < 2:
        raise UsageError(
            f"label_columns names only one column ({dataset.label_columns[0]})",
            "Name the columns of all labels, or give this one as --label-column.",
        )
    named = [("text", dataset.text_column), ("text pair", dataset.text_pair_column), ("label", dataset.label_column)]
    named += [("label", name) for name in dataset.label_columns or ()]
    for (role, name), (other, same) in combinations(named, 2):
        if name is not None and name == same:
            raise UsageError(
                f"{name!r} cannot be both the {role} and the {other} column",
                f"Check --{role.replace(' ', '-')}-column and --{other.replace(' ', '-')}-column.",
            )
    read = columns_of(settings)
    if read.chat is not None and dataset.text_pair_column:
        raise UsageError(
            f"mode sft takes conversations, and text_pair_column = {dataset.text_pair_column!r} is for classification",
            "Leave one of them out.",
        )
    if read.chat is not None and dataset.labelled:
        asked = dataset.label_column or ", ".join(dataset.label_columns or ())
        raise UsageError(f"mode sft takes conversations, and label_column = {asked!r} asks for labels", "Leave one of them out.")
    finder, found = find_sources(settings, formats, progress)
    if read.chat is not None and (unread := [file.path for file in found if file.format not in CHAT_FORMATS]):
        raise DataError(
            f"{unread[0]}: conversations are read from {', '.join(CHAT_FORMATS)} only",
            "Write them as JSON lines, one conversation per line.",
        )
    target = dataset.shard_bytes or shard_size(sum(Path(file.path).stat().st_size for file in found))
    for file in found:
        refuse_pointer(file.path, DataError)
    progress = progress or Quiet()
    sizes = [UNCUT if file.format in uncut else target for file in found]
    pieces = [
        _planned(file, found, finder.formats, size, settings, progress, owner_of(formats, file.format))
        for file, size in zip(found, sizes, strict=True)
    ]
    empty = [file.path for file, planned in zip(found, pieces, strict=True) if not planned]
    if len(empty) == len(found):
        raise DataError(f"{', '.join(empty[:5])}: no rows", "Check that the data were written.")
    finder.notes.extend(f"{path}: no rows" for path in empty)
    filled = [file for file, planned in zip(found, pieces, strict=True) if planned]
    finder.notes.extend(notes_on_files(filled, finder.formats, settings))
    there = _found_columns(filled, finder.formats, settings) if read.chat is not None or settings.train.mode is None else {}
    if read.chat is None and not texts_alone and not dataset.labelled and there:
        finder.notes.extend(notes_on_labels(there, filled, finder.formats, settings))
    trusted = [file.path for file in filled if file.format == "pickle" and dataset.trust_pickle]
    if trusted:
        finder.notes.append(f"code in these pickles was allowed to run, in a separate process (--trust-pickle): {', '.join(trusted[:5])}")
    number = settings.train.mode == REGRESS
    if number and (dataset.label_columns or dataset.label_names or dataset.label_separator):
        raise UsageError(f"mode {REGRESS} predicts the number in --label-column", "Remove label_columns, label_names and label_separator.")
    label = dataset.label_column
    columns = replace(
        read,
        label_kind=None if label is None else _label_kind(filled, finder.formats, settings, label, number=number),
        number=number and label is not None,
        label_separator=dataset.label_separator,
        flag_kinds=tuple(_label_kind(filled, finder.formats, settings, name, flag=True) for name in read.flags),
    )
    unnamed = label if columns.label_kind in {"int", "ints"} and not dataset.label_names else None
    names, said_in = names_in(filled, finder.formats, unnamed)
    if names:
        shown = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        finder.notes.append(f"labels 0 to {len(names) - 1} have the names given in {said_in}: {shown} (to change them: --label-names)")
    taken = hash_sources(found, hashes or SourceHashes(None), progress)
    finder.notes.extend(notes_on_copies(found, taken, finder.suffixes))
    return Plan(
        shards=joined_pieces(found, pieces, target),
        files=tuple(
            SourceFile(file.path, planned[0].format if planned else file.format, file.split or "train", hashed.stamp.size, hashed.xxh3)
            for file, planned, hashed in zip(found, pieces, taken, strict=True)
        ),
        columns=columns,
        notes=tuple(finder.notes),
        found=tuple(found),
        hashes={file.path: hashed for file, hashed in zip(found, taken, strict=True)},
        label_names=names,
        beside=() if read.chat is None else tuple(name for name, says in there.items() if says),
    )


def _planned(
    file: Found,
    found: Sequence[Found],
    formats: Mapping[str, SourceFormat],
    target: int,
    settings: Settings,
    progress: Progress,
    owner: str | None,
) -> list[Piece]:
    try:
        return pieces_of(file.path, formats[file.format], target, settings, progress, owner)
    except DataError as error:
        if way := way_without_labels(error, found, formats, settings):
            raise DataError(error.message, way) from None
        raise


def read_shard(
    shard: ShardPlan,
    columns: Columns,
    settings: Settings,
    formats: AnyRegistry,
    rejects: Rejects | None = None,
    unkept: Reject | None = None,
) -> Iterator[tuple[Piece, pa.RecordBatch]]:
    """The shard's rows in order, as (piece, record batch of the contract of `SourceFormat.read`).

    Args:
        rejects: where bad rows go; None: to nobody, under quarantine, because another pass accounts for them.
        unkept: who is told of them instead, where no pass keeps them.

    Raises:
        DataError: the first bad row, named by file and line (or row), in strict mode; a damaged file.
    """
    require_readers()
    for piece in shard.pieces:
        for batch in batches(formats, piece, columns, settings, rejects.of(piece) if rejects else unkept or passing(settings)):
            if columns.flags and not columns.labels_only:
                yield piece, joined_labels(batch, columns)
            elif columns.label_kind == "bool":
                yield piece, _named(batch)
            else:
                yield piece, batch if columns.label_separator is None else _parted(batch, columns.label_separator)


def _named(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the labels "false" and "true" in place of what says so."""
    place = batch.schema.get_field_index("label")
    return batch.set_column(place, "label", pc.cast(batch.column(place), pa.large_string()))


def _parted(batch: pa.RecordBatch, separator: str) -> pa.RecordBatch:
    """The batch, its labels cut into lists where they are strings."""
    place = batch.schema.get_field_index("label")
    if place < 0 or is_list(batch.column(place).type) or pa.types.is_integer(item_type(batch.column(place).type)):
        return batch
    return batch.set_column(place, "label", parted(batch.column(place), separator))


def scan_labels(shard: ShardPlan, columns: Columns, settings: Settings, formats: AnyRegistry) -> set[str] | set[int]:
    """The distinct labels of a shard; only the label column is decoded."""
    assert columns.label is not None
    columns_read = (batch.column("label") for _, batch in read_shard(shard, replace(columns, labels_only=True), settings, formats))
    return {label for column in columns_read for label in pc.unique(column.flatten() if is_list(column.type) else column).to_pylist()}


def _found_columns(found: list[Found], formats: dict[str, SourceFormat], settings: Settings) -> dict[str, bool]:
    """Of the first file of each format: there may be a million."""
    first = {file.format: file.path for file in reversed(found) if file.format in CHAT_FORMATS}
    columns: dict[str, bool] = {}
    for name, path in first.items():
        if isinstance(reader := formats[name], OwnFormat):
            columns |= reader.found_columns(path, settings)
    return columns


def _label_kind(
    found: list[Found], formats: dict[str, SourceFormat], settings: Settings, label: str, *, flag: bool = False, number: bool = False
) -> Kind:
    """What a label column holds. `flag`: it says of one label whether it holds. `number`: it is to be predicted."""
    first: dict[Kind, str] = {}
    for file in found:
        kind = formats[file.format].label_kind(file.path, label, settings)
        if kind is not None:
            first.setdefault(kind, file.path)
        if number and kind == "string" and file.format != "csv":
            raise DataError(
                f"{file.path}: the label column {label!r} holds strings; mode {REGRESS} takes numbers",
                f"ftcli does not convert values: convert the column. For JSON: {jq.changed(f'{jq.key(label)} |= tonumber')}",
            )
    if len(first) > 1 and settings.dataset.on_bad == "strict":
        raise DataError(
            f"the label column {label!r} holds {' and '.join(f'{WORDS[kind]} in {path}' for kind, path in sorted(first.items()))}",
            "ftcli does not convert values: convert the columns to one type.",
        )
    held: Kind = next(iter(first), "float" if number else "string")
    if held not in {"float", "string"} if number else flag and held not in {"bool", "int", "string"}:
        wanted = "numbers" if number else "0 or 1, or false or true"
        raise DataError(f"{first[held]}: the label column {label!r} holds {WORDS[held]}; it must hold {wanted}", CONVERT[None])
    return held


def hash_sources(found: Sequence[Found], hashes: SourceHashes, progress: Progress) -> list[Hashed]:
    """The content hash of every file, in order.

    Raises:
        DataError: a file cannot be read.
    """

    def take(group: Sequence[Found]) -> list[Hashed]:
        result = []
        for file in group:
            with data_errors(file.path):
                result.append(hashes.take(file.path))
        return result

    known = [hashes.known(file.path) for file in found]
    new = [(file, size) for file, (size, hashed) in zip(found, known, strict=True) if hashed is None]
    ends, filled = [0], 0
    for number, (_, size) in enumerate(new):
        filled += size
        if number > ends[-1] and (filled > HASH_GROUP_BYTES or number - ends[-1] >= HASH_GROUP):
            ends.append(number)
            filled = size
    progress.start("hash", sum(size for _, size in new), "B")
    taken: list[Hashed] = []
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        groups = ([file for file, _ in new[start:end]] for start, end in pairwise([*ends, len(new)]))
        for hashed in chain.from_iterable(pool.map(take, groups)):
            taken.append(hashed)
            progress.advance(hashed.stamp.size)
    progress.close()
    rest = iter(taken)
    return [hashed or next(rest) for _, hashed in known]
