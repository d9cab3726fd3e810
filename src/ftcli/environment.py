"""The `environment` hook at work: what plugins want set, merged, and applied before anything heavy is imported."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from ftcli.errors import PluginError
from ftcli.pluginmanager import Plugins
from ftcli.records import Machine, Tweak
from ftcli.settings import Settings

THREADS_AT_IMPORT = ("torch", "numpy")
"""Modules whose thread pools read the environment when they are imported, and never again."""
MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_THRESHOLD_": -3}
"""Variables that glibc reads before Python starts, with the number by which `mallopt` sets the same in a running process."""
_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")


def compute(plugins: Plugins, settings: Settings, machine: Machine) -> dict[str, Tweak]:
    """Every variable that a plugin wants, in the plugins' order.

    Raises:
        PluginError: two plugins want different values for one variable, or one returns what cannot be a variable; names them.
    """
    wanted: dict[str, tuple[Tweak, str]] = {}
    silent = {plugin.name for plugin in plugins.describe() if "environment" in plugin.hooks}
    for plugin, answer in plugins.each("environment", settings=settings, machine=machine):
        silent.discard(plugin)
        for variable, tweak in _checked(answer, plugin).items():
            other, owner = wanted.setdefault(variable, (tweak, plugin))
            if other.value != tweak.value:
                raise PluginError(
                    f"plugins {owner!r} and {plugin!r} disagree on {variable}: {other.value!r} ({other.reason}) and {tweak.value!r} ({tweak.reason})",
                    "Leave one of them out.",
                )
    if silent:  # pluggy keeps None from us
        raise PluginError(
            f"plugin {min(silent)!r}: environment() returned None", "Return a mapping of names to Tweak; {} where nothing is to be set."
        )
    return {variable: tweak for variable, (tweak, _) in wanted.items()}


def apply(
    plugins: Plugins,
    settings: Settings,
    machine: Machine,
    environ: MutableMapping[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Set what the user has not set (empty counts as unset), and say what was set or kept, and why.

    Does nothing when `runtime.manage_environment` is off.

    Args:
        environ: default `os.environ`; any other mapping is filled without touching this process.
        say: gets the lines that concern the user's own variables; the rest is for the report.
    """
    if not settings.runtime.manage_environment:
        return []
    target = os.environ if environ is None else environ
    added: dict[str, str] = {}
    by_reason: dict[str, list[str]] = {}
    notes = []
    for variable, tweak in compute(plugins, settings, machine).items():
        yours = target.get(variable)
        if not yours:
            added[variable] = tweak.value
            by_reason.setdefault(tweak.reason, []).append(f"{variable}={tweak.value}")
        elif yours != tweak.value:
            notes.append(f"{variable}={yours} is already set and kept; ftcli would set {tweak.value} ({tweak.reason})")
    target.update(added)
    if target is os.environ:
        tell_malloc(added)
        notes += _too_late(added)
    for note in notes:
        say(note)
    return [f"{' '.join(names)}: {reason}" for reason, names in by_reason.items()] + notes


def _checked(answer: Any, plugin: str) -> Mapping[str, Tweak]:
    """What a plugin returned, if each of it can be an environment variable on one line of a shell script."""
    if not isinstance(answer, Mapping):
        raise PluginError(f"plugin {plugin!r}: environment() returned {answer!r}", "Return a mapping of names to ftcli.records.Tweak.")
    for variable, tweak in answer.items():
        if not isinstance(tweak, Tweak) or not isinstance(tweak.value, str):
            raise PluginError(f"plugin {plugin!r}: {variable} = {tweak!r} is not a Tweak of a string", 'Return Tweak("2", "reason").')
        if not isinstance(variable, str) or not _NAME.fullmatch(variable) or not tweak.value.isprintable() or not tweak.value:
            raise PluginError(
                f"plugin {plugin!r}: {variable!r} = {tweak.value!r} cannot be an environment variable",
                "A name is upper-case letters, digits and _; a value is one line of printable characters.",
            )
    return answer


def _too_late(added: Mapping[str, str]) -> list[str]:
    threads = [variable for variable in added if variable.endswith("_NUM_THREADS") or variable == "GOMP_SPINCOUNT"]
    loaded = [module for module in THREADS_AT_IMPORT if module in sys.modules]
    if not threads or not loaded:
        return []
    return [f"{', '.join(threads)}: too late for {' and '.join(loaded)}, imported before; set before Python starts: source optimize_env.sh"]


def tell_malloc(added: Mapping[str, str]) -> None:
    """Have this process's glibc follow at once what its children will read when they start."""
    told = {MALLOPT[variable]: int(value) for variable, value in added.items() if variable in MALLOPT and value.isdecimal()}
    if told and sys.platform == "linux":
        import ctypes

        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        for parameter, value in told.items():
            if mallopt is not None:
                mallopt(parameter, value)
