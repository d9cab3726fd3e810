"""A tokenizer that loses the text is told of before the work, in every run; one that knows it is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ftcli.core.engines import known_tokenizer
from ftcli.core.engines.reference import BackendEncoder
from ftcli.testing import TEXTS
from tokenizing import corpus, prepare, small_tokenizers, without_plots, write

kinds = small_tokenizers
no_html = without_plots
pytestmark = pytest.mark.usefixtures("no_html")

KOREAN = [text for text in TEXTS if not text.isascii()]


def classed(kind: Path, folder: Path, name: str) -> Path:
    """A copy of a tokenizer that AutoTokenizer reads by another class than its tokenizer.json was made with."""
    shutil.copytree(kind, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": name}))
    return folder


def said(tokenizer: Path, texts: list[str], output: Path) -> list[str]:
    source = write(output.parent / f"{output.name}.jsonl", texts)
    notes = prepare(tokenizer, source, output, runtime__cache_dir=output.parent / "cache").notes
    return [note for note in notes if "loses much of the text" in note]


def test_letters_that_vanish_by_a_class_that_is_not_the_file_s_are_told_before_the_work_and_again(
    kinds: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real case: a Korean WordPiece tokenizer.json whose tokenizer_class is RobertaTokenizer, of which AutoTokenizer makes a byte-level BPE."""
    folder = classed(kinds["wordpiece"], tmp_path / "tokenizer", "RobertaTokenizer")
    texts = ["안녕", *KOREAN]
    (note,) = said(folder, texts, tmp_path / "one")
    assert "of the characters of 5 rows do not come back from their ids: '안녕' comes back as ''" in note
    assert "set tokenizer_class to PreTrainedTokenizerFast" in note
    assert f"ftcli verify --tokenizer-path {folder} --dataset {tmp_path / 'one.jsonl'} says more" in note

    loads = []
    monkeypatch.setattr(known_tokenizer, "BackendEncoder", lambda *given: loads.append(given) or BackendEncoder(*given))
    shutil.copy(tmp_path / "one.jsonl", tmp_path / "two.jsonl")
    assert said(folder, texts, tmp_path / "two") == [note.replace("one.jsonl", "two.jsonl")]
    rows = len(loads)  # of the ids that the engine is compared with
    said(folder, texts, tmp_path / "three")
    assert len(loads) == rows
    (note,) = said(folder, [text + "." for text in texts], tmp_path / "other")
    assert "'안녕.' comes back as '.'" in note


def test_a_text_of_unknown_tokens_is_told_and_some_of_them_are_not(kinds: dict[str, Path], tmp_path: Path) -> None:
    (note,) = said(kinds["wordpiece"], ["⅋ ↯ ok", "⅋ fine"], tmp_path / "many")
    assert "37.5\xa0% of the tokens of 2 rows are '[UNK]', as in '⅋ ↯ ok'. Use a tokenizer made for this text" in note
    assert said(kinds["wordpiece"], ["⅋ " + " ".join(TEXTS)], tmp_path / "few") == []


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_a_tokenizer_that_knows_the_text_is_not_told_of(kind: str, kinds: dict[str, Path], tmp_path: Path) -> None:
    assert [said(kinds[kind], corpus(60), tmp_path / name) for name in ("first", "again")] == [[], []]


def test_where_the_file_itself_loses_the_text_no_class_is_blamed(kinds: dict[str, Path], tmp_path: Path) -> None:
    folder = classed(kinds["bpe"], tmp_path / "tokenizer", "PreTrainedTokenizerFast")
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    document["normalizer"] = {"type": "Replace", "pattern": {"Regex": r"\p{L}"}, "content": ""}
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    (note,) = said(folder, KOREAN, tmp_path / "out")
    assert "do not come back from their ids" in note
    assert "Use a tokenizer made for this text" in note
