"""JSON lines that are all written like their first: what stands between the values is compared, the values are cut out of the block as they are.

A program that writes rows writes every one with the same keys in the same order and with the same spaces. So where the quotes of the lines are says
where the values are, and the bytes between the values have to be those of the first line, which Python's parser has read. Lines with a backslash,
whose strings are not what stands there, go to the parser; so does the whole block where anything differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ftcli.contracts import Columns
from ftcli.core.arrays import numbers, values
from ftcli.core.reading.columns import wanted
from ftcli.core.reading.cut_values import Bytes, Ints, aligned, are_whole, texts, whole_numbers, words_from

Parse = Callable[[bytes], list[pa.Array]]

SEEN = 1 << 16
"""Bytes of a block that are tried first, so that one of other lines loses a fiftieth of its time."""
LARGEST = 1 << 24
"""Bytes of a block above which it is not tried: a few lines of many megabytes each."""
ESCAPED = 0.1
"""Share of lines with a backslash from which on the parser takes them all."""
ESCAPES = 8
"""Backslashes of such a line, on average, above which it does, too."""
QUOTE, LINE_END = b'"\n'
WHOLE = re.compile(rb"\s*:\s*([0-9]+)")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes that stand in every line: before, between and behind the values."""

    text: bytes
    quote: int
    """Which of the line's quotes is its first; one more than there are: it has none, and ends with the line."""
    before: int
    """Bytes of it before that quote, or before the line's end."""


@dataclass(frozen=True, slots=True)
class _Value:
    key: str
    whole: bool
    """A number of digits alone; else what stands between two quotes."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How a line is written: piece, value, piece … piece."""

    pieces: tuple[_Piece, ...]
    values: tuple[_Value, ...]
    quotes: int


@dataclass(frozen=True, slots=True)
class _Lines:
    """Of a block: where its lines begin and end, which have no backslash, and where in those each key's value begins and ends."""

    starts: Ints
    ends: Ints
    plain: NDArray[np.bool_]
    fields: dict[str, tuple[Ints, Ints]]


