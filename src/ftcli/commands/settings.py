"""`ftcli settings`: values with their origins, and the shell lines of the environment hook."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftcli.commands import settings_import
from ftcli.context import Context
from ftcli.environment import compute
from ftcli.errors import UsageError
from ftcli.records import Report


def run(
    context: Context,
    action: str,
    file: Path | None,
    kind: str | None,
    output: Path | None,
    show_all: bool,
    export_env: bool,
) -> Report:
    """What is set and by whom; with `export_env` the `export` lines of `optimize_env.sh` in `details["lines"]`.

    Args:
        action: show, or import for what `ftcli.commands.settings_import.run` does with `file`, `kind` and `output`.
        show_all: defaults too.

    Raises:
        UsageError: action and options do not fit.
    """
    if action == "import":
        if file is None:
            raise UsageError("ftcli settings import needs a file", "Example: ftcli settings import axolotl.yml --output run.toml")
        return settings_import.run(context, file, kind, output)
    if file is not None or kind is not None or output is not None:
        raise UsageError("ftcli settings show takes no file", "To read another trainer's file: ftcli settings import FILE")
    origins = context.resolved.origins
    if export_env:
        lines = export_lines(context)
        return context.report("settings", {"variables": sum(not line.startswith("#") for line in lines)}, details={"lines": lines})
    shown = {key: value for key, value in sorted(origins.items()) if show_all or value.origin != "default"}
    rows = [[key, as_text(value.value), value.origin] for key, value in shown.items()]
    metrics = {"settings_set": sum(value.origin != "default" for value in origins.values()), "settings_total": len(origins)}
    title = f"{metrics['settings_set']} of {metrics['settings_total']} settings are set; the others have their defaults"
    details: dict[str, Any] = {"title": title, "table": {"head": ["setting", "value", "from"] if rows else [], "rows": rows}}
    return context.report("settings", metrics, details=details)


def export_lines(context: Context) -> list[str]:
    """`export NAME='value'  # reason` for what the environment hook computes; what the user set otherwise stays, as a comment."""
    lines = []
    for variable, tweak in compute(context.plugins, context.settings, context.machine).items():
        yours = os.environ.get(variable)
        if not yours:
            lines.append(f"export {variable}={shlex.quote(tweak.value)}  # {_one_line(tweak.reason)}")
        elif yours != tweak.value:
            lines.append(
                f"# {variable} stays {_one_line(yours)}, which is already set; ftcli would set {tweak.value}: {_one_line(tweak.reason)}"
            )
    return lines


def as_text(value: Any) -> str:
    """A value as it would be typed."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Path) and ":/" in str(value):
        from ftcli.core.files.objects import url_of

        with suppress(UsageError):  # an address with a secret in it is shown, masked, and refused by who uses it
            return url_of(value) or str(value)
    return ",".join(map(as_text, value)) if isinstance(value, (list, tuple)) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())
