"""Labels with a column each become the vector of any number of labels a row, whatever says that one holds."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import load_from_disk
from pyarrow import parquet

from ftcli.core.tokenizer.train_tokenizer import Kind
from ftcli.errors import DataError, UsageError
from tokenizing import left_behind, manifest, prepare, small_tokenizers, without_plots

pytestmark = pytest.mark.usefixtures("no_html", "nursery")

no_html = without_plots
small = small_tokenizers
NAMES = ["zeal", "anger", "calm"]
FLAGS = [[1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]]
COLUMNS: Mapping[str, Any] = {"dataset__label_columns": NAMES}


def table(say: Any = int) -> list[dict[str, Any]]:
    return [
        {"calm": say(row[2]), "text": f"text number {place}", "zeal": say(row[0]), "anger": say(row[1])} for place, row in enumerate(FLAGS)
    ]


def source(folder: Path, kind: str) -> Path:
    path = folder / f"rows.{kind.partition('-')[0]}"
    rows = table(bool if kind.endswith("bool") else int)
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".pkl":
        path.write_bytes(pickle.dumps(rows))
    elif path.suffix in {".csv", ".tsv"}:
        mark = "," if path.suffix == ".csv" else "\t"
        lines = [mark.join(map(str, row.values())) for row in rows]
        path.write_text("\n".join([mark.join(rows[0]), *lines]) + "\n")
    else:
        path.write_text(json.dumps(rows) if kind == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    "kind",
    ["jsonl", "jsonl-bool", "json", "parquet", "parquet-bool", "csv", "tsv", "csv-bool", pytest.param("pkl", marks=pytest.mark.slow)],
)
def test_every_way_to_say_yes_gives_the_same_vectors(small: Mapping[Kind, Path], tmp_path: Path, kind: str) -> None:
    report = prepare(small["bpe"], source(tmp_path, kind), tmp_path / "out", **COLUMNS)
    train = load_from_disk(str(tmp_path / "out"))["train"]
    assert train["labels"][:] == FLAGS
    assert (train.features["labels"].length, train.features["labels"].feature.dtype) == (3, "float32")
    assert (manifest(tmp_path / "out")["label_names"], manifest(tmp_path / "out")["task"]) == (NAMES, "classify")
    assert "1.2 of 3 labels a row; 1 of 5 rows have none" in report.notes


def test_long_rows_of_json_lines_are_read_the_same_way(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    """They go to another parser."""
    for name, say in (("ints", int), ("bools", bool)):
        rows = [{**row, "text": row["text"] * 300} for row in table(say)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        prepare(small["bpe"], tmp_path / f"{name}.jsonl", tmp_path / name, **COLUMNS)
        assert load_from_disk(str(tmp_path / name))["train"]["labels"][:] == FLAGS


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2, "'anger' is 2; a label column must hold 0 or 1"),
        (None, "'anger' is null; labels must be whole numbers"),
        ("1", r"'anger' is '1' \(a string\); labels must be whole numbers"),
        (True, r"'anger' is true; labels must be whole numbers"),
        (0.5, r"'anger' is 0.5"),
    ],
)
def test_a_value_that_says_neither_is_named_or_put_aside(small: Mapping[Kind, Path], tmp_path: Path, value: Any, words: str) -> None:
    rows = table()
    rows[3]["anger"] = value
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=rf"rows\.jsonl:4 .*{words}"):
        prepare(small["bpe"], path, tmp_path / "out", **COLUMNS)
    prepare(small["bpe"], path, tmp_path / "out", **COLUMNS, dataset__on_bad="quarantine", dataset__max_bad=0.5)
    assert load_from_disk(str(tmp_path / "out"))["train"]["labels"][:] == [*FLAGS[:3], FLAGS[4]]
    (reject,) = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert (reject["line"], reject["field"]) == (4, "anger")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"dataset__label_column": "zeal"}, UsageError, "label_columns already names the labels"),
        ({"dataset__label_names": ["a", "b"]}, UsageError, "label_columns already names the labels"),
        ({"dataset__label_columns": ["zeal"]}, UsageError, "names only one column"),
        ({"dataset__label_columns": ["zeal", "text"]}, UsageError, "'text' cannot be both"),
        ({"dataset__label_columns": ["zeal", "zeal"]}, UsageError, "'zeal' cannot be both"),
        ({"dataset__label_columns": ["zeal", "angr"]}, DataError, "no column 'angr'"),
        ({"packing__strategy": "bfd"}, UsageError, "contradict each other"),
        ({"train__mode": "sft"}, UsageError, "sft takes conversations"),
    ],
)
def test_what_cannot_be_is_refused(
    small: Mapping[Kind, Path], tmp_path: Path, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        prepare(small["bpe"], source(tmp_path, "jsonl"), tmp_path / "out", **{**COLUMNS, **change})
    assert not left_behind(tmp_path / "out")


@pytest.mark.parametrize("kind", ["jsonl-bool", "json-bool", "parquet-bool", pytest.param("pkl-bool", marks=pytest.mark.slow)])
def test_one_column_of_true_and_false_is_two_classes(small: Mapping[Kind, Path], tmp_path: Path, kind: str) -> None:
    prepare(small["bpe"], source(tmp_path, kind), tmp_path / "out", dataset__label_column="zeal")
    train = load_from_disk(str(tmp_path / "out"))["train"]
    assert train.features["labels"].names == ["false", "true"]
    assert train["labels"][:] == [row["zeal"] for row in table(int)]


def test_long_rows_with_true_and_false_are_two_classes_too(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    """They go to another parser."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**row, "text": row["text"] * 300}) + "\n" for row in table(bool)))
    prepare(small["bpe"], path, tmp_path / "out", dataset__label_column="zeal", dataset__label_names=["true", "false"])
    assert load_from_disk(str(tmp_path / "out"))["train"]["labels"][:] == [1 - row["zeal"] for row in table(int)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([True, "true"], "'label' is 'true' \\(a string\\); labels must be true or false"),
        ([False, 0], r"is 0 \(a number\); labels must be"),
        ([True, None], "is null"),
    ],
)
def test_what_is_neither_true_nor_false_is_named(small: Mapping[Kind, Path], tmp_path: Path, values: list[Any], words: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": "so good", "label": value}) + "\n" for value in values))
    with pytest.raises(DataError, match=rf"rows\.jsonl:2 .*{words}"):
        prepare(small["bpe"], path, tmp_path / "out", dataset__label_column="label")
    with pytest.raises(DataError, match="labels must be"):
        prepare(small["bpe"], path, tmp_path / "out", dataset__label_column="label", train__mode="regress")


@pytest.mark.parametrize("values", [{}, {"dataset__label_names": ["joy", "anger", "fear", "calm"]}, {"dataset__label_separator": " "}])
def test_flags_in_a_list_are_not_taken_for_labels(small: Mapping[Kind, Path], tmp_path: Path, values: dict[str, Any]) -> None:
    flags = [[0, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
    rows = [{"text": "a text", "label": " ".join(map(str, row)) if "dataset__label_separator" in values else row} for row in flags]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"rows\.jsonl: 'label' holds 4 times 0 or 1 in every row.*these are flags") as refused:
        prepare(small["bpe"], tmp_path / "rows.jsonl", tmp_path / "out", dataset__label_column="label", **values)
    assert "--label-columns" in refused.value.hint
    assert not (tmp_path / "out").exists()


def test_two_labels_by_number_are_no_flags(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    rows = [{"text": "a text", "label": label} for label in ([0, 1], [0, 1])]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare(small["bpe"], tmp_path / "rows.jsonl", tmp_path / "out", dataset__label_column="label")
    assert load_from_disk(str(tmp_path / "out"))["train"]["labels"][:] == [[1, 1], [1, 1]]


def test_two_flags_are_none_of_two_labels(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    """One-hot pairs were read as "both labels hold", in every row."""
    rows = [{"text": "a text", "label": label} for label in ([0, 1], [1, 0], [1, 0])]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"holds 2 times 0 or 1 in every row.*these are flags"):
        prepare(small["bpe"], tmp_path / "rows.jsonl", tmp_path / "out", dataset__label_column="label")


def test_whether_lists_are_flags_is_judged_of_all_rows(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    """Rows that stand together may look like flags: how many are encoded at a time decided whether the data could be prepared."""
    rows = [{"text": f"text {n}", "label": label} for n, label in enumerate(([0, 1], [1, 0], [0], [1, 0, 0], [0, 2]))]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for size in (1, 2, 100):
        out = tmp_path / f"out-{size}"
        prepare(small["bpe"], tmp_path / "rows.jsonl", out, dataset__label_column="label", dataset__batch_size=size)
        assert load_from_disk(str(out))["train"]["labels"][:] == [[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize("flags", [[0.0, 1.0], [False, True]])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_lists_of_other_flags_are_told_the_same(small: Mapping[Kind, Path], tmp_path: Path, flags: list[Any], kind: str) -> None:
    rows = [{"text": "a text", "label": flags}]
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    else:
        (tmp_path / "rows.jsonl").write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(DataError, match="labels must be strings, whole numbers") as refused:
        prepare(small["bpe"], tmp_path / f"rows.{kind}", tmp_path / "out", dataset__label_column="label")
    assert "--label-columns" in refused.value.hint
