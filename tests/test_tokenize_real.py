"""Tokenizing real text with real tokenizers: the ids are `transformers`' own."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from reliability import FULL
from tokenizing import documents, ids, prepare, rows, without_plots, write

no_html = without_plots
BOTH_ENDS = ("bert-base-multilingual-cased", "t5-small")
"""Whose pairs are cut at either end: with two and with one special token between them. All with FTCLI_FAULTS=full."""

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_html")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is found out about a tokenizer once: 1 to 3 s of CPU each."""
    return tmp_path_factory.mktemp("cache")


def lines(path: Path, count: int) -> list[dict]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in islice(file, count)]


@pytest.mark.parametrize("name", ["qwen3", "bert-base-multilingual-cased", "kobart", "t5-small", "mistral-7b-v0.1", "koelectra-v3"])
def test_reviews_become_the_ids_of_the_tokenizer(name, real_data, cache, tmp_path):
    reviews = [row for row in lines(real_data / "classification/nsmc_raw/nsmc_raw.jsonl.gz", 800) if row["text"]]
    source = write(tmp_path / "reviews.jsonl", [row["text"] for row in reviews], [row["label"] for row in reviews])
    tokenizer = AutoTokenizer.from_pretrained(real_data / "tokenizers" / name)
    values = {"dataset__label_column": "label", "packing__max_length": 24, "packing__min_length": 0, "dataset__num_proc": 1}
    report = prepare(real_data / "tokenizers" / name, source, tmp_path / "out", **values, runtime__cache_dir=cache)
    expected = tokenizer([row["text"] for row in reviews], truncation=True, max_length=24)["input_ids"]
    assert ids(tmp_path / "out") == expected
    assert report.metrics["rows_written"] == len(reviews)
    assert len({row["labels"] for row in rows(tmp_path / "out")}) == len({row["label"] for row in reviews})


@pytest.mark.parametrize("name", ["qwen3", "bert-base-multilingual-cased", "t5-small", "mistral-7b-v0.1", "koelectra-v3"])
def test_premises_and_hypotheses_become_the_pairs_of_the_tokenizer(name, real_data, cache, tmp_path):
    folder, source = real_data / "tokenizers" / name, tmp_path / "xnli.tsv"
    lines = (real_data / "classification/kornlu/xnli.dev.ko.tsv").read_text(encoding="utf-8").splitlines()[:301]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = [line.split("\t")[:2] for line in lines[1:]]
    columns = {"dataset__text_column": "sentence1", "dataset__text_pair_column": "sentence2", "dataset__label_column": "gold_label"}
    columns |= {"dataset__num_proc": 1}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ends = (("right", "keep_start"), ("left", "keep_end"))
    for side, how in ends if FULL or name in BOTH_ENDS else ends[:1]:
        values = {**columns, "packing__max_length": 40, "packing__truncation_strategy": how, "runtime__cache_dir": cache}
        prepare(folder, source, tmp_path / how, **values)
        tokenizer.truncation_side = side
        expected = tokenizer([one for one, _ in pairs], [other for _, other in pairs], truncation=True, max_length=40)
        assert ids(tmp_path / how) == expected["input_ids"]
        if "token_type_ids" in expected:
            assert [row["token_type_ids"] for row in rows(tmp_path / how)] == expected["token_type_ids"]


def test_korean_documents_are_packed_without_loss(real_data, cache, tmp_path):
    texts = [row["text"] for row in lines(real_data / "text/react_docs_ko/react_docs_ko.jsonl.gz", 30)]
    folder = real_data / "tokenizers/qwen3"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    values = {"packing__strategy": "concat", "packing__max_length": 1024, "dataset__num_proc": 1, "runtime__cache_dir": cache}
    report = prepare(folder, write(tmp_path / "docs.jsonl", texts), tmp_path / "out", **values, tokenizer__engine="auto")
    stream = [token for text in texts for token in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]
    packs = rows(tmp_path / "out")
    assert [token for row in packs for token in row["input_ids"]] == stream
    assert all(documents(row) for row in packs)
    assert report.metrics["packing_waste"] < 0.01
    assert "rating" not in report.details
