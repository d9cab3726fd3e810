"""How few held-out rows are too few for a figure, and what to do."""

from __future__ import annotations

import math

FEWEST, FEWEST_TEXTS, FEWEST_TOKENS = 30, 10, 1_000
"""Rows with an answer each; texts of a language model, and their tokens. Judgements: of 30 rows an accuracy has a standard error of up to 9 points."""


def too_few(texts: int, tokens: int, *, answers: bool) -> str | None:
    """What so few rows mean, in words; None: they are enough. No rows at all are something else.

    Args:
        answers: every text has labels or a number; else its tokens are predicted.
    """
    if answers and texts < FEWEST:
        points = 50 / math.sqrt(texts)
        return f"{texts:,} row{'s' * (texts > 1)}, of which an accuracy has a standard error of up to {points:.0f} points"
    if not answers and (texts < FEWEST_TEXTS or tokens < FEWEST_TOKENS):
        return f"{texts:,} row{'s' * (texts > 1)} of {tokens:,} tokens, whose loss says more about these texts than about others"
    return None


def more(split: str) -> str:
    """How a split gets more rows, in a sentence."""
    fraction = "--test-fraction" if split == "test" else "--validation-fraction"
    return f"Hold out more of the train rows ({fraction} 0.05 and more, or another --split-seed), or give a file of more rows for {split}."
