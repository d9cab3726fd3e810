"""Checks of what goes into the model and what comes out: arguments that it knows, logits that are logits, as many classes as the data have."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    import torch

    from ftcli.core.verify.probe import Probe

SAME = 1e-5
"""Spread of a class's logit over different texts, in standard deviations of all logits, under which the model does not see its input. Random weights
of 68 families, two layers: 7e-4 (ModernBERT) and more; a head on a first token that is always the same: 0 to 1e-7."""
MOST_TARGETS = 64
PASSED_ON = frozenset(
    {
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
        "seq_idx",
        "num_items_in_batch",
        "token_type_ids",
        "label",
        "label_ids",
    }
)
"""Arguments that transformers hands on through **kwargs, or that a model without segments may leave aside."""


def logits(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import failed, passed

    result = probe.forward
    values = result.logits
    evidence: dict[str, Any] = {name: round(float(getattr(values, name)()), 4) for name in ("mean", "std", "min", "max")}
    if not result.finite:
        return failed("the logits are not finite", "The weights hold NaN or overflow: load them in float32 and look again.", **evidence)
    if broken := _broken(result.model):
        return failed(
            f"{len(broken)} parameters contain NaN or infinity, first {broken[0]}",
            "These weights are damaged: load another copy of them.",
            parameters=broken[:8],
            **evidence,
        )
    if _all_zero(result.model):
        return failed(
            "the input embedding is all zero: every token is the same to the model",
            "The embedding was lost when these weights were saved: load another copy of them.",
            **evidence,
        )
    if wrong := _no_logits(values[:MOST_TARGETS], fresh=probe.settings.model.config is not None):
        return failed(
            f"the model's outputs are {wrong}, not logits: the loss applies softmax a second time, and learning almost stops",
            "Return the head's raw values, without softmax, sigmoid or another activation.",
            **evidence,
        )
    evidence["spread_over_texts"] = spread = _spread_over_texts(probe, values)
    if spread is not None and spread < SAME:
        return failed(
            f"different texts have the same logits (they differ by {spread:.1g} standard deviations): the output does not depend on the text",
            "Look at the token that the head pools, at the attention mask, and for embeddings that are all the same.",
            **evidence,
        )
    if probe.task.needs_labels and (pair := _always_equal(probe, values)):
        names = [str(result.model.config.id2label.get(number)) for number in pair]
        return failed(
            f"outputs {pair[0]} ({names[0]!r}) and {pair[1]} ({names[1]!r}) are the same for every text, and no weight can change that: these classes are never told apart",
            "Look at what the model does behind its head: one column of the logits is copied, or both are computed from the same weights.",
            **evidence,
        )
    return passed(
        f"logits: mean {evidence['mean']:.3f}, std {evidence['std']:.3f}, {evidence['min']:.2f} to {evidence['max']:.2f}", **evidence
    )


def _broken(model: torch.nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if not bool(parameter.isfinite().all())]


def _all_zero(model: Any) -> bool:
    """Whether the input embedding is, as far as it is a layer with weights."""
    table = getattr(model.get_input_embeddings(), "weight", None)
    return table is not None and not bool(table.any())


def _no_logits(values: torch.Tensor, *, fresh: bool) -> str:
    """What values look like that a softmax, a sigmoid or a ReLU has gone over; empty for logits. `values` [targets, classes]."""
    if values.shape[-1] < 2 or values.numel() < 20:
        return ""
    if float(values.min()) >= 0 and bool(((values.sum(-1) - 1).abs() < 1e-4).all()):
        return "probabilities (each row adds up to 1)"
    if float(values.min()) >= 0 and float((values == 0).float().mean()) > 0.2 and bool(values.any()):
        return f"cut at 0 ({float((values == 0).float().mean()):.0%} of them are exactly 0)"
    if fresh and float(values.min()) > 0 and float(values.max()) < 1 and abs(float(values.mean()) - 0.5) < 0.1:
        return f"all between 0 and 1 (mean {float(values.mean()):.2f})"
    return ""


def _spread_over_texts(probe: Probe, values: torch.Tensor) -> float | None:
    """Standard deviation of a class's logit over the texts / that of all logits; None where the texts or the logits do not differ."""
    from ftcli.core.verify.forward import spread

    rows = probe.rows
    different = len({rows.input_ids.row(row).tobytes() for row in range(len(rows))})
    if values.shape[0] < 2 or different < 2 or not float(values.std()):
        return None
    return float(values.std(0).mean()) / spread(values)


