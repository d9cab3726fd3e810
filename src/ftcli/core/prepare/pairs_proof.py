"""What a run's tokenizer makes of two texts, proved on the first rows of the data before the fingerprint is settled."""

from __future__ import annotations

from typing import Any

import numpy as np

from ftcli.context import Context
from ftcli.core.engines.backend import Backend
from ftcli.core.prepare.beginning import first_batches
from ftcli.core.prepare.pairs import PairTemplate, template_of_pairs, unmarked
from ftcli.core.reading.read import Plan
from ftcli.errors import TokenizerError

ROWS = 200
"""0.1 s of BERT's tokenizer, of short texts."""


def proved_pairs(context: Context, plan: Plan, tokenizer: Any, backend: Backend) -> PairTemplate:
    """The template; what the tokenizer puts between the texts is noted.

    Raises:
        TokenizerError: no fixed tokens stand around a pair.
        DataError: the first rows cannot be read.
    """
    special = context.settings.tokenizer.add_special_tokens
    if special and (not backend.constant or backend.ends is not None):
        raise TokenizerError(
            "the tokenizer does not add the same prefix and suffix to every text, so it cannot prepare text pairs",
            "Use --no-add-special-tokens, or join the two texts in one column.",
        )
    rows: list[tuple[str, str]] = []
    for _, batch in first_batches(context, plan):
        few = batch.slice(0, ROWS - len(rows))
        rows += zip(few.column("text").to_pylist(), few.column("pair").to_pylist(), strict=True)
        if len(rows) == ROWS:
            break
    template = template_of_pairs(tokenizer, rows, special=special)
    between = tokenizer.convert_ids_to_tokens(unmarked(np.array(template.middle, np.int32)).tolist())
    if between:
        types = "; token_type_ids tell the two texts apart" if template.types else ""
        context.note(f"text pairs: {' '.join(between)} between them{types}")
    else:
        context.note(
            "pairs of texts: this tokenizer puts nothing between them, so that the model cannot see where the second begins; "
            "end the first text with a separator of your own, or take a tokenizer that knows pairs"
        )
    return template
