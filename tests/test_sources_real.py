"""Every real data set is read with the number of rows that its description tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reading import count, labels, refusal, rows

pytestmark = pytest.mark.real

BY_POSITION = {"text_column": "0", "label_column": "1"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "banking77": ("classification/banking77", {"label_column": "category"}, {"train": 10003, "test": 3080}),
    "goemotions": ("classification/goemotions_ko", BY_POSITION, {"train": 43410, "validation": 5426, "test": 5427}),
    "3i4k": ("classification/kor_3i4k", {"text_column": "1", "label_column": "0"}, {"train": 55134, "test": 6121}),
    "xnli": ("classification/kornlu/xnli.*.tsv", {"text_column": "sentence1", "label_column": "gold_label"}, {"train": 7500}),
    "sts": ("classification/kornlu/sts-*.tsv", {"text_column": "sentence1"}, {"train": 5749, "validation": 1500, "test": 1379}),
    "nsmc": ("classification/nsmc_raw", {"label_column": "label"}, {"train": 354157}),
    "nsmc ratings": ("classification/nsmc_raw", {"label_column": "rating"}, {"train": 354157}),
    "onet": ("classification/onet_tasks/task*.tsv", {"text_column": "Task", "label_column": "O*NET-SOC Code"}, {"train": 19265}),
    "chatbot": ("classification/songys_chatbot", {"text_column": "Q", "label_column": "label"}, {"train": 11823}),
    "cities": ("classification/world_cities", {"text_column": "name", "label_column": "country"}, {"train": 34032}),
    "sympy": ("text/code_sympy", {}, {"train": 1522}),
    "law": ("text/kor_law", {"sample_by": "document"}, {"train": 11}),
    "react": ("text/react_docs_ko", {}, {"train": 195}),
    "shakespeare": ("text/tiny_shakespeare", {}, {"train": 32777}),
    "war and peace": ("text/war_and_peace", {"sample_by": "document"}, {"train": 1}),
    "wikitext": ("text/wikitext2_valid", {}, {"train": 2461}),
    "long Korean": ("text/ko_docs_long", {}, {"train": 9565}),
    "long English": ("text/en_docs_long", {}, {"train": 22201}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_real_data_set_has_the_rows_it_should(real_data: Path, name: str) -> None:
    source, dataset, expected = CASES[name]
    assert count(real_data / source, **dataset) == expected


def test_empty_texts_of_nsmc_are_kept(real_data: Path) -> None:
    assert sum(1 for text in rows(real_data / "classification/nsmc_raw") if not text) == 5


def test_labels_are_as_many_as_they_should_be(real_data: Path) -> None:
    assert len(labels(real_data / "classification/nsmc_raw", label_column="label")) == 7342
    assert labels(real_data / "classification/nsmc_raw", label_column="rating") == set(range(1, 11))
    assert len(labels(real_data / "classification/banking77", label_column="category")) == 77


def test_a_folder_of_zip_files_is_refused(real_data: Path) -> None:
    assert "no data files" in refusal(real_data / "text/state_union").message
