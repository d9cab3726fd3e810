"""What is said of sources as they come from well-known data sets, and that the commands of hints do what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ftcli.contracts import Columns
from ftcli.core.reading.columns import BadValue
from ftcli.core.reading.conversation import NAMES, as_document
from ftcli.errors import UsageError
from ftcli.testing import tiny_tokenizer
from reading import plan, refusal, rows, write
from tokenizing import prepare

needs_jq = pytest.mark.skipif(shutil.which("jq") is None, reason="the hint is a command of jq")
COLUMNS = Columns("messages", chat=NAMES)


def as_lines(items: list[Any]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def by_jq(hint: str, old: Path, **placeholders: str) -> Path:
    """The file that the hint's command makes of `old`."""
    found = re.search(r"jq -c '[^']*' OLD > NEW\.jsonl", hint)
    assert found, hint
    command = found[0].replace("OLD", str(old)).replace("NEW", str(old.parent / "new"))
    for name, value in placeholders.items():
        command = command.replace(name, value)
    subprocess.run(["bash", "-c", command], check=True)
    return old.parent / "new.jsonl"


def documents(path: Path, **dataset: Any) -> list[dict[str, Any]]:
    return [json.loads(text) for text in rows(path, mode="sft", **dataset)]


# -- labels ------------------------------------------------------------------------------------------------------------


@needs_jq
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
@pytest.mark.parametrize("name", ["labels", "the labels"])
def test_a_part_of_nested_labels_is_taken_by_its_name(tmp_path: Path, suffix: str, name: str) -> None:
    """KLUE's STS is an array, and one of its parts is called real-label."""
    items = [{"text": "a", name: {"label": 1, "real-label": 3}}, {"text": "b", name: {"label": 0, "real-label": 4}}]
    old = write(tmp_path / f"old.{suffix}", json.dumps(items) if suffix == "json" else as_lines(items))
    hint = refusal(old, label_column=name).hint
    assert "takes one of its fields; for PART give one of: label, real-label" in hint
    assert rows(by_jq(hint, old, PART="real-label"), label_column=name) == [("a", 3), ("b", 4)]


@needs_jq
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_whole_numbers_that_are_written_with_a_point_can_become_classes(tmp_path: Path, suffix: str) -> None:
    """As Yelp's stars are."""
    old = tmp_path / f"old.{suffix}"
    write(old, '{"text": "a", "stars": 1.0}\n{"text": "b", "stars": 5.0}\n' if suffix == "jsonl" else '[{"text": "a", "stars": 1.0}]')
    hint = refusal(old, label_column="stars").hint
    assert "--mode regress" in hint
    assert rows(by_jq(hint, old), label_column="stars")[0] == ("a", 1)
    assert "jq" not in refusal(write(tmp_path / "b.jsonl", '{"text": "a", "stars": 2.5}\n'), label_column="stars").hint


@needs_jq
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_numbers_in_quotes_are_told_how_to_become_numbers(tmp_path: Path, suffix: str) -> None:
    items = [{"text": "a", "score": "1.5"}, {"text": "b", "score": "-2"}]
    old = write(tmp_path / f"old.{suffix}", json.dumps(items) if suffix == "json" else as_lines(items))
    hint = refusal(old, label_column="score", mode="regress").hint
    assert rows(by_jq(hint, old), label_column="score", mode="regress") == [("a", 1.5), ("b", -2.0)]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_columns_of_0_and_1_are_said_to_be_no_labels_that_are_read(tmp_path: Path, suffix: str) -> None:
    """As Smilegate's unsmile, a column a kind of hatred."""
    mark = "," if suffix == "csv" else "\t"
    content = "text,id,여성/가족,남성,rude ones\na,1,0,1,0\nb,2,0,0,1\n".replace(",", mark)
    file = write(tmp_path / f"a.{suffix}", content)
    assert plan(file).notes == ("no labels are read: 3 columns contain only 0 and 1 (--label-columns '여성/가족,남성,rude ones')",)
    assert plan(file, label_columns=["남성", "rude ones"]).notes == plan(write(tmp_path / "b.csv", "text,a,b\nx,0,1\n")).notes == ()
    assert plan(write(tmp_path / "c.csv", "text,a,b,c\nx,0,1,2\n")).notes == ()


def test_rows_without_the_columns_of_labels_are_told_what_to_do(tmp_path: Path) -> None:
    """As the toxic comments' test rows, whose labels came in a file without texts."""
    train = write(tmp_path / "train.csv", "text,rude,vile\na,0,1\nb,1,0\n")
    test = write(tmp_path / "test.csv", "id,text\n1,c\n")
    write(tmp_path / "test_labels.csv", "id,rude,vile\n1,-1,-1\n")
    error = refusal(tmp_path, label_columns=["rude", "vile"])
    assert error.message == f"{test}: no column 'rude'"
    assert error.hint.startswith(f"{train} has it. Exclude the files without labels")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json", "parquet"])
