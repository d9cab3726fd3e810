from __future__ import annotations

import gzip
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ftcli.plugins.jsonl import JsonLines
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyarrow import parquet

from ftcli.core.files.manifest import hash_file
from ftcli.core.reading.read import make_plan
from ftcli.core.reading.split_names import role_of
from ftcli.errors import DataError, FtcliError, PluginError, SettingsError, UsageError
from ftcli.settings import update
from reading import count, formats, plan, refusal, rows, settings, write
from reliability import size

ROW = '{"text": "a"}\n'


def jsonl(path: Path, rows_: int = 1) -> Path:
    return write(path, ROW * rows_)


def paths(made: Any) -> list[tuple[str, str]]:
    return [(file.split, Path(file.path).name) for file in made.files]


def test_files_are_listed_with_format_split_size_and_hash(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", 3)
    made = plan(file)
    (found,) = made.files
    assert (found.path, found.format, found.split, found.bytes) == (str(file), "jsonl", "train", 42)
    assert found.xxh3 == hash_file(file)
    assert made.bytes == 42
    assert made.notes == ()


def test_a_relative_path_stays_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jsonl(tmp_path / "d" / "a.jsonl")
    monkeypatch.chdir(tmp_path)
    assert [file.path for file in plan("d/a.jsonl").files] == ["d/a.jsonl"]
    assert [file.path for file in plan("d").files] == ["d/a.jsonl"]


# -- shards ------------------------------------------------------------------------------------------------------------


@hypothesis_settings(max_examples=size(25, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8), target=st.integers(1, 2000))
def test_shards_hold_every_row_once_in_order_whatever_the_target(tmp_path: Path, sizes: list[int], target: int) -> None:
    files = [write(tmp_path / f"{i}.jsonl", "".join(f'{{"text": "{i}.{j}"}}\n' for j in range(size))) for i, size in enumerate(sizes)]
    if not sum(sizes):
        return
    made = plan(*files, shard_bytes=target)
    assert [shard.index for shard in made.shards] == list(range(len(made.shards)))
    assert all(shard.size <= target or len(shard.pieces) == 1 for shard in made.shards), "pieces are joined up to the target only"
    assert all(a.size + b.pieces[0].size > target for a, b in zip(made.shards, made.shards[1:], strict=False)), "and as far as they can"
    assert rows(*files, shard_bytes=target) == [f"{i}.{j}" for i, size in enumerate(sizes) for j in range(size)]
    assert made == plan(*files, shard_bytes=target)


def test_small_files_share_a_shard_and_big_ones_are_cut(tmp_path: Path) -> None:
    files = [jsonl(tmp_path / f"{i}.jsonl", 10) for i in range(10)]
    big = jsonl(tmp_path / "big.jsonl", 1000)
    assert [len(shard.pieces) for shard in plan(*files, big, shard_bytes=1400).shards] == [10, *[1] * 10]


def test_shards_hold_one_split_and_come_in_the_order_of_splits(tmp_path: Path) -> None:
    for name in ("test", "dev", "train"):
        jsonl(tmp_path / f"{name}.jsonl")
    made = plan(tmp_path / "test.jsonl", tmp_path / "dev.jsonl", tmp_path / "train.jsonl")
    assert [(shard.index, shard.split) for shard in made.shards] == [(0, "train"), (1, "validation"), (2, "test")]


# -- what is found -----------------------------------------------------------------------------------------------------


def test_globs_go_through_directories_in_natural_order(tmp_path: Path) -> None:
    for name in ("part-10.jsonl", "part-2.jsonl", "deep/er/part-1.jsonl", "Part-3.jsonl"):
        jsonl(tmp_path / name)
    assert [name for _, name in paths(plan(tmp_path / "*.jsonl"))] == ["part-2.jsonl", "Part-3.jsonl", "part-10.jsonl"]
    assert [name for _, name in paths(plan(tmp_path / "**" / "*.jsonl"))] == [
        "part-1.jsonl",
        "part-2.jsonl",
        "Part-3.jsonl",
        "part-10.jsonl",
    ]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    assert paths(plan(jsonl(tmp_path / "a[1].jsonl"))) == [("train", "a[1].jsonl")]


def test_a_directory_is_read_as_the_format_with_most_bytes_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "text,label\n" + "a,b\n" * 50)
    write(tmp_path / "deep" / "more.csv", "text,label\na,b\n")
    write(tmp_path / "categories.json", '["a", "b"]')
    write(tmp_path / "README.md", "about")
    write(tmp_path / "readme.txt", "about")
    write(tmp_path / "SOURCE.md", "about")
    write(tmp_path / "image.png", b"\x00")
    write(tmp_path / ".hidden.csv", "x")
    write(tmp_path / ".git" / "a.csv", "x")
    made = plan(tmp_path)
    assert [name for _, name in paths(made)] == ["more.csv", "train.csv"]
    assert made.notes[0] == f"{tmp_path}: read as csv; left out categories.json, image.png, README.md, readme.txt, SOURCE.md"


