"""Packs of a plugin are looked at before anything is written; what would lose, double or overfill is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcli.contracts import Packs
from ftcli.core.prepare.pack import BestFit, Concat, Single
from ftcli.core.prepare.packs import pack
from ftcli.errors import PluginError

LENGTHS = np.array([3, 2, 4])
GOOD = {"document": [0, 1, 2], "start": [0, 0, 0], "length": [3, 2, 4], "pack_offsets": [0, 2, 3]}


class Stub:
    """A packer with one answer."""

    name = "stub"
    splits = False

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def pack(self, lengths: Any, max_length: int) -> Any:
        return self.answer


def packs(**changed: Any) -> Packs:
    return Packs(**{name: np.array(value) for name, value in {**GOOD, **changed}.items()})


def test_what_a_packer_of_a_plugin_raises_is_named_with_it_and_a_bug_of_ours_stays_one() -> None:
    class Broken(Stub):
        def pack(self, lengths: Any, max_length: int) -> Any:
            raise IndexError("no pack")

    with pytest.raises(PluginError, match=r"the packer stub of plugin 'mine' broke: IndexError: no pack \(test_packs.py, line \d+\)"):
        pack(Broken(None), LENGTHS, 5, "mine")
    with pytest.raises(IndexError):
        pack(Broken(None), LENGTHS, 5, None)


def test_sound_packs_are_given_on() -> None:
    answer = packs()

    assert pack(Stub(answer), LENGTHS, 5, "mine") is answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "returned NoneType, not Packs"),
        (Packs([0], [0], [3], [0, 1]), "a document that is not an integer array"),  # type: ignore[arg-type]
        (packs(length=[3.0, 2.0, 4.0]), "a length that is not an integer array"),
        (packs(start=[0, 0]), "3 documents, 2 starts and 3 lengths"),
        (packs(pack_offsets=[0, 2]), "do not run from 0 to its 3 parts"),
        (packs(pack_offsets=[0, 3, 2, 3]), "do not run from 0"),
        (packs(document=[0, 1, 3]), "a document that is not among the 3"),
        (packs(document=[0, 2], start=[0, 0], length=[3, 4], pack_offsets=[0, 1, 2]), "0 of the 2 tokens of document 1"),
        (packs(length=[3, 2, 3]), "3 of the 4 tokens of document 2"),
        (
            packs(document=[0, 1, 2, 2], start=[0, 0, 0, 0], length=[3, 2, 2, 2], pack_offsets=[0, 2, 4]),
            "tokens of document 2 into packs twice",
        ),
        (packs(start=[0, 0, 1]), "tokens of document 2 into packs twice"),
        (packs(pack_offsets=[0, 3]), "makes a pack of 9 tokens, where 5 fit"),
    ],
)
def test_packs_that_would_lose_double_or_overfill_are_refused(answer: Any, words: str) -> None:
    with pytest.raises(PluginError, match=f"the packer stub of plugin 'mine' .*{words}") as caught:
        pack(Stub(answer), LENGTHS, 5, "mine")
    assert "Packs" in caught.value.hint


def test_packs_of_our_own_are_taken_as_they_are() -> None:
    assert pack(Stub(None), LENGTHS, 5, None) is None


@given(st.lists(st.integers(0, 12), max_size=20), st.sampled_from([Single, Concat, BestFit]))
def test_no_sound_packer_is_refused(lengths: list[int], packer: Any) -> None:
    documents = np.array(lengths, np.int64)

    assert isinstance(pack(packer(), documents, 12, "mine"), Packs)
