"""`ftcli sample-data` and `ftcli train-tokenizer` as commands: what they report and refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ftcli.commands import sample_data, train_tokenizer
from ftcli.context import Context
from ftcli.errors import DataError, TokenizerError, UsageError
from tokenizing import Bar, corpus, write


def context(**values: Any) -> Context:
    return Context.make({key.replace("__", "."): value for key, value in values.items()})


def test_sample_data_writes_three_splits_and_says_what(tmp_path):
    bar = Bar()
    report = sample_data.run(replace(context(), progress=bar), tmp_path / "sample", rows=100, seed=1, labels=4)
    assert report.status == "ok"
    assert report.paths == {"output": str(tmp_path / "sample")}
    assert (report.metrics["rows_written"], report.metrics["train_rows"], report.metrics["labels"]) == (100, 90, 4)
    rows = [json.loads(line) for line in (tmp_path / "sample/train.jsonl").read_text().splitlines()]
    assert len(rows) == 90
    assert len({row["label"] for row in rows}) == 4
    assert sum(bar.stages["rows"]) == bar.totals["rows"] == 100


def test_sample_data_are_replaced_only_on_demand(tmp_path):
    sample_data.run(context(), tmp_path, rows=20, seed=1, labels=2)
    before = (tmp_path / "train.jsonl").read_bytes()
    with pytest.raises(UsageError, match=r"train\.jsonl already exists"):
        sample_data.run(context(), tmp_path, rows=20, seed=2, labels=2)
    sample_data.run(context(runtime__overwrite=True), tmp_path, rows=20, seed=2, labels=2)
    assert (tmp_path / "train.jsonl").read_bytes() != before


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_a_trained_tokenizer_is_a_complete_folder(kind, tmp_path):
    source = write(tmp_path / "data.jsonl", corpus(200))
    bar = Bar()
    made = replace(context(dataset__sources=[str(source)], packing__max_length=77), progress=bar)
    report = train_tokenizer.run(made, kind, 500, tmp_path / "tokenizer")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert loaded.is_fast
    assert loaded.model_max_length == 77
    assert len(loaded) == report.metrics["vocab_size"] <= 500
    assert report.metrics["rows_read"] == sum(bar.stages["train-tokenizer"]) == 200
    assert report.paths == {"output": str(tmp_path / "tokenizer")}
    assert "notes" not in report.metrics


def test_only_the_train_split_teaches_the_tokenizer(tmp_path):
    train = write(tmp_path / "train.jsonl", ["apple pear"] * 50)
    held = write(tmp_path / "test.jsonl", ["zzyzx"] * 50)
    report = train_tokenizer.run(context(dataset__sources=[str(train), str(held)]), "wordpiece", 300, tmp_path / "tokenizer")
    assert report.metrics["rows_read"] == 50
    assert any("splits by file name" in note for note in report.notes)
    assert any("entries asked for" in note for note in report.notes)
    assert AutoTokenizer.from_pretrained(tmp_path / "tokenizer").tokenize("zzyzx") == ["[UNK]"]


def test_training_a_tokenizer_on_nothing_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no data source given"):
        train_tokenizer.run(context(), "bpe", 500, tmp_path / "tokenizer")
    held = write(tmp_path / "held.jsonl", corpus(5))
    with pytest.raises(TokenizerError, match="no text to learn from"):
        train_tokenizer.run(context(dataset__sources=[f"test={held}"]), "bpe", 500, tmp_path / "tokenizer")
    assert not (tmp_path / "tokenizer").exists()


def test_a_kind_that_is_none_is_refused_with_those_that_are(tmp_path):
    source = write(tmp_path / "data.jsonl", corpus(5))
    with pytest.raises(UsageError, match="no tokenizer kind 'bqe'") as refused:
        train_tokenizer.run(context(dataset__sources=[str(source)]), "bqe", 500, tmp_path / "tokenizer")
    assert "bpe, wordpiece, unigram" in refused.value.hint


def test_a_bad_row_is_named_and_an_output_in_the_way_is_left_alone(tmp_path: Path):
    source = write(tmp_path / "data.jsonl", corpus(5))
    with pytest.raises(UsageError, match="already exists"):
        train_tokenizer.run(context(dataset__sources=[str(source)]), "bpe", 500, tmp_path)
    with source.open("a") as file:
        file.write("{broken\n")
    with pytest.raises(DataError, match=r"data\.jsonl:6"):
        train_tokenizer.run(context(dataset__sources=[str(source)]), "bpe", 500, tmp_path / "tokenizer")


def test_training_a_tokenizer_proposes_no_label_column(tmp_path):
    source = tmp_path / "data.jsonl"
    source.write_text("".join(f'{{"text": "some words {i}", "label": "a{i % 2}"}}\n' for i in range(50)), encoding="utf-8")
    report = train_tokenizer.run(context(dataset__sources=[str(source)]), "bpe", 300, tmp_path / "tokenizer")
    assert not [note for note in report.notes if "label" in note]
