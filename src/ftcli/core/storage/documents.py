"""The texts of a split as one flat array, a sample of them where there are many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ftcli.core.arrays import values
from ftcli.core.ragged import take_ranges, to_offsets
from ftcli.core.storage.store import INPUT_IDS, LABELS, Ragged, SplitData, Store
from ftcli.core.targets import IGNORED
from ftcli.core.tokenizer.tokentext import spelled

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_TOKENS = 20_000_000
"""Tokens of a split that checks of its texts look at: 1 to 2 s of CPU and 400 MB. More are sampled by row."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Text i is `ids.row(i)` and stands in row `index[i]` of its split."""

    ids: Ragged
    index: NDArray[np.int64]
    share: float
    """Part of the split's rows that was taken."""


def documents(split: SplitData, most_tokens: int = MOST_TOKENS) -> Documents:
    """Every text of a split; of packed rows each text of its own. Random rows (seed 0) where the split has more tokens."""
    rows = _chosen(split, most_tokens)
    ids = _taken(split, INPUT_IDS, rows)
    lengths, index = split.lengths[rows], rows
    if split.packed:
        found = split.rows(rows).seq_lengths
        assert found is not None
        lengths, index = found.values.astype(np.int64), np.repeat(rows, found.lengths)
    return Documents(Ragged(ids, to_offsets(lengths)), index, len(rows) / max(1, len(split)))


def prompts(split: SplitData, texts: Documents) -> Ragged:
    """What stands before the first token that is learned of each of the texts that `documents` gave; nothing of a text without such a token.

    The split must be `targeted`.
    """
    targets = _taken(split, LABELS, np.unique(texts.index))
    learned = np.append(np.flatnonzero(targets != IGNORED), len(targets))
    starts, ends = texts.ids.offsets[:-1], texts.ids.offsets[1:]
    first = learned[np.searchsorted(learned, starts)]
    lengths = np.where(first < ends, first - starts, 0)
    return Ragged(take_ranges(texts.ids.values, starts, lengths), to_offsets(lengths))


def pieces(tokenizer: PreTrainedTokenizerBase, store: Store) -> list[bytes] | None:
    """Bytes of every token that the rows of a store have, as `spelled` gives them. Of a large store those of all tokens, which is sooner told."""
    used = None
    splits = [store.split(name) for name in store.split_names]
    if sum(int(split.lengths.sum()) for split in splits) <= MOST_TOKENS:
        used = np.zeros(len(tokenizer), np.bool_)
        for chunk in (chunk for split in splits for chunk in split.table.column(INPUT_IDS).chunks):
            ids = values(chunk.values)
            used[ids[(ids >= 0) & (ids < len(used))]] = True
    return spelled(tokenizer, used)


def ended(manifest: Mapping[str, Any], eos: int) -> bool:
    """Whether `ftcli tokenize` ended every text with EOS: by its length policy, or by what the tokenizer adds to a text (T5). The parts of texts that were
    cut into several then need none."""
    policy = manifest.get("policy") or {}
    return policy.get("eos") == eos or eos in (policy.get("suffix") or ())[-1:]


def _taken(split: SplitData, column: str, rows: NDArray[np.int64]) -> NDArray[np.int32]:
    """A list column of some rows, ascending, in one array."""
    parts, first = [], 0
    for chunk in split.table.column(column).chunks:
        mine = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + len(chunk))] - first
        first += len(chunk)
        if len(mine):
            offsets = values(chunk.offsets).astype(np.int64)
            parts.append(take_ranges(values(chunk.values), offsets[mine], np.diff(offsets)[mine]))
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _chosen(split: SplitData, most_tokens: int) -> NDArray[np.int64]:
    tokens = int(split.lengths.sum())
    if tokens <= most_tokens:
        return np.arange(len(split))
    size = max(1, int(len(split) * most_tokens / tokens))
    return np.sort(np.random.default_rng(0).choice(len(split), size=size, replace=False))
