"""Conversations of JSON lines: the quick parser changes nothing of what Python's says of a line, bad or good."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ftcli.plugins.chatlines import documents
from ftcli.plugins.jsonl import line_fault, split_lines

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
    line = LINES[what]
    block = (line if isinstance(line, bytes) else line.encode()) + b"\n"
    wanted: list[Any] = []
    careful = [line_fault("f", each, COLUMNS, lambda row: wanted.append(as_document(row, COLUMNS))) for each in split_lines(7, block)]
    bad: list[BadRow] = []
    (found,) = documents("f", 7, block, COLUMNS, bad.append) or ([],)
    assert bad == [each for each in careful if each is not None]
    assert [repr(json.loads(str(each))) for each in found] == [repr(json.loads(each)) for each in wanted]
    assert len(bad) + len(wanted) == 1
