"""Where the answers stand in a rendered conversation, for templates that do not mark them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise, takewhile
from typing import Any

from ftcli.core.reading.columns import BadValue
from ftcli.core.targets import Span
from ftcli.core.tokenizer.template_habits import ANSWERS, THOUGHTS
from ftcli.core.tokenizer.template_skeletons import Renderer
from ftcli.errors import TokenizerError

THOUGHTS_BEGIN, THOUGHTS_END = "<think>", "</think>"
"""Around an assistant's thoughts. Of answers before the last many templates leave them out, as the models are asked without them."""


class Answers:
    """By one tokenizer's chat template."""

    def __init__(self, tokenizer: Any, renderer: Renderer) -> None:
        self._tokenizer, self._renderer = tokenizer, renderer
        self._turn_ends: tuple[str, str] | None = None
        self._turn_start: str | None = None

    def at_once(
        self, whole: Sequence[list[Any]], texts: Sequence[str | None], places: Collection[int], tools: Any
    ) -> dict[int, tuple[Span, ...]]:
        """The characters of all answers of conversations that have several, by place; those are left out of which it cannot be told.

        Every answer is replaced by words of its own and all are rendered once: what then stands between them must stand between the answers
        as they are, from the first character to the last. A prompt before each answer would be as many renders as there are answers.
        """
        chosen: dict[int, list[int]] = {}
        for place in sorted(places):
            answers = [number for number, message in enumerate(whole[place]) if message["role"] == "assistant" and says(message)]
            plain = all(whole[place][number].keys() <= {"role", "content", "weight"} for number in answers)
            if len(answers) > 1 and answers[0] and plain and self.turn_start:
                chosen[place] = answers
        if not chosen:
            return {}
        try:
            others, _ = self._renderer.render([_with_words(whole[place], answers) for place, answers in chosen.items()], tools)
        except TokenizerError:
            raise
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like
            return {}
        found = {}
        for (place, answers), other in zip(chosen.items(), others, strict=True):
            spans = self._aligned(whole[place], answers, texts[place] or "", other or "")
            if spans is not None:
                found[place] = tuple(span for span, number in zip(spans, answers, strict=True) if weight_of(whole[place][number]))
        return found

    def _aligned(self, messages: list[Any], answers: Sequence[int], text: str, other: str) -> list[Span] | None:
        """Where the answers stand in `text`, which is `other` but for them; None where it is not."""
        around, rest = list[str](), other
        for number in answers:
            before, words, rest = rest.partition(_words(number))
            if not words or words in rest:
                return None
            around.append(before)
        around.append(rest)
        spans, at = list[Span](), 0
        for number, before, after in zip(answers, around, around[1:], strict=False):
            end = self._end(messages, number)
            if not text.startswith(before, at) or (turn := before.rfind(self.turn_start)) < 0 or not after.startswith(end):
                return None
            start, at = at + turn + len(self.turn_start), at + len(before)
            content = messages[number]["content"]
            ends = [at + len(said) for said in (content, content.strip()) if text.startswith(said + after, at)]
            if not ends or not content.strip():
                return None
            at = ends[0]
            spans.append((start, at + len(end)))
        return spans if text[at:] == rest else None

    def one(self, messages: list[Any], which: int, text: str, head: str, tools: Any, *, to_the_end: bool) -> Span:
        """The characters of message `which`; raises BadValue where the template does not let it be told, or leaves out a part of what is said."""
        start, stop = self._one(messages, which, text, head, tools, to_the_end=to_the_end)
        if lost := left_out(messages, which, text[start:stop]):
            raise BadValue(0, "wrong-type", lost)
        return start, stop

    def _one(self, messages: list[Any], which: int, text: str, head: str, tools: Any, *, to_the_end: bool) -> Span:
        content, end = str(messages[which].get("content") or ""), self._end(messages, which)
        if not text.startswith(head):
            span = (
                self._to_the_end(messages, which, text, tools) if to_the_end else self._by_other_words(messages, which, text, head, tools)
            )
            span = span or (None if to_the_end else self._between(messages, which, text, head, tools))
            if span is None:
                raise BadValue(
                    0,
                    "wrong-type",
                    f"the chat template renders the prompt before message {which + 1} differently alone than with its answer",
                )
            return span
        if to_the_end:
            return len(head), len(text)
        calls = bool(messages[which].get("tool_calls"))
        for words in filter(None, () if calls and not end else (content, content.strip())):  # behind the words there may be calls
            at = text.find(words, len(head)) + len(words)
            own = at >= len(words) and not (self.turn_end and self.turn_end in text[len(head) : at - len(words)])
            if own and text.startswith(end, at):  # else they are those of a later answer
                return (len(head) if which else at - len(words)), at + len(end)
        spoken = self.whole(messages[: which + 1], tools).rstrip()
        if which and text.startswith(spoken) and len(spoken) > len(head):
            return len(head), len(spoken)
        if span := self._between(messages, which, text, head, tools):
            return span
        raise BadValue(0, "wrong-type", f"the chat template shows message {which + 1} in altered form, so its tokens cannot be identified")

    def _to_the_end(self, messages: list[Any], which: int, text: str, tools: Any) -> Span | None:
        """A completion of one message, for a template whose prompt ends with more than stands before an answer that is given (`<think>`)."""
        start = self._begins(messages, which, text, tools) if which == len(messages) - 1 else None
        content = str(messages[which].get("content") or "").strip()
        return (start, len(text)) if start is not None and content and text[start:].lstrip().startswith(content) else None

    def _begins(self, messages: list[Any], which: int, text: str, tools: Any) -> int | None:
        """Where the words of message `which` begin, found by other words in its place; None where that does not tell."""
        others = [
            self.whole([*messages[:which], {**messages[which], "content": words}, *messages[which + 1 :]], tools) for words in ANSWERS
        ]
        start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*others, strict=False)))
        return start if text[:start] == others[0][:start] else None

    def _by_other_words(self, messages: list[Any], which: int, text: str, head: str, tools: Any) -> Span | None:
        """The characters of message `which`, found by other words in its place; None where that does not tell.

        For a template that writes what stands before an answer otherwise where it is the end: Qwen3's puts empty thoughts into the last of
        several answers in a row.
        """
        content = str(messages[which].get("content") or "")
        start, end = self._begins(messages, which, text, tools), self._end(messages, which)
        if start is None:
            return None
        before = self.whole(messages[:which], tools)
        turn = head.removeprefix(before) if head.startswith(before) else ""  # what begins an answer
        at = text.rfind(turn, 0, start) + len(turn) if turn in text[:start] else start
        for words in filter(None, (content, content.strip())):
            if text.startswith(words + end, start):
                return (start if end in text[at:start] else at), start + len(words) + len(end)
        return None

    def _between(self, messages: list[Any], which: int, text: str, head: str, tools: Any) -> Span | None:
        """The characters of message `which` as what stands between all that stays when other words are said in its place; None where
        that does not tell.

        For calls of tools, which follow the words or stand in their place.
        """
        try:
            asked = self.whole(messages[:which], tools)
            one, other = (
                self.whole([*messages[:which], {"role": "assistant", "content": words}, *messages[which + 1 :]], tools) for words in ANSWERS
            )
        except Exception:  # noqa: BLE001 - a template may refuse a tool's answer to no call
            return None
        start, end = (
            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
            for texts in ((one, other), (one[::-1], other[::-1]))
        )
        before, after = one[:start], one[len(one) - end :]
        stop = len(text) - end
        turn_end = self._end(messages, which)
        around = self._begun(before, head, asked) and after.startswith(turn_end)
        if not (around and text.startswith(before) and text.endswith(after) and start < stop):
            return None
        return (len(head) if which and text.startswith(head) and len(head) < start else start), stop + len(turn_end)

    def _begun(self, before: str, head: str, asked: str) -> bool:
        """Whether an answer begins where `before` ends: with what the template writes behind a question (`asked`) to have it answered (`head`), or with
        the beginning of that which earlier answers have: Qwen3.5 asks for thoughts and leaves them out of those, Nemotron writes empty ones."""
        turn = head.removeprefix(asked) if head.startswith(asked) else ""
        parts = [turn[:border] for border in accumulate(map(len, self._pieces(turn)))]
        own = next((part for part in reversed(parts) if before.endswith(part) or before.startswith(asked + part)), "")
        return bool(own) and (own == turn or any(token in own for token in self._tokenizer.all_special_tokens))

    def whole(self, messages: list[Any], tools: Any) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))

    def _end(self, messages: Sequence[Any], which: int) -> str:
        """What the template writes behind message `which`, an answer."""
        return self._ends[which == len(messages) - 1]

    @property
    def turn_end(self) -> str:
        """What the template writes after every answer but perhaps the last, without white space at its end."""
        return self._ends[0]

    @property
    def _ends(self) -> tuple[str, str]:
        """What it writes after an answer, and after the last one: the same, or gpt-oss's <|end|> and <|return|>."""
        if self._turn_ends is None:
            asked, first, second = (
                {"role": role, "content": words} for role, words in zip(("user", "assistant", "assistant"), ("?", *ANSWERS), strict=True)
            )
            text = str(self._tokenizer.apply_chat_template([asked, first, asked, second], tokenize=False))
            rests = [self._pieces(text.rpartition(answer)[2]) for answer in ANSWERS]
            same = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(*rests, strict=False))).rstrip()
            own = [next(iter(rest), "") for rest in rests]
            known = {str(token) for token in self._tokenizer.get_added_vocab()}
            self._turn_ends = (same, same) if same or not known.issuperset(own) else (own[0], own[1])
        return self._turn_ends

    @property
    def turn_start(self) -> str:
        """What the template writes before an answer that it is asked for; "" where that cannot be told."""
        if self._turn_start is None:
            asked = [{"role": "user", "content": "?"}]
            without, prompt = (
                str(self._tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=wanted)) for wanted in (False, True)
            )
            self._turn_start = prompt.removeprefix(without) if prompt.startswith(without) else ""
        return self._turn_start

    def _pieces(self, text: str) -> list[str]:
        """The tokens of a text as characters: "<|end|>" and "<|user|>" have nothing in common."""
        if not self._tokenizer.is_fast:
            return re.findall(r"<[^<>]*>|.", text, re.DOTALL)
        offsets = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).offsets
        borders = sorted({0, len(text), *(start for start, _ in offsets)})
        return [text[start:stop] for start, stop in pairwise(borders)]


