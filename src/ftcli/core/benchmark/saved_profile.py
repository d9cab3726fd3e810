"""A profile that a measurement wrote: settings for `--profile NAME`, with the figures that justify them as comments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from ftcli.core.toml import toml
from ftcli.errors import PublishError, UsageError
from ftcli.sources import profile_layer, user_profiles


def check_name(name: str, *, overwrite: bool) -> Path:
    """Where the profile goes.

    Raises:
        UsageError: it is not a valid name, or there is such a profile already.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or name.endswith(".toml"):
        raise UsageError(f"--save-profile {name!r} is not a valid name", "Use letters, digits, - and _: --save-profile fast")
    path = user_profiles() / f"{name}.toml"
    if path.exists() and not overwrite:
        raise UsageError(f"there is a profile {name!r} already ({path})", "Choose another name, or replace it with --overwrite.")
    return path


def write(path: Path, description: str, measured: Sequence[str], values: Mapping[str, Any]) -> None:
    """Write the profile whole or not at all, and read it back.

    Args:
        measured: lines that say what was measured, where and when.
        values: "section.field" → text, number, truth or list; None cannot stand in a file and is left out.

    Raises:
        PublishError: it cannot be written.
    """
    lines = [f"# {' '.join(line.split())}" for line in (f"Written by ftcli benchmark sweep on {date.today().isoformat()}.", *measured)]  # noqa: DTZ011
    lines += ["[profile]", f"description = {toml(description)}", f"measured = {toml(list(measured))}"]
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        if value is not None:
            sections.setdefault(section, {})[name] = value
    for section, fields in sections.items():
        lines += ["", f"[{section}]", *(f"{name} = {toml(value)}" for name, value in fields.items())]
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise PublishError(
            f"the profile {path} cannot be written: {error.strerror}", "Set XDG_CONFIG_HOME to a writable folder."
        ) from error
    profile_layer(str(path))
