"""Opening prepared data: memory-mapped Arrow, checked before use, read by row without a Python object per token."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ftcli.core.arrays import values
from ftcli.core.files.manifest import check_files, read_manifest
from ftcli.core.files.run_folder import refuse_run
from ftcli.core.ragged import to_offsets
from ftcli.core.storage.label_flags import Flags, LabelFlags
from ftcli.errors import StoreError
from ftcli.records import MANIFEST_NAME

INPUT_IDS, LENGTH, LABELS, SEQ_LENGTHS, TYPES = "input_ids", "length", "labels", "seq_lengths", "token_type_ids"
TRIES = 5
"""How often a directory that is replaced while it is opened is opened anew."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """A list column of n rows: row i is `values[offsets[i]:offsets[i + 1]]`."""

    values: NDArray[np.int32]
    """int8 of token types."""
    offsets: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> NDArray[np.int32]:
        return self.values[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a split, in the order asked for. `labels` int64 [rows] or None; `seq_lengths`: tokens of each document in a row, or None;
    `targets`: a label a token, -100 where it is not learned, or None. `idle`: they stand in for no row at all, and nothing is to be learned of
    them. `flags`: whether each label holds, float32 [rows, labels], where a row has any number of labels, or None. `types`: 0 for a token of a row's first
    text and 1 for one of its second, where the model wants to know, or None. `numbers`: what is to be predicted of each row, float32 [rows], or None."""

    index: NDArray[np.int64]
    input_ids: Ragged
    labels: NDArray[np.int64] | None = None
    seq_lengths: Ragged | None = None
    targets: Ragged | None = None
    idle: bool = False
    flags: Flags | None = None
    types: Ragged | None = None
    numbers: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.input_ids)


