"""Which tokens are learned: from characters of a rendered text to tokens, carried as one bit of the id until the rows are written.

Ids are below 2²⁸ in every vocabulary; `TARGET` marks an id as a target, so that whatever cuts, joins and packs ids keeps the mask with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftcli.contracts import Encoded, Encoder
from ftcli.core.arrays import strings
from ftcli.core.ragged import Ids, Ints, to_offsets

TARGET = np.int32(1 << 30)
IGNORED = -100
"""Label of a position that is no target, as in torch and transformers."""
Span = tuple[int, int]
"""Characters start … stop - 1 of a text."""
Locate = Callable[[str], Any]
"""A text's encoding by the reference: `ids` and `char_to_token`."""


def plain(ids: Ids) -> Ids:
    """The ids alone."""
    return ids & ~TARGET


def labels_of(ids: Ids) -> Ids:
    """A label a token, not shifted: the id itself where it is a target, else -100."""
    return np.where(ids & TARGET, ids & ~TARGET, np.int32(IGNORED))


def marked(encoder: Encoder, texts: Sequence[str], spans: Sequence[Sequence[Span]], locate: Locate | None) -> tuple[Encoded, list[int]]:
    """The ids of whole texts with those inside `spans` marked, and the rows whose borders could not be found in the tokens.

    A text is encoded whole and in the parts between the borders. Where the parts give the same ids, the borders lie between tokens and are
    known; elsewhere a token lies across a border, and the reference says which one (it counts as a target, as in transformers).

    Args:
        spans: of each text, ascending, not overlapping.
        locate: None where the tokenizer knows no characters.
    """
    whole = encoder.encode(strings(texts))
    lengths = np.diff(whole.offsets)
    parts, inside, counts = _parts(texts, spans)
    cut = encoder.encode(strings(parts))
    part_lengths = np.diff(cut.offsets)
    row_of_part = np.repeat(np.arange(len(texts)), counts)
    together = np.bincount(row_of_part, weights=part_lengths, minlength=len(texts)).astype(np.int64)
    same = together == lengths
    # rows with as many tokens either way, token by token
    kept_whole, kept_cut = np.repeat(same, lengths), np.repeat(same[row_of_part], part_lengths)
    row_of_token = np.repeat(np.arange(len(texts)), lengths)[kept_whole]
    same[row_of_token[whole.ids[kept_whole] != cut.ids[kept_cut]]] = False
    flags = np.zeros(len(whole.ids), np.bool_)
    flags[kept_whole] = np.repeat(inside, part_lengths)[kept_cut]
    lost = []
    for row in np.flatnonzero(~same).tolist():
        start, stop = int(whole.offsets[row]), int(whole.offsets[row + 1])
        found = None if locate is None else _located(locate(texts[row]), spans[row], whole.ids[start:stop])
        if found is None:
            lost.append(row)
        flags[start:stop] = False if found is None else found
    return Encoded(whole.ids | np.where(flags, TARGET, np.int32(0)), whole.offsets), lost


def _parts(texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> tuple[list[str], NDArray[np.bool_], Ints]:
    """All parts in order, whether each is inside a span, and how many a text has."""
    parts: list[str] = []
    inside: list[bool] = []
    counts = []
    for text, own in zip(texts, spans, strict=True):
        before, at = len(parts), 0
        for start, stop in own:
            for border, target in ((start, False), (stop, True)):
                if border > at:
                    parts.append(text[at:border])
                    inside.append(target)
                    at = border
        if at < len(text):
            parts.append(text[at:])
            inside.append(False)
        counts.append(len(parts) - before)
    return parts, np.array(inside, np.bool_), np.array(counts, np.int64)


def _located(encoding: Any, spans: Sequence[Span], ids: Ids) -> NDArray[np.bool_] | None:
    """Targets by the reference's offsets; None where it gives other ids."""
    if encoding.ids != ids.tolist():
        return None
    flags = np.zeros(len(ids), np.bool_)
    for start, stop in spans:
        first = next((token for token in map(encoding.char_to_token, range(start, stop)) if token is not None), None)
        last = next((token for token in map(encoding.char_to_token, range(stop - 1, start - 1, -1)) if token is not None), None)
        if first is not None and last is not None:
            flags[first : last + 1] = True
    return flags


def with_prefix(encoded: Encoded, rows: Sequence[int], prefix: Sequence[int]) -> Encoded:
    """`prefix`, which is no target, before some of the rows."""
    if not rows or not prefix:
        return encoded
    extra = np.zeros(len(encoded.offsets) - 1, np.int64)
    extra[list(rows)] = len(prefix)
    places = np.repeat(encoded.offsets[:-1][list(rows)], len(prefix))
    ids = np.insert(encoded.ids, places, np.array(list(chain.from_iterable(prefix for _ in rows)), np.int32))
    return Encoded(ids, to_offsets(np.diff(encoded.offsets) + extra))


def has_target(ids: Ids, starts: Ints, stops: Ints) -> NDArray[np.bool_]:
    """Whether the tokens start + 1 … stop - 1 of a range hold a target: nothing predicts the first one."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum((ids & TARGET) != 0)])
    found: NDArray[np.bool_] = before[stops] > before[np.minimum(starts + 1, stops)]
    return found
