"""Shards of MosaicML streaming: SPLIT/shard.00000.mds … with SPLIT/index.json.

A shard, little-endian: number of samples (uint32), the byte where each begins and the end (uint32), the configuration as JSON, the samples.
A sample: the size of every column that has no fixed one (uint32), then the columns in the order of their names. A list is one byte
(dimensions · 4 + width of the length: 0 for 1 byte, 1 for 2, 2 for 4), its length, its values. Source: mosaicml-streaming 0.13,
streaming/base/format/mds. It is written here because that package wants transformers under 5, which ftcli cannot be installed with.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.contracts_export import ExportJob

if TYPE_CHECKING:
    import numpy as np

    from ftcli.core.storage.store import Rows, Store

LIST, NUMBER = "ndarray:int32", "int"
SIZES = {LIST: None, NUMBER: 8}
MOST_BYTES = 1 << 26
"""Largest shard, as `MDSWriter` has it by default; so much is in memory."""


class Mds:
    """A folder a split, for `StreamingDataset(local=OUTPUT, split="train")`.

    The ids are in the column `tokens`, which LLM Foundry's pre-training reads, or beside `labels` in `input_ids`, which its fine-tuning reads.
    """

    name = "mds"

    def export(self, store: Store, output: Path, job: ExportJob) -> Iterable[Path]:
        """See `ftcli.contracts_export.Exporter`.

        Raises:
            StoreError: a row without tokens, which the format has no form for.
            UsageError: a row has any number of labels, and they are not left out.
        """
        from ftcli.errors import UsageError

        for split in job.splits:
            data = store.split(split)
            if (data.flags is not None or data.numbers is not None) and not job.tokens_only:
                labels_are = "several labels per row" if data.numbers is None else "one number per row to predict"
                raise UsageError(
                    f"{store.path} has {labels_are}, which the mds exporter does not write", "Use --format jsonl, or --tokens-only."
                )
            labels = not job.tokens_only and (data.targeted or data.labels is not None)
            columns = {"input_ids" if labels else "tokens": LIST}
            if labels:
                columns["labels"] = LIST if data.targeted else NUMBER
            if data.packed:
                columns["seq_lengths"] = LIST
            if data.typed:
                columns["token_type_ids"] = LIST
            (output / split).mkdir()
            shards = _Shards(output / split, dict(sorted(columns.items())))
            for sample in _samples(store, split, job, list(shards.columns)):
                if shards.add(sample):
                    yield shards.paths[-1]
            yield from shards.close()


class _Shards:
    """Gathers samples and writes a shard when it is full, as large as `MDSWriter` would make it."""

    def __init__(self, folder: Path, columns: dict[str, str]) -> None:
        self.folder, self.columns = folder, columns
        self.paths: list[Path] = []
        self._config: dict[str, Any] = {
            "version": 2,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": MOST_BYTES,
            "column_names": list(columns),
            "column_encodings": list(columns.values()),
            "column_sizes": [SIZES[kind] for kind in columns.values()],
        }
        self._head = json.dumps(self._config, sort_keys=True).encode()
        self._shards: list[dict[str, Any]] = []
        self._samples: list[bytes] = []
        self._size = self._empty = 8 + len(self._head)

    def add(self, sample: bytes) -> bool:
        """Whether a shard was written before the sample was taken."""
        full = self._size + len(sample) + 4 > MOST_BYTES and bool(self._samples)
        if full:
            self._write()
        self._samples.append(sample)
        self._size += len(sample) + 4
        return full

    def _write(self) -> None:
        path = self.folder / f"shard.{len(self._shards):05d}.mds"
        begin = 4 + 4 * (len(self._samples) + 1) + len(self._head)
        places = [begin]
        for sample in self._samples:
            places.append(places[-1] + len(sample))
        with path.open("wb") as file:
            file.write(struct.pack(f"<{len(places) + 1}I", len(self._samples), *places) + self._head)
            file.writelines(self._samples)
        raw = {"basename": path.name, "bytes": places[-1], "hashes": {}}
        self._shards.append({"samples": len(self._samples), "raw_data": raw, "zip_data": None, **self._config})
        self.paths.append(path)
        self._samples, self._size = [], self._empty

    def close(self) -> Iterator[Path]:
        """Write what is left, and the index."""
        if self._samples:
            self._write()
            yield self.paths[-1]
        index = self.folder / "index.json"
        index.write_text(json.dumps({"version": 2, "shards": self._shards}, sort_keys=True), encoding="utf-8")
        yield index


def _samples(store: Store, split: str, job: ExportJob, columns: list[str]) -> Iterator[bytes]:
    from ftcli.core.convert.tokenfile import batches
    from ftcli.errors import StoreError

    for rows in batches(store, split, job):
        for number in range(len(rows)):
            cells = [_cell(rows, number, name) for name in columns]
            if not all(cells):
                raise StoreError(
                    f"row {int(rows.index[number])} of {split} has no tokens, and mds cannot store an empty list",
                    "Prepare the data again with --min-length 1.",
                )
            sizes = [len(cell) for cell, name in zip(cells, columns, strict=True) if name != "labels" or rows.labels is None]
            yield struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(cells)


def _cell(rows: Rows, number: int, name: str) -> bytes:
    if name == "labels" and rows.labels is not None:
        return struct.pack("<q", int(rows.labels[number]))
    lists = {"labels": rows.targets, "seq_lengths": rows.seq_lengths, "token_type_ids": rows.types}.get(name, rows.input_ids)
    assert lists is not None
    return _list(lists.row(number))


def _list(values: np.ndarray[Any, np.dtype[np.int32]]) -> bytes:
    """One dimension, its length, the values; nothing for an empty list."""
    size = len(values)
    width = next(place for place, limit in enumerate((1 << 8, 1 << 16, 1 << 32)) if size < limit)
    return struct.pack(f"<B{'BHI'[width]}", 4 | width, size) + values.astype("<i4").tobytes() if size else b""
