"""Conversations as they stand in sources: which shape a row has, and the row as one JSON text that the rest of the pipeline carries.

Known shapes, told row by row from its columns:

    messages            `messages`: objects with role and content
    sharegpt            `conversations` (or `conversation`): objects with from and value
    prompt-completion   `prompt` and `completion`: two texts, or two lists of messages
    alpaca              `instruction` and `output` (or `response`), with or without `input` (or `context`), and `history`, pairs of texts;
                        or, as in Self-Instruct, `instruction` and `instances`: one object with `output` and `input`

`system` goes before what is said, `tools` to the chat template. An assistant's message of `weight` 0 is not learned.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ftcli.contracts import Columns
from ftcli.core.reading.columns import BadValue, shown
from ftcli.errors import DataError, UsageError
from ftcli.settings import Settings, update

MODE = "sft"
RULES = 4
"""Raised when the same rows would become other conversations: in 2 Dolly's context, Alpaca's history and weights of 0 are minded, in 3
Self-Instruct's instances, Gemini's parts and what `system` says beside messages, in 4 a developer may be the system."""
NAMES = (
    "messages",
    "conversations",
    "conversation",
    "prompt",
    "completion",
    "instruction",
    "input",
    "context",
    "output",
    "response",
    "instances",
    "history",
    "system",
    "tools",
)
READ = {
    "messages": (),
    "sharegpt": ("conversations", "conversation"),
    "prompt-completion": ("prompt", "completion"),
    "alpaca": ("instruction", "input", "context", "output", "response", "instances", "history"),
}
"""Shape → what it reads beside the messages' column, `system` and `tools`."""
INSTEAD = (("input", "context"), ("output", "response"))
"""Of two columns that say the same, the first is read."""
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
CALL = "function_call"
"""The speaker whose words are calls of tools, as JSON: an object with name and arguments, or a list of them."""
ASKED = ("question", "query", "input", "prompt", "problem", "instruction")
ANSWERED = ("answer", "response", "output", "completion", "solution", "chosen")
"""Names that many data sets give to what is asked and answered, for a hint."""
TEXT, CHAT = "text", "chat"
"""Kinds of documents: plain prompt and completion, or messages for a chat template."""


def columns_of(settings: Settings) -> Columns:
    """What a run with these settings reads: a text and perhaps a label, or the columns of conversations."""
    dataset = settings.dataset
    if settings.train.mode != MODE:
        return Columns(dataset.text_column, dataset.label_column, pair=dataset.text_pair_column, flags=tuple(dataset.label_columns or ()))
    return chat_columns(settings)


def chat_columns(settings: Settings) -> Columns:
    """The columns of conversations under the data's names.

    Raises:
        UsageError: `dataset.rename_columns` names no known column, or one twice.
    """
    dataset = settings.dataset
    own = () if dataset.text_column == "text" else (dataset.text_column,)
    known = (*own, *(name for name in NAMES if name not in own))
    renamed: dict[str, str] = {}
    for pair in dataset.rename_columns or ():
        ours, _, theirs = (part.strip() for part in pair.partition("="))
        if ours not in known or not theirs or theirs in renamed or ours in renamed.values():
            what = "is there twice" if ours in renamed.values() or theirs in renamed else "is not KNOWN=COLUMN"
            raise UsageError(
                f"dataset.rename_columns: {pair!r} {what}", f"Known are {', '.join(known)}: --rename instruction=question,output=answer"
            )
        renamed[theirs] = ours
    names = dict.fromkeys((*renamed, *(name for name in known if name not in renamed.values())))
    return Columns(own[0] if own else "messages", chat=tuple(names), renamed=tuple(renamed.items()))


def as_prepared(settings: Settings, inputs: Mapping[str, Any]) -> Settings:
    """The settings, with what a manifest's inputs say of how conversations were read."""
    if inputs.get("train.mode") != MODE:
        return settings
    renamed = [f"{ours}={theirs}" for theirs, ours in inputs.get("dataset.rename_columns") or ()]
    return update(settings, {"train.mode": MODE, "dataset.text_column": inputs["dataset.text_column"], "dataset.rename_columns": renamed})


def present(columns: Columns, names: Sequence[str], where: str) -> tuple[str, ...]:
    """The columns of conversations that a table has.

    Raises:
        DataError: they make no known shape.
    """
    found, renamed = tuple(name for name in columns.chat or () if name in names), dict(columns.renamed)
    try:
        _shape({renamed.get(name, name): "" for name in found}, columns, names, where)
    except BadValue as bad:
        raise DataError(bad.reason, bad.hint) from None
    return found


