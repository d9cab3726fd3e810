from __future__ import annotations

import gzip
import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.core.files import streams
from ftcli.errors import DataError
from reading import labels, plan, refusal, rows, write
from reliability import size

GOOD = b'{"text": "a", "label": "x"}\n'


def dump(records: list[Any]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def test_rows_arrive_in_order_with_text_and_label(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", dump([{"text": f"글 {i}", "label": i % 3, "other": [i, {"k": None}]} for i in range(1000)]))
    assert rows(file, label_column="label") == [(f"글 {i}", i % 3) for i in range(1000)]


@pytest.mark.parametrize("suffix", [*streams.CODECS])
def test_compressed_files_give_the_same_rows_in_one_piece(tmp_path: Path, suffix: str) -> None:
    """Also of several streams one after the other, as parallel compressors write them."""
    data = dump([{"text": f"row {i}"} for i in range(50_000)]).encode()
    path = write(tmp_path / f"a.jsonl{suffix}", packed(suffix, data[:300_000]) + packed(suffix, data[300_000:]))
    assert rows(path) == [f"row {i}" for i in range(50_000)]
    assert [piece.unit for shard in plan(path, shard_bytes=1000).shards for piece in shard.pieces] == ["file"]


@pytest.mark.parametrize("suffix", [*streams.CODECS])
def test_compressed_data_that_are_damaged_cut_off_or_none_are_refused(tmp_path: Path, suffix: str) -> None:
    data = packed(suffix, dump([{"text": f"row {i}"} for i in range(5_000)]).encode())
    cut = refusal(write(tmp_path / f"a.jsonl{suffix}", data[: len(data) // 2]))
    assert "a.jsonl" in cut.message
    assert "the compressed data end too early" in cut.message
    other = refusal(write(tmp_path / f"b.jsonl{suffix}", GOOD * 10))
    assert f"damaged or not {streams.CODECS[suffix]} data" in other.message
    if suffix in {".gz", ".bz2", ".xz"}:  # the others hold a sum only where it was asked for
        half = len(data) // 2
        flipped = data[:half] + bytes(byte ^ 0xFF for byte in data[half : half + 20]) + data[half + 20 :]
        assert str(tmp_path / f"c.jsonl{suffix}") in refusal(write(tmp_path / f"c.jsonl{suffix}", flipped)).message
    assert "which does not match the suffix" in refusal(write(tmp_path / "d.jsonl", data)).message


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("data", [GOOD * 1000, b""])
def test_zero_bytes_behind_compressed_data_are_none_of_them(tmp_path: Path, suffix: str, data: bytes) -> None:
    """Tapes and some archivers fill the last block; gzip, bzip2 and xz read such files. What is damaged before is named all the same."""
    whole = packed(suffix, data) * 2
    padding = bytes(512 - len(whole) % 512)
    assert streams.content(str(write(tmp_path / f"a.jsonl{suffix}", whole + padding)))[1] == data * 2
    half = len(whole) // 2
    damaged = write(tmp_path / f"b.jsonl{suffix}", whole[: half - 10] + b"\xff" * 10 + whole[half:] + padding)
    with pytest.raises(DataError, match=r"b\.jsonl"):
        streams.content(str(damaged))


def packed(suffix: str, data: bytes) -> bytes:
    if suffix == ".xz":
        return lzma.compress(data)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, streams.CODECS[suffix]) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


LINE = st.one_of(
    st.builds(lambda text: json.dumps({"text": text}), st.text(max_size=40)),
    st.builds(lambda text: json.dumps({"x": 1, "text": text}, ensure_ascii=False), st.text(st.characters(codec="utf-8"), max_size=40)),
    st.sampled_from(["", " ", "\t"]),
)


@hypothesis_settings(max_examples=size(60, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(LINE, min_size=1, max_size=30),
    target=st.integers(1, 400),
    block=st.integers(1, 300),
    end=st.sampled_from(["\n", "\r\n"]),
    final=st.booleans(),
    mark=st.booleans(),
)
def test_no_row_is_lost_or_doubled_whatever_the_piece_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], target: int, block: int, end: str, final: bool, mark: bool
) -> None:
    expected = [json.loads(line)["text"] for line in lines if line.strip()]
    file = write(tmp_path / "a.jsonl", ("\ufeff" if mark else "") + end.join(lines) + (end if final else ""))
    monkeypatch.setattr(streams, "BLOCK", block)
    if not expected:
        assert "no rows" in refusal(file, shard_bytes=target).message
    else:
        assert rows(file, shard_bytes=target) == expected


def test_pieces_cover_the_file_once_and_their_number_follows_the_target(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", GOOD * 1000)
    pieces = [piece for shard in plan(file, shard_bytes=2800).shards for piece in shard.pieces]
    assert len(pieces) == 10
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].stop) == (0, file.stat().st_size)
    assert sum(piece.size for piece in pieces) == file.stat().st_size


BAD = {
    "a number": (b'{"text": 12, "label": "x"}', "'text' is 12 (a number); text must be a string"),
    "null": (b'{"text": null, "label": "x"}', "'text' is null; text must be a string"),
    "a list": (b'{"text": ["a"], "label": "x"}', "'text' is ['a'] (a list); text must be a string"),
    "an object": (b'{"text": {"a": 1}, "label": "x"}', "'text' is {'a': 1} (an object); text must be a string"),
    "a missing key": (b'{"texts": "a", "label": "x"}', "no column 'text'"),
    "a whole-number label": (b'{"text": "a", "label": 1}', "'label' is 1 (a number); labels must be strings, as in the first row"),
    "a null label": (b'{"text": "a", "label": null}', "'label' is null"),
    "a boolean label": (b'{"text": "a", "label": true}', "'label' is true"),
    "an array": (b'["a", "x"]', "a row must be an object, found ['a', 'x'] (a list)"),
    "null for an object": (b"null", "a row must be an object, found null"),
    "broken JSON": (b'{"text": "a" "label": "x"}', "not JSON: Expecting ',' delimiter at column 14"),
    "two objects on a line": (b'{"text": "a", "label": "x"} {"text": "b", "label": "x"}', "not JSON: Extra data at column 29"),
    "a line end inside an object": (b'{"text": "a",\n "label": "x"}', "not JSON: Expecting property name"),
    "a key twice": (b'{"text": "a", "text": "b", "label": "x"}', "the column 'text' exists 2 times"),
    "a lone surrogate": (b'{"text": "a\\ud800", "label": "x"}', "'text' holds the lone surrogate U+D800"),
    "a lone low surrogate": (b'{"text": "\\udc00", "label": "x"}', "'text' holds the lone surrogate U+DC00"),
    "bytes that are not UTF-8": (b'{"text": "a\xff", "label": "x"}', "not UTF-8: byte 0xff at column 12"),
    "a control character": (b'{"text": "a\x01", "label": "x"}', "not JSON: Invalid control character at column 12"),
    "a byte order mark inside": (b'\xef\xbb\xbf{"text": "a", "label": "x"}', "not JSON: Unexpected UTF-8 BOM"),
    "single quotes": (b"{'text': 'a'}", "not JSON: Expecting property name"),
    "a very deep object": (b'{"text":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named_with_its_number_and_reason(tmp_path: Path, name: str) -> None:
    line, reason = BAD[name]
    file = write(tmp_path / "a.jsonl", GOOD + b"\n" + GOOD * 3 + line + b"\n" + GOOD)
    for target in (10, 100, 10**6):
        error = refusal(file, label_column="label", shard_bytes=target)
        assert error.message.startswith(f"{file}:6 (byte "), error.message
        assert reason in error.message


TWO = b'{"text": "a", "label": "x"}{"text": "b", "label": "x"}'
COMPENSATED = {
    "an object on two lines": b'{"text": "c",\n"label": "x"}',
    "an inner object on a line of its own": b'{"text": "c", "label": "x", "y":\n{"z": 1}}',
    "a line end inside a string": b'{"text": "c}\n{", "label": "x"}',
    "a blank line inside an object": b'{"text": "c", "label": "x",\n\n"y": {"z": 1}}',
}


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("name", COMPENSATED)
def test_two_objects_on_a_line_are_refused_whatever_makes_up_for_the_number_of_lines(tmp_path: Path, name: str, end: bytes) -> None:
    """pyarrow tells how many rows it read, and not on which lines they stood."""
    for lines in ([TWO, COMPENSATED[name]], [COMPENSATED[name], TWO]):
        file = write(tmp_path / "a.jsonl", end.join([GOOD.strip(), *lines, GOOD.strip()]) + end)
        error = refusal(file, label_column="label")
        assert error.message.startswith(f"{file}:2 (byte "), error.message


@pytest.mark.parametrize(
    ("block", "lines"),
    [
        (b"", 0),
        (b"\n", 0),
        (b"{}", 1),
        (b"{}\n", 1),
        (b"{}\r\n{}\r\n", 2),
        (b"{}\n\n{}\n \n", 2),
        (b" {}\t\n{}", 2),
        (b"\r\n{}", 1),
        (b"{\n}", None),
        (b"{}\n}", None),
        (b"{}\n{", None),
        (b"null\n{}", None),
        (b"{}\n{} 1\n", None),
    ],
)
def test_lines_are_counted_where_each_begins_and_ends_as_an_object(block: bytes, lines: int | None) -> None:
    assert streams.object_lines(block) == lines


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_found_in_a_compressed_file_too(tmp_path: Path, name: str) -> None:
    line, reason = BAD[name]
    file = write(tmp_path / "a.jsonl.gz", gzip.compress(GOOD * 5 + line + b"\n"))
    error = refusal(file, label_column="label")
    assert error.message.startswith(f"{file}:6 (byte "), error.message
    assert reason in error.message


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("1.0", "'label' is 1.0 (a number); labels must be strings, whole numbers"),
        ("[false]", "'label' is [False]"),
        ("null", "'label' is null"),
    ],
)
def test_a_first_label_of_another_kind_is_refused_while_planning(tmp_path: Path, label: str, reason: str) -> None:
    file = write(tmp_path / "a.jsonl", f'{{"text": "a", "label": {label}}}\n')
    error = refusal(file, label_column="label")
    assert error.message.startswith(f"{file}:1 (byte ")
    assert reason in error.message


@pytest.mark.parametrize(
    ("label", "reason"), [("2.0", "'label' is 2.0"), ('"2"', "'label' is '2'"), (str(2**63), "does not fit into a signed 64-bit")]
)
def test_a_later_label_that_is_no_whole_number_is_refused(tmp_path: Path, label: str, reason: str) -> None:
    file = write(tmp_path / "a.jsonl", '{"text": "a", "label": 1}\n' * 9 + f'{{"text": "a", "label": {label}}}\n')
    error = refusal(file, label_column="label")
    assert error.message.startswith(f"{file}:10 (byte ")
    assert reason in error.message


def test_the_line_number_is_right_far_into_a_large_file(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", GOOD * 400_000 + b'{"text": 1}\n' + GOOD)
    assert refusal(file).message.startswith(f"{file}:400001 (byte ")
    assert refusal(file, shard_bytes=1 << 20).message.startswith(f"{file}:400001 (byte ")


def test_a_block_that_starts_with_null_does_not_crash_the_process(tmp_path: Path) -> None:
    """pyarrow 26 dies of SIGSEGV on such a block; hence a process of its own."""
    write(tmp_path / "a.jsonl", b'{"text": "a"}\n' + b"null\n" * 100)
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom reading import refusal\nprint(refusal({str(tmp_path / 'a.jsonl')!r}, shard_bytes=20).message)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "a.jsonl:2 (byte 14): a row must be an object, found null" in done.stdout


def test_a_missing_column_lists_the_keys_and_the_nearest(tmp_path: Path) -> None:
    error = refusal(write(tmp_path / "a.jsonl", '{"texts": "a", "id": 3}\n'))
    assert error.message.endswith(":1 (byte 0): no column 'text'")
    assert error.hint == "Columns: texts, id. Did you mean --text-column texts?"


@pytest.mark.parametrize("columns", [["messages"], ["conversations", "id"], ["prompt", "completion"], ["instruction", "input", "output"]])
def test_conversations_without_their_mode_are_told_its_name(tmp_path: Path, columns: list[str]) -> None:
    error = refusal(write(tmp_path / "a.jsonl", json.dumps(dict.fromkeys(columns, "a")) + "\n"))
    shown = ", ".join(columns)
    assert (
        error.hint == f"Columns: {shown}. For conversations use --mode sft; to read one column as plain text, name it with --text-column."
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(GOOD * 1000)[:-20], "the compressed data end too early"),
        (b"no gzip at all", "damaged or not gzip data"),
        (gzip.compress(GOOD * 1000)[:-8] + b"12345678", "damaged or not gzip data"),
    ],
)
def test_a_damaged_gzip_file_is_refused_by_name(tmp_path: Path, content: bytes, reason: str) -> None:
    file = write(tmp_path / "a.jsonl.gz", content)
    error = refusal(file)
    assert error.message.startswith(f"{file}: {reason}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(GOOD, mtime=0), "the content is gzip data"),
        (b"PAR1 and so on", "the content is a parquet file"),
        ('{"text": "a"}'.encode("utf-16"), "the text is UTF-16"),
        (b"\x00\x01\x02" * 100, "binary data"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path, content: bytes, reason: str) -> None:
    file = write(tmp_path / "a.jsonl", content)
    error = refusal(file)
    assert error.message.startswith(f"{file}: {reason}") or error.message.startswith(f"{file}: the text")
    assert reason in error.message


def test_a_last_line_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", GOOD * 3 + GOOD[:-6])
    error = refusal(file)
    assert error.message.startswith(f"{file}:4 (byte {3 * len(GOOD)}): not JSON")
    assert "not completely written or copied" in error.hint


@pytest.mark.parametrize("most", [None, 100])
def test_lines_that_end_in_cr_alone_are_refused_with_what_makes_them_lines(tmp_path: Path, most: int | None) -> None:
    file = write(tmp_path / "a.jsonl", GOOD.replace(b"\n", b"\r") * 20)
    assert refusal(file, **({} if most is None else {"max_line_bytes": most})).hint.startswith(
        "The file's lines end in CR alone. Convert them: tr "
    )


def test_empty_texts_and_labels_are_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"text": "", "label": ""}\n' * 2)
    assert rows(file, label_column="label") == [("", "")] * 2


def test_a_line_longer_than_a_block_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK", 1000)
    text = "긴 글 " * 10_000
    file = write(tmp_path / "a.jsonl", dump([{"text": "a"}, {"text": text}, {"text": "b"}]))
    assert rows(file, shard_bytes=700) == ["a", text, "b"]


def test_a_line_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK", 100)
    file = write(tmp_path / "a.jsonl", GOOD + b'{"text": "' + b"x" * 10_000 + b'"}\n' + GOOD)
    error = refusal(file, max_line_bytes=5000)
    assert error.message == f"{file}:2 (byte 28): a line of 10,012 bytes, more than max_line_bytes 5,000"
    assert len(rows(file, max_line_bytes=10_012)) == 3
    assert "10,012" in refusal(file, max_line_bytes=10_011).message


def test_labels_are_scanned_without_reading_the_text(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", GOOD + b'{"text": 5, "label": "y"}\n')
    assert labels(file, label_column="label") == {"x", "y"}
    assert ":2 (byte 28): 'text' is 5" in refusal(file, label_column="label").message


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ('[\n  {"text": "a"},\n  {"text": "b"}\n]\n', "rename it to .json"),
        ('[{"text": "a"}, {"text": "b"}]\n', "rename it to .json"),
        ('{\n  "text": "a"\n}\n', "jq -c . OLD > NEW"),
        ('{"text": "a"}\n["b"]\n', "one complete JSON object"),
    ],
)
def test_json_that_is_no_lines_is_told_what_to_be_called(tmp_path: Path, content: str, hint: str) -> None:
    assert hint in refusal(write(tmp_path / "a.jsonl", content)).hint


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"text": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}}', True),
        ('{"text": ["a", "b"], "label": ["x", "y"]}', True),
        ('{"text": ["a", "b"], "label": "x"}', False),
        ('{"text": 3, "label": "x"}', False),
    ],
)
def test_a_table_by_columns_is_told_how_pandas_writes_rows(tmp_path: Path, name: str, content: str, told: bool) -> None:
    assert ("orient='records', lines=True" in refusal(write(tmp_path / name, content)).hint) == told


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_table_with_its_names_apart_is_told_how_to_become_rows(tmp_path: Path, name: str) -> None:
    table = {"columns": ["text", "label"], "index": [0, 1], "data": [["a", "x"], ["b", "y"]]}
    hint = refusal(write(tmp_path / name, json.dumps(table))).hint
    assert "orient='split').to_json(NEW, orient='records', lines=True)" in hint
    assert "orient='split'" not in refusal(write(tmp_path / f"rows-{name}", '[["a", "x"], ["b", "y"]]')).hint


