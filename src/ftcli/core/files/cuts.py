"""Where a CSV file can be cut: at line ends outside quotes, found without parsing it."""

from __future__ import annotations

import numpy as np

from ftcli.core.files.streams import BLOCK, BOM, cut_evenly, data_errors

QUOTE, NEWLINE, RETURN = b'"\n\r'


def record_ranges(path: str, delimiter: str, size: int, target: int) -> list[tuple[int, int]]:
    """Byte ranges that cover a file, each of about `target` bytes and of whole rows; one range where it cannot be cut safely.

    A line end behind an even number of quotes ends a row, if every quote opens or closes a field, or is doubled in one: that is checked
    on the way (1 to 2 GB/s). A .tsv is cut only when it has no quote, because it depends on the whole file what they mean there.
    """
    targets = [start for start, _ in cut_evenly(size, target)[1:]]
    whole = [(0, size)]
    if not targets:
        return whole
    beside = np.zeros(256, np.bool_)  # what may stand before an opening and behind a closing quote
    beside[[QUOTE, NEWLINE, RETURN, ord(delimiter)]] = True
    cuts = [0]
    position, inside, before, header = 0, False, NEWLINE, False
    with data_errors(path), open(path, "rb") as file:  # noqa: PTH123 - as in streams.head
        while block := file.read(BLOCK):
            if not position and block.startswith(BOM):
                block = b"\n" * len(BOM) + block[len(BOM) :]
            data = np.frombuffer(block, np.uint8)
            quotes = np.flatnonzero(data == QUOTE)
            if len(quotes) and delimiter == "\t":
                return whole
            extended = np.concatenate([np.array([before], np.uint8), data])
            opening = (np.arange(len(quotes)) + inside) % 2 == 0
            closing = quotes[~opening]
            follows = closing[closing < len(data) - 1]
            closed_before = before == QUOTE and not inside  # the last byte of the block before
            if not (beside[extended[quotes[opening]]].all() and beside[data[follows + 1]].all() and (not closed_before or beside[data[0]])):
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
            inside ^= bool(len(quotes) % 2)
            before = block[-1]
            position += len(block)
    return whole if inside else list(zip(cuts, [*(cut for cut in cuts[1:]), size], strict=True))
