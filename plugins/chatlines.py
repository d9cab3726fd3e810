"""JSON lines that hold conversations, row by row: their columns differ, which Arrow's parser does not know."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING

from ftcli.contracts import Columns, Reject

from .jsonl import check_row, line_fault, parse_row, split_lines

if TYPE_CHECKING:
    import pyarrow as pa


def documents(path: str, offset: int, block: bytes, columns: Columns, reject: Reject) -> list[pa.Array]:
    """The conversations of a block.

    pydantic's parser takes a third of the time of Python's, which has the last word: on what the other refuses, lone surrogates for instance, and on
    keys that may stand twice.
    """
    from pydantic_core import from_json, to_json

    from ftcli.core.arrays import utf8
    from ftcli.core.reading.conversation import as_document, conversation_in

    keys = [(name, f'"{name}"'.encode()) for name in columns.chat or ()]
    found: list[bytes] = []
    for start, line in split_lines(offset, block):
        try:
            row = from_json(line, allow_inf_nan=False)
            escaped = b"\\u" in line or b"\\/" in line
            if type(row) is not dict or [name for name, key in keys if name in row and _count(line, name, key, escaped=escaped) != 1]:
                row = check_row(parse_row(line.decode()), columns)
            found.append(to_json(conversation_in(row, columns)))
        except (ValueError, RecursionError):
            bad = line_fault(path, (start, line), columns, lambda row: found.append(as_document(row, columns).encode()))
            if bad is not None:
                reject(bad)
    return [utf8(found)] if found else []


def _count(line: bytes, name: str, key: bytes, *, escaped: bool) -> int:
    """How often a key's characters stand in quotes. `escaped`: some may be written otherwise, as `json.dumps` writes those outside ASCII."""
    return len(_written(name).findall(line)) if escaped else line.count(key)


@cache
def _written(name: str) -> re.Pattern[bytes]:
    """A key in whatever way JSON has for each of its characters."""
    return re.compile(b'"' + b"".join(_ways(character) for character in name) + b'"')


def _ways(character: str) -> bytes:
    """Itself, with a backslash, and by the numbers of its UTF-16 units."""
    units = character.encode("utf-16-be", "surrogatepass").hex()
    numbers = "".join(rf"\\u(?i:{units[start : start + 4]})" for start in range(0, len(units), 4))
    ways = {character, json.dumps(character, ensure_ascii=False)[1:-1], "\\/" if character == "/" else character}
    return f"(?:{'|'.join(map(re.escape, sorted(ways)))}|{numbers})".encode()