def test_a_long_list_of_files_left_out_is_shortened(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl")
    for i in range(9):
        write(tmp_path / f"{i}.png", "x")
    assert plan(tmp_path).notes == (f"{tmp_path}: read as jsonl; left out 0.png, 1.png, 2.png, 3.png, 4.png and 4 more",)


def test_a_link_to_a_directory_inside_one_is_left_out_and_said_so(tmp_path: Path) -> None:
    jsonl(tmp_path / "d" / "a.jsonl")
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d")
    assert plan(tmp_path / "d").notes == (f"{tmp_path / 'd'}: read as jsonl; left out loop",)


def test_markdown_is_read_only_when_it_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.md", "one\n")
    write(tmp_path / "b.txt", "two\n")
    assert rows(tmp_path) == ["two"]
    assert rows(tmp_path / "*") == ["two"]
    assert plan(tmp_path / "*").notes == (f"{tmp_path / '*'}: left out {tmp_path / 'a.md'}",)
    assert rows(tmp_path / "*.md") == ["one"]
    assert rows(tmp_path / "a.md") == ["one"]


def test_plain_text_is_tab_separated_where_a_label_is_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path / "fci_train.txt", "0\t만화\n1\t뭐야\n")
    assert rows(file) == ["0\t만화", "1\t뭐야"]
    assert rows(file, text_column="1", label_column="0") == [("만화", "0"), ("뭐야", "1")]
    made = plan(file, text_column="1", label_column="0")
    assert made.files[0].format == "csv"
    assert made.notes == (
        f"read as tab-separated, because the label column '0' is asked for: {file}",
        "columns are counted from 0: the .csv, .tsv and .txt files are assumed to have no header line",
    )


def test_plain_text_is_tab_separated_where_the_columns_that_are_named_stand_in_its_first_line(tmp_path: Path) -> None:
    file = write(tmp_path / "ratings_test.txt", "\ufeffid\tdocument\tlabel\r\n1\t굳 ㅋ\t1\r\n2\t별로\t0\r\n")
    assert rows(file, text_column="document") == ["굳 ㅋ", "별로"]
    assert plan(file, text_column="document").notes[0] == f"read as tab-separated, because the first line has the column 'document': {file}"
    assert rows(file, text_column="label") == ["1", "0"]
    assert len(rows(file)) == len(rows(file, text_column="rating")) == 3
    counted = write(tmp_path / "fci_train.txt", "0\t만화\n1\t뭐야\n")
    assert rows(counted, text_column="1") == ["만화", "뭐야"]
    assert len(rows(counted, text_column="2")) == 2
    prose = write(tmp_path / "document.txt", "document\nof words\n")
    assert rows(prose, text_column="document") == ["document", "of words"]
    assert rows(prose, text_column="0") == ["document", "of words"]


