"""Texts that end with EOS themselves, and a tokenizer that adds EOS where it is missing: rows are Hugging Face's, and none is lost."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, ByT5Tokenizer

from ftcli.core.inspect.look_raw import of_sources
from ftcli.core.inspect.row_selection import RowSelection
from ftcli.core.prepare.pairs import cut_pairs
from ftcli.errors import TokenizerError
from tokenizing import context, manifest, prepare, rows, without_plots

no_html = without_plots

pytestmark = pytest.mark.usefixtures("one_thread", "no_html")

TEXTS = ("short", "exactly", "exactly</s>", "a longer text", "a longer one</s>", "안녕하세요", "twice</s></s>", "</s>")


@pytest.fixture(scope="module")
def byt5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byt5")
    ByT5Tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    with warnings.catch_warnings(action="error", category=UserWarning):
        yield


def wanted(folder: Path, *texts: tuple[str, ...], length: int) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with warnings.catch_warnings(action="ignore"):
        found: list[list[int]] = tokenizer(*map(list, texts), truncation=True, max_length=length)["input_ids"]
    return found


def source(folder: Path) -> Path:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text, "other": "words", "label": "ab"[at % 2]}) + "\n" for at, text in enumerate(TEXTS)))
    return path


@pytest.mark.parametrize("length", [8, 100])
@pytest.mark.parametrize("how", ["keep_start", "keep_end"])
def test_byt5_ends_its_texts_when_they_are_cut_too(byt5: Path, tmp_path: Path, length: int, how: str) -> None:
    values = {"packing__max_length": length, "packing__truncation_strategy": how, "packing__strategy": "none"}
    prepare(byt5, source(tmp_path), tmp_path / "out", **values)
    whole = wanted(byt5, TEXTS, length=100)
    # From the left, Hugging Face's cuts the first byte of a text that fits with its own EOS.
    expected = wanted(byt5, TEXTS, length=length) if how == "keep_start" else [ids[-length:] for ids in whole]
    assert [row["input_ids"] for row in rows(tmp_path / "out")] == expected
    assert manifest(tmp_path / "out")["inputs"]["EOS behind a text"] == 1


@pytest.mark.parametrize("mode", ["pretrain", "classify"])
def test_byt5_ends_every_part_of_a_split_text(byt5: Path, tmp_path: Path, mode: str) -> None:
    label = {"dataset__label_column": "label"} if mode == "classify" else {}
    prepare(byt5, source(tmp_path), tmp_path / "out", packing__max_length=5, packing__truncation_strategy="split", **label)
    made = [row["input_ids"] for row in rows(tmp_path / "out")]
    assert len(made) > len(TEXTS)
    assert all(ids[-1] == 1 for ids in made)


def test_pairs_of_byt5_are_refused_because_what_stands_between_two_texts_depends_on_them(byt5: Path, tmp_path: Path) -> None:
    columns = {"dataset__text_column": "text", "dataset__text_pair_column": "other", "dataset__label_column": "label"}
    with pytest.raises(TokenizerError, match="does not add the same prefix and suffix to every text"):
        prepare(byt5, source(tmp_path), tmp_path / "out", **columns)


@pytest.mark.parametrize("room", [3, 4, 7, 8])
def test_two_texts_are_cut_as_a_slow_tokenizer_does(byt5: Path, room: int) -> None:
    lengths = [(one, other) for one in range(1, 11) for other in range(1, 11)]
    ids = wanted(byt5, tuple("a" * one for one, _ in lengths), tuple("b" * other for _, other in lengths), length=room + 2)
    first, second = np.array(lengths).T
    assert np.stack(cut_pairs(first, second, room, slow=True), 1).tolist() == [[row.count(ord(text) + 3) for text in "ab"] for row in ids]


def test_inspect_says_cut_of_texts_that_are_cut(byt5: Path, tmp_path: Path) -> None:
    values = {"packing__max_length": 8, "packing__truncation_strategy": "keep_start", "packing__strategy": "none"}
    run = context(byt5, source(tmp_path), tmp_path / "out", **values)
    looked, _, _ = of_sources(run, "train", RowSelection.of_words(f"0-{len(TEXTS) - 1}", None, 0))
    longer = ["a longer text", "a longer one</s>", "안녕하세요"]
    assert [text for at, text in enumerate(TEXTS) if looked.notes.get(at)] == longer
