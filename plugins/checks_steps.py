"""Checks of the first optimizer steps: two at the run's rate, and those that the run's own Trainer makes on a few short rows."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

from .checks_schedule import plan_of

if TYPE_CHECKING:
    from ftcli.core.verify.forward import Forward
    from ftcli.core.verify.probe import Probe
    from ftcli.core.verify.rehearsal import Rehearsal

EXACT = 0.02
"""Largest |logged / true - 1| of the first loss; sound trainers are at 1e-6, faults at the accumulation steps."""
EXPLODED = 10.0
"""Times the first loss, or what the first logits imply where that is more, from which two steps overshoot for certain."""
SHORT, LONG = 200, 1000
"""Steps that a learning rate is given at the least, so that a trial of few steps is judged as a run; and where the run's own number is not known."""
WHISPER = 0.02, 0.003
"""Shares of one batch's loss: a run whose steps would lower it by less warns, and fails. Two layers of 32 units and random weights, for which a rate must be larger than
for any model in use: 200 steps at 1e-6 lower a classifier's by 0.06 and a language model's by 0.0016, at 1e-5 by 0.6 and 0.016, and BERT's at 5e-5 by 0.04."""
MOVED = 0.5
"""Share of the weights that one step must change: 1.00 in float32; in bfloat16 0.88 at 1e-4, 0.30 at 2e-5, 0.16 at 1e-5."""


def two_steps(probe: Probe) -> Check:
    from ftcli.core.verify.budget import affordable, told, within
    from ftcli.core.verify.forward import descend, forward
    from ftcli.core.verify.rehearsal import own_optimizer
    from ftcli.core.verify.verdict import failed, passed, warned

    train, _, whole = probe.settings.train, probe.gradients, _finite(probe)
    rate = train.learning_rate
    probe.require_memory(5)  # weights, a copy of them, gradients and AdamW's two moments
    rows = within(probe.rows, affordable(probe.model, passes=9, least=128))  # two steps of three passes, and the losses between them
    result = whole if rows is probe.rows else forward(probe.model, probe.collate(rows), probe.task)
    losses, moved = descend(result, own_optimizer(probe), steps=2, clip=train.max_grad_norm)
    evidence: dict[str, Any] = {"losses": [round(loss, 5) for loss in losses], "learning_rate": rate, "weights_moved": round(moved, 4)}
    evidence |= told(rows, probe.rows)
    if not all(map(math.isfinite, losses)):
        return failed(f"two steps at {rate:g} take the loss from {losses[0]:.4f} to {losses[-1]}", "Lower --learning-rate.", **evidence)
    if moved < MOVED:
        return failed(
            f"two steps at {rate:g} change {moved:.1%} of the weights that have a gradient: most updates are lost to rounding",
            "Raise --learning-rate.",
            **evidence,
        )
    if losses[-1] > EXPLODED * max(losses[0], whole.implied_loss):
        return failed(
            f"two steps of {train.optim} at {rate:g} raise the batch's loss from {losses[0]:.2f} to {losses[-1]:.2f}: every step overshoots",
            "Lower --learning-rate.",
            **evidence,
        )
    change = max(abs(after - before) for before, after in pairwise(losses)) / losses[0] if losses[0] > 0 else 1.0
    steps = max(SHORT, _full_steps(probe))
    if change * steps < WHISPER[0]:
        return (failed if change * steps < WHISPER[1] else warned)(
            f"a step at {rate:g} changes the batch's loss by {change:.1g} (relative): even {steps:,.0f} of them would lower it by less than {WHISPER[0]:.0%}",
            "Raise --learning-rate.",
            **evidence,
        )
    if losses[-1] >= losses[0]:
        return warned(
            f"two steps at {rate:g} on one batch did not lower its loss: {losses[0]:.4f} → {losses[-1]:.4f}",
            "Lower --learning-rate.",
            **evidence,
        )
    return passed(f"two steps at {rate:g} lower the batch's loss: {losses[0]:.4f} → {losses[-1]:.4f}", **evidence)


def _full_steps(probe: Probe) -> float:
    """Steps at the full rate that the run amounts to; `LONG` where that cannot be told."""
    from ftcli.core.verify.probe import Missing

    try:
        return plan_of(probe).schedule.total
    except Missing:
        return LONG


