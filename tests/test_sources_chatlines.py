"""Conversations of JSON lines: the quick parser changes nothing of what Python's says of a line, bad or good."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ftcli.plugins.chatlines import documents
from ftcli.plugins.jsonl import line_fault, split_lines
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.contracts import Columns
from ftcli.core.reading.conversation import NAMES, as_document
from ftcli.records import BadRow

SAID = '"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]'
COLUMNS = Columns("messages", chat=(*NAMES, "질/문"), renamed=(("질/문", "instruction"),))
LINES: dict[str, str | bytes] = {
    "plain": f"{{{SAID}}}",
    "spaces and a carriage return": f" {{ {SAID} }} \r",
    "other keys twice": f'{{"id":1,{SAID},"id":2}}',
    "a wanted key in another object": f'{{"id":{{"messages":1}},{SAID}}}',
    "a wanted key as words": f'{{"id":"messages",{SAID}}}',
    "a wanted key twice": f'{{"messages":[],{SAID}}}',
    "a wanted key twice, once in escapes": f'{{"m\\u0065ssages":[],{SAID}}}',
    "a wanted key twice, once with its slash escaped": '{"질/문":"a","output":"b","질\\/문":"c"}',
    "a wanted key twice, once in ASCII": '{"질/문":"a","output":"b","\\uc9c8/\\ubb38":"c"}',
    "a key of a message twice": f'{{{SAID.replace("user", "assistant")[:-2]},"role":"user"}}]}}',
    "another name": '{"질/문":"a","output":"b"}',
    "NaN": f'{{"id":NaN,{SAID}}}',
    "NaN that is carried": f'{{{SAID},"tools":[{{"x":[NaN,1e400,-0.0,1e16,{"9" * 4000}]}}]}}',
    "more digits than Python reads": f'{{"id":{"9" * 5000},{SAID}}}',
    "deeper than pydantic reads": f'{{"id":{"[" * 300}{"]" * 300},{SAID}}}',
    "deeper than Python reads": f'{{"id":{"[" * 9000}{"]" * 9000},{SAID}}}',
    "a pair of surrogates": '{"prompt":"a","completion":"\\ud83d\\ude00"}',
    "a lone surrogate": '{"prompt":"a","completion":"\\ud800"}',
    "a lone surrogate that nobody reads": f'{{"id":"\\ud800",{SAID}}}',
    "a byte order mark": f"\ufeff{{{SAID}}}",
    "no UTF-8": f'{{"id":"\xff",{SAID}}}'.encode("latin-1"),
    "a control character": f'{{"id":"\x01",{SAID}}}',
    "two objects": f"{{{SAID}}}{{{SAID}}}",
    "half of one": f"{{{SAID}",
    "a list": f"[{{{SAID}}}]",
    "a list of a wanted name": '["messages"]',
    "a text": '"messages"',
    "null": "null",
    "no answer": '{"instruction":"a"}',
    "a text for messages": '{"messages":"a"}',
    "no text": '{"prompt":"a","completion":1}',
}


@pytest.mark.parametrize("what", LINES)
def test_a_line_is_what_python_says_of_it(what: str) -> None:
    compared(LINES[what])


def compared(line: str | bytes) -> None:
    """What is read of a line with what Python's parser says of it."""
    block = (line if isinstance(line, bytes) else line.encode()) + b"\n"
    wanted: list[Any] = []
    careful = [line_fault("f", each, COLUMNS, lambda row: wanted.append(as_document(row, COLUMNS))) for each in split_lines(7, block)]
    bad: list[BadRow] = []
    (found,) = documents("f", 7, block, COLUMNS, bad.append) or ([],)
    assert bad == [each for each in careful if each is not None]
    assert [repr(json.loads(str(each))) for each in found] == [repr(json.loads(each)) for each in wanted]
    assert len(bad) + len(wanted) == 1


@pytest.mark.parametrize("words", ["글", "é\x7f\x00", "😀", 'm"/\\'], ids=["Hangul", "Latin and controls", "pairs", "others"])
def test_escapes_in_a_text_are_left_to_the_quick_parser(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`json.dumps` writes all that is not ASCII so: Python's parser took twice the time."""
    line = json.dumps({"messages": [{"role": "user", "content": words}, {"role": "assistant", "content": "\ub300"}], "질/문": "글"})
    monkeypatch.setattr("ftcli.plugins.chatlines.parse_row", lambda _: pytest.fail("parsed by Python"))
    for written in (line, line.replace("/", "\\/")):
        (found,) = documents("f", 0, written.encode() + b"\n", COLUMNS, lambda bad: pytest.fail(bad.reason))
        assert words in json.loads(str(found[0]))["messages"][0]["content"]


CODES = st.sampled_from(
    [0, 0x22, 0x2F, 0x5C, 0x6D, 0x7F, 0xE9, 0xAE00, 0xFFFF, 0xD7FF, 0xD800, 0xD83D, 0xDBFF, 0xDC00, 0xDE00, 0xDFFF, 0xE000]
)
ESCAPES = (
    CODES.map("\\u{:04x}".format)
    | CODES.map("\\u{:04X}".format)
    | st.sampled_from(
        [*"\\ /u글aé😀", *map("\\".__add__, '"\\/bfnrtux0'), "\\ud83d\\ude00", "\\u00", "\\U0041", "\\u 041", "\\u+041", "\\u0_41"]
    )
)
WRITTEN = st.lists(ESCAPES, max_size=4).map("".join)
KEYS = [
    name[:place] + way + name[place + 1 :]
    for name in ("messages", "질/문", "output")
    for place in (0, 1, 2)
    for way in (name[place], f"\\u{ord(name[place]):04x}", f"\\u{ord(name[place]):04X}", name[place].replace("/", "\\/"))
]
"""Of three names, in several ways each."""
VALUES = WRITTEN.map('"{}"'.format) | st.just(SAID.partition(":")[2])


@hypothesis_settings(max_examples=300, deadline=None)
@given(pairs=st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=4))
def test_a_line_of_any_escapes_is_what_python_says_of_it(pairs: list[tuple[str, str]]) -> None:
    compared("{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}")
