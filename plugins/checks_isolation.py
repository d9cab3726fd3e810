"""Checks of what a text's logits depend on: not the rows beside it, not the documents in its pack, not the tokens after."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ftcli.core.verify.probe import Probe

INVARIANT = 1e-3
"""Clean models change by at most 7e-6 in fp32 (138 models of 23 families), faults by 1.2e-2 and more."""
MASKED = "Check the collator's attention_mask and padding side, and config.pad_token_id."
APPROXIMATE = (
    "The mask is right. Check config.pad_token_id; if that is right as well, the model reads the padding in spite of its mask, as those do that approximate "
    "attention (Funnel, Nyströmformer, YOSO): use --collator fixed, which pads every row to the same length."
)
UNMASKED = "The model takes no attention_mask and reads the padding: use --collator fixed, which pads every row to the same length, or a model with a mask."


def padding_invariance(probe: Probe) -> Check:
    from ftcli.core.verify.isolation import padding_change
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, noted, passed

    if probe.train_split.packed:
        raise Missing("packed rows are not padded (see FT408)")
    from ftcli.core.verify.forward import arguments_of, inputs_of

    result, rows = probe.sound_forward, probe.rows
    masked = "attention_mask" in arguments_of(probe.model)

    def alone(row: int) -> Mapping[str, Any]:
        return probe.collate(probe.train_split.rows([int(rows.index[row])]))

    def exact(row: int) -> Mapping[str, Any]:
        """The row as it is in the batch, with the mask and the types that it should have."""
        import torch

        batch = {name: value[row : row + 1].clone() for name, value in inputs_of(result.batch).items()}
        text = torch.from_numpy(probe.places[row : row + 1]).to(batch["input_ids"].device)
        batch["attention_mask"] = text.long()
        if rows.types is not None:
            types = torch.zeros_like(batch["input_ids"])
            types[text] = torch.from_numpy(rows.types.row(row)).to(types)
            batch["token_type_ids"] = types
        return batch

    change, place, looked_at = padding_change(result, rows, probe.places, None if masked else alone)
    evidence: dict[str, Any] = {"change": change, "rows": looked_at}
    if change > INVARIANT:
        right = masked and padding_change(result, rows, probe.places, exact)[0] <= INVARIANT
        if right and probe.settings.loader.collator == "fixed":
            return noted(
                f"a row's logits change with its padding ({change:.2g} standard deviations), but not with the other rows of the batch, as every row is padded alike",
                **evidence,
            )
        shown = probe.shown[place]
        return failed(
            f"row {shown['row']}'s logits change by {change:.2g} standard deviations depending on the other rows of the batch",
            APPROXIMATE if right else MASKED if masked else UNMASKED,
            row=shown["row"],
            text=shown["text"],
            **evidence,
        )
    return passed(
        f"a row's logits do not depend on the other rows of the batch ({change:.1g} standard deviations, {looked_at} rows alone)",
        **evidence,
    )


def packing_isolation(probe: Probe) -> Check:
    from ftcli.core.models.layers import remembers
    from ftcli.core.verify.isolation import leak
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, passed

    if not probe.train_split.packed:
        raise Missing("the data are not packed")
    _ = probe.sound_forward
    found = leak(probe.model, probe.collate, probe.rows)
    if found is None:
        raise Missing("no pack of the first batch holds two documents")
    change, row, document = found
    config = probe.model.config
    evidence = {"change": change, "attention": str(config._attn_implementation), "use_cache": bool(config.use_cache)}
    if change > INVARIANT and remembers(probe.model):
        return failed(
            f"{type(probe.model).__name__} carries what its layers keep from one document of a pack into the next: logits of document {document} of row {row} "
            f"change by {change:.2g} standard deviations",
            "Prepare the data without --packing.",
            row=row,
            document=document,
            **evidence,
        )
    if change > INVARIANT:
        cache = ", and train.use_cache is on" if config.use_cache else ""
        tried = evidence["attention"] in {"sdpa", "eager"}
        fix = "Prepare the data without --packing." if tried else "Use sdpa or eager attention, or prepare the data without --packing."
        return failed(
            f"documents in one pack attend to each other: logits of document {document} of row {row} change by {change:.2g} standard deviations "
            f"({evidence['attention']} attention{cache})",
            "Leave train.use_cache unset." if config.use_cache else fix,
            row=row,
            document=document,
            **evidence,
        )
    return passed(
        f"documents in a pack do not attend to each other ({change:.1g} standard deviations, {evidence['attention']} attention)", **evidence
    )


def causality(probe: Probe) -> Check:
    from ftcli.core.training.gate import check_learnable
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import passed

    if probe.task.needs_labels:
        raise Missing(f"mode {probe.task_name} does not predict the next token")
    _ = probe.forward  # of a model that cannot take a batch FT403 says why
    check_learnable(probe.model, packed=False)
    return passed("predictions depend only on the tokens before them")


def label_shift(probe: Probe) -> Check:
    """F5: with a loss on the label at place p alone, the last input with a gradient is p - 1."""
    import numpy as np

    from ftcli.core.batches.tasks import IGNORED
    from ftcli.core.storage.excerpt import document_starts
    from ftcli.core.verify.audit import token_places
    from ftcli.core.verify.input_dependence import SEEN, reach, stirred
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, passed

    rows, batch = probe.excerpt
    if probe.task.needs_labels:
        raise Missing(f"mode {probe.task_name} learns row labels, not the next token")
    places = token_places(batch["input_ids"].numpy(), rows)[0]
    if not places.any():
        raise Missing("the batch does not hold the rows as prepared (see FT301)")
    first = int(places.argmax())
    place = first + _place(probe)
    labels = batch["labels"].clone().fill_(IGNORED)
    labels[0, place] = batch["input_ids"][0, place]
    _ = probe.forward
    with stirred(probe.model):
        gradient = reach(probe.model, batch, lambda logits: probe.task.loss(logits, labels, None))[0]
    if broken := _no_numbers(probe, gradient, places):
        return broken
    gradient = np.where(places, gradient, 0.0)  # at padding it may be no number, as in Gemma 3n, whose root of 0 has no slope
    seen = (gradient > SEEN * max(gradient.max(), 1e-30)).nonzero()[0]
    last = int(seen[-1]) if len(seen) else None
    start = first + max(int(begin) for begin in document_starts(rows, 0)[:-1] if begin < place - first)
    evidence = {"label_at": place, "last_input": last, "first_input": int(seen[0]) if len(seen) else None, "document_begins": start}
    if last == place - 1:
        return passed(f"the label at position {place} is predicted from the tokens up to position {last}", **evidence)
    words = {
        None: "no input: it is excluded from the loss",
        place: f"the tokens up to position {place}, itself included: labels are not shifted",
        place - 2: f"the tokens up to position {place - 2}: labels are shifted twice",
    }.get(last, f"the tokens up to position {last}")
    return failed(
        f"the label at position {place} is predicted from {words}",
        "Position i must predict label i + 1, once: either the collator's labels or the task's loss shifts wrongly.",
        **evidence,
    )


def _no_numbers(probe: Probe, gradient: NDArray[np.float64], places: NDArray[np.bool_]) -> Check | None:
    """The verdict where a token of the text, at one of `places` of a row, has a gradient that is no number."""
    import numpy as np

    from ftcli.core.verify.verdict import failed

    broken = np.flatnonzero(places & ~np.isfinite(gradient))
    if not len(broken):
        return None
    _ = probe.sound_forward  # of logits that are no numbers FT404 says why
    return failed(
        f"{len(broken)} of {int(places.sum())} tokens have a NaN or infinite gradient, first at position {broken[0]}: an optimizer step would ruin the weights",
        "Look for a square root, a norm or a division at 0 in the model's own code, and for weights of 0 used as divisors.",
        places=broken[:8].tolist(),
    )


def _place(probe: Probe) -> int:
    """A label of the excerpt's first row with at least two tokens of its document before it."""
    from ftcli.core.storage.excerpt import document_starts
    from ftcli.core.verify.probe import Missing

    rows, _ = probe.excerpt
    starts = document_starts(rows, 0)
    ends = [(start, stop) for start, stop in pairwise(starts.tolist()) if stop - start > 2]
    if not ends:
        raise Missing("no text of the first batch has three tokens")
    start, stop = ends[-1]
    place: int = min(stop - 1, start + 8)
    return place


