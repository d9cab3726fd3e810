"""The check of the optimizer's numbers: what they leave of an update, and of the weights."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

from .checks_schedule import plan_of

if TYPE_CHECKING:
    from ftcli.core.training.schedule import Plan
    from ftcli.core.verify.probe import Probe

Finding = tuple[bool, str, str]
"""Whether it is certain, what is wrong, and what to do."""

SHRUNK, LEVEL = 0.1, 2e-3
"""Share that weight decay may take of every weight in a step; standard deviation that AdamW's weights must be able to keep against it, √(rate / 2 decay). Weights start
at 0.02. Usual settings: 5e-5 × 0.01 to 1e-3 × 0.1 a step, levels of 0.02 to 0.07."""
EPSILON = (1e-4, 1e-2)
"""From which Adam's epsilon warns, and fails. Families are trained with 1e-8 to 1e-5; a gradient of norm 1 is 1e-4 on each of 100 million weights."""
CLIPPED = (1e-3, 1e-6)
"""Under which a gradient norm that is clipped to warns, and fails: on 100 million weights 1e-4 leaves each no more than Adam's epsilon."""
NOISE = (50.0, 500.0)
"""From which NEFTune's alpha warns, and fails; its authors use 5 to 15. At 50 the noise on 128 tokens of 2,560 numbers is 0.09, embeddings are 0.02."""
SLOW_SGD = 1e-3
FEW, USUAL = 20, 8
"""Updates of a run up to which an epoch of one warns; rows of a batch up to which it is the rows that are few, and no setting makes them more."""
LARGE = 0.03
"""Adam's rate from which all weights together warn. BERT and Qwen3 of 2 layers of 64, the smallest that are trained: two steps raise the loss of other rows by 0.1
nat at 0.01, by 0.9 to 1.6 at 0.03; 300 at 0.05 end above knowing nothing, while each lowers the loss of its own batch. Larger models bear less."""


