"""Small stores as `ftcli tokenize` publishes them, written directly, and contexts to train on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ftcli.context import Context
from ftcli.contracts import BatchSpec, Task
from ftcli.core.files.manifest import describe, fingerprint, seal
from ftcli.core.storage.store import Ragged, Rows, SplitData, Store
from ftcli.records import MANIFEST_NAME, MANIFEST_SCHEMA

Label = int | float | Sequence[int] | tuple[float, ...] | None
Row = tuple[Sequence[int], Label] | tuple[Sequence[int], Label, Sequence[int]]
"""Ids, label (of the row, a float where it is to be predicted, or of every token as a list; or as a tuple whether each label holds) or None, and in packed rows the tokens of each
text."""


def write_store(
    folder: Path,
    splits: Mapping[str, Sequence[Row]],
    *,
    tokenizer: Mapping[str, Any] | None = None,
    label_names: Sequence[str] | None = None,
    max_length: int = 64,
    task: str | None = None,
    shards: int = 1,
) -> Store:
    """Publish rows and open them; `shards` files a split."""
    files, counts = [], {}
    for name, rows in splits.items():
        (folder / name).mkdir(parents=True)
        names = []
        for number, part in enumerate(np.array_split(np.arange(len(rows)), shards)):
            names.append(f"data-{number:05d}-of-{shards:05d}.arrow")
            _write(folder / name / names[-1], [rows[index] for index in part])
            files.append(describe(folder / name / names[-1], f"{name}/{names[-1]}"))
        (folder / name / "state.json").write_text(json.dumps({"_data_files": [{"filename": file} for file in names]}))
        files.append(describe(folder / name / "state.json", f"{name}/state.json"))
        counts[name] = {"rows": len(rows), "tokens": sum(len(row[0]) for row in rows)}
    packed = any(len(row) > 2 for rows in splits.values() for row in rows)
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "fingerprint": fingerprint({"made for tests": counts}),
        "splits": counts,
        "label_names": None if label_names is None else list(label_names),
        "max_length": max_length,
        "packing": "bfd" if packed else "none",
        "task": task or ("classify" if label_names else "pretrain"),
        "tokenizer": dict(tokenizer or {"path": "nowhere", "hash": "none"}),
        "files": files,
    }
    (folder / MANIFEST_NAME).write_bytes(seal(manifest))
    return Store.open(folder)


def split_of(folder: Path, rows: Sequence[Row]) -> SplitData:
    """A split without a store around it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "data-00000-of-00001.arrow"
    _write(path, rows)
    return SplitData("train", [path])


def rows_of(texts: Sequence[Sequence[int]], labels: Sequence[int] | None = None, documents: Sequence[Sequence[int]] | None = None) -> Rows:
    """`Rows` in memory."""
    return Rows(
        np.arange(len(texts)),
        _ragged(texts),
        None if labels is None else np.array(labels, np.int64),
        None if documents is None else _ragged(documents),
    )


def spec_for(task: Task, **changes: Any) -> BatchSpec:
    return BatchSpec(**{"pad_token_id": 0, "padding_side": "right", "max_length": 16, "pad_to_multiple_of": 1, "task": task, **changes})


def learnable(rows: int, labels: int, vocabulary: int, seed: int) -> list[tuple[list[int], int]]:
    """Texts of random words whose second token gives the label away."""
    random = np.random.default_rng(seed)
    texts = []
    for _ in range(rows):
        label = int(random.integers(labels))
        ids = random.integers(10 + labels, vocabulary, int(random.integers(4, 24))).tolist()
        ids[1] = 10 + label
        texts.append((ids, label))
    return texts


def told(rows: int, labels: int, vocabulary: int, seed: int) -> list[tuple[list[int], tuple[float, ...]]]:
    """Texts of random words whose first tokens give away which labels hold; one in eight has none."""
    random = np.random.default_rng(seed)
    texts = []
    for _ in range(rows):
        held = (random.random(labels) < 0.4) & (random.random() > 0.125)
        ids = random.integers(10 + labels, vocabulary, int(random.integers(labels + 2, labels + 24))).tolist()
        ids[1 : 1 + int(held.sum())] = (10 + np.flatnonzero(held)).tolist()
        texts.append((ids, tuple(held.astype(float).tolist())))
    return texts


def packed(rows: int, width: int, vocabulary: int, seed: int) -> list[tuple[list[int], None, list[int]]]:
    """Packed rows of counting texts (each token is its predecessor plus one), so that the next token can be learned."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(rows):
        lengths = []
        while sum(lengths) < width - 8:
            lengths.append(int(random.integers(2, 9)))
        ids = [
            int(start + step) % (vocabulary - 10) + 10
            for length in lengths
            for start in [random.integers(vocabulary)]
            for step in range(length)
        ]
        found.append((ids, None, lengths))
    return found


def context(**values: Any) -> Context:
    """A context of "section.field" values (with "__" for the dot), float32 unless bf16 is asked for."""
    return Context.make({"train.bf16": False, **{key.replace("__", "."): value for key, value in values.items()}})


def _write(path: Path, rows: Sequence[Row]) -> None:
    columns: dict[str, pa.Array] = {
        "input_ids": pa.array([list(row[0]) for row in rows], pa.list_(pa.int32())),
        "length": pa.array([len(row[0]) for row in rows], pa.int32()),
    }
    if any(row[1] is not None for row in rows):
        first = rows[0][1]
        a_token = any(not isinstance(row[1], int) for row in rows)
        kind = pa.list_(pa.float32(), len(first)) if isinstance(first, tuple) else pa.list_(pa.int32()) if a_token else pa.int64()
        kind = pa.float32() if isinstance(first, float) else kind
        columns["labels"] = pa.array([row[1] for row in rows], kind)
    if any(len(row) > 2 for row in rows):
        columns["seq_lengths"] = pa.array([list(row[2]) for row in rows if len(row) > 2], pa.list_(pa.int32()))
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def _ragged(rows: Sequence[Sequence[int]]) -> Ragged:
    values = np.array([value for row in rows for value in row], np.int32)
    return Ragged(values, np.cumsum([0, *(len(row) for row in rows)]))
