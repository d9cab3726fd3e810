"""Plain text: a row is a line, a paragraph or the whole file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ftcli.contracts import Columns, Place, Reject
from ftcli.errors import DataError
from ftcli.records import BadRow, Piece
from ftcli.settings import Settings

from .fileformat import FileFormat, byte_range

if TYPE_CHECKING:
    import pyarrow as pa

    from ftcli.core.reading.columns import Kind

END = re.compile(rb"\n")
SPACE = rb"(?:[\t\v\f\r\x1c-\x20]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2(?:\x80[\x80-\x8a\xa8\xa9\xaf]|\x81\x9f)|\xe3\x80\x80)"
"""What `str.isspace` takes for white space, in UTF-8 and without the line feed."""
EMPTY = re.compile(SPACE + rb"*")
GAP = re.compile(rb"\n(?:" + SPACE + rb"*(?:\n|\Z))+")
"""Between and behind paragraphs: the end of a line, and empty lines. With a letter in front it is found ten times as fast."""
FIRST_GAP = re.compile(rb"(?:" + SPACE + rb"*(?:\n|\Z))*")
LAST_GAP = re.compile(rb".*\n(?=" + SPACE + rb"*\n)", re.DOTALL)


class Text(FileFormat):
    """.txt and .md, plain or compressed, by `dataset.sample_by`. There are no labels, and `dataset.text_column` does not matter.

    line: the line without its end; empty lines are skipped. paragraph: what stands between empty lines. document: the file as it is;
    an empty file has no row. CRLF is read as a line end, a byte order mark is dropped; a line of white space is empty.
    """

    name = "text"
    suffixes: tuple[str, ...] = (".txt", ".md")

    def plan(self, path: str, target_bytes: int, settings: Settings) -> list[Piece]:
        from ftcli.core.files.streams import codec_of, cut_evenly, head

        if not head(path, 1 << 12):
            return []
        size = Path(path).stat().st_size
        if codec_of(path) or settings.dataset.sample_by != "line":
            return [Piece(path, self.name, 0, size, "file", size)]
        return [Piece(path, self.name, start, stop, "bytes", stop - start) for start, stop in cut_evenly(size, target_bytes)]

    def label_kind(self, path: str, column: str, settings: Settings) -> Kind:
        from ftcli.core.reading.folders import labels_in_folders

        way = labels_in_folders(path) or "Write labelled data as .jsonl, .csv, .tsv or .parquet, or omit --label-column."
        raise DataError(f"{path}: plain text has no label column {column!r}", way)

    def read(self, piece: Piece, columns: Columns, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
        from ftcli.core.reading.columns import batch_of

        if columns.label is not None:
            self.label_kind(piece.path, columns.label, settings)
        by = settings.dataset.sample_by
        for offset, block in _blocks(piece, settings, reject):
            try:
                rows = _rows(block, by)
            except ValueError:
                rows = _sifted(piece.path, offset, block, by, reject)
            if len(rows):
                yield batch_of(columns, [rows])

    def places(self, piece: Piece, settings: Settings) -> Iterator[Place]:
        from .jsonl import drained

        long: list[BadRow] = []
        for offset, block in _blocks(piece, settings, long.append):
            yield from (Place(start=bad.start) for bad in drained(long))
            yield from (Place(start=start, raw=raw) for start, raw in _split(offset, block, settings.dataset.sample_by))
        yield from (Place(start=bad.start) for bad in drained(long))


def _blocks(piece: Piece, settings: Settings, reject: Reject) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes that hold whole rows).

    Raises:
        DataError: a paragraph is too long, or a line in one: leaving out a line would change the text, so this is no bad row.
    """
    from ftcli.core.files.streams import BEGINNING, BOM, content, line_blocks
    from ftcli.core.reading.reject import strict

    path, longest = piece.path, settings.dataset.max_line_bytes
    if settings.dataset.sample_by == "document":
        offset, text = content(path, longest + 1 + len(BOM))
        if len(text) > longest:
            reject(
                BadRow(path, "line-too-long", f"a text of more than max_line_bytes {longest:,} bytes", start=offset, raw=text[:BEGINNING])
            )
        else:
            yield offset, text
        return
    if settings.dataset.sample_by == "line":
        start, stop = byte_range(piece)
        yield from line_blocks(path, start, stop, longest=longest, reject=reject)
        return
    begin, waiting = 0, b""
    for offset, block in line_blocks(path, longest=longest, reject=strict):
        begin, waiting = (begin if waiting else offset), waiting + block
        if gap := LAST_GAP.match(waiting):
            yield begin, gap.group()
            begin, waiting = begin + gap.end(), waiting[gap.end() :]
        if len(waiting) > longest:
            strict(BadRow(path, "line-too-long", f"a paragraph of more than max_line_bytes {longest:,} bytes", start=begin))
    if waiting:
        yield begin, waiting


def _rows(block: bytes, by: str) -> pa.Array:
    """The rows of a block; raises ValueError when it is not UTF-8."""
    import pyarrow.compute as pc

    from ftcli.core.arrays import utf8
    from ftcli.core.reading.soundness import are_utf8

    rows = [row for _, row in _split(0, block, by)] if by == "paragraph" else [block]
    text = utf8([row.replace(b"\r\n", b"\n") for row in rows] if _has_returns(block) else rows)
    if not are_utf8(text):
        text.validate(full=True)
    if by == "line":
        text = pc.split_pattern(text, "\n").values
        text = text.filter(pc.invert(pc.utf8_is_space(text)))
    return text.filter(pc.greater(pc.binary_length(text), 0))


def _has_returns(block: bytes) -> bool:
    """Whether a line ends with CR LF: `in` looks for two bytes at a tenth of the pace of one."""
    place = block.find(b"\r")
    while place >= 0 and block[place + 1 : place + 2] != b"\n":
        place = block.find(b"\r", place + 1)
    return place >= 0


def _split(offset: int, block: bytes, by: str) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes as they stand in the file) of every row of a block."""
    if by == "document":
        yield offset, block
        return
    place = FIRST_GAP.match(block).end() if by == "paragraph" else 0  # type: ignore[union-attr]  # anything begins with none
    for match in (*(GAP if by == "paragraph" else END).finditer(block, place), None):
        start, end = place, match.start() if match else len(block)
        if match and block[start:end].endswith(b"\r"):
            end -= 1
        if not EMPTY.fullmatch(block, start, end):
            yield offset + start, block[start:end]
        place = match.end() if match else end


def _sifted(path: str, offset: int, block: bytes, by: str, reject: Reject) -> pa.Array:
    """The good rows of a block that is not UTF-8."""
    import pyarrow as pa

    from ftcli.core.files.encodings import utf8_hint
    from ftcli.core.files.streams import bad_utf8

    good = []
    for start, row in _split(offset, block, by):
        bad = bad_utf8(row)
        if bad is None:
            good.append(row.replace(b"\r\n", b"\n"))
        else:
            before = row.count(b"\n", 0, bad[0])
            reason = bad[1] + (f", in line {before + 1} of it" if before else "")
            reject(BadRow(path, "not-utf8", reason, start=start, size=len(row), raw=row, hint=utf8_hint(row)))
    return pa.array(good, pa.large_binary()).cast(pa.large_string())
