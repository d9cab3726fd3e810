"""JSON lines that are all written like their first: what stands between the values is compared, the values are cut out of the block as they are.

A program that writes rows writes every one with the same keys in the same order and with the same spaces. So where the quotes of the lines are says
where the values are, and the bytes between the values have to be those of the first line, which Python's parser has read. Lines with a backslash,
whose strings are not what stands there, go to the parser; so does the whole block where anything differs. Of all quotes only those that end a key
are looked up, a fourth of them; the others are counted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ftcli.contracts import Columns
from ftcli.core.arrays import numbers, values
from ftcli.core.reading.columns import wanted
from ftcli.core.reading.cut_values import Bytes, Ints, aligned, are_whole, places, texts, whole_numbers, words_from
from ftcli.core.reading.soundness import sound

Parse = Callable[[bytes], list[pa.Array]]

SEEN = 1 << 16
"""Bytes of a block that are tried first, so that one of other lines loses a fiftieth of its time."""
LARGEST = 1 << 24
"""Bytes of a block above which it is not tried: a few lines of many megabytes each."""
ESCAPED = 0.1
"""Share of lines with a backslash from which on the parser takes them all."""
ESCAPES = 8
"""Backslashes of such a line, on average, above which it does, too."""
CHUNK = 1 << 19
"""Bytes in which places are looked for at a time, so that what is computed of them stays in a core's cache: 0.83 ms a MB, 1.14 with 128 kB, 3.8 at once."""
TRIED = 8
"""Lines of a block that may say how the others are written."""
QUOTE, LINE_END = b'"\n'
WHOLE = re.compile(rb"\s*:\s*([0-9]+)")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes that stand in every line: before, between and behind the values."""

    text: bytes
    mark: int
    """Which of the line's keys is the first to end in it; one more than there are: none does, and it ends with the line."""
    before: int
    """Bytes of it before the quote that ends the key, or before the line's end."""


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
    keys: int
    behind: int
    """The byte behind the quote that ends a key: a colon or a space."""

    @property
    def quotes(self) -> int:
        """Of a line, all of which stand in its pieces."""
        return sum(piece.text.count(QUOTE) for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class _Lines:
    """Of a block: which of its lines are written as the first, where in those each key's value begins and ends, and the others as they stand there."""

    plain: NDArray[np.bool_]
    fields: dict[str, tuple[Ints, Ints]]
    others: bytes


def even_arrays(block: bytes, columns: Columns, parse: Parse) -> list[pa.Array] | None:
    """The columns of a block of lines; None where its lines are not all alike, and where there is the least doubt that they are JSON.

    Args:
        parse: columns of lines, by a parser; whatever it raises is for the caller.
    """
    if len(block) > LARGEST or not block.endswith(b"\n"):
        return None
    form = _form(block, columns)
    if form is None or not (form in _last or _fits(block, form)):
        return None
    lines = _lines(block, form)
    _last[:] = [] if lines is None else [form]
    return None if lines is None else _arrays(block, lines, columns, parse)


_last: list[_Form] = []
"""How all lines of the block before were written: those of a block that begins so most likely are too, and none of them is tried first."""


def _fits(block: bytes, form: _Form) -> bool:
    """Whether the first lines of a large block are written so."""
    seen = block[: block.rfind(b"\n", 0, SEEN) + 1]
    return len(seen) >= len(block) // 2 or _lines(seen, form) is not None


def _form(block: bytes, columns: Columns) -> _Form | None:
    """Of the first line that says it."""
    lines = (line for line in islice(_beginning(block), TRIED) if b"\\" not in line)
    return next((form for line in lines if (form := _form_of(line, columns))), None)


def _beginning(block: bytes) -> Iterator[bytes]:
    """The first lines, with their ends."""
    start = 0
    while stop := block.find(b"\n", start, SEEN) + 1:
        yield block[start:stop]
        start = stop


def _form_of(line: bytes, columns: Columns) -> _Form | None:
    """Of a line without a backslash, read by Python; None where that is no flat object with every wanted key once and with such a value."""
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
    behind = line[quotes[1] + 1]
    marks = [place for place in quotes if line[place + 1] == behind]
    if len(marks) != len(keys):  # a text begins with a colon
        return None
    spans: list[tuple[int, int]] = []
    cut: list[_Value] = []
    at = 0
    for key, value in pairs:
        at += 2
        if isinstance(value, (list, dict)):
            return None
        if isinstance(value, float) and not math.isfinite(value):  # 1e400, which no parser but Python's takes
            return None
        if isinstance(value, str):
            spans.append((quotes[at] + 1, quotes[at + 1]))
            cut.append(_Value(key, whole=False))
            at += 2
        elif type(value) is int and (digits := WHOLE.match(line, quotes[at - 1] + 1)):
            spans.append(digits.span(1))
            cut.append(_Value(key, whole=True))
    if not {name for _, name, _ in wanted(columns)} <= {value.key for value in cut}:  # a negative number
        return None
    bounds = [0, *chain.from_iterable(spans), len(line)]
    pieces = [_piece(line, marks, *piece) for piece in zip(bounds[::2], bounds[1::2], strict=True)]
    return _Form(tuple(pieces), tuple(cut), len(keys), behind)


def _piece(line: bytes, marks: list[int], start: int, stop: int) -> _Piece:
    first = next((number for number, place in enumerate(marks) if start <= place < stop), len(marks))
    anchor = marks[first] if first < len(marks) else len(line) - 1
    return _Piece(line[start:stop], first, anchor - start)


def _lines(block: bytes, form: _Form) -> _Lines | None:
    """Where everything is; None where lines are written otherwise, or many hold a backslash."""
    if not sound(block):
        return None
    data = np.frombuffer(block, np.uint8)
    ends, marks, quotes = _marked(data, form.behind)
    starts = np.concatenate([[0], ends[:-1] + 1])
    odd = _escaped(block, ends)
    if odd is not None and len(_without(marks, starts, ends, odd)) != form.keys * (len(ends) - len(odd)):
        odd = np.union1d(odd, np.flatnonzero(np.diff(np.searchsorted(marks, ends), prepend=0) != form.keys))
    if odd is None or len(odd) > ESCAPED * len(ends):
        return None
    plain = np.ones(len(ends), np.bool_)
    plain[odd] = False
    others = b"".join(block[starts[line] : ends[line] + 1] for line in odd.tolist())
    if quotes != form.quotes * (len(ends) - len(odd)) + others.count(b'"'):
        return None
    fields = _fields(data, form, _without(marks, starts, ends, odd), starts[plain], ends[plain])
    return None if fields is None else _Lines(plain, fields, others)


def _marked(data: Bytes, behind: int) -> tuple[Ints, Ints, int]:
    """Where lines end, where quotes stand that have the byte `behind` behind them, and how many quotes there are."""
    ends, marks, quotes = [], [], 0
    for start in range(0, len(data), CHUNK):
        part = data[start : start + CHUNK + 1]  # with the byte behind it
        quoted = part[:CHUNK] == QUOTE
        quotes += int(np.count_nonzero(quoted))
        quoted[: len(part) - 1] &= part[1:] == behind  # the last byte of all ends a line
        ends.append(places(part[:CHUNK] == LINE_END) + start)
        marks.append(places(quoted) + start)
    return np.concatenate(ends), np.concatenate(marks), quotes


def _escaped(block: bytes, ends: Ints) -> Ints | None:
    """The lines with a backslash; None where there are too many backslashes."""
    most = int(ESCAPED * len(ends)) * ESCAPES
    escapes = [*islice(_found(block, b"\\"), most + 1)]
    return np.unique(np.searchsorted(ends, escapes)) if len(escapes) <= most else None


def _without(marks: Ints, starts: Ints, ends: Ints, lines: Ints) -> Ints:
    """The marks that do not lie in these lines."""
    if not len(lines):
        return marks
    bounds = zip(np.searchsorted(marks, starts[lines]), np.searchsorted(marks, ends[lines]), strict=True)
    return np.delete(marks, np.concatenate([np.arange(first, last) for first, last in bounds]))


def _found(block: bytes, what: bytes) -> Iterator[int]:
    """Its places: where there are few, sooner than numpy looks at every byte (0.6 ms of 4 MB)."""
    place = block.find(what)
    while place >= 0:
        yield place
        place = block.find(what, place + 1)


def _arrays(block: bytes, lines: _Lines, columns: Columns, parse: Parse) -> list[pa.Array] | None:
    read = wanted(columns)
    others: list[pa.Array | None] = [None] * len(read)
    odd = np.flatnonzero(~lines.plain)
    if len(odd):
        others = [*parse(lines.others)]
        if any(rest is None or len(rest) != len(odd) for rest in others):
            return None
    data = np.frombuffer(block, np.uint8)
    found: list[pa.Array] = []
    for (_, name, kind), rest in zip(read, others, strict=True):
        start, stop = lines.fields[name]
        if kind == "int":
            whole = np.empty(len(lines.plain), np.int64)
            whole[lines.plain] = whole_numbers(data, start, stop)
            whole[odd] = [] if rest is None else values(rest)
            found.append(numbers(whole))
        else:
            found.append(texts(block, data, start, stop - start, lines.plain, rest))
    return found


def _fields(data: Bytes, form: _Form, marks: Ints, starts: Ints, ends: Ints) -> dict[str, tuple[Ints, Ints]] | None:
    """Where each key's value begins and ends in every line, given where lines and ends of keys are; None where a line is written otherwise."""
    if len(marks) != form.keys * len(ends) or not len(ends):
        return None
    anchors = [*np.ascontiguousarray(marks.reshape(-1, form.keys).T), ends]
    begins = [anchors[piece.mark] - piece.before for piece in form.pieces]
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