def logged_loss(probe: Probe) -> Check:
    """One real update with the run's accumulation: is what the Trainer logs the mean over the targets?"""
    from ftcli.core.verify.verdict import failed, noted, passed

    found = _update(probe)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    steps = probe.settings.train.gradient_accumulation_steps
    ratio, parts = found.ratio, steps * world
    evidence = {
        "ratio": round(ratio, 5),
        "logged": round(found.logged[0], 5),
        "batches_of_the_update": found.accumulation,
        "gradient_accumulation_steps": steps,
        "processes": world,
        "gradient_norm": found.norms[0],
    }
    if abs(ratio - 1) < EXACT:
        return passed(
            f"a step of {found.accumulation} accumulated batches logs the mean loss over its targets ({found.logged[0]:.4f})", **evidence
        )
    words = f"a step of {found.accumulation} accumulated batches logs {found.logged[0]:.4g}, which is {ratio:.4g} times the mean loss over its targets"
    if abs(ratio / found.accumulation - 1) < EXACT:
        words += f": the loss is not divided by the accumulation steps, so this run would have {parts} times the loss and the gradient"
    fix = "The task's loss must be the sum over the targets divided by `items` (ftcli.contracts.Task.loss)."
    return (
        failed(words, fix, **evidence)
        if parts > 1
        else noted(f"{words}; with 1 accumulation step and 1 process it makes no difference", **evidence)
    )


def updates_kept(probe: Probe) -> Check:
    """One step at the peak rate in the type that the weights have in the run."""
    from ftcli.core.verify.forward import LARGE
    from ftcli.core.verify.verdict import failed, passed

    found = _update(probe)
    rate, kind = probe.settings.train.learning_rate, probe.ready("learned_type") or "float32"
    assert found.moved is not None
    evidence = {"moved": round(found.moved, 4), "learning_rate": rate, "dtype": kind, "optimizer": probe.settings.train.optim}
    if not found.reached:
        return failed(
            f"no weight has a gradient of more than {LARGE:g} at the optimizer's first step: nothing would be learned",
            "Look at FT405 (gradients) and FT054 (a gradient norm that is clipped to nothing).",
            **evidence,
        )
    if found.moved < MOVED:
        return failed(
            f"one step of {probe.settings.train.optim} at {rate:g} changes {found.moved:.1%} of the weights in {kind}: the other updates are lost to rounding",
            "Keep float32 weights: leave model.dtype unset and use --bf16 (autocast)." if kind != "float32" else "Raise --learning-rate.",
            **evidence,
        )
    return passed(f"one step of {probe.settings.train.optim} at {rate:g} changes {found.moved:.1%} of the weights in {kind}", **evidence)


def covered(probe: Probe) -> Check:
    """Everything that the loss depends on and that wants a gradient must be in the optimizer."""
    from ftcli.core.verify.verdict import failed, passed

    lost = _update(probe).forgotten
    if lost:
        return failed(
            f"{len(lost)} trained tensors are not in the optimizer, first {lost[0]}: they would never change",
            "Register them (torch.nn.Parameter, torch.nn.ModuleList) before the Trainer is created; freeze explicitly what should not be trained.",
            missing=lost[:8],
        )
    return passed("the optimizer has every tensor that the loss depends on")


def by_heart(probe: Probe) -> Check:
    from ftcli.core.verify.overfit import HALF, by_heart, partly
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, noted, passed

    result = _finite(probe)
    probe.require_memory(5)
    found = by_heart(probe)
    losses, rate = found.losses, found.rate
    if losses[0] < 0.1 * math.log(max(2, result.classes)):
        raise Missing(f"the model already fits these rows (loss {losses[0]:.3f})")
    share = losses[-1] / losses[0]
    evidence: dict[str, Any] = {"first": round(losses[0], 4), "last": round(losses[-1], 4), "steps": len(losses) - 1, "learning_rate": rate}
    evidence |= {"steps_at_most": found.most_steps, **found.left_out}
    if share < HALF:
        return passed(f"a few rows are memorized: {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses) - 1} steps at {rate:.1g}", **evidence)
    if partly(probe.model) and share < 1:
        return noted(
            f"the trained part of the weights memorizes a few rows more slowly than all weights would: {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses) - 1} steps",
            **evidence,
        )
    return failed(
        f"the model cannot memorize a few rows: {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses) - 1} steps, at three learning rates",
        "The labels do not reach the weights: look at FT405 (gradients), the task's loss, and what changes logits or labels in the model.",
        **evidence,
    )


