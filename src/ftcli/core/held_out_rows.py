"""How few held-out rows are too few for a figure, and what to do."""

from __future__ import annotations

import math
from typing import Literal

FEWEST, FEWEST_TEXTS, FEWEST_TOKENS = 30, 10, 1_000
"""Rows with an answer each; texts of a language model, and their tokens. Judgements: of 30 rows an accuracy has a standard error of up to 9 points."""
Figure = Literal["accuracy", "exact_match", "correlation"]
"""What an evaluation says of labels, of any number of labels a row, and of numbers."""


def too_few(
    count: int, tokens: int, figure: Figure | None = None, *, packs: int = 0, conversations: bool = False, parts: bool = False
) -> str | None:
    """What so few rows mean, in words; None: they are enough. No rows at all are something else.

    Args:
        count: rows, or the texts of packs.
        figure: of the answers that every row has; None: tokens are predicted.
        packs: rows that hold these texts; 0: each is a row.
        parts: some of the texts may be parts of one.
    """
    if figure is not None:
        return None if count >= FEWEST else f"{_counted(count, 'row')}, of which {_error(figure, count)}"
    if count >= FEWEST_TEXTS and tokens >= FEWEST_TOKENS:
        return None
    kind = "conversation" if conversations else "text" if packs else "row"
    words = (
        _counted(count, kind) + (f" or parts of {kind}s" if packs and parts else "") + (f" ({_counted(packs, 'pack')})" if packs else "")
    )
    return (
        f"{words} of {tokens:,} tokens, whose loss says more about these {'conversations' if conversations else 'texts'} than about others"
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _error(figure: Figure, rows: int) -> str:
    if figure == "correlation":
        return f"a correlation has a standard error of up to {1 / math.sqrt(rows - 1):.2f}" if rows > 2 else "there is no correlation"
    return f"{'an accuracy' if figure == 'accuracy' else 'the exact match'} has a standard error of up to {50 / math.sqrt(rows):.0f} points"


def more(split: str) -> str:
    """How a split gets more rows, in a sentence."""
    fraction = "--test-fraction" if split == "test" else "--validation-fraction"
    return f"Hold out more of the train rows ({fraction} 0.05 and more, or another --split-seed), or give a file of more rows for {split}."
