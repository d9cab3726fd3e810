"""A tokenizer's chat template, tried: does it render, does it mark what the assistant says, is a prompt the beginning of the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ftcli.records import MANIFEST_NAME

Message = dict[str, str]
MOST = 100
"""Conversations that are tried."""
MOST_BYTES = 1 << 20
"""Of a line of a file that is searched for conversations."""
KEYS = ("messages", "conversations", "conversation")
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
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
    parted: list[int]
    """Conversations whose prompt's ids are not the beginning of all ids."""
    example: str
    """The first conversation as text."""


def try_template(tokenizer: Any, conversations: Sequence[Sequence[Message]]) -> Tried:
    """Every conversation (its last message is the assistant's) through `apply_chat_template`, whole and as the prompt for its last message."""
    broken: dict[int, str] = {}
    masked, parted, example = 0, [], ""
    template = tokenizer.get_chat_template()
    generation = "generation %}" in " ".join(template.split()) and "endgeneration" in template
    for number, messages in enumerate(conversations):
        try:
            text = tokenizer.apply_chat_template(list(messages), tokenize=False)
            prompt = tokenizer.apply_chat_template(list(messages[:-1]), tokenize=False, add_generation_prompt=True)
            spoken = 1
            if generation:
                whole = tokenizer.apply_chat_template(list(messages), return_dict=True, return_assistant_tokens_mask=True)
                spoken = sum(whole["assistant_masks"])
        except Exception as error:  # noqa: BLE001 - templates are programs: they raise what they like
            broken[number] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            continue
        example = example or text
        masked += not generation or not spoken
        first, every = (tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"] for part in (prompt, text))
        if every[: len(first)] != first:
            parted.append(number)
    return Tried(len(conversations), broken, generation, masked, parted, example)


def read_conversations(sources: Sequence[str]) -> list[list[Message]]:
    """Up to `MOST` conversations of .jsonl files that hold messages (role and content, or from and value); empty where there are none.

    Args:
        sources: files, folders, "split=file", or one prepared directory, whose manifest names its sources.
    """
    found: list[list[Message]] = []
    for path in _files(sources):
        if path.suffix in {".jsonl", ".ndjson"}:
            found += islice(_of_file(path), MOST - len(found))
    return found


def _files(sources: Sequence[str]) -> Iterator[Path]:
    for source in sources:
        path = Path(source if Path(source).exists() else source.partition("=")[2] or source)
        manifest = path / MANIFEST_NAME
        if manifest.is_file():
            try:
                entries = json.loads(manifest.read_text(encoding="utf-8")).get("sources", ())
            except (OSError, ValueError, AttributeError):  # FT201 says what is wrong with the data
                continue
            yield from (Path(str(entry["path"])) for entry in entries if isinstance(entry, dict) and "path" in entry)
        elif path.is_dir():
            yield from sorted(path.glob("*.jsonl"))[:MOST]
        else:
            yield path


def _of_file(path: Path) -> Iterator[list[Message]]:
    try:
        with path.open("rb") as file:
            for line in islice(iter(lambda: file.readline(MOST_BYTES), b""), 4 * MOST):
                try:
                    row = json.loads(line)
                except ValueError:
                    return
                said = next((row[key] for key in KEYS if isinstance(row.get(key), list)), None) if isinstance(row, dict) else None
                messages = _messages(said or [])
                if messages is None:
                    return
                if messages:
                    yield messages
    except OSError:
        return


def _messages(said: list[Any]) -> list[Message] | None:
    """The messages up to the assistant's last one; None when they are none, empty when the assistant says nothing."""
    messages: list[Message] = []
    for part in said:
        if not isinstance(part, dict):
            return None
        role, content = part.get("role", part.get("from")), part.get("content", part.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        messages.append({"role": ROLES.get(role, role), "content": content})
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages
