"""How many bytes an output takes: estimated from the first rows before the work, measured on finished shards while it goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ftcli.context import Context
from ftcli.core.arrays import numbers
from ftcli.core.engines.guard import guarded
from ftcli.core.files.compressed import decompressed
from ftcli.core.files.durable import free_bytes, size_of
from ftcli.core.files.streams import codec_of, data_errors
from ftcli.core.prepare.beginning import first_batches
from ftcli.core.prepare.recipe import Recipe
from ftcli.errors import PublishError

HEAD_BYTES = 1 << 20
SAMPLE_ROWS = 16
LONGEST = 2_000
"""Characters of a text that are encoded for the estimate."""
ID_BYTES, ROW_BYTES = 4, 16
"""A row has its length and an offset, and may have a label."""
TOLERANCE = 0.95
"""Share of what is still needed that must be free: shards differ by some percent."""
CHECK_SECONDS = 2.0


def estimate(context: Context, recipe: Recipe, free: int = 0) -> int:
    """Bytes that the output will take, from the first rows: their tokens a byte and what the length policy keeps of them.

    A compressed file is taken to expand as its first MB does; of parquet it is not known, and the output may be larger.

    Args:
        free: bytes that are there. Where they hold a token for every byte of text, that is the answer: to load a tokenizer of 150,000 tokens,
            which nothing else in this process needs, takes 1.4 s.

    Raises:
        DataError: the first rows cannot be used.
        EngineError: the tokenizer fails on them.
    """
    found = next(first_batches(context, recipe.plan), None)
    if found is None:
        return 0
    piece, batch = found
    texts = batch.column("text")
    if recipe.plan.columns.pair is not None:
        texts = pc.binary_join_element_wise(texts, batch.column("pair"), pa.scalar("", pa.large_string()))
    expansion, lines = _head(piece.path) if piece.unit in {"bytes", "file"} else (1.0, None)
    share = 1.0  # of the source's bytes that are text: the rest is other columns, quotes and escapes
    if lines and len(texts):
        rows = min(len(lines), len(texts))
        share = min(1.0, _bytes(texts.slice(0, rows)) / max(1, sum(lines[:rows])))
    sample = [text for text in texts.take(numbers(np.arange(0, len(texts), max(1, len(texts) // SAMPLE_ROWS)))).to_pylist() if text]
    if not sample:
        return 0
    policy = recipe.policy
    added = policy.max_length - policy.room
    size = sum(len(text.encode()) for text in sample)
    total = recipe.plan.bytes * expansion * share
    most = total + total / size * len(sample) * (added + ROW_BYTES / ID_BYTES)
    if ID_BYTES * most <= free:
        return int(ID_BYTES * most)
    cut = [text[:LONGEST] for text in sample]
    with guarded("the tokenizer failed on one of the first rows"):  # one at a time: a regex that gives up takes 0.2 s for each
        encoded = [recipe.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in cut]
    lengths = [len(ids) * len(text) / len(part) for ids, text, part in zip(encoded, sample, cut, strict=True)]
    if policy.truncation in {"keep_start", "keep_end", "drop"}:
        lengths = [min(length, policy.max_length) for length in lengths]
    written = sum(ID_BYTES * (length + added) + ROW_BYTES for length in lengths)
    return int(total * written / size)


def _bytes(texts: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(texts)).as_py() or 0)


def _head(path: str) -> tuple[float, list[int]]:
    """How much larger the content is than the file, by its first MB, and the sizes of the lines in there."""
    with data_errors(path), pa.OSFile(path) as raw:
        stream = decompressed(raw, codec_of(path))  # held: it closes the file when it goes
        head = stream.read(HEAD_BYTES)
        return len(head) / max(1, raw.tell()), [len(line) + 1 for line in head.split(b"\n")[:-1]]


class Shortage:
    """Stops a run as soon as it is clear that the rest will not fit, instead of at the last shard."""

    def __init__(self, directory: Path, source_bytes: int) -> None:
        self._directory = directory
        self._left = source_bytes
        self._read = self._written = 0
        self._checked = time.monotonic()

    def finished(self, source_bytes: int, record: Mapping[str, Any]) -> None:
        """A shard of so many source bytes is there.

        Raises:
            PublishError: by what the shards so far took, the rest does not fit; names both figures.
        """
        self._left -= source_bytes
        self._read += source_bytes
        self._written += sum(file["bytes"] for file in record["files"])
        if time.monotonic() - self._checked < CHECK_SECONDS or not self._left:
            return
        self._checked = time.monotonic()
        need = int(self._written / max(1, self._read) * self._left) - size_of(self._directory / "tmp")
        free = free_bytes(self._directory)
        if free < TOLERANCE * need:
            raise PublishError(
                f"{self._directory} needs about {need:,} more bytes, judging by what was written so far; only {free:,} are free there",
                "Free space or move the output: finished shards are kept, and the same command continues.",
            )
