"""Rows of two texts: what the tokenizer puts around them, how the longer one is cut, and which tokens are the second text's.

From encoding to writing a row is one list of ids in which those of the second text carry the mark `SECOND`, so that whatever cuts, joins and splits rows
need not know of pairs. What ends up in the data are the ids, and where the tokenizer wants them the token types, of `tokenizer(text, text_pair)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations_with_replacement, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ftcli.contracts import Encoded
from ftcli.core.engines.row_encoder import RowEncoder
from ftcli.core.ragged import Ids, Ints, take_ranges, to_offsets
from ftcli.errors import TokenizerError

SECOND = np.int32(1 << 29)
"""Marks a token of the second text, and a token that the tokenizer adds with the second text's type. Ids are below 2²⁸ in every vocabulary."""
TYPES = "token_type_ids"
Parts = tuple[list[int], ...]
"""Of what stands before, between and behind two texts."""
_PROBES = (
    ("", ""),
    ("a", "b"),
    ("Hello, world!", "안녕하세요 세계"),
    ("", "a"),
    ("a", ""),
    ("  two  spaces ", "한 1\n\n2"),
    ("one. two", "one. two"),
)


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """Ids before, between and behind two texts; those with the second text's type carry its mark."""

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    types: bool
    """Whether the model wants to be told which tokens are the second text's."""
    slow: bool = False
    """Of a tokenizer in Python, which cuts two long texts otherwise (`cut_pairs`)."""

    @property
    def ending(self) -> tuple[int, ...]:
        """The ids behind both texts, without marks."""
        return tuple(id_ & ~int(SECOND) for id_ in self.suffix)

    @property
    def added(self) -> int:
        """Tokens beside those of the texts."""
        return len(self.prefix) + len(self.middle) + len(self.suffix)


def template_of_pairs(tokenizer: Any, rows: Sequence[tuple[str, str]], *, special: bool) -> PairTemplate:
    """What the tokenizer makes of two texts, found on probes and compared on rows of the data.

    Args:
        rows: pairs of the data.
        special: whether the tokenizer's own tokens are added.

    Raises:
        TokenizerError: it does not put the same tokens around every pair, or tells them apart by more than two types.
    """
    types = TYPES in tokenizer.model_input_names
    pairs = [*_PROBES, *rows]
    texts, others = [one for one, _ in pairs], [other for _, other in pairs]
    options: dict[str, Any] = {"return_attention_mask": False, "verbose": False, "truncation": False, "padding": False}
    plain = {"add_special_tokens": False, "return_token_type_ids": False, **options}
    first, second = tokenizer(texts, **plain)["input_ids"], tokenizer(others, **plain)["input_ids"]
    both = tokenizer(texts, others, add_special_tokens=special, return_token_type_ids=types, **options)
    around = _around(first, second, both["input_ids"])
    kinds = _kinds(around, first[1], second[1], both[TYPES][1]) if types else None
    if kinds is not None:
        around = tuple(_marked(*part) for part in zip(around, kinds, strict=True))
    before, between, behind = around
    return PairTemplate(tuple(before), tuple(between), tuple(behind), types=kinds is not None, slow=not getattr(tokenizer, "is_fast", True))


def _marked(ids: list[int], kinds: list[int]) -> list[int]:
    return [int(id_ | SECOND) if kind else id_ for id_, kind in zip(ids, kinds, strict=True)]


def _around(first: Sequence[list[int]], second: Sequence[list[int]], both: Sequence[list[int]]) -> Parts:
    """The ids that stand before, between and behind all pairs, of which the first is empty."""
    ids = both[0]
    for start, stop in combinations_with_replacement(range(len(ids) + 1), 2):
        before, between, behind = ids[:start], ids[start:stop], ids[stop:]
        if all([*before, *one, *between, *other, *behind] == whole for one, other, whole in zip(first, second, both, strict=True)):
            return before, between, behind
    raise TokenizerError(
        "the tokenizer adds different special tokens to different text pairs",
        "Join the two texts in one column, or use another tokenizer.",
    )


