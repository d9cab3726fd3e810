"""A command's words to values: one spelling of flags, switches with and without a value, and an error that helps."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcli.cli.catalog import COMMON
from ftcli.cli.option_suggestions import unknown_option
from ftcli.cli.options import Option, options_of
from ftcli.cli.spec import CommandSpec, Own
from ftcli.errors import UsageError
from ftcli.fields import extra
from ftcli.settings import sections

SOURCES = "dataset.sources"
POSITIONAL = "SOURCE"
"""Origin of sources that were typed without a flag."""
TRUTH = {"true": "true", "false": "false"}
WORDS = {"yes": "true", "no": "false"}
"""Of a switch that may be something else as well: --torch-compile yes, no or auto."""


@dataclass(slots=True)
class Parsed:
    """What was typed: option key → every raw value in order, with the flag as typed."""

    given: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the command's `run`, converted."""
    typed: tuple[str, ...] = ()
    """The words themselves."""

    def last(self, key: str) -> str | None:
        return self.given[key][-1][0] if key in self.given else None

    def has(self, key: str) -> bool:
        return key in self.given

    def settings(self) -> dict[str, tuple[Any, str]]:
        """ "section.field" → (raw value, flag): the last one typed counts; sources, other lists and NAME=VALUE pairs add up."""
        return {key: merged(key, values) for key, values in self.given.items() if "." in key}


def parse(spec: CommandSpec, typed: Sequence[str]) -> Parsed:
    """Read the words behind a command's name.

    Raises:
        UsageError: an unknown option, a missing or superfluous value, a value that is not of its kind; with the nearest that would do.
    """
    options = {flag: option for option in options_of(spec) for flag in option.flags}
    parsed, words, position = Parsed(typed=tuple(typed)), [], 0
    while position < len(typed):
        word, position = typed[position], position + 1
        if word == "--":
            words += [(rest, POSITIONAL) for rest in typed[position:]]
            break
        if not word.startswith("-") or word == "-":
            words.append((word, POSITIONAL))
            continue
        flag, equals, attached = word.partition("=")
        option, value = _find(spec, options, flag)
        following = typed[position] if position < len(typed) else None
        if equals and (option.takes == "switch" or value):
            raise UsageError(f"{flag} takes no value, found {attached!r}", f"Write {flag} alone.")
        if equals:
            value = attached
        elif value is None:
            value, used = _value(option, flag, following, options)
            position += used
        if option.key == SOURCES and spec.sources:
            words += [(part, flag) for part in _split(value)]
        else:
            parsed.given.setdefault(option.key, []).append((value, flag))
    _place(spec, words, parsed)
    _convert(spec, parsed)
    return parsed


def _find(spec: CommandSpec, options: Mapping[str, Option], flag: str) -> tuple[Option, str | None]:
    """The option of a flag; its value already for --no-flag."""
    plain = flag.replace("_", "-")
    found = _known(options, plain)
    if found is None:
        raise unknown_option(spec, plain, list(options))
    return found, None if plain in options else "false"


def _known(options: Mapping[str, Option], plain: str) -> Option | None:
    """The option that a flag names or, as --no-flag, negates."""
    if plain in options:
        return options[plain]
    positive = options.get("--" + plain.removeprefix("--no-")) if plain.startswith("--no-") else None
    return positive if positive is not None and positive.takes == "bool" else None


