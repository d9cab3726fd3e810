"""Conversations → texts and the characters that are learned, by the tokenizer's own chat template, once an example and in whole batches.

Which characters the assistant says is known from the template's {% generation %} where it has it. Elsewhere the prompt before each answer
is rendered as well: the answer begins where the prompt ends, and ends with the end of its turn, which is the same text after every answer.
`ftcli.core.tokenizer.template_proof` holds either way against transformers, or against other answers, before a row is written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pydantic_core import from_json

from ftcli.core.reading.columns import BadValue
from ftcli.core.reading.conversation import TEXT
from ftcli.core.targets import Span
from ftcli.core.tokenizer import template_date
from ftcli.core.tokenizer.template_answers import Answers, left_out, says, weight_of
from ftcli.core.tokenizer.template_habits import DEVELOPER, SHOWN, Habits
from ftcli.core.tokenizer.template_skeletons import Renderer, plain_roles
from ftcli.errors import TokenizerError

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(slots=True)
class Rendered:
    """A batch. A row in `faults` has an empty text."""

    texts: list[str]
    spans: list[tuple[Span, ...]]
    bare: list[int] = field(default_factory=list)
    """Rows without a template, before which the tokenizer's own beginning (BOS) stands."""
    shapes: list[str] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)
    """Why a row cannot be rendered, in words."""


