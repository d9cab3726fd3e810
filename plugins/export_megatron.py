"""Megatron-LM's indexed dataset: SPLIT.bin holds the tokens, SPLIT.idx says where every text begins.

The index, little-endian: `MMIDIDX\\0\\0`, version 1 (uint64), code of the token type (uint8), number of sequences and of document
boundaries (uint64), then tokens of every sequence (int32), byte where it begins (int64), number of the first sequence of every document
and the end (int64). A text is one sequence and one document. Source: megatron-core 0.16, megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ftcli.contracts_export import ExportJob

if TYPE_CHECKING:
    from ftcli.core.storage.store import SplitData, Store

MAGIC, VERSION = b"MMIDIDX\x00\x00", 1
CODES = {"int32": 4, "uint16": 8}
MOST_SHORT = 65_500
"""Vocabularies under this are stored as uint16, as Megatron-LM does."""
AT_A_TIME = 1 << 16


class Megatron:
    """What `--data-path OUTPUT/train` of Megatron-LM takes."""

    name = "megatron"

    def export(self, store: Store, output: Path, job: ExportJob) -> Iterable[Path]:
        """See `ftcli.contracts_export.Exporter`. The index is made by further passes over the lengths alone, so that it never lies in memory."""
        from ftcli.core.convert.tokenfile import batches, narrowed, refuse_labels, texts, vocabulary

        refuse_labels(store, job, self.name)
        size = vocabulary(store)
        kind = "uint16" if size is not None and size < MOST_SHORT else "int32"
        for split in job.splits:
            tokens, index, count = output / f"{split}.bin", output / f"{split}.idx", 0
            with tokens.open("wb") as file:
                for rows in batches(store, split, job):
                    narrowed(rows, kind, split).tofile(file)
                    count += len(texts(rows))
            yield tokens
            _write_index(index, store.split(split), count, kind)
            yield index


def _write_index(path: Path, split: SplitData, count: int, kind: str) -> None:
    import numpy as np

    from ftcli.core.convert.tokenfile import texts

    width = np.dtype(kind).itemsize
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<QBQQ", VERSION, CODES[kind], count, count + 1))
        for rows in split.batches():
            file.write(texts(rows).astype("<i4").tobytes())
        begin = 0
        for rows in split.batches():
            ends = begin + np.cumsum(texts(rows) * width)
            file.write((ends - texts(rows) * width).astype("<i8").tobytes())
            begin = int(ends[-1]) if len(ends) else begin
        for start in range(0, count + 1, AT_A_TIME):
            file.write(np.arange(start, min(start + AT_A_TIME, count + 1), dtype="<i8").tobytes())
