"""Checks of the first batch, as the run's own collator makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.probe import Probe

COLLATOR_FIX = "The collator is wrong: use one of ftcli's, or mend the plugin."


def shapes(probe: Probe) -> Check:
    from ftcli.core.audit import token_places
    from ftcli.core.verdict import failed, noted, passed

    batch, lengths = probe.batch, probe.rows.input_ids.lengths
    sizes = {name: list(value.shape) for name, value in batch.items()}
    ids = batch["input_ids"].numpy()
    padding = 1 - int(lengths.sum()) / ids.size
    evidence: dict[str, Any] = {
        "shapes": sizes,
        "padding_share": round(padding, 4),
        "largest_id": int(ids.max()),
        "collator": probe.collator_name,
        "rows": probe.shown[:3],
    }
    if len(ids) != len(lengths):
        return failed(f"{len(lengths)} rows became a batch of {len(ids)}", COLLATOR_FIX, **evidence)
    places = token_places(ids, probe.rows)
    lost = (places.sum(-1) != lengths).nonzero()[0]
    if len(lost):
        return failed(
            f"row {int(lost[0])} of the batch does not hold its {int(lengths[lost[0]])} tokens as prepared", COLLATOR_FIX, **evidence
        )
    words = (
        ", ".join(f"{name} {'×'.join(map(str, size))}" for name, size in sizes.items())
        + f"; {padding:.1%} padding among rows of all lengths"
    )
    mask = batch.get("attention_mask")
    if mask is None:
        if padding and "position_ids" not in batch:
            return noted(f"{words}, without an attention mask: FT407 says whether this model needs one", **evidence)
        return passed(words, **evidence)
    attended = mask.numpy() != 0
    wrong = (attended != places).any(-1).nonzero()[0]
    if len(wrong):
        row = int(wrong[0])
        return failed(
            f"the attention mask of row {row} covers {int((attended[row] & places[row]).sum())} of its {int(lengths[row])} tokens "
            f"and {int((attended[row] & ~places[row]).sum())} places of padding",
            COLLATOR_FIX,
            **evidence,
        )
    return passed(words, **evidence)


def targets(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.collate import IGNORED
    from ftcli.core.verdict import failed, passed, warned

    batch = probe.batch
    labels, ids = batch["labels"].numpy(), batch["input_ids"].numpy()
    if labels.ndim == 1:
        _ = probe.places
        wanted = probe.task.labels(probe.rows)
        wrong = (labels != wanted).nonzero()[0]
        if len(wrong):
            row = int(wrong[0])
            return failed(f"row {row} of the batch has the label {int(labels[row])}, the data say {int(wanted[row])}", COLLATOR_FIX)
        return passed(f"one label a row: {len(np.unique(labels))} different ones in {len(labels)} rows", labels=labels.tolist())
    trained = labels != IGNORED
    empty = (trained.sum(-1) == 0).nonzero()[0].tolist()
    evidence = {"targets": int(trained.sum()), "slots": int(labels.size), "rows_without_targets": empty}
    shifted = trained & (labels != ids)
    if shifted.any():
        row, place = (int(numbers[0]) for numbers in shifted.nonzero())
        return failed(
            f"label {int(labels[row, place])} at place {place} of row {row} is not the token that stands there: labels must not be shifted",
            "Hugging Face models shift labels themselves: let the collator leave them in place.",
            **evidence,
        )
    places = probe.places
    if (trained & ~places).any():
        return failed("padding is labelled: the model would learn to predict PAD", "Label padding with -100.", **evidence)
    wanted = np.full(ids.shape, IGNORED, np.int64)
    wanted[places] = probe.task.labels(probe.rows)
    crossing = trained & (wanted == IGNORED)
    crossing[:, 1:] &= places[:, :-1]  # the first place of a row is nobody's next token
    crossing[:, 0] = False
    if crossing.any():
        row, place = (int(numbers[0]) for numbers in crossing.nonzero())
        return failed(
            f"place {place} of row {row} is a target, though mode {probe.task_name} leaves it out: the first token of a text would be predicted "
            "from the text before it",
            COLLATOR_FIX,
            **evidence,
        )
    if empty:
        return failed(
            f"{len(empty)} rows have no target at all, first row {empty[0]}", "Remove rows of a single token: --min-length 2.", **evidence
        )
    eos = probe.tokenizer.eos_token_id
    if eos is None:
        return passed(f"{evidence['targets']:,} targets in {evidence['slots']:,} slots; the tokenizer has no EOS", **evidence)
    ends = (ids == eos) & places
    if (ends & trained).any():
        return passed(f"{evidence['targets']:,} targets in {evidence['slots']:,} slots, EOS among them", **evidence)
    if ends.any():
        return failed(
            "EOS stands in the batch and is never a target: the model would never learn to stop",
            "Label EOS: mask padding by place and not by the PAD id, which is EOS here."
            if eos == probe.tokenizer.pad_token_id
            else COLLATOR_FIX,
            **evidence,
        )
    if probe.store.manifest.get("policy", {}).get("eos") == eos:
        return passed(f"{evidence['targets']:,} targets; no text ends in these rows, but in the data EOS ends every one", **evidence)
    return warned("no text ends with EOS: the model will not learn to stop", "Prepare the data with --add-eos.", **evidence)


def pooling(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.probe import Missing
    from ftcli.core.verdict import failed, passed

    if not probe.task.needs_labels:
        raise Missing(f"mode {probe.task_name} pools nothing")
    pad, ids = probe.tokenizer.pad_token_id, probe.batch["input_ids"].numpy()
    if pad is None:
        raise Missing("the tokenizer has no PAD token")
    places = np.arange(ids.shape[1])
    pooled = np.where(ids != pad, places, -1).max(-1)
    last = np.where(probe.places, places, -1).max(-1)
    wrong = np.flatnonzero(pooled != last)
    if len(wrong):
        row = int(wrong[0])
        token = "nothing" if pooled[row] < 0 else f"{probe.tokenizer.decode([int(ids[row, pooled[row]])])!r} at place {int(pooled[row])}"
        return failed(
            f"a decoder would pool {token} in row {row}, whose last token stands at place {int(last[row])}: the text ends with PAD",
            "Use a PAD token that no text contains, or leave out --add-eos when PAD is EOS.",
            rows=wrong.tolist(),
        )
    return passed("every row's last token is the one that is pooled", rows=len(ids))


CHECKS = (
    CheckKind("FT301", "batch", "First batch", shapes, ("store", "tokenizer", "batch")),
    CheckKind("FT302", "batch", "Targets", targets, ("store", "tokenizer", "batch")),
    CheckKind("FT303", "batch", "Pooled token", pooling, ("store", "tokenizer", "batch")),
)
