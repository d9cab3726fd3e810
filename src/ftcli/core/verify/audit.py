"""The first batch in words: what each row really says, with its label and its documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftcli.core.storage.label_flags import names_of
from ftcli.core.storage.store import Rows

IGNORED = -100
"""As `ftcli.core.batches.tasks.IGNORED`, which imports torch."""
SHOWN_CHARACTERS = 300
SHOWN_IDS = 12
SHOWN_RUNS = 6
BOUNDARY = " ‖ "
"""Between the documents of a pack."""


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
    """Rows as people read them: row number, text (special tokens shown, `BOUNDARY` between documents), label, tokens, first ids, documents."""
    shown = []
    for place in range(len(rows)):
        ids = rows.input_ids.row(place)
        text = BOUNDARY.join(tokenizer.decode(part.tolist(), skip_special_tokens=False) for part in _documents(rows, place))
        label = None if rows.labels is None else int(rows.labels[place])
        several = None if rows.flags is None else ", ".join(names_of(rows.flags[place], label_names)) or "(none)"
        entry: dict[str, Any] = {
            "row": int(rows.index[place]),
            "text": text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …",
            "label": several
            if several is not None
            else float(rows.numbers[place])
            if rows.numbers is not None
            else label
            if label is None or label_names is None or not 0 <= label < len(label_names)
            else label_names[label],
            "tokens": len(ids),
            "ids": ids[:SHOWN_IDS].tolist(),
        }
        if rows.seq_lengths is not None:
            entry["documents"] = rows.seq_lengths.row(place).tolist()
        shown.append(entry)
    return shown


def batch_runs(batch: Mapping[str, Any], row: int) -> dict[str, str]:
    """What the collator added to a row, in runs of equal values: "mask" ("15×1 56×0"), "positions" ("0–14 0–20") and, of a label a token, "targets"
    ("1×no 14×yes 56×no")."""
    found: dict[str, str] = {}
    mask, positions, labels = (batch.get(name) for name in ("attention_mask", "position_ids", "labels"))
    if mask is not None and mask.ndim == 2:
        found["mask"] = _runs(mask[row].tolist())
    if positions is not None and positions.ndim == 2:
        values = positions[row].numpy()
        parts = np.split(values, np.flatnonzero(np.diff(values) != 1) + 1)
        found["positions"] = _short([f"{part[0]}–{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts])
    if labels is not None and labels.ndim == 2 and not labels.is_floating_point():
        found["targets"] = _runs(["no" if label == IGNORED else "yes" for label in labels[row].tolist()])
    return found


def _documents(rows: Rows, place: int) -> list[NDArray[np.int32]]:
    ids = rows.input_ids.row(place)
    return [ids] if rows.seq_lengths is None else np.split(ids, np.cumsum(rows.seq_lengths.row(place))[:-1])


def _runs(values: Sequence[Any]) -> str:
    return _short([f"{len(list(same))}×{value}" for value, same in groupby(values)])


def _short(parts: list[str]) -> str:
    return " ".join(parts[:SHOWN_RUNS]) + (f" … ({len(parts)})" if len(parts) > SHOWN_RUNS else "")
