"""Running checks: those that others depend on first, each on its own, so that one that cannot run says why and one that breaks is named."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from ftcli.contracts import CheckKind
from ftcli.core.room import shortage
from ftcli.core.verify.probe import Missing, Probe
from ftcli.errors import FtcliError, PluginError, UsageError
from ftcli.pluginfaults import reason_of
from ftcli.records import STAGES, Check, to_json
from ftcli.registry import Registry

FORM = "a check gets a probe and returns a ftcli.records.Check; docs/plugin-check.md has a small one."
QUICK_STAGES = ("env", "settings", "tokenizer", "data")
"""Stages that build no model and no batch."""
PARTS = tuple(name for name, part in vars(Probe).items() if isinstance(part, property | cached_property))
"""What a check can need: the parts of a probe."""
RANK = {"pass": 0, "info": 0, "skipped": 0, "warn": 1, "fail": 2, "error": 2}


def chosen(
    registry: Registry[CheckKind], stages: Sequence[str], level: str, select: Sequence[str], ignore: Sequence[str]
) -> list[CheckKind]:
    """The checks to run, in stage order, then by id.

    Args:
        stages: names of stages; empty for all that `level` has.
        select, ignore: ids or their beginnings ("FT1", "FT204").

    Raises:
        UsageError: an unknown stage or level, an id that no check begins with, or choices that leave no check.
        PluginError: a plugin registered a check for a stage that does not exist, under another id than its own, or checks that wait for each other.
    """
    if level not in {"quick", "full"}:
        raise UsageError(f"there is no level {level!r}", "Levels: quick (no batch, no model), full.")
    for stage in stages:
        if stage not in STAGES:
            raise UsageError(f"there is no stage {stage!r}", f"Stages: {', '.join(STAGES)}.")
    kinds = every(registry)
    for prefix in (*select, *ignore):
        if not any(kind.id.startswith(prefix) for kind in kinds):
            raise UsageError(f"no check's id begins with {prefix!r}", f"Ids: {', '.join(kind.id for kind in kinds)}.")
    possible = QUICK_STAGES if level == "quick" else STAGES
    found = [
        kind
        for kind in kinds
        if kind.stage in possible
        and (not stages or kind.stage in stages)
        and (not select or kind.id.startswith(tuple(select)))
        and not (ignore and kind.id.startswith(tuple(ignore)))
    ]
    if not found:
        raise UsageError("no check is left to run", f"Level {level} has the stages {', '.join(possible)}; --select and --ignore narrow it.")
    return found


def every(registry: Registry[CheckKind]) -> list[CheckKind]:
    """All checks, in stage order, then by id.

    Raises:
        PluginError: as `chosen`.
    """
    for name, kind in registry.items():
        if kind.stage not in STAGES or kind.id != name:
            raise PluginError(
                f"plugin {registry.owner(name)!r} registers the check {name!r} with the id {kind.id!r} and the stage {kind.stage!r}",
                f"The id must be the name, the stage one of {', '.join(STAGES)}.",
            )
        if unknown := [part for part in kind.needs if part not in PARTS]:
            near = difflib.get_close_matches(unknown[0], PARTS, n=1)
            raise PluginError(
                f"plugin {registry.owner(name)!r}: check {name!r} needs {unknown[0]!r}, which a probe does not have",
                f"{f'Did you mean {near[0]!r}? ' if near else ''}Parts are: {', '.join(PARTS)}.",
            )
    kinds = sorted((kind for _, kind in registry.items()), key=lambda kind: (STAGES.index(kind.stage), kind.id))
    try:
        in_order(kinds)
    except CycleError as error:
        circle = " after ".join(error.args[1])
        owners = ", ".join(sorted({registry.owner(name) for name in error.args[1]}))
        raise PluginError(f"checks wait for each other: {circle} (plugins {owners})", "Take one of them out of CheckKind.after.") from error
    return kinds


def in_order(kinds: Sequence[CheckKind]) -> list[CheckKind]:
    """`kinds` with every one behind those that it comes `after`; else as given. Ids that are not among them are waited for by nobody.

    Raises:
        CycleError: some wait for each other.
    """
    by_id = {kind.id: kind for kind in kinds}
    place = {name: number for number, name in enumerate(by_id)}
    sorter = TopologicalSorter({kind.id: [name for name in kind.after if name in by_id] for kind in kinds})
    sorter.prepare()
    ready, found = set(sorter.get_ready()), []
    while ready:
        name = min(ready, key=place.__getitem__)
        ready.remove(name)
        found.append(by_id[name])
        sorter.done(name)
        ready.update(sorter.get_ready())
    return found


def run_checks(
    probe: Probe, kinds: Sequence[CheckKind], owner: Callable[[str], str], on_check: Callable[[Check], None]
) -> tuple[Check, ...]:
    """Verdicts in the order of `kinds`, found in the order of what depends on what.

    A part that cannot be built fails the first check that needs it; later ones refer to that. A check that comes after one that failed is skipped.

    Args:
        owner: the plugin that registered a check id, named when the check itself breaks.
        on_check: told each verdict at once.
    """
    verdicts: dict[str, Check] = {}
    told: dict[FtcliError, str] = {}
    for kind in in_order(kinds):
        started = time.perf_counter()
        verdict = _verdict(probe, kind, owner, told, verdicts)
        seconds = round(time.perf_counter() - started, 4)
        verdicts[kind.id] = replace(verdict, id=kind.id, stage=kind.stage, severity=kind.severity, seconds=seconds)
        on_check(verdicts[kind.id])
    return tuple(verdicts[kind.id] for kind in kinds)


def _verdict(
    probe: Probe, kind: CheckKind, owner: Callable[[str], str], told: dict[FtcliError, str], verdicts: Mapping[str, Check]
) -> Check:
    if before := [name for name in kind.after if name in verdicts and RANK[verdicts[name].status] == RANK["fail"]]:
        return Check("", "", "skipped", f"{kind.title}: it comes after {', '.join(before)}, which did not pass")
    try:
        return _sound(kind.run(probe))
    except Missing as reason:
        return Check("", "", "skipped", f"{kind.title}: {reason}")
    except FtcliError as error:
        if error in told:
            return Check("", "", "skipped", f"{kind.title}: it needs what {told[error]} found unusable")
        told[error] = kind.id
        return Check("", "", "fail", f"{kind.title}: {error.message}", {}, error.hint)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a broken check must not hide the others
        if short := shortage(error):
            return Check("", "", "error", f"{kind.title}: {short.message}", {}, short.hint)
        words = f"{kind.title}: the check of plugin {owner(kind.id)!r} broke: {reason_of(error)}"
        return Check(
            "",
            "",
            "error",
            words,
            {},
            f"If the plugin is yours: {FORM} Otherwise report it to its author, and skip it with --ignore {kind.id}.",
        )


def _sound(verdict: Check) -> Check:
    """The verdict, if reports can hold it; TypeError or ValueError says why not."""
    if not isinstance(verdict, Check):
        raise TypeError(f"it returned {verdict!r}, and no ftcli.records.Check")
    if verdict.status not in RANK:
        raise ValueError(f"{verdict.status!r} is no status; those are {', '.join(RANK)}")
    for name, value in verdict.evidence.items():
        try:
            json.dumps(to_json(value), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TypeError(f"its evidence {name!r} is a {type(value).__name__} that JSON cannot hold: {error}") from None
    return verdict


def worst(checks: Sequence[Check]) -> int:
    """0 nothing to do, 1 a warning, 2 a failure or a broken check."""
    return max((RANK[check.status] for check in checks), default=0)