def same_again(probe: Probe) -> Check:
    """Two updates, twice from the same seed: losses, norms and weights must be the same to the last bit."""
    _ = _update(probe)  # where the Trainer cannot make one, FT502 has said so
    from ftcli.core.verify.rehearsal import rehearse
    from ftcli.core.verify.verdict import passed, warned

    _ = _finite(probe)
    steps = min(2, probe.settings.train.gradient_accumulation_steps)
    first, second = (rehearse(probe, updates=2, accumulation=steps) for _ in range(2))
    pairs = {
        "loss": (first.logged, second.logged),
        "gradient norm": (first.norms, second.norms),
        "sum of the weights": ([first.digest], [second.digest]),
    }
    for name, (one, other) in pairs.items():
        if repr(one) != repr(other):
            return warned(
                f"two runs from seed {probe.settings.train.seed} differ in the {name}: {one[-1]:.7g} and {other[-1]:.7g}",
                "Something draws unseeded random numbers or reads a clock: look at the collator, the model and the task.",
                first=one,
                second=other,
            )
    return passed(f"two steps from seed {probe.settings.train.seed} give identical losses and weights", losses=first.logged)


def learnability(probe: Probe) -> Check:
    """Only on demand: what cannot be seen before training."""
    from ftcli.core.verify.overfit import learn
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import passed, warned

    steps = probe.settings.train.learnability_steps
    if not steps:
        raise Missing(
            "shuffled or wrong labels show only in training, or in FT215 where single words tell the label; "
            "--learnability-steps 200 trains on a part of the data for that long and scores held-out rows"
        )
    if not probe.task.needs_labels:
        raise Missing(f"mode {probe.task_name} has no labels")
    _ = _finite(probe)
    probe.require_memory(5)
    loss, prior, accuracy, majority = learn(probe, steps)
    evidence = {
        "steps": steps,
        "held_out_loss": round(loss, 4),
        "prior_entropy": round(prior, 4),
        **({} if accuracy is None else {"held_out_accuracy": round(accuracy, 4)}),
        **({} if majority is None else {"majority_accuracy": round(majority, 4)}),
    }
    known = "the label frequencies" if accuracy is not None else "the mean label"
    if loss < 0.98 * prior:
        return passed(f"after {steps} steps the held-out loss is {loss:.3f}; knowing only {known} gives {prior:.3f}", **evidence)
    return warned(
        f"after {steps} steps the held-out loss is {loss:.3f}, no better than knowing only {known} ({prior:.3f}): "
        "the labels may be shuffled or belong to other texts",
        "Read some rows with their labels (the report shows them); if they are right, try again with more steps.",
        **evidence,
    )


def _finite(probe: Probe) -> Forward:
    """The forward pass, if its logits are numbers, and its gradients as far as they are known."""
    from ftcli.core.verify.probe import Missing

    result, gradients = probe.forward, probe.ready("gradients")
    if not result.finite:
        raise Missing("the logits are not finite (see FT404)")
    if gradients is not None and not math.isfinite(gradients.total):
        raise Missing("the gradient is not finite (see FT405)")
    return result


def _update(probe: Probe) -> Rehearsal:
    """The first update of the run; with one accumulation step two are made, so that a missing division shows."""
    _ = _finite(probe)
    return probe.rehearsal


CHECKS = (
    CheckKind("FT501", "steps", "Two steps", two_steps, ("store", "model", "gradients")),
    CheckKind("FT502", "steps", "Logged loss", logged_loss, ("store", "model", "forward")),
    CheckKind("FT503", "steps", "Updates kept", updates_kept, ("store", "model", "forward")),
    CheckKind("FT504", "steps", "Optimizer", covered, ("store", "model", "forward")),
    CheckKind("FT505", "steps", "By heart", by_heart, ("store", "model", "forward")),
    CheckKind("FT506", "steps", "Same again", same_again, ("store", "model", "forward"), "warn"),
    CheckKind("FT510", "steps", "Learnability", learnability, ("store", "model", "forward"), "warn"),
)
