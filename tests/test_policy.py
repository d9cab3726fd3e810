"""The length policy keeps its counts and never loses a token in silence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcli.contracts import Encoded
from ftcli.core.prepare.policy import Counts, LengthPolicy, TooLong
from ftcli.core.ragged import to_offsets


def encoded(rows: list[list[int]]) -> Encoded:
    lengths = np.array([len(row) for row in rows], np.int64)
    return Encoded(np.array([t for row in rows for t in row], np.int32), to_offsets(lengths))


def apply(policy: LengthPolicy, rows: list[list[int]]) -> tuple[list[list[int]], list[int], Counts]:
    counts = Counts()
    documents = policy.apply(encoded(rows), counts)
    offsets = to_offsets(documents.lengths)
    return [documents.ids[a:b].tolist() for a, b in pairwise(offsets)], documents.source.tolist(), counts


def test_special_tokens_survive_truncation():
    policy = LengthPolicy(5, 1, "keep_start", prefix=(101,), suffix=(102,))
    out, _, counts = apply(policy, [[1, 2, 3, 4, 5], [1, 2]])
    assert out == [[101, 1, 2, 3, 102], [101, 1, 2, 102]]
    assert (counts.rows_truncated, counts.tokens_cut) == (1, 2)


def test_keep_end_keeps_the_end():
    assert apply(LengthPolicy(3, 1, "keep_end"), [[1, 2, 3, 4, 5]])[0] == [[3, 4, 5]]


def test_split_gives_every_part_its_special_tokens_and_the_same_source():
    out, source, counts = apply(LengthPolicy(4, 1, "split", prefix=(9,)), [[1, 2, 3, 4], [5]])
    assert out == [[9, 1, 2, 3], [9, 4], [9, 5]]
    assert source == [0, 0, 1]
    assert counts.texts_split == 1
    assert counts.tokens_cut == 0


def test_drop_filters_and_counts():
    out, source, counts = apply(LengthPolicy(3, 1, "drop"), [[1, 2, 3, 4], [5], []])
    assert out == [[5]]
    assert source == [1]
    assert (counts.rows_read, counts.rows_filtered) == (3, 2)


def test_error_names_the_text_and_its_length():
    with pytest.raises(TooLong) as found:
        apply(LengthPolicy(3, 1, "error"), [[1], [1, 2, 3, 4], [], [1] * 5])
    assert (found.value.rows, found.value.limit) == ({1: 4, 3: 5}, 3)


def test_a_text_without_tokens_is_not_lost_when_others_are_split():
    out, source, counts = apply(LengthPolicy(2, 0, "split"), [[], [3, 3, 3]])
    assert out == [[], [3, 3], [3]]
    assert (source, counts.parts_added, counts.texts_split) == ([0, 1, 1], 1, 1)


def test_eos_is_never_doubled():
    assert apply(LengthPolicy(9, 0, "keep_start", eos=2), [[1, 2], [1], []])[0] == [[1, 2], [1, 2], [2]]


def test_a_packed_long_text_has_one_eos_at_its_very_end():
    out, _, _ = apply(LengthPolicy(3, 1, "split", eos=2, packed=True), [[5, 6, 7]])
    assert out == [[5, 6, 7], [2]]


@given(
    st.lists(st.lists(st.integers(3, 99), max_size=12), max_size=8),
    st.integers(2, 8),
    st.integers(0, 3),
    st.sampled_from(["keep_start", "keep_end", "drop", "split"]),
    st.booleans(),
    st.booleans(),
)
def test_tokens_in_equal_tokens_out_plus_cut_plus_filtered(rows, max_length, min_length, truncation, packed, eos):
    policy = LengthPolicy(max_length, min_length, truncation, eos=2 if eos else None, packed=packed)
    out, source, counts = apply(policy, rows)
    assert all(0 < len(row) <= max_length for row in out) or min_length == 0
    assert counts.rows_read == len(rows) == len(set(source)) + counts.rows_filtered
    body = sum(token != 2 for row in out for token in row)
    kept = sum(len(rows[i]) for i in set(source))
    cut_eos = 0 if not (packed and eos) else len(set(source)) - sum(token == 2 for row in out for token in row)
    assert body + counts.tokens_cut - cut_eos == kept