class Template:
    """Args:
    name: of the tokenizer, for messages.
    assistant_only: learn what the assistant says of `messages`; None: yes.
    completion_only: learn the completion of prompt and completion; None: yes.
    add_eos: end a plain completion with EOS; None: yes, if there is one.
    day: what a template writes that asks for today's date; None: whatever the clock says.
    """

    def __init__(
        self,
        tokenizer: Any,
        name: str,
        *,
        assistant_only: bool | None,
        completion_only: bool | None,
        add_eos: bool | None,
        day: str | None = None,
    ) -> None:
        self._tokenizer, self.name = tokenizer, name
        self.assistant_only, self._completion_only = assistant_only is not False, completion_only is not False
        self._eos = tokenizer.eos_token if add_eos is not False and tokenizer.eos_token else ""
        self._bos = tokenizer.bos_token or ""
        self.source: str | None = _template_of(tokenizer)
        self.generation = self.source is not None and GENERATION.search(self.source) is not None
        self._asking = template_date.asking(tokenizer, self.source)
        self.day = day if self._asking else None
        """What it writes where it asks for today's date; None where it does not."""
        self._renderer = Renderer(tokenizer, self.source, asks_day=bool(self._asking))
        self._answers = Answers(tokenizer, self._renderer)
        self.habits = Habits(self._answers.whole)

    @property
    def hash(self) -> str | None:
        """Of the template's text; None where there is none."""
        return None if self.source is None else hashlib.sha256(self.source.encode()).hexdigest()[:16]

    def render(self, documents: Sequence[str]) -> Rendered:
        """
        Args:
            documents: as `ftcli.core.reading.conversation.as_document` writes them.

        Raises:
            TokenizerError: there is no chat template, and a row needs one.
        """
        if self.day is not None:
            template_date.write(self._asking, self.day)
        self._renderer.day = self.day
        rows = _parsed(documents)
        out = Rendered([""] * len(rows), [()] * len(rows), shapes=[row["shape"] for row in rows])
        chats: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            if row["kind"] == TEXT:
                self._join(number, row, out)
            else:
                chats.setdefault("null" if (tools := row.get("tools")) is None else json.dumps(tools), []).append(number)
        for tools, numbers in chats.items():
            self._chat(rows, numbers, json.loads(tools), out)
        return out

    def _join(self, number: int, row: Mapping[str, Any], out: Rendered) -> None:
        prompt, completion = row["prompt"], row["completion"]
        end = "" if self._ends(completion) else self._eos
        text = prompt + completion + end
        out.texts[number] = text
        start = len(prompt) if self._completion_only else 0
        out.spans[number] = ((start, len(text)),) if len(text) > start and completion else ()
        if not (self._bos and text.startswith(self._bos)):
            out.bare.append(number)

    def _ends(self, completion: str) -> bool:
        """Whether the last id of a completion is EOS by itself: a tokenizer may drop what stands behind it, as CLIP's does spaces."""
        if completion.endswith(self._eos) or self._eos not in completion:
            return completion.endswith(self._eos)
        tail = completion[completion.rindex(self._eos) :]
        ids: list[int] = self._tokenizer(tail, add_special_tokens=False, verbose=False)["input_ids"]
        return ids[-1:] == [self._tokenizer.eos_token_id]

    def _chat(self, rows: Sequence[Mapping[str, Any]], numbers: Sequence[int], tools: Any, out: Rendered) -> None:
        if self.source is None:
            raise TokenizerError(
                f"the tokenizer {self.name} has no chat template, which conversations need to become text",
                "Give the tokenizer of an instruction-tuned model, put a chat_template.jinja into its folder, or prepare prompt and completion "
                "as plain text.",
            )
        whole = [conversation_of(rows[number]) for number in numbers]
        roles = [plain_roles(conversation) for conversation in whole]
        for place, who in enumerate(roles):
            if not who or DEVELOPER in who:
                whole[place] = self.habits.suited(whole[place])
        by_speaker = [place for place, number in enumerate(numbers) if "messages" in rows[number] and self.assistant_only]
        marked = self.generation and bool(by_speaker)
        texts, marks = self.rendered(whole, tools, numbers, out, marked=marked)
        prompts: list[tuple[int, int, list[Any]]] = []  # (place, message number, messages before it)
        for place, number in enumerate(numbers):
            out.texts[number] = texts[place] or ""
            if texts[place] is None:
                continue
            shown = roles[place] and SHOWN.issuperset(roles[place])
            if not shown and (hidden := self.habits.hidden(whole[place])):
                out.faults[number] = f"the chat template leaves out {hidden} silently"
                continue
            out.spans[number] = ((0, len(texts[place] or "")),)
            if "prompt" in rows[number]:
                first = len(rows[number]["prompt"])
                completion = whole[place][first:]
                if self._completion_only and not any(map(says, completion)):
                    out.spans[number] = ()
                elif self._completion_only and any(says(message) and not weight_of(message) for message in completion):
                    out.faults[number] = "a message of the completion has the weight 0, but a completion is always learned as a whole"
                elif self._completion_only:
                    prompts.append((place, first, whole[place][:first]))
            elif self.assistant_only and marked:
                weights, spoken = [weight_of(message) for message in whole[place] if message["role"] == "assistant"], marks[place]
                if not all(weights) and len(weights) == len(spoken):
                    spoken = [mark for mark, weight in zip(spoken, weights, strict=True) if weight]
                elif any(says(message) and not weight_of(message) for message in whole[place]):
                    out.faults[number] = "a message has the weight 0, and the template marks what is said otherwise than message by message"
                    continue
                out.spans[number] = tuple((start, stop) for start, stop in spoken if stop > start)
                last = max((i for i, message in enumerate(whole[place]) if message["role"] == "assistant"), default=None)
                learned = "".join(out.texts[number][start:stop] for start, stop in marks[place])
                if last is not None and (lost := left_out(whole[place], last, learned)):
                    out.faults[number] = lost
            elif self.assistant_only:
                out.spans[number] = ()
                prompts += [
                    (place, i, whole[place][:i])
                    for i, message in enumerate(whole[place])
                    if message["role"] == "assistant" and weight_of(message)
                ]
        several = {place for place, *_ in prompts if roles[place].count("assistant") != 1 and "messages" in rows[numbers[place]]}
        told = self._answers.at_once(whole, texts, several, tools)
        for place, spans in told.items():
            out.spans[numbers[place]] = spans
        prompts = [entry for entry in prompts if entry[0] not in told]
        asked = [entry for entry in prompts if entry[1]]
        heads, _ = self.rendered([before for *_, before in asked], tools, [numbers[place] for place, *_ in asked], out, prompt=True)
        head_of = {entry[:2]: head for entry, head in zip(asked, heads, strict=True)}
        for place, which, _ in prompts:
            head = head_of.get((place, which))
            number = numbers[place]
            if number in out.faults:
                continue
            try:
                span = self._answers.one(whole[place], which, out.texts[number], head or "", tools, to_the_end="prompt" in rows[number])
            except BadValue as bad:
                out.faults[number] = bad.reason
                continue
            out.spans[number] = (span,) if "prompt" in rows[number] else (*out.spans[number], span)
        for number in numbers:
            if len(out.spans[number]) > 1 and any(stop > start for (_, stop), (start, _) in pairwise(out.spans[number])):
                out.faults.setdefault(number, "the chat template renders its answers so that they cannot be told apart")
            if number in out.faults:
                out.texts[number], out.spans[number] = "", ()

    def rendered(
        self, conversations: Sequence[Any], tools: Any, numbers: Sequence[int], out: Rendered, *, marked: bool = False, prompt: bool = False
    ) -> tuple[list[str | None], list[list[Span]]]:
        """Texts, and with `marked` what stands in {% generation %}; None for a row that the template refuses."""
        try:
            found = self._renderer.render(conversations, tools, marked=marked, prompt=prompt)
        except TokenizerError:
            raise
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like
            found = None
        if found is not None:
            return [*found[0]], found[1]
        texts: list[str | None] = []
        marks: list[list[Span]] = []
        for number, conversation in zip(numbers, conversations, strict=True):
            try:
                one, own = self._renderer.render([conversation], tools, marked=marked, prompt=prompt)
                texts += one
            except TokenizerError:
                raise
            except Exception as error:  # noqa: BLE001
                out.faults.setdefault(number, f"the chat template rejects it: {' '.join(f'{type(error).__name__}: {error}'.split())[:200]}")
                own = [[]]
                texts.append(None)
            marks += own
        return texts, marks


def _parsed(documents: Sequence[str]) -> list[Any]:
    try:
        return list(from_json(f"[{','.join(documents)}]"))
    except ValueError:  # nested deeper than pydantic's parser goes
        return [json.loads(document) for document in documents]


def conversation_of(row: Mapping[str, Any]) -> list[Any]:
    """All messages of a document."""
    return [*row["prompt"], *row["completion"]] if "prompt" in row else list(row["messages"])


def _template_of(tokenizer: Any) -> str | None:
    try:
        return str(tokenizer.get_chat_template())
    except (ValueError, AttributeError):
        return None