def test_a_label_that_is_the_same_negative_number_everywhere_is_read(tmp_path: Path) -> None:
    """As test splits of GLUE have it."""
    file = write(tmp_path / "a.jsonl", "".join(f'{{"text": "row {number}", "label": -1}}\n' for number in range(50)))
    assert rows(file, label_column="label") == [(f"row {number}", -1) for number in range(50)]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (b'{"text": "a"},\n{"text": "b"}\n', "A comma follows each object"),
        (b"{'text': 'a'}\n", "a Python dict, not JSON"),
        (b'# made by hand\n{"text": "a"}\n', "JSON lines cannot contain comments"),
        (b"nothing\n", "Each line must hold one complete JSON object"),
    ],
)
def test_lines_that_are_nearly_json_are_told_what_they_are(tmp_path: Path, lines: bytes, words: str) -> None:
    assert words in refusal(write(tmp_path / "a.jsonl", lines)).hint


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_a_web_page_under_the_name_of_a_file_is_one(tmp_path: Path, name: str) -> None:
    error = refusal(write(tmp_path / name, "\n<!DOCTYPE html>\n<html><body>text,label</body></html>\n"))
    assert error.message == f"{tmp_path / name}: the content is an HTML page, not the data file"


def test_an_address_is_no_file(tmp_path: Path) -> None:
    assert "Download it first" in refusal("https://example.com/x.jsonl").hint


def test_rows_of_ids_are_said_to_be_prepared(tmp_path: Path) -> None:
    assert "already token ids" in refusal(write(tmp_path / "a.jsonl", '{"input_ids": [1, 2], "labels": [1, 2]}\n')).hint