def unread_note(columns: Columns, names: Iterable[str], shapes: Collection[str]) -> str | None:
    """What to say of columns with something in them (`names`) that conversations of these shapes do not read."""
    renamed = dict(columns.renamed)
    known = {renamed.get(name, name): name for name in names}
    read = {name for shape in shapes for name in (columns.text, "system", "tools", *READ[shape])}
    read -= {second for first, second in INSTEAD if first in known}
    unread = [name for ours, name in known.items() if ours not in read]
    if not unread:
        return None
    shown = ", ".join(unread[:10]) + (f" and {len(unread) - 10} more" if len(unread) > 10 else "")
    way = f"is given as --rename input={unread[0] if len(unread) == 1 else 'COLUMN'}" if "alpaca" in shapes else "has to stand in it"
    preferences = ". Data for preferences (DPO) are not trained here" if {"chosen", "rejected"} <= set(unread) else ""
    return f"columns not read: {shown}; what belongs to the conversation {way}{preferences}"


def as_document(row: Mapping[str, Any], columns: Columns) -> str:
    """The conversation of a row as JSON: {"shape", "kind", "messages" | "prompt" and "completion", "tools"?}; raises BadValue (index 0)."""
    renamed = dict(columns.renamed)
    given = {renamed.get(name, name): row[name] for name in columns.chat or () if row.get(name) is not None}
    shape = _shape(given, columns, list(row))
    try:
        return _document(shape, given, columns)
    except BadValue as bad:
        for theirs, ours in columns.renamed:
            if bad.field == ours:
                raise BadValue(bad.index, bad.code, bad.reason.replace(repr(ours), repr(theirs)), theirs, bad.hint) from None
        raise


def said(document: str) -> list[str]:
    """What is said in a document, by whomever."""
    row = json.loads(document)
    if row["kind"] == TEXT:
        return [text for text in (row["prompt"], row["completion"]) if text]
    return [message["content"] for message in row.get("messages") or [*row["prompt"], *row["completion"]] if message.get("content")]


