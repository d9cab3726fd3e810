"""Checks of what is trained and how: gradients, scaling of the loss, repeatability, dropout."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ftcli.core.verify.probe import Probe

ROUTED = "experts."
"""In the names of parameters of single experts: no token of the batch may have been sent to them."""
KEPT, NAMED, LOUD = (0.2, 0.1), 0.3, 2.0
"""Share of the gradient that two passes of training mode have in common, under which it warns, and fails: 46 families as they come keep 0.62 to 1, GPT-2 0.49, BERT 0.61, twelve layers of a small BERT
0.55 (0.26 at a dropout of 0.3, the largest rate with which this is looked at), a functional dropout of 0.5 before the head 0.55, of 0.8 0.14, of 0.95 0.03. And how many times
the loss of evaluation mode warns: families keep within 2 % of it."""
TRAINED = (0.1, 2.0)
"""How many times its loss a task may learn by: focal loss of two classes 0.25, smoothed labels about 1; logits times 100 4 and more."""
RATES = ("dropout", "pdrop", "layerdrop", "drop_path")
"""Parts of the names under which configurations hold rates of what is left out."""


def gradients(probe: Probe) -> Check:
    from ftcli.core.training.health import SUSPECTS
    from ftcli.core.verify.verdict import failed, noted, passed

    _ = probe.sound_forward
    result = probe.gradients
    world = _factor(probe)
    dead = result.dead()
    if any(result.norms[name] == 0 for name in dead) and result.total > 0:
        dead = _still_dead(probe, dead)
    trained, all_of_them = _counts(probe)
    evidence: dict[str, Any] = {
        "norm": result.total,
        "parameters": len(result.norms),
        "without": dead[:8],
        "trained_share": round(trained / all_of_them, 4),
        "norm_in_plain_trainer": result.total * world,
    }
    if not math.isfinite(result.total):
        wrong = [name for name, norm in result.norms.items() if norm is not None and not math.isfinite(norm)]
        return failed(
            f"the gradient norm is {result.total}: {len(wrong)} of {len(result.norms)} parameters have a NaN or infinite gradient, first {wrong[0]}",
            f"{SUSPECTS} No learning rate helps.",
            **evidence,
        )
    if not result.total:
        return failed(
            "the gradient norm is 0: no weight would change", "Look for weights that are all zero, or a loss that is constant.", **evidence
        )
    unused = [name for name in dead if ROUTED not in name]
    if unused:
        unused = _not_by_design(probe, unused)
    if unused:
        return failed(
            f"{len(unused)} of {len(result.norms)} parameters get no gradient from this batch, first {unused[0]}",
            "Something detaches the graph."
            if len(unused) > len(result.norms) / 2
            else "Freeze them on purpose (requires_grad_(False)), or find out why the loss does not depend on them.",
            **evidence,
        )
    if frozen := _frozen_heads(probe):
        return failed(
            f"{frozen[0]} holds new random weights and is frozen: they would never be trained",
            "Leave the head trainable; freeze pretrained weights only.",
            frozen=frozen[:8],
            **evidence,
        )
    if cut := _cut_in_training(probe, set(result.dead())):
        return failed(
            f"{len(cut)} of {len(result.norms)} parameters get no gradient in training mode, though they do in evaluation mode, first {cut[0]}",
            "Something active only in training mode blocks them: dropout at rate 1, a detached state, skipped layers.",
            cut=cut[:8],
            **evidence,
        )
    norms = len(result.norms)
    reached = (
        f"{norms - len(dead)} of {norms} parameters get a gradient; the others need none"
        if dead
        else "every trainable parameter gets a gradient"
    )
    words = f"{reached}; norm {result.total:.3g} (for information: clean models start anywhere from 0.3 to 42)"
    if trained < all_of_them:
        return noted(f"{words}. {trained / all_of_them:.1%} of the weights are trained, the others are frozen", **evidence)
    return passed(words, **evidence)


def _cut_in_training(probe: Probe, dead: set[str]) -> list[str]:
    """Parameters that a short batch gives a gradient in evaluation mode, and in training mode by two seeds none."""
    import torch

    from ftcli.core.verify.forward import forward
    from ftcli.core.verify.probe import Missing

    model = probe.model
    if any(rate and any(part in name for part in ("layerdrop", "drop_path")) for name, rate in _rates(model).items()):
        return []  # a layer that is left out by chance has no gradient
    missing: set[str] | None = None
    kept = [buffer.detach().clone() for buffer in model.buffers()]
    try:
        batch = probe.excerpt[1]
        model.train()
        for seed in (0, 1):
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(seed)
                found = {name for name in forward(model, batch, probe.task).gradients().dead() if name not in dead and ROUTED not in name}
            missing = found if missing is None else missing & found
            if not missing:
                return []
    except Missing:  # the short batch has no target
        return []
    except (RuntimeError, ValueError, IndexError):  # FT502 says what a model cannot take in training
        return []
    finally:
        model.eval()
        with torch.no_grad():
            for buffer, old in zip(model.buffers(), kept, strict=True):
                buffer.copy_(old)
    awake = forward(model, batch, probe.task).gradients().dead()
    return sorted((missing or set()).difference(awake))


def _still_dead(probe: Probe, dead: list[str]) -> list[str]:
    """Those of `dead` that get nothing either while no parameter is all zero: behind a head that starts at zero nothing learns before step 2."""
    from ftcli.core.verify.forward import forward
    from ftcli.core.verify.input_dependence import stirred

    with stirred(probe.model):
        again = forward(probe.model, probe.excerpt[1], probe.task).gradients()
    return [name for name in dead if name in again.dead()]


def _not_by_design(probe: Probe, unused: list[str]) -> list[str]:
    """Without those that transformers' own class, built anew from the configuration, leaves without a gradient too: heads and segments for other tasks."""
    from ftcli.core.verify.forward import forward

    model = probe.model
    if not type(model).__module__.startswith("transformers."):
        return unused
    probe.require_memory(4)
    try:
        plain = type(model)(model.config).float().eval()
        dead = forward(plain, probe.excerpt[1], probe.task).gradients().dead()
    except Exception:  # noqa: BLE001 - then there is nothing to compare with
        return unused
    return [name for name in unused if name not in dead]


