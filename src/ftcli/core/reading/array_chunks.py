"""A JSON array of any size in chunks of whole elements, told by its brackets; and a chunk as JSON lines, which have quicker readers.

What is a bracket is told by the quotes before it. That is right for every document that is JSON; of any other a cut may lie anywhere. But whoever
reads the chunks reads every byte between the array's brackets once, each chunk as elements with a comma behind, so that no file that is not JSON
passes, and one that is has no other elements than those that the chunks give.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ftcli.core.files.streams import BLOCK
from ftcli.core.ragged import Ints, to_offsets

Bytes = NDArray[np.uint8]
QUOTE, BACKSLASH, COMMA, LINE_END, SPACE = b'"\\,\n '
OPEN, CLOSE, SQUARE = ord("{"), ord("}"), ord("[")
ALIKE, BRACKETS = np.uint8(0x26), np.uint8(0x7F)
"""Every bracket is 0x7F with these bits set; so are y, Y, _ and DEL, which are left out afterwards."""
TO_CURLY = np.uint8(0x20)
"""The bit that makes of a square bracket a curly one."""
BLANKS = tuple(b" \t\r\n")
WINDOW = 1 << 19
"""Bytes looked at at a time: what numpy lists of them stays in the cache. 2.5 to 4 ms a MB, 4 to 8 with `BLOCK` bytes."""
DIGITS = 4_300
"""Of a whole number that Python reads, at most; Arrow's parser passes over longer ones in keys that nobody asked for."""
NUMBER = re.compile(rb"[0-9]{%d}" % (DIGITS + 1))
DEEP = 100
"""Python's parser, which has the last word on what is nested too deeply, goes deeper in any version."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Elements as they stand in the file, and what lies between and behind them."""

    start: int
    """Of its first byte, in the decompressed content."""
    data: bytes
    last: bool
    """The array and the document end with it; else it ends before an element."""
    opens: Ints
    """Where elements that are objects or arrays begin in it."""
    closes: Ints
    """Their last bytes."""
    breaks: Ints
    """Line ends that are not in strings."""
    deep: bool
    """Something in it is nested more than `DEEP` times."""


@dataclass(slots=True)
class _Marks:
    """What a window told, as places in it."""

    opens: Ints
    closes: Ints
    breaks: Ints
    deep: bool


class _Scan:
    """Told the bytes of an array from its first element on, window by window, says where elements begin and end."""

    def __init__(self) -> None:
        self._quoted = self._escaped = False
        self._depth = 0
        self.ended = False
        """The array has ended: what follows is not looked at."""

    def feed(self, window: bytes) -> _Marks:
        data = np.frombuffer(window, np.uint8)
        quotes = self._quotes(window, data)
        breaks = np.flatnonzero(data == LINE_END)
        breaks = breaks[~self._inside(quotes, breaks)]
        places = np.flatnonzero((data | ALIKE) == BRACKETS)
        kinds = data[places] | TO_CURLY
        real = (kinds == OPEN) | (kinds == CLOSE)
        places, kinds = places[real], kinds[real]
        outside = ~self._inside(quotes, places)
        places, closing = places[outside], kinds[outside] == CLOSE
        depth = np.cumsum(np.where(closing, -1, 1)) + self._depth
        ends = np.flatnonzero(depth < 0)
        if len(ends):
            self.ended = True
            places, closing, depth = places[: ends[0]], closing[: ends[0]], depth[: ends[0]]
        self._quoted ^= len(quotes) % 2 == 1
        self._depth = int(depth[-1]) if len(depth) else self._depth
        return _Marks(places[~closing & (depth == 1)], places[closing & (depth == 0)], breaks, bool((depth > DEEP).any()))

    def _inside(self, quotes: Ints, places: Ints) -> NDArray[np.bool_]:
        """Which of the places are inside of a string."""
        inside: NDArray[np.bool_] = (np.searchsorted(quotes, places) + self._quoted) % 2 == 1
        return inside

    def _quotes(self, window: bytes, data: Bytes) -> Ints:
        """The quotes that begin or end a string: those behind an even number of backslashes."""
        escaped, self._escaped = self._escaped, _ends_escaping(window, escaped=self._escaped)
        quotes = np.flatnonzero(data == QUOTE)
        behind = data[quotes - 1] == BACKSLASH
        if len(quotes) and quotes[0] == 0:
            behind[0] = escaped
        if not behind.any():
            return quotes
        slashes = np.flatnonzero(data == BACKSLASH)
        firsts = slashes[np.diff(slashes, prepend=-2) > 1]
        asked = quotes[behind]
        runs = firsts[np.searchsorted(firsts, asked) - 1] if len(firsts) else asked
        length = asked - np.minimum(runs, asked) + ((runs == 0) & escaped)
        if asked[0] == 0:
            length[0] = 1
        behind[behind] = length % 2 == 1
        kept: Ints = quotes[~behind]
        return kept


def _ends_escaping(window: bytes, *, escaped: bool) -> bool:
    """Whether the byte behind the window is escaped by its last one. `escaped`: its first byte is."""
    count = len(window) - len(window.rstrip(b"\\"))
    return (count + (escaped and count == len(window))) % 2 == 1


