"""The first batch in words: what each row really says, with its label and its documents."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftcli.core.store import Rows

SHOWN_CHARACTERS = 300
SHOWN_IDS = 12


def token_places(ids: NDArray[np.int64], rows: Rows) -> NDArray[np.bool_]:
    """Where the rows' tokens stand in a batch [rows, width]: at its beginning or its end. A row whose tokens are not there has no place."""
    places = np.zeros(ids.shape, np.bool_)
    for row in range(min(len(ids), len(rows))):
        tokens = rows.input_ids.row(row)
        for side in (np.s_[: len(tokens)], np.s_[ids.shape[1] - len(tokens) :]):
            if len(tokens) <= ids.shape[1] and (ids[row, side] == tokens).all():
                places[row, side] = True
                break
    return places


def decoded_rows(rows: Rows, tokenizer: Any, label_names: list[str] | None) -> list[dict[str, Any]]:
    """Rows as people read them: row number, text (special tokens shown), label, tokens, first ids, documents."""
    shown = []
    for place in range(len(rows)):
        ids = rows.input_ids.row(place)
        text = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        label = None if rows.labels is None else int(rows.labels[place])
        entry: dict[str, Any] = {
            "row": int(rows.index[place]),
            "text": text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …",
            "label": label if label is None or label_names is None or not 0 <= label < len(label_names) else label_names[label],
            "tokens": len(ids),
            "ids": ids[:SHOWN_IDS].tolist(),
        }
        if rows.seq_lengths is not None:
            entry["documents"] = rows.seq_lengths.row(place).tolist()
        shown.append(entry)
    return shown
