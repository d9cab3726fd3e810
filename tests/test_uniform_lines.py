"""Lines that are all written alike give what pyarrow gives, or nothing."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ftcli.plugins import jsonl
from ftcli.plugins.jsonl import _arrays
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.contracts import Columns
from ftcli.core.reading import soundness, uniform_lines
from ftcli.core.reading.uniform_lines import even_arrays
from reading import accounted, rows, write
from reliability import size
from test_sources_longlines import ODD

TEXT, STRING, INT = Columns("text", None), Columns("text", "label", "string"), Columns("text", "label", "int")
WORDS = st.text(st.characters(codec="utf-8", exclude_characters='"\\', exclude_categories=["Cc"]), max_size=20)
WHOLE = st.integers(0, 10**18 - 1) | st.integers(0, 99)


@st.composite
def blocks(draw: st.DrawFn, label: st.SearchStrategy[Any]) -> list[bytes]:
    """Lines with the same keys in the same order; some strings need a backslash."""
    keys = draw(st.permutations(["text", "label", *draw(st.lists(st.sampled_from(["id", "날짜", "x y"]), unique=True))]))
    escaped = draw(st.booleans())
    kinds = {key: label if key == "label" else WORDS | st.text(max_size=9) if key == "text" and escaped else WORDS for key in keys}
    if "id" in kinds:
        kinds["id"] = WHOLE
    separators = draw(st.sampled_from([(", ", ": "), (",", ":")]))
    lines = draw(st.lists(st.fixed_dictionaries({key: kinds[key] for key in keys}), min_size=1, max_size=24))
    return [json.dumps({key: line[key] for key in keys}, ensure_ascii=False, separators=separators).encode() + b"\n" for line in lines]


def compared(block: bytes, columns: Columns) -> bool:
    """Whether the block was taken; then pyarrow has to take it, too, and give the same."""
    try:
        found = even_arrays(block, columns, partial(_arrays, "a.jsonl", columns=columns))
    except ValueError:
        found = None
    if found is None:
        return False
    expected = _arrays("a.jsonl", block, columns)
    assert [array.type for array in found] == [array.type for array in expected]
    for ours, theirs in zip(found, expected, strict=True):
        ours.validate(full=True)
        assert ours.equals(theirs)
    return True


@hypothesis_settings(max_examples=size(100, 600), deadline=None, derandomize=True)
@given(st.data(), st.sampled_from([TEXT, STRING, INT]))
def test_what_it_gives_is_what_pyarrow_gives(data: st.DataObject, columns: Columns) -> None:
    lines = data.draw(blocks(WHOLE if columns is INT else WORDS | WHOLE if columns is TEXT else WORDS))
    if data.draw(st.booleans()):
        lines.insert(data.draw(st.integers(0, len(lines))), data.draw(st.sampled_from(ODD)) + b"\n")
    compared(b"".join(lines), columns)


@hypothesis_settings(max_examples=size(60, 400), deadline=None, derandomize=True)
@given(blocks(WHOLE), st.sampled_from([TEXT, INT]), st.integers(0, 2**32))
def test_one_byte_that_is_another_is_not_passed_over(lines: list[bytes], columns: Columns, seed: int) -> None:
    block, generator = b"".join(lines), random.Random(seed)
    for _ in range(40):
        place = generator.randrange(len(block))
        other = generator.choice([generator.randrange(256), *b'"\\{}:,0-.\n \x00\xff'])
        compared(block[:place] + bytes([other]) + block[place + 1 :], columns)
        compared(block[:place] + block[place + 1 :], columns)


@pytest.mark.parametrize("columns", [TEXT, STRING, INT])
def test_every_odd_line_among_others_is_judged_alike(columns: Columns) -> None:
    good = b'{"text": "a", "label": 1}\n' if columns is INT else b'{"text": "a", "label": "x"}\n'
    assert compared(good * 9, columns)
    taken = [odd for odd in ODD for block in (odd + b"\n" + good * 20, good * 20 + odd + b"\n") if compared(block, columns)]
    assert len(taken) < len(ODD)


def test_quotes_at_other_places_and_keys_that_come_twice_are_seen() -> None:
    good = b'{"text": "a", "label": "x"}\n'
    assert not compared(good * 9 + b'{"text": """"""}\n', STRING)  # as many quotes, and the line ends before what should follow
    assert not compared(b'{"text": "a", "text": "b"}\n' * 9, TEXT)
    assert compared(b'{"text": "a", "other": "b", "other": "c"}\n' * 9, TEXT)


def test_a_number_that_only_python_can_read_does_not_make_lines_good() -> None:
    assert compared(b'{"text": "a", "more": 1e300}\n' * 9, TEXT)
    assert not compared(b'{"text": "a", "more": 1e400}\n' * 9, TEXT)


@pytest.mark.parametrize("width", [0, 1, 3, 4, 5, 8, 11, 12, 13, 16, 40, 3000])
def test_strings_of_any_length_and_lines_with_a_backslash_keep_their_places(width: int) -> None:
    texts = [("가" * width)[:width] + "x" * (number % 3) + ('"\\\n' if number % 11 == 5 else "") for number in range(60)]
    block = "".join(json.dumps({"text": text, "label": "x" * width}, ensure_ascii=False) + "\n" for text in texts).encode()
    assert compared(block, STRING)


@pytest.mark.parametrize("digits", [1, 7, 8, 9, 16, 17, 18])
def test_whole_numbers_are_those_that_stand_there(digits: int) -> None:
    generator = random.Random(digits)
    numbers = [generator.randrange(10 ** generator.randint(1, digits)) for _ in range(50)] + [10**digits - 1, 0]
    assert compared("".join(f'{{"label":{number},"text":"a"}}\n' for number in numbers).encode(), INT)
    assert compared("".join(f'{{"text":"a","label":{number}}}\n' for number in numbers).encode(), INT)
    for odd in ("-1", "01", "1.5", "1e3", "", " 1", "1 ", "x", "null", "9" * 19):
        assert not compared("".join(f'{{"text":"a","label":{number}}}\n' for number in [*numbers, odd]).encode(), INT)


@pytest.mark.parametrize(
    "lines",
    [
        [{"text": "a"}, {"text": "b", "label": "x"}],
        [{"text": "a", "more": [1]}] * 3,
        [{"text": "a", "more": 1.5}, {"text": "a", "more": 2.5}],
        [{"text": "a\n" * 9}] * 3,
        [{"other": "a"}] * 3,
        [{"text": 1}] * 3,
        [{"text": "a", "more": float("inf")}] * 3,
    ],
)
def test_other_lines_are_left_to_the_parser(lines: list[dict[str, Any]]) -> None:
    block = "".join(json.dumps(line) + "\n" for line in lines).encode()
    assert even_arrays(block, TEXT, lambda _: pytest.fail("no line was to be parsed")) is None
    assert even_arrays(b'{"text": "a"}', TEXT, lambda _: []) is None  # nor is a line without an end


def test_most_of_a_block_of_other_lines_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    lines = uniform_lines._lines
    monkeypatch.setattr(uniform_lines, "_lines", lambda block, form: (seen.append(len(block)), lines(block, form))[1])
    assert even_arrays(b'{"text": "a"}\n{"text":  "a"}\n' * 20_000, TEXT, lambda _: []) is None
    assert len(seen) == 1
    assert seen[0] <= uniform_lines.SEEN


def test_a_parser_whose_words_mean_something_else_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import simdjson

    class Lazy:
        def parse(self, _: bytes) -> None:
            raise ValueError("TAPE_ERROR: found before all was read")

    block = b'{"text": "a"}\n' * 9
    assert compared(block, TEXT)
    soundness._parser.cache_clear()
    monkeypatch.setattr(simdjson, "Parser", Lazy)
    try:
        assert not compared(block, TEXT)
    finally:
        soundness._parser.cache_clear()


def test_short_rows_of_a_file_take_it_and_bad_ones_are_told_as_by_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = [json.dumps({"text": f"짧은 글 {number}", "label": number}, ensure_ascii=False).encode() for number in range(30)]
    file = write(tmp_path / "good.jsonl", b"\n".join(good) + b"\n")
    with monkeypatch.context() as patch:
        patch.setattr(jsonl, "_arrays", lambda *_, **__: pytest.fail("the parser was asked"))
        assert rows(file, label_column="label") == [(f"짧은 글 {number}", number) for number in range(30)]
    for odd in ODD:
        file = write(tmp_path / "odd.jsonl", b"\n".join([*good[:7], odd, *good[7:]]) + b"\n")
        found = accounted(file)
        with monkeypatch.context() as patch:
            patch.setattr(uniform_lines, "even_arrays", lambda *_: None)
            assert found == accounted(file)
