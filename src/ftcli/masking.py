"""What must not be shown: passwords in URLs, the values of variables that hold secrets, and characters that drive a terminal."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ftcli.errors import FtcliError

T = TypeVar("T")
MASK = "***"
NOT_SHOWN = "set, not shown"
SHORTEST = 6
"""A shorter value may be a word of any text ("true", "1")."""
_NAMES = re.compile(r"(?=.*((?<!GIGA)TOKEN(?!IZER|S)|SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL))(?!.*(PATH|FILE|DIR)$)")
_FIGURES = re.compile(r"(?:^|_)(?:LENGTH|LIMIT|MAX|MIN|COUNT|SIZE|NUM|TTL|BUDGET)(?:_|$)")
"""Words of a name such as MAX_TOKEN_LENGTH, whose number is no secret; ADMIN_PASSWORD and ACCOUNT_TOKEN have none of them."""
_USER = re.compile(r"(:/{1,2})[^\s/'\"<>]+(?=@)")  # pathlib makes one slash of two
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}"
    r"|pypi-[\w-]{16,}|nvapi-[\w-]{16,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"
    r"|[0-9a-fA-F]{32,}|(?=[A-Za-z]*[0-9])(?=[A-Z0-9]*[a-z])(?=[a-z0-9]*[A-Z])[A-Za-z0-9]{32,})(?![A-Za-z0-9])"
)
"""Tokens of services that people use beside this, and what is long and looks random."""
_KEY = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{22,}|glpat-[\w-]{20,}|sk-(?=[\w-]*[0-9])(?=[\w-]*[A-Z])[\w-]{20,}"
    r"|xox[abprs]-[\w-]{10,}|pypi-[\w-]{40,}|nvapi-[\w-]{40,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,})(?![A-Za-z0-9])"
)
"""Keys of services that somebody put into a setting. Narrower than `_TOKEN`: the name of a file, a model or a revision must stay what it is."""
_GIVEN = re.compile(
    r"(?i)((?:(?<!giga)token(?!iz|s)|secret|passw(?:or)?d|passphrase|pwd|api[_ -]?key|access[_ -]?key|private[_ -]?key|credential|signature|\bsig)"
    r"[\w-]*[\"']?\s*[=:]\s*[\"']?|\bauthorization:\s*(?:\w+\s+)?|\bbearer\s+)[^\s\"'&,;)}\]]+"
)
"""password=…, "api_key": "…", Authorization: …"""
_HOMES = re.compile(r"((?:^|(?<=[^\w.~]))/(?:home|Users)/|\\Users\\)[^\s/\\'\":;,)]+")
_PATH = re.compile(r"[^\s'\"]*[/\\][^\s'\"]*")
PUBLIC = frozenset({"root", "ftcli", "home", "user", "users", "tmp", "usr", "lib", "python"})
"""Names of users that name nobody, and parts of paths that a name must not hide."""
_COLOUR = f"\x1b{os.urandom(8).hex()}["
"""Begins a colour of ours until it is printed: no text can hold it."""
_CONTROL = re.compile(rf"{re.escape(_COLOUR)}(\d+m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def masked(text: str) -> str:
    """`text` without the user and password of URLs and without the values of this process's secret variables.

    >>> masked("https://me:secret@host/x")
    'https://***@host/x'
    """
    return _without(text, secrets(os.environ))


def _without(text: str, values: Sequence[str]) -> str:
    text = _USER.sub(rf"\1{MASK}", text)
    for value in values:
        text = text.replace(value, MASK)
    return text


class Clean(str):
    """A text without secrets and control characters: masked once more, a number in it could be taken for one."""

    __slots__ = ()


def masked_json(document: Any, **options: Any) -> Clean:
    """The document as JSON that can be read: what stands in its strings is masked, and what drives a terminal is written as JSON does."""
    text = json.dumps(_masked_strings(document, secrets(os.environ)), **options)  # to look for them at every string takes 0.1 s a report
    return Clean(_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def _masked_strings(value: Any, hidden: Sequence[str]) -> Any:
    if isinstance(value, str):
        return _without(value, hidden)
    if isinstance(value, (list, tuple)):
        return [_masked_strings(item, hidden) for item in value]
    if isinstance(value, dict):
        return {_masked_strings(key, hidden): _masked_strings(item, hidden) for key, item in value.items()}
    return value


def shown(value: T) -> T:
    """A value whose strings are put together to lines: each masked for itself, and without control characters."""
    return _printable(_masked_strings(value, secrets(os.environ)))  # type: ignore[no-any-return]


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return {key: _printable(item) for key, item in value.items()} if isinstance(value, dict) else value


def masked_values(value: Any, hidden: Sequence[str] | None = None) -> Any:
    """A setting's value with every string in it masked, and what is known for a service's key whatever variable holds it.

    Args:
        hidden: this process's `secrets`, where there are many values: to look for them at each took 2 ms a command.

    >>> masked_values("run of AKIAABCDEFGHIJKLMNOP")
    'run of ***'
    """
    if isinstance(value, str):
        return _KEY.sub(MASK, _without(value, secrets(os.environ) if hidden is None else hidden))
    if isinstance(value, (list, tuple)):
        return [masked_values(item, hidden) for item in value]
    return {key: masked_values(item, hidden) for key, item in value.items()} if isinstance(value, dict) else value


def secrets(environ: Mapping[str, str]) -> list[str]:
    """Values of the variables whose names say that they are secret, longest first."""
    named = [(name.upper(), value) for name, value in environ.items() if len(value) >= SHORTEST and _NAMES.match(name.upper())]
    found = {value for name, value in named if not (value.isdigit() and _FIGURES.search(name))}
    return sorted(found, key=len, reverse=True)


def coloured(text: str, code: int) -> str:
    """`text` in a colour that `printable` leaves there, as it does no other one."""
    return f"{_COLOUR}{code}m{text}{_COLOUR}0m"


def printable(text: str) -> str:
    """`text` with control characters as escapes; line ends, tabs and what is `coloured` stay.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _CONTROL.sub(lambda found: f"\x1b[{found[1]}" if found[1] else found[0].encode("unicode_escape").decode(), text)


