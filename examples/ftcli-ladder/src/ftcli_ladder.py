"""A collator whose batches have few different widths.

`torch.compile` makes a new program for every new width, and gives up after eight; a CUDA graph fits one width. Padding every batch to the longest row
of all has one width and wastes the most. In between: widths like the rungs of a ladder, four for each doubling (… 64, 80, 96, 112, 128, 160 …),
so that a row of more than 32 tokens is padded by a quarter at most. What is padded is masked and no target: losses are those of `bucketed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftcli import hookimpl
from ftcli.contracts import CollatorKind

if TYPE_CHECKING:
    from ftcli.hookspecs import Register

SMALLEST_STEP = 8
"""Tokens between rungs up to 64: matrix products like multiples of 8."""


def rung(tokens: int) -> int:
    """The lowest width of the ladder that holds so many tokens."""
    step = max(SMALLEST_STEP, 1 << max(0, (tokens - 1).bit_length() - 3))
    return -(-tokens // step) * step


@hookimpl
def register_collators(register: Register[CollatorKind]) -> None:
    from ftcli.core.batches.collate import Dynamic, rounded  # imports torch and numpy: only where a collator is asked for

    class Ladder(Dynamic):
        """Pads to the next rung, and never beyond `max_length` where the longest row does not."""

        def width(self, lengths):
            longest = int(lengths.max(initial=1))
            return rounded(min(rung(longest), max(longest, self.spec.max_length)), self.spec.pad_to_multiple_of)

    register("ladder", CollatorKind(Ladder, order="grouped"))