def _value(option: Option, flag: str, following: str | None, options: Mapping[str, Option]) -> tuple[str, int]:
    """An option's value, and how many of the following words it took."""
    if option.takes == "switch":
        return "true", 0
    if option.takes == "bool":
        known = {**TRUTH, **WORDS, **{choice: choice for choice in option.choices}} if option.choices else TRUTH
        truth = known.get((following or "").lower())
        return (truth, 1) if truth else ("true", 0)
    is_option = following is not None and _known(options, following.partition("=")[0].replace("_", "-")) is not None
    misspelt = following is not None and following.startswith("--")
    if option.bare is not None and (following is None or is_option or misspelt):
        return option.bare, 0
    if following is None or is_option:
        raise UsageError(f"{flag} needs a value", f"Write {flag} {option.metavar}.")
    if misspelt:
        near = difflib.get_close_matches(following.partition("=")[0].replace("_", "-"), options, n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(
            f"{flag} needs a value, but {following} looks like an unknown option",
            f"{meant}Where it is the value: {flag}={following}",
        )
    return following, 1


def _place(spec: CommandSpec, words: list[tuple[str, str]], parsed: Parsed) -> None:
    """Give the positional words to the positional arguments, or to the sources."""
    if spec.sources:
        if words:
            parsed.given[SOURCES] = words
        return
    slots = [own for own in spec.own if not own.flags]
    for own, (word, _) in zip(slots, words, strict=False):
        parsed.given[own.name] = [(word, own.name.upper())]
    if slots and slots[-1].kind in {"words", "paths"} and len(words) >= len(slots):
        parsed.given[slots[-1].name] = [(word, slots[-1].name.upper()) for word, _ in words[len(slots) - 1 :]]
    elif len(words) > len(slots):
        more = words[len(slots)][0]
        several = " Several sources are given as --dataset A,B." if any(key == SOURCES for key in parsed.given) else ""
        hint = _typed_as_data(spec, parsed, more) or f"See: ftcli {spec.name} --help.{several}"
        raise UsageError(f"ftcli {spec.name} does not take the argument {more!r}", hint)


def _typed_as_data(spec: CommandSpec, parsed: Parsed, word: str) -> str:
    """A hint for data that are typed where a command takes none; "" for any other word."""
    takes = not parsed.has(SOURCES) and any(option.key == SOURCES for option in options_of(spec))
    return f"The data are given by option: --dataset {word}" if takes and os.path.exists(word.rpartition("=")[2]) else ""  # noqa: PTH110 - never raises


def _convert(spec: CommandSpec, parsed: Parsed) -> None:
    for own in spec.own:
        if own.name not in parsed.given:
            if own.required and not parsed.has("help"):
                what = own.flags[0] if own.flags else own.name.upper()
                choices = f": {', '.join(own.choices)}" if own.choices else ""
                raise UsageError(f"ftcli {spec.name} needs {what}{choices}", f"See: ftcli {spec.name} --help")
            parsed.arguments[own.name] = own.default
            continue
        values = [part for raw, _ in parsed.given[own.name] for part in (_split(raw) if own.kind == "list" else [raw])]
        flag = parsed.given[own.name][-1][1]
        for value in values:
            _check_choice(own, value, flag, "" if own.flags else _typed_as_data(spec, parsed, value))
        if own.kind in {"words", "paths"}:
            parsed.arguments[own.name] = tuple(_converted(own, value, flag) for value in values)
        else:
            if own.once and len(values) > 1:
                raise UsageError(f"{flag} is given more than once: {', '.join(values)}", "It takes a single value.")
            parsed.arguments[own.name] = tuple(values) if own.kind == "list" else _converted(own, values[-1], flag)
    for own in COMMON:
        if own.name in parsed.given and own.kind == "path":
            _converted(own, parsed.given[own.name][-1][0], own.flags[0])


def _check_choice(own: Own, value: str, flag: str, instead: str) -> None:
    if own.choices and value not in own.choices:
        near = difflib.get_close_matches(value, own.choices, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"{flag} = {value!r}: no such choice", instead or f"Choose from: {', '.join(own.choices)}.{meant}")


def _converted(own: Own, raw: str, flag: str) -> Any:
    if own.kind == "switch":
        return True
    if own.kind in {"path", "paths"}:
        if not raw:
            raise UsageError(f"{flag} is empty", "Give a path.")
        return Path(os.path.expanduser(raw))  # noqa: PTH111 - never raises; a shell leaves the ~ of --output=~/x
    if own.kind in {"int", "float"}:
        try:
            return int(raw.replace("_", "")) if own.kind == "int" else float(raw)
        except ValueError:
            word, example = ("whole number", "1000") if own.kind == "int" else ("number", "0.3")
            raise UsageError(f"{flag} = {raw!r}: not a {word}", f"Write {flag} {example}, for example.") from None
    return raw


def _split(raw: str) -> list[str]:
    return [part.strip() for part in raw.split(",") if part.strip()]


def merged(key: str, values: list[tuple[str, str]]) -> tuple[Any, str]:
    """What a setting comes to that was typed so often, and the last flag of it."""
    from ftcli.sources import parse as read

    flag = values[-1][1]
    if key == SOURCES and POSITIONAL in {flag for _, flag in values}:  # split already; a file's own comma stays
        return [raw for raw, _ in values], values[0][1]
    parts = [read(key, raw, flag) for raw, flag in values]
    if all(isinstance(part, list) for part in parts):
        return [item for part in parts for item in part], flag
    section, _, name = key.partition(".")
    if extra(sections()[section].model_fields[name], "pairs"):
        return ",".join(parts), flag
    return parts[-1], flag
