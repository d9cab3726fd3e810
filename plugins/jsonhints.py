"""What to do about a .jsonl that is something else as a whole: an array, a table by columns, rows under keys, objects over several lines."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

Line = tuple[int, bytes]
"""Offset in the file, and the line without its end."""
KEYED = "The rows are the values of one object. Convert it to an array: jq '[.[]]' OLD > NEW.json"
SPLIT = (
    "The column names are stored apart from the rows, as pandas does with orient='split'. Write one object per row: "
    "pandas.read_json(OLD, orient='split').to_json(NEW, orient='records', lines=True)."
)


def array_hint(path: str, line: Line) -> str:
    """What to do where the file begins with an array: it is one as a whole, or each of its rows is one."""
    if line[0] or line[1].lstrip()[:1] != b"[":
        return ""
    with suppress(ValueError, RecursionError):
        flat = not any(isinstance(value, (dict, list)) for value in json.loads(line[1]))
        if flat and Path(path).stat().st_size > len(line[1]) + len(b"\r\n"):
            return "Each row is an array. Combine them: jq -s . OLD > NEW.json, then give columns by number, counted from 0: --text-column 0 --label-column 1."
    return "The file is one JSON array, not JSON lines: rename it to .json."


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
            return "The file stores a table by columns. Write one object per row; in pandas: df.to_json(NEW, orient='records', lines=True)."
    return ""


def line_hint(line: Line) -> str:
    """What to do about a line that is no JSON."""
    from ftcli.core.files.streams import CR_ALONE, in_crs

    if in_crs(line[1]):
        return CR_ALONE
    if line[0] == 0 and line[1].strip() == b"{":
        return "Each object must be on one line: jq -c . OLD > NEW"
    text = line[1].strip()
    if text.startswith(b"{") and text.endswith(b"},"):
        return "A comma follows each object. Remove them: sed 's/,[[:space:]]*$//' OLD > NEW"
    if text.startswith((b"{'", b"{ '")):
        return "The line is a Python dict, not JSON: read it with ast.literal_eval and write it with json.dumps."
    if text.startswith((b"#", b"//")):
        return "JSON lines cannot contain comments: remove the line."
    return "Each line must hold one complete JSON object. If this is the last line, the file was not completely written or copied."


def objects_hint(rest: str, objects: int) -> str:
    """What to do about a document of objects alone."""
    if rest.lstrip()[:1] == "{":
        return "The file holds several objects, one after another. Write one per line: jq -c . OLD > NEW.jsonl"
    if objects > 1:
        return KEYED
    return "Write the rows as a JSON array of objects, or as JSON lines."