def test_a_file_named_twice_is_read_once_and_said_so(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl")
    (tmp_path / "same.jsonl").symlink_to(file)
    made = plan(file, tmp_path / "same.jsonl")
    assert paths(made) == [("train", "a.jsonl")]
    assert made.notes == (f"given more than once, read once: {tmp_path / 'same.jsonl'}",)


def test_copies_of_a_file_and_packed_ones_beside_it_are_read_and_said_so(tmp_path: Path) -> None:
    """The rows counted twice without a word."""
    file = jsonl(tmp_path / "a.jsonl")
    for name in ("b.jsonl", "c/a.jsonl"):
        write(tmp_path / name, file.read_bytes())
    write(tmp_path / "a.jsonl.gz", gzip.compress(file.read_bytes()))
    write(tmp_path / "empty.jsonl", "")
    write(tmp_path / "void.jsonl", "")
    made = plan(tmp_path)
    assert len(made.files) == 6
    assert made.notes[-2:] == (
        f"identical files under several names, all of them read: {file} = {tmp_path}/b.jsonl = {tmp_path}/c/a.jsonl",
        f"compressed and uncompressed, probably the same rows, both read: {file} = {file}.gz",
    )
    assert plan(file, f"test={tmp_path}/b.jsonl").notes == (
        f"identical files under several names, all of them read: {file} (train) = {tmp_path}/b.jsonl (test)",
    )
    copies = [write(tmp_path / "many" / f"{number}.{copy}.jsonl", ROW * number) for number in range(1, 6) for copy in range(5)]
    (note,) = plan(*copies).notes
    assert note.endswith(" and 2 more") and note.count("; ") == 2 and note.count(".jsonl") == 9  # noqa: PT018
    assert plan(file, jsonl(tmp_path / "other.jsonl", 2)).notes == ()


def test_files_of_a_folder_that_lack_the_columns_are_told_which_that_were_left_out_have_them(tmp_path: Path) -> None:
    """As a small table beside pages of metadata."""
    lines = {"meta.jsonl": '{"id": 1}\n' * 50, "notes.txt": "one line of prose\n" * 50}
    rest = {"meta.json": json.dumps([{"id": 1}] * 50), **lines}
    for name, content in rest.items():
        folder = tmp_path / Path(name).suffix[1:]
        big, table = write(folder / name, content), write(folder / "train.csv", "text,label\na,x\nb,y\n")
        error = refusal(folder, label_column="label")
        assert error.message == f"{big}: no column 'text'"
        assert f"{table} has the columns asked for but was left out" in error.hint
        assert "was left out" not in refusal(folder, label_column="other").hint
    assert rows(tmp_path / "txt")[0] == "one line of prose"


def test_a_set_kept_in_two_formats_is_read_from_both_and_said_so(tmp_path: Path) -> None:
    """As train.csv beside train.tsv: every row counted twice without a word."""
    write(tmp_path / "train.csv", "text,id\na,1\n")
    write(tmp_path / "train.tsv", "text\tid\na\t1\n")
    write(tmp_path / "test.csv", "text,id\nb,1\n")
    jsonl(tmp_path / "test.jsonl.gz")
    write(tmp_path / "test.jsonl.gz", gzip.compress((tmp_path / "test.jsonl.gz").read_bytes()))
    what = "the same name in several formats, probably the same rows, all of them read"
    assert plan(tmp_path / "train.*").notes == (
        f"{what} (to read one format: '{tmp_path}/*.csv'): {tmp_path}/train.csv = {tmp_path}/train.tsv",
    )
    assert plan(f"train={tmp_path}/test.jsonl.gz", f"test={tmp_path}/test.csv").notes == (
        f"{what} (to read one format: '{tmp_path}/*.jsonl.gz'): {tmp_path}/test.jsonl.gz (train) = {tmp_path}/test.csv (test)",
    )
    assert len(plan(tmp_path / "*.csv").notes) == 1
    logs = [jsonl(tmp_path / f"app.{number}", number) for number in range(1, 3)]
    assert plan(*logs, source_format="jsonl").notes == ()


def test_a_file_in_two_splits_is_refused(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl")
    assert refusal(f"train={file}", f"test={file}").message == f"{file} is given both as train and as test"


def test_files_without_rows_are_said_so(tmp_path: Path) -> None:
    made = plan(write(tmp_path / "a.jsonl", "\n"), jsonl(tmp_path / "b.jsonl"))
    assert made.notes == (f"{tmp_path / 'a.jsonl'}: no rows",)
    assert len(made.shards) == 1


# -- splits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("train.csv", "train"),
        ("train-00000-of-00003.parquet", "train"),
        ("fci_train_val.txt", "train"),
        ("xnli.dev.ko.tsv", "validation"),
        ("sts-test.tsv", "test"),
        ("my_valid.jsonl.gz", "validation"),
        ("EVAL.jsonl", "validation"),
        ("latest.csv", None),
        ("training/part-1.jsonl", "train"),
        ("test/part-1.jsonl", "test"),
        ("test/train.jsonl", "train"),
        ("contest.csv", None),
        ("developers.csv", None),
        ("test2.csv", "test"),
        ("val2020.csv", "validation"),
        ("train1of4.jsonl", "train"),
        ("testData.json", "test"),
        ("testset.csv", "test"),
        ("학습Train.csv", "train"),
        ("latest2.csv", None),
    ],
)
def test_a_file_name_tells_its_split_by_whole_words(name: str, role: str | None) -> None:
    assert role_of(name) == role


