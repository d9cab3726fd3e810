"""Checks of the model on the first batch: vocabulary, first loss, logits, gradients, padding and packing, two steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.forward import Forward
    from ftcli.core.probe import Probe

INVARIANT = 1e-3
"""Clean models change by at most 7e-6 in fp32 (138 models of 23 families), faults by 1.2e-2 and more."""


def vocabulary(probe: Probe) -> Check:
    from ftcli.core.verdict import passed

    ids, rows = probe.vocabulary
    return passed(f"{ids:,} ids fit into {rows:,} embedding rows", tokenizer_ids=ids, embedding_rows=rows)


def _finite(probe: Probe) -> Forward:
    """The forward pass, if its logits are numbers."""
    from ftcli.core.probe import Missing

    result = probe.forward
    if not result.finite:
        raise Missing("the logits are not finite (see FT404)")
    return result


def pad_id(probe: Probe) -> Check:
    from ftcli.core.verdict import noted, passed

    given, wanted = getattr(probe.config.get_text_config(), "pad_token_id", None), probe.tokenizer.pad_token_id
    evidence = {"config": given, "tokenizer": wanted}
    if given == wanted:
        return passed(f"config.pad_token_id is the tokenizer's ({wanted})", **evidence)
    return noted(
        f"config.pad_token_id is {given}, the tokenizer's {wanted}: ftcli sets it before training; elsewhere a decoder that classifies would stop "
        "at a batch of several rows or pool a wrong token",
        **evidence,
    )


def first_loss(probe: Probe) -> Check:
    from ftcli.core.verdict import failed, passed, warned

    result = _finite(probe)
    chance, implied, scale = math.log(result.classes), result.implied_loss, result.logit_std
    evidence = {
        "loss": round(result.loss, 4),
        "chance": round(chance, 4),
        "implied_by_logits": round(implied, 4),
        "logit_std": round(scale, 4),
        "classes": result.classes,
    }
    if not math.isfinite(result.loss):
        return failed(f"the first loss is {result.loss}", "The logits are finite: look at the task's loss and labels.", **evidence)
    over, noise = implied - chance, 6 * scale / math.sqrt(result.effective_targets) + 0.02
    fresh = probe.settings.model.config is not None
    if not fresh and not probe.task.needs_labels:
        if result.loss <= chance - 1:
            return passed(f"the trained model starts at {result.loss:.3f}, well under chance ({chance:.3f})", **evidence)
        if over < 1 and abs(result.loss - implied) <= noise:
            return warned(
                f"the first loss is {result.loss:.2f}, which is chance ({chance:.2f}), and the logits are flat: these weights have learned nothing yet",
                "Check --model-name-or-path; to start from random weights give --model-config.",
                **evidence,
            )
        return failed(
            f"a trained model starts at {result.loss:.2f}, chance is {chance:.2f}: weights and tokenizer do not belong together",
            "Check --model-name-or-path and --tokenizer-path.",
            **evidence,
        )
    if not fresh and result.loss < chance:
        return passed(f"the first loss is {result.loss:.3f}, under chance ({chance:.3f}): the weights may know these labels", **evidence)
    if abs(result.loss - implied) > noise:
        return failed(
            f"the first loss is {result.loss:.3f}, these logits imply {implied:.3f} ± {noise:.3f} for labels that know nothing of them",
            "The labels are not what they seem: check the label column and the label map.",
            **evidence,
        )
    if over > 1:
        verdict = failed if over > 3 else warned
        fix = "Shrink or zero the head's initial weights (initializer_range)."
        if not fresh:
            fix = "If the head was trained, its labels are not those of the data: compare the label maps. If it is new, shrink or zero its weights."
        return verdict(
            f"the first loss is {result.loss:.2f}, chance is {chance:.2f}: the head starts with a logit standard deviation of {scale:.1f}",
            fix,
            **evidence,
        )
    return passed(f"the first loss is {result.loss:.3f}, chance is ln {result.classes:,} = {chance:.3f}", **evidence)


def logits(probe: Probe) -> Check:
    from ftcli.core.verdict import failed, passed

    result = probe.forward
    values = result.logits
    evidence: dict[str, Any] = {name: round(float(getattr(values, name)()), 4) for name in ("mean", "std", "min", "max")}
    if not result.finite:
        return failed("the logits are not finite", "The weights hold NaN or overflow: load them in float32 and look again.", **evidence)
    return passed(
        f"logits: mean {evidence['mean']:.3f}, std {evidence['std']:.3f}, {evidence['min']:.2f} to {evidence['max']:.2f}", **evidence
    )


def gradients(probe: Probe) -> Check:
    from ftcli.core.verdict import failed, passed, warned

    _finite(probe)
    result = probe.gradients
    dead = result.dead()
    evidence = {"norm": result.total, "parameters": len(result.norms), "without": dead[:8]}
    if not math.isfinite(result.total):
        return failed(f"the gradient norm is {result.total}", "Look for overflow: float32 weights, a smaller batch, no fp16.", **evidence)
    if dead and len(dead) > len(result.norms) / 2:
        return failed(
            f"{len(dead)} of {len(result.norms)} parameters get no gradient, first {dead[0]}", "Something cuts the graph.", **evidence
        )
    unused = [name for name in dead if "pooler" not in name and "token_type" not in name]
    if unused:
        return warned(
            f"{len(unused)} of {len(result.norms)} parameters get no gradient from this batch, first {unused[0]}",
            "Freeze them on purpose, or find out why they are not used.",
            **evidence,
        )
    return passed(f"gradient norm {result.total:.3g}; sound models of different families start anywhere from 0.3 to 42", **evidence)


def scaling(probe: Probe) -> Check:
    from ftcli.core.scaling import loss_ratio
    from ftcli.core.verdict import noted, passed

    steps = probe.settings.train.gradient_accumulation_steps
    ratio = loss_ratio(_finite(probe))
    evidence = {"ratio": None if ratio is None else round(ratio, 4), "gradient_accumulation_steps": steps}
    if ratio is None:
        return passed("the model's forward takes no num_items_in_batch: Trainer divides by the accumulation steps itself", **evidence)
    if abs(ratio - 0.1) < 0.01:
        return passed("the model's own loss follows num_items_in_batch", **evidence)
    return noted(
        f"the model's own loss ignores num_items_in_batch: a plain Trainer would report {steps} × processes times the loss and gradient "
        "(transformers#47688); ftcli computes the loss itself and does not",
        **evidence,
    )


def padding_invariance(probe: Probe) -> Check:
    from ftcli.core.isolation import padding_change
    from ftcli.core.probe import Missing
    from ftcli.core.verdict import failed, passed

    if probe.train_split.packed:
        raise Missing("rows of packed data are not padded to each other (see FT408)")
    change, row = padding_change(_finite(probe), probe.rows, probe.places)
    if change > INVARIANT:
        return failed(
            f"row {row}'s logits change by {change:.2g} standard deviations with the rows beside it",
            "Check the collator's attention_mask and padding side, and config.pad_token_id.",
            change=change,
            row=row,
        )
    return passed(f"a row's logits do not depend on the rows beside it ({change:.1g} standard deviations)", change=change)


def packing_isolation(probe: Probe) -> Check:
    from ftcli.core.isolation import leak
    from ftcli.core.probe import Missing
    from ftcli.core.verdict import failed, passed

    if not probe.train_split.packed:
        raise Missing("the data are not packed")
    _finite(probe)
    found = leak(probe.model, probe.collator, probe.rows)
    if found is None:
        raise Missing("no pack of the first batch holds two documents")
    change, row = found
    if change > INVARIANT:
        return failed(
            f"documents in one pack see each other: logits of row {row} change by {change:.2g} standard deviations",
            "Use sdpa or eager attention without cache, or prepare the data without --packing.",
            change=change,
            row=row,
        )
    return passed(f"documents in a pack do not see each other ({change:.1g} standard deviations)", change=change)


def causality(probe: Probe) -> Check:
    from ftcli.core.gate import check_learnable
    from ftcli.core.probe import Missing
    from ftcli.core.verdict import passed

    if probe.task.needs_labels:
        raise Missing(f"mode {probe.task_name} predicts no next token")
    check_learnable(probe.model, packed=False)
    return passed("predictions depend on the tokens before them only")


def two_steps(probe: Probe) -> Check:
    from ftcli.core.forward import descend
    from ftcli.core.verdict import failed, passed, warned

    rate, forward, _ = probe.settings.train.learning_rate, _finite(probe), probe.gradients
    probe.require_memory(5)  # weights, a copy of them, gradients and AdamW's two moments
    losses, moved = descend(forward, rate, steps=2)
    evidence = {"losses": [round(loss, 5) for loss in losses], "learning_rate": rate, "weights_moved": round(moved, 4)}
    if not all(map(math.isfinite, losses)):
        return failed(f"two steps at {rate:g} lead from {losses[0]:.4f} to {losses[-1]}", "Lower --learning-rate.", **evidence)
    if moved < 0.5:
        return failed(
            f"two steps at {rate:g} change {moved:.1%} of the weights that have a gradient: most updates are smaller than a weight's last bit",
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


CHECKS = (
    CheckKind("FT401", "model", "Vocabulary", vocabulary, ("tokenizer", "model")),
    CheckKind("FT402", "model", "config.pad_token_id", pad_id, ("tokenizer", "model"), "info"),
    CheckKind("FT403", "model", "First loss", first_loss, ("store", "model", "forward")),
    CheckKind("FT404", "model", "Logits", logits, ("store", "model", "forward")),
    CheckKind("FT405", "model", "Gradients", gradients, ("store", "model", "gradients")),
    CheckKind("FT406", "model", "Loss scaling", scaling, ("store", "model", "forward"), "info"),
    CheckKind("FT407", "model", "Padding invariance", padding_invariance, ("store", "model", "forward")),
    CheckKind("FT408", "model", "Packing isolation", packing_isolation, ("store", "model", "forward")),
    CheckKind("FT409", "model", "Causality", causality, ("store", "model")),
    CheckKind("FT501", "steps", "Two steps", two_steps, ("store", "model", "gradients")),
)