def _kinds(around: Parts, first: list[int], second: list[int], types: list[int]) -> Parts | None:
    """The types of the ids around a pair; None where all tokens have one type, which says nothing."""
    ends = [0, *accumulate(map(len, (around[0], first, around[1], second, around[2])))]
    before, one, between, other, behind = (types[start:stop] for start, stop in pairwise(ends))
    if not any(types):
        return None
    if set(types) - {0, 1} or any(one) or not all(other):
        raise TokenizerError(f"the tokenizer tells the tokens of a pair apart by the types {types}", "Only 0 and then 1 can be prepared.")
    return before, between, behind


def encode_pairs(encoder: RowEncoder, texts: pa.Array, others: pa.Array) -> Encoded:
    """Ids of both texts of every row, one behind the other, those of the second marked; no special tokens."""
    first, second = encoder.encode(texts), encoder.encode(others)
    lengths = np.stack([np.diff(first.offsets), np.diff(second.offsets)], axis=1)
    starts = np.stack([first.offsets[:-1], len(first.ids) + second.offsets[:-1]], axis=1)
    ids = take_ranges(np.concatenate([first.ids, second.ids | SECOND]), starts.ravel(), lengths.ravel())
    return Encoded(ids, to_offsets(lengths.sum(1)))


def second_lengths(ids: Ids, starts: Ints, lengths: Ints) -> Ints:
    """How many tokens of each range are the second text's."""
    before = to_offsets(((ids & SECOND) != 0).astype(np.int64))
    found: Ints = before[starts + lengths] - before[starts]
    return found


def cut_pairs(first: Ints, second: Ints, room: int, *, slow: bool = False) -> tuple[Ints, Ints]:
    """How many tokens of each text stay where both together may have `room`: the longer one is cut first, as by `truncation="longest_first"`. Of two
    texts longer than half of it the longer one keeps one more in an odd room with a fast tokenizer, and the first one with a `slow` one."""
    if slow:
        kept = np.where(second <= room // 2, room - second, np.minimum(first, room - room // 2))
        kept = np.where(first + second <= room, first, kept)
        return kept, np.minimum(second, room - kept)
    short = np.minimum(first, second)
    kept = np.where(short > room, short, np.maximum(short, room - short))
    both = short + kept > room
    short, kept = np.where(both, room // 2, short), np.where(both, room // 2 + room % 2, kept)
    fits = first + second <= room
    swapped = first > second
    left, right = np.where(swapped, kept, short), np.where(swapped, short, kept)
    return np.where(fits, first, left), np.where(fits, second, right)


def composed(
    template: PairTemplate, ids: Ids, starts: Ints, lengths: tuple[Ints, Ints], kept: tuple[Ints, Ints], *, ends: bool
) -> tuple[Ids, Ints]:
    """Rows of two texts with what the tokenizer puts around them, joined, and their lengths.

    Args:
        ids: texts of a batch, [tokens].
        starts: where each row's first text begins in them; the second follows it.
        lengths, kept: tokens of both texts, and how many of them stay.
        ends: the ends of the texts stay, not the beginnings.
    """
    around = [np.array(part, np.int32) for part in (template.prefix, template.middle, template.suffix)]
    fixed = len(ids) + np.cumsum([0, *map(len, around)])
    dropped = [one - stays if ends else np.zeros_like(one) for one, stays in zip(lengths, kept, strict=True)]
    rows = len(starts)
    begins = np.stack(
        [
            np.full(rows, fixed[0]),
            starts + dropped[0],
            np.full(rows, fixed[1]),
            starts + lengths[0] + dropped[1],
            np.full(rows, fixed[2]),
        ],
        axis=1,
    )
    sizes = np.stack(
        [np.full(rows, len(around[0])), kept[0], np.full(rows, len(around[1])), kept[1], np.full(rows, len(around[2]))], axis=1
    ).astype(np.int64)
    return take_ranges(np.concatenate([ids, *around]), begins.ravel(), sizes.ravel()), sizes.sum(1)


def types_of(ids: Ids) -> NDArray[np.int8]:
    """0 for a token of the first text, 1 for one of the second, as the tokenizer has them."""
    types: NDArray[np.int8] = ((ids & SECOND) != 0).astype(np.int8)
    return types


def unmarked(ids: Ids) -> Ids:
    """The ids alone."""
    return ids & ~SECOND
