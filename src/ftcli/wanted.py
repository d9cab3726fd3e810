"""What a setting takes, in words and by an example: what is said where a value is none of it."""

from __future__ import annotations

import difflib
import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from ftcli.fields import kinds_of, variable_of

WORDS = {int: "a whole number", float: "a number", Path: "a path", dict: "a table (JSON)", str: "a text", list: "a list of texts"}
BOUNDS = {"ge": "{:,} or more", "gt": "more than {:,}", "le": "{:,} at most", "lt": "less than {:,}", "min_length": "{} character or more"}
EXAMPLES = {bool: "true", int: "8", float: "0.5", Path: "folder", dict: '{"name": 1}', str: "name", list: "one,two"}


def wanted(info: FieldInfo) -> str:
    """All that a field takes, with its bounds: "a whole number, 1 or more"."""
    kinds, words = kinds_of(info.annotation), choices(info.annotation)
    bounds = [said.format(getattr(each, name)) for each in info.metadata for name, said in BOUNDS.items() if hasattr(each, name)]
    plain = [
        f"{said}, {' and '.join(bounds)}" if bounds else said
        for kind, said in WORDS.items()
        if kind in kinds and not (kind is str and words)
    ]
    every = [*(("true", "false") if bool in kinds else ()), *plain, *words]
    return " or ".join(filter(None, (", ".join(every[:-1]), every[-1])))


def choices(annotation: Any) -> tuple[str, ...]:
    """The words that a field takes beside other types, or alone."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(word for part in get_args(annotation) if get_origin(annotation) is not Annotated for word in choices(part))


def for_example(section: str, name: str, info: FieldInfo, value: Any, origin: str) -> str:
    """A value that is taken, written as `origin` has it: as a flag, a variable or a line of a file."""
    made = _example(info, value)
    if origin == "--set":
        return f"--set {section}.{name}={shlex.quote(made)}"
    if origin.startswith("--"):
        return f"{origin}={made}" if kinds_of(info.annotation) >= {bool} else f"{origin} {shlex.quote(made)}"
    if origin == variable_of(section, name):
        return f"{origin}={shlex.quote(made)}"
    return f"{name} = {json.dumps(made) if kinds_of(info.annotation) <= {str, type(None)} else made} under {section}"


def _example(info: FieldInfo, value: Any) -> str:
    kinds = kinds_of(info.annotation)
    if offered := choices(info.annotation):
        near = difflib.get_close_matches(str(value), offered, n=1)
        if near or kinds <= {str, type(None)}:
            return (near or offered)[0]
    if info.default and not isinstance(info.default, bool) and info.default != -1:
        return str(info.default)
    return next(example for kind, example in EXAMPLES.items() if kind in kinds)
