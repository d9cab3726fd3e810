"""Rows in flat arrays: the vectorised operations equal the obvious loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ftcli.core.ragged import append_where, how_often, row_hash, surround, take_ranges, to_offsets

rows = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=12)


def flat(items: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([t for row in items for t in row], np.int32), np.array([len(row) for row in items], np.int64)


def unflat(values: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    offsets = to_offsets(lengths)
    assert offsets[-1] == len(values)
    return [values[a:b].tolist() for a, b in pairwise(offsets)]


@given(rows, st.lists(st.integers(0, 9), max_size=3), st.lists(st.integers(0, 9), max_size=3))
def test_surround_puts_prefix_and_suffix_around_every_row(items, prefix, suffix):
    values, lengths = surround(*flat(items), np.array(prefix, np.int32), np.array(suffix, np.int32))
    assert unflat(values, lengths) == [prefix + row + suffix for row in items]


@given(rows, st.data())
def test_append_where_adds_the_token_to_marked_rows_only(items, data):
    marks = data.draw(st.lists(st.booleans(), min_size=len(items), max_size=len(items)))
    values, lengths = append_where(*flat(items), np.array(marks, np.bool_), 7)
    assert unflat(values, lengths) == [row + [7] * mark for row, mark in zip(items, marks, strict=True)]


@given(rows, st.data())
def test_take_ranges_joins_any_ranges(items, data):
    values, lengths = flat(items)
    starts = to_offsets(lengths)[:-1]
    wanted = [data.draw(st.integers(0, n)) for n in lengths.tolist()]
    taken = take_ranges(values, starts, np.array(wanted, np.int64))
    assert taken.tolist() == [t for row, n in zip(items, wanted, strict=True) for t in row[:n]]


@given(rows, st.integers(0, 2**40))
def test_a_row_s_hash_depends_on_its_content_and_the_seed_only(items, seed):
    together = row_hash(*flat(items), seed)
    alone = [row_hash(*flat([row]), seed)[0] for row in items]
    assert together.tolist() == alone
    assert len(set(together.tolist())) == len({tuple(row) for row in items})
    if items:
        assert row_hash(*flat(items), seed + 1)[0] != together[0]


@given(st.lists(st.integers(0, 9) | st.integers(0, 2**40), max_size=30))
def test_how_often_is_numpys_unique(lengths):
    found = how_often(np.array(lengths, np.int64))
    for ours, theirs in zip(found, np.unique(np.array(lengths, np.int64), return_counts=True), strict=True):
        assert ours.tolist() == theirs.tolist()
