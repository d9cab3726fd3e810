"""Where a CSV file can be cut: at line ends outside quotes, found without parsing it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ftcli.core.files.streams import BLOCK, BOM, cut_evenly, data_errors

Ints = NDArray[np.int64]
QUOTE, NEWLINE, RETURN = b'"\n\r'


class QuoteOrder:
    """Follows the quotes of a CSV file from its start, or from a row's: whether each opens or closes a field, or is doubled in one (1 to 2 GB/s)."""

    def __init__(self, delimiter: str) -> None:
        self._beside = np.zeros(256, np.bool_)  # what may stand before an opening and behind a closing quote
        self._beside[[QUOTE, NEWLINE, RETURN, ord(delimiter)]] = True
        self._before = NEWLINE
        self.inside = False
        """Whether the bytes so far end within quotes."""

    def follow(self, data: NDArray[np.uint8]) -> Ints | None:
        """The places of the quotes in the next bytes.

        Args:
            data: uint8, one dimension, not empty.

        Returns:
            Places in `data`, ascending; None where a quote stands elsewhere: then nothing can be said from there on.
        """
        quotes = np.flatnonzero(data == QUOTE)
        extended = np.concatenate([np.array([self._before], np.uint8), data])
        opening = (np.arange(len(quotes)) + self.inside) % 2 == 0
        closing = quotes[~opening]
        follows = closing[closing < len(data) - 1]
        closed_before = self._before == QUOTE and not self.inside  # the last byte of those before
        sound = self._beside[extended[quotes[opening]]].all() and self._beside[data[follows + 1]].all()
        if not sound or (closed_before and not self._beside[data[0]]):
            return None
        self.inside ^= bool(len(quotes) % 2)
        self._before = int(data[-1])
        return quotes


def record_ranges(path: str, delimiter: str, size: int, target: int) -> list[tuple[int, int]]:
    """Byte ranges that cover a file, each of about `target` bytes and of whole rows; one range where it cannot be cut safely.

    A line end behind an even number of quotes ends a row, if every quote is where one belongs (`QuoteOrder`), which is checked on the way.
    A .tsv is cut only when it has no quote, because it depends on the whole file what they mean there.
    """
    targets = [start for start, _ in cut_evenly(size, target)[1:]]
    whole = [(0, size)]
    if not targets:
        return whole
    order = QuoteOrder(delimiter)
    cuts = [0]
    position, header = 0, False
    with data_errors(path), open(path, "rb") as file:  # noqa: PTH123 - as in streams.head
        while block := file.read(BLOCK):
            if not position and block.startswith(BOM):
                block = b"\n" * len(BOM) + block[len(BOM) :]
            data = np.frombuffer(block, np.uint8)
            inside, quotes = order.inside, order.follow(data)
            if quotes is None or (len(quotes) and delimiter == "\t"):
                return whole
            if not header:
                targets[0] = max(targets[0], position + int(np.argmax((data != NEWLINE) & (data != RETURN))) + 1)
                header = bool(((data != NEWLINE) & (data != RETURN)).any())
            if header and targets and position + len(data) > targets[0] - 1:
                ends = np.flatnonzero(data == NEWLINE)
                ends = ends[(np.searchsorted(quotes, ends) + inside) % 2 == 0] + position + 1
                while targets and (found := int(np.searchsorted(ends, max(targets[0], cuts[-1] + 1)))) < len(ends):
                    cuts.append(int(ends[found]))
                    del targets[0]
            position += len(block)
    return whole if order.inside else list(zip(cuts, [*(cut for cut in cuts[1:]), size], strict=True))
