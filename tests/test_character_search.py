"""Texts that hold one of some characters are found, and no others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcli.core.engines import character_search
from ftcli.core.engines.character_search import CharacterSearch

CHARACTERS = st.characters(codec="utf-8")


@given(st.text(CHARACTERS, max_size=8), st.lists(st.text(CHARACTERS, max_size=12), max_size=12), st.data())
def test_it_marks_exactly_the_texts_that_hold_one(characters: str, texts: list[str], data: st.DataObject) -> None:
    if characters:
        texts = [text + data.draw(st.sampled_from(["", characters[0], chr(ord("a"))])) for text in texts]
    expected = [any(character in text for character in characters) for text in texts]
    padding = ["x" + characters + "x"]  # what lies before and behind a slice is not looked at

    marked = CharacterSearch(characters).marked(pa.array(padding + texts + padding, pa.large_string()).slice(1, len(texts)))

    assert marked is None if not any(expected) else np.array_equal(marked, expected)


@given(st.text(CHARACTERS, min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 9), st.booleans())
def test_a_character_on_the_border_of_two_chunks_is_found(characters: str, chunk: int, before: int, last: bool) -> None:
    text = "x" * before + characters[0] + ("" if last else "x" * 9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(character_search, "CHUNK", chunk)
        marked = CharacterSearch(characters).marked(pa.array([text, "y"], pa.large_string()))

    assert marked is not None
    assert marked.tolist() == [True, "y" in characters]


def test_a_beginning_that_many_characters_share_is_not_enough() -> None:
    rare = CharacterSearch("\ua7cb")  # begins with the byte of most Korean syllables

    assert rare.marked(pa.array(["가나다", "각"], pa.large_string())) is None
    assert rare
    assert not CharacterSearch("")
