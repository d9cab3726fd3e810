"""What to do about a .jsonl that is something else as a whole: an array, a table by columns, objects over several lines."""

from __future__ import annotations

import json
from contextlib import suppress

Line = tuple[int, bytes]
"""Offset in the file, and the line without its end."""


def array_hint(line: Line) -> str:
    """What to do where the file begins as one JSON array."""
    return (
        "The file is one JSON array and no JSON lines: call it .json, and it is read."
        if line[0] == 0 and line[1].lstrip()[:1] == b"["
        else ""
    )


def table_hint(line: Line) -> str:
    """What to do where the whole file is one object of columns, as pandas writes it by default."""
    with suppress(ValueError, RecursionError, AttributeError):
        columns = [] if line[0] else list(json.loads(line[1]).values())
        if len(columns) > 1 and all(isinstance(column, (dict, list)) for column in columns) and len(set(map(len, columns))) == 1:
            return "The file holds a table by columns: write it by rows, in pandas df.to_json(NEW, orient='records', lines=True)."
    return ""


def line_hint(line: Line) -> str:
    """What to do about a line that is no JSON."""
    if line[0] == 0 and line[1].strip() == b"{":
        return "An object must stand on one line; jq -c . OLD > NEW writes such lines."
    return "A line must hold one whole JSON object; when it is the last line, the file was not written or copied to its end."
