"""What the words of a command say besides its own options: the common switches with their variables, and settings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.errors import UsageError

if TYPE_CHECKING:
    from ftcli.cli.parse import Parsed


@dataclass(frozen=True, slots=True)
class Switches:
    """The common options, with their variables."""

    config: Path | None
    profile: str | None
    plugins_dir: Path | None
    allow: tuple[str, ...] | None
    json: bool
    quiet: bool
    verbose: bool

    @classmethod
    def of(cls, parsed: Parsed) -> Switches:
        environ = os.environ
        config = parsed.last("config") or environ.get("FTCLI_CONFIG")
        folder = None if parsed.has("no_plugins") else parsed.last("plugins_dir") or environ.get("FTCLI_PLUGINS_DIR")
        names = "" if parsed.has("no_plugins") else environ.get("FTCLI_PLUGINS")
        return cls(
            config=Path(os.path.expanduser(config)) if config else None,  # noqa: PTH111 - never raises
            profile=os.path.expanduser(parsed.last("profile") or environ.get("FTCLI_PROFILE") or "") or None,  # noqa: PTH111
            plugins_dir=Path(os.path.expanduser(folder)) if folder else None,  # noqa: PTH111
            allow=None if names is None else tuple(name.strip() for name in names.split(",") if name.strip()),
            json=parsed.has("json") or (parsed.last("format") == "json" and not parsed.has("output")),
            quiet=parsed.has("quiet"),
            verbose=parsed.has("verbose"),
        )


def typed_settings(parsed: Parsed) -> dict[str, tuple[Any, str]]:
    """Settings from the command line; --set reaches every field.

    Raises:
        UsageError: --set is not KEY=VALUE, or a key is given by its flag as well.
    """
    values, sets = parsed.settings(), parsed.given.get("set", ())
    if not sets:
        return values
    from ftcli.cli.parse import merged
    from ftcli.sources import check_key

    typed: dict[str, list[tuple[str, str]]] = {}
    for raw, flag in sets:
        key, equals, value = raw.partition("=")
        if not equals:
            raise UsageError(f"{flag} {raw}: no value", f"Write {flag} section.field=value.")
        key = key.strip().replace("-", "_")
        check_key(key, flag)
        if key in values:
            raise UsageError(f"{key} is given twice: by {values[key][1]} and by {flag}", "Leave one out.")
        typed.setdefault(key, []).append((value, flag))
    return values | {key: merged(key, given) for key, given in typed.items()}
