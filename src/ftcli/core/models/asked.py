"""What a model is asked: texts, pairs of texts or conversations, from the command line or a file of any format that is prepared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from ftcli.contracts import Columns
from ftcli.core.files.streams import bare_suffix, codec_of, data_errors, open_stream
from ftcli.core.reading.columns import BadValue
from ftcli.core.reading.conversation import MODE, NAMES, TEXT, as_document
from ftcli.core.reading.read import make_plan, read_shard
from ftcli.core.tokenizer.template import conversation_of
from ftcli.errors import DataError
from ftcli.registry import AnyRegistry
from ftcli.settings import Settings, update

COLUMNS = Columns("messages", chat=NAMES)
JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One that wants an answer, and the tools that it offers."""

    messages: list[Mapping[str, Any]]
    tools: Any = None


Asked = str | tuple[str, str] | Conversation
"""A text, two texts that are judged together, or a conversation."""


def read_asked(path: Path, settings: Settings, formats: AnyRegistry) -> list[Asked]:
    """What the rows of a file ask: the text column, with a second one where it is named, else their conversations.

    Args:
        settings: name the columns.

    Raises:
        DataError: it cannot be read, or a row asks nothing; names the place.
    """
    dataset = settings.dataset
    suffix, known = bare_suffix(str(path)), {suffix for name in formats.names() for suffix in formats.get(name)().suffixes}
    if suffix in JSON_LINES or suffix not in known:
        return read_texts(path, dataset.text_column, dataset.text_pair_column)
    try:
        return _rows(path, settings, formats, mode=None)
    except DataError:
        if dataset.text_pair_column:
            raise
        try:
            return _rows(path, settings, formats, mode=MODE)
        except DataError:
            pass
        raise


def _rows(path: Path, settings: Settings, formats: AnyRegistry, mode: str | None) -> list[Asked]:
    """Texts or pairs, or in mode sft conversations."""
    labels = dict.fromkeys(("dataset.label_column", "dataset.label_columns", "dataset.label_names", "dataset.label_separator"))
    wanted = update(settings, {**labels, "dataset.sources": [str(path)], "dataset.on_bad": "strict", "train.mode": mode})
    plan = make_plan(wanted, formats)
    asked: list[Asked] = []
    for shard in plan.shards:
        for _, batch in read_shard(shard, plan.columns, wanted, formats):
            texts = batch.column("text").to_pylist()
            if plan.columns.pair is not None:
                asked += zip(texts, batch.column("pair").to_pylist(), strict=True)
            else:
                asked += texts if mode is None else map(_from_document, texts)
    return asked


def _from_document(text: str) -> str | Conversation:
    document = json.loads(text)
    return str(document["prompt"]) if document["kind"] == TEXT else Conversation(conversation_of(document), document.get("tools"))


def read_texts(path: Path, column: str, pair: str | None = None) -> list[Asked]:
    """What a file of JSON lines asks: `messages` of a row, else its `column`, else its `prompt`, else its conversation in a shape of mode sft.

    Args:
        pair: column of a second text, which every row then has.

    Raises:
        DataError: it cannot be read, or a row has none of them; names the line.
    """
    asked: list[Asked] = []
    with data_errors(str(path)):
        try:
            for number, line in _lines(path):
                row = json.loads(line)
                try:
                    found = _asked(row, column)
                except BadValue as bad:
                    raise DataError(f"{path}:{number}: {bad.reason}", bad.hint) from None
                if found is None:
                    raise DataError(
                        f"{path}:{number}: neither messages, {column} nor prompt", "Another column is named with --text-column."
                    )
                if pair is not None and not (isinstance(found, str) and isinstance(row.get(pair), str)):
                    raise DataError(f"{path}:{number}: no second text {pair}", "Another column is named with --text-pair-column.")
                asked.append(found if pair is None else (str(found), row[pair]))
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read as JSON lines: {error}", "One object a line, in UTF-8.") from error
    return asked


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, with their numbers; also of a pipe."""
    with open_stream(str(path)) if codec_of(str(path)) else path.open("rb") as stream, TextIOWrapper(stream, "utf-8-sig") as text:
        yield from ((number, line) for number, line in enumerate(text, 1) if line.strip())


def _asked(row: object, column: str) -> str | Conversation | None:
    """What a row asks; None where it asks nothing. Raises BadValue for a conversation that is none."""
    if not isinstance(row, dict):
        return None
    for key in (column, "prompt"):
        if not row.get("messages") and row.get(key) and isinstance(row[key], str):
            return str(row[key])
    if not row.get("messages") and isinstance(row.get(column), list):
        row = {"messages": row[column], **{name: row.get(name) for name in ("system", "tools")}}
    if not {"messages", "conversations", "conversation", "instruction", "prompt"} & row.keys():
        return None
    unanswered = {} if row.get("instances") else {"output": ""}  # an instance brings its own, and the input
    given = {"completion": [{"role": "assistant", "content": ""}], **unanswered, **row}
    return _from_document(as_document(given, COLUMNS))
