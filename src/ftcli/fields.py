"""What a setting's field declares besides its type: help, flag, whether `--help` lists it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import date
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?:/|$)")
"""How an address begins. A `Path` leaves one slash of two, and none at the end; one letter before the colon is a drive."""
NAMELESS = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:(/*|///.*)", re.DOTALL)
"""An address without a bucket, as an empty variable leaves it. A `Path` would show neither that nor where the name begins."""
NO_BUCKET = "it names no bucket (is a variable in it empty?); an address is written as s3://bucket/name"


def _share(value: Any) -> Any:
    text = value.strip() if isinstance(value, str) else ""
    share = float(text[:-1]) / 100 if text.endswith("%") else value
    with suppress(TypeError, ValueError):  # pydantic says what is no number
        share = float(share)
    if isinstance(share, float) and share > 1:
        way = "" if text.endswith("%") or not 1 < share <= 100 else f"; {share:g} of a hundred are written {share:g}%"
        raise ValueError(f"a share is at most 1 (100%){way}")
    return share


Share = Annotated[float, BeforeValidator(_share)]
"""A part of a whole, written as 0.001 or 0.1%."""


def _ray_address(value: str) -> str:
    if value in {"auto", "local"} or re.fullmatch(r"([\w.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}", value):
        return value
    raise ValueError("an address is auto, local or HOST:PORT (of the cluster's head, as `ray start --head` prints it)")


RayAddress = Annotated[str, AfterValidator(_ray_address)]
"""Where a Ray cluster is: auto, local or HOST:PORT."""


def _here(value: Path | None) -> Path | None:
    if value is not None and ADDRESS.match(str(value)):
        raise ValueError("it must be a local directory, not an address")
    return value


LocalFolder = Annotated[Path, AfterValidator(_here)]
"""A directory, and no address such as s3://bucket/name."""
MaybeLocalFolder = Annotated[Path | None, AfterValidator(_here)]
"""The same, or unset."""


def _day(value: Any) -> Any:
    try:
        return value if value is None else date.fromisoformat(str(value)).isoformat()
    except ValueError as error:
        raise ValueError("a date is written as 2026-11-28") from error


MaybeDay = Annotated[str | None, BeforeValidator(_day)]
"""A date as 2026-11-28, or unset; TOML and YAML know dates themselves."""


def kinds_of(annotation: Any) -> set[Any]:
    """The plain types inside a field's annotation."""
    origin = get_origin(annotation)
    if origin in {Union, UnionType}:
        return set().union(*(kinds_of(part) for part in get_args(annotation)))
    if origin is Annotated:
        return kinds_of(get_args(annotation)[0])
    return {str} if origin is Literal else {origin or annotation}


def at_home(value: Any) -> Any:
    """A path, or each of a list, with ~ and ~user at its beginning for the home directory; anything else as it is.

    A shell does that where the sign begins a word: not behind `--output-dir=`, and not in a file. What is left is a directory called ~.
    """
    if isinstance(value, list):
        return [at_home(item) for item in value]
    if isinstance(value, Path):
        return Path(os.path.expanduser(value))  # noqa: PTH111 - never raises, where there is no home or no such user
    return os.path.expanduser(value) if isinstance(value, str) else value  # noqa: PTH111


class Section(BaseModel):
    """A section of the settings tree: frozen, unknown keys refused, a home directory for ~ wherever a path comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _meant(cls, value: Any, info: ValidationInfo) -> Any:
        """As it is. pydantic makes 1 of true, as YAML reads yes and on, and the working directory of an empty path, as a script's unset variable is one."""
        kinds = kinds_of(cls.model_fields[info.field_name or ""].annotation)
        if isinstance(value, bool) and not kinds.isdisjoint({int, float}) and bool not in kinds:
            raise ValueError("a number is wanted, not true or false (YAML reads yes, no, on and off as these)")
        if value == "" and Path in kinds:
            raise ValueError("it is empty: give a path, or remove it")
        if isinstance(value, str) and Path in kinds and NAMELESS.fullmatch(value):
            raise ValueError(NO_BUCKET)
        return value

    @field_validator("*")
    @classmethod
    def _at_home(cls, value: Any, info: ValidationInfo) -> Any:
        is_path = isinstance(value, Path) or extra(cls.model_fields[info.field_name or ""], "path")
        return at_home(value) if is_path else value


def setting(
    default: Any,
    help_: str,
    *,
    flag: str | None = None,
    bare: str | None = None,
    hidden: bool = False,
    path: bool = False,
    pairs: bool = False,
    **constraints: Any,
) -> Any:
    """Declare a setting.

    Args:
        default: value when nobody sets it; None means unset.
        help_: one sentence for `--help` and the settings reference.
        flag: flag when it is not `--field-name`.
        bare: value of the flag when it is given without one.
        hidden: leave it out of `--help` (it still works).
        path: a string that may be a path; a field of `Path` is one anyway.
        pairs: a string of NAME=VALUE,…: a flag that is repeated adds to it.
        constraints: pydantic's (ge, le, …).
    """
    extra: dict[str, Any] = {"hidden": hidden, "path": path}
    if flag is not None:
        extra["flag"] = flag
    if pairs:
        extra["pairs"] = True
    if bare is not None:
        extra["bare"] = bare
    return Field(default, description=help_, json_schema_extra=extra, **constraints)


def extra(info: FieldInfo, key: str) -> Any:
    """What `setting` stored under `key`, or None."""
    declared = info.json_schema_extra
    return declared.get(key) if isinstance(declared, dict) else None


def flag_of(name: str, info: FieldInfo) -> str:
    """The field's flag: `--max-length` for max_length unless it declares another."""
    return extra(info, "flag") or "--" + name.replace("_", "-")


def variable_of(section: str, name: str) -> str:
    """The field's environment variable: DATASET_NUM_PROC for dataset.num_proc."""
    return f"{section}_{name}".upper()