def test_columns_of_labels_that_are_missing_are_asked_for_by_their_own_flag(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"text": ["a"], "rude": [1]}), path)
    else:
        write(path, {"csv": "text,rude\na,1\n", "json": '[{"text": "a", "rude": 1}]'}.get(suffix, '{"text": "a", "rude": 1}\n'))
    hint = refusal(path, label_columns=["rude", "vile"]).hint
    assert "--label-columns" in hint
    assert "--label-column " not in hint
    assert "--label-column." not in hint


# -- folders of texts --------------------------------------------------------------------------------------------------


def folders(above: Path, *splits: str, unlabelled: bool = True) -> None:
    for split in splits:
        for name in ("neg", "so so", *(["unsup"] if unlabelled and split == splits[0] else [])):
            (above / split / name).mkdir(parents=True)
            for number in range(2):
                write(above / split / name / f"{number}.txt", f"{split} {name}\n\n{number}")


def told(hint: str, folder: Path) -> None:
    way = hint.partition("each file is a text: ")[2]
    assert way, hint
    subprocess.run(["bash", "-c", way], cwd=folder, check=True)


@needs_jq
@pytest.mark.parametrize("given", ["set", "set/train"])
def test_folders_of_texts_in_splits_are_told_how_to_become_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """IMDB's: the way worked one level down alone, and took the rows without labels in."""
    folders(tmp_path / "set", "train", "test")
    monkeypatch.chdir(tmp_path)
    told(refusal(given, label_column="label").hint, tmp_path)
    for split in ("train", "test"):
        labels = {name: f"{split} {name}\n\n" for name in ("neg", "so so")}
        made = rows(tmp_path / f"{split}.jsonl", label_column="label")
        assert sorted(made) == sorted((text + str(number), name) for name, text in labels.items() for number in range(2))


@needs_jq
def test_folders_of_texts_without_splits_are_told_how_to_become_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders(tmp_path, "set", unlabelled=False)
    monkeypatch.chdir(tmp_path / "set")
    told(refusal(tmp_path / "set", label_column="label").hint, tmp_path)
    assert {label for _, label in rows(tmp_path / "data.jsonl", label_column="label")} == {"neg", "so so"}


def test_many_folders_of_texts_are_not_all_named(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"c{number}").mkdir()
        write(tmp_path / f"c{number}" / "a.txt", "a")
    assert f"for f in {tmp_path}/*/*.txt; do" in refusal(tmp_path, label_column="label").hint


