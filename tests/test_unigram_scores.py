"""Unigram scores on their way through JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from engine_doubles import unigram, word_piece
from ftcli.core.engines.backend import prepare_backend
from ftcli.core.engines.unigram_scores import decimal_text, restore, with_surviving_scores
from ftcli.errors import EngineError

LOST = 29.052682876586914
"""No decimal of at most 64 bits of digits gives it by one division."""


def divided(text: str) -> float:
    """What a parser makes of a decimal that it takes as digits / 10^places."""
    sign = -1.0 if text.startswith("-") else 1.0
    whole, _, fraction = text.lstrip("-").partition(".")
    assert int(whole + fraction) < 2**64
    return sign * (float(int(whole + fraction)) / 10.0 ** len(fraction))


def serialised(*scores: float) -> str:
    vocabulary = [("<unk>", 0.0), *((chr(ord("a") + place), score) for place, score in enumerate(scores))]
    return str(Tokenizer(models.Unigram(vocabulary, 0, False)).to_str())


@given(st.floats(-40, 0, width=32) | st.floats(-1e6, 1e6))
def test_a_score_is_written_so_that_division_gives_it_back(score: float) -> None:
    text = decimal_text(score)
    assert text is None or divided(text) == score


@given(st.integers(0, 10**17), st.integers(0, 17))
def test_a_score_that_came_from_a_decimal_can_be_written_again(digits: int, places: int) -> None:
    assert decimal_text(-(float(digits) / 10.0**places)) is not None


@pytest.mark.parametrize("number", [0.0, -5.0, -0.5, -2.25])
def test_a_number_that_needs_nothing_is_written_as_it_is(number: float) -> None:
    assert decimal_text(number) == repr(number)


def test_scores_survive_the_parser_and_would_not_otherwise() -> None:
    text = serialised(-2.0122928619384766, -3.9598512649536133)
    assert Tokenizer.from_str(text).to_str() != text, "the parser is exact now: this module can go"
    assert Tokenizer.from_str(with_surviving_scores(text)).to_str() == text


def test_scores_that_no_decimal_gives_are_refused_by_number() -> None:
    with pytest.raises(EngineError, match="the scores of 1 of 3 tokens cannot be handed over exactly"):
        with_surviving_scores(serialised(-LOST, -1.0))


def test_a_restored_backend_has_the_exact_scores() -> None:
    text = serialised(-LOST, -2.0122928619384766)
    assert Tokenizer.from_str(text).to_str() != text
    assert restore(text).to_str() == text


def test_a_trained_unigram_tokenizer_is_restored_whole(tmp_path: Path) -> None:
    backend = prepare_backend(unigram(tmp_path), tmp_path)
    assert restore(backend.json).to_str() == backend.json
    assert Tokenizer.from_str(with_surviving_scores(backend.json)).to_str() == backend.json


def test_other_tokenizers_stay_as_they_are(tmp_path: Path) -> None:
    backend = prepare_backend(word_piece(tmp_path), tmp_path)
    assert with_surviving_scores(backend.json) == backend.json
    assert restore(backend.json).to_str() == backend.json