def numbers(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import failed, passed, warned

    probe.require_supported()
    train = probe.settings.train
    plan = _plan(probe)
    found = [
        finding
        for finding in (_decay(probe, plan), _epsilon(probe), _clipping(probe), _betas(probe), _noise(probe), _sgd(probe), _large(probe))
        if finding
    ]
    found += [finding for finding in (_few_updates(probe, plan),) if finding]
    evidence: dict[str, Any] = {
        "optimizer": train.optim,
        "learning_rate": train.learning_rate,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm,
        "steps": None if plan is None else plan.schedule.steps,
    }
    if found:
        judge = failed if any(certain for certain, _, _ in found) else warned
        return judge("; ".join(words for _, words, _ in found), " ".join(dict.fromkeys(fix for _, _, fix in found)), **evidence)
    return passed(
        f"{train.optim} at {train.learning_rate:g}: none of its settings cancels the updates or decays the weights away", **evidence
    )


def _plan(probe: Probe) -> Plan | None:
    from ftcli.core.verify.probe import Missing

    try:
        return plan_of(probe)
    except Missing:  # FT053 says why
        return None


def _is_adam(probe: Probe) -> bool:
    return "adam" in probe.settings.train.optim


def _decay(probe: Probe, plan: Plan | None) -> Finding | None:
    rate, decay = probe.settings.train.learning_rate, probe.settings.train.weight_decay
    step = rate * decay
    whole = 1.0 if plan is None else step * plan.schedule.total
    said = f"weight_decay = {decay:g} × learning_rate = {rate:g}"
    fix = "Set --weight-decay to 0.1 or less."
    if step >= SHRUNK:
        return True, f"{said} removes {min(1.0, step):.0%} of every weight at each step", fix
    if whole >= 1 and decay and math.sqrt(rate / 2 / decay) < LEVEL:
        left = "" if plan is None else f": {math.exp(-whole):.1%} of the initial weights are left at the end"
        return False, f"{said} removes {step:.2%} of every weight at each step{left}", fix
    return None


def _epsilon(probe: Probe) -> Finding | None:
    epsilon = probe.settings.train.adam_epsilon or 0.0
    if epsilon < EPSILON[0] or not _is_adam(probe):
        return None
    return (
        epsilon >= EPSILON[1],
        f"adam_epsilon = {epsilon:g} is larger than the gradient of nearly every weight, so it and not the gradient's size scales each update",
        "Leave train.adam_epsilon out (1e-8).",
    )


def _clipping(probe: Probe) -> Finding | None:
    norm = probe.settings.train.max_grad_norm
    if norm == 0 or norm >= CLIPPED[0]:
        return None
    return (
        norm < CLIPPED[1],
        f"max_grad_norm = {norm:g} clips every gradient to almost nothing",
        "Set --max-grad-norm to 1, or to 0 for no clipping.",
    )


def _betas(probe: Probe) -> Finding | None:
    if not _is_adam(probe):
        return None
    train = probe.settings.train
    for name, value in (("adam_beta1", train.adam_beta1), ("adam_beta2", train.adam_beta2)):
        if value is not None and not 0 <= value < 1:
            return True, f"{name} = {value:g} is not in [0, 1)", f"Leave train.{name} out."
    if (train.adam_beta1 or 0) >= 0.999:
        averaged = 1 / (1 - (train.adam_beta1 or 0))
        return (
            False,
            f"adam_beta1 = {train.adam_beta1:g} averages the gradients of {averaged:,.0f} steps: a single step has almost no effect",
            "Leave train.adam_beta1 out (0.9).",
        )
    if train.adam_beta2 is not None and train.adam_beta2 < 0.5:
        return False, f"adam_beta2 = {train.adam_beta2:g} forgets the gradients' size immediately", "Leave train.adam_beta2 out (0.999)."
    return None


def _noise(probe: Probe) -> Finding | None:
    alpha = probe.settings.train.neftune_noise_alpha or 0.0
    if alpha < NOISE[0]:
        return None
    return (
        alpha >= NOISE[1],
        f"neftune_noise_alpha = {alpha:g} adds noise larger than the embeddings themselves",
        "Set it to 5, or leave it out.",
    )


def _sgd(probe: Probe) -> Finding | None:
    train = probe.settings.train
    if train.optim != "sgd":
        return None
    given = re.search(r"\bmomentum\s*=\s*([\d.eE+-]+)", train.optim_args or "")
    momentum = min(0.9999, float(given[1])) if given else 0.0
    if train.learning_rate / (1 - momentum) >= SLOW_SGD:
        return None
    return (
        False,
        f"sgd at {train.learning_rate:g}: a gradient of norm 1 moves all weights together no further than AdamW moves each one",
        "Use --optim adamw_torch_fused, or for sgd a learning rate of 0.01 to 0.1.",
    )


def _large(probe: Probe) -> Finding | None:
    train, model = probe.settings.train, probe.settings.model
    if not _is_adam(probe) or train.learning_rate < LARGE or model.freeze_backbone:
        return None
    return (
        False,
        f"{train.optim} at {train.learning_rate:g} moves every weight by about that much at each step, and weights start at 0.02: it fits one batch and loses the others",
        "Lower --learning-rate to 1e-3 or less.",
    )


def _few_updates(probe: Probe, plan: Plan | None) -> Finding | None:
    train = probe.settings.train
    if plan is None or plan.steps_an_epoch > 1 or plan.schedule.steps > FEW or train.max_steps > 0:
        return None
    for name in ("gradient_accumulation_steps", "per_device_train_batch_size", "max_tokens_per_batch"):
        value = getattr(train, name)
        if value and value > {"gradient_accumulation_steps": 1, "per_device_train_batch_size": USUAL}.get(name, 0):
            said = f"{name} = {value:,} makes one update of a whole epoch, and the run has {plan.schedule.steps}"
            return False, said, f"Lower --{name.replace('_', '-')}."
    return None


CHECKS = (CheckKind("FT054", "settings", "Training settings", numbers),)
