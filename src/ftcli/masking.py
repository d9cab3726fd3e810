"""What must not be shown: passwords in URLs, the values of variables that hold secrets, and characters that drive a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
SHORTEST = 6
"""A shorter value may be a word of any text ("true", "1")."""
_NAMES = re.compile(r"(?=.*(TOKEN(?!IZER|S)|SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL))(?!.*(PATH|FILE|DIR)$)")
_USER = re.compile(r"(:/{1,2})[^\s/'\"<>]+(?=@)")  # pathlib makes one slash of two
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\x1b(?!\[\d*m)")


def masked(text: str) -> str:
    """`text` without the user and password of URLs and without the values of this process's secret variables.

    >>> masked("https://me:secret@host/x")
    'https://***@host/x'
    """
    text = _USER.sub(rf"\1{MASK}", text)
    for value in secrets(os.environ):
        text = text.replace(value, MASK)
    return text


def masked_values(value: Any) -> Any:
    """A setting's value with every string in it masked."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, (list, tuple)):
        return [masked_values(item) for item in value]
    return {key: masked_values(item) for key, item in value.items()} if isinstance(value, dict) else value


def secrets(environ: Mapping[str, str]) -> list[str]:
    """Values of the variables whose names say that they are secret, longest first."""
    found = {value for name, value in environ.items() if len(value) >= SHORTEST and _NAMES.match(name.upper())}
    return sorted(found, key=len, reverse=True)


def printable(text: str) -> str:
    """`text` with control characters as escapes; line ends, tabs and colours stay.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