def reads_its_input(probe: Probe) -> Check:
    """Every token of a short text must have a gradient; that neighbours and padding have none, the checks before this one measure."""
    import torch

    from ftcli.core.storage.excerpt import document_starts
    from ftcli.core.verify.audit import token_places
    from ftcli.core.verify.input_dependence import reach, stirred
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, passed

    rows, batch = probe.excerpt
    places = token_places(batch["input_ids"].numpy(), rows)
    if not places[0].any():
        raise Missing("the batch does not hold the rows as prepared (see FT301)")
    first = int(places[0].argmax())
    begin, end = first, first + int(places[0].sum())
    if not probe.task.needs_labels:
        end = first + _place(probe)
        begin = first + max(int(start) for start in document_starts(rows, 0)[:-1] if start < end - first)

    def scalar(logits: torch.Tensor) -> torch.Tensor:
        found = logits[0] if logits.ndim == 2 else logits[0, end - 1]
        return (found.float() * torch.linspace(-1, 1, found.shape[-1]).cos()).sum()

    _ = probe.forward
    with stirred(probe.model):
        gradient = reach(probe.model, batch, scalar)
    if broken := _no_numbers(probe, gradient[0, begin:end], places[0, begin:end]):
        return broken
    read = gradient[0, begin:end]
    blind = int((read == 0).sum())
    tokens = end - begin
    evidence: dict[str, Any] = {"tokens": tokens, "without_gradient": blind, "row": int(rows.index[0])}
    if blind:
        return failed(
            f"{blind} of {tokens} tokens of row {rows.index[0]} have no influence on its output: the model cannot learn from tokens it does not see",
            "Look at the attention mask, at positions that restart within the text, and at which token the head pools.",
            **evidence,
        )
    return passed(f"the output depends on every one of the {tokens} tokens of the text before it", **evidence)


CHECKS = (
    CheckKind("FT407", "model", "Padding invariance", padding_invariance, ("store", "model", "forward")),
    CheckKind("FT408", "model", "Packing isolation", packing_isolation, ("store", "model", "forward")),
    CheckKind("FT409", "model", "Causality", causality, ("store", "model", "forward")),
    CheckKind("FT410", "model", "Label shift", label_shift, ("store", "batch", "model", "forward"), after=("FT302", "FT409")),
    CheckKind(
        "FT411", "model", "Reads its input", reads_its_input, ("store", "batch", "model", "forward"), after=("FT407", "FT408", "FT409")
    ),
)
