"""Conversations in tables of texts, and columns beside a conversation: read, or said to be unread."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ftcli.commands import tokenize
from ftcli.contracts import Columns
from ftcli.core.reading.columns import BadValue
from ftcli.core.reading.conversation import NAMES, READ, as_document, unread_note
from ftcli.errors import DataError
from ftcli.records import Report
from ftcli.testing import tiny_tokenizer
from test_sft import PLAIN
from tokenizing import Bar, context, prepare, rows, without_plots  # noqa: F401

pytestmark = pytest.mark.usefixtures("without_plots")
COLUMNS = Columns("messages", chat=NAMES)
SPOKEN = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
ROWS = [
    {"instruction": 'Sum it up, "please".', "input": "A long\nstory; of two, lines.", "output": "Short."},
    {"instruction": "어때?", "input": "", "output": "좋아요 | 정말"},
    {"instruction": "And?", "input": "x", "output": "NA"},
] * 5


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_tokenizer(tmp_path_factory.mktemp("tokenizer") / "t")
    (folder / "chat_template.jinja").write_text(PLAIN, encoding="utf-8")
    return folder


def _sft(tokenizer: Path, source: Path, output: Path, **values: Any) -> Report:
    return prepare(tokenizer, source, output, train__mode="sft", **values)


def _table(path: Path, items: Sequence[dict[str, str]], delimiter: str = ",", header: bool = True) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(items[0]), delimiter=delimiter)
        if header:
            writer.writeheader()
        writer.writerows(items)
    return path


def _lines(path: Path, items: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


@pytest.mark.parametrize(("name", "delimiter"), [("x.csv", ","), ("x.tsv", "\t"), ("y.csv", ";"), ("z.csv", "|")])
def test_a_table_gives_the_rows_of_json_lines(tokenizer: Path, tmp_path: Path, name: str, delimiter: str) -> None:
    _sft(tokenizer, _lines(tmp_path / "x.jsonl", ROWS), tmp_path / "lines")
    _sft(tokenizer, _table(tmp_path / name, ROWS, delimiter), tmp_path / "table")
    assert rows(tmp_path / "table") == rows(tmp_path / "lines")


def test_columns_of_a_table_are_named_or_counted(tokenizer: Path, tmp_path: Path) -> None:
    items = [{"답변": row["output"], "질문": row["instruction"]} for row in ROWS]
    same = [{"instruction": row["instruction"], "output": row["output"]} for row in ROWS]
    _sft(tokenizer, _lines(tmp_path / "x.jsonl", same), tmp_path / "lines")
    with pytest.raises(DataError, match="no conversation"):
        _sft(tokenizer, _table(tmp_path / "x.csv", items), tmp_path / "unnamed")
    _sft(tokenizer, tmp_path / "x.csv", tmp_path / "named", dataset__rename_columns=["instruction=질문", "output=답변"])
    _sft(
        tokenizer,
        _table(tmp_path / "y.csv", items, header=False),
        tmp_path / "counted",
        dataset__rename_columns=["instruction=1", "output=0"],
    )
    assert rows(tmp_path / "named") == rows(tmp_path / "counted") == rows(tmp_path / "lines")
    twice = tmp_path / "twice.csv"
    twice.write_text("instruction,output,output\na,b,c\n")
    with pytest.raises(DataError, match="'output' exists 2 times"):
        _sft(tokenizer, twice, tmp_path / "twice")


def test_a_bad_row_of_a_table_is_named_or_put_aside(tokenizer: Path, tmp_path: Path) -> None:
    source = tmp_path / "x.csv"
    source.write_text('prompt,completion,system\na,b,\nc,d,Be brief.\n"e, f",g,\nh,i\n')
    with pytest.raises(DataError, match=r"x.csv:3 .*cannot be combined with 'system'"):
        _sft(tokenizer, source, tmp_path / "strict")
    report = _sft(tokenizer, source, tmp_path / "aside", dataset__on_bad="quarantine", dataset__max_bad=0.9)
    assert (report.metrics["rows_written"], report.metrics["rows_rejected"]) == (2, 2)
    rejects = [json.loads(line) for line in (tmp_path / "aside" / "rejects.jsonl").read_text().splitlines()]
    assert [(reject["reason_code"], base64.b64decode(reject["raw"])) for reject in rejects] == [
        ("wrong-type", b"c,d,Be brief."),
        ("ragged", b"h,i"),
    ]


def test_messages_in_a_table_are_json(tokenizer: Path, tmp_path: Path) -> None:
    items = [{"id": str(number), "messages": json.dumps(SPOKEN)} for number in range(5)]
    _sft(tokenizer, _lines(tmp_path / "x.jsonl", [{"messages": SPOKEN}] * 5), tmp_path / "lines")
    _sft(tokenizer, _table(tmp_path / "x.csv", items), tmp_path / "table")
    pq.write_table(pa.Table.from_pylist(items), tmp_path / "x.parquet")
    _sft(tokenizer, tmp_path / "x.parquet", tmp_path / "parquet")
    assert rows(tmp_path / "table") == rows(tmp_path / "parquet") == rows(tmp_path / "lines")
    with pytest.raises(BadValue, match="must be a list of at least one message"):
        as_document({"messages": "[not JSON"}, COLUMNS)


def test_what_the_system_says_is_read_beside_any_conversation() -> None:
    first = {"role": "system", "content": "Be brief."}
    for row in ({"messages": SPOKEN}, {"conversations": SPOKEN}):
        assert json.loads(as_document({**row, "system": "Be brief."}, COLUMNS))["messages"] == [first, *SPOKEN]
    row = {"prompt": SPOKEN[:1], "completion": SPOKEN[1:], "system": "Be brief."}
    assert json.loads(as_document(row, COLUMNS))["prompt"] == [first, SPOKEN[0]]
    assert json.loads(as_document({"messages": [first, *SPOKEN], "system": "Be brief."}, COLUMNS))["messages"] == [first, *SPOKEN]
    with pytest.raises(BadValue, match="differs from the system message"):
        as_document({"messages": [first, *SPOKEN], "system": "Be long."}, COLUMNS)


def test_columns_that_a_conversation_leaves_unread_are_named(tokenizer: Path, tmp_path: Path) -> None:
    items = [{"instruction": "Is it polite?", "content": "Go away.", "output": "No.", "id": 3, "tag": ""}] * 5
    _lines(tmp_path / "x.jsonl", items)
    (tmp_path / "x.json").write_text(json.dumps(items))
    _table(
        tmp_path / "x.csv",
        [{key: str(value) for key, value in item.items() if key in {"instruction", "content", "output"}} for item in items],
    )
    pq.write_table(pa.Table.from_pylist([{**item, "tag": 1} for item in items]), tmp_path / "x.parquet")
    for kind in ("jsonl", "json", "csv", "parquet"):
        report = _sft(tokenizer, tmp_path / f"x.{kind}", tmp_path / kind)
        assert "columns not read: content. If one is part of the conversation: --rename input=content" in report.notes, kind
    report = _sft(tokenizer, tmp_path / "x.jsonl", tmp_path / "all", dataset__rename_columns=["input=content"])
    assert not [note for note in report.notes if "not read" in note]


@pytest.mark.parametrize(
    ("shapes", "names", "words"),
    [
        (
            ["prompt-completion"],
            ["prompt", "completion", "context"],
            "not read: context. Anything that is part of the conversation must be in its messages",
        ),
        (["alpaca"], ["instruction", "input", "context", "output"], "not read: context. "),
        (
            ["alpaca"],
            ["instruction", "output", "a", "b"],
            "not read: a, b. If one is part of the conversation: --rename input=COLUMN",
        ),
        (
            ["alpaca"],
            ["instruction", "context", "response", "category"],
            "not read: category. Anything that is part of the conversation must be in its messages",
        ),
        (["messages"], ["id", "system"], "not read: id. "),
        (["messages"], [f"c{number}" for number in range(12)], "c9 and 2 more. "),
    ],
)
def test_what_is_unread_depends_on_the_shape(shapes: list[str], names: list[str], words: str) -> None:
    assert words in (unread_note(COLUMNS, names, shapes) or "")


def test_a_list_that_pandas_wrote_as_text_is_told_apart_from_a_bad_row() -> None:
    """Every row was to be corrected or removed, and the index of pandas was a column not read, without a name."""
    with pytest.raises(BadValue) as refused:
        as_document({"conversations": "[{'from': 'human', 'value': 'Why?'}]"}, COLUMNS)
    assert "save them as JSON lines" in refused.value.hint
    assert unread_note(COLUMNS, ["", "messages"], ["messages"]) is None


def test_every_shape_says_what_it_reads() -> None:
    assert {name for names in READ.values() for name in names} | {"messages", "system", "tools"} == set(NAMES)
    assert unread_note(COLUMNS, [name for name in READ["alpaca"] if name not in {"context", "response"}], ["alpaca"]) is None


def test_answers_that_are_labelled_as_bad_are_not_learned_without_a_word(tokenizer: Path, tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    items = [{"messages": said, "label": number % 3 > 0} for number in range(30)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (tmp_path / "x.json").write_text(json.dumps(items))
    pq.write_table(pa.Table.from_pylist(items), tmp_path / "x.parquet")
    for kind in ("jsonl", "json", "parquet"):
        (note,) = [note for note in _sft(tokenizer, tmp_path / f"x.{kind}", tmp_path / kind).notes if "label" in note]
        assert note.startswith("10 rows have label false, as data for KTO mark bad answers") and "| select(.label)'" in note, kind  # noqa: PT018
    (tmp_path / "good.json").write_text(json.dumps([item for item in items if item["label"]]))
    assert not [note for note in _sft(tokenizer, tmp_path / "good.json", tmp_path / "good").notes if "label" in note]


def test_counting_answers_that_are_labelled_as_bad_shows_how_far_it_is(tokenizer: Path, tmp_path: Path) -> None:
    source = _lines(tmp_path / "x.jsonl", [{"prompt": "Why?", "completion": "So.", "label": number > 3} for number in range(30)])
    asked = context(tokenizer, source, tmp_path / "out", train__mode="sft")
    asked.progress = bar = Bar()
    tokenize.run(asked)
    assert sum(bar.stages["labels"]) == bar.totals["labels"] == source.stat().st_size


def test_data_for_preferences_are_not_trained_without_a_word(tokenizer: Path, tmp_path: Path) -> None:
    said = {"from": "gpt", "value": "So."}
    asked = [{"from": "human", "value": "Why?"}]
    items = [{"conversations": asked, "chosen": said, "rejected": said}] * 3 + [
        {"conversations": [*asked, said, *asked], "chosen": said}
    ] * 5
    report = _sft(tokenizer, _lines(tmp_path / "x.jsonl", items), tmp_path / "out")
    notes = "\n".join(report.notes).replace("\xa0", " ")
    assert (
        "columns not read: chosen, rejected. Anything that is part of the conversation must be in its messages. ftcli does not train on preference data (DPO)"
        in notes
    )
    assert "left out: 3 of 8 rows (37.5 %), without an answer to be learned" in notes
    assert (report.metrics["rows_untargeted"], report.metrics["rows_unanswered"]) == (3, 3)
    with pytest.raises(DataError) as refused:
        _sft(tokenizer, _lines(tmp_path / "y.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}]), tmp_path / "y")
    assert "--rename instruction=prompt,output=chosen" in refused.value.hint


def test_answers_behind_the_end_of_a_row_are_told_from_none(tokenizer: Path, tmp_path: Path) -> None:
    long = [{"role": "user", "content": "Why? " * 40}, SPOKEN[1]]
    items = [{"messages": chat} for chat in (SPOKEN, long, SPOKEN[:1])]
    report = _sft(tokenizer, _lines(tmp_path / "x.jsonl", items), tmp_path / "out", packing__max_length=32)
    assert (report.metrics["rows_untargeted"], report.metrics["rows_unanswered"]) == (2, 1)
    notes = "\n".join(report.notes).replace("\xa0", " ")
    assert "left out: 1 of 3 rows (33.3 %), without an answer to be learned" in notes
    assert "left out: 1 of 3 rows (33.3 %), with the answers behind max_length 32" in notes
    for name, rest, hint in (("y", items[2:], "No row has an answer"), ("z", items[1:], "Raise --max-length")):
        with pytest.raises(DataError, match="no row is left to write") as refused:
            _sft(tokenizer, _lines(tmp_path / f"{name}.jsonl", rest), tmp_path / name, packing__max_length=32)
        assert hint in refused.value.hint


def test_messages_of_gemini_are_read() -> None:
    chat = [{"role": "user", "parts": [{"text": "Wh"}, {"text": "y?"}]}, {"role": "model", "parts": [{"text": "So."}]}]
    columns = Columns("contents", chat=("contents", *NAMES))
    assert json.loads(as_document({"contents": chat}, columns))["messages"] == SPOKEN
    with pytest.raises(BadValue, match="content other than text"):
        as_document({"contents": [{"role": "user", "parts": [{"fileData": {}}]}, chat[1]]}, columns)


def test_a_part_of_a_content_is_text_under_either_key() -> None:
    parts = [{"type": "text", "value": "Wh"}, {"type": "text", "text": "y?"}]
    chat = [{"role": "user", "content": parts}, SPOKEN[1]]
    assert json.loads(as_document({"messages": chat}, COLUMNS))["messages"] == SPOKEN
