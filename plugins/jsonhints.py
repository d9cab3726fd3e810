"""What to do about a .jsonl that is something else as a whole: an array, a table by columns, rows under keys, objects over several lines."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

Line = tuple[int, bytes]
"""Offset in the file, and the line without its end."""
KEYED = "The rows stand under keys: jq '[.[]]' OLD > NEW.json makes an array of them, which is read."
SPLIT = (
    "The table's column names stand apart from its rows, as pandas writes it with orient='split': write it by rows, "
    "pandas.read_json(OLD, orient='split').to_json(NEW, orient='records', lines=True)."
)


def array_hint(path: str, line: Line) -> str:
    """What to do where the file begins with an array: it is one as a whole, or each of its rows is one."""
    if line[0] or line[1].lstrip()[:1] != b"[":
        return ""
    with suppress(ValueError, RecursionError):
        flat = not any(isinstance(value, (dict, list)) for value in json.loads(line[1]))
        if flat and Path(path).stat().st_size > len(line[1]) + len(b"\r\n"):
            return (
                "The rows are arrays: jq -s . OLD > NEW.json makes one of them; its columns are counted, --text-column 0 --label-column 1."
            )
    return "The file is one JSON array and no JSON lines: call it .json, and it is read."


def keyed_hint(line: Line) -> str:
    """What to do where the whole file is one object of rows."""
    with suppress(ValueError, RecursionError, AttributeError):
        table = {} if line[0] else json.loads(line[1])
        if isinstance(table.get("columns"), list) and isinstance(table.get("data"), list):
            return SPLIT
        rows = list(table.values())
        if len(rows) > 1 and all(isinstance(row, dict) for row in rows):
            return KEYED
    return ""


def table_hint(line: Line) -> str:
    """What to do where the whole file is one object of columns, as pandas writes it by default."""
    with suppress(ValueError, RecursionError, AttributeError):
        columns = [] if line[0] else list(json.loads(line[1]).values())
        if len(columns) > 1 and all(isinstance(column, (dict, list)) for column in columns) and len(set(map(len, columns))) == 1:
            return "The file holds a table by columns: write it by rows, in pandas df.to_json(NEW, orient='records', lines=True)."
    return ""


def line_hint(line: Line) -> str:
    """What to do about a line that is no JSON."""
    from ftcli.core.files.streams import CR_ALONE, in_crs

    if in_crs(line[1]):
        return CR_ALONE
    if line[0] == 0 and line[1].strip() == b"{":
        return "An object must stand on one line; jq -c . OLD > NEW writes such lines."
    text = line[1].strip()
    if text.startswith(b"{") and text.endswith(b"},"):
        return "A comma stands behind each object; sed 's/,[[:space:]]*$//' OLD > NEW takes them off."
    if text.startswith((b"{'", b"{ '")):
        return "These are dictionaries in Python's notation: ast.literal_eval reads them, json.dumps writes JSON."
    if text.startswith((b"#", b"//")):
        return "JSON lines have no comments: leave the line out."
    return "A line must hold one whole JSON object; when it is the last line, the file was not written or copied to its end."
