"""How much of a batch a check of a large model gets, so that verify stays within a minute: counted in arithmetic and not in seconds, so that a loaded machine
looks at the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers import PreTrainedModel

from ftcli.core.models.flops import multiplied
from ftcli.core.storage.few_rows import Few, cut
from ftcli.core.storage.store import Rows

WORK = 4e11
"""FLOPs of a check: 10 s at 40 GFLOP/s, which two slow cores do in fp32. A model of 10 million weights is never cut by it."""
ROW_TOKENS = 16
"""Of a row, before rows are left out."""


def affordable(model: PreTrainedModel, passes: float, least: int) -> int:
    """Places of a batch (padding included) that can go through the model `passes` times within `WORK`, `least` at the least. A backward pass counts two."""
    return max(least, int(WORK / (2 * passes * max(1, multiplied(model)))))


def within(rows: Rows, places: int) -> Rows:
    """The beginnings of the first rows, so that they and their padding take at most `places`; the rows themselves where they do."""
    longest = int(rows.input_ids.lengths.max(initial=1))
    if len(rows) * longest <= places:
        return rows
    count = min(len(rows), max(2, places // min(longest, ROW_TOKENS)))
    return cut(Few(rows).rows(np.arange(count)), max(2, places // count))


def told(rows: Rows, given: Rows) -> dict[str, Any]:
    """Evidence of what was left out of the `given` rows; nothing where all of it was looked at."""
    tokens, of = int(rows.input_ids.lengths.sum()), int(given.input_ids.lengths.sum())
    return {} if tokens == of else {"cut_for_time": {"rows": len(rows), "of_rows": len(given), "tokens": tokens, "of_tokens": of}}
