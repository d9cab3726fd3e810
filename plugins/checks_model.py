"""Checks of the model against tokenizer and data: ids, PAD, first loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

from . import mends
from .checks_weights import own_tokenizer

if TYPE_CHECKING:
    from ftcli.core.verify.forward import Forward
    from ftcli.core.verify.probe import Probe

MOST_IDS = 2**28
"""Tokens of the train split that are looked through for the largest id: 0.2 s."""


def vocabulary(probe: Probe) -> Check:
    from ftcli.core.training.gate import _largest_id
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, passed
    from ftcli.errors import FtcliError

    ids, rows = probe.vocabulary
    evidence: dict[str, Any] = {"tokenizer_ids": ids, "embedding_rows": rows}
    try:
        split = probe.train_split
    except (Missing, FtcliError):  # FT201 says what is wrong with the data
        return passed(f"{ids:,} ids fit into {rows:,} embedding rows", **evidence)
    if int(split.lengths.sum()) <= MOST_IDS:
        evidence["largest_id_in_data"] = largest = _largest_id(split)
        if largest >= rows:
            return failed(
                f"the data contain the id {largest:,}, but the model's embedding has {rows:,} rows",
                "Prepare the data with this model's tokenizer, or use the model they were prepared for.",
                **evidence,
            )
    return passed(f"{ids:,} ids fit into {rows:,} embedding rows", **evidence)


def pad_id(probe: Probe) -> Check:
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, noted, passed
    from ftcli.errors import FtcliError

    given, wanted = getattr(probe.config.get_text_config(), "pad_token_id", None), probe.tokenizer.pad_token_id
    evidence: dict[str, Any] = {"config": given, "tokenizer": wanted}
    try:
        evidence["model"] = built = probe.model.config.get_text_config().pad_token_id
        if built != wanted and probe.task.needs_labels:
            return failed(
                f"the model to train has config.pad_token_id = {built}, but the tokenizer pads with {wanted}: a decoder would pool the wrong token",
                f"Set config.pad_token_id = {wanted} where mode {probe.task_name} configures the model.",
                **evidence,
            )
    except (Missing, FtcliError):  # FT403 says why there is no model
        pass
    if given == wanted:
        return passed(f"config.pad_token_id is the tokenizer's ({wanted})", **evidence)
    return noted(
        f"config.pad_token_id is {given}, the tokenizer's {wanted}: ftcli sets it before training"
        + (
            "; elsewhere a decoder used as a classifier would fail on a batch of several rows or pool the wrong token"
            if probe.task.needs_labels
            else ""
        ),
        **evidence,
    )


def _first_square(result: Forward) -> Check:
    """Of numbers: what this batch's answers give for the numbers of other rows."""
    from ftcli.core.verify.verdict import failed, passed, warned

    implied, evidence = result.implied_loss, {"loss": round(result.loss, 6), "implied_by_logits": round(result.implied_loss, 6)}
    if not math.isfinite(result.loss):
        return failed(f"the first loss is {result.loss}", "The predictions are finite: look at the task's loss and labels.", **evidence)
    if result.loss > 4 * implied:
        return warned(
            f"the first loss is {result.loss:.3g}, but these predictions imply {implied:.3g} for the labels of any rows",
            "The loss is multiplied, or the labels do not belong to this batch.",
            **evidence,
        )
    return passed(f"the first loss is {result.loss:.3g}; these predictions imply {implied:.3g} for the labels of any rows", **evidence)


def first_loss(probe: Probe) -> Check:
    from ftcli.core.models.adapter import is_adapter
    from ftcli.core.verify.verdict import failed, passed, warned

    result = probe.sound_forward
    if probe.train_split.numbers is not None and probe.task.needs_labels:
        return _first_square(result)
    several = probe.train_split.flags is not None and probe.task.needs_labels
    outcomes = 2 if several else result.classes  # each label is a question of its own
    chance, implied, scale = math.log(outcomes), result.implied_loss, result.logit_std
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
    loaded = getattr(probe.model, "ftcli_loaded", {})
    fresh = probe.settings.model.config is not None
    new_head = fresh or (not is_adapter(probe.settings) and bool(loaded.get("missing_keys") or loaded.get("mismatched_keys")))
    if not fresh and not probe.task.needs_labels:
        if result.loss <= chance - 1:
            return passed(f"the pretrained model starts at {result.loss:.3f}, well below chance ({chance:.3f})", **evidence)
        if over < 1 and abs(result.loss - implied) <= noise:
            return warned(
                f"the first loss is {result.loss:.2f}, which is chance ({chance:.2f}), and the logits are flat: these weights have learned nothing yet",
                "Check --model-name-or-path; to start from random weights give --model-config.",
                **evidence,
            )
        if _own_tokens(probe):
            return (warned if result.loss <= chance + 1 else failed)(
                f"a pretrained model starts at {result.loss:.2f}, chance is {chance:.2f}, and the tokens are its own: it has not seen such text (another language or "
                "kind), or its weights or configuration are damaged",
                "Measure its loss on text it must know: intact weights are well below chance there, and can learn this text from here.",
                **evidence,
            )
        return failed(
            f"a pretrained model starts at {result.loss:.2f}, chance is {chance:.2f}: weights and tokenizer do not belong together",
            "Check --model-name-or-path and --tokenizer-path.",
            **evidence,
        )
    if not new_head and result.loss < chance:
        return passed(
            f"the first loss is {result.loss:.3f}, below chance ({chance:.3f}): the weights may already know these labels", **evidence
        )
    if abs(result.loss - implied) > noise:
        return failed(
            f"the first loss is {result.loss:.3f}, but these logits imply {implied:.3f} ± {noise:.3f} for unrelated labels",
            "Labels and logits do not match: check the label column and the label map.",
            **evidence,
        )
    if over > 1:
        verdict = failed if over > 3 else warned
        fix = "Shrink or zero the head's initial weights (initializer_range)."
        if not new_head:
            fix = "If the head was trained, its labels are not those of the data: compare the label maps. If it is new, shrink or zero its weights."
        return verdict(
            f"the first loss is {result.loss:.2f}, chance is {chance:.2f}: the head starts with a logit standard deviation of {scale:.1f}",
            fix,
            **evidence,
        )
    return passed(f"the first loss is {result.loss:.3f}, chance is ln {outcomes:,} = {chance:.3f}", **evidence)


def _own_tokens(probe: Probe) -> bool:
    """Whether the ids were proved to mean to the weights what they mean here."""
    from ftcli.core.verify.probe import Missing

    try:
        return own_tokenizer(probe).status != "fail"
    except Missing:
        return False


CHECKS = (
    CheckKind("FT401", "model", "Vocabulary", vocabulary, ("tokenizer", "model"), mend=mends.vocab_size),
    CheckKind("FT402", "model", "config.pad_token_id", pad_id, ("tokenizer", "model"), mend=mends.config_pad_id),
    CheckKind("FT403", "model", "First loss", first_loss, ("store", "model", "forward")),
)
