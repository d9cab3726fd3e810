"""A tokenizer's chat template, tried: does it render, does it mark what the assistant says, is a prompt the beginning of the whole."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ftcli.contracts import Columns
from ftcli.core.reading.columns import BadValue
from ftcli.core.reading.conversation import TEXT, as_document, as_prepared, chat_columns
from ftcli.core.tokenizer.round_trip import folded
from ftcli.core.tokenizer.template_habits import ANSWERS, Habits
from ftcli.records import MANIFEST_NAME
from ftcli.settings import Settings

Message = dict[str, Any]
MOST = 100
"""Conversations that are tried."""
LEAST = 4
"""Characters of what a user says from which it is looked for in the mask."""
MARK = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
"""What templates write for a token: <|im_end|>, </s>, <end_of_turn>, [/INST]."""
MOST_BYTES = 1 << 20
"""Of a line of a file that is searched for conversations."""
SAMPLES: tuple[list[Message], ...] = (
    [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "5"}],
    [{"role": "user", "content": "오늘 날씨 어때?"}, {"role": "assistant", "content": "맑고 따뜻합니다."}],
    [{"role": "user", "content": "Write a line of Python."}, {"role": "assistant", "content": "    print('hello')\n"}],
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi! How can I help?"},
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Blue."},
    ],
)


@dataclass(frozen=True, slots=True)
class Tried:
    """`broken`: what the template says against the conversations that it refuses, by number."""

    conversations: int
    broken: dict[int, str]
    generation: bool
    """Whether the template has {% generation %}."""
    masked: int
    """Conversations whose mask of assistant tokens is empty."""
    asked: list[int]
    """Conversations whose mask holds what the user says, by number."""
    parted: list[int]
    """Conversations whose prompt's ids are not the beginning of all ids."""
    example: str
    """The first conversation as text."""
    hidden: dict[int, str]
    """What the template leaves out without a word, in words, by conversation."""
    spelled: dict[str, list[str]]
    """What the template writes behind an answer as if it were tokens, with the several that each becomes; none where anything there is one."""


def try_template(tokenizer: Any, conversations: Sequence[Sequence[Message]]) -> Tried:
    """Every conversation (its last message is the assistant's) through `apply_chat_template`, whole and as the prompt for its last message."""
    broken: dict[int, str] = {}
    masked, example = 0, ""
    asked: list[int] = []
    parted: list[int] = []
    hidden: dict[int, str] = {}
    habits = Habits(lambda chat, tools: str(tokenizer.apply_chat_template(chat, tools=tools, tokenize=False)))
    template = tokenizer.get_chat_template()
    generation = "generation %}" in " ".join(template.split()) and "endgeneration" in template
    for number, given in enumerate(conversations):
        messages = habits.suited(list(given))
        if words := habits.hidden(messages):
            hidden[number] = words
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
            spoken = 1
            if generation:
                whole = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
                spoken = sum(whole["assistant_masks"])
                learned = [token for token, mine in zip(whole["input_ids"], whole["assistant_masks"], strict=True) if mine]
                if _holds_questions(folded(tokenizer.decode(learned)), messages):
                    asked.append(number)
        except Exception as error:  # noqa: BLE001 - templates are programs: they raise what they like
            broken[number] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            continue
        example = example or text
        masked += not generation or not spoken
        first, every = (tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"] for part in (prompt, text))
        if every[: len(first)] != first:
            parted.append(number)
    return Tried(len(conversations), broken, generation, masked, asked, parted, example, hidden, _spelled(tokenizer))


def _spelled(tokenizer: Any) -> dict[str, list[str]]:
    """See `Tried.spelled`. An EOS is enough: Zephyr's <|user|> and Mistral's [INST] are several tokens, and are meant to be."""
    asked = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWERS[0]}]
    try:
        _, said, end = str(tokenizer.apply_chat_template(asked, tokenize=False)).rpartition(ANSWERS[0])
        marks = list(dict.fromkeys(MARK.findall(end))) if said else []
        pieces = {
            text: tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
            for text in (end, *marks)
        }
    except Exception:  # noqa: BLE001 - templates raise what they like, and what they write may be beyond a tokenizer
        return {}
    unknown = {tokenizer.unk_token} - {tokenizer.eos_token}
    own = {*marks, *tokenizer.get_added_vocab(), *tokenizer.all_special_tokens} - unknown
    return {} if own.intersection(pieces[end]) else {mark: pieces[mark] for mark in marks}


def _holds_questions(learned: str, messages: Sequence[Message]) -> bool:
    """Whether what is learned holds the words of somebody else than the assistant, which the assistant does not say as well."""
    said = {
        who: [folded(str(message.get("content") or "")) for message in messages if (message["role"] == "assistant") is who]
        for who in (True, False)
    }
    return any(len(words) >= LEAST and words in learned and not any(words in answer for answer in said[True]) for words in said[False])


@dataclass(frozen=True, slots=True)
class Own:
    """What the data's files hold, up to `MOST` of each."""

    conversations: list[list[Message]]
    pairs: list[tuple[str, str]]
    """Plain prompts with their completions, which no template joins."""


def read_own(settings: Settings) -> Own:
    """Conversations of .jsonl files in every shape that mode sft knows, and prompts with completions; empty where there are none.

    Sources are files, folders, "split=file", or one prepared directory, whose manifest names its sources.
    """
    own, sources = Own([], []), settings.dataset.sources or ()
    manifest = _manifest(Path(sources[0])) if len(sources) == 1 else None
    columns = chat_columns(settings if manifest is None else as_prepared(settings, manifest.get("inputs") or {}))
    for path in _files(sources):
        if path.suffix in {".jsonl", ".ndjson"}:
            for document in _of_file(path, columns):
                if document["kind"] == TEXT:
                    own.pairs.append((document["prompt"], document["completion"]))
                elif messages := _answered(document.get("messages") or [*document["prompt"], *document["completion"]]):
                    own.conversations.append(messages)
    return Own(own.conversations[:MOST], own.pairs[:MOST])


def parted_pairs(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> list[int]:
    """Pairs whose prompt's ids are not the beginning of the ids of prompt and completion together, by number."""
    found = []
    for number, (prompt, completion) in enumerate(pairs):
        first, every = (tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in (prompt, prompt + completion))
        if every[: len(first)] != first:
            found.append(number)
    return found


def _files(sources: Sequence[str]) -> Iterator[Path]:
    for source in sources:
        path = Path(source if os.path.exists(source) else source.partition("=")[2] or source)  # noqa: PTH110 - FT201 says what may not be read
        if (manifest := _manifest(path)) is not None:
            entries = manifest.get("sources", ())
            yield from (Path(str(entry["path"])) for entry in entries if isinstance(entry, dict) and "path" in entry)
        elif os.path.isdir(path):  # noqa: PTH112
            yield from sorted(path.glob("*.jsonl"))[:MOST]
        else:
            yield path


def _manifest(folder: Path) -> dict[str, Any] | None:
    """That of prepared data; None where there is none. FT201 says what is wrong with one."""
    try:
        found = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _of_file(path: Path, columns: Columns) -> Iterator[dict[str, Any]]:
    """The documents of the first rows, as mode sft reads them, up to one that is none."""
    try:
        with path.open("rb") as file:
            for line in islice(iter(lambda: file.readline(MOST_BYTES), b""), 4 * MOST):
                try:
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        return
                    yield json.loads(as_document(row, columns))
                except (ValueError, BadValue):
                    return
    except OSError:
        return


def _answered(messages: list[Message]) -> list[Message]:
    """The messages up to the assistant's last one."""
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages
