"""Values cut out of a block of bytes by where they begin and end: whole numbers, and strings as Arrow's; and where bytes are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

DIGITS = 18
"""Of a whole number, at most: every one of so many fits into 64 bits."""
ZEROS = np.uint64(0x3030303030303030)
HIGH = np.uint64(0x8080808080808080)


def aligned(data: Bytes) -> NDArray[np.uint64]:
    """The bytes as whole words of eight; the first byte is a word's lowest. What is left at the end is not among them."""
    return data[: len(data) // 8 * 8].view("<u8")


def places(marked: NDArray[np.bool_]) -> Ints:
    """Where it is true. numpy passes over eight falsehoods at a time where they are one word, two to four times as fast where few are true."""
    whole = aligned(marked.view(np.uint8))
    index = np.flatnonzero(whole != 0)
    words = whole.take(index)
    if (words & (words - np.uint64(1))).any():  # of some eight more than one is true
        return np.flatnonzero(marked)
    rest = 8 * len(whole)
    inside = (words * np.uint64(0x0001020304050607)) >> np.uint64(56)  # which byte of the word holds the 1
    return np.concatenate([8 * index + inside.view(np.int64), np.flatnonzero(marked[rest:]) + rest])


def words_from(whole: NDArray[np.uint64], place: Ints, count: int) -> Iterator[NDArray[np.uint64]]:
    """The eight bytes from each place on, the next eight, and so on: `count` words of each, put together from two neighbours in `whole`.

    numpy looks words up four times as fast where they are aligned. What lies behind the last word of `whole` comes out as anything.
    """
    index, low = place >> 3, ((place & 7) << 3).view(np.uint64)
    high = np.uint64(64) - low  # a shift by all 64 gives 0
    first = whole.take(index, mode="clip")
    for number in range(1, count + 1):
        second = whole.take(index + number, mode="clip")
        yield (first >> low) | (second << high)
        first = second


def _words(data: Bytes, place: Ints) -> NDArray[np.uint64]:
    """The eight bytes from each place on, all of them within the data, of which there are eight or more."""
    whole = aligned(data)
    (found,) = words_from(whole, place, 1)
    if len(late := np.flatnonzero(place > 8 * (len(whole) - 1))):
        found[late] = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))[place[late]]
    return found


def _eights(data: Bytes, start: Ints, stop: Ints) -> Iterator[NDArray[np.uint64]]:
    """The digits from `start` to `stop`, eight at a time from the last, with zeros before the first."""
    width = stop - start
    for done in range(0, int(width.max()), 8):
        place = stop - 8 - done
        inside = np.maximum(place, 0)
        word = _words(data, inside) << (8 * (inside - place)).astype(np.uint64)
        kept = (~np.uint64(0)) << (8 * (8 - np.clip(width - done, 0, 8))).astype(np.uint64)
        yield np.where(width > done, (word & kept) | (ZEROS & ~kept), ZEROS)


def are_whole(data: Bytes, start: Ints, stop: Ints) -> bool:
    """Whether whole numbers as JSON writes them stand there, of no more than `DIGITS`."""
    width = stop - start
    if width.min() < 1 or width.max() > DIGITS or len(data) < 8:
        return False
    for word in _eights(data, start, stop):
        if (((word + np.uint64(0x4646464646464646)) | (word - ZEROS)) & HIGH).any():
            return False
    return not bool(((data[start] == ord("0")) & (width > 1)).any())


def whole_numbers(data: Bytes, start: Ints, stop: Ints) -> Ints:
    """The whole numbers that stand there."""
    found = np.zeros(len(start), np.uint64)
    for power, word in enumerate(_eights(data, start, stop)):
        pairs = ((word & np.uint64(0x0F0F0F0F0F0F0F0F)) * np.uint64(2561)) >> np.uint64(8)
        fours = ((pairs & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
        found += (((fours & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32)) * np.uint64(10 ** (8 * power))
    return found.astype(np.int64)


def texts(block: bytes, data: Bytes, starts: Ints, lengths: Ints, plain: NDArray[np.bool_], rest: pa.Array | None) -> pa.Array:
    """The strings of the block, and between them, where `plain` is False, those of `rest`. Arrow copies them together from where they are."""
    views = np.empty((len(plain), 4), np.int32)
    views[plain] = _views(data, starts, lengths, 0)
    buffers = [pa.py_buffer(block)]
    if rest is not None:
        _, offsets, content = rest.buffers()
        more = np.append(np.frombuffer(content or b"", np.uint8), np.zeros(16, np.uint8))
        bounds = np.frombuffer(offsets, np.int64)[rest.offset : rest.offset + len(rest) + 1]
        views[~plain] = _views(more, bounds[:-1], np.diff(bounds), 1)
        buffers.append(pa.py_buffer(more))
    return pa.Array.from_buffers(pa.string_view(), len(plain), [None, pa.py_buffer(views), *buffers]).cast(pa.large_string())


def _views(data: Bytes, starts: Ints, lengths: Ints, buffer: int) -> NDArray[np.int32]:
    """Arrow's string views: length, first four bytes, buffer and place there; or, of twelve bytes at most, length and the bytes.

    The first four bytes of longer ones are left out: they serve comparing views, and these are copied together at once.
    """
    fours = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    views = np.empty((len(starts), 4), np.int32)
    views[:, 0], views[:, 1], views[:, 2], views[:, 3] = lengths, 0, buffer, starts
    short = np.flatnonzero(lengths <= 12)
    for part in range(3):
        place, kept = starts[short] + 4 * part, np.clip(lengths[short] - 4 * part, 0, 4)
        inside = np.minimum(place, len(data) - 4)
        word = fours[inside].astype(np.uint64) >> (8 * (place - inside)).astype(np.uint64)
        mask = (np.uint64(1) << (8 * kept).astype(np.uint64)) - np.uint64(1)
        views[short, part + 1] = (word & mask).astype(np.uint32).view(np.int32)
    return views