def _document(shape: str, row: Mapping[str, Any], columns: Columns) -> str:
    if shape == "messages":
        document: dict[str, Any] = {"kind": CHAT, "messages": _with_system(row, _messages(columns.text, row[columns.text]))}
    elif shape == "sharegpt":
        name = "conversations" if row.get("conversations") is not None else "conversation"
        document = {"kind": CHAT, "messages": _with_system(row, _messages(name, row[name]))}
    elif shape == "alpaca":
        if "output" not in row and "response" not in row:
            row = {**row, **_instance(row["instances"])}
        answer = "response" if row.get("output") is None and "response" in row else "output"
        asked = _text("instruction", row["instruction"])
        given = "input" if row.get("input") is not None else "context"
        more = _text(given, row[given]) if row.get(given) is not None else ""
        document = {
            "kind": CHAT,
            "prompt": [*_system(row), *_history(row), {"role": "user", "content": f"{asked}\n\n{more}" if more.strip() else asked}],
            "completion": [{"role": "assistant", "content": _text(answer, row[answer])}],
        }
    else:
        document = _pair(row)
    tools = row.get("tools")
    if isinstance(tools, str) and tools.strip():  # several data sets keep them as JSON, since Arrow wants one type
        try:
            tools = json.loads(tools)
        except ValueError:
            raise BadValue(0, "wrong-type", f"'tools' is {shown(tools)}, which is no JSON", "tools") from None
    if tools:
        document["tools"] = tools
    try:
        text = json.dumps({"shape": shape, **document}, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError as error:
        reason = f"the conversation holds the lone surrogate U+{ord(error.object[error.start]):04X}, which no UTF-8 text can"
        raise BadValue(0, "surrogate", reason, columns.text) from None
    except (TypeError, ValueError) as error:
        raise BadValue(0, "wrong-type", f"the conversation holds what JSON cannot: {error}", columns.text) from None
    return text


def _shape(given: Mapping[str, Any], columns: Columns, names: Sequence[str], where: str = "") -> str:
    if columns.text in given:
        return "messages"
    if "conversations" in given or "conversation" in given:
        return "sharegpt"
    if "prompt" in given and "completion" in given:
        return "prompt-completion"
    if "instruction" in given and {"output", "response", "instances"} & given.keys():
        return "alpaca"
    listed = ", ".join(map(str, names[:20])) or "none"
    asked, answered = ([name for name in likely if name in names] for likely in (ASKED, ANSWERED))
    example = "instruction=question,output=answer"
    if isinstance(given.get("prompt"), list) and len(answered) == 1:  # messages, as TRL's preferences have them
        example = f"completion={answered[0]}"
    elif len(asked) == len(answered) == 1:
        example = f"instruction={asked[0]},output={answered[0]}" + (",system=system_prompt" if "system_prompt" in names else "")
    raise BadValue(
        0,
        "missing-field",
        f"{where}{': ' if where else ''}no conversation: neither {columns.text}, conversations, prompt with completion, nor instruction with output",
        None,
        f"Columns with a value: {listed}. Another name for the messages is given with --text-column, for others with --rename {example}.",
    )


def _pair(row: Mapping[str, Any]) -> dict[str, Any]:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        if row.get("system"):
            hint = "--rename instruction=prompt,output=completion reads the row as a question and an answer, through the chat template."
            raise BadValue(0, "wrong-type", "a plain prompt has no place for what 'system' says", "system", hint)
        return {"kind": TEXT, "prompt": prompt, "completion": completion}
    if isinstance(prompt, str) or isinstance(completion, str):
        which = "prompt" if isinstance(prompt, str) else "completion"
        raise BadValue(0, "wrong-type", f"{which!r} is a string and the other a list; both must be one or the other", which)
    return {"kind": CHAT, "prompt": _with_system(row, _messages("prompt", prompt)), "completion": _messages("completion", completion)}


def _system(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    said = row.get("system")
    return [{"role": "system", "content": _text("system", said)}] if said else []


def _instance(instances: object) -> Mapping[str, Any]:
    """Input and output of the one example that a Self-Instruct row gives for its instruction."""
    if not isinstance(instances, list) or not all(isinstance(each, Mapping) for each in instances):
        raise BadValue(0, "wrong-type", f"'instances' is {shown(instances)}; it must be a list with one object", "instances")
    if len(instances) != 1:
        hint = "A row is one conversation: write a row with instruction, input and output for each."
        raise BadValue(0, "wrong-type", f"'instances' holds {len(instances)} examples, not one", "instances", hint)
    return {"input": instances[0].get("input"), "output": instances[0].get("output")}


def _with_system(row: Mapping[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages behind what `system` says, which they may begin with themselves."""
    first = _system(row)
    if first and messages[0]["role"] == "system":
        if messages[0].get("content") != first[0]["content"]:
            raise BadValue(0, "wrong-type", "'system' says something else than the first message", "system", "Leave one of them out.")
        return messages
    return [*first, *messages]


def _history(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Earlier turns, as pairs of what was asked and answered."""
    history = row.get("history") or []
    if not isinstance(history, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in history):
        raise BadValue(0, "wrong-type", f"'history' is {shown(history)}; it must be a list of pairs of texts", "history")
    return [
        {"role": role, "content": _text("history", words)}
        for turn in history
        for role, words in zip(("user", "assistant"), turn, strict=True)
    ]


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadValue(0, "null" if value is None else "wrong-type", f"{name!r} is {shown(value)}; it must be a string", name)
    return value


def _messages(name: str, value: object) -> list[dict[str, Any]]:
    if isinstance(value, str) and value.lstrip().startswith("["):  # in a table of texts, as JSON
        with suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, list) or not value:
        raise BadValue(0, "wrong-type", f"{name!r} is {shown(value)}; it must be a list of messages with one at least", name)
    return [_message(name, number, part) for number, part in enumerate(value)]


def _message(name: str, number: int, part: object) -> dict[str, Any]:
    where = f"message {number + 1} of {name!r}"
    if not isinstance(part, Mapping):
        raise BadValue(0, "wrong-type", f"{where} is {shown(part)}; it must be an object", name)
    message = {key: item for key, item in part.items() if item is not None}  # Arrow fills every message up with nulls
    if "role" not in message and "from" in message:
        speaker = message.pop("from")
        if speaker == CALL:
            return {"role": "assistant", "tool_calls": _calls(where, name, message.get("value"))}
        if not isinstance(speaker, str) or speaker not in ROLES:
            known = ", ".join([*ROLES, CALL])
            raise BadValue(0, "wrong-type", f"{where} is from {shown(speaker)}", name, f"Speakers known: {known}.")
        message = {"role": ROLES[speaker], **message}
        message["content"] = message.pop("value", message.get("content"))
    if not isinstance(message.get("role"), str):
        raise BadValue(0, "wrong-type", f"{where} has no role", name, "A message has role and content, or from and value.")
    if message["role"] == "assistant" and message.get("weight", 1) not in (0, 1):
        raise BadValue(0, "wrong-type", f"{where} has the weight {shown(message['weight'])}", name, "0 (not learned) and 1 are known.")
    if "content" not in message and isinstance(message.get("parts"), list):  # Gemini's, with the role model
        message["content"] = [{"type": "text", **part} if isinstance(part, Mapping) else part for part in message.pop("parts")]
        message["role"] = ROLES.get(message["role"], message["role"])
    content = message.get("content")
    if isinstance(content, list):
        content = message["content"] = _joined(where, name, content)
    if content is None and message.get("tool_calls"):
        message.pop("content", None)
    elif not isinstance(content, str):
        code: Any = "null" if content is None else "wrong-type"
        raise BadValue(0, code, f"{where} has as its content {shown(content)}; it must be a string", name)
    return message


def _calls(where: str, name: str, value: object) -> list[dict[str, Any]]:
    """Calls of tools as chat templates want them, from JSON."""
    try:
        found: Any = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        found = None
    calls: list[Any] = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call for call in calls):
        raise BadValue(0, "wrong-type", f"{where} is no JSON of a call with name and arguments: {shown(value)}", name)
    return [{"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}} for call in calls]


def _joined(where: str, name: str, parts: Sequence[Any]) -> str:
    """The text of a content in parts."""
    texts = []
    for part in parts:
        text = part.get("text", part.get("value")) if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(text, str):
            raise BadValue(
                0, "wrong-type", f"{where} holds something else than text: {shown(part)}", name, "Only text can be trained here."
            )
        texts.append(text)
    return "".join(texts)
