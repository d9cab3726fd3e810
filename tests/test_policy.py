"""The length policy keeps its counts and never loses a token in silence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcli.contracts import Encoded
from ftcli.core.prepare.pairs import SECOND, PairTemplate
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


@pytest.mark.parametrize("packed", [False, True])
def test_special_tokens_and_eos_survive_truncation_in_packs_as_elsewhere(packed: bool) -> None:
    """A text cut to its beginning lost the EOS that ends it in a pack, and one cut to its end the BOS."""
    for kept, text in (("keep_start", [5, 6]), ("keep_end", [7, 8])):
        for values, wanted in (
            ({"prefix": (1,), "suffix": (2,)}, [1, *text, 2]),
            ({"prefix": (1,), "eos": 2}, [1, *text, 2]),
        ):
            out, _, counts = apply(LengthPolicy(4, 1, kept, packed=packed, **values), [[5, 6, 7, 8], [9], [5, 6, 7, 8]])
            assert out == [wanted, [1, 9, 2], wanted]
            assert (counts.rows_truncated, counts.tokens_cut) == (2, 4)
    assert apply(LengthPolicy(3, 1, "keep_start", eos=2, packed=packed), [[5, 6, 7, 2], [5, 6, 2]])[0] == [[5, 6, 2], [5, 6, 2]]


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


SPLIT = [[5, 6, 7, 2], [5, 6, 7, 2], [5, 6, 7], [8, 2], [5, 6, 7], [8, 2]]


@pytest.mark.parametrize(
    ("truncation", "out", "cut", "mark"),
    [
        *(("keep_start", [[5, 6, 7, 2], [5, 6, 7, 2], [5, 6, 7, 2], [5, 6, 7, 2]], 2, mark) for mark in (0, int(SECOND))),
        *(("keep_end", [[5, 6, 7, 2], [5, 6, 7, 2], [6, 7, 8, 2], [6, 7, 8, 2]], 2, mark) for mark in (0, int(SECOND))),
        *(("drop", [[5, 6, 7, 2], [5, 6, 7, 2]], 0, mark) for mark in (0, int(SECOND))),
        *(("error", [2, 3], 0, mark) for mark in (0, int(SECOND))),
        ("split", SPLIT, 0, 0),  # pairs are not split
    ],
)
def test_an_eos_of_a_texts_own_takes_the_place_of_the_one_that_would_be_added(truncation, out, cut, mark):
    pair = PairTemplate((), (), (), types=False) if mark else None
    rows = [[id_ | mark for id_ in row] for row in ([5, 6, 7], [5, 6, 7, 2], [5, 6, 7, 8], [5, 6, 7, 8, 2])]
    policy = LengthPolicy(4, 1, truncation, eos=2, pair=pair)
    if truncation == "error":
        with pytest.raises(TooLong) as found:
            apply(policy, rows)
        assert (found.value.rows, found.value.limit) == (dict.fromkeys(out, 4), 3)
        return
    got, _, counts = apply(policy, rows)
    assert [[id_ & ~int(SECOND) for id_ in row] for row in got] == out
    assert (counts.tokens_cut, counts.rows_truncated) == (cut, cut)


@pytest.mark.parametrize("parts_end", [False, True])
def test_a_split_text_ends_once_unless_its_parts_are_judged_alone(parts_end):
    out, source, _ = apply(LengthPolicy(4, 0, "split", prefix=(9,), eos=2, parts_end=parts_end), [[5, 6, 7], [8], []])
    assert out == [[9, 5, 6, *([2] if parts_end else [])], [9, 7, 2], [9, 8, 2], [9, 2]]
    assert source == [0, 0, 1, 2]


@pytest.mark.parametrize("kept", ["keep_start", "keep_end"])
def test_of_a_pair_whose_first_text_is_cut_the_second_keeps_its_eos(kept):
    second = [id_ | int(SECOND) for id_ in (8, 2)]
    out, _, counts = apply(LengthPolicy(4, 1, kept, eos=2, pair=PairTemplate((), (), (), types=False)), [[5, 6, 7, *second]])
    assert out == [[*([5, 6] if kept == "keep_start" else [6, 7]), *second]]
    assert (counts.tokens_cut, counts.rows_truncated) == (1, 1)


def test_a_packed_text_that_fits_with_its_own_eos_is_not_dropped():
    out, _, counts = apply(LengthPolicy(4, 1, "drop", eos=2, packed=True), [[5, 6, 7, 2], [5, 6, 7, 8]])
    assert (out, counts.rows_too_long) == ([[5, 6, 7, 2]], 1)


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
    assert body + counts.tokens_cut == kept
    assert sum(token == 2 for row in out for token in row) >= (len(set(source)) if eos else 0)
