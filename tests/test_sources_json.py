from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from ftcli.plugins import jsonfile

from ftcli.core.reading.read import make_plan, read_shard
from ftcli.errors import DataError
from reading import formats, plan, refusal, rows, settings, write

RECORDS = [{"text": f"글 {i}", "label": i % 3, "extra": {"data": [1]}} for i in range(50)]
EXPECTED = [(record["text"], record["label"]) for record in RECORDS]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "document",
    [RECORDS, {"data": RECORDS}, {"version": "1", "more": {"data": []}, "data": RECORDS, "end": [1, 2]}],
    ids=["array", "data", "data among others"],
)
def test_arrays_and_objects_with_data_are_read(
    tmp_path: Path, document: object, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonfile, "ROWS", 7)
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    assert rows(write(tmp_path / "a.json", "\ufeff" + text), label_column="label") == EXPECTED
    assert rows(write(tmp_path / "b.json.gz", gzip.compress(text.encode())), label_column="label") == EXPECTED


def test_a_json_file_that_is_really_json_lines_is_recognised(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", "\n" + "".join(json.dumps(record) + "\n" for record in RECORDS))
    assert rows(file, label_column="label", shard_bytes=100) == EXPECTED
    assert plan(file).files[0].format == "jsonl"


def test_an_array_of_texts_is_a_text_a_row(tmp_path: Path) -> None:
    """As in a pickle; it was refused as no objects."""
    file = write(tmp_path / "a.json", json.dumps(["글 0", "NA", "글 2"], indent=1, ensure_ascii=False))
    assert rows(file) == ["글 0", "NA", "글 2"]
    assert "no column 'label'" in refusal(file, label_column="label").message
    assert "3 (byte " in (told := refusal(write(tmp_path / "b.json", '[\n"a",\n3]')).message)
    assert "a row must be an object, found 3" in told
    assert "found 'b'" in refusal(write(tmp_path / "c.json", '[{"text": "a"}, "b"]')).message


def test_arrays_in_an_array_are_rows_whose_columns_are_counted(tmp_path: Path) -> None:
    """As CLINC150 has its intents; they were refused as no objects."""
    file = write(tmp_path / "a.json", json.dumps([[text, label] for text, label in EXPECTED]))
    assert rows(file, text_column="0", label_column="1") == EXPECTED
    assert "--text-column 0 --label-column 1" in refusal(file).hint
    short = refusal(write(tmp_path / "b.json", '[["a", 1],\n["b"]]'), text_column="0", label_column="1")
    assert "b.json:2 (byte 11): no column '1'" in short.message


@pytest.mark.skipif(shutil.which("jq") is None, reason="the hints are commands of jq")
@pytest.mark.parametrize(
    ("format_", "content", "way"),
    [
        ("json", json.dumps({"train": RECORDS, "val": RECORDS, "oos_test": []}), "jq .train OLD > train.json"),
        ("json", json.dumps({"train": RECORDS, "val": RECORDS}, indent=1), "jq .train OLD > train.json"),
        ("json", json.dumps(dict(enumerate(RECORDS))), "jq '[.[]]' OLD > NEW.json"),
        ("json", json.dumps(dict(enumerate(RECORDS)), indent=1), "jq '[.[]]' OLD > NEW.json"),
        ("json", "".join(json.dumps(record, indent=1) + "\n" for record in RECORDS), "jq -c . OLD > NEW.jsonl"),
        ("jsonl", "".join(json.dumps([text, label]) + "\n" for text, label in EXPECTED), "jq -s . OLD > NEW.json"),
    ],
)
def test_what_is_laid_out_in_another_way_is_told_how_to_make_rows_of_it(tmp_path: Path, format_: str, content: str, way: str) -> None:
    """The command is run: it makes a file that is read."""
    assert way in refusal(write(tmp_path / "OLD", content), source_format=format_).hint
    subprocess.run(["bash", "-c", way], cwd=tmp_path, check=True)
    counted = {"text_column": "0", "label_column": "1"} if format_ == "jsonl" else {"label_column": "label"}
    assert rows(tmp_path / way.rpartition("> ")[2], **counted) == EXPECTED


@pytest.mark.parametrize(
    ("name", "content", "way"),
    [
        ("a.json", json.dumps({"a": 1}, indent=1), "JSON lines"),
        ("a.jsonl", json.dumps([text for text, _ in EXPECTED]) + "\n", "rename it to .json"),
        ("a.jsonl", json.dumps(RECORDS), "rename it to .json"),
    ],
)
def test_what_is_no_json_lines_is_told_what_it_is(tmp_path: Path, name: str, content: str, way: str) -> None:
    assert way in refusal(write(tmp_path / name, content)).hint


@pytest.mark.parametrize("indent", [None, 1])
def test_the_only_array_of_objects_of_a_document_is_read_under_any_name(tmp_path: Path, indent: int | None) -> None:
    """As corpora of intents have it: {"name": …, "sentences": […]}; in one line it was taken for a row of JSON lines."""
    document = {"name": "x", "tags": ["text", "a"], "none": [], "sentences": RECORDS, "more": {"a": [{"b": 1}]}}
    assert rows(write(tmp_path / "a.json", json.dumps(document, indent=indent)), label_column="label") == EXPECTED
    broken = json.dumps(document, indent=indent)
    assert "not JSON" in refusal(write(tmp_path / "b.json", broken[: broken.index("more") - 40])).message


@pytest.mark.parametrize("indent", [None, 1])
def test_a_document_of_conversations_is_read_in_one_line_too(tmp_path: Path, indent: int | None) -> None:
    """In mode sft an object in one line was always a row; one that has a column of conversations, or is followed by others, is."""
    pairs = [{"prompt": f"{number} is", "completion": " a number"} for number in range(2)]
    for name, text, count in (
        ("document", json.dumps({"version": "1", "items": pairs}, indent=indent), 2),
        ("lines", "".join(json.dumps({"messages": [{"role": "user", "content": "hi"}], "id": 1}) + "\n" for _ in range(3)), 3),
    ):
        file = write(tmp_path / f"{name}.json", text)
        chosen, registry = settings(file, mode="sft"), formats()
        made = make_plan(chosen, registry)
        read = [batch.num_rows for shard in made.shards for _, batch in read_shard(shard, made.columns, chosen, registry)]
        assert sum(read) == count
    with pytest.raises(DataError, match="no conversation"):
        make_plan(settings(write(tmp_path / "other.json", '{"turns": [{"a": "b"}]}\n' * 2), mode="sft"), formats())


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"train": RECORDS, "test": RECORDS}, "several arrays of objects among 'train', 'test', and none is named data"),
        ({"train": [["a", "b"]], "test": [["c", "d"]]}, "no array of objects among 'train', 'test', and none is named data"),
        ({"name": "x", "tags": ["a", "b"]}, "no array of objects among 'tags', and none is named data"),
    ],
)
def test_a_document_that_does_not_say_which_array_holds_the_rows_is_refused(tmp_path: Path, document: object, words: str) -> None:
    error = refusal(write(tmp_path / "a.json", json.dumps(document, indent=1)))
    assert error.message.endswith(words)
    assert "Write the array of rows to its own file" in error.hint


