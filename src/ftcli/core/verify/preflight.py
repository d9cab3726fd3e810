"""The quick checks before training: what is certain stops the run before it costs anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftcli.context import Context, Quiet
from ftcli.contracts import CheckKind
from ftcli.core.storage.store import Store
from ftcli.core.training.run import Run
from ftcli.core.verify.probe import Probe
from ftcli.core.verify.rules import chosen, every, run_checks
from ftcli.errors import TrainError
from ftcli.records import Check

WEIGHTS = ("FT417",)
"""Trained weights and the tokenizer that they know, which needs no model."""
BATCH = ("FT301", "FT302")
"""What a plugin's collator makes of a few rows; ftcli's own need no proof."""

NOT_HERE = ("FT104", "FT201")
"""The padding side of the tokenizer, since training pads on the right whatever it says; whole files, since opening has checked them."""

SAID_ONLY = ("FT205", "FT301")
"""Rows that stand on both sides make an evaluation too good; they do not keep a model from learning. A plugin's collator may change tokens on purpose."""

NO_MODEL = ("env", "settings")
"""Stages that look at machine and settings first of all."""

HEAD = ("FT008",)
"""The size of checkpoints, which depends on the head."""

NEEDED = frozenset({"FT091"})
"""The checkpoint to go on from, without which the run does not begin."""


def refuse_without_model(context: Context, store: Store | None = None) -> None:
    """Refuse what machine and settings are refused for, before hours are spent on preparing data or loading a model. Notes nothing: `preflight`
    asks these checks again, which takes a hundredth of a second.

    Args:
        store: the data; None: they are not prepared yet.

    Raises: as `preflight`.
    """
    train = context.settings.train
    if not train.verify:
        return
    guessed = HEAD if store is None and train.mode is None else ()
    kinds = [kind for kind in _quick(context) if kind.stage in NO_MODEL and kind.id not in guessed]
    probe = Probe(replace(context, notes=[], progress=Quiet()))
    if store is not None:
        probe.give(store=store)
    _refuse(run_checks(probe, kinds, context.plugins.registry("check").owner, lambda _: None))


def preflight(context: Context, run: Run) -> tuple[Check, ...]:
    """Run the checks of `verify --level quick` on what the run has loaded, and those of what the user brings; warnings are noted. Empty when
    train.verify is off.

    Raises:
        TrainError: a check failed or broke; names all that did.
        UsageError: train.ignore_checks names none.
    """
    if not context.settings.train.verify:
        context.note("the checks before training were skipped: --no-verify")
        return ()
    registry = context.plugins.registry("check")
    probe = Probe(context)
    probe.give(store=run.store, tokenizer=run.tokenizer, task=run.task)
    ignored = tuple(context.settings.train.ignore_checks or ())
    if ignored:
        context.note(f"checks skipped: {', '.join(ignored)} (--ignore)")
    more = (*WEIGHTS, *(BATCH if context.plugins.outsider("collator", probe.collator_name) else ()))
    kinds = _quick(context)
    kinds += [kind for kind in every(registry) if kind.id in more and not kind.id.startswith(ignored)]
    checks = run_checks(probe, kinds, registry.owner, lambda _: None)
    for check in checks:
        if check.status == "warn" or (check.status == "fail" and check.id in SAID_ONLY):
            context.note(f"{check.id}: {check.summary}. {check.fix}")
    _refuse(checks)
    return checks


def _quick(context: Context) -> list[CheckKind]:
    return chosen(context.plugins.registry("check"), (), "quick", (), (*NOT_HERE, *(context.settings.train.ignore_checks or ())))


def _refuse(checks: Sequence[Check]) -> None:
    failed = [check for check in checks if check.status in {"fail", "error"} and check.id not in SAID_ONLY]
    if failed:
        words = "\n".join(f"{check.id}: {check.summary}. {check.fix}" for check in failed)
        ids = [check.id for check in failed]
        way_on = "" if NEEDED.intersection(ids) else f", or skip this check: --ignore {','.join(ids)} (recorded in the report)"
        what = (
            "the run would not learn as configured" if any(check.status == "fail" for check in failed) else "a check before the run broke"
        )
        raise TrainError(f"{what}:\n{words}", f"Mend that{way_on}.")
