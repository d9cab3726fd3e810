"""Where the array of a JSON document begins: the document itself, an object's "data", or its only array."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ftcli.errors import DataError

from .jsonhints import objects_hint
from .jsonl import DECODER

HEAD = 1 << 20
"""Bytes of a document that are looked at to find its array."""
BLANKS = " \t\r\n"
SPACE = re.compile(f"[{BLANKS}]*")
BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
NO_ARRAY = "Expected an array of objects, or an object that holds one. A file that breaks off was not completely written or copied: make or copy it again."


@dataclass(frozen=True, slots=True)
class Opening:
    """Where the array of a document begins."""

    start: int
    """Of what stands behind its bracket, in the decompressed content."""
    closing: str
    """What must close the document after it."""
    first: str
    """The first character of its first element."""
    split: bool
    """Columns are named before it, as pandas does."""


def opening_of(path: str) -> Opening | None:
    """Where the first megabyte tells it: the document is an array, or an object whose "data" is one."""
    from ftcli.core.files.streams import content

    offset, data = content(path, HEAD)
    text = data.decode("utf-8", "surrogateescape")
    with suppress(ValueError, RecursionError, NoArrayError):
        bracket, closing, sure = array_of(text, skip_blanks(text, 0))
        opening = begun(text, offset, bracket, closing)
        return opening if sure and opening.first else None
    return None


def begun(text: str, offset: int, bracket: int, closing: str) -> Opening:
    first = skip_blanks(text, bracket + 1)
    start = offset + len(text[: bracket + 1].encode("utf-8", "surrogateescape"))
    return Opening(start, closing, text[first : first + 1], '"columns"' in text[:bracket])


@contextmanager
def named(path: str, text: str, start: int) -> Iterator[None]:
    """Turn what is wrong with a text, which begins at byte `start` of the content, into a DataError with its place."""
    from ftcli.core.files.streams import column_of, line_of

    try:
        yield
    except json.JSONDecodeError as error:
        byte = start + len(text[: error.pos].encode("utf-8", "surrogateescape"))
        reason = f"not JSON: {error.msg.removesuffix(' at')} at column {column_of(path, byte):,}"
        raise DataError(f"{path}:{line_of(path, byte)} (byte {byte:,}): {reason}", NO_ARRAY) from None
    except NoArrayError as error:
        raise DataError(f"{path}: {error}", error.hint) from None
    except RecursionError:
        raise DataError(f"{path}: nested too deeply", "Reduce the nesting, or write the rows as JSON lines.") from None
    except ValueError as error:
        raise DataError(
            f"{path}: {str(error).partition(';')[0]}", "No data row holds a number this long: check that this is the right file."
        ) from None


def end_of(text: str, position: int) -> int | None:
    """Where the array or object at `position` ends, by its brackets."""
    depth = 0
    if text[position : position + 1] not in {"[", "{"}:
        return None
    for match in BRACKET.finditer(text, position):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.end()
    return None


class NoArrayError(Exception):
    """The document is sound, and which of its arrays holds the rows is not known."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def array_of(text: str, position: int) -> tuple[int, str, bool]:
    """(where the array opens, what must close the document after it, whether nothing that follows can change that): of an object's arrays "data", or
    the only one. Raises NoArrayError."""
    if text[position : position + 1] != "{":
        if text[position : position + 1] != "[":
            raise json.JSONDecodeError("Expecting an array of objects", text, position)
        return position, "", True
    found: dict[str, int] = {}
    names: list[str] = []
    passed: list[int] = []
    objects = 0
    while text[position : position + 1] in {"{", ","}:
        position = skip_blanks(text, position + 1)
        if text[position : position + 1] == "}":
            break
        key, position = DECODER.raw_decode(text, position)
        position = skip_blanks(text, position)
        if text[position : position + 1] != ":":
            raise json.JSONDecodeError("Expecting ':'", text, position)
        position = skip_blanks(text, position + 1)
        if text[position : position + 1] != "[":
            objects += text[position : position + 1] == "{"
            _, position = DECODER.raw_decode(text, position)
        else:
            first, stop = skip_blanks(text, position + 1), None if key == "data" else end_of(text, position)
            if stop is None:  # of one that breaks off, whoever reads on says where
                return _behind(text, passed, position), "}", key == "data"
            names.append(key)
            passed.append(position)
            if text[first : first + 1] == "{":
                found[key] = position
            position = stop
        position = skip_blanks(text, position)
    if text[position : position + 1] != "}":
        raise json.JSONDecodeError("Expecting ',' or '}'", text, position)
    if len(found) == 1:
        return _behind(text, passed, next(iter(found.values()))), "}", True
    if not names:
        raise NoArrayError("an object that holds no array of rows", objects_hint(text[position + 1 :], objects))
    what = "several arrays of objects" if found else "no array of objects"
    shown = ", ".join(map(repr, names[:10])) + (" …" if len(names) > 10 else "")
    raise NoArrayError(
        f"{what} among {shown}, and none is named data",
        f"Write the array of rows to its own file, for example: jq .{names[0]} OLD > {names[0]}.json",
    )


def _behind(text: str, passed: list[int], chosen: int) -> int:
    """The chosen array; raises ValueError where one that was passed over before it is no JSON, which its brackets do not tell. Their elements are parsed one
    at a time: there may be many."""
    for bracket in passed[: passed.index(chosen)] if chosen in passed else passed:
        position = skip_blanks(text, bracket + 1)
        more = text[position : position + 1] != "]"
        while more:
            _, position = DECODER.raw_decode(text, position)
            position = skip_blanks(text, position)
            more = text[position : position + 1] == ","
            if more:
                position = skip_blanks(text, position + 1)
            elif text[position : position + 1] != "]":
                raise json.JSONDecodeError("Expecting ',' or ']'", text, position)
    return chosen


def skip_blanks(text: str, position: int) -> int:
    found = SPACE.match(text, position)
    assert found is not None
    return found.end()
