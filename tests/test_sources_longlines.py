"""The quick way through JSON lines gives what pyarrow gives, or nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from ftcli.plugins import jsonl, longlines
from ftcli.plugins.jsonl import _arrays
from ftcli.plugins.longlines import quick_arrays, suits
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.contracts import Columns
from reading import accounted, rows, write
from reliability import size
from test_sources_jsonl import BAD, COMPENSATED, TWO

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
OTHER = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ROW = st.builds(
    lambda text, label, others, ascii_only, order: json.dumps(
        dict(order.sample(pairs := [("text", text), ("label", label), *others.items()], len(pairs))), ensure_ascii=ascii_only
    ).encode(),
    TEXT,
    TEXT | st.integers(-(2**63), 2**63 - 1),
    st.dictionaries(TEXT, OTHER, max_size=3),
    st.booleans(),
    st.builds(random.Random, st.integers(0, 99)),
)
ODD = [
    *(line for line, _ in BAD.values()),
    *COMPENSATED.values(),
    TWO,
    b"",
    b" ",
    b"\r",
    b"\x0c",
    b"{}",
    b"\x00",
    b' {"text": "led by a space", "label": "x"}',
    b'{"text": "followed by one", "label": "x"} \t\r',
    b'{"text": "followed by a zero byte", "label": "x"}\x00',
    b'{"text": "an escaped key again", "label": "x", "te\\u0078t": "b"}',
    b'{"te\\u0078t": "an escaped key", "label": "x"}',
    b'{"text": null, "text": "the first is null", "label": "x"}',
    b'{"text": "another key twice", "label": "x", "a": 1, "a": 2}',
    b'{"text": "\\u0000 \\/ \\b\\f\\n\\r\\t \\ud83d\\ude00 \\\\n", "label": "x"}',
    b'{"text": "half a pair \\ud83d", "label": "x"}',
    b'{"text": "pairs the wrong way \\ude00\\ud83d", "label": "x"}',
    b'{"text": "\x7f \xe2\x80\xa8", "label": "x"}',
    b'{"text": "surrogates in UTF-8 \xed\xa0\xbd", "label": "x"}',
    b'{"text": "overlong \xc0\xaf", "label": "x"}',
    b'{"text": "elsewhere", "label": "x", "a": "\xff"}',
    b'{"text": "elsewhere", "label": "x", "a": "\\ud800"}',
    b'{"text": "an odd number", "label": "x", "a": 1e999}',
    b'{"text": "an odd number", "label": "x", "a": NaN}',
    b'{"text": "an odd number", "label": "x", "a": 01}',
    b'{"text": "a long number", "label": "x", "a": 123456789012345678901234567890}',
    b'{"text": "a", "label": -0}',
    b'{"text": "a", "label": 1.0}',
    b'{"text": "a", "label": 1e2}',
    b'{"text": "a", "label": 9223372036854775807}',
    b'{"text": "a", "label": 9223372036854775808}',
    b'{"text": "a", "label": 18446744073709551616}',
    b'{"text": "deep", "label": "x", "a": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"text": "a comma more", "label": "x",}',
    b'{"text": "a comment", "label": "x"} // one',
]
COLUMNS = st.sampled_from(
    [Columns("text", None), Columns("text", "label", "string"), Columns("text", "label", "int"), Columns("label", None)]
)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short and foreign rows take the quick way too."""
    monkeypatch.setattr(longlines, "suits", lambda _: True)


@pytest.mark.usefixtures("always")
@hypothesis_settings(max_examples=size(80, 400), deadline=None, derandomize=True)
@given(st.lists(ROW | st.sampled_from(ODD), min_size=1, max_size=4), COLUMNS)
def test_what_it_gives_is_what_pyarrow_gives(lines: list[bytes], columns: Columns) -> None:
    block = b"\n".join(lines)
    quick = quick_arrays(block, columns)
    if quick is not None and not block.isspace() and block:
        expected = _arrays("a.jsonl", block, columns)
        assert [array.to_pylist() for array in quick] == [array.to_pylist() for array in expected]
        assert [array.type for array in quick] == [array.type for array in expected]
        for array in quick:
            array.validate(full=True)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["string", "int", None])
def test_every_odd_line_alone_and_among_others_is_judged_alike(kind: str | None) -> None:
    columns = Columns("text", None) if kind is None else Columns("text", "label", "int" if kind == "int" else "string")
    good = b'{"text": "a", "label": 1}' if kind == "int" else b'{"text": "a", "label": "x"}'
    given_by_both = 0
    for odd in ODD:
        for block in (odd, good + b"\n" + odd, odd + b"\r\n" + good + b"\n"):
            quick = None if not block.strip() else quick_arrays(block, columns)
            if quick is not None:
                assert [array.to_pylist() for array in quick] == [array.to_pylist() for array in _arrays("a.jsonl", block, columns)], block
                given_by_both += 1
    assert given_by_both >= 10  # else the test compares nothing


def test_bad_rows_are_found_and_told_as_by_pyarrow_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = [json.dumps({"text": f"{number} " + "words and \n" * 300, "a": [1, None]}).encode() for number in range(12)]
    for odd in ODD:
        file = write(tmp_path / "a.jsonl", b"\n".join([*long[:7], odd, *long[7:]]))
        asked: list[bool] = []

        def listen(block: bytes, columns: Columns, asked: list[bool] = asked) -> object:
            asked.append(suits(block))
            return quick_arrays(block, columns)

        monkeypatch.setattr(jsonl, "quick_arrays", listen)
        quick = accounted(file)
        assert any(asked)
        monkeypatch.setattr(jsonl, "quick_arrays", lambda *_: None)
        assert quick == accounted(file)


def test_long_rows_take_it_and_short_or_foreign_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def line(text: str) -> bytes:
        return json.dumps({"text": text, "label": 3}, ensure_ascii=False).encode() + b"\n"

    columns = Columns("text", "label", "int")
    assert quick_arrays(line("word " * 500) * 40, columns) is not None
    assert quick_arrays(line("word " * 5) * 4000, columns) is None
    assert quick_arrays(line("한국어 " * 500) * 40, columns) is None

    monkeypatch.setattr(jsonl, "_arrays", None)  # whoever calls it fails
    file = write(tmp_path / "a.jsonl", line("word " * 500) * 40)
    assert rows(file, label_column="label") == [("word " * 500, 3)] * 40
