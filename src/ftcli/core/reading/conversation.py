"""Conversations as they stand in sources: which shape a row has, and the row as one JSON text that the rest of the pipeline carries.

Known shapes, told row by row from its columns:

    messages            `messages`: objects with role and content
    sharegpt            `conversations` (or `conversation`): objects with from and value
    prompt-completion   `prompt` and `completion`: two texts, or two lists of messages (in tables of texts as JSON)
    alpaca              `instruction` and `output` (or `response`), with or without `input` (or `context`), and `history`, pairs of texts;
                        or, as in Self-Instruct, `instruction` and `instances`: one object with `output` and `input`

`system` goes before what is said, `tools` to the chat template. An assistant's message of `weight` 0 is not learned.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ftcli.contracts import Columns
from ftcli.core.reading import jq
from ftcli.core.reading.columns import BadValue, shown
from ftcli.core.reading.messages import listed, messages_of, text_of
from ftcli.errors import DataError, UsageError
from ftcli.settings import Settings, update

MODE = "sft"
RULES = 7
"""Raised when the same rows would become other conversations: in 2 Dolly's context, Alpaca's history and weights of 0 are minded, in 3
Self-Instruct's instances, Gemini's parts and what `system` says beside messages, in 4 a developer may be the system, in 5 prompt and completion may be lists as JSON, in
6 OpenAI's function_call, empty lists of calls, roles by other names, answers that are not trained and those of no words are minded, in 7 no
EOS is added behind one that the tokenizer leaves at the end, and BPE dropout draws no borders."""
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
ASKED = ("question", "query", "input", "prompt", "problem", "instruction")
ANSWERED = ("answer", "response", "output", "completion", "solution", "chosen")
"""Names that many data sets give to what is asked and answered, for a hint."""
OTHERWISE = {
    frozenset(
        {"chosen", "rejected"}
    ): "This is preference data (DPO), which ftcli does not train on. If chosen is a list of messages, train on it with "
    "--text-column chosen; if it is one text, write its turns as messages first.",
    frozenset(
        {"parent_id", "role", "text"}
    ): "Each row is one message of a tree: write each path from the root to a leaf as one row of messages.",
    frozenset({"title", "paragraphs"}): jq.SQUAD,
}
"""Columns of data that hold no conversation a row → what to do."""
ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Writes what pydantic's does."""
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
            what = "repeats a name" if ours in renamed.values() or theirs in renamed else "is not KNOWN=COLUMN"
            raise UsageError(
                f"dataset.rename_columns: {pair!r} {what}",
                f"Known names: {', '.join(known)}. Example: --rename instruction=question,output=answer",
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


def present(columns: Columns, names: Sequence[str], where: str, lists: Collection[str] = ()) -> tuple[str, ...]:
    """The columns of conversations that a table has.

    Args:
        lists: those that are known to hold lists.

    Raises:
        DataError: they make no known shape.
    """
    found, renamed = tuple(name for name in columns.chat or () if name in names), dict(columns.renamed)
    try:
        row: dict[str, Any] = {name: [] if name in lists else "" for name in names}
        _shape({renamed.get(name, name): row[name] for name in found}, columns, row, where)
    except BadValue as bad:
        raise DataError(bad.reason, bad.hint) from None
    return found


def unread_note(columns: Columns, names: Iterable[str], shapes: Collection[str]) -> str | None:
    """What to say of columns with something in them (`names`) that conversations of these shapes do not read. One without a name is pandas' index."""
    renamed = dict(columns.renamed)
    known = {renamed.get(name, name): name for name in names if name}
    read = {name for shape in shapes for name in (columns.text, "system", "tools", *READ[shape])}
    read -= {second for first, second in INSTEAD if first in known}
    unread = [name for ours, name in known.items() if ours not in read]
    if not unread:
        return None
    shown = ", ".join(unread[:10]) + (f" and {len(unread) - 10} more" if len(unread) > 10 else "")
    free = "alpaca" in shapes and not {"input", "context"} & known.keys()
    way = (
        f"If one is part of the conversation: --rename input={unread[0] if len(unread) == 1 else 'COLUMN'}"
        if free
        else "Anything that is part of the conversation must be in its messages"
    )
    preferences = ". ftcli does not train on preference data (DPO)" if {"chosen", "rejected"} <= set(unread) else ""
    return f"columns not read: {shown}. {way}{preferences}"


def as_document(row: Mapping[str, Any], columns: Columns) -> str:
    """The conversation of a row as JSON: {"shape", "kind", "messages" | "prompt" and "completion", "tools"?}; raises BadValue (index 0)."""
    document = conversation_in(row, columns)
    try:
        text = ENCODER.encode(document)
        text.encode()
    except UnicodeEncodeError as error:
        reason = f"the conversation holds the lone surrogate U+{ord(error.object[error.start]):04X}, which no UTF-8 text can"
        raise BadValue(0, "surrogate", reason, columns.text) from None
    except (TypeError, ValueError) as error:
        raise BadValue(0, "wrong-type", f"the conversation holds a value that JSON cannot represent: {error}", columns.text) from None
    return text


def conversation_in(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """What `as_document` writes."""
    given = {name: row[name] for name in columns.chat or () if name in row and row[name] is not None}
    if columns.renamed:
        renamed = dict(columns.renamed)
        given = {renamed.get(name, name): value for name, value in given.items()}
    shape = _shape(given, columns, row)
    try:
        return {"shape": shape, **_document(shape, given, columns)}
    except BadValue as bad:
        for theirs, ours in columns.renamed:
            if bad.field == ours:
                hint = jq.text_in(theirs, row[theirs]) if bad.hint == jq.text_in(ours, row[theirs]) else bad.hint
                raise BadValue(bad.index, bad.code, bad.reason.replace(repr(ours), repr(theirs)), theirs, hint) from None
        raise


def said(document: str) -> list[str]:
    """What is said in a document, by whomever."""
    row = json.loads(document)
    if row["kind"] == TEXT:
        return [text for text in (row["prompt"], row["completion"]) if text]
    return [message["content"] for message in row.get("messages") or [*row["prompt"], *row["completion"]] if message.get("content")]


def _document(shape: str, row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    if shape == "messages":
        document: dict[str, Any] = {"kind": CHAT, "messages": _with_system(row, messages_of(columns.text, row[columns.text]))}
    elif shape == "sharegpt":
        name = "conversations" if row.get("conversations") is not None else "conversation"
        document = {"kind": CHAT, "messages": _with_system(row, messages_of(name, row[name]))}
    elif shape == "alpaca":
        if "output" not in row and "response" not in row:
            row = {**row, **_instance(row["instances"])}
        answer = "response" if row.get("output") is None and "response" in row else "output"
        asked = text_of("instruction", row["instruction"])
        given = "input" if row.get("input") is not None else "context"
        more = text_of(given, row[given]) if row.get(given) is not None else ""
        document = {
            "kind": CHAT,
            "prompt": [*_system(row), *_history(row), {"role": "user", "content": f"{asked}\n\n{more}" if more.strip() else asked}],
            "completion": [{"role": "assistant", "content": text_of(answer, row[answer])}],
        }
    else:
        document = _pair(row)
    tools = row.get("tools")
    if isinstance(tools, str) and tools.strip():  # several data sets keep them as JSON, since Arrow wants one type
        try:
            tools = json.loads(tools)
        except ValueError:
            raise BadValue(0, "wrong-type", f"'tools' is {shown(tools)}, which is not JSON", "tools") from None
    if tools:
        document["tools"] = tools
    return document


def _shape(given: Mapping[str, Any], columns: Columns, row: Mapping[str, Any], where: str = "") -> str:
    if columns.text in given:
        return "messages"
    if "conversations" in given or "conversation" in given:
        return "sharegpt"
    if "prompt" in given and "completion" in given:
        return "prompt-completion"
    if "instruction" in given and {"output", "response", "instances"} & given.keys():
        return "alpaca"
    listed = ", ".join(map(str, [*row][:20])) or "none"
    asked, answered = ([name for name in likely if name in row] for likely in (ASKED, ANSWERED))
    answered = answered or [name for name in ("answers",) if name in row]
    spoken = isinstance(row.get("chosen"), list) and not isinstance(given.get("prompt"), list)
    other = next((way for kind, way in OTHERWISE.items() if kind <= row.keys()), "") if spoken or not asked else ""
    example = "instruction=question,output=answer"
    if isinstance(given.get("prompt"), list) and len(answered) == 1:  # messages, as TRL's preferences have them
        example = f"completion={answered[0]}"
    elif len(asked) == len(answered) == 1:
        example = f"instruction={asked[0]},output={answered[0]}" + (",system=system_prompt" if "system_prompt" in row else "")
    plain = " To train on the plain texts in text: --mode pretrain." if isinstance(row.get("text"), str) else ""
    raise BadValue(
        0,
        "missing-field",
        f"{where}{': ' if where else ''}no conversation found: expected {columns.text}, conversations, prompt and completion, or instruction and output",
        None,
        other
        or f"Columns with a value: {listed}. If the messages have another name, give it with --text-column; for other names: --rename {example}.{plain}",
    )


def _pair(row: Mapping[str, Any]) -> dict[str, Any]:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str) and not _is_chat(prompt) and not _is_chat(completion):
        if row.get("system"):
            hint = "To read the row as a question and an answer through the chat template: --rename instruction=prompt,output=completion"
            raise BadValue(0, "wrong-type", "a plain-text prompt cannot be combined with 'system'", "system", hint)
        return {"kind": TEXT, "prompt": prompt, "completion": completion}
    asked = _side("prompt", "user", prompt)
    return {"kind": CHAT, "prompt": _with_system(row, asked), "completion": _side("completion", "assistant", completion)}


def _is_chat(side: str) -> bool:
    """Whether a text is a list of messages as JSON, as tables of texts have it."""
    found = listed(side)
    return isinstance(found, list) and bool(found) and all(isinstance(part, Mapping) and {"role", "from"} & part.keys() for part in found)


def _side(name: str, role: str, value: object) -> list[dict[str, Any]]:
    """Messages, of which a text beside messages is one."""
    if isinstance(value, str) and not _is_chat(value):
        return [{"role": role, "content": value}]
    return messages_of(name, value)


def _system(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    said = row.get("system")
    return [{"role": "system", "content": text_of("system", said)}] if said else []


def _instance(instances: object) -> Mapping[str, Any]:
    """Input and output of the one example that a Self-Instruct row gives for its instruction."""
    if not isinstance(instances, list) or not all(isinstance(each, Mapping) for each in instances):
        raise BadValue(0, "wrong-type", f"'instances' is {shown(instances)}; it must be a list with one object", "instances")
    if len(instances) != 1:
        hint = "Each row is one conversation: write one row with instruction, input and output per example."
        raise BadValue(0, "wrong-type", f"'instances' holds {len(instances)} examples, not one", "instances", hint)
    return {"input": instances[0].get("input"), "output": instances[0].get("output")}


def _with_system(row: Mapping[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages behind what `system` says, which they may begin with themselves."""
    first = _system(row)
    if first and messages[0]["role"] == "system":
        if messages[0].get("content") != first[0]["content"]:
            raise BadValue(0, "wrong-type", "'system' differs from the system message in the conversation", "system", "Remove one of them.")
        return messages
    return [*first, *messages]


def _history(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Earlier turns, as pairs of what was asked and answered."""
    history = row.get("history") or []
    if not isinstance(history, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in history):
        raise BadValue(0, "wrong-type", f"'history' is {shown(history)}; it must be a list of pairs of texts", "history")
    return [
        {"role": role, "content": text_of("history", words)}
        for turn in history
        for role, words in zip(("user", "assistant"), turn, strict=True)
    ]
