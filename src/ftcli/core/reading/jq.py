"""Commands of jq, for hints: what makes rows of values that are not as they are wanted. They read .jsonl and arrays in a .json alike."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

ROWS = 'if type=="array" then .[] else . end'
SQUAD = (
    "jq -c '(.data? // .) | (" + ROWS + ") | .paragraphs[] | .context as $c | .qas[] | select(.answers[0]) | "
    "{question, context: $c, answer: .answers[0].text}' OLD > NEW.jsonl writes a row for each question with an answer; then "
    "--mode sft --rename instruction=question,output=answer, or --text-column context."
)
"""What to do about {title, paragraphs}, as SQuAD comes."""

LABEL_STUDIO = (
    f"As Label Studio exports it, jq -c '({ROWS}) | .data + {{label: .annotations[0].result[0].value.choices[0]}} | select(.label)' OLD > NEW.jsonl makes a "
    "row of each text with its class: --label-column label, and --text-column with its name in data."
)
"""What to do about {data, annotations}."""


def key(name: str) -> str:
    """
    >>> key("text"), key("real-label")
    ('.text', '.["real-label"]')
    """
    step = _step(name)
    return step if step.startswith(".") else f".{step}"


def _step(name: object) -> str:
    """From a value to a part of it, or to an item of a list."""
    if re.fullmatch("[A-Za-z_][A-Za-z_0-9]*", str(name)):
        return f".{name}"
    return f"[{name if isinstance(name, int) else json.dumps(str(name), ensure_ascii=False)}]"


def changed(change: str) -> str:
    """The command that changes every row."""
    return f"jq -c {shlex.quote(f'({ROWS}) | {change}')} OLD > NEW.jsonl"


def part_of(name: str, value: Mapping[object, object]) -> str:
    """What takes one part of an object."""
    column = key(name)
    return f'{changed(f"""{column} = {column}["PART"]""")} takes one of its fields; for PART give one of: {", ".join(map(str, value))}.'


def text_in(name: str, value: object) -> str:
    """What to do about an object or a list where a text is wanted; "" where none is in it.

    >>> text_in("answers", {"start": [6], "text": ["Paris"]}).partition(" | ")[2]
    ".answers = .answers.text[0]' OLD > NEW.jsonl extracts the text."
    """
    column = key(name)
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) for item in value):
        return f'{changed(f"""{column} |= join(" ")""")} joins its strings.'
    path = None if isinstance(value, str) else _path(value)
    return "" if path is None else f"{changed(f'{column} = {column}{path}')} extracts the text."


def _path(value: object, depth: int = 3) -> str | None:
    """The way to the first text in a value; None where there is none near."""
    if isinstance(value, str):
        return ""
    items = value.items() if isinstance(value, Mapping) else enumerate(value[:1]) if isinstance(value, (list, tuple)) else ()
    ways = ((name, _path(item, depth - 1)) for name, item in items) if depth else ()
    return next((_step(name) + way for name, way in ways if way is not None), None)
