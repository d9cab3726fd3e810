from __future__ import annotations

import csv
import gzip
import io
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest
from ftcli.plugins import csvfile, csvquotes
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.core.files import streams
from ftcli.core.reading.file_notes import Tables, notes_on_files
from ftcli.core.reading.find import Found
from ftcli.settings import Settings
from reading import count, labels, plan, refusal, rows, write
from reliability import size

HEAD = "text,label\n"


def test_values_stay_the_text_they_are(tmp_path: Path) -> None:
    values = [("NA", "null"), ("1.0", "007"), ("true", "NaN"), ("2020-01-01", "-"), ("", ""), (" a ", "#N/A")]
    file = write(tmp_path / "a.csv", HEAD + "".join(f"{text},{label}\n" for text, label in values))
    assert rows(file, label_column="label") == values


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quoted_fields_may_hold_commas_quotes_and_line_ends(tmp_path: Path, end: str) -> None:
    file = write(tmp_path / "a.csv", f'\ufefftext,label{end}"a ""b"", c{end}d",x{end}{end}e,"y"')
    assert rows(file, label_column="label") == [(f'a "b", c{end}d', "x"), ("e", "y")]


@pytest.mark.parametrize(("suffix", "kind"), [(".csv.gz", "gzip"), (".csv.zst", "zstd")])
def test_compressed_files_are_streamed(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"a{suffix}"
    with pa.CompressedOutputStream(str(path), kind) as stream:
        stream.write((HEAD + '"글, 하나",x\n' * 30_000).encode())
    assert rows(path, label_column="label") == [("글, 하나", "x")] * 30_000


FIELD = st.text(st.sampled_from('ab글 ,"\n\r\t'), max_size=8)


@hypothesis_settings(max_examples=size(60, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    table=st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=20),
    block=st.integers(1, 200),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
def test_what_the_csv_module_writes_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: list[tuple[str, str]], block: int, quoting: int
) -> None:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, quoting=quoting).writerows([("text", "label"), *table])  # type: ignore[arg-type]
    monkeypatch.setattr(csvfile, "BLOCKS", (max(block, 40), 1 << 20))
    assert rows(write(tmp_path / "a.csv", buffer.getvalue()), label_column="label") == table


