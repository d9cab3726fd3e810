"""What a setting's field declares besides its type: help, flag, whether `--help` lists it."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""How an address begins. A `Path` leaves one slash of two; one letter before the colon is a drive."""


def _share(value: Any) -> Any:
    text = value.strip() if isinstance(value, str) else ""
    return float(text[:-1]) / 100 if text.endswith("%") else value


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
        raise ValueError("it has to be a directory that this machine sees by a path; an address is none")
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


class Section(BaseModel):
    """A section of the settings tree: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def setting(
    default: Any,
    help_: str,
    *,
    flag: str | None = None,
    bare: str | None = None,
    hidden: bool = False,
    **constraints: Any,
) -> Any:
    """Declare a setting.

    Args:
        default: value when nobody sets it; None means unset.
        help_: one sentence for `--help` and the settings reference.
        flag: flag when it is not `--field-name`.
        bare: value of the flag when it is given without one.
        hidden: leave it out of `--help` (it still works).
        constraints: pydantic's (ge, le, …).
    """
    extra: dict[str, Any] = {"hidden": hidden}
    if flag is not None:
        extra["flag"] = flag
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