class SplitData:
    """One split. Columns stay in their memory-mapped record batches; `rows` copies only what is asked for."""

    def __init__(self, name: str, files: list[Path]) -> None:
        self.name = name
        tables = []
        for path in files:
            with pa.memory_map(str(path)) as source:
                tables.append(pa.ipc.open_stream(source).read_all())
        self.table: pa.Table = pa.concat_tables(tables)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every row."""
        lengths: NDArray[np.int64] = _column(self.table.column(LENGTH))
        return lengths

    @cached_property
    def labels(self) -> NDArray[np.int64] | None:
        """Label id of every row; None where there is none, or any number, or a number that is to be predicted."""
        if LABELS not in self.table.column_names or not pa.types.is_integer(self.table.schema.field(LABELS).type):
            return None
        labels: NDArray[np.int64] = _column(self.table.column(LABELS))
        return labels

    @cached_property
    def flags(self) -> LabelFlags | None:
        """Whether each label holds, where a row has any number of labels; else None."""
        if LABELS not in self.table.column_names or not pa.types.is_fixed_size_list(self.table.schema.field(LABELS).type):
            return None
        return LabelFlags.of_column(self.table.column(LABELS))

    @cached_property
    def numbers(self) -> NDArray[np.float32] | None:
        """The number of every row that is to be predicted; None where there is none."""
        if LABELS not in self.table.column_names or not pa.types.is_floating(self.table.schema.field(LABELS).type):
            return None
        return np.concatenate([np.zeros(0, np.float32), *map(values, self.table.column(LABELS).chunks)])

    @property
    def targeted(self) -> bool:
        """Whether every token has a label."""
        return LABELS in self.table.column_names and pa.types.is_list(self.table.schema.field(LABELS).type)

    @property
    def packed(self) -> bool:
        return SEQ_LENGTHS in self.table.column_names

    @property
    def text_counts(self) -> NDArray[np.int64]:
        """Texts of every row: of packed ones several."""
        chunks = self.table.column(SEQ_LENGTHS).chunks if self.packed else []
        return np.concatenate([np.ones(0 if self.packed else len(self), np.int64), *(np.diff(values(chunk.offsets)) for chunk in chunks)])

    @property
    def typed(self) -> bool:
        """Whether every token has a type: rows hold two texts, and the model wants to know which token is whose."""
        return TYPES in self.table.column_names

    def rows(self, index: NDArray[np.int64] | list[int]) -> Rows:
        """Rows by number."""
        wanted = np.asarray(index, dtype=np.int64)
        places = index if isinstance(index, list) else wanted.tolist()  # of some tens of numbers Python finds the ends sooner than numpy
        if places and (min(places) < 0 or max(places) >= len(self)):
            raise IndexError(f"split {self.name!r} has {len(self)} rows")
        labels = None if self.labels is None else self.labels[wanted]
        seq_lengths = self._seq_lengths.gather(wanted) if self.packed else None
        targets = self._targets.gather(wanted) if self.targeted else None
        flags = None if self.flags is None else self.flags.gather(wanted)
        types = self._types.gather(wanted) if self.typed else None
        numbers = None if self.numbers is None else self.numbers[wanted]
        return Rows(wanted, self._input_ids.gather(wanted), labels, seq_lengths, targets, flags=flags, types=types, numbers=numbers)

    def batches(self) -> Iterator[Rows]:
        """All rows in order, a record batch at a time. Nothing is copied but where rows begin."""
        start = 0
        for batch in self.table.to_batches():
            lists = {name: _ragged(batch.column(name)) for name in (INPUT_IDS, SEQ_LENGTHS, TYPES) if name in batch.schema.names}
            index = np.arange(start, start := start + batch.num_rows)
            targets = _ragged(batch.column(LABELS)) if self.targeted else None
            labels = None if self.labels is None else self.labels[index]
            flags = None if self.flags is None else self.flags.gather(index)
            numbers = None if self.numbers is None else self.numbers[index]
            yield Rows(
                index, lists[INPUT_IDS], labels, lists.get(SEQ_LENGTHS), targets, flags=flags, types=lists.get(TYPES), numbers=numbers
            )

    def few(self, index: Sequence[int]) -> Rows:
        """Rows by number as `rows` gives them, for looking at some: nothing of the other rows is read, where `rows` reads where each begins."""
        wanted = np.asarray(index, dtype=np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(f"split {self.name!r} has {len(self)} rows")
        labels, flags = None, None if self.flags is None else self.flags.gather(wanted)
        numbers = None
        if LABELS in self.table.column_names and not self.targeted and flags is None:
            found = [self.table.column(LABELS)[row].as_py() for row in wanted.tolist()]
            if pa.types.is_integer(self.table.schema.field(LABELS).type):
                labels = np.array(found, np.int64)
            else:
                numbers = np.array(found, np.float32)
        ids, seq_lengths, targets, types = (
            _few(self.table.column(name), wanted) if there else None
            for name, there in ((INPUT_IDS, True), (SEQ_LENGTHS, self.packed), (LABELS, self.targeted), (TYPES, self.typed))
        )
        assert ids is not None
        return Rows(wanted, ids, labels, seq_lengths, targets, flags=flags, types=types, numbers=numbers)

    @cached_property
    def _input_ids(self) -> _Chunks:
        return _Chunks(self.table.column(INPUT_IDS))

    @cached_property
    def _seq_lengths(self) -> _Chunks:
        return _Chunks(self.table.column(SEQ_LENGTHS))

    @cached_property
    def _targets(self) -> _Chunks:
        return _Chunks(self.table.column(LABELS))

    @cached_property
    def _types(self) -> _Chunks:
        return _Chunks(self.table.column(TYPES))


class Store:
    """A published directory. `Store.open` is the only door, so that an unchecked one is never read.

    All it gives is of one version: a map stays whole when another version takes the directory's path, and a split that was not mapped
    by then is refused.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any], descriptor: int) -> None:
        self.path = path
        self.manifest = manifest
        self._directory = descriptor  # held open, so that no other directory gets its inode
        self._splits: dict[str, SplitData] = {}
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open prepared data after the cheap check (every file present with its size).

        Raises:
            StoreError: no prepared data there, an unknown format, or a damaged file; names it.
        """
        for last in (*[False] * (TRIES - 1), True):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                break
            except OSError as error:
                raise StoreError(f"{path} cannot be opened: {error.strerror}", "Check its permissions.") from error
            store = cls(path, {}, descriptor)
            try:
                store.manifest = read_manifest(path, descriptor) or {}
                if not store.manifest:
                    break
                if (exported := store.manifest.get("format")) is not None:
                    raise StoreError(f"{path} is an export in the format {exported}", "Give the prepared directory it was exported from.")
                check_files(path, store.manifest, at=descriptor)
            except StoreError:
                if last or store.is_current():
                    raise
            else:
                return store
        refuse_run(path, StoreError)
        make = f"ftcli tokenize {path if path.exists() else 'SOURCE'} --tokenizer-path TOKENIZER --output-dir PREPARED; then give PREPARED."
        raise StoreError(f"{path} holds no data prepared by ftcli ({MANIFEST_NAME} is missing)", f"Prepare it first: {make}")

    def is_current(self) -> bool:
        """Whether no other version has taken the directory's path."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._directory))
        except OSError:
            return False

    @property
    def fingerprint(self) -> str:
        return str(self.manifest["fingerprint"])

    @property
    def split_names(self) -> list[str]:
        return list(self.manifest["splits"])

    @property
    def label_names(self) -> list[str] | None:
        return self.manifest.get("label_names")

    @property
    def task_name(self) -> str:
        """The task that the rows were prepared for; between classes and plain texts the labels decide."""
        told = self.manifest.get("task")
        return str(told) if told not in {None, "classify", "pretrain"} else "classify" if self.label_names else "pretrain"

    @property
    def max_length(self) -> int:
        return int(self.manifest["max_length"])

    @property
    def eval_split(self) -> str | None:
        """The split to evaluate on: validation, else test."""
        return next((name for name in ("validation", "test") if name in self.split_names), None)

    def split(self, name: str) -> SplitData:
        """A split by name.

        Raises:
            StoreError: there is none; names those that exist.
        """
        if name not in self.manifest["splits"]:
            raise StoreError(f"{self.path} has no split {name!r}", f"Splits: {', '.join(self.split_names)}.")
        if name not in self._splits:
            self._splits[name] = self._map(name)
        return self._splits[name]

    def _map(self, name: str) -> SplitData:
        folder = self.path / name
        try:
            state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            split = SplitData(name, [folder / entry["filename"] for entry in state["_data_files"]])
        except (OSError, pa.ArrowException, ValueError) as error:
            if self.is_current():
                raise StoreError(f"{folder} cannot be opened: {error}", f"Find the damage with: ftcli cache verify {self.path}") from error
        else:
            if self.is_current():
                return split
        raise StoreError(f"{self.path} was replaced by another version while it was open", "Run the same command again.")


