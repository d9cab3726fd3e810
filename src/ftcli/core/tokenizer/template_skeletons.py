"""Conversations rendered by a chat template once a form, and no longer once an example.

Templates are programs, but what they ask of a message's words is little: is "</think>" in them, are they empty, strip them. So a template is run once with
words that note what is asked of them and where they come out. That gives literal text with places for words, and the conditions on which it holds;
every conversation of the same roles that meets them is put together from it. Whatever else a template does with words (their length, JSON of them, a part
of them) is not followed, and such conversations are rendered one by one, as all were.

What was put together is compared with what transformers renders: the first of a form, and every one whose number is a power of two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NoReturn

from ftcli.errors import TokenizerError

TRACES = 16
"""Of conversations with the same roles, at most; whatever needs more is rendered: its words decide too much."""
ROLES = 4096
"""Sequences of roles whose forms are kept."""
CHANGES = frozenset({"strip", "lstrip", "rstrip", "replace", "split", "removeprefix", "removesuffix"})
"""Methods of strings whose results are followed."""
QUESTIONS = frozenset({"startswith", "endswith"})
OF_TYPES = frozenset({"string", "defined", "undefined", "none", "mapping", "iterable", "sequence", "number", "boolean", "integer", "float"})
"""Tests that all words answer alike."""
EQUAL = frozenset({"eq", "equalto", "==", "ne", "!="})
PASSING = frozenset(
    {"trim", "string", "length", "count", "list", "first", "last", "selectattr", "rejectattr", "default", "d", "reverse", "items"}
)
"""Filters that use words by the methods that are followed, or hand them on."""
OF_CALLS = ("_loop_vars", "_block_vars")
"""What jinja hands to every call, for functions that want to see all variables."""
UNFOLLOWED = ("AssignBlock", "FilterBlock", "CallBlock", "Include", "Import", "FromImport", "Extends", "Block", "ScopedEvalContextModifier")
"""Parts of a template that make strings of words without a word's knowing."""
CORE = "\ue0f0"
MARK = re.compile(f' \n<{CORE}([0-9]+)\ue0f1"&aA>\n ')
"""What stands for words in a text: changed by whatever changes a string, so that it is seen."""
Expression = tuple[Any, ...]
"""("said", number of the message) | (method, expression, arguments, index or None) | ("+", expressions and strings)."""


class _Unfollowed(BaseException):
    """Something is done with words that is not followed."""


@dataclass(frozen=True, slots=True)
class _Skeleton:
    conditions: tuple[tuple[Expression, str, tuple[Any, ...], Any], ...]
    """(of what, asked what, with what, answered what)."""
    parts: tuple[str | int | Expression, ...]
    """Literal text, the number of a message whose words stand there, or what is made of words."""

    def text(self, said: Sequence[str]) -> str | None:
        """The conversation with these words; None where they do not meet the conditions."""
        for of, question, arguments, answer in self.conditions:
            if ASKED[question](_value(of, said), *arguments) != answer:
                return None
        return "".join(
            [part if isinstance(part, str) else said[part] if isinstance(part, int) else _value(part, said) for part in self.parts]
        )


@dataclass(slots=True)
class _Forms:
    """Of conversations with the same roles."""

    skeletons: list[_Skeleton] = field(default_factory=list)
    traces: int = 0
    made: int = 0


@dataclass(slots=True)
class _Trace:
    said: Sequence[str]
    words: list[_Words] = field(default_factory=list)
    conditions: dict[tuple[Expression, str, tuple[Any, ...]], Any] = field(default_factory=dict)

    def new(self, expression: Expression) -> _Words:
        words = _Words(f' \n<{CORE}{len(self.words)}\ue0f1"&aA>\n ')
        words.expression, words.trace = expression, self
        self.words.append(words)
        return words

    def asked(self, of: Expression, question: str, arguments: tuple[Any, ...]) -> Any:
        if _hold_words(arguments):
            raise _Unfollowed
        answer = ASKED[question](_value(of, self.said), *arguments)
        self.conditions[of, question, arguments] = answer
        return answer

    def parts(self, text: str) -> tuple[str | Expression, ...]:
        """A text with marks as literal text and what the marks stand for."""
        pieces = MARK.split(text)
        if text.count(CORE) != len(pieces) // 2:
            raise _Unfollowed
        return tuple(self.words[int(piece)].expression if number % 2 else piece for number, piece in enumerate(pieces) if piece)

    def followed(self, value: Any) -> Any:
        """A string that was made of words, as words again."""
        if isinstance(value, str) and not isinstance(value, _Words) and CORE in value:
            return self.new(("+", *self.parts(value)))
        return value


