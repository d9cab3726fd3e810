"""Where the answers stand in a rendered conversation, for templates that do not mark them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

from ftcli.core.reading.columns import BadValue
from ftcli.core.targets import Span
from ftcli.core.tokenizer.template_habits import ANSWERS


class Answers:
    """By one tokenizer's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._turn_end: str | None = None
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
            answers = [number for number, message in enumerate(whole[place]) if message["role"] == "assistant"]
            plain = all(whole[place][number].keys() <= {"role", "content", "weight"} for number in answers)
            if len(answers) > 1 and answers[0] and plain and self.turn_start:
                chosen[place] = answers
        if not chosen:
            return {}
        try:
            others = self._tokenizer.apply_chat_template(
                [_with_words(whole[place], answers) for place, answers in chosen.items()], tools=tools, tokenize=False
            )
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
            if not text.startswith(before, at) or (turn := before.rfind(self.turn_start)) < 0 or not after.startswith(self.turn_end):
                return None
            start, at = at + turn + len(self.turn_start), at + len(before)
            content = messages[number]["content"]
            ends = [at + len(said) for said in (content, content.strip()) if text.startswith(said + after, at)]
            if not ends or not content.strip():
                return None
            at = ends[0]
            spans.append((start, at + len(self.turn_end)))
        return spans if text[at:] == rest else None

    def one(self, messages: list[Any], which: int, text: str, head: str, tools: Any, *, to_the_end: bool) -> Span:
        """The characters of message `which`; raises BadValue where the template does not let it be told."""
        if not text.startswith(head):
            span = None if to_the_end else self._by_other_words(messages, which, text, head, tools)
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
        content = str(messages[which].get("content") or "")
        for words in filter(None, (content, content.strip())):
            at = text.find(words, len(head)) + len(words)
            if at >= len(words) and text.startswith(self.turn_end, at):
                return (len(head) if which else at - len(words)), at + len(self.turn_end)
        spoken = self.whole(messages[: which + 1], tools).rstrip()
        if which and text.startswith(spoken) and len(spoken) > len(head):
            return len(head), len(spoken)
        if span := self._between(messages, which, text, head, tools):
            return span
        raise BadValue(
            0, "wrong-type", f"the chat template shows message {which + 1} otherwise than as it is, so that its tokens cannot be told"
        )

    def _by_other_words(self, messages: list[Any], which: int, text: str, head: str, tools: Any) -> Span | None:
        """The characters of message `which`, found by other words in its place; None where that does not tell.

        For a template that writes what stands before an answer otherwise where it is the end: Qwen3's puts empty thoughts into the last of
        several answers in a row.
        """
        content = str(messages[which].get("content") or "")
        others = [
            self.whole([*messages[:which], {**messages[which], "content": words}, *messages[which + 1 :]], tools) for words in ANSWERS
        ]
        start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*others, strict=False)))
        if text[:start] != others[0][:start]:
            return None
        before = self.whole(messages[:which], tools)
        turn = head.removeprefix(before) if head.startswith(before) else ""  # what begins an answer
        at = text.rfind(turn, 0, start) + len(turn) if turn in text[:start] else start
        for words in filter(None, (content, content.strip())):
            if text.startswith(words + self.turn_end, start):
                return (start if self.turn_end in text[at:start] else at), start + len(words) + len(self.turn_end)
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
        turn = head.removeprefix(asked) if head.startswith(asked) else ""  # what begins an answer
        around = turn and before.endswith(turn) and after.startswith(self.turn_end)
        if not (around and text.startswith(before) and text.endswith(after) and start < stop):
            return None
        return (len(head) if which and text.startswith(head) and len(head) < start else start), stop + len(self.turn_end)

    def whole(self, messages: list[Any], tools: Any) -> str:
        return str(self._tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))

    @property
    def turn_end(self) -> str:
        """What the template writes after every answer, without white space at its end."""
        if self._turn_end is None:
            asked, first, second = (
                {"role": role, "content": words} for role, words in zip(("user", "assistant", "assistant"), ("?", *ANSWERS), strict=True)
            )
            text = str(self._tokenizer.apply_chat_template([asked, first, asked, second], tokenize=False))
            rests = [self._pieces(text.rpartition(answer)[2]) for answer in ANSWERS]
            same = takewhile(lambda pair: pair[0] == pair[1], zip(*rests, strict=False))
            self._turn_end = "".join(piece for piece, _ in same).rstrip()
        return self._turn_end

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
    """0 of what the assistant says and nobody shall learn."""
    return int(message.get("weight", 1)) if message["role"] == "assistant" else 1


def _words(number: int) -> str:
    """Words for message `number` that no template holds, and no others' words."""
    return f"{ANSWERS[0]}-{number}-{ANSWERS[1]}"


def _with_words(messages: Sequence[Any], answers: Collection[int]) -> list[Any]:
    return [{**message, "content": _words(number)} if number in answers else message for number, message in enumerate(messages)]
