"""Conversations rendered by a chat template once a form, and no longer once an example.

Templates are programs, but what they ask of a message's words is little: is "</think>" in them, are they empty, strip them. So a template is run once with
words that note what is asked of them and where they come out (`template_trace`). That gives literal text with places for words, and the conditions on which
it holds; every conversation of the same roles that meets them is put together from it. Where a template does more, each is rendered by itself.

What was put together is compared with what transformers renders: the first of a form, and every one whose number is a power of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from ftcli.core.reading.messages import PLAIN
from ftcli.core.targets import Span
from ftcli.core.tokenizer.template_trace import Skeleton, Trace, Unfollowed, followable, followed
from ftcli.errors import TokenizerError

TRACES = 16
"""Of conversations with the same roles, at most; whatever needs more is rendered: its words decide too much."""
ROLES = 4096
"""Sequences of roles whose forms are kept."""
Rendered = tuple[str, list[Span]]
"""A text, and the characters of it that are marked."""


@dataclass(slots=True)
class _Forms:
    """Of conversations with the same roles."""

    skeletons: list[Skeleton] = field(default_factory=list)
    traces: int = 0
    made: int = 0


class Renderer:
    """By one tokenizer's chat template, as its `apply_chat_template` does.

    Args:
        source: its chat template without tools.
    """

    def __init__(self, tokenizer: Any, source: str | None, *, asks_day: bool) -> None:
        self._tokenizer, self._source, self._asks_day = tokenizer, source, asks_day
        self._forms: dict[Any, _Forms] = {}
        self._template: Any = None
        self._follows = source is not None
        self.day: str | None = None
        """What the template is told of the date, where it asks; None: the clock's, which may change between two conversations."""

    def render(
        self, conversations: Sequence[Any], tools: Any, *, prompt: bool = False, marked: bool = False
    ) -> tuple[list[str], list[list[Span]]]:
        """
        Args:
            prompt: with what asks for an answer.
            marked: tell the characters in {% generation %}.

        Returns:
            The texts, and what is marked of each.

        Raises:
            TokenizerError: what was put together is not what transformers renders.
            Exception: whatever the template raises.
        """
        found = [None] * len(conversations) if tools else self._put_together(conversations, prompt, marked)
        rest = [conversation for conversation, each in zip(conversations, found, strict=True) if each is None]
        rendered = iter(self._apply(rest, tools, prompt, marked) if rest else ())
        whole = [next(rendered) if each is None else each for each in found]
        return [text for text, _ in whole], [marks for _, marks in whole]

    def _apply(self, conversations: Sequence[Any], tools: Any, prompt: bool, marked: bool) -> list[Rendered]:
        if not marked:
            texts = self._tokenizer.apply_chat_template(list(conversations), tools=tools, tokenize=False, add_generation_prompt=prompt)
            return [(text, []) for text in texts]
        from transformers.utils.chat_template_utils import render_jinja_template  # the half of apply_chat_template that knows characters

        chats = [[{key: value for key, value in message.items() if value is not None} for message in chat] for chat in conversations]
        rendered: Any = render_jinja_template(
            conversations=chats,
            tools=tools,
            chat_template=self._source,
            return_assistant_tokens_mask=True,
            **self._tokenizer.special_tokens_map,
        )
        return [*zip(*rendered, strict=True)]

    def _put_together(self, conversations: Sequence[Any], prompt: bool, marked: bool) -> list[Rendered | None]:
        """None for those that have to be rendered."""
        found: list[Rendered | None] = [None] * len(conversations)
        alike: dict[tuple[str, ...], list[int]] = {}
        for place, conversation in enumerate(conversations):
            if roles := plain_roles(conversation):
                alike.setdefault(roles, []).append(place)
        for roles, places in alike.items():
            key = (self.day, prompt, marked, *roles)
            forms = self._forms.get(key) or (self._forms.setdefault(key, _Forms()) if len(self._forms) < ROLES else None)
            if forms is not None and self._follows and not (self._asks_day and self.day is None):
                put = self._alike(forms, [conversations[place] for place in places], prompt, marked)
                for place, one in zip(places, put, strict=True):
                    found[place] = one
        return found

    def _alike(self, forms: _Forms, conversations: Sequence[Any], prompt: bool, marked: bool) -> list[Rendered | None]:
        """Conversations of the same roles: by the forms that are known of these, and by those that what is left has."""
        found: list[Rendered | None] = [None] * len(conversations)
        said = [[message["content"] for message in conversation] for conversation in conversations]
        rest = [*range(len(said))]

        def put(skeleton: Skeleton) -> None:
            met = [rest[row] for row in skeleton.met([said[place] for place in rest])]
            for place, one in zip(met, skeleton.filled([said[place] for place in met]), strict=True):
                found[place] = one
                forms.made += 1
                if forms.made & (forms.made - 1) == 0 and [one] != self._apply([conversations[place]], None, prompt, marked):
                    raise TokenizerError(
                        "the chat template renders a conversation otherwise than others of the same form",
                        "This is a defect of ftcli: please report it with the chat template.",
                    )
            rest[:] = [place for place in rest if found[place] is None] if len(met) < len(rest) else []

        for skeleton in forms.skeletons:
            put(skeleton)
        while rest and self._follows and forms.traces < TRACES:
            forms.traces += 1
            place = rest[0]
            traced = self._traced(conversations[place], said[place], prompt, marked)
            if traced is None:
                rest.remove(place)
            elif not traced.met([said[place]]) or traced.filled([said[place]]) != self._apply([conversations[place]], None, prompt, marked):
                self._follows = False  # a tokenizer that renders in its own way
            else:
                forms.skeletons.append(traced)
                put(traced)
        return found

    def _traced(self, conversation: Any, said: Sequence[str], prompt: bool, marked: bool) -> Skeleton | None:
        if self._template is None:
            self._template = followable(self._source or "")
            self._follows = self._template is not None
        if not self._follows:
            return None
        trace, environment = Trace(said), self._template.environment
        messages = [{"role": message["role"], "content": trace.new(("said", number))} for number, message in enumerate(conversation)]
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": prompt}
        blocks: list[str] = []
        marks: list[Span] = []
        try:
            with followed(environment, trace), environment.activate_tracker(blocks, marks) if marked else nullcontext():
                for block in self._template.generate(**given, **self._tokenizer.special_tokens_map):
                    blocks.append(block)  # noqa: PERF402 - while they come, the tracker counts them
            return trace.skeleton("".join(blocks), marks)
        except Unfollowed:
            return None
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like, and will again when the conversation is rendered
            return None


def plain_roles(conversation: Any) -> tuple[str, ...]:
    """Who speaks, message by message; nobody where a message is more than a role and words."""
    roles = [
        message["role"]
        for message in conversation
        if type(message) is dict and message.keys() == PLAIN and type(message["role"]) is str and type(message["content"]) is str
    ]
    return tuple(roles) if len(roles) == len(conversation) else ()
