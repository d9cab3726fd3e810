"""Texts in other encodings than UTF-8: what they were written in is told, where it can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftcli.core.files.encodings import utf8_hint
from reading import refusal, write

KOREAN = "안녕하세요, 정말 재미있는 영화였어요. 다시 보고 싶네요!"


@pytest.mark.parametrize(
    ("text", "encoding", "told"),
    [
        (KOREAN, "cp949", "CP949"),
        (KOREAN, "euc-kr", "CP949"),
        ("Le café était déjà fermé à midi", "cp1252", "CP1252"),
        ("It’s a “quote” – said who…", "cp1252", "CP1252"),
        ("Grüße aus Köln", "latin-1", "CP1252"),
        ("我们今天去看电影，真的很有意思。你觉得怎么样？", "gbk", None),
        ("今日は映画を見ました。とても面白かったです。", "shift_jis", None),
        ("今日は映画を見ました。とても面白かったです。", "euc-jp", None),
        ("Сегодня мы смотрели фильм", "cp1251", None),
        ("plain", "ascii", None),
    ],
)
def test_the_encoding_of_a_text_is_told_or_left_open(text: str, encoding: str, told: str | None) -> None:
    hint = utf8_hint(text.encode(encoding))
    assert (f"iconv -f {told} -t UTF-8" if told else "Convert the file to UTF-8 (iconv), or correct the line.") in hint


def test_a_damaged_utf8_text_is_not_taken_for_another_encoding() -> None:
    assert "iconv)" in utf8_hint(KOREAN.encode()[:-8] + b"\xff\xb0" + KOREAN.encode())


def test_a_header_in_another_encoding_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", f"문장,라벨\n{KOREAN},긍정\n".encode("cp949"))
    error = refusal(path, text_column="문장", label_column="라벨")
    assert "the header is not UTF-8" in error.message
    assert "iconv -f CP949 -t UTF-8" in error.hint
    assert "the header is not UTF-8" in refusal(path, text_column="문장").message
    assert "문장" in error.hint


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.txt"])
def test_a_row_in_another_encoding_is_told(tmp_path: Path, name: str) -> None:
    row = json.dumps({"text": KOREAN, "label": "x"}, ensure_ascii=False)
    mark = "\t" if name.endswith("tsv") else ","
    content = {"jsonl": row + "\n", "json": f"[{row}]", "txt": KOREAN + "\n"}.get(name[2:], f'text{mark}label\n"{KOREAN}"{mark}x\n')
    error = refusal(write(tmp_path / name, content.encode("cp949")))
    assert "iconv -f CP949 -t UTF-8" in error.hint