def chunks(stream: pa.NativeFile, start: int, stop: int | None) -> Iterator[Chunk]:
    """What lies from byte `start`, behind the array's bracket or where an element begins, to `stop`, where another begins; None: to the document's end.

    Memory is bounded by a block and the longest element, where elements are objects or arrays; of others all are one chunk. What stands behind the array
    comes with its last element.
    """
    scan, held, size, deep = _Scan(), list[bytes](), 0, False
    opens, closes, breaks = list[Ints](), list[Ints](), list[Ints]()
    """By window: joined once a chunk, however many windows it has."""
    number = last = 0
    for window in _windows(stream, None if stop is None else stop - start):
        held.append(window)
        if scan.ended:
            continue
        found = scan.feed(window)
        for places, more in ((opens, found.opens), (closes, found.closes), (breaks, found.breaks)):
            places.append(more + size)
        number, last = number + len(found.opens), int(opens[-1][-1]) if len(found.opens) else last
        size, deep = size + len(window), deep | found.deep
        if size >= BLOCK and number > 1 and not scan.ended:
            data, begun, ended, broken = b"".join(held), *map(np.concatenate, (opens, closes, breaks))
            yield Chunk(start, data[:last], False, begun[:-1], ended[ended < last], broken[broken < last], deep)
            deep &= found.deep or last < size - len(window)  # what is carried over has begun before this window
            opens, closes, breaks = [begun[-1:] - last], [ended[ended >= last] - last], [broken[broken >= last] - last]
            start, held, size, number, last = start + last, [data[last:]], size - last, 1, 0
    if held or stop is None:
        none = np.zeros(0, np.int64)
        begun, ended, broken = (np.concatenate([none, *places]) for places in (opens, closes, breaks))
        yield Chunk(start, b"".join(held), stop is None, begun, ended, broken, deep)


def _windows(stream: pa.NativeFile, size: int | None) -> Iterator[bytes]:
    while (size is None or size > 0) and (window := stream.read(min(WINDOW, BLOCK) if size is None else min(WINDOW, BLOCK, size))):
        yield window
        size = None if size is None else size - len(window)


def cuts(stream: pa.NativeFile, start: int, wanted: Iterable[int], tell: Callable[[int], object] = int) -> list[int]:
    """Of every byte of `wanted`, which rise, where the next element begins; without those behind which none does, each once.

    Args:
        start: of the array's content, where the stream stands.
        tell: how many bytes have been read since the last call.
    """
    scan, found = _Scan(), list[int]()
    waiting = deque(wanted)
    for window in _windows(stream, None):
        opens = scan.feed(window).opens + start
        while waiting and len(opens) and opens[-1] >= waiting[0]:
            found.append(int(opens[np.searchsorted(opens, waiting.popleft())]))
        start += len(window)
        tell(len(window))
        if scan.ended or not waiting:
            break
    return sorted(set(found))


def outline(stream: pa.NativeFile, start: int, stop: int | None, most: int) -> tuple[bytes, dict[int, int]] | None:
    """An object's text from behind its first bracket, with every array and object in it emptied, but for a {} in an array whose first element is an
    object; and place in this text → byte, of every bracket that opens one. None where the text is longer than `most`.

    Args:
        start: where the stream stands.
        stop: the text ends there, else some way behind the object.
    """
    scan, text, places, waiting, inside = _Scan(), bytearray(), dict[int, int](), False, False
    for window in _windows(stream, None if stop is None else stop - start):
        found = scan.feed(window)
        at = 0
        for place in [*map(int, np.sort(np.concatenate([found.opens, found.closes]))), len(window)]:
            part, edge = window[at:place], place == len(window)
            if not inside:
                text += part
            elif waiting and (first := part.lstrip(bytes(BLANKS))[:1] or (b"" if edge else b"]")):
                text += b"{}" * (first == b"{")
                waiting = False
            at = place
            if edge:
                break
            inside = not inside
            if inside:
                places[len(text)] = start + place
                waiting = window[place] == SQUARE
                text += window[place : place + 1]
                at += 1
        start += len(window)
        if scan.ended or len(text) > most:
            break
    return None if len(text) > most else (bytes(text), places)


def as_lines(chunk: Chunk, longest: int) -> tuple[bytes, bytes] | None:
    """The chunk's objects as JSON lines, and what stands behind the last of them; None where there is anything else, or one of more than `longest` bytes.

    What is JSON stays so. What is not does, too, where `sound` holds for the lines: a string that ends nowhere or holds a line end.
    """
    opens, closes, data = chunk.opens, chunk.closes, np.frombuffer(chunk.data, np.uint8)
    if chunk.deep or not len(opens) or len(opens) != len(closes):
        return None
    if (closes - opens >= DIGITS).any() and NUMBER.search(chunk.data):
        return None
    start, stop = int(opens[0]), int(closes[-1]) + 1
    gaps, widths = closes[:-1] + 1, opens[1:] - closes[:-1] - 1
    if chunk.data[:start].strip(bytes(BLANKS)) or (data[opens] != OPEN).any() or (closes - opens >= longest).any() or (widths < 1).any():
        return None
    offsets = to_offsets(widths)
    places = np.arange(offsets[-1]) + np.repeat(gaps - offsets[:-1], widths)
    between = data[places]
    commas = between == COMMA
    if len(gaps) and not (np.isin(between, BLANKS) | commas).all():
        return None
    if len(gaps) and (np.add.reduceat(commas, offsets[:-1], dtype=np.int64) != 1).any():
        return None
    lines = bytearray(chunk.data[:stop])
    written = np.frombuffer(lines, np.uint8)
    written[chunk.breaks[chunk.breaks < stop]] = SPACE
    written[places] = SPACE
    written[opens[1:] - 1] = LINE_END
    return bytes(memoryview(lines)[start:]) + b"\n", chunk.data[stop:]
