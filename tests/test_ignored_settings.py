"""Data that are prepared already, and settings that ask for others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from ftcli.commands import tokenize, verify
from ftcli.core.storage.ignored_settings import refuse_ignored_settings
from ftcli.core.storage.store import Store
from ftcli.errors import UsageError
from ftcli.testing import tiny_tokenizer
from stores import context


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wishes")
    tiny_tokenizer(root / "tokenizer")
    rows = [
        {"text": f"word {number} and {number % 7}", "kind": "ab"[number % 2], "prompt": "a?", "completion": "b", "other": "c"}
        for number in range(80)
    ]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


LABELLED = {"dataset.label_column": "kind", "packing.max_length": 32, "dataset.validation_fraction": 0.2}
TALKS = {"train.mode": "sft", "packing.max_length": 32}
PACKED = {"packing.strategy": "bfd", "packing.max_length": 32, "packing.min_length": 2}


def prepared(folder: Path, name: str, **values: Any) -> Store:
    if not (folder / name).exists():
        tokenize.run(asking(folder, [str(folder / "rows.jsonl")], {**values, "dataset.output_dir": folder / name}))
    return Store.open(folder / name)


def asking(folder: Path, sources: list[str], values: dict[str, Any]) -> Any:
    given = {"dataset.sources": sources, "tokenizer.path": str(folder / "tokenizer"), **values}
    return context(**{key.replace(".", "__"): value for key, value in given.items()})


def found(folder: Path, name: str, made: dict[str, Any], asked: dict[str, Any]) -> str:
    store = prepared(folder, name, **made)
    with pytest.raises(UsageError) as caught:
        refuse_ignored_settings(asking(folder, [str(store.path)], asked), store)
    return caught.value.message


@pytest.mark.parametrize(("name", "made"), [("labelled", LABELLED), ("talks", TALKS), ("packed", PACKED)])
def test_what_the_data_were_prepared_with_may_be_said_again(folder: Path, name: str, made: dict[str, Any]) -> None:
    store = prepared(folder, name, **made)
    refuse_ignored_settings(asking(folder, [str(store.path)], made), store)
    refuse_ignored_settings(asking(folder, [str(store.path)], {}), store)


def test_label_names_that_were_found_may_be_said(folder: Path) -> None:
    store = prepared(folder, "labelled", **LABELLED)
    refuse_ignored_settings(asking(folder, [str(store.path)], {"dataset.label_names": ["a", "b"]}), store)
    refuse_ignored_settings(asking(folder, [str(store.path)], {"dataset.label_names": ["0=a", "1=b"]}), store)
    assert "label_names = b,a (from argument), there a,b" in found(folder, "labelled", LABELLED, {"dataset.label_names": ["b", "a"]})


@pytest.mark.parametrize(
    ("name", "made", "asked", "words"),
    [
        ("labelled", LABELLED, {"packing.max_length": 64}, "max_length = 64 (from argument), there 32"),
        ("labelled", LABELLED, {"dataset.validation_fraction": 0.5}, "validation_fraction = 0.5 (from argument), there 0.2"),
        ("labelled", LABELLED, {"dataset.label_column": "other"}, "label_column = other (from argument), there kind"),
        ("labelled", LABELLED, {"dataset.text_column": "other"}, "text_column = other (from argument), there text"),
        ("labelled", LABELLED, {"dataset.text_pair_column": "other"}, "text_pair_column = other (from argument), there none"),
        ("labelled", LABELLED, {"packing.truncation_strategy": "drop"}, "truncation_strategy = drop (from argument), there keep_start"),
        ("labelled", LABELLED, {"dataset.seed": 7}, "seed = 7 (from argument), there 42"),
        ("labelled", LABELLED, {"tokenizer.add_eos": True}, "add_eos = True (from argument), there False"),
        ("labelled", LABELLED, {"packing.strategy": "bfd"}, "strategy = bfd (from argument), there none"),
        ("packed", PACKED, {"packing.min_length": 3}, "min_length = 3 (from argument), there 2"),
        ("talks", TALKS, {"dataset.completion_only_loss": False}, "completion_only_loss = False (from argument), there True"),
        ("talks", TALKS, {"dataset.rename_columns": ["prompt=text"]}, "rename_columns = prompt=text (from argument), there none"),
    ],
)
def test_what_they_were_not_prepared_with_is_refused_by_name(
    folder: Path, name: str, made: dict[str, Any], asked: dict[str, Any], words: str
) -> None:
    assert words in found(folder, name, made, asked)


def test_an_eos_is_missed_behind_texts_that_begin_with_a_bos(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    shutil.copytree(folder / "tokenizer", folder / "begins")
    tokenizer.save(str(folder / "begins" / "tokenizer.json"))
    made = {**LABELLED, "tokenizer.path": str(folder / "begins")}
    asked = {"tokenizer.path": str(folder / "begins"), "tokenizer.add_eos": True}
    assert "add_eos = True (from argument), there False" in found(folder, "begins unended", made, asked)
    ended = prepared(folder, "begins and ends", **made, **{"tokenizer.add_eos": True})
    refuse_ignored_settings(asking(folder, [str(ended.path)], asked), ended)


def test_all_are_named_at_once(folder: Path) -> None:
    words = found(folder, "labelled", LABELLED, {"packing.max_length": 64, "dataset.label_column": "other"})
    assert "max_length = 64" in words
    assert "label_column = other" in words


def test_a_profile_asks_for_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = prepared(folder, "labelled", **LABELLED)
    asked = asking(folder, [str(store.path)], {"packing.max_length": 64})
    monkeypatch.setattr(type(asked.resolved), "origin", lambda self, key: "profile wide")
    refuse_ignored_settings(asked, store)


def test_verify_says_it_of_the_prepared_data(folder: Path) -> None:
    store = prepared(folder, "labelled", **LABELLED)
    report = verify.run(asking(folder, [str(store.path)], {"packing.max_length": 64}), ("data",), "quick", "error", ("FT201",), ())
    assert report.status == "failed"
    assert "max_length = 64" in report.checks[0].summary
