"""`ftcli profiles`: list them, show one, or detect the one for this machine."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.errors import SettingsError, UsageError
from ftcli.machine import cut_to_cores
from ftcli.records import Choice, Machine, Report
from ftcli.sources import about_profile, profile_layer, profile_names, profile_path

GIGABYTE = 10**9
CORE_COUNTS = ("dataset.num_proc", "runtime.threads")
"""Settings that are ceilings on cores in a profile."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile's own table, and where it was found."""

    name: str
    origin: str
    description: str
    min_cores: int | None
    """None: never chosen by detection."""
    min_memory_gb: float
    text: str


def run(context: Context, action: str, name: str) -> Report:
    """
    Args:
        action: list, show (of `name`) or detect.

    Raises:
        UsageError: show without a name, or a name where none belongs.
        SettingsError: there is no such profile, or it cannot be read.
    """
    if (action == "show") != bool(name):
        raise UsageError(f"ftcli profiles {action} {'needs a name' if action == 'show' else f'takes no name, found {name!r}'}", _names())
    if action == "show":
        profile = load(name)
        profile_layer(name)  # a profile that would be refused is refused here too
        lines = [f"# {profile.origin}", *profile.text.rstrip().splitlines()]
        return context.report("profiles", {"profile": name}, details={"lines": lines})
    if action == "detect":
        return _detect(context)
    profiles = [load(each) for each in profile_names()]
    rows = [[p.name, p.description, str(p.min_cores or "-"), f"{p.min_memory_gb:g} GB", p.origin] for p in profiles]
    table = {"head": ["profile", "for", "from cores", "from memory", "where"], "rows": rows}
    return context.report("profiles", {"profiles": len(profiles)}, details={"table": table})


def load(name: str) -> Profile:
    """
    Raises:
        SettingsError: there is no such profile, or its file is damaged.
    """
    path: Any = profile_path(name)
    try:
        text = path.read_text(encoding="utf-8-sig")
        table = about_profile(tomllib.loads(text).get("profile", {}), name, path)
        return Profile(
            name=Path(name).stem,
            origin=f"packaged as {name}.toml" if path.parent == resources.files("ftcli.profiles") else str(path),
            description=str(table.get("description", "")),
            min_cores=int(table["min_cores"]) if "min_cores" in table else None,
            min_memory_gb=float(table.get("min_memory_gb", 0)),
            text=text,
        )
    except (OSError, tomllib.TOMLDecodeError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise SettingsError(f"profile {name!r} ({path}) cannot be read: {error}", "Fix the file.") from error


def choose(machine: Machine) -> Choice:
    """The most demanding profile that this machine meets, with the figures that decided."""
    have = f"{machine.cores} cores by {machine.how.get('cores', 'count')}, {machine.memory_bytes / GIGABYTE:.0f} GB"
    fits = [
        profile
        for profile in map(load, profile_names())
        if profile.min_cores is not None and machine.cores >= profile.min_cores and machine.memory_bytes / GIGABYTE >= profile.min_memory_gb
    ]
    if not fits:
        raise SettingsError(f"no profile fits this machine ({have})", _names())
    best = max(fits, key=lambda profile: (profile.min_cores or 0, profile.min_memory_gb, profile.name))
    return Choice(best.name, f"{have}; it is for {best.min_cores} or more cores and {best.min_memory_gb:g} GB")


def _detect(context: Context) -> Report:
    machine = context.machine
    chosen = choose(machine)
    rows = []
    for key, (value, origin) in profile_layer(chosen.value).values.items():
        count = int(value) if key in CORE_COUNTS and str(value).isdecimal() else None
        cut = Choice(value, "") if count is None else cut_to_cores(count, origin, machine)
        rows.append([key, str(value), str(cut.value), cut.reason if cut.value != value else ""])
    metrics = {"profile": chosen.value, "cores": machine.cores, "memory_gb": round(machine.memory_bytes / GIGABYTE, 1)}
    table = {"head": ["setting", "profile", "used", "why"], "rows": rows}
    return context.report("profiles", metrics, details={"title": f"{chosen.value}: {chosen.reason}", "table": table})


def _names() -> str:
    return f"Profiles: {', '.join(profile_names())}."
