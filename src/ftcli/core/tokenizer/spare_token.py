"""An entry of a tokenizer's vocabulary that nothing uses, to serve as PAD without a new row in the embedding."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ftcli.core.arrays import values

if TYPE_CHECKING:
    from ftcli.core.storage.store import Store

PADS = ("<pad>", "[PAD]", "<|pad|>", "<PAD>", "<|PAD|>", "<|padding|>", "<|pad_token|>", "<|finetune_right_pad_id|>", "<｜▁pad▁｜>")
"""Names that published vocabularies give to an entry for padding, first those that say nothing else."""
RESERVED = re.compile(
    r"(<\|?|\[)(reserved|reserved_special_token|reserved_token|unused|unused_token|placeholder|control|special|dummy|extra)_?(\d+)(\|?>|\])",
    re.IGNORECASE,
)
"""Entries that were set aside: `<|reserved_special_token_0|>`, `<|placeholder1|>`, `[unused0]`, `[control_8]`. Not `<extra_id_0>`, which T5 was trained with."""


def spare_token(tokenizer: Any, store: Store | None, rows: int | None) -> str | None:
    """The name of such an entry, or None.

    Args:
        store: prepared data, in which its id must not stand.
        rows: rows of the model's embedding, under which its id must be; None where no model is known.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    roles = {str(token) for name, token in tokenizer.special_tokens_map.items() if name != "pad_token" and isinstance(token, str)}
    reserved = sorted((int(found[3]), name) for name in vocabulary if (found := RESERVED.fullmatch(name)))
    seen = np.zeros(max(vocabulary.values(), default=0) + 1, bool) if store is None else _seen(store, max(vocabulary.values(), default=0))
    for name in [*(name for name in PADS if name in vocabulary), *(name for _, name in reserved)]:
        number = vocabulary[name]
        if name not in roles and not seen[number] and (rows is None or number < rows):
            return name
    return None


def ends_with(store: Store, token: int) -> bool:
    """Whether a row of any split ends with that id."""
    for name in store.split_names:
        split = store.split(name)
        for chunk in split.table.column("input_ids").chunks:
            offsets, ids = values(chunk.offsets), values(chunk.values)
            last = offsets[1:][offsets[1:] > offsets[:-1]] - 1
            if (ids[last] == token).any():
                return True
    return False


def _seen(store: Store, largest: int) -> Any:
    seen = np.zeros(largest + 1, bool)
    for name in store.split_names:
        for chunk in store.split(name).table.column("input_ids").chunks:
            ids = values(chunk.values)
            seen[ids[(ids >= 0) & (ids <= largest)]] = True
    return seen