def _counts(probe: Probe) -> tuple[int, int]:
    parameters = list(probe.model.parameters())
    return sum(parameter.numel() for parameter in parameters if parameter.requires_grad), sum(parameter.numel() for parameter in parameters)


def _frozen_heads(probe: Probe) -> list[str]:
    """Frozen parameters that are new: those that the weights' file lacked, or in a model of random weights those of the output layer."""
    model = probe.model
    loaded = getattr(model, "ftcli_loaded", None)
    if loaded is not None:
        new = {*loaded["missing_keys"], *loaded["mismatched_keys"]}
    else:
        new = {name for name, _ in model.named_parameters() if not name.startswith(f"{model.base_model_prefix}.")}
    return [name for name, parameter in model.named_parameters() if name in new and not parameter.requires_grad]


def _factor(probe: Probe) -> int:
    """Accumulation steps × processes."""
    return probe.settings.train.gradient_accumulation_steps * int(os.environ.get("WORLD_SIZE", "1"))


def scaling(probe: Probe) -> Check:
    from ftcli.core.verify.scaling import loss_ratio, own_loss
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    steps = probe.settings.train.gradient_accumulation_steps
    factor = _factor(probe)
    _ = probe.sound_forward
    _, batch = probe.excerpt
    own = own_loss(probe.model, batch, probe.task)
    ratio = loss_ratio(probe.model, batch)
    evidence: dict[str, Any] = {
        "ratio": None if ratio is None else round(ratio, 4),
        "own_ratio": round(own.ratio, 4),
        "own_parts": round(own.parts, 4),
        "own_over_plain": round(own.plain, 4),
        "training_over_own": round(own.trained, 4),
        "gradient_accumulation_steps": steps,
        "accumulation_times_processes": factor,
    }
    if abs(own.ratio - 0.1) > 0.01 or abs(own.parts - 1) > 0.01:
        fault = failed if factor > 1 else warned
        words = (
            f"{factor} times the loss and gradient"
            if factor > 1
            else "a multiple of the loss and gradient as soon as gradients are accumulated"
        )
        return fault(
            f"the loss of mode {probe.task_name} does not scale with the number of targets of the step "
            f"(loss(10 n) / loss(n) = {own.ratio:.2f}, its rows add up to {own.parts:.2f} of it): this run would train with {words}",
            "A task's loss must be the sum over its targets divided by `items`, the number of targets of the whole step.",
            **evidence,
        )
    if abs(own.own - 1) > 0.01 or abs(own.plain - 1) > 0.01:
        return warned(
            f"the loss of mode {probe.task_name} is {own.plain:.3g} times plain cross-entropy of the same logits and labels"
            + (f", and {own.own:.3g} times its own value without a count of targets" if abs(own.own - 1) > 0.01 else ""),
            "Make the task's loss the mean cross-entropy over its targets; otherwise chance level, perplexity and learning rate lose their usual meaning.",
            **evidence,
        )
    if not probe.settings.train.class_weights and (own.trained < TRAINED[0] or own.trained > TRAINED[1]):
        return warned(
            f"the run learns by a training_loss of mode {probe.task_name} that is {own.trained:.3g} times its loss on the first batch",
            "Let training_loss be the loss but for weights or smoothing: what is evaluated and compared with chance is the loss.",
            **evidence,
        )
    if ratio is None:
        return passed("the model's forward takes no num_items_in_batch: Trainer itself divides by the accumulation steps", **evidence)
    if abs(ratio - 0.1) < 0.01:
        return passed("the model's own loss uses num_items_in_batch", **evidence)
    would = (
        f"would report {factor} times the loss and gradient"
        if factor > 1
        else "with several processes would multiply loss and gradient by their number"
    )
    return noted(
        f"the model's own loss ignores num_items_in_batch: a plain Trainer {would} (transformers#47688), unless "
        "model.accepts_loss_kwargs = False is set first; ftcli computes the loss itself and is not affected",
        **evidence,
    )


