"""What a chat template does with calls of tools, and whom it does not show: found once, by conversations of our own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ftcli.core.reading.messages import PLAIN

Message = dict[str, Any]
Whole = Callable[[list[Any], Any], str]
"""(messages, tools) → text; raises whatever the template raises."""
ANSWERS = ("Qx7", "Zv2 kw")
"""Words that no template holds."""
ASIDE = "Jk3"
"""More of them."""
CONTENTS: tuple[Message, ...] = ({}, {"content": ""})
ARGUMENTS: dict[str, Any] = {"object": {"a": 1}, "string": '{"a": 1}'}
REPR = "{'a': 1}"
"""What a template makes of the object that writes it as Python does, which nothing reads as JSON."""
CALLS = "calls of tools"
BESIDE = "calls of tools that stand beside words"
WORDS = "words that stand beside calls of tools (or puts them behind the tools' answers)"
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys under which data sets keep what an assistant thinks before it speaks."""
SYSTEM, DEVELOPER = "system", "developer"
SHOWN = frozenset({"user", "assistant"})
"""Who is shown by every template that passes its proof."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a template takes calls of tools."""

    wordless: Message
    """What stands in a message that calls and says nothing: no content, or an empty one. Transformers takes null out."""
    objects: bool
    """Arguments may be objects; else JSON in a string."""
    strings: bool
    """They may be JSON in a string; else the template refuses it, quotes it once more (Qwen2.5's), so that a model would learn to quote its
    arguments, which nothing then reads, or writes it otherwise than the object (Gemma 4's)."""


class Habits:
    """Args:
    whole: renders a conversation.
    """

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self._form: Form | None = None
        self._hidden: dict[str, bool] = {}

    def suited(self, messages: list[Any]) -> list[Any]:
        """The messages, those that call tools in the form that the template takes, and a developer's as the system's where it knows only that."""
        if self.renames(messages):
            messages = [{**message, "role": SYSTEM} if message.get("role") == DEVELOPER else message for message in messages]
        if not any(isinstance(message.get("tool_calls"), list) for message in messages):
            return messages
        form = self.form
        return [
            {**form.wordless, **message, "tool_calls": [_formed(call, form) for call in message["tool_calls"]]}
            if isinstance(message.get("tool_calls"), list)
            else message
            for message in messages
        ]

    def renames(self, messages: Sequence[Any]) -> bool:
        """Whether what a developer says is given to the template as the system's: OpenAI's newer name of the same part, which most templates do not know."""
        roles = {message.get("role") for message in messages}
        return DEVELOPER in roles and SYSTEM not in roles and self._developer_unknown

    @cached_property
    def _developer_unknown(self) -> bool:
        """Whether the template shows what the system says, and not, or by an error, what a developer does."""
        shown = [len({self._tried(_saying(role, words)) for words in ANSWERS} - {None}) == len(ANSWERS) for role in (DEVELOPER, SYSTEM)]
        return shown == [False, True]

    def hidden(self, messages: Sequence[Message]) -> str:
        """What of the conversation the template does not show at all, in words; "" where there is nothing of the kind."""
        more = [message for message in messages if message["role"] not in SHOWN or not message.keys() <= PLAIN]
        kinds = dict.fromkeys(message["role"] for message in more if message["role"] not in SHOWN)
        for message in more:
            if message.get("tool_calls"):
                kinds |= dict.fromkeys([BESIDE, WORDS] if message.get("content") else [CALLS])
        kinds |= dict.fromkeys(key for message in more if message["role"] == "assistant" for key in THOUGHTS if message.get(key))
        for kind in kinds:
            if kind not in self._hidden:
                self._hidden[kind] = self._hides(kind)
            if self._hidden[kind]:
                return (
                    kind if kind in {CALLS, BESIDE, WORDS} else f"the {kind!r} of messages" if kind in THOUGHTS else f"what {kind!r} says"
                )
        return ""

    def hides_tools(self) -> bool:
        """Whether the template says nothing of the tools that a conversation is offered."""
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        tool = {
            "type": "function",
            "function": {"name": ANSWERS[0], "description": "?", "parameters": {"type": "object", "properties": {}}},
        }
        without, offered = (self._tried(chat, tools) for tools in (None, [tool]))
        return without is not None and without == offered

    def _hides(self, kind: str) -> bool:
        """Whether other words change nothing; False where the template refuses them, which it says itself."""
        texts = []
        for words in ANSWERS:
            if kind in {CALLS, BESIDE}:
                chat = _calling(words, self._arguments, "?", {"content": "!"} if kind == BESIDE else self.form.wordless)
            elif kind == WORDS:
                chat = _calling("f", self._arguments, ASIDE, {"content": words})
            elif kind == "tool":
                chat = _calling(ANSWERS[0], self._arguments, words, self.form.wordless)
            elif kind in THOUGHTS:
                chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!", kind: words}]
            else:
                chat = _saying(kind, words)
            texts.append(self._tried(chat))
        if (
            kind == WORDS and (text := texts[0]) is not None
        ):  # Gemma 4's templates write them behind the tool's answer, as a part of the same turn
            return texts[0] == texts[1] or text.find(ASIDE) < text.find(ANSWERS[0])
        return None not in texts and texts[0] == texts[1]

    @property
    def form(self) -> Form:
        """The first in which a call is shown; the first that is rendered where none is."""
        if self._form is None:
            tried = {
                (place, kind): text
                for place, content in enumerate(CONTENTS)
                for kind, arguments in ARGUMENTS.items()
                if (text := self._tried(_calling(ANSWERS[0], arguments, "?", content))) is not None
            }
            shown = [key for key, text in tried.items() if ANSWERS[0] in text] or [*tried]
            place = shown[0][0] if shown else 0
            string = tried.get((place, "string"))
            given = tried.get((place, "object"))
            printed = given is not None and REPR in given
            same = string is not None and '\\"' not in string and (given in (None, string) or printed)
            self._form = Form(CONTENTS[place], string is None or (given is not None and not printed), same)
        return self._form

    @property
    def _arguments(self) -> Any:
        return ARGUMENTS["object" if self.form.objects else "string"]

    def _tried(self, messages: list[Message], tools: Any = None) -> str | None:
        try:
            return self._whole(messages, tools)
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like
            return None


def _saying(role: str, words: str) -> list[Message]:
    """A conversation in which somebody else says something, first where that is the place for it."""
    said = [{"role": role, "content": words}, {"role": "user", "content": "?"}]
    return [*(said if role in {SYSTEM, DEVELOPER} else said[::-1]), {"role": "assistant", "content": "!"}]


def _calling(name: str, arguments: Any, answer: str, content: Message) -> list[Message]:
    """A conversation in which a tool is called and answers; the identifier is one that Mistral's templates take."""
    call = {"type": "function", "id": "a1b2c3d4e", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "user", "content": "?"},
        {"role": "assistant", **content, "tool_calls": [call]},
        {"role": "tool", "name": name, "tool_call_id": "a1b2c3d4e", "content": answer},
        {"role": "assistant", "content": "!"},
    ]


def _formed(call: Any, form: Form) -> Any:
    """A call with its arguments as the form wants them; as it is, where they cannot be."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or "arguments" not in function:
        return call
    arguments = function["arguments"]
    if isinstance(arguments, str) and not form.strings:
        try:
            found = json.loads(arguments)
        except ValueError:
            return call
        arguments = found if isinstance(found, dict) else arguments
    elif isinstance(arguments, dict) and not form.objects:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