def _always_equal(probe: Probe, values: torch.Tensor) -> list[int] | None:
    """Two columns that are equal for every text and stay so, since their difference has no gradient. A head that starts with two equal rows, or at zero, is
    none: its first step parts them."""
    import torch

    from ftcli.core.verify.forward import inputs_of
    from ftcli.core.verify.input_dependence import stirred

    _, at, counts = torch.unique(values.T, dim=0, return_inverse=True, return_counts=True)
    if counts.max() < 2:
        return None
    pair: list[int] = (at == counts.argmax()).nonzero().flatten()[:2].tolist()
    trained = [parameter for parameter in probe.model.parameters() if parameter.requires_grad]
    with stirred(probe.model), torch.enable_grad():
        logits = probe.model(**inputs_of(probe.excerpt[1])).logits
        difference = (logits[:, pair[0]] - logits[:, pair[1]]).sum()
        slopes = torch.autograd.grad(difference, trained, allow_unused=True) if difference.requires_grad else ()
    return None if any(slope is not None and bool(slope.any()) for slope in slopes) else pair


def _one_output(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import failed, passed

    config, width = probe.model.config, probe.forward.classes
    evidence = {"num_labels": config.num_labels, "logits": width, "problem_type": config.problem_type}
    if width != 1 or config.num_labels != 1 or config.problem_type != "regression":
        return failed(
            f"the model has {width} outputs (num_labels = {config.num_labels}, problem_type {config.problem_type!r}) for one number",
            'Set num_labels to 1 and problem_type to "regression": otherwise the saved model is used with another loss.',
            **evidence,
        )
    return passed("one output, and problem_type is regression", **evidence)


def classes(probe: Probe) -> Check:
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, passed

    if probe.train_split.numbers is not None and probe.task.needs_labels:
        return _one_output(probe)
    if not probe.task.needs_labels or not probe.store.label_names:
        raise Missing(f"mode {probe.task_name} has no classes")
    names, config = probe.store.label_names, probe.model.config
    count = len(names)
    evidence: dict[str, Any] = {"num_labels": config.num_labels, "classes": count, "problem_type": config.problem_type}
    fix = f"Set num_labels, id2label and label2id from the {count} labels where mode {probe.task_name} configures the model."
    evidence["logits"] = width = config.num_labels if config.num_labels < count else probe.forward.classes
    if width == 1 or config.num_labels == 1:
        return failed(
            f"the model has one output for {count} classes: transformers silently treats that as regression (mean squared error)",
            fix,
            **evidence,
        )
    if width != count or config.num_labels != count:
        return failed(
            f"the model has {width:,} outputs (num_labels = {config.num_labels:,}) for {count} classes: "
            + (
                "the loss raises an error for labels beyond them"
                if width < count
                else f"it would start at ln {width:,} = {math.log(width):.2f}, not at {math.log(count):.2f}"
            ),
            fix,
            **evidence,
        )
    several = probe.train_split.flags is not None
    wanted = "multi_label_classification" if several else "single_label_classification"
    if config.problem_type not in ({wanted} if several else {None, wanted}):
        return failed(
            f"config.problem_type is {config.problem_type!r} for data with {'any number of labels' if several else 'one label'} a row",
            f'Set it to "{wanted}": otherwise the saved model is used with another loss.',
            **evidence,
        )
    wrong = [number for number, name in enumerate(names) if config.id2label.get(number) != name]
    if wrong:
        return failed(
            f"output {wrong[0]} is named {config.id2label.get(wrong[0])!r} in the model and {names[wrong[0]]!r} in the data",
            fix,
            **evidence,
        )
    return passed(f"{count} outputs for {count} classes, named as in the data", **evidence)


def arguments(probe: Probe) -> Check:
    import difflib

    from ftcli.core.verify.forward import arguments_of, inputs_of
    from ftcli.core.verify.verdict import failed, noted, passed

    model, given = probe.model, list(inputs_of(probe.batch))
    known = arguments_of(model)
    strange = [name for name in given if name not in known | PASSED_ON]
    evidence = {"arguments": given, "unknown": strange}
    for name in strange:
        likely = difflib.get_close_matches(name, ("attention_mask", "position_ids", "input_ids"), 1, 0.6)
        if likely and likely[0] != name:
            return failed(
                f"{type(model).__name__} takes no {name!r}: it would be silently ignored (did you mean {likely[0]}?)",
                f"Rename it to {likely[0]} in the collator.",
                **evidence,
            )
    if strange:
        return noted(
            f"{type(model).__name__} takes no {', '.join(map(repr, strange))} and ignores it; FT407 and FT408 measure the effect",
            **evidence,
        )
    return passed(f"the model takes {', '.join(given)}", **evidence)


CHECKS = (
    CheckKind("FT404", "model", "Logits", logits, ("store", "model", "forward")),
    CheckKind("FT414", "model", "Classes", classes, ("store", "model", "forward")),
    CheckKind("FT415", "model", "Arguments", arguments, ("store", "batch", "model")),
)
