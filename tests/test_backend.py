"""What is prepared of a tokenizer: its affixes, its hash, its exact scores, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import ByT5Tokenizer

from engine_doubles import byte_level, expected, unigram, word_piece
from ftcli.core.engines.backend import prepare_backend, tokenizer_hash
from ftcli.core.engines.reference import load_reference
from ftcli.errors import TokenizerError


def test_prefix_and_suffix_are_what_the_post_processor_adds(tmp_path: Path) -> None:
    found = [
        (backend.prefix, backend.suffix)
        for backend in (prepare_backend(make(tmp_path), tmp_path) for make in (byte_level, word_piece, unigram))
    ]
    assert found == [((), ()), ((2,), (3,)), ((), (1,))]


def test_a_python_class_that_gives_other_ids_than_its_backend_is_noticed(tmp_path: Path) -> None:
    tokenizer = word_piece(tmp_path)

    class Shouting:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __call__(self, texts: list[str], **options: Any) -> dict[str, Any]:
            return {"input_ids": expected(tokenizer, [text.upper() for text in texts], add_special_tokens=options["add_special_tokens"])}

    backend = prepare_backend(Shouting(), tmp_path)  # type: ignore[arg-type]
    assert backend.json == ""
    assert any("Shouting gives other ids than its own backend" in note for note in backend.notes)


def test_a_folder_that_cannot_be_loaded_is_a_tokenizer_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        load_reference("", tmp_path, 1)


def test_the_hash_follows_what_decides_ids_and_nothing_else(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    before = tokenizer_hash(tokenizer, tmp_path)
    tokenizer.backend_tokenizer.enable_truncation(4)
    assert tokenizer_hash(tokenizer, tmp_path) == before
    assert tokenizer_hash(byte_level(tmp_path / "again"), tmp_path / "again") == before
    seen = {before}
    tokenizer.chat_template = "{{ messages }}"
    seen.add(tokenizer_hash(tokenizer, tmp_path))
    tokenizer.add_tokens(["<new>"])
    seen.add(tokenizer_hash(tokenizer, tmp_path))
    tokenizer.eos_token = "<new>"
    seen.add(tokenizer_hash(tokenizer, tmp_path))
    assert len(seen) == 4


def test_the_hash_of_a_slow_tokenizer_covers_its_files(tmp_path: Path) -> None:
    tokenizer = ByT5Tokenizer()
    tokenizer.save_pretrained(tmp_path)
    before = tokenizer_hash(tokenizer, tmp_path)
    (tmp_path / "tokenization_own.py").write_text("x = 1")
    assert tokenizer_hash(tokenizer, tmp_path) != before
