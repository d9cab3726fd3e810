"""What a chat template asks of a message's words and makes of them, noted while it runs once.

The words are strings that answer for what somebody said and note the question. They refuse whatever is not followed (their length, a part of them, JSON of
them); where a template makes strings out of sight, it is not followed at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import accumulate, chain, pairwise
from operator import contains, eq, itemgetter
from typing import Any, NoReturn

from ftcli.core.targets import Span

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
TRACKER = "_generation_support"
"""The function of transformers that {% generation %} calls: it counts the characters of what it hands to the output."""
UNFOLLOWED = ("AssignBlock", "FilterBlock", "Include", "Import", "FromImport", "Extends", "Block", "ScopedEvalContextModifier")
"""Parts of a template that make strings of words without a word's knowing."""
CORE = "\ue0f0"
"""Begins the number of words in their mark; no template writes it, or it is not followed."""
MARK = re.compile(f' \n<{CORE}([0-9]+)\ue0f1"&aA>\n ')
"""What stands for words in a text: changed by whatever changes a string, so that it is seen."""
Expression = tuple[Any, ...]
"""("said", number of the message) | (method, expression, arguments, index or None) | ("+", expressions and strings)."""


class Unfollowed(BaseException):
    """Something is done with words that is not followed."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A rendered conversation with places for its words."""

    conditions: tuple[tuple[Expression, str, tuple[Any, ...], Any], ...]
    """(of what, asked what, with what, answered what)."""
    parts: tuple[str | int | Expression, ...]
    """Literal text, the number of a message whose words stand there, or what is made of words."""
    marks: tuple[Span, ...]
    """What stands in {% generation %}: parts start … stop - 1."""

    def met(self, said: Sequence[Sequence[str]]) -> list[int]:
        """Which of several conversations, given as the words of each, meet the conditions."""
        rows = [*range(len(said))]
        for of, question, arguments, answer in self.conditions:
            ask, values = ASKED[question], _values(of, [said[row] for row in rows])
            rows = [row for row, value in zip(rows, values, strict=True) if ask(value, *arguments) == answer]
        return rows

    def filled(self, said: Sequence[Sequence[str]]) -> list[tuple[str, list[Span]]]:
        """Conversations that meet the conditions with their words in place, and the characters of each that are marked."""
        rows = zip(*(_values(("said", part) if isinstance(part, int) else part, said) for part in self.parts), strict=True)
        if not self.marks:
            return [(text, []) for text in map("".join, rows)]
        found = []
        for pieces in rows:
            at = [0, *accumulate(map(len, pieces))]
            found.append(("".join(pieces), [(at[start], at[stop]) for start, stop in self.marks]))
        return found


@dataclass(slots=True)
class Trace:
    """What is asked of words while a template runs."""

    said: Sequence[str]
    """The words of each message."""
    words: list[_Words] = field(default_factory=list)
    conditions: dict[tuple[Expression, str, tuple[Any, ...]], Any] = field(default_factory=dict)

    def new(self, expression: Expression) -> _Words:
        """Words for the template, which stand for what the expression gives."""
        words = _Words(f' \n<{CORE}{len(self.words)}\ue0f1"&aA>\n ')
        words.expression, words.trace = expression, self
        self.words.append(words)
        return words

    def asked(self, of: Expression, question: str, arguments: tuple[Any, ...]) -> Any:
        """The answer for the words that were said, noted as a condition; raises Unfollowed where other words are asked about."""
        if _hold_words(arguments):
            raise Unfollowed
        (value,) = _values(of, [self.said])
        answer = ASKED[question](value, *arguments)
        self.conditions[of, question, arguments] = answer
        return answer

    def parts(self, text: str) -> tuple[str | Expression, ...]:
        """A text with marks as literal text and what the marks stand for."""
        pieces = MARK.split(text)
        if text.count(CORE) != len(pieces) // 2:
            raise Unfollowed
        return tuple(self.words[int(piece)].expression if number % 2 else piece for number, piece in enumerate(pieces) if piece)

    def skeleton(self, text: str, marks: Sequence[Span]) -> Skeleton:
        """Of what the template rendered, and the characters of it that are marked; raises Unfollowed."""
        parts: list[str | int | Expression] = []
        part_at = {0: 0}
        for start, stop in pairwise(sorted({0, len(text), *chain.from_iterable(marks)})):
            flat = _flat(self.parts(text[start:stop]))
            parts += [part[1] if not isinstance(part, str) and part[0] == "said" else part for part in flat]
            part_at[stop] = len(parts)
        conditions = tuple((*asked, answer) for asked, answer in self.conditions.items())
        return Skeleton(conditions, tuple(parts) or ("",), tuple((part_at[start], part_at[stop]) for start, stop in marks))

    def followed(self, value: Any) -> Any:
        """A string that was made of words, as words again."""
        if isinstance(value, str) and not isinstance(value, _Words) and CORE in value:
            return self.new(("+", *self.parts(value)))
        return value


