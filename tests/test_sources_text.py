from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.core.files import streams
from reading import accounted, plan, refusal, rows, write
from reliability import size
from tokenizing import manifest, prepare, small_tokenizers, without_plots

kinds = small_tokenizers
no_html = without_plots

CONTENT = "첫 줄\n\n둘째 줄\n\n\n \nlast"


def test_a_row_is_a_line_a_paragraph_or_the_document(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", CONTENT)
    assert rows(file) == ["첫 줄", "둘째 줄", "last"]
    assert rows(file, sample_by="paragraph") == ["첫 줄", "둘째 줄", "last"]
    assert rows(file, sample_by="document") == [CONTENT]


@pytest.mark.parametrize("sample_by", ["line", "paragraph", "document"])
def test_crlf_and_a_byte_order_mark_change_nothing(tmp_path: Path, sample_by: str) -> None:
    plain = rows(write(tmp_path / "a.txt", CONTENT), sample_by=sample_by)
    marked = "\ufeff" + CONTENT.replace("\n", "\r\n")
    assert rows(write(tmp_path / "b.txt", marked), sample_by=sample_by) == plain
    assert rows(write(tmp_path / "c.md.gz", gzip.compress(marked.encode())), sample_by=sample_by) == plain


@hypothesis_settings(max_examples=size(60, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.text(st.sampled_from("ab글\n\n\r \u2028\x0b\x1f"), min_size=1, max_size=120),
    target=st.integers(1, 200),
    block=st.integers(1, 150),
)
def test_no_row_is_lost_or_doubled_whatever_the_piece_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, target: int, block: int
) -> None:
    clean = content.replace("\r\n", "\n")
    monkeypatch.setattr(streams, "BLOCK", block)
    file = write(tmp_path / "a.txt", content)
    lines = clean.split("\n")
    assert rows(file, shard_bytes=target) == [line for line in lines if line.strip()]
    paragraphs = ["\n".join(group) for full, group in groupby(lines, lambda line: bool(line.strip())) if full]
    assert rows(file, shard_bytes=target, sample_by="paragraph") == paragraphs
    assert rows(file, shard_bytes=target, sample_by="document") == [clean]


def test_only_lines_are_cut_into_pieces(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "a line\n" * 1000)
    assert len(plan(file, shard_bytes=1000).shards) == 7
    assert len(plan(file, shard_bytes=1000, sample_by="paragraph").shards) == 1


@pytest.mark.parametrize("sample_by", ["line", "paragraph", "document"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_bytes_that_are_not_utf8_are_named_by_line_and_column(tmp_path: Path, sample_by: str, end: str) -> None:
    content = f"a{end}{end}b{end}c".encode() + "가".encode("euc-kr") + f"{end}d".encode()
    for file in (write(tmp_path / "a.txt", content), write(tmp_path / "a.txt.gz", gzip.compress(content))):
        error = refusal(file, sample_by=sample_by, shard_bytes=2)
        line, start, inside = {"line": (4, 3 + 3 * len(end) - 1, ""), "paragraph": (3, 1 + 2 * len(end), ", in line 2 of it")}.get(
            sample_by, (1, 0, ", in line 4 of it")
        )
        assert error.message == f"{file}:{line} (byte {start}): not UTF-8: byte 0xb0 at column 2{inside}"


def test_text_has_no_labels(tmp_path: Path) -> None:
    file = write(tmp_path / "a.md", "a\n")
    assert refusal(file, label_column="label").message == f"{file}: plain text has no label column 'label'"


def test_empty_and_binary_files_are_refused(tmp_path: Path) -> None:
    assert "no rows" in refusal(write(tmp_path / "a.txt", "")).message
    assert "no rows" in refusal(write(tmp_path / "b.txt", "\ufeff")).message
    assert "binary data" in refusal(write(tmp_path / "c.txt", b"ab\x00cd")).message


@pytest.mark.skipif(shutil.which("jq") is None, reason="the hint is a command of jq")
def test_lines_that_part_documents_are_said_and_the_way_out_works(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", 'one "quoted"\ntwo\n<|endoftext|>\nthree\n<|endoftext|>\n')
    (note,) = plan(file).notes
    assert note.startswith(f"{file}: every line is a text, also lines that hold only '<|endoftext|>'")
    command = note[note.index("jq ") :].replace("OLD", str(file)).replace("NEW", str(tmp_path / "new"))
    subprocess.run(command, shell=True, check=True)
    assert [json.loads(line)["text"].strip() for line in (tmp_path / "new.jsonl").read_text().splitlines()] == [
        'one "quoted"\ntwo',
        "three",
    ]
    assert plan(file, sample_by="document").notes == ()
    for content in ("<s>\none\n", "<b> one\n<b> two\n", "one\ntwo\n"):
        assert plan(write(tmp_path / "b.txt", content)).notes == ()


def test_lines_that_end_in_cr_alone_are_one_row_and_said_so(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "one\rtwo\r")
    (note,) = plan(file).notes
    assert note == f"{file}: read as one row, because its lines end in CR alone (to fix: tr '\\r' '\\n' < OLD > NEW)"
    assert plan(file, sample_by="document").notes == ()
    for content in ("one\r", "one\rtwo\n", "one", "one\r\ntwo\r\n"):
        assert plan(write(tmp_path / "b.txt", content)).notes == ()


def test_labels_before_the_texts_are_told_where_nobody_asked_for_labels(tmp_path: Path) -> None:
    """As fastText wants them: they became the beginning of every text, without a word."""
    file = write(tmp_path / "a.txt", "__label__good so good\n__label__bad so bad\n")
    (note,) = plan(file).notes
    assert note.startswith(f"{file}: read as it stands. The labels precede the texts")
    assert note.endswith("--text-column 1 --label-column 0.")
    assert plan(write(tmp_path / "b.txt", "so good __label__\n")).notes == ()


def test_a_paragraph_with_crlf_is_the_same_beside_one_that_is_not_utf8(tmp_path: Path) -> None:
    good = b"first\r\nline two\r\n\r\nsecond\r\n\r\n\r\n"
    alone, beside = write(tmp_path / "a.txt", good + b"last\r\n"), write(tmp_path / "b.txt", good + b"bad \xff\r\n\r\nlast\r\n")
    found, rejected = accounted(beside, sample_by="paragraph")
    assert found == rows(alone, sample_by="paragraph") == ["first\nline two", "second", "last"]
    assert [bad.raw for bad in rejected] == [b"bad \xff"]


SPACES = "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1))))


@pytest.mark.parametrize("sample_by", ["line", "paragraph"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bad", [b"", b"\xff"])
def test_a_line_of_whitespace_is_empty_also_beside_one_that_is_not_utf8(tmp_path: Path, sample_by: str, end: str, bad: bytes) -> None:
    """As in WikiText, whose empty lines hold a blank."""
    alone = [space for space in SPACES if space != "\n"]
    content = end.join([" ", " = Title = ", *(word for space in alone for word in (space, f"{space}a{space}", space * 3)), " "])
    found, rejected = accounted(write(tmp_path / "a.txt", content.encode() + end.encode() + bad), sample_by=sample_by)
    assert found == [" = Title = ", *(f"{space}a{space}".removesuffix("\r" if end == "\n" else "") for space in alone)]
    assert [row.raw for row in rejected] == [bad][: len(bad)]


def test_texts_of_which_empty_lines_were_rows_are_noticed_as_other_data(tmp_path: Path, kinds: Mapping[str, Path], no_html: None) -> None:
    def inputs(name: str, **more: object) -> dict[str, object]:
        file = write(tmp_path / name, '{"text": "a"}\n')
        made = prepare(kinds["bpe"], file, tmp_path / f"{name}-{len(more)}", **more)
        assert made.status == "ok"
        return dict(manifest(tmp_path / f"{name}-{len(more)}")["inputs"])

    assert inputs("a.txt")["a line of whitespace"] == "is empty"
    assert "a line of whitespace" not in inputs("a.txt", dataset__sample_by="document")
    assert "a line of whitespace" not in inputs("a.jsonl")
