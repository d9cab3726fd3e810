"""Where the array of a JSON document begins: the document itself, an object's "data", or its only array."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ftcli.errors import DataError

from .jsonhints import objects_hint
from .jsonl import DECODER

HEAD = 1 << 20
"""Bytes of a document that are looked at to find its array."""
BLANKS = " \t\r\n"
SPACE = re.compile(f"[{BLANKS}]*")
BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]')
"""Or a string; one that ends with the text nowhere holds no brackets either."""
DATA = re.compile(rf'"data"[{BLANKS}]*:[{BLANKS}]*\Z')
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
    data: bool = False
    """It is the value of "data"."""


def opening_of(path: str, start: int = 0, stop: int | None = None) -> Opening | None:
    """Where the array begins, if that is in the first megabyte: the document is an array, or an object whose "data" is one, or, of a larger object, whose
    only one it is.

    Args:
        start: of a piece that was cut; where it is not the first of an object with an only array, nothing of what is before the rows is known.
        stop: where a piece ends whose array goes on there; None: the document's end is in it.

    Raises:
        DataError: a larger object holds several arrays, or none, and is no JSON lines.
    """
    from ftcli.core.files.streams import content

    offset, data = content(path, HEAD)
    text = data.decode("utf-8", "surrogateescape")
    place = skip_blanks(text, 0)
    with suppress(ValueError, RecursionError, NoArrayError):
        bracket, closing, sure = array_of(text, place)
        if sure:
            opening = begun(text, offset, bracket, closing)
            return opening if opening.first else None
    if offset + len(data) < HEAD or text[place : place + 1] != "{":
        return None
    stamp = Path(path).stat()
    return Opening(start, "}", "{", False) if start else _only(path, stop, (stamp.st_size, stamp.st_mtime_ns))


@lru_cache(maxsize=16)
def _only(path: str, stop: int | None, _stamp: tuple[int, int]) -> Opening | None:
    """The only array of an object, from the object's outline; cached, since the planner asks several times and each is a pass over the file."""
    from ftcli.core.files.streams import content, data_errors, open_stream, skip
    from ftcli.core.reading.array_chunks import outline

    offset, data = content(path, HEAD)
    begins = offset + len(data) - len(data.lstrip(BLANKS.encode()))
    with data_errors(path), open_stream(path) as stream:
        skip(stream, begins + 1)
        found = outline(stream, begins + 1, stop, HEAD)
    if found is None:
        return None
    outlined = "{" + found[0].decode("utf-8", "surrogateescape")
    try:
        bracket = array_of(outlined, 0)[0]
        byte = found[1][len(outlined[1:bracket].encode("utf-8", "surrogateescape"))] - offset
        before = data[:byte].decode("utf-8", "surrogateescape")
        DECODER.raw_decode(before.lstrip(BLANKS) + "[]}")
    except NoArrayError as error:
        raise DataError(f"{path}: {error}", error.hint) from None
    except (ValueError, RecursionError):  # said by whoever reads all of it
        return None
    opening = begun(data.decode("utf-8", "surrogateescape"), offset, len(before), "}")
    return opening if byte < len(data) and opening.first == "{" else None


def begun(text: str, offset: int, bracket: int, closing: str) -> Opening:
    first = skip_blanks(text, bracket + 1)
    start = offset + len(text[: bracket + 1].encode("utf-8", "surrogateescape"))
    return Opening(start, closing, text[first : first + 1], '"columns"' in text[:bracket], DATA.search(text[:bracket]) is not None)


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
