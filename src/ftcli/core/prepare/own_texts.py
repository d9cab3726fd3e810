"""A sample of the texts that a run learns from, as they stand in its sources: what a tokenizer does to a text cannot be told from ids."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ftcli.context import Context
from ftcli.contracts import Columns
from ftcli.core.arrays import numbers
from ftcli.core.files.manifest import is_prepared, read_manifest
from ftcli.core.files.streams import codec_of, head
from ftcli.core.reading.conversation import MODE, as_prepared, chat_columns, said
from ftcli.core.reading.find import Found
from ftcli.core.reading.of_plugins import batches, owner_of, planned_pieces
from ftcli.core.reading.read import find_sources
from ftcli.core.reading.reject import unheard
from ftcli.core.reading.shards import UNCUT
from ftcli.errors import DataError, FtcliError
from ftcli.records import Piece
from ftcli.settings import Settings, update

MOST_ROWS = 1000
MOST_CHARACTERS = 100_000
"""Of all rows together: a fast tokenizer encodes and decodes so much in a quarter of a second of one core."""
LONGEST = 2000
"""Characters of a row: a few long documents must not stand for all."""
PLACES = 8
"""Places in the sources that are read: a file sorted by label would show one label at its beginning."""
PIECE_BYTES = 1 << 20
MOST_READ = 16 << 20
"""Bytes of a piece that are looked at: a row group may have gigabytes."""
MOST_WHOLE = 64 << 20
"""Bytes of a file of a kind that is read as a whole before its first row is known."""
MOST_CUT = 1 << 30
"""Bytes of a JSON array that is cut: all of it is read for that, 4 s of CPU. Of a larger one the beginning is looked at."""
ELEMENTS = re.compile(rb"\s*(\{|\[\s*[\[{])")
"""How JSON begins whose rows are objects or arrays; an array of texts is held as a whole."""
HEAD = 1 << 12
IN_PIECES = frozenset({"jsonl", "text", "parquet", "arrow"})
READ_AS = ("dataset.text_column", "dataset.sample_by", "dataset.max_line_bytes")
"""What a manifest says of how the texts were read."""


@dataclass(frozen=True, slots=True)
class OwnTexts:
    """At most `MOST_ROWS` texts, each cut after `LONGEST` characters. `cut[i]`: whether text i goes on."""

    texts: list[str]
    cut: list[bool]
    files: tuple[str, ...]
    """Where they were read."""


def own_texts(context: Context) -> OwnTexts | None:
    """Random texts of the train split (of all, when there is none) of `dataset.sources`: raw files, or prepared data, whose manifest says what they
    were made of. None when the sources of prepared data are not there any more, or changed. The seed is `train.seed`.

    Raises:
        FtcliError: the sources cannot be found or read.
    """
    sources = context.settings.dataset.sources or []
    prepared = len(sources) == 1 and is_prepared(Path(sources[0]))
    settings, found = _of_prepared(context.settings, Path(sources[0])) if prepared else _of_raw(context)
    found = [file for file in found if file.split in {None, "train"}] or found
    if not found:
        return None
    draw = np.random.default_rng(context.settings.train.seed)
    texts: list[str] = []
    files: list[str] = []
    pieces = list(drawn_pieces(context, settings, found, draw))
    for number, piece in enumerate(pieces):
        texts += _rows(context, settings, piece, -(-(MOST_ROWS - len(texts)) // (len(pieces) - number)), draw)
        files += [piece.path] if piece.path not in files else []
    texts = [texts[row] for row in draw.permutation(len(texts)).tolist()]
    room = np.cumsum([min(len(text), LONGEST) for text in texts])
    texts = texts[: max(1, int(np.searchsorted(room, MOST_CHARACTERS, side="right")))]
    return OwnTexts([text[:LONGEST] for text in texts], [len(text) > LONGEST for text in texts], tuple(files))


def _of_prepared(settings: Settings, folder: Path) -> tuple[Settings, list[Found]]:
    """Settings to read with, and the files that still have the size which the manifest says."""
    manifest = read_manifest(folder) or {}
    inputs: Mapping[str, Any] = manifest.get("inputs") or {}
    read_as = {key: inputs[key] for key in READ_AS if inputs.get(key) is not None}
    found = [
        Found(entry["path"], entry["format"], "", entry.get("split"))
        for entry in manifest.get("sources") or ()
        if isinstance(entry, Mapping) and _size(str(entry.get("path"))) == entry.get("bytes")
    ]
    read_as |= {"dataset.label_column": None, "dataset.label_columns": None, "dataset.on_bad": "quarantine"}
    return as_prepared(update(settings, read_as), inputs), found


def _of_raw(context: Context) -> tuple[Settings, list[Found]]:
    settings = update(context.settings, {"dataset.label_column": None, "dataset.label_columns": None, "dataset.on_bad": "quarantine"})
    return settings, find_sources(settings, context.plugins.registry("source"))[1]


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - a path may be too long for Path
    except (OSError, ValueError):
        return None


def drawn_pieces(context: Context, settings: Settings, found: list[Found], draw: np.random.Generator) -> Iterator[Piece]:
    """Pieces of at most `PLACES` files, larger files first in the draw, `PLACES` in all."""
    sizes = np.array([max(1, _size(file.path) or 0) for file in found], dtype=np.float64)
    chosen = draw.choice(len(found), size=min(PLACES, len(found)), replace=False, p=sizes / sizes.sum())
    failed: FtcliError | None = None
    given = 0
    for place, number in enumerate(sorted(chosen.tolist())):
        file = found[number]
        if not _in_pieces(file) and sizes[number] > MOST_WHOLE:
            failed = DataError(f"{file.path} has {sizes[number] / 1e6:,.0f} MB and is read as a whole", "Convert it to .jsonl or .parquet.")
            continue
        target = UNCUT if file.format == "json" and sizes[number] > MOST_CUT else PIECE_BYTES
        try:
            formats = context.plugins.registry("source")
            pieces = planned_pieces(formats.get(file.format)(), file.path, target, settings, owner_of(formats, file.format))
        except FtcliError as error:
            failed = error
            continue
        wanted = -(-(PLACES - given) // (len(chosen) - place))
        for piece in sorted(draw.choice(len(pieces), size=min(wanted, len(pieces)), replace=False).tolist()):
            given += 1
            yield pieces[piece]
    if not given and failed is not None:
        raise failed


def _in_pieces(file: Found) -> bool:
    """A table in plain text is cut as well; of a compressed one all is read, to tell whether quotes quote. A JSON array is read element by element."""
    if file.format == "json":
        return ELEMENTS.match(head(file.path, HEAD)) is not None
    return file.format in IN_PIECES or (file.format == "csv" and codec_of(file.path) is None)


def drawn_rows(batches: Iterable[pa.RecordBatch], most: int, draw: np.random.Generator) -> pa.RecordBatch | None:
    """Up to `most` random rows of all batches, in random order; so many and a batch are held at a time. None where there are none."""
    keys, kept = np.zeros(0), list[pa.RecordBatch]()
    for batch in batches:
        keys = np.concatenate([keys, draw.random(batch.num_rows)])
        chosen = np.argsort(keys)[:most]
        keys, kept = keys[chosen], [pa.concat_batches([*kept, batch]).take(numbers(chosen))]
    return kept[0] if kept else None


def _rows(context: Context, settings: Settings, piece: Piece, wanted: int, draw: np.random.Generator) -> list[str]:
    """Random texts of a piece, of its first `MOST_READ` bytes where it has more."""
    columns = chat_columns(settings) if settings.train.mode == MODE else Columns(settings.dataset.text_column)
    rows = drawn_rows(_first(batches(context.plugins.registry("source"), piece, columns, settings, unheard)), 4 * wanted, draw)
    texts = [] if rows is None else [text for text in rows.column("text").to_pylist() if text]
    if columns.chat is not None:
        texts = [text for document in texts for text in said(document)]
    return [texts[row] for row in draw.choice(len(texts), size=min(wanted, len(texts)), replace=False).tolist()]


def _first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    read = 0
    for batch in batches:
        yield batch
        read += batch.nbytes
        if read > MOST_READ:
            return
