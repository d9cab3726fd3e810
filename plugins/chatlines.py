"""JSON lines that hold conversations, row by row: their columns differ, which Arrow's parser does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftcli.contracts import Columns, Reject

from .jsonl import check_row, line_fault, parse_row, split_lines

if TYPE_CHECKING:
    import pyarrow as pa


def documents(path: str, offset: int, block: bytes, columns: Columns, reject: Reject) -> list[pa.Array]:
    """The conversations of a block.

    pydantic's parser takes a third of the time of Python's, which has the last word: on what the other refuses, and on keys that may stand twice.
    """
    from pydantic_core import from_json, to_json

    from ftcli.core.arrays import utf8
    from ftcli.core.reading.conversation import as_document, conversation_in

    keys = [(name, f'"{name}"'.encode()) for name in columns.chat or ()]
    found: list[bytes] = []
    for start, line in split_lines(offset, block):
        try:
            row = from_json(line, allow_inf_nan=False)
            escaped = b"\\u" in line or b"\\/" in line  # a key may be written in several ways
            if escaped or type(row) is not dict or [name for name, key in keys if name in row and line.count(key) != 1]:
                row = check_row(parse_row(line.decode()), columns)
            found.append(to_json(conversation_in(row, columns)))
        except (ValueError, RecursionError):
            bad = line_fault(path, (start, line), columns, lambda row: found.append(as_document(row, columns).encode()))
            if bad is not None:
                reject(bad)
    return [utf8(found)] if found else []