class _Chunks:
    """Rows of a chunked list<int32> column, gathered without joining the chunks (which would copy the memory map).

    A row costs one slice and the copying of its tokens: 0.4 µs of 211 tokens. A single index of all tokens costs twice that.
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        self._values = [values(chunk.values) for chunk in chunks]
        offsets = [values(chunk.offsets) for chunk in chunks]
        self._begins = np.concatenate([np.zeros(0, np.int32), *(each[:-1] for each in offsets)])
        """Where every row begins in its chunk's values."""
        self._ends = np.concatenate([np.zeros(0, np.int32), *(each[1:] for each in offsets)])
        self._starts = np.cumsum([0, *(len(each) - 1 for each in offsets)])

    def gather(self, wanted: NDArray[np.int64]) -> Ragged:
        begins, ends = self._begins[wanted], self._ends[wanted]
        offsets = np.zeros(len(wanted) + 1, np.int64)
        np.cumsum(ends - begins, out=offsets[1:])
        places = zip(begins.tolist(), ends.tolist(), strict=True)
        if len(self._values) == 1:
            ids = self._values[0]
            pieces = [ids[begin:end] for begin, end in places]
        else:
            which = (np.searchsorted(self._starts, wanted, side="right") - 1).tolist()
            pieces = [self._values[chunk][begin:end] for chunk, (begin, end) in zip(which, places, strict=True)]
        return Ragged(np.concatenate(pieces) if pieces else np.zeros(0, np.int32), offsets)


def _column(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *map(values, column.chunks)], dtype=np.int64)


def _ragged(column: pa.ListArray) -> Ragged:
    offsets = values(column.offsets).astype(np.int64)
    return Ragged(values(column.values)[offsets[0] : offsets[-1]], offsets - offsets[0])


def _few(column: pa.ChunkedArray, wanted: NDArray[np.int64]) -> Ragged:
    starts = np.cumsum([0, *map(len, column.chunks)])
    pieces = []
    for row in wanted.tolist():
        chunk = int(np.searchsorted(starts, row, side="right")) - 1
        begin, end = column.chunk(chunk).slice(row - int(starts[chunk]), 1).offsets.to_pylist()
        pieces.append(values(column.chunk(chunk).values.slice(begin, end - begin)))
    return Ragged(np.concatenate(pieces) if pieces else np.zeros(0, np.int32), to_offsets(np.array(list(map(len, pieces)), np.int64)))
