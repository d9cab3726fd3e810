"""Running checks: in stage order, each on its own, so that one that cannot run says why and one that breaks is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from ftcli.contracts import CheckKind
from ftcli.core.probe import Missing, Probe
from ftcli.errors import FtcliError, PluginError, UsageError
from ftcli.records import STAGES, Check, to_json
from ftcli.registry import Registry

QUICK_STAGES = ("env", "settings", "tokenizer", "data")
"""Stages that build no model and no batch."""
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
        PluginError: a plugin registered a check for a stage that does not exist, or under another id than its own.
    """
    if level not in {"quick", "full"}:
        raise UsageError(f"there is no level {level!r}", "Levels: quick (no batch, no model), full.")
    for stage in stages:
        if stage not in STAGES:
            raise UsageError(f"there is no stage {stage!r}", f"Stages: {', '.join(STAGES)}.")
    for name, kind in registry.items():
        if kind.stage not in STAGES or kind.id != name:
            raise PluginError(
                f"plugin {registry.owner(name)!r} registers the check {name!r} with the id {kind.id!r} and the stage {kind.stage!r}",
                f"The id must be the name, the stage one of {', '.join(STAGES)}.",
            )
    kinds = sorted((kind for _, kind in registry.items()), key=lambda kind: (STAGES.index(kind.stage), kind.id))
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


def run_checks(
    probe: Probe, kinds: Sequence[CheckKind], owner: Callable[[str], str], on_check: Callable[[Check], None]
) -> tuple[Check, ...]:
    """Verdicts in the order of `kinds`. A part that cannot be built fails the first check that needs it; later ones refer to that.

    Args:
        owner: the plugin that registered a check id, named when the check itself breaks.
    """
    verdicts: list[Check] = []
    told: dict[FtcliError, str] = {}
    for kind in kinds:
        try:
            verdict = _sound(kind.run(probe))
        except Missing as reason:
            verdict = Check("", "", "skipped", f"{kind.title}: {reason}")
        except FtcliError as error:
            if error in told:
                verdict = Check("", "", "skipped", f"{kind.title}: it needs what {told[error]} found unusable")
            else:
                told[error] = kind.id
                verdict = Check("", "", "fail", f"{kind.title}: {error.message}", {}, error.hint)
        except Exception as error:  # noqa: BLE001 - a broken check must not hide the others
            words = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:400]
            hint = "Leave it out with --ignore, and report it to the plugin's author."
            verdict = Check("", "", "error", f"{kind.title}: the check of plugin {owner(kind.id)!r} broke: {words}", {}, hint)
        verdicts.append(replace(verdict, id=kind.id, stage=kind.stage))
        on_check(verdicts[-1])
    return tuple(verdicts)


def _sound(verdict: Check) -> Check:
    """The verdict, if reports can hold it; TypeError or ValueError says why not."""
    if not isinstance(verdict, Check) or verdict.status not in RANK:
        raise TypeError(f"it returned {verdict!r} and no verdict")
    json.dumps(to_json(verdict.evidence), allow_nan=False)
    return verdict


def worst(checks: Sequence[Check]) -> int:
    """0 nothing to do, 1 a warning, 2 a failure or a broken check."""
    return max((RANK[check.status] for check in checks), default=0)
