"""Which texts hold one of some thousand rare characters, at a small part of the engine's own cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ftcli.core.arrays import values

CHUNK = 1 << 17
"""Bytes looked at a time, so that they and what is computed of them stay in a core's cache: three times as fast as whole batches."""


@dataclass(frozen=True, slots=True)
class _Beginnings:
    """First bytes of the characters that follow each other, with the least and the largest of their second bytes."""

    least: int
    most: int
    least_second: int
    most_second: int

    def possible(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Where `data` has such a first byte and, behind it, a byte in the range of the second ones; not at its end."""
        firsts = _within(data[:-1], self.least, self.most)
        if not firsts.any():
            return np.zeros(0, np.int64)
        firsts &= _within(data[1:], self.least_second, self.most_second)
        return np.flatnonzero(firsts)


class CharacterSearch:
    """Looks at bytes first, because nearly no batch holds such a character.

    The regular expression alone took 1.4 ms a MB of English and Korean documents with gigatoken's 4,826 characters, 10 % of the whole
    pipeline. The two bytes that such a character begins with are looked for in 0.2 (Python sources) to 0.5 ms.
    """

    def __init__(self, characters: str) -> None:
        self._characters = characters

    def __bool__(self) -> bool:
        return bool(self._characters)

    @cached_property
    def _pairs(self) -> NDArray[np.bool_]:
        """[first byte, second byte] → whether a character begins so. Any second byte will do for an ASCII character."""
        pairs = np.zeros((256, 256), np.bool_)
        for first, *rest in {character.encode()[:2] for character in self._characters}:
            pairs[first, rest or slice(None)] = True
        return pairs

    @cached_property
    def _beginnings(self) -> list[_Beginnings]:
        firsts = np.flatnonzero(self._pairs.any(axis=1))
        found = []
        for run in np.split(firsts, np.flatnonzero(np.diff(firsts) > 1) + 1):
            seconds = np.flatnonzero(self._pairs[run].any(axis=0))
            found.append(_Beginnings(int(run[0]), int(run[-1]), int(seconds[0]), int(seconds[-1])))
        return found

    @cached_property
    def _pattern(self) -> str:
        """An RE2 class of the characters."""
        codes = sorted(map(ord, self._characters))
        ranges: list[list[int]] = []
        for code in codes:
            if ranges and code == ranges[-1][1] + 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
        return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"

    def marked(self, texts: pa.Array) -> NDArray[np.bool_] | None:
        """Which of the texts (large_string, no nulls) hold one of the characters; None when none does."""
        if not self._characters or not self._possible(texts):
            return None
        marked: NDArray[np.bool_] = values(pc.match_substring_regex(texts, self._pattern))
        return marked if marked.any() else None

    def _possible(self, texts: pa.Array) -> bool:
        data = _content(texts)
        for start in range(0, len(data), CHUNK):
            part = data[start : start + CHUNK + 1]  # with the byte that begins the next chunk
            if start + CHUNK >= len(data):
                part = np.append(part, np.uint8(0))  # which is the second byte of nothing but ASCII
            largest = part.max()
            for beginnings in self._beginnings:
                if beginnings.least <= largest:
                    places = beginnings.possible(part)
                    if len(places) and self._pairs[part[places], part[places + 1]].any():
                        return True
        return False


def _within(data: NDArray[np.uint8], least: int, most: int) -> NDArray[np.bool_]:
    if least == most:
        return np.asarray(data == np.uint8(least))
    return np.asarray(data - np.uint8(least) <= np.uint8(most - least))  # what is less becomes large


def _content(texts: pa.Array) -> NDArray[np.uint8]:
    """The UTF-8 of all texts, joined."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return np.zeros(0, np.uint8)
    ends: NDArray[Any] = np.frombuffer(offsets, np.int64)[[texts.offset, texts.offset + len(texts)]]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[1]]
