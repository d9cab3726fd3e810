"""Checks of the first batch, as the run's own collator makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

OFTEN = 0.25
"""Share of the rows with PAD in their text from which it is taken for a token of the language."""


def shapes(probe: Probe) -> Check:
    from ftcli.core.verify.audit import token_places
    from ftcli.core.verify.verdict import collator_fix, failed, noted, passed, warned

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
        return failed(f"{len(lengths)} rows became a batch of {len(ids)}", collator_fix(probe), **evidence)
    places = token_places(ids, probe.rows)
    lost = (places.sum(-1) != lengths).nonzero()[0]
    if len(lost):
        return failed(
            f"row {int(lost[0])} of the batch does not hold its {int(lengths[lost[0]])} tokens as prepared",
            collator_fix(probe),
            **{**evidence, "rows": [probe.shown[int(lost[0])]]},
        )
    longest, wide = int(lengths.max()), ids.shape[-1]
    why = ["mixes short and long rows"] if lengths.min() < longest else []
    why += [f"is {wide} wide where its longest row has {longest} tokens"] if wide > longest else []
    words = (
        ", ".join(f"{name} {'×'.join(map(str, size))}" for name, size in sizes.items())
        + f"; {padding:.1%} padding"
        + (f", because the batch {' and '.join(why)}" if why else "")
    )
    mask = batch.get("attention_mask")
    if mask is None:
        if padding and "position_ids" not in batch:
            return noted(f"{words}, without an attention mask: FT407 shows whether this model needs one", **evidence)
        return passed(words, **evidence)
    attended = mask.numpy() != 0
    if attended.shape != places.shape:
        return warned(
            f"{words}: a mask of shape {list(attended.shape)} is not checked here; FT407 and FT408 measure its effect",
            collator_fix(probe),
            **evidence,
        )
    if attended[places].all() and (attended & ~places).any():
        return warned(
            f"the attention mask covers {int((attended & ~places).sum())} padding positions: FT407 and FT408 show whether that changes this model's outputs",
            "Set the mask to 1 on tokens and 0 on padding; packed rows need no mask.",
            **evidence,
        )
    wrong = (attended != places).any(-1).nonzero()[0]
    if len(wrong):
        row = int(wrong[0])
        return failed(
            f"the attention mask of row {row} covers {int((attended[row] & places[row]).sum())} of its {int(lengths[row])} tokens "
            f"and {int((attended[row] & ~places[row]).sum())} padding positions",
            collator_fix(probe),
            **evidence,
        )
    return passed(words, **evidence)


def pooling(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    if not probe.task.needs_labels:
        return _pad_in_texts(probe)
    pad, ids = probe.tokenizer.pad_token_id, probe.batch["input_ids"].numpy()
    if pad is None:
        raise Missing("the tokenizer has no PAD token")
    places = np.arange(ids.shape[1])
    pooled = np.where(ids != pad, places, -1).max(-1)
    last = np.where(probe.places, places, -1).max(-1)
    wrong = np.flatnonzero(pooled != last)
    if len(wrong):
        row = int(wrong[0])
        token = "nothing" if pooled[row] < 0 else f"{probe.tokenizer.decode([int(ids[row, pooled[row]])])!r} at position {int(pooled[row])}"
        return failed(
            f"a decoder would pool {token} in row {row}, whose last token is at position {int(last[row])}: the text ends with PAD",
            "Use a PAD token that no text contains, or leave out --add-eos when PAD is EOS.",
            rows=wrong.tolist(),
        )
    inside = ((ids == pad) & probe.places).any(-1)
    if inside.any():
        row = int(inside.argmax())
        share = float(inside.mean())
        evidence = {"rows": probe.rows.index[np.flatnonzero(inside)].tolist(), "share": share, "text": probe.shown[row]["text"]}
        words = f"PAD ({probe.tokenizer.pad_token!r}) occurs inside the text of {int(inside.sum())} of {len(ids)} rows"
        if share >= OFTEN:
            return warned(
                f"{words}: the texts use it as an ordinary token, but the embedding of PAD is not trained, and other trainers mask it",
                "Use a pad_token that no text contains, and prepare the data again.",
                **evidence,
            )
        return noted(f"{words}, not at its end, so a model that pools the last token finds the right one", **evidence)
    return passed("PAD occurs in no text, so a model that pools the last token finds the right one", rows=len(ids))


def _pad_in_texts(probe: Probe) -> Check:
    """Of a language model, which pools nothing: whether PAD is a token that the texts use."""
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import warned

    tokenizer = probe.tokenizer
    pad = tokenizer.pad_token_id
    if pad is not None and pad != tokenizer.eos_token_id:
        inside = ((probe.batch["input_ids"].numpy() == pad) & probe.places).any(-1)
        if inside.mean() >= OFTEN:
            return warned(
                f"PAD ({tokenizer.pad_token!r}) occurs inside the text of {int(inside.sum())} of {len(inside)} rows: its input embedding gets no gradient, "
                "and trainers that mask labels by the PAD id never train on it",
                "Use a pad_token that no text contains, and prepare the data again.",
                rows=probe.rows.index[inside].tolist(),
                share=float(inside.mean()),
            )
    raise Missing(f"mode {probe.task_name} does not pool")


CHECKS = (
    CheckKind("FT301", "batch", "First batch", shapes, ("store", "tokenizer", "batch")),
    CheckKind("FT303", "batch", "Pooled token", pooling, ("store", "tokenizer", "batch")),
)