def test_splits_come_from_file_names_when_some_are_train_and_some_are_not(tmp_path: Path) -> None:
    for number, name in enumerate(("train.jsonl", "test.jsonl", "dev.jsonl", "more.jsonl"), 1):
        jsonl(tmp_path / name, number)
    made = plan(tmp_path)
    assert paths(made) == [("train", "more.jsonl"), ("train", "train.jsonl"), ("validation", "dev.jsonl"), ("test", "test.jsonl")]
    base = tmp_path
    assert made.notes == (
        f"splits by file name: train ← {base}/more.jsonl, {base}/train.jsonl; validation ← {base}/dev.jsonl; test ← {base}/test.jsonl",
    )


def test_splits_come_from_directories_below_the_one_that_was_named(tmp_path: Path) -> None:
    for name in ("train/0.jsonl", "train/1.jsonl", "test/0.jsonl"):
        jsonl(tmp_path / "test-project" / name)
    assert count(tmp_path / "test-project") == {"train": 2, "test": 1}


@pytest.mark.parametrize("sources", [("*/*.jsonl",), ("**/0.jsonl",), ("train/0.jsonl", "test/0.jsonl")])
def test_splits_come_from_the_directories_where_globs_and_files_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: tuple[str, ...]
) -> None:
    for name in ("train/0.jsonl", "test/0.jsonl"):
        jsonl(tmp_path / "test-project" / name)
    assert count(*(tmp_path / "test-project" / source for source in sources)) == {"train": 1, "test": 1}
    monkeypatch.chdir(tmp_path / "test-project")
    assert count(*sources) == {"train": 1, "test": 1}


@pytest.mark.parametrize(
    "sources",
    [
        ("train", "validation", "test"),
        ("train/*.jsonl", "validation/*.jsonl", "test/*.jsonl"),
        ("train", "validation/0.jsonl", "test/*.jsonl"),
    ],
)
def test_directories_and_globs_tell_splits_as_the_files_in_them_do(tmp_path: Path, sources: tuple[str, ...]) -> None:
    for name in ("train", "validation", "test"):
        jsonl(tmp_path / "test-project" / name / "0.jsonl")
    assert count(*(tmp_path / "test-project" / source for source in sources)) == {"train": 1, "validation": 1, "test": 1}


def test_directories_whose_names_hold_a_split_tell_it(tmp_path: Path) -> None:
    for name in ("my-data-train", "my-data-dev"):
        jsonl(tmp_path / "test" / name / "0.jsonl")
    assert count(*(tmp_path / "test" / name for name in ("my-data-train", "my-data-dev"))) == {"train": 1, "validation": 1}
    assert count(tmp_path / "test" / "my-data-dev") == {"train": 1}


