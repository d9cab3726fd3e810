"""Messages of a conversation, as OpenAI, ShareGPT and Gemini write them, in the form that chat templates take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ftcli.core.reading import jq
from ftcli.core.reading.columns import BadValue, shown

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""ShareGPT's speakers."""
NATIVE = frozenset({"observation"})
"""Of these what templates know as a role of their own (GLM's)."""
PLAIN = frozenset({"role", "content"})
"""What a message has that is words and no more."""
SPOKEN = ("system", "user", "assistant")
"""Roles that templates know by these names; no set, in which a role that is a list could not be looked for."""
CALL = "function_call"
"""The speaker whose words are calls of tools, as JSON: an object with name and arguments, or a list of them; and OpenAI's older name of `tool_calls`."""
IN_TURNS = (
    'If the texts alternate between user and assistant: jq -c \'{{messages: [.{name} | to_entries[] | {{role: (if .key % 2 == 0 then "user" else "assistant" end), content: .value}}]}}\''
    " OLD > NEW.jsonl"
)
"""What to do about texts without speakers, as LIMA and UltraChat have them."""
LEARNED = ("train", "training", "loss")
"""What axolotl and ms-swift call a weight: false of an answer that is read and not learned."""


def text_of(name: str, value: object) -> str:
    if not isinstance(value, str):
        code: Any = "null" if value is None else "wrong-type"
        raise BadValue(0, code, f"{name!r} is {shown(value)}; it must be a string", name, jq.text_in(name, value))
    return value


def listed(value: object) -> Any:
    """The list that a text is as JSON, as tables of texts have it; else the value."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            return json.loads(value)
    return value


def _as_text(value: object) -> str:
    """What to do about a list that pandas wrote into a table of texts in Python's words."""
    if not (isinstance(value, str) and value.startswith("[{'")):
        return ""
    return "A .csv holds no lists: save them as JSON lines, by DataFrame.to_json('NEW.jsonl', orient='records', lines=True) or Dataset.to_json."


def messages_of(name: str, value: object) -> list[dict[str, Any]]:
    value = listed(value)
    if not isinstance(value, list) or not value:
        raise BadValue(0, "wrong-type", f"{name!r} is {shown(value)}; it must be a list of at least one message", name, _as_text(value))
    return [_message(name, number, part) for number, part in enumerate(value)]


def _message(name: str, number: int, part: object) -> dict[str, Any]:
    if isinstance(part, dict) and part.keys() == PLAIN and part["role"] in SPOKEN and isinstance(part["content"], str):
        return dict(part)  # as most are: what follows, which would leave it as it is, takes three times as long
    where = f"message {number + 1} of {name!r}"
    if not isinstance(part, Mapping):
        hint = IN_TURNS.format(name=name) if isinstance(part, str) else ""
        raise BadValue(0, "wrong-type", f"{where} is {shown(part)}; it must be an object", name, hint)
    message = {key: item for key, item in part.items() if item is not None}  # Arrow fills every message up with nulls
    if "role" not in message and "from" in message:
        message = _spoken(where, name, message)
    if not isinstance(message.get("role"), str):
        raise BadValue(0, "wrong-type", f"{where} has no role", name, "A message has role and content, or from and value.")
    if message["role"] not in NATIVE:
        message["role"] = ROLES.get(message["role"].lower(), message["role"])
    if message["role"] == "assistant":
        _weigh(where, name, message)
    if CALL in message:
        message["tool_calls"] = _calls(where, name, message.pop(CALL))
    if "tool_calls" in message:
        _call(where, name, message)
    if "content" not in message and isinstance(message.get("parts"), list):  # Gemini's, with the role model
        message["content"] = [{"type": "text", **part} if isinstance(part, Mapping) else part for part in message.pop("parts")]
    content = message.get("content")
    if isinstance(content, list):
        content = message["content"] = _joined(where, name, content)
    if content is None and message.get("tool_calls"):
        message.pop("content", None)
    elif not isinstance(content, str):
        code: Any = "null" if content is None else "wrong-type"
        raise BadValue(0, code, f"{where} has the content {shown(content)}; it must be a string", name)
    return message


def _spoken(where: str, name: str, message: dict[str, Any]) -> dict[str, Any]:
    """ShareGPT's message, from a speaker, as one of a role."""
    speaker = message.pop("from")
    message["content"] = message.pop("value", message.get("content"))
    if speaker == CALL:
        return {**message, "role": "assistant", "content": None, "tool_calls": _calls(where, name, message["content"])}
    if not isinstance(speaker, str) or speaker.lower() not in ROLES:
        known = ", ".join([*ROLES, CALL])
        raise BadValue(0, "wrong-type", f"{where} has the unknown speaker {shown(speaker)}", name, f"Known speakers: {known}.")
    return {"role": ROLES[speaker.lower()], **message}


def _weigh(where: str, name: str, message: dict[str, Any]) -> None:
    if "weight" not in message and any(message.get(key) in (False, 0) for key in LEARNED if key in message):
        message["weight"] = 0
    if message.get("weight", 1) not in (0, 1):
        raise BadValue(0, "wrong-type", f"{where} has the weight {shown(message['weight'])}", name, "Use 0 (not learned) or 1.")


def _call(where: str, name: str, message: dict[str, Any]) -> None:
    """Leave an empty list of calls out: Mistral's template asks whether there is one, and writes it in place of the words."""
    calls = listed(message["tool_calls"])
    if not calls and isinstance(calls, (list, str)):
        del message["tool_calls"]
    elif not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise BadValue(0, "wrong-type", f"{where} has the tool_calls {shown(calls)}; they must be a list of objects", name)
    else:
        message["tool_calls"] = calls


def _calls(where: str, name: str, value: object) -> list[dict[str, Any]]:
    """Calls of tools as chat templates want them, from an object or from JSON."""
    found: Any = value
    if isinstance(value, str):
        with suppress(ValueError):
            found = json.loads(value)
    calls: list[Any] = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) and "arguments" in call for call in calls):
        raise BadValue(0, "wrong-type", f"{where} is not a JSON call with name and arguments: {shown(value)}", name)
    return [{"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}} for call in calls]


def _joined(where: str, name: str, parts: Sequence[Any]) -> str:
    """The text of a content in parts."""
    texts = []
    for part in parts:
        text = part.get("text", part.get("value")) if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(text, str):
            raise BadValue(0, "wrong-type", f"{where} holds content other than text: {shown(part)}", name, "Only text is supported.")
        texts.append(text)
    return "".join(texts)
