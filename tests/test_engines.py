"""The built-in engines, each with its real library."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ftcli.plugins import engines as built_in

from engine_doubles import LINES, array, byte_level, expected, offers, rows_of, unigram, word_piece
from ftcli.core.engines import guard
from ftcli.core.engines.backend import prepare_backend
from ftcli.core.engines.engine import choose_engine
from ftcli.core.engines.proof import Reference
from ftcli.errors import EngineError, MissingExtraError


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("gigatoken", byte_level),
        ("fastokens", byte_level),
        ("splintr", byte_level),
        ("splintr", word_piece),
        ("splintr", unigram),
        ("hf", byte_level),
        ("hf", unigram),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_built_in_engine_gives_the_tokenizers_ids(name: str, make: Any, threads: int, tmp_path: Path) -> None:
    tokenizer = make(tmp_path)
    backend = prepare_backend(tokenizer, tmp_path)
    factory = {engine.name: engine for engine in built_in.ENGINES}[name]
    before = dict(os.environ)
    encoder = factory().load(backend.json, tmp_path, threads)
    assert dict(os.environ) == before
    for rows in (array(LINES), array(["skipped", *LINES]).slice(1), array([]), array(["", ""]), array(LINES * 200)):
        encoded = guard.encode_checked(encoder, rows, name)
        assert rows_of(encoded) == (expected(tokenizer, rows.to_pylist(), add_special_tokens=False) if len(rows) else [])
        assert (encoded.ids.dtype, encoded.offsets.dtype) == (np.int32, np.int64)


def test_a_library_that_is_not_installed_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built_in.SplintrEngine, "distribution", "splintr-not-there")
    tokenizer, plugins = word_piece(tmp_path), offers(built_in=True)
    notes = choose_engine(tokenizer, tmp_path, plugins).notes
    assert any("engine splintr is not used: splintr-not-there is not installed" in note for note in notes)
    with pytest.raises(MissingExtraError, match="not installed") as caught:
        choose_engine(tokenizer, tmp_path, plugins, requested="splintr")
    assert caught.value.hint == "Run: pip install splintr-not-there"


def test_a_fast_engine_without_a_backend_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="gigatoken needs a fast tokenizer"):
        built_in.GigatokenEngine().load("", tmp_path, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("whole_proof")
def test_the_built_in_engines_pass_the_whole_proof_for_gpt2_like_bpe(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    plugins, shared = offers(built_in=True), Reference(tokenizer, prepare_backend(tokenizer, tmp_path), 1)
    for name in ("fastokens", "splintr"):
        choice = choose_engine(tokenizer, tmp_path, plugins, requested=name, reference=shared)
        assert choice.proof["excluded"] == 0
        assert choice.proof["strings"] > 25_000


def test_the_pool_variables_are_put_back_even_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTOKENS_BPE_THREADS", raising=False)  # a worker in the process of another test sets it for good
    monkeypatch.setenv("RAYON_NUM_THREADS", "7")
    with suppress(RuntimeError), guard.limited_pool(3):
        assert os.environ["RAYON_NUM_THREADS"] == os.environ["FASTOKENS_BPE_THREADS"] == "3"
        raise RuntimeError
    assert os.environ["RAYON_NUM_THREADS"] == "7"
    assert "FASTOKENS_BPE_THREADS" not in os.environ