class _Words(str):  # noqa: PLW1641, SLOT000 - below, for mypy; a string's slots cannot be
    """What somebody says, as its mark: the template sees a string, and what it asks is answered for the words and noted."""

    expression: Expression
    trace: Trace

    def __getattribute__(self, name: str) -> Any:
        if name in CHANGES:
            return lambda *arguments: _changed(self, name, arguments)
        if name in QUESTIONS:
            return lambda *arguments: _ask(self, name, *arguments)
        if name.startswith("_") or name in {"expression", "trace"}:
            return super().__getattribute__(name)
        raise Unfollowed

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
        raise Unfollowed

    __hash__ = __len__ = __iter__ = __getitem__ = __mod__ = __rmod__ = __mul__ = __rmul__ = _refused
    __lt__ = __le__ = __gt__ = __ge__ = __format__ = __repr__ = _refused


ASKED: Mapping[str, Callable[..., Any]] = {
    "bool": bool,
    "in": contains,
    "==": eq,
    "startswith": str.startswith,
    "endswith": str.endswith,
    "pieces": lambda said, *arguments: len(said.split(*arguments)),
}


def _ask(words: _Words, question: str, *arguments: Any) -> Any:
    return words.trace.asked(words.expression, question, arguments)


def _changed(words: _Words, method: str, arguments: tuple[Any, ...]) -> Any:
    if _hold_words(arguments):
        raise Unfollowed
    if method == "split":
        pieces: int = _ask(words, "pieces", *arguments)
        return [words.trace.new((method, words.expression, arguments, number)) for number in range(pieces)]
    return words.trace.new((method, words.expression, arguments, None))


def _values(expression: str | Expression, said: Sequence[Sequence[str]]) -> Sequence[str]:
    """Of several conversations, given as the words of each."""
    if isinstance(expression, str):
        return [expression] * len(said)
    kind = expression[0]
    if kind == "said":
        return [*map(itemgetter(expression[1]), said)]
    if kind == "+":
        return [*map("".join, zip(*(_values(part, said) for part in expression[1:]), strict=True))]
    _, of, arguments, number = expression
    found = [getattr(words, kind)(*arguments) for words in _values(of, said)]
    return found if number is None else [pieces[number] for pieces in found]


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


def followable(source: str) -> Any:
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
def followed(environment: Any, trace: Trace) -> Iterator[None]:
    """While a template runs, its filters, tests and calls refuse words that they would look into."""
    from jinja2.runtime import Macro

    filters, tests, call = environment.filters, environment.tests, environment.call
    handing_on = (environment.globals.get("namespace"), environment.globals.get("dict"), environment.globals.get("raise_exception"))

    def filtered(name: str, function: Any) -> Any:
        @wraps(function)
        def guarded(*arguments: Any, **named: Any) -> Any:
            if _hold_words([*arguments, named] if name not in PASSING else [*arguments[1:], named] if name == "trim" else []):
                raise Unfollowed
            return trace.followed(function(*arguments, **named))

        return guarded

    def tested(name: str, function: Any) -> Any:
        @wraps(function)
        def guarded(*arguments: Any, **named: Any) -> Any:
            if _hold_words([*arguments, named]) and name not in EQUAL:
                first = arguments[0] if arguments else None
                if name in OF_TYPES and not _hold_words([*arguments[1:], named]):
                    return function("" if isinstance(first, _Words) else first, *arguments[1:], **named)
                raise Unfollowed
            return function(*arguments, **named)

        return guarded

    def called(context: Any, function: Any, *arguments: Any, **named: Any) -> Any:
        given = [*arguments, *(value for name, value in named.items() if name not in OF_CALLS)]
        if _hold_words(given) and not isinstance(function, Macro) and function not in handing_on:
            raise Unfollowed
        found = call(context, function, *arguments, **named)
        return found if getattr(function, "__name__", "") == TRACKER else trace.followed(found)

    try:
        environment.filters = {name: filtered(name, function) for name, function in filters.items()}
        environment.tests = {name: tested(name, function) for name, function in tests.items()}
        environment.call = called
        yield
    finally:
        environment.filters, environment.tests = filters, tests
        del environment.call