def private(text: str) -> str:
    """`masked`, and without anything else that others should not read: what looks like a token, the home folder, names of users in paths.

    >>> private("/home/kim/data?token=abc")
    '/home/***/data?token=***'
    """
    text = _GIVEN.sub(rf"\1{MASK}", _TOKEN.sub(MASK, masked(text)))
    homes, users = _people()
    for home in homes:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    text = _HOMES.sub(rf"\1{MASK}", text)
    if users:
        names = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, users))})(?![A-Za-z0-9])")
        text = _PATH.sub(lambda path: names.sub(MASK, path[0]), text)
    return text


def private_values(value: T) -> T:
    """`value`, of any record, mapping or list, with every string in it private; what stands under the name of a secret is not shown at all."""
    return _private(value)  # type: ignore[no-any-return]


def _private(value: Any) -> Any:
    if isinstance(value, str):
        return private(value)
    if isinstance(value, PurePath):
        return private(str(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{field.name: _private(getattr(value, field.name)) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {_private(key): _hidden(item) if _NAMES.match(str(key).upper()) else _private(item) for key, item in value.items()}
    return type(value)(map(_private, value)) if isinstance(value, (list, tuple)) else value


def as_dict(error: FtcliError) -> dict[str, str]:
    """An error as reports have it."""
    return {"code": error.code, "message": masked(error.message), "hint": masked(error.hint)}


def _hidden(value: Any) -> Any:
    return NOT_SHOWN if isinstance(value, str) and value else None if value is None else MASK


def _people() -> tuple[list[str], list[str]]:
    """Home folders of this user, and the user's names, longest first."""
    environ = os.environ
    homes = {os.path.expanduser("~")}  # noqa: PTH111 - Path.home() raises where there is none
    names = {environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:  # a container's number without a name
        pass
    else:
        homes.add(entry.pw_dir)
        names.add(entry.pw_name)
    homes |= {os.path.realpath(home) for home in homes}
    names |= {os.path.basename(home) for home in homes}  # noqa: PTH119
    kept = [name for name in names if len(name) > 2 and name.lower() not in PUBLIC]
    return sorted((home for home in homes if home.count("/") and home.strip("/~")), key=len, reverse=True), sorted(
        kept, key=len, reverse=True
    )
