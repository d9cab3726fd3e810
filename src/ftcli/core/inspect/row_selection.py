"""Which rows are to be shown: numbers and ranges, or some at random."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from ftcli.errors import UsageError

MOST_ROWS = 1000
"""All of them are in memory, and on one page."""
DEFAULT = 5
RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class RowSelection:
    """`numbers`: from 0, ascending, each once. `random` of them instead, by `seed`; neither: the first few."""

    numbers: tuple[int, ...] | None
    random: int | None
    seed: int

    @classmethod
    def of_words(cls, rows: str | None, count: int | None, seed: int) -> RowSelection:
        """
        Args:
            rows: "0-4,17".
            count: random rows.

        Raises:
            UsageError: both, neither numbers nor ranges, or more than `MOST_ROWS`.

        >>> RowSelection.of_words("0-2,17", None, 0).numbers
        (0, 1, 2, 17)
        """
        if rows is not None and count is not None:
            raise UsageError("--rows and --random contradict each other", "Leave one of them out.")
        if count is not None and not 1 <= count <= MOST_ROWS:
            raise UsageError(f"--random {count}", f"Ask for 1 to {MOST_ROWS:,} rows.")
        if rows is None:
            return cls(None, count, seed)
        numbers: set[int] = set()
        for part in rows.split(","):
            match = RANGE.fullmatch(part.strip())
            if match is None or (match[2] and int(match[2]) < int(match[1])):
                raise UsageError(
                    f"--rows {rows}: {part.strip()!r} is neither a row nor a range", "Write --rows 0-4,17: rows are counted from 0."
                )
            low, high = int(match[1]), int(match[2] or match[1])
            if high - low >= MOST_ROWS or len(numbers := numbers | set(range(low, high + 1))) > MOST_ROWS:
                raise UsageError(f"--rows {rows} are more than {MOST_ROWS:,} rows", "Ask for fewer at a time.")
        return cls(tuple(sorted(numbers)), None, seed)

    @property
    def last(self) -> int:
        """The largest number that is asked for."""
        return DEFAULT - 1 if self.numbers is None else self.numbers[-1]

    def of(self, total: int, split: str) -> list[int]:
        """The numbers for a split of `total` rows.

        Raises:
            UsageError: it has no such row.
        """
        if self.random is not None:
            return sorted(random.Random(self.seed).sample(range(total), min(self.random, total)))
        if self.numbers is None:
            return list(range(min(DEFAULT, total)))
        if self.last >= total:
            have = f"it has {total:,}, from 0 to {total - 1:,}" if total else "it has none"
            raise UsageError(f"the split {split} has no row {self.last:,}", f"Rows are counted from 0; {have}.")
        return list(self.numbers)
