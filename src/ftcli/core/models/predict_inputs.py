"""What a model is asked: texts, pairs of texts or conversations, from the command line or a file of any format that is prepared."""

from __future__ import annotations

import json
import os
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from glob import has_magic
from io import BufferedReader
from pathlib import Path
from typing import Any

from ftcli.contracts import Columns
from ftcli.core.files.streams import CR_ALONE, bare_suffix, codec_of, data_errors, in_crs, open_stream
from ftcli.core.reading.columns import BadValue
from ftcli.core.reading.conversation import MODE, NAMES, TEXT, as_document, chat_columns
from ftcli.core.reading.find import missing
from ftcli.core.reading.read import find_sources, make_plan, read_shard
from ftcli.core.tokenizer.template import conversation_of
from ftcli.errors import DataError
from ftcli.registry import AnyRegistry
from ftcli.settings import Settings, update

COLUMNS = Columns("messages", chat=NAMES)
JSON_LINES = (".jsonl", ".ndjson")
MOST = 60
"""Characters of a value in an error."""


class EmptyTextError(DataError):
    """A text of a file is nothing to ask."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where}: the text is empty", "Leave it out.")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One that wants an answer, and the tools that it offers."""

    messages: list[Mapping[str, Any]]
    tools: Any = None

    @property
    def question(self) -> list[Mapping[str, Any]]:
        """The messages up to its last answer."""
        end = len(self.messages)
        while end and self.messages[end - 1].get("role") == "assistant":
            end -= 1
        return self.messages[:end]


Asked = str | tuple[str, str] | Conversation
"""A text, two texts that are judged together, or a conversation."""


def read_asked(path: Path, settings: Settings, formats: AnyRegistry, note: Callable[[str], None] = lambda _: None) -> list[Asked]:
    """What the rows of a file, or of the files of a directory or pattern, ask: the text column, with a second one where it is named, else their conversations.

    Args:
        settings: name the columns.
        note: is told which of several files are read.

    Raises:
        DataError: it cannot be read, or a row asks nothing; names the place.
    """
    dataset, files = settings.dataset, [str(path)]
    there = os.path.lexists(path)
    if not there and not has_magic(str(path)):
        raise missing(str(path))
    if not there or path.is_dir():
        finder, found = find_sources(_wanted(path, settings, None), formats)
        files = [file.path for file in found]
        for words in finder.notes:
            if words.startswith(f"{path}: "):  # which split a file is for is nothing to whoever asks
                note(words)
    known = {suffix for name in formats.names() for suffix in formats.get(name)().suffixes}
    if dataset.source_format is None and all(suffix in JSON_LINES or suffix not in known for suffix in map(bare_suffix, files)):
        renamed = dict(chat_columns(settings).renamed)
        return [one for file in files for one in read_texts(Path(file), dataset.text_column, dataset.text_pair_column, renamed)]
    if dataset.rename_columns:
        return _rows(path, settings, formats, mode=MODE)
    try:
        return _rows(path, settings, formats, mode=None)
    except EmptyTextError:
        raise
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
    wanted = _wanted(path, settings, mode)
    plan = make_plan(wanted, formats)
    asked: list[Asked] = []
    read = Counter[str]()
    for shard in plan.shards:
        for piece, batch in read_shard(shard, plan.columns, wanted, formats):
            texts = batch.column("text").to_pylist()
            if plan.columns.pair is not None:
                asked += zip(texts, batch.column("pair").to_pylist(), strict=True)
            elif mode is not None:
                asked += map(_from_document, texts)
            elif empty := next((row for row, text in enumerate(texts, read[piece.path] + 1) if not text.strip()), None):
                raise EmptyTextError(f"{piece.path}: row {empty}")
            else:
                asked += texts
            read[piece.path] += len(texts)
    return asked


def _wanted(path: Path, settings: Settings, mode: str | None) -> Settings:
    labels = dict.fromkeys(("dataset.label_column", "dataset.label_columns", "dataset.label_names", "dataset.label_separator"))
    return update(settings, {**labels, "dataset.sources": [str(path)], "dataset.on_bad": "strict", "train.mode": mode})


def _from_document(text: str) -> str | Conversation:
    document = json.loads(text)
    return str(document["prompt"]) if document["kind"] == TEXT else Conversation(conversation_of(document), document.get("tools"))


NAMED = "Columns under other names: --text-column for texts, --rename prompt=question or instruction=question,output=answer as in tokenize."


def read_texts(path: Path, column: str, pair: str | None = None, renamed: Mapping[str, str] | None = None) -> list[Asked]:
    """What a file of JSON lines asks: `messages` of a row, else its `column`, else its `prompt`, else its conversation in a shape of mode sft.

    Args:
        pair: column of a second text, which every row then has.
        renamed: the file's name of a column → that of mode sft.

    Raises:
        DataError: it cannot be read, or a row has none of them; names the line.
    """
    asked: list[Asked] = []
    with data_errors(str(path)):
        for number, line in _lines(path):
            where = f"{path}:{number}"
            try:
                row = json.loads(line.decode())
                if not isinstance(row, dict):
                    raise DataError(f"{where} is not an object", "One object a line, in UTF-8.")
                row = {(renamed or {}).get(name, name): value for name, value in row.items()}
                found = _asked(row, column)
            except BadValue as bad:
                raise DataError(f"{where}: {bad.reason}", bad.hint) from None
            except ValueError as error:
                what = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
                hint = CR_ALONE if in_crs(line) else "One object a line, in UTF-8."
                raise DataError(f"{where} is no{'t' if what == 'UTF-8' else ''} {what}: {error}", hint) from error
            text = row.get(column) if found is None else found
            if pair is None and isinstance(text, str) and not text.strip():
                raise EmptyTextError(where)
            other = "" if column not in row else f": {column} is {repr(row[column])[:MOST]}, not a text"
            if found is None:
                raise DataError(f"{where}{other or f': neither messages, conversations, instruction, {column} nor prompt'}", NAMED)
            if pair is not None and not isinstance(found, str):
                raise DataError(f"{where}: no first text {column}", "Another column is named with --text-column.")
            if pair is not None and not isinstance(row.get(pair), str):
                raise DataError(f"{where}: no second text {pair}", "Another column is named with --text-pair-column.")
            asked.append(found if pair is None else (str(found), row[pair]))
    return asked


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers; also of a pipe."""
    with open_stream(str(path)) if codec_of(str(path)) else path.open("rb") as stream, BufferedReader(stream) as lines:
        for number, line in enumerate(lines, 1):
            bare = line.removeprefix(BOM_UTF8) if number == 1 else line
            if bare.strip():
                yield number, bare


def _asked(row: Mapping[str, Any], column: str) -> str | Conversation | None:
    """What a row asks; None where it asks nothing. Raises BadValue for a conversation that is none."""
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