def weight_of(message: Mapping[str, Any]) -> int:
    """0 of what the assistant says and nobody shall learn: by its weight, or because it says nothing."""
    return int(message.get("weight", 1) and says(message)) if message["role"] == "assistant" else 1


def says(message: Mapping[str, Any]) -> bool:
    """Whether there is anything in a message: of none a model would learn to end before the first word."""
    return bool(str(message.get("content") or "").strip() or any(message.get(key) for key in ("tool_calls", *THOUGHTS)))


def left_out(messages: Sequence[Mapping[str, Any]], which: int, said: str) -> str:
    """Why `said` is not all that message `which` says, in words; "" where it is, or lacks only the thoughts of an answer before the last."""
    content = str(messages[which].get("content") or "")
    if content in said:
        return ""
    shown = _squeezed(said)
    if _squeezed(content).removeprefix(THOUGHTS_BEGIN) in shown:  # the prompt may end with it
        return ""
    earlier = any(message["role"] == "assistant" for message in messages[which + 1 :])
    if earlier and _squeezed(content.rpartition(THOUGHTS_END)[2]) in shown:
        return ""
    what = f"the thoughts of message {which + 1}" if THOUGHTS_END in content else f"a part of what message {which + 1} says"
    return f"the chat template leaves out {what} silently"


def _squeezed(text: str) -> str:
    """Without white space, of which templates put and take as they like."""
    return "".join(text.split())


def _words(number: int) -> str:
    """Words for message `number` that no template holds, and no others' words."""
    return f"{ANSWERS[0]}-{number}-{ANSWERS[1]}"


def _with_words(messages: Sequence[Any], answers: Collection[int]) -> list[Any]:
    return [{**message, "content": _words(number)} if number in answers else message for number, message in enumerate(messages)]