def repeatability(probe: Probe) -> Check:
    from ftcli.core.verify.repeatability import batch_repeats, forward_change
    from ftcli.core.verify.verdict import failed, passed, warned

    _ = probe.sound_forward
    rows, batch = probe.excerpt
    change = forward_change(probe.model, batch)
    differing = batch_repeats(probe.collate, rows, probe.settings.train.seed)
    evidence = {"change": change, "differing": differing}
    if change > 1e-5:
        return failed(
            f"two forward passes of the same batch in evaluation mode differ by {change:.2g} standard deviations",
            "Something is random in evaluation mode: dropout that ignores self.training, or noise in forward.",
            **evidence,
        )
    if differing:
        return warned(
            f"the collator makes a different {differing} from the same rows with the same seed",
            "Make it draw from torch, numpy or random after they are seeded, so that runs can be reproduced.",
            **evidence,
        )
    return passed("two forward passes, and two batches of the same rows, are identical", **evidence)


def dropout(probe: Probe) -> Check:
    import torch

    from ftcli.core.verify.verdict import failed, passed, warned

    model = probe.model
    rates = {name: float(module.p) for name, module in model.named_modules() if isinstance(module, torch.nn.modules.dropout._DropoutNd)}
    rates |= _rates(model)
    name, most = max(rates.items(), key=lambda item: item[1], default=("", 0.0))
    evidence: dict[str, Any] = {"largest": most, "where": name, "modules": len(rates)}
    if most > 0.5:
        words = f"{name} drops {most:.0%} of its inputs in training" + (": almost nothing passes" if most >= 0.9 else "")
        return (failed if most >= 0.9 else warned)(words, "Set it to 0.1 or less (--config-overrides).", **evidence)
    finding, seen = _noise(probe) if most <= NAMED else ("", {})
    evidence |= seen
    if finding:
        certain = seen["kept"] is not None and seen["kept"] < KEPT[1]
        return (failed if certain else warned)(
            f"{finding}; neither modules nor configuration have a dropout rate over {most:.0%}",
            "Look in the model's forward for dropout or noise in training mode.",
            **evidence,
        )
    return passed(f"dropout of at most {most:.0%}" if most else "no dropout", **evidence)


def _noise(probe: Probe) -> tuple[str, dict[str, Any]]:
    """What training mode does to gradient and loss that no rate accounts for, and the figures."""
    from ftcli.core.verify.forward import forward
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.training_mode import two_passes
    from ftcli.errors import FtcliError

    try:
        whole, batch = probe.sound_forward, probe.excerpt[1]
        probe.require_memory(3)
    except (Missing, FtcliError) as error:
        return "", {"training_mode": f"not looked at: {error}"}
    chance = math.log(max(2, whole.classes))
    known, loud = whole.loss < 0.1 * chance, whole.implied_loss > chance + 1
    if known or loud:  # the gradient of what is known is nothing but noise; what is wrong with the other FT403 says
        return "", {}
    if not any(parameter.requires_grad for parameter in probe.model.parameters()):  # FT405 says so
        return "", {}
    still, found = forward(probe.model, batch, probe.task).loss, two_passes(probe.model, batch, probe.task)
    evidence = {"kept": None if found.kept is None else round(found.kept, 4), "losses": list(found.losses), "loss_without": still}
    if found.kept is not None and found.kept < KEPT[0]:
        return (
            f"two training-mode passes over one batch share {max(0.0, found.kept):.0%} of the gradient: the rest is noise",
            evidence,
        )
    mean = sum(found.losses) / 2
    if mean > max(LOUD * still, still + 1):
        return f"in training mode the batch's loss is {mean:.2f}, in evaluation mode {still:.2f}", evidence
    return "", evidence


def _rates(model: PreTrainedModel) -> dict[str, float]:
    """Rates of what is left out in training, as the configuration has them."""
    values = model.config.get_text_config().to_dict().items()
    return {
        f"config.{name}": float(value)
        for name, value in values
        if any(part in name for part in RATES) and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


CHECKS = (
    CheckKind("FT405", "model", "Gradients", gradients, ("store", "model", "gradients")),
    CheckKind("FT406", "model", "Loss scaling", scaling, ("store", "model", "forward")),
    CheckKind("FT413", "model", "Repeatability", repeatability, ("store", "batch", "model", "forward")),
    CheckKind("FT416", "model", "Dropout", dropout, ("store", "model")),
)
