"""Options of a command: made from the fields of the settings, the command's own and the common ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from ftcli.cli.catalog import COMMON
from ftcli.cli.spec import CommandSpec, Own
from ftcli.fields import extra, flag_of, variable_of
from ftcli.settings import walk

Takes = Literal["value", "list", "bool", "switch"]
"""bool: --flag, --no-flag, --flag true|false, and what else it may be. switch: --flag only."""
TITLES = {
    "dataset": "Dataset",
    "tokenizer": "Tokenizer",
    "packing": "Packing",
    "loader": "Batches",
    "model": "Model",
    "train": "Training",
    "launch": "Several processes",
    "tracking": "Tracking",
    "runtime": "Runtime",
    "benchmark": "Benchmark",
}
OWN, SHARED = "Options", "Common options"


@dataclass(frozen=True, slots=True)
class Option:
    """One option as parsed and as shown. `key` is "section.field" for a setting, the argument's name otherwise."""

    key: str
    flags: tuple[str, ...]
    group: str
    help: str
    takes: Takes
    metavar: str = ""
    choices: tuple[str, ...] = ()
    bare: str | None = None
    hidden: bool = False

    def record(self) -> tuple[str, str]:
        """The two columns of `--help`."""
        names = ", ".join(sorted(self.flags, key=len))
        if self.takes == "bool":
            names = "--[no-]" + self.flags[0].removeprefix("--")
        if self.metavar:
            names += f" [{self.metavar}]" if self.bare or self.takes == "bool" else f" {self.metavar}"
        return names, self.help


def options_of(spec: CommandSpec) -> list[Option]:
    """Every option of a command in the order of its help: its own, the settings by section, the common ones."""
    settings = [option for option in setting_options(dict(spec.says)) if _shown(spec, option.key)]
    return [*(_own(own, OWN) for own in spec.own if own.flags), *settings, *(_own(own, SHARED) for own in COMMON)]


def setting_options(says: Mapping[str, str] = MappingProxyType({})) -> Iterator[Option]:
    """An option for every field of the settings, in the words of `says` where it has some."""
    for section, name, info in walk():
        yield _from_field(section, name, info, says.get(f"{section}.{name}", str(info.description)))


def _shown(spec: CommandSpec, key: str) -> bool:
    return key not in spec.hides and (key in spec.shows or key.partition(".")[0] in spec.shows)


def _own(own: Own, group: str) -> Option:
    takes: Takes = "switch" if own.kind == "switch" else "list" if own.kind == "list" else "value"
    metavar = {"text": "TEXT", "int": "INT", "float": "FLOAT", "path": "PATH", "switch": "", "list": "TEXT,…"}[own.kind]
    help_ = own.help
    if own.required:
        help_ += " [required]"
    elif own.kind != "switch" and own.default not in {None, ""} and own.default != ():
        help_ += f" [default {own.default}]"
    return Option(own.name, own.flags, group, help_, takes, _choice_metavar(own.choices, takes) or metavar, own.choices)


def _from_field(section: str, name: str, info: FieldInfo, words: str) -> Option:
    kind, choices = _type_of(info.annotation)
    takes: Takes = "bool" if kind is bool else "list" if kind is list else "value"
    metavar = {bool: "", int: "INT", float: "FLOAT", list: "TEXT,…", dict: "JSON"}.get(kind, "PATH" if kind.__name__ == "Path" else "TEXT")
    return Option(
        key=f"{section}.{name}",
        flags=(flag_of(name, info),),
        group=TITLES[section],
        help=_help(section, name, info, words),
        takes=takes,
        metavar=_choice_metavar(choices, takes) or metavar,
        choices=choices,
        bare=extra(info, "bare"),
        hidden=bool(extra(info, "hidden")),
    )


def _help(section: str, name: str, info: FieldInfo, words: str) -> str:
    remarks = [] if f"{section}.{name}" in RUNS_CODE else [variable_of(section, name)]
    if info.default is not None and not isinstance(info.default, bool):
        remarks.append(f"default {info.default}")
    elif info.default is True:
        remarks.append("default yes")
    return f"{words} [{'; '.join(remarks)}]" if remarks else words


RUNS_CODE = frozenset({"tokenizer.trust_remote_code", "dataset.trust_pickle"})
"""Fields without a variable, because only the command line may set them (`ftcli.sources.CLI_ONLY`, too dear to import for help)."""


def _choice_metavar(choices: tuple[str, ...], takes: Takes) -> str:
    return "|".join(choices) + (",…" if takes == "list" else "") if choices else ""


def _type_of(annotation: Any) -> tuple[type, tuple[str, ...]]:
    """The plain type inside an annotation, and the values of a Literal."""
    origin = get_origin(annotation)
    if origin in {Union, UnionType}:
        first, *others = (_type_of(part) for part in get_args(annotation) if part is not type(None))
        return first if first[0] is not bool else (bool, tuple(word for _, words in others for word in words))
    if origin is Literal:
        return str, get_args(annotation)
    return origin or annotation, ()