def at(line: int, reason: str) -> tuple[int, str]:
    return line, reason


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ('[\n {"text": "a"},\n {"text": 3}\n]', 3, "'text' is 3 (a number); text must be a string"),
        ('[\n {"text": "a"},\n {"text": null}\n]', 3, "'text' is null"),
        ('[\n {"text": "a"},\n {"texts": "a"}\n]', 3, "no column 'text'"),
        ('[\n {"text": "a"},\n ["b"]\n]', 3, "a row must be an object, found ['b'] (a list)"),
        ('[\n {"text": "a"},\n {"text": "\\ud800"}\n]', 3, "the lone surrogate U+D800"),
        ('[\n {"text": "a"},\n {"text": "b"', 3, "not JSON: Expecting ',' delimiter"),
        ('[\n {"text": "a"},\n', 3, "not JSON: Expecting value"),
        ('[\n {"text": "a"}\n {"text": "b"}]', 3, "not JSON: Expecting ',' or ']'"),
        ('[\n {"text": "a"},\n]', 3, "not JSON: Expecting value"),
        ('[\n {"text": "a"}]\n{"x": 1}', 2, "not JSON: Extra data or a missing end"),
        ('{"data":\n [{"text": "a"}]\n', 2, "not JSON: Extra data or a missing end"),
        ('{\n"data" [{"text": "a"}]\n}', 2, "not JSON: Expecting ':'"),
        ('"a string"', 1, "not JSON: Expecting an array of objects"),
        ("[1, 2]", 1, "a row must be an object, found 1 (a number)"),
        (b'[\n {"text": "a\xff"}]', 2, "not UTF-8: byte 0xff at column 12"),
    ],
)
def test_a_bad_document_is_named_by_line_and_reason(tmp_path: Path, content: str | bytes, line: int, reason: str) -> None:
    file = write(tmp_path / "a.json", content)
    error = refusal(file)
    assert error.message.startswith(f"{file}:{line} (byte "), error.message
    assert reason in error.message


def test_a_document_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    assert "nested too deeply" in refusal(write(tmp_path / "a.json", "[" * 200_000)).message


def test_a_first_label_that_is_no_label_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", '[{"text": "a", "label": 1.5}]')
    assert "'label' is 1.5 (a number); labels must be strings, whole numbers" in refusal(file, label_column="label").message


@pytest.mark.parametrize("content", ["", "[]", '{"data": []}'])
def test_a_document_without_rows_gives_none(tmp_path: Path, content: str) -> None:
    file = write(tmp_path / "a.json", content)
    assert "no rows" in refusal(file, label_column="label").message


@pytest.mark.parametrize("further", [{"rows": 3}, "x", None])
def test_what_is_called_data_and_is_no_array_does_not_hide_the_only_one(further: object, tmp_path: Path) -> None:
    whole = {"train": [{"text": "a"}, {"text": "b"}], "data": further}
    for indent in (None, 1):
        assert rows(write(tmp_path / "a.json", json.dumps(whole, indent=indent))) == ["a", "b"]


def test_a_second_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not JSON"):
        rows(write(tmp_path / "a.json", '{\n"data": [{"text": "a"}], "data": {"rows": 1}}'))


@pytest.mark.parametrize("mode", [None, "sft"])
def test_a_document_of_several_arrays_on_one_line_is_one_of_several_arrays(mode: str | None, tmp_path: Path) -> None:
    whole = {"questions": [{"text": "a"}], "answers": [{"text": "b"}]}
    for number, indent in enumerate((None, 1)):
        path = write(tmp_path / f"{number}.json", json.dumps(whole, indent=indent) + "\n")
        with pytest.raises(DataError) as caught:
            make_plan(settings(path, mode=mode), formats())
        assert caught.value.message == f"{path}: several arrays of objects among 'questions', 'answers', and none is named data"
        assert caught.value.hint == "Write the array of rows to its own file, for example: jq .questions OLD > questions.json"