def test_a_split_that_is_named_over_other_names_is_noted(tmp_path: Path) -> None:
    for number, name in enumerate(("train", "test"), 1):
        jsonl(tmp_path / f"{name}.jsonl", number)
    made = plan(f"train={tmp_path}")
    assert {split for split, _ in paths(made)} == {"train"}
    assert made.notes == (
        f"{tmp_path}: read as train like the other files there, although their names suggest another split: {tmp_path}/test.jsonl",
    )
    assert plan(f"train={tmp_path / 'test.jsonl'}").notes == ()


def test_the_directory_that_all_files_share_tells_no_split(tmp_path: Path) -> None:
    made = plan(jsonl(tmp_path / "test" / "a.jsonl"), jsonl(tmp_path / "test" / "train.jsonl", 2))
    assert {split for split, _ in paths(made)} == {"train"}
    assert made.notes == ()


def test_without_a_train_file_everything_is_train_and_that_is_said(tmp_path: Path) -> None:
    jsonl(tmp_path / "test.jsonl")
    jsonl(tmp_path / "other.jsonl", 2)
    made = plan(tmp_path)
    assert {split for split, _ in paths(made)} == {"train"}
    assert made.notes == (f"read as train, because no file is named train: {tmp_path / 'test.jsonl'} (to set the split: SPLIT=PATH)",)


def test_a_prefix_names_the_split_and_wins_over_file_names(tmp_path: Path) -> None:
    for number, name in enumerate(("train.jsonl", "test.jsonl", "x.jsonl"), 1):
        jsonl(tmp_path / name, number)
    made = plan(f"dev={tmp_path / 'test.jsonl'}", f"Train={tmp_path / 'x.jsonl'}", f"test={tmp_path / 'tr*.jsonl'}")
    assert paths(made) == [("train", "x.jsonl"), ("validation", "test.jsonl"), ("test", "train.jsonl")]
    assert made.notes == ()


def test_an_equals_sign_in_a_path_is_part_of_the_path(tmp_path: Path) -> None:
    assert paths(plan(jsonl(tmp_path / "lang=ko" / "a.jsonl"))) == [("train", "a.jsonl")]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_nothing_named_and_one_column_for_both_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no data source given"):
        make_plan(settings(), formats())
    with pytest.raises(UsageError, match="cannot be both"):
        plan(jsonl(tmp_path / "a.jsonl"), label_column="text")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("a.xlsx", "Save each sheet as a CSV"),
        ("a.tar.gz", "Unpack it"),
        ("a.zip", "Unpack it"),
        ("a.jsonl.br", "Decompress it"),
        ("a.xml", "Write its texts"),
    ],
)
def test_files_that_people_have_are_told_a_way(tmp_path: Path, name: str, way: str) -> None:
    assert refusal(write(tmp_path / name, "x")).hint.startswith(way)


def test_a_format_that_is_given_counts_and_not_the_suffix(tmp_path: Path) -> None:
    """As dumps are cut: wiki_00, train.label, SMSSpamCollection; they could only be read under another name."""
    line = '{"text": "a"}\n'
    for name in ("AA/wiki_00", "AA/wiki_01", "AB/wiki_00.gz", "AB/.hidden", "README", "notes.md"):
        write(tmp_path / name, gzip.compress(line.encode()) if name.endswith(".gz") else line)
    assert "--source-format" in refusal(tmp_path / "AA/wiki_00").hint
    folder, pattern = (plan(source, source_format="jsonl") for source in (tmp_path, tmp_path / "A*/wiki_0*"))
    assert [file.path for file in folder.files] == [str(tmp_path / name) for name in ("AA/wiki_00", "AA/wiki_01", "AB/wiki_00.gz")]
    assert folder.files == pattern.files
    assert "left out notes.md, README" in folder.notes[0]
    assert count(tmp_path, source_format="jsonl") == {"train": 3}
    assert count(tmp_path / "AA/wiki_00", source_format="text") == {"train": 1}
    table = write(tmp_path / "labels.txt", "text\tlabel\na\tx\n")
    assert plan(table, source_format="csv", label_column="label").files[0].format == "csv"
    with pytest.raises(DataError, match="plain text has no label column"):
        plan(table, source_format="text", label_column="label")