def even_arrays(block: bytes, columns: Columns, parse: Parse) -> list[pa.Array] | None:
    """The columns of a block of lines; None where its lines are not all alike, and where there is the least doubt that they are JSON.

    Args:
        parse: columns of lines, by a parser; whatever it raises is for the caller.
    """
    if len(block) > LARGEST or not block.endswith(b"\n"):
        return None
    form = _form(block, columns)
    seen = block[: block.rfind(b"\n", 0, SEEN) + 1]
    if form is None or (len(seen) < len(block) // 2 and _lines(seen, form) is None):
        return None
    lines = _lines(block, form)
    return None if lines is None else _arrays(block, lines, columns, parse)


def _form(block: bytes, columns: Columns) -> _Form | None:
    """Of the first line without a backslash, read by Python; None where that is no flat object with every wanted key once and with such a value."""
    line = next((line for line in block[:SEEN].splitlines(keepends=True) if b"\\" not in line and line.endswith(b"\n")), b"")
    try:
        pairs = json.loads(line, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    kinds = {"string": str, "int": int}
    keys = [pair[0] for pair in pairs] if isinstance(pairs, list) and line.startswith(b"{") else []
    found = dict(pairs) if keys else {}
    if any(type(found.get(name)) is not kinds.get(kind) or keys.count(name) != 1 for _, name, kind in wanted(columns)) or not keys:
        return None
    quotes = [place for place, byte in enumerate(line) if byte == QUOTE]
    places: list[tuple[int, int]] = []
    cut: list[_Value] = []
    at = 0
    for key, value in pairs:
        at += 2
        if isinstance(value, (list, dict)):
            return None
        if isinstance(value, str):
            places.append((quotes[at] + 1, quotes[at + 1]))
            cut.append(_Value(key, whole=False))
            at += 2
        elif type(value) is int and (digits := WHOLE.match(line, quotes[at - 1] + 1)):
            places.append(digits.span(1))
            cut.append(_Value(key, whole=True))
    if not {name for _, name, _ in wanted(columns)} <= {value.key for value in cut}:  # a negative number
        return None
    bounds = [0, *chain.from_iterable(places), len(line)]
    pieces = [_piece(line, quotes, *piece) for piece in zip(bounds[::2], bounds[1::2], strict=True)]
    return _Form(tuple(pieces), tuple(cut), len(quotes))


def _piece(line: bytes, quotes: list[int], start: int, stop: int) -> _Piece:
    first = next((number for number, place in enumerate(quotes) if start <= place < stop), len(quotes))
    anchor = quotes[first] if first < len(quotes) else len(line) - 1
    return _Piece(line[start:stop], first, anchor - start)


def _lines(block: bytes, form: _Form) -> _Lines | None:
    """Where everything is; None where a line is written otherwise, or many hold a backslash."""
    if not sound(block):
        return None
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == LINE_END)
    starts = np.concatenate([[0], ends[:-1] + 1])
    quotes = np.flatnonzero(data == QUOTE)
    plain = np.ones(len(ends), np.bool_)
    most = int(ESCAPED * len(ends)) * ESCAPES
    if escapes := [*islice(_found(block, b"\\"), most + 1)]:
        if len(escapes) > most:
            return None
        escaped = np.unique(np.searchsorted(ends, escapes))
        if len(escaped) > ESCAPED * len(ends):
            return None
        plain[escaped] = False
        first, last = np.searchsorted(quotes, starts[escaped]), np.searchsorted(quotes, ends[escaped])
        quotes = np.delete(quotes, np.concatenate([np.arange(*bounds) for bounds in zip(first, last, strict=True)]))
    fields = _fields(data, form, quotes, starts[plain], ends[plain])
    return None if fields is None else _Lines(starts, ends, plain, fields)


def _found(block: bytes, what: bytes) -> Iterator[int]:
    """Its places: where there are few, sooner than numpy looks at every byte (0.6 ms of 4 MB)."""
    place = block.find(what)
    while place >= 0:
        yield place
        place = block.find(what, place + 1)


def _arrays(block: bytes, lines: _Lines, columns: Columns, parse: Parse) -> list[pa.Array] | None:
    read = wanted(columns)
    others: list[pa.Array | None] = [None] * len(read)
    escaped = np.flatnonzero(~lines.plain)
    if len(escaped):
        others = [*parse(b"".join(block[lines.starts[line] : lines.ends[line] + 1] for line in escaped.tolist()))]
        if any(rest is None or len(rest) != len(escaped) for rest in others):
            return None
    data = np.frombuffer(block, np.uint8)
    found: list[pa.Array] = []
    for (_, name, kind), rest in zip(read, others, strict=True):
        start, stop = lines.fields[name]
        if kind == "int":
            whole = np.empty(len(lines.plain), np.int64)
            whole[lines.plain] = whole_numbers(data, start, stop)
            whole[escaped] = [] if rest is None else values(rest)
            found.append(numbers(whole))
        else:
            found.append(texts(block, data, start, stop - start, lines.plain, rest))
    return found


@cache
def _parser() -> Any:
    """simdjson's; None where its words do not mean what `sound` takes them for.

    Its first stage reads all bytes and refuses what is not UTF-8, a control character in a string and a string without an end; only then the second
    one finds that a line follows the object, which is not JSON.
    """
    import simdjson

    parser = simdjson.Parser()
    bad = (b'{"a": "\xff"}\n', b'{"a": "\x01"}\n', b'{"a": "\xed\xa0\x80"}\n', b'{"a": "\n"}\n', b'{"a": "b}\n')
    good = b'{"a": "b"}\n'
    return parser if _stage(parser, good * 9) and not any(_stage(parser, good * 9 + line) for line in bad) else None


def sound(block: bytes) -> bool:
    """Whether a block of lines is UTF-8, and its strings all end and hold no control characters: 0.16 ms a MB, Arrow's look at UTF-8 takes 2 of the texts alone."""
    parser = _parser()
    return parser is not None and _stage(parser, block)


def _stage(parser: Any, block: bytes) -> bool:
    try:
        parser.parse(block)
    except UnicodeDecodeError:
        return False
    except ValueError as error:
        return str(error).startswith("TAPE_ERROR")
    except RuntimeError:
        return False
    return True


def _fields(data: Bytes, form: _Form, quotes: Ints, starts: Ints, ends: Ints) -> dict[str, tuple[Ints, Ints]] | None:
    """Where each key's value begins and ends in every line, given where lines and quotes are; None where a line is written otherwise."""
    if len(quotes) != form.quotes * len(ends) or not len(ends):
        return None
    used = sorted({piece.quote for piece in form.pieces} - {form.quotes})
    anchors = dict(zip(used, quotes.reshape(-1, form.quotes).take(used, axis=1).T, strict=True))
    begins = [anchors.get(piece.quote, ends) - piece.before for piece in form.pieces]
    stops = [begin + len(piece.text) for begin, piece in zip(begins, form.pieces, strict=True)]
    if not np.array_equal(begins[0], starts) or not np.array_equal(stops[-1], ends + 1):
        return None
    between = [*zip(stops, begins[1:], strict=False)]
    if any((start > stop).any() for start, stop in between):  # now nothing that is looked at lies outside of its line
        return None
    if not all(_stand(data, piece.text, begin) for piece, begin in zip(form.pieces, begins, strict=True)):
        return None
    if not all(are_whole(data, *place) for value, place in zip(form.values, between, strict=True) if value.whole):
        return None
    return {value.key: place for value, place in zip(form.values, between, strict=True)}


def _stand(data: Bytes, text: bytes, places: Ints) -> bool:
    """Whether `text` stands at all of the places, which ascend."""
    whole, count = aligned(data), -(-len(text) // 8)
    sure = int(np.searchsorted(places, 8 * (len(whole) - count)))  # of the places behind, words are not whole
    if any(data[place : place + len(text)].tobytes() != text for place in places[sure:].tolist()):
        return False
    for number, word in enumerate(words_from(whole, places[:sure], count)):
        part = text[8 * number : 8 * number + 8]
        kept = word if len(part) == 8 else word & np.uint64((1 << 8 * len(part)) - 1)
        if not (kept == np.uint64(int.from_bytes(part, "little"))).all():
            return False
    return True