class _Words(str):  # noqa: PLW1641, SLOT000 - below, for mypy; a string's slots cannot be
    """What somebody says, as its mark: the template sees a string, and what it asks is answered for the words and noted."""

    expression: Expression
    trace: _Trace

    def __getattribute__(self, name: str) -> Any:
        if name in CHANGES:
            return lambda *arguments: _changed(self, name, arguments)
        if name in QUESTIONS:
            return lambda *arguments: _ask(self, name, *arguments)
        if name.startswith("_") or name in {"expression", "trace"}:
            return super().__getattribute__(name)
        raise _Unfollowed

    def __bool__(self) -> bool:
        return bool(_ask(self, "bool"))

    def __contains__(self, part: object) -> bool:
        return bool(_ask(self, "in", part))

    def __eq__(self, other: object) -> bool:
        return other is self or bool(_ask(self, "==", other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __add__(self, other: str) -> str:
        if not isinstance(other, str):
            raise TypeError("a template adds what is no string")
        return self.trace.new(("+", self.expression, other.expression if isinstance(other, _Words) else self.trace.followed(other)))

    def __radd__(self, other: str) -> str:
        if not isinstance(other, str):
            raise TypeError("a template adds to what is no string")
        return self.trace.new(("+", other, self.expression))

    def _refused(self, *_: Any) -> NoReturn:
        raise _Unfollowed

    __hash__ = __len__ = __iter__ = __getitem__ = __mod__ = __rmod__ = __mul__ = __rmul__ = _refused
    __lt__ = __le__ = __gt__ = __ge__ = __format__ = __repr__ = _refused


ASKED: Mapping[str, Callable[..., Any]] = {
    "bool": bool,
    "in": lambda said, part: part in said,
    "==": lambda said, other: said == other,
    "startswith": str.startswith,
    "endswith": str.endswith,
    "pieces": lambda said, *arguments: len(said.split(*arguments)),
}


def _ask(words: _Words, question: str, *arguments: Any) -> Any:
    return words.trace.asked(words.expression, question, arguments)


def _changed(words: _Words, method: str, arguments: tuple[Any, ...]) -> Any:
    if _hold_words(arguments):
        raise _Unfollowed
    if method == "split":
        pieces: int = _ask(words, "pieces", *arguments)
        return [words.trace.new((method, words.expression, arguments, number)) for number in range(pieces)]
    return words.trace.new((method, words.expression, arguments, None))


def _value(expression: str | Expression, said: Sequence[str]) -> str:
    if isinstance(expression, str):
        return expression
    kind = expression[0]
    if kind == "said":
        return said[expression[1]]
    if kind == "+":
        return "".join(_value(part, said) for part in expression[1:])
    _, of, arguments, number = expression
    found = getattr(_value(of, said), kind)(*arguments)
    return str(found if number is None else found[number])


def _flat(parts: Sequence[str | Expression]) -> Iterator[str | Expression]:
    """The parts without sums, text that follows on text as one."""
    literal = ""
    for part in parts:
        for one in [part] if isinstance(part, str) or part[0] != "+" else _flat(part[1:]):
            if isinstance(one, str):
                literal += one
                continue
            if literal:
                yield literal
            literal = ""
            yield one
    if literal:
        yield literal


def _hold_words(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_hold_words(part) for pair in value.items() for part in pair)
    return (isinstance(value, str) and CORE in str.__str__(value)) or (
        isinstance(value, (list, tuple)) and any(_hold_words(part) for part in value)
    )


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

    def render(self, conversations: Sequence[Any], tools: Any, *, prompt: bool = False) -> list[str]:
        """
        Args:
            prompt: with what asks for an answer.

        Raises:
            TokenizerError: what was put together is not what transformers renders.
            Exception: whatever the template raises.
        """
        texts = [None if tools else self._put_together(conversation, prompt) for conversation in conversations]
        rest = [number for number, text in enumerate(texts) if text is None]
        if rest:
            for number, text in zip(rest, self._apply([conversations[number] for number in rest], tools, prompt), strict=True):
                texts[number] = text
        return texts  # type: ignore[return-value]  # none is left

    def _apply(self, conversations: Sequence[Any], tools: Any, prompt: bool) -> list[str]:
        return list(self._tokenizer.apply_chat_template(list(conversations), tools=tools, tokenize=False, add_generation_prompt=prompt))

    def _put_together(self, conversation: Any, prompt: bool) -> str | None:
        """None where it has to be rendered."""
        if not self._follows or not conversation or not all(map(_simple, conversation)) or (self._asks_day and self.day is None):
            return None
        key = (self.day, prompt, *(message["role"] for message in conversation))
        forms = self._forms.get(key) or (self._forms.setdefault(key, _Forms()) if len(self._forms) < ROLES else None)
        if forms is None:
            return None
        said = [message["content"] for message in conversation]
        for skeleton in forms.skeletons:
            text = skeleton.text(said)
            if text is not None:
                forms.made += 1
                if forms.made & (forms.made - 1) == 0 and [text] != self._apply([conversation], None, prompt):
                    raise TokenizerError(
                        "the chat template renders a conversation otherwise than others of the same form",
                        "This is a defect of ftcli: please report it with the chat template.",
                    )
                return text
        if forms.traces < TRACES:
            forms.traces += 1
            skeleton_or_none = self._traced(conversation, said, prompt)
            if skeleton_or_none is not None:
                text = skeleton_or_none.text(said)
                if text is not None and [text] == self._apply([conversation], None, prompt):
                    forms.skeletons.append(skeleton_or_none)
                    return text
                self._follows = False  # a tokenizer that renders in its own way
        return None

    def _traced(self, conversation: Any, said: Sequence[str], prompt: bool) -> _Skeleton | None:
        if self._template is None:
            self._template = _followable(self._source or "")
            self._follows = self._template is not None
        if not self._follows:
            return None
        trace = _Trace(said)
        messages = [{"role": message["role"], "content": trace.new(("said", number))} for number, message in enumerate(conversation)]
        try:
            with _followed(self._template.environment, trace):
                text = self._template.render(
                    messages=messages, tools=None, documents=None, add_generation_prompt=prompt, **self._tokenizer.special_tokens_map
                )
            parts = trace.parts(text)
        except _Unfollowed:
            return None
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like, and will again when the conversation is rendered
            return None
        conditions = tuple((*asked, answer) for asked, answer in trace.conditions.items())
        return _Skeleton(conditions, tuple(part[1] if not isinstance(part, str) and part[0] == "said" else part for part in _flat(parts)))


def _simple(message: Any) -> bool:
    return (
        type(message) is dict and message.keys() == {"role", "content"} and type(message["content"]) is str and type(message["role"]) is str
    )


def _followable(source: str) -> Any:
    """The compiled template, where nothing in it makes strings of words out of sight; else None."""
    from jinja2 import nodes
    from transformers.utils import chat_template_utils

    try:
        template = chat_template_utils._compile_jinja_template(source)
    except AttributeError:  # another version of transformers
        return None
    tree = template.environment.parse(source)
    shown = {id(part) for output in tree.find_all(nodes.Output) for part in output.nodes}
    hidden = any(id(part) not in shown for part in tree.find_all(nodes.Concat))
    sought = any(
        operand.op in {"in", "notin"}
        and not isinstance(compare.expr, nodes.Const)
        and not isinstance(operand.expr, (nodes.List, nodes.Tuple))
        for compare in tree.find_all(nodes.Compare)
        for operand in compare.ops
    )
    formatted = any(
        isinstance(part.right, nodes.Tuple) or (isinstance(part.left, nodes.Const) and isinstance(part.left.value, str))
        for part in tree.find_all(nodes.Mod)
    )
    unfollowed = any(next(tree.find_all(getattr(nodes, name)), None) is not None for name in UNFOLLOWED)
    return None if hidden or sought or formatted or unfollowed else template


@contextmanager
def _followed(environment: Any, trace: _Trace) -> Iterator[None]:
    """While a template runs, its filters, tests and calls refuse words that they would look into."""
    from jinja2.runtime import Macro

    filters, tests, call = environment.filters, environment.tests, environment.call
    handing_on = (environment.globals.get("namespace"), environment.globals.get("dict"), environment.globals.get("raise_exception"))

    def filtered(name: str, function: Any) -> Any:
        @wraps(function)
        def guarded(*arguments: Any, **named: Any) -> Any:
            if _hold_words([*arguments, named] if name not in PASSING else [*arguments[1:], named] if name == "trim" else []):
                raise _Unfollowed
            return trace.followed(function(*arguments, **named))

        return guarded

    def tested(name: str, function: Any) -> Any:
        @wraps(function)
        def guarded(*arguments: Any, **named: Any) -> Any:
            if _hold_words([*arguments, named]) and name not in EQUAL:
                first = arguments[0] if arguments else None
                if name in OF_TYPES and not _hold_words([*arguments[1:], named]):
                    return function("" if isinstance(first, _Words) else first, *arguments[1:], **named)
                raise _Unfollowed
            return function(*arguments, **named)

        return guarded

    def called(context: Any, function: Any, *arguments: Any, **named: Any) -> Any:
        given = [*arguments, *(value for name, value in named.items() if name not in OF_CALLS)]
        if _hold_words(given) and not isinstance(function, Macro) and function not in handing_on:
            raise _Unfollowed
        return trace.followed(call(context, function, *arguments, **named))

    try:
        environment.filters = {name: filtered(name, function) for name, function in filters.items()}
        environment.tests = {name: tested(name, function) for name, function in tests.items()}
        environment.call = called
        yield
    finally:
        environment.filters, environment.tests = filters, tests
        del environment.call