def test_a_folder_of_files_that_no_suffix_tells_says_how_they_are_read(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        write(tmp_path / "w" / f"wiki.{split}.tokens", " \n = Title = \n")
    assert "State their format: --source-format text, csv, jsonl …" in refusal(tmp_path / "w").hint
    assert count(tmp_path / "w", source_format="text") == {"train": 1, "validation": 1, "test": 1}
    write(tmp_path / "z" / "a.zip", "PK")
    assert "Unpack it" in refusal(tmp_path / "z").hint
    write(tmp_path / "e" / "notes.md", "about")
    assert "--source-format" not in refusal(tmp_path / "e").hint


@pytest.mark.parametrize(("name", "meant"), [("tsv", "csv"), ("ndjson", "jsonl"), ("parqet", "parquet"), ("excel", None)])
def test_a_format_that_there_is_not_is_refused(tmp_path: Path, name: str, meant: str | None) -> None:
    with pytest.raises(SettingsError, match=f"dataset.source_format = '{name}' is not a file format") as caught:
        plan(jsonl(tmp_path / "a.jsonl"), source_format=name)
    assert (
        caught.value.hint == (f"Did you mean {meant}? " if meant else "") + "Known formats: arrow, csv, json, jsonl, parquet, pickle, text."
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("gone.jsonl", "gone.jsonl: no such file or directory"),
        ("gone/deep/a.jsonl", "no such file or directory"),
        ("*.parquet", "*.parquet: the pattern matches nothing"),
        ("*.xyz", "the pattern matches only"),
        ("empty", "empty: no data files in this directory"),
        ("a.xyz", "a.xyz: no known format for .xyz"),
        ("plain", "plain: no known format for a file without a suffix"),
        ("dangling.jsonl", "dangling.jsonl: a link to"),
        ("loop.jsonl", "loop.jsonl: a link to"),
        ("fifo.jsonl", "fifo.jsonl: a FIFO, not a file"),
        ("socket.jsonl", "socket.jsonl: a socket, not a file"),
        ("with-fifo", "pipe.jsonl: a FIFO, not a file"),
        ("/dev/null", "/dev/null: a device, not a file"),
        ("-", "-: stdin is not read"),
        ("x" * 5000, "no such file or directory"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "with-fifo").mkdir()
    write(tmp_path / "a.xyz", "x")
    write(tmp_path / "plain", "x")
    (tmp_path / "dangling.jsonl").symlink_to("nowhere")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    os.mkfifo(tmp_path / "fifo.jsonl")
    os.mkfifo(tmp_path / "with-fifo" / "pipe.jsonl")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.jsonl")
        alarm = threading.Timer(20, os._exit, [3])  # a FIFO that is opened would hang for ever
        alarm.start()
        try:
            assert reason in refusal(source).message
        finally:
            alarm.cancel()


def test_an_open_file_of_this_process_is_refused(tmp_path: Path) -> None:
    with jsonl(tmp_path / "a.jsonl").open() as file:
        for path in (f"/dev/fd/{file.fileno()}", f"/proc/self/fd/{file.fileno()}"):
            refused = refusal(path, source_format="jsonl")
            assert (refused.message, refused.hint) == (
                f"{path}: an open file of this process, which its workers cannot read",
                "Name the file itself.",
            )


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl")
    file.chmod(0)
    assert "permission denied" in refusal(file).message


def test_permission_is_asked_for_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = jsonl(tmp_path / "a.jsonl")
    monkeypatch.setattr("ftcli.core.reading.find.os.access", lambda *a: False)
    assert refusal(file).message == f"{file}: cannot be read: permission denied"


def test_a_directory_inside_that_cannot_be_listed_is_refused_instead_of_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jsonl(tmp_path / "a.jsonl")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert refusal(tmp_path).message == f"{tmp_path / 'closed'}: cannot be listed: Permission denied"


def test_the_nearest_name_is_suggested(tmp_path: Path) -> None:
    jsonl(tmp_path / "reviews.jsonl")
    assert refusal(tmp_path / "review.jsonl").hint == "Did you mean reviews.jsonl?"
    assert refusal(f"tarin={tmp_path / 'reviews.jsonl'}").hint == "Did you mean train?"


def test_labels_of_two_kinds_are_refused_naming_both_files(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", '{"text": "a", "label": 1}\n')
    two = write(tmp_path / "b.csv", "text,label\na,1\n")
    error = refusal(one, two, label_column="label")
    assert error.message == f"the label column 'label' holds whole numbers in {one} and strings in {two}"


def test_two_formats_for_one_suffix_are_refused(tmp_path: Path) -> None:
    registry = formats()
    registry.registrar("other")("mine", JsonLines)
    with pytest.raises(PluginError, match=r"both read \.jsonl"):
        make_plan(settings(jsonl(tmp_path / "a.jsonl")), registry)


def test_progress_counts_the_bytes_that_are_hashed(tmp_path: Path) -> None:
    class Seen:
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def start(self, stage: str, total: float | None, unit: str) -> None:
            self.calls.append((stage, total, unit))

        def advance(self, amount: float, **figures: Any) -> None:
            self.calls.append(amount)

        def say(self, message: str) -> None: ...

        def close(self) -> None:
            self.calls.append("close")

    progress = Seen()
    make_plan(settings(jsonl(tmp_path / "a.jsonl"), jsonl(tmp_path / "b.jsonl", 2)), formats(), progress)
    assert progress.calls == [("hash", 42, "B"), 14, 28, "close"]


def test_every_refusal_can_be_sent_between_processes(tmp_path: Path) -> None:
    import pickle

    error = refusal(tmp_path / "gone.jsonl")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, FtcliError)
    assert (copy.message, copy.hint) == (error.message, error.hint)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"])
def test_a_column_of_labels_that_is_not_read_is_named(tmp_path: Path, name: str) -> None:
    rows = [{"text": "so good", "category": "film", "id": 1}]
    kind = name[2:]
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    elif kind in {"csv", "tsv"}:
        mark = "," if kind == "csv" else "\t"
        write(tmp_path / name, f"text{mark}category{mark}id\nso good{mark}film{mark}1\n")
    else:
        write(tmp_path / name, json.dumps(rows) if kind == "json" else json.dumps(rows[0]) + "\n")
    said = "no labels are read: category may contain them (--label-column category)"
    assert said in plan(tmp_path / name).notes
    assert said not in plan(tmp_path / name, label_column="category").notes
    assert said not in make_plan(update(settings(tmp_path / name), {"train.mode": "pretrain"}), formats()).notes
    assert not [note for note in plan(tmp_path / name, text_column="category").notes if "no labels" in note]


def test_labels_that_stand_in_the_names_of_folders_are_said_not_to_be_read(tmp_path: Path) -> None:
    jsonl(tmp_path / "data" / "label=0" / "a.jsonl")
    jsonl(tmp_path / "data" / "label=1" / "b.jsonl")
    said = "no labels are read: the names of folders may contain them (label=0), and no column does"
    assert said in plan(tmp_path / "data").notes
    jsonl(tmp_path / "other" / "year=2020" / "a.jsonl")
    assert not [note for note in plan(tmp_path / "other").notes if "no labels" in note]


def test_a_column_that_is_in_the_file_and_in_the_name_of_its_folder_is_said_to_be_the_file_s(tmp_path: Path) -> None:
    """As Arrow and Spark lay data out it is the folder's alone; here both may differ."""
    for value in "01":
        write(tmp_path / "data" / f"label={value}" / "year=2020" / "a.jsonl", '{"text": "a", "label": 1}\n')
    said = [note for note in plan(tmp_path / "data", label_column="label").notes if "folder" in note]
    assert said == [f"{tmp_path}/data/label=0/year=2020/a.jsonl: 'label' is read from the file; its folder's name (label=0) is not"]
    assert not [note for note in plan(tmp_path / "data", label_column=None).notes if "is read from the file" in note]


# -- what lies there and is no data -------------------------------------------------------------------------------------


def report(path: Path) -> None:
    """A report as it is written: the schema last."""
    write(path.with_suffix(".json"), json.dumps({"command": "tokenize", "text": "a" * 400, "schema": "ftcli.report/1"}, indent=2) + "\n")
    write(path.with_suffix(".html"), "<!doctype html>")


def test_what_ftcli_made_among_the_sources_is_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ftcli tokenize .` wrote its output, its report and rejects.jsonl there; the second run read them."""
    jsonl(tmp_path / "a.jsonl")
    jsonl(tmp_path / "deep" / "b.jsonl")
    jsonl(tmp_path / "p1" / "rejects.jsonl", 9)
    write(tmp_path / "p1" / "ftcli-manifest.json", "{}")
    jsonl(tmp_path / "p1" / "train" / "c.jsonl", 9)
    jsonl(tmp_path / "run" / "metrics.jsonl", 9)
    write(tmp_path / "run" / "ftcli-run.json", "{}")
    jsonl(tmp_path / "making" / "x.jsonl", 9)
    report(tmp_path / "ftcli-reports" / "tokenize")
    report(tmp_path / "deep" / "verify")
    monkeypatch.chdir(tmp_path)
    for folder in (".", str(tmp_path)):
        made = plan(folder, output_dir="making")
        assert [name for _, name in paths(made)] == ["a.jsonl", "b.jsonl"]
        noted = [note for note in made.notes if "output of ftcli" in note]
        assert noted == [f"{folder}: left out output of ftcli: deep/verify.json, ftcli-reports, making, p1, run"]
        assert not any("a" * 400 in text for text in rows(folder, output_dir="making"))
    for pattern, found in (
        ("**/*.js*", ["a.jsonl", "b.jsonl"]),
        ("*/*.jsonl", ["b.jsonl"]),
        (f"{tmp_path}/**/*.jsonl", ["a.jsonl", "b.jsonl"]),
    ):
        made = plan(pattern, output_dir="making")
        assert [name for _, name in paths(made)] == found
        assert f"{pattern}: left out output of ftcli: " in made.notes[0]
        assert len([note for note in made.notes if "p1" in note]) == 1


def test_what_ftcli_made_is_read_where_it_is_named(tmp_path: Path) -> None:
    jsonl(tmp_path / "p1" / "rejects.jsonl")
    write(tmp_path / "p1" / "ftcli-manifest.json", "{}")
    for named in (tmp_path / "p1", tmp_path / "p1" / "rejects.jsonl", tmp_path / "p1" / "*.jsonl"):
        assert [name for _, name in paths(plan(named))] == ["rejects.jsonl"]


def test_a_folder_of_nothing_but_what_ftcli_made_says_so(tmp_path: Path) -> None:
    jsonl(tmp_path / "p1" / "rejects.jsonl")
    write(tmp_path / "p1" / "ftcli-manifest.json", "{}")
    error = refusal(tmp_path)
    assert error.message == f"{tmp_path}: no data files in this directory"
    assert error.hint.startswith(f"{tmp_path}: left out output of ftcli: p1. ")
    error = refusal(tmp_path / "*" / "*.jsonl")
    assert "the pattern matches only" in error.message
    assert "left out output of ftcli: p1. " in error.hint


def test_a_document_beside_a_page_of_its_name_is_data(tmp_path: Path) -> None:
    write(tmp_path / "a.json", '[{"text": "a"}]')
    write(tmp_path / "a.html", "<!doctype html>")
    assert rows(tmp_path) == rows(tmp_path / "*.json") == ["a"]