@needs_jq
def test_documents_that_are_to_be_classified_are_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no column to be named."""
    folders(tmp_path / "set", "train", "test")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="the task classify needs labels") as refused:
        prepare(
            tiny_tokenizer(tmp_path / "tokenizer"), Path("set"), tmp_path / "out", train__mode="classify", dataset__sample_by="document"
        )
    told(refused.value.hint, tmp_path)
    assert len(rows(tmp_path / "train.jsonl", label_column="label")) == 4


# -- texts and conversations -------------------------------------------------------------------------------------------

SQUAD = {
    "title": "T",
    "paragraphs": [
        {
            "context": "Paris is old.",
            "qas": [
                {"question": "What?", "answers": [{"answer_start": 0, "text": "Paris"}], "id": "1"},
                {"question": "Never?", "answers": [], "is_impossible": True, "id": "2"},
            ],
        }
    ],
}


@needs_jq
@pytest.mark.parametrize("suffix", ["json", "jsonl", "array.json"])
@pytest.mark.parametrize("mode", [None, "sft"])
def test_squad_becomes_rows_of_questions(tmp_path: Path, suffix: str, mode: str | None) -> None:
    """A title was proposed as the text."""
    whole = {"json": json.dumps({"version": "1.1", "data": [SQUAD, SQUAD]}), "jsonl": as_lines([SQUAD] * 2)}
    old = write(tmp_path / f"old.{suffix}", whole.get(suffix) or json.dumps([SQUAD, SQUAD]))
    hint = refusal(old, mode=mode).hint
    assert "--rename instruction=question,output=answer" in hint
    document, _ = documents(by_jq(hint, old), rename_columns=["instruction=question", "output=answer"])
    assert document["prompt"] == [{"role": "user", "content": "What?\n\nParis is old."}]
    assert document["completion"] == [{"role": "assistant", "content": "Paris"}]


@needs_jq
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_an_export_of_label_studio_becomes_rows_of_texts_and_classes(tmp_path: Path, suffix: str) -> None:
    """comment_count was proposed as the text."""
    given = [{"result": [{"value": {"choices": ["Positive"]}, "from_name": "sentiment", "type": "choices"}]}]
    items = [{"id": 1, "annotations": found, "data": {"review": "fine"}, "comment_count": 0} for found in (given, [{"result": []}], [])]
    old = write(tmp_path / f"old.{suffix}", json.dumps(items) if suffix == "json" else as_lines(items))
    new = by_jq(refusal(old).hint, old)
    assert json.loads(new.read_text()) == {"review": "fine", "label": "Positive"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.conll", "I\tO\nlive in\tO\n\n\nParis\tB-LOC\n"),
        ("a.conllu", "# text = I live\n1\tI\t_\n2\tlive\t_\n\n# text = Paris\n1\tParis\t_\n"),
    ],
)
def test_a_file_of_a_word_a_line_becomes_sentences(tmp_path: Path, name: str, content: str) -> None:
    """It was to be called text, of which every word with its columns is a row."""
    old = write(tmp_path / name, content)
    hint = refusal(old).hint
    command = hint.partition("plain text: ")[2].partition(" OLD > NEW.txt")[0]
    done = subprocess.run(["bash", "-c", f"{command} {old}"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["I live", "Paris"]


@pytest.mark.parametrize("name", ["a.txt", "a.tsv"])
def test_words_with_their_tags_are_told_where_they_look_like_texts(tmp_path: Path, name: str) -> None:
    """CoNLL-2003 and KLUE's NER are called .txt and .tsv: every word became a text without a word. In KLUE a blank has a tag too."""
    old = write(tmp_path / name, "# 1\nI\tO\n \tO\nlive\tO\n\n\nParis\tB-LOC\nis\tO\n")
    (note,) = [note for note in plan(old).notes if "CoNLL" in note] if name == "a.txt" else [refusal(old).hint]
    command = note.partition("plain text: ")[2].partition(" OLD > NEW.txt")[0]
    done = subprocess.run(["bash", "-c", f"{command} {old}"], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["# I  live", "Paris is"]
    assert not [note for note in plan(write(tmp_path / "b.txt", "Vitamin O\nType O\nO\n")).notes if "CoNLL" in note]


@pytest.mark.parametrize(("text", "told"), [("A title\n\nand a text.\n", True), ("one line\n", False), ("a line\n" * 10_000, False)])
def test_many_short_files_of_lines_may_be_documents(tmp_path: Path, text: str, told: bool) -> None:
    """20 Newsgroups and IMDb keep a document a file; every line of it became a row without a word."""
    for number in range(20):
        write(tmp_path / "d" / f"{number}.txt", text)
    words = "20 text files: every line is a text, about 2 of each file. If each file is one document: --sample-by document"
    assert [note for note in plan(tmp_path / "d").notes if "one document" in note] == [words] * told
    assert not [note for note in plan(tmp_path / "d", sample_by="document").notes if "one document" in note]
    (tmp_path / "d" / "7.txt").unlink()
    assert not [note for note in plan(tmp_path / "d").notes if "one document" in note]


def test_tags_read_as_labels_are_told(tmp_path: Path) -> None:
    old = write(tmp_path / "a.tsv", "I\tO\nlive\tO\n\nParis\tB-LOC\nis\tO\n")
    assert any("CoNLL" in note for note in plan(old, text_column="0", label_column="1").notes)


@needs_jq
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_an_answer_in_an_object_is_told_the_way_to_its_text(tmp_path: Path, suffix: str) -> None:
    """Every row of SQuAD as `datasets` has it was to be corrected, removed or put aside."""
    items = [{"question": "What?", "context": "Paris.", "answers": {"text": ["Paris"], "answer_start": [0]}}]
    old = write(tmp_path / f"old.{suffix}", json.dumps(items) if suffix == "json" else as_lines(items))
    assert "--rename instruction=question,output=answers" in refusal(old, mode="sft").hint
    names = {"rename_columns": ["instruction=question", "output=answers"]}
    hint = refusal(old, mode="sft", **names).hint
    assert ".answers.text[0]" in hint
    (document,) = documents(by_jq(hint, old), **names)
    assert document["completion"] == [{"role": "assistant", "content": "Paris"}]


@needs_jq
@pytest.mark.parametrize(
    ("value", "text"), [({"n": 1, "a b": {"en": "so"}}, "so"), (["so", "so"], "so so"), ([{"value": "so"}, 2], "so"), ({"n": 1}, None)]
)
def test_a_text_in_an_object_or_a_list_is_told_the_way_to_it(tmp_path: Path, value: Any, text: str | None) -> None:
    old = write(tmp_path / "old.jsonl", as_lines([{"text": value}]))
    hint = refusal(old).hint
    if text is None:
        assert "jq" not in hint
    else:
        assert rows(by_jq(hint, old)) == [text]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_preferences_with_lists_are_told_which_column_to_learn(tmp_path: Path, suffix: str) -> None:
    """UltraFeedback's hint led to a second error."""
    said = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    items = [{"prompt": "Why?", "chosen": said, "rejected": said}]
    path = tmp_path / f"a.{suffix}"
    _ = pq.write_table(pa.Table.from_pylist(items), path) if suffix == "parquet" else write(path, as_lines(items))
    assert "train on it with --text-column chosen" in refusal(path, mode="sft").hint
    (document,) = documents(path, text_column="chosen")
    assert document["messages"] == said


def test_preferences_whose_prompt_is_a_list_too_are_a_prompt_and_a_completion() -> None:
    row = {"prompt": [{"role": "user", "content": "Why?"}], "chosen": [{"role": "assistant", "content": "So."}], "rejected": []}
    with pytest.raises(BadValue) as refused:
        as_document(row, COLUMNS)
    assert "--rename completion=chosen" in refused.value.hint
