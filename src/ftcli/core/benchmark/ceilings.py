"""Settings of which a profile's value is a ceiling, cut to the machine, while a user's is kept: a child process gets them from a profile too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftcli.settings import Settings, get

KEYS = ("dataset.num_proc", "dataset.writer_batch_size")
Ceilings = frozenset[tuple[str, Any]]
"""Settings and values that came from a profile."""


def ceilings(found: Mapping[str, tuple[Any, str]]) -> Ceilings:
    """Those among settings with their values and origins."""
    return frozenset((key, value) for key, (value, origin) in found.items() if key in KEYS and origin.startswith("profile "))


def write_profile(settings: Settings, known: Ceilings, path: Path) -> set[str]:
    """Write those that the settings still have as a profile; their names, which no file above it may set."""
    kept = {key: value for key, value in known if get(settings, key) == value}
    lines = ["[dataset]", *(f"{key.removeprefix('dataset.')} = {value}" for key, value in sorted(kept.items()))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return set(kept)