def test_a_line_end_inside_quotes_survives_every_block_border(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow 26 drops an LF that starts a block after a CR, even inside quotes."""
    table = [("a\r\nb", "x"), ("c\r\r\n", "y"), ("d", "z")] * 3
    file = write(tmp_path / "a.csv", HEAD + "".join(f'"{text}",{label}\r\n' for text, label in table))
    for block in range(12, 120):
        monkeypatch.setattr(csvfile, "BLOCKS", (block, 1 << 20))
        assert rows(file, label_column="label") == table


def test_the_stream_for_pyarrow_never_parts_cr_from_lf(tmp_path: Path) -> None:
    file = str(write(tmp_path / "a.csv", b"a\r\r\nbc\r"))
    for span, chunks in (((0, None), [b"a\r\r\n", b"b", b"c\r", b""]), ((4, 6), [b"bc", b"", b"", b""])):
        stream = csvquotes.Whole(file, span)
        assert [stream.read(2), stream.read(1), stream.read(9), stream.read(9)] == chunks
        stream.close()


@hypothesis_settings(
    max_examples=size(300, 3000), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    content=st.lists(st.sampled_from(['"', '""', ",", "\t", "\n", "\r\n", "\r", "a", "가", "\ufeff"]), max_size=14).map("".join)
    | st.lists(st.lists(st.text('a",\t\n', max_size=4), min_size=2, max_size=2), min_size=1, max_size=4),
    delimiter=st.sampled_from([",", "\t"]),
    block=st.integers(1, 9),
    longest=st.sampled_from([1 << 20, 12]),
)
@example(content='"a"b,c\n', delimiter=",", block=9, longest=1 << 20)
@example(content='a"b",c\n', delimiter=",", block=9, longest=1 << 20)
def test_quotes_where_they_belong_are_judged_as_the_parser_does(
    content: str | list[list[str]], delimiter: str, block: int, longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(content, list):
        buffer = io.StringIO(newline="")
        csv.writer(buffer, delimiter=delimiter).writerows(content)
        content = buffer.getvalue()
    file = str(write(tmp_path / "a.csv", content))
    monkeypatch.setattr(streams, "BLOCK", block)
    judgement = csvquotes._in_order(file, delimiter, longest, (0, None))
    if '"' not in content:
        assert judgement == "characters"
    elif judgement is not None:
        assert judgement == csvquotes._parsed(file, delimiter, longest, (0, None))[0]


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_what_csv_writes_takes_no_parser_of_python(delimiter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter).writerows([("text", "label"), *[(f'he said "{n}", twice\tor more', "x") for n in range(99)]])
    file = write(tmp_path / ("a.tsv" if delimiter == "\t" else "a.csv"), "\ufeff" + buffer.getvalue())
    monkeypatch.setattr(csvquotes, "_parsed", lambda *_: pytest.fail("the parser was asked"))
    assert rows(file, label_column="label")[5] == ('he said "5", twice\tor more', "x")


def test_a_row_longer_than_a_block_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvfile, "BLOCKS", (100, 1 << 20))
    expected = [(f"t{i}", "x") for i in range(50)] + [("긴" * 200_000, "y"), ("end", "z")]
    file = write(tmp_path / "a.csv", HEAD + "\n" + "".join(f"{text},{label}\n" for text, label in expected))
    assert rows(file, label_column="label") == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a", "1 fields where the header has 2: 'a' (a string)"),
        ("a,b,c", "3 fields where the header has 2: 'a,b,c' (a string)"),
        ("a\udcff,b", "'text' is not UTF-8"),
        ('"a"b,c', "a quote is not closed, or text follows the closing one"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, line: str, reason: str) -> None:
    content = (HEAD + "a,b\n" * 2 + '"two\nlines",b\n\n' + line + "\nc,d\n").encode(errors="surrogateescape")
    for name, data in (("a.csv", content), ("b.csv.gz", gzip.compress(content))):
        file = write(tmp_path / name, data)
        error = refusal(file, label_column="label")
        assert error.message.startswith(f"{file}:7 (byte "), error.message
        assert reason in error.message


def test_a_quote_that_is_never_closed_is_refused_instead_of_swallowing_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", HEAD + 'a,b\n"a,b\n' + "a,b\n" * 10)
    assert "a quote is not closed" in refusal(file).message


def test_two_stray_quotes_are_refused_instead_of_joining_rows(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", HEAD + '"hello,x\na,b\n"world" again,y\n')
    error = refusal(file, label_column="label")
    assert error.message.startswith(f"{file}:2 (byte 11): a quote is not closed, or text follows")


def test_quotes_inside_an_unquoted_field_are_characters(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", HEAD + '5" disk,x\nthe "best" one,y\n')
    assert rows(file, label_column="label") == [('5" disk', "x"), ('the "best" one', "y")]


def test_in_a_tsv_stray_quotes_are_characters(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", 'text\tlabel\n"hello\tx\nb\ty\n"c" he said\tz\n')
    assert rows(file, label_column="label") == [('"hello', "x"), ("b", "y"), ('"c" he said', "z")]


def test_a_tsv_whose_lines_are_rows_is_not_joined_by_quotes(tmp_path: Path) -> None:
    """Read as quoted, the two lines would be one row of two fields."""
    file = write(tmp_path / "a.tsv", 'text\tlabel\n"foo\t3\nbar"\t4\n')
    assert rows(file, label_column="label") == [('"foo', "3"), ('bar"', "4")]


def test_a_tsv_that_is_quoted_throughout_is_unquoted(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", 'text\tlabel\n"a ""b"""\tx\n"two\nlines"\ty\n')
    assert rows(file, label_column="label") == [('a "b"', "x"), ("two\nlines", "y")]
    file = write(tmp_path / "b.tsv", 'text\tlabel\n"a ""b"""\tx\n')
    assert rows(file, label_column="label") == [('a "b"', "x")]


def test_a_row_that_begins_with_a_byte_order_mark_keeps_it_wherever_its_shard_begins(tmp_path: Path) -> None:
    """pyarrow drops the mark at the start of every stream; that of a file alone is none of a text."""
    texts = [f"\ufeffrow {number}" for number in range(6)]
    file = write(tmp_path / "a.csv", "text,label\n" + "".join(f"{text},a\n" for text in texts))
    assert len(plan(file, shard_bytes=30).shards) > 2
    assert rows(file, shard_bytes=30) == rows(file) == texts


def test_columns_go_by_position_when_there_is_no_header(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", "좋아요\t27\n싫어요\t4,27\n")
    assert rows(file, text_column="0", label_column="1") == [("좋아요", "27"), ("싫어요", "4,27")]
    assert rows(file, text_column="1", label_column="0") == [("27", "좋아요"), ("4,27", "싫어요")]
    error = refusal(file, text_column="0", label_column="2")
    assert "no column '2'" in error.message
    assert "Columns: 0, 1." in error.hint


def test_a_header_of_numbers_as_pandas_writes_it_is_a_header(tmp_path: Path) -> None:
    assert rows(write(tmp_path / "a.csv", "0,1\na,b\n"), text_column="0", label_column="1") == [("a", "b")]
    assert rows(write(tmp_path / "b.csv", ",0,1\n0,a,b\n"), text_column="0", label_column="1") == [("a", "b")]
    assert rows(write(tmp_path / "c.csv", "1,0\n0,1\n"), text_column="0", label_column="1") == [("1", "0"), ("0", "1")]


def test_a_row_of_another_width_is_named_without_a_header_too(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", "a\t1\nb\n")
    assert refusal(file, text_column="0").message.startswith(f"{file}:2 (byte 4): 1 fields where the first line has 2")


@pytest.mark.parametrize(("suffix", "mark"), [("csv", ";"), ("csv", "|"), ("csv", "\t"), ("tsv", ","), ("tsv", ";")])
def test_another_delimiter_is_taken_where_only_with_it_the_header_holds_the_columns(tmp_path: Path, suffix: str, mark: str) -> None:
    """Excel writes semicolons where the comma is the decimal sign."""
    quoted = '"two, ""or"" ; more"' if mark != "\t" else "two, or ; more"
    text = 'two, "or" ; more' if mark != "\t" else quoted
    lines = [mark.join(row) for row in (("id", "text", "label"), ("1", "a,b" if mark != "," else "a;b", "x"), ("2", quoted, "y"))]
    file = write(tmp_path / f"a.{suffix}", "\ufeff" + "\r\n".join(lines) + "\r\n")
    assert rows(file, label_column="label") == [("a,b" if mark != "," else "a;b", "x"), (text, "y")]
    assert refusal(file, text_column="none").hint.startswith("Columns: id, text, label.")


def test_the_suffix_decides_where_its_delimiter_does(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "text,label;more\na;b,c\n")
    assert rows(file) == ["a;b"]
    assert refusal(write(tmp_path / "b.csv", "a;b\nc;d\n"), text_column="0;").hint.startswith("Columns: a, b.")


def test_a_large_file_with_semicolons_is_cut_between_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = [(f'row {row}; "quoted"\nand more', "x;y") for row in range(3_000)]
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=";").writerows([("text", "label"), *table])
    monkeypatch.setattr(csvfile, "BLOCKS", (4_000, 1 << 20))
    assert rows(write(tmp_path / "a.csv", buffer.getvalue()), label_column="label") == table


def test_missing_and_doubled_columns_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "Text,label,label\na,b,c\n")
    error = refusal(file)
    assert error.message == f"{file}: no column 'text'"
    assert error.hint == "Columns: Text, label, label. Did you mean --text-column Text?"
    assert "the column 'label' exists 2 times" in refusal(file, text_column="Text", label_column="label").message


def test_a_file_of_blank_lines_has_no_rows_and_a_header_alone_has_none_either(tmp_path: Path) -> None:
    assert "no rows" in refusal(write(tmp_path / "a.csv", "\n\n")).message
    assert "no rows" in refusal(write(tmp_path / "b.csv", HEAD)).message
    assert count(write(tmp_path / "c.csv", HEAD), write(tmp_path / "d.csv", HEAD + "a,x\n")) == {"train": 1}


@pytest.mark.parametrize(("content", "reason"), [(b"\x00\x01" * 50, "binary data"), (b"PK\x03\x04rest", "a zip archive")])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    assert reason in refusal(write(tmp_path / "a.csv", content)).message


def test_a_truncated_gzip_is_refused(tmp_path: Path) -> None:
    content = gzip.compress((HEAD + "".join(f"{i * 7919},x\n" for i in range(1_000_000))).encode())[:-1000]
    assert "the compressed data end too early" in refusal(write(tmp_path / "a.csv.gz", content)).message


def test_labels_are_scanned_alone(tmp_path: Path) -> None:
    assert labels(write(tmp_path / "a.csv", HEAD + "a,x\nb,y\nc,x\n"), label_column="label") == {"x", "y"}


def test_the_field_limit_of_the_csv_module_is_left_as_it_was(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    rows(write(tmp_path / "a.csv", HEAD + f'"{"x" * 200_000}",y\n'))
    assert csv.field_size_limit() == before


def test_a_table_without_a_header_is_told_how_to_count(tmp_path: Path) -> None:
    error = refusal(write(tmp_path / "sms.tsv", "ham\tGo until jurong point\nspam\tFree entry\n"), label_column="label")
    assert error.hint.endswith("give columns by number, counted from 0: --text-column 0 --label-column 1.")
    assert "columns by number" not in refusal(write(tmp_path / "b.tsv", "ham\tGo\n"), text_column="5").hint


def test_labels_in_a_file_of_their_own_are_told_how_to_join(tmp_path: Path) -> None:
    assert "paste texts.txt labels.txt" in refusal(write(tmp_path / "texts.tsv", "so good\nso bad\n"), label_column="label").hint
    assert "paste" not in refusal(write(tmp_path / "texts.tsv", "so good\nso bad\n")).hint  # no label is wanted


@pytest.mark.skipif(shutil.which("jq") is None, reason="the hint is a command of jq")
@pytest.mark.parametrize(("name", "given"), [("0_9.txt", {}), ("59497", {"source_format": "text"})])
def test_folders_that_are_labels_are_told_how_to_make_rows_of_their_files(tmp_path: Path, name: str, given: dict[str, str]) -> None:
    """As IMDb's reviews and 20 Newsgroups come."""
    for label in ("neg", "pos"):
        write(tmp_path / "train" / label / name, 'so "good"\nor so\n')
    hint = refusal(tmp_path / "train", label_column="label", **given).hint
    way = hint.partition("each file is a text: ")[2]
    subprocess.run(["bash", "-c", way], cwd=tmp_path / "train", check=True)
    assert rows(tmp_path / "train" / "data.jsonl", label_column="label") == [('so "good"\nor so\n', "neg"), ('so "good"\nor so\n', "pos")]


def test_folders_that_are_labels_are_told_of_where_a_text_begins_with_a_line_with_a_comma(tmp_path: Path) -> None:
    for label in ("neg", "pos"):
        write(tmp_path / "set" / label / "0.txt", "good, really\n")
        write(tmp_path / "tables" / {"neg": "train", "pos": "test"}[label] / "0.txt", "good, really\n")
    assert "If the folder names are the labels" in refusal(tmp_path / "set", label_column="label").hint
    assert "If the folder names" not in refusal(tmp_path / "tables", label_column="label").hint
    write(tmp_path / "set" / "neg" / "0.txt", "good\treally\n")
    assert "Columns: good, really." in refusal(tmp_path / "set", label_column="label").hint


def test_a_file_of_labels_is_told_of_where_other_folders_hold_texts_as_well(tmp_path: Path) -> None:
    """As TweetEval's, a folder a task."""
    for task in ("hate", "irony"):
        write(tmp_path / task / "labels.txt", "0\n1\n")
        texts = write(tmp_path / task / "texts.txt", "so good\nso bad\n")
    hint = refusal(texts, text_column="0", label_column="1").hint
    assert "paste texts.txt labels.txt" in hint and "If the folder names are the labels" in hint  # noqa: PT018


def test_counted_columns_of_which_there_is_one_are_told_what_may_be_meant(tmp_path: Path) -> None:
    """The hint told to ask for what had been asked for."""
    counted = {"text_column": "0", "label_column": "1"}
    texts = write(tmp_path / "a_text.txt", "hello there\nbye\n")
    hint = refusal(texts, **counted).hint
    assert "paste texts.txt labels.txt" in hint
    assert (
        refusal(write(tmp_path / "a.csv", "a,b\n"), text_column="0", label_column="2").hint
        == "Columns: 0, 1. Name a column with --label-column."
    )
    train = write(tmp_path / "train.txt", "news\t1\nsport\t0\n")
    assert refusal(train, write(tmp_path / "class.txt", "news\nsport\n"), **counted).hint.startswith(
        f"{train} has it. Exclude the files without"
    )


def test_a_column_that_another_file_spells_otherwise_is_named(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", "text,toxic\na,1\n")
    hint = refusal(train, write(tmp_path / "test.csv", 'text,"""toxic"""\nb,0\n'), label_column="toxic").hint
    assert "Did you mean --label-column '\"toxic\"'?" in hint
    assert hint.endswith(f"the same name in all files: in {train} it is toxic.")


def test_labels_before_the_texts_are_told_how_to_part(tmp_path: Path) -> None:
    file = write(tmp_path / "OLD", "__label__good so good\n__label__bad so bad\n")
    hint = refusal(file, label_column="label", source_format="csv").hint
    subprocess.run(["bash", "-c", hint.partition("in fastText format: ")[2].partition(", then")[0]], cwd=tmp_path, check=True)
    assert rows(tmp_path / "NEW.tsv", text_column="1", label_column="0") == [("so good", "good"), ("so bad", "bad")]


@pytest.mark.parametrize("suffix", [".tsv", ".txt", ".csv"])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_without_a_header_that_delimiter_is_taken_which_gives_enough_columns(tmp_path: Path, suffix: str, mark: str) -> None:
    """The labels are read in a pass of their own, in which one column is enough: it must cut the lines in the same way."""
    file = write(tmp_path / f"a{suffix}", f"good{mark}so good\nbad{mark}so bad\n")
    assert rows(file, text_column="1", label_column="0") == [("so good", "good"), ("so bad", "bad")]
    assert labels(file, text_column="1", label_column="0") == {"good", "bad"}


@pytest.mark.parametrize(
    ("header", "asked", "hint"),
    [
        ("id,partition,intent,utt", {"label_column": "intent"}, "Did you mean --text-column utt?"),
        ("reviewerID,reviewText,overall", {}, "Did you mean --text-column reviewText?"),
        ("guid,headline,txet", {}, "Did you mean --text-column txet?"),
        ("Id,Category,Tweet", {}, "Did you mean --text-column Tweet?"),
        ("Id,Category,Tweet", {"text_column": "Tweet", "label_column": "label"}, "Did you mean --label-column Category?"),
        ("labels,sentence,kor_sentence", {}, "Did you mean --text-column sentence or kor_sentence?"),
        ("번호,리뷰 내용,감정", {}, "Did you mean --text-column '리뷰 내용'?"),
        ("text, label", {"label_column": "label"}, "Did you mean --label-column ' label'?"),
        ("# text", {}, "Did you mean --text-column '# text'?"),
        ("guid,text,gold_label,label1,label2", {"label_column": "label"}, "Did you mean --label-column gold_label?"),
        ("label_name,labels,text", {"label_column": "label"}, "Did you mean --label-column label_name or labels?"),
        ("id,text_a,text_b,texts", {}, "Did you mean --text-column text_a or text_b or texts?"),
        ("task_id,prompt,entry_point,test", {}, "test. Name a column with --text-column."),
        (f"{'long ' * 99},b", {}, f"Columns: {'long ' * 11}long…, b. Name"),
        ("a,b", {}, "Name a column with --text-column."),
        ("it is a gripping review of our times,1", {}, "give columns by number, counted from 0"),
    ],
)
def test_a_column_with_a_usual_name_is_proposed(tmp_path: Path, header: str, asked: dict[str, str], hint: str) -> None:
    assert hint in refusal(write(tmp_path / "a.csv", f"{header}\n{'x,' * header.count(',')}y\n"), **asked).hint


def test_a_header_without_rows_is_said_so(tmp_path: Path) -> None:
    alone = write(tmp_path / "a.csv", "\ufefftext,label\r\n\r\n")
    assert refusal(alone, label_column="label").message == f"{alone}: no rows"
    full = write(tmp_path / "b.csv", HEAD + "a,x\n")
    made = plan(alone, full, label_column="label")
    assert f"{alone}: no rows" in made.notes
    assert rows(alone, full, label_column="label") == [("a", "x")]
    assert rows(write(tmp_path / "c.csv", "a,x\n"), text_column="0", label_column="1") == [("a", "x")], (
        "the only line of a table without a header"
    )


@pytest.mark.parametrize("before", ["sep=;\r\n", '"sep=,"\n', "# made by us\n", "# made by us\n#\n\n# twice\n"])
def test_lines_before_the_header_are_told_to_be_deleted(tmp_path: Path, before: str) -> None:
    """Excel's separator and comments were taken for the header."""
    mark = ";" if ";" in before else ","
    file = write(tmp_path / "a.csv", f"{before}text{mark}label\na{mark}x\n")
    error = refusal(file, label_column="label")
    assert error.hint.startswith(("A line precedes the header (", "4 lines precede the header ("))
    assert f"sed {'1' if before.count(chr(10)) == 1 else '1,4'}d OLD > NEW" in error.hint


def test_a_header_that_begins_with_a_number_sign_is_no_comment(tmp_path: Path) -> None:
    assert "the header" not in refusal(write(tmp_path / "a.csv", "# text,label\na,x\n"), label_column="label").hint


def test_a_column_that_looks_the_same_is_named(tmp_path: Path) -> None:
    """A header that macOS wrote takes letters apart."""
    file = write(tmp_path / "a.csv", unicodedata.normalize("NFD", "text,라벨\n") + "a,x\n")
    hint = refusal(file, label_column="라벨").hint
    assert f"Did you mean --label-column {unicodedata.normalize('NFD', '라벨')}? It looks the same" in hint
    assert rows(file, label_column=unicodedata.normalize("NFD", "라벨")) == [("a", "x")]


@pytest.mark.parametrize(("suffix", "texts"), [(".csv", ["so, so", "good, good", "bad"]), (".tsv", ["so\tso", "good\tgood", "bad"])])
def test_without_a_header_that_delimiter_is_taken_which_cuts_all_rows_alike(tmp_path: Path, suffix: str, texts: list[str]) -> None:
    mark = "\t" if suffix == ".csv" else ","
    file = write(tmp_path / f"a{suffix}", "".join(f"{text}{mark}x\n" for text in texts))
    assert rows(file, text_column="0", label_column="1") == [(text, "x") for text in texts]


def test_without_a_header_the_suffix_says_the_delimiter_where_both_cut_alike(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "a\tb,x\nc\td,y\n")
    assert rows(file, text_column="0", label_column="1") == [("a\tb", "x"), ("c\td", "y")]


def remade(words: str, old: Path) -> Path:
    """The table that the command in a note or a hint makes."""
    command = words[words.index("python -c") :].replace("OLD", str(old)).replace("NEW", str(old.parent / "new"))
    subprocess.run(["bash", "-c", command.replace("python", sys.executable, 1)], check=True)
    return old.parent / "new.csv"


def test_a_delimiter_beside_which_another_cuts_all_rows_alike_is_named_with_it(tmp_path: Path) -> None:
    """As German tables with a comma or two in every text: labels were read as 'Sport;Heute'."""
    texts = [("Heute, endlich, da", "Sport"), ("Das Netz, es, da", "Web")]
    counted = {"text_column": "1", "label_column": "0"}
    file = write(tmp_path / "a.csv", "".join(f"{label};{text}\n" for text, label in texts))
    (note,) = [note for note in plan(file, **counted).notes if "split at" in note]
    assert note.startswith(
        f"{file}: its rows are split at ',', though ';' would also give every row the same number of fields. If ';' is the delimiter: python -c"
    )
    new = remade(note, file)
    assert rows(new, **counted) == texts
    assert not [note for note in plan(new, **counted).notes if "split at" in note]


def test_ragged_rows_without_a_header_are_told_at_what_they_are_cut_and_may_have_to_be(tmp_path: Path) -> None:
    """As 10kGNAD's, in single quotes."""
    texts = [("so, " * 2_000 + "so, " * number + "ja; " * number, ("Web", "Sport")[number % 2]) for number in range(20)]
    file = write(tmp_path / "a.csv", "".join(f"{label};'{text}'\n" for text, label in texts))
    counted = {"text_column": "1", "label_column": "0"}
    hint = refusal(file, **counted).hint
    assert (
        "contain the delimiter. The rows are split at ','. Split at ';', the first field would have 2 distinct values in 20 rows. If ';' is the delimiter: python -c"
        in hint
    )
    assert rows(remade(hint, file), **counted) == texts
    file = write(tmp_path / "b.csv", "a,x\nb,y,z\n")
    assert refusal(file, **counted).hint == "Correct the row, or quote fields that contain the delimiter. The rows are split at ','."


def test_rows_without_labels_beside_labelled_ones_are_told_what_to_do(tmp_path: Path) -> None:
    train, test = write(tmp_path / "train.csv", HEAD + "a,x\nb,y\n"), write(tmp_path / "test.csv", "id,text\n1,c\n")
    error = refusal(train, test, label_column="label")
    assert error.message == f"{test}: no column 'label'"
    assert error.hint.startswith(f"{train} has it. Exclude the files without labels")
    assert "ftcli predict" not in refusal(test, label_column="label").hint


def test_only_a_table_without_a_header_is_said_to_have_none(tmp_path: Path) -> None:
    counted = {"text_column": "0", "label_column": "1"}
    pandas, bare = write(tmp_path / "a.csv", "0,1\na,x\n"), write(tmp_path / "b.csv", "b,y\n")
    assert plan(pandas, **counted).notes == ()
    assert "to have no header line" in plan(pandas, bare, **counted).notes[0]


@pytest.mark.parametrize(
    ("rest", "noted"),
    [
        ('5" disk\tx\n', ""),
        ('"hi" he said\ty\nfour\tx\n', "begins in line 4 are not balanced"),
        ('"hi\ty\n', "begins in line 4 are not balanced"),
    ],
    ids=["quoted", "stray", "open"],
)
def test_a_tsv_whose_quotes_look_like_quotes_and_are_none_is_noted(tmp_path: Path, rest: str, noted: str) -> None:
    file = write(tmp_path / "a.tsv", 'text\tlabel\n"one ""a"" b"\tx\n"two"\ty\n' + rest)
    notes = plan(file, label_column="label").notes
    assert [noted in note and "quotes are kept as part of the texts" in note for note in notes] == [True] * bool(noted)
    assert rows(file, label_column="label")[0][0] == ('"one ""a"" b"' if noted else 'one "a" b')


def test_a_tsv_whose_quotes_go_over_lines_is_noted(tmp_path: Path) -> None:
    notes = plan(write(tmp_path / "a.tsv", 'text\n"a\nb"\n"c\nd"\n')).notes
    assert ["quotes are kept" in note and "span several lines" in note for note in notes] == [True]


def test_a_ragged_row_is_not_told_to_quote_where_quotes_quote_nothing(tmp_path: Path) -> None:
    for name, row in (("quote", '"two\tz"\ty'), ("none", "a\tb\tc")):
        file = write(tmp_path / f"{name}.tsv", f'text\tlabel\n"open\ty\n{row}\n')
        assert "only if every quote in the file is balanced" in refusal(file, label_column="label").hint


def test_a_ragged_row_of_a_csv_without_quotes_is_told_to_quote(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "text,label\nfine,x\nHello, world,x\n")
    assert refusal(file, label_column="label").hint == "Correct the row, or quote fields that contain the delimiter."


def test_of_a_large_tsv_the_beginning_is_read_for_the_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of = '"one"\tx\n"two\nlines"\ty\n'
    file = write(tmp_path / "a.tsv", "text\tlabel\n" + rows_of * 20)
    for read in range(20, 80):
        monkeypatch.setattr(csvquotes, "NOTED", read)
        assert plan(file, label_column="label").notes == ()


def test_a_reader_of_csv_by_a_plugin_need_not_tell_of_quotes(tmp_path: Path) -> None:
    class Mine(csvfile.Csv):
        layout_note = None  # type: ignore[assignment]

    assert not isinstance(Mine(), Tables)
    found = notes_on_files([Found(str(tmp_path / "a.csv"), "csv", "a.csv")], {"csv": Mine()}, Settings())
    assert found == []
