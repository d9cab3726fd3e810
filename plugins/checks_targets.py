"""Checks of what is learned: labels of the first batch, and whether texts end with EOS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from ftcli.core.verify.probe import Probe

UNLEARNED_FIX = "The task masks it: keep the end of a text among its labels."
MOST_ROWS = 20_000
"""Rows whose last token is looked at, drawn at random."""
MOST_CUT = 0.05
"""Share of the answers that may have lost their end to --max-length."""
MOST_BLANK = 4
"""Tokens of nothing but space that a chat template writes behind EOS at most."""


def targets(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import failed

    batch = probe.batch
    if twice := [name for name in ("label", "label_ids") if name in batch]:
        return failed(
            f"the batch has {twice[0]!r} beside 'labels': transformers lets {twice[0]!r} silently win in some collators, and models ignore it",
            "Keep one label column, named labels.",
            columns=list(batch),
        )
    if probe.rows.flags is not None and probe.task.needs_labels:
        return _any_number(probe)
    if probe.rows.numbers is not None and probe.task.needs_labels:
        return _numbers(probe)
    if wrong := _wrong_type(batch["labels"]):
        return failed(wrong, "Labels must be integers (int64), one per row or one per token.", dtype=str(batch["labels"].dtype))
    return _one_a_row(probe) if batch["labels"].ndim == 1 else _one_a_token(probe)


def _numbers(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.verify.verdict import collator_fix, failed, passed

    found, wanted = probe.batch["labels"], probe.task.labels(probe.rows)
    if not found.is_floating_point() or found.shape != (len(wanted),):
        words = f"labels are {str(found.dtype).removeprefix('torch.')} {list(found.shape)}"
        return failed(f"{words} for {len(wanted)} numbers", "Regression labels must be float32, one per row.")
    wrong = np.flatnonzero(found.numpy() != wanted)
    if len(wrong):
        row = int(wrong[0])
        return failed(
            f"row {int(probe.rows.index[row])} has the label {float(wanted[row]):g}, but in the batch it is {float(found[row]):g}",
            collator_fix(probe),
        )
    return passed(f"{len(wanted)} rows have their labels, for example {float(wanted[0]):g}")


def _wrong_type(labels: torch.Tensor) -> str:
    import torch

    kind = str(labels.dtype).removeprefix("torch.")
    if labels.is_floating_point():
        shape = "×".join(map(str, labels.shape))
        return f"labels are {kind} ({shape}): models take them for per-class scores and silently switch to another loss (BCE or MSE)"
    if labels.dtype != torch.int64:
        return f"labels are {kind}: the loss needs int64, and misreads or refuses {kind}"
    return ""


def _one_a_row(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.verify.verdict import collator_fix, failed, passed

    labels = probe.batch["labels"].numpy()
    _ = probe.places
    wanted = probe.task.labels(probe.rows)
    if len(wanted) != len(labels):
        return failed(f"{len(labels)} labels for {len(wanted)} targets of mode {probe.task_name}", collator_fix(probe))
    wrong = (labels != wanted).nonzero()[0]
    if len(wrong):
        row = int(wrong[0])
        return failed(
            f"row {row} of the batch has the label {int(labels[row])}, but in the data it is {int(wanted[row])}",
            collator_fix(probe),
            rows=probe.rows.index[wrong].tolist(),
            text=probe.shown[row]["text"],
        )
    return passed(f"one label per row: {len(np.unique(labels))} distinct labels in {len(labels)} rows", labels=labels.tolist())


def _any_number(probe: Probe) -> Check:
    """Rows with any number of labels: float32 [rows, labels], 1 where one holds."""
    import torch

    from ftcli.core.verify.verdict import collator_fix, failed, passed

    labels, wanted = probe.batch["labels"], torch.from_numpy(probe.task.labels(probe.rows))
    _ = probe.places
    if labels.dtype != torch.float32 or labels.shape != wanted.shape:
        kind = str(labels.dtype).removeprefix("torch.")
        return failed(
            f"labels are {kind} {list(labels.shape)}, the data have float32 {list(wanted.shape)}: 1 where a label is set, else 0",
            collator_fix(probe),
            dtype=kind,
        )
    wrong = (labels != wanted).any(1).nonzero().flatten().tolist()
    if wrong:
        return failed(
            f"row {wrong[0]} of the batch has different labels than in the data",
            collator_fix(probe),
            rows=probe.rows.index[wrong].tolist(),
            text=probe.shown[wrong[0]]["text"],
        )
    held = labels.sum(1)
    return passed(
        f"{float(held.mean()):.3g} of {labels.shape[1]} labels per row in {len(labels)} rows, {int((held == 0).sum())} of them without any",
        labels_a_row=held.int().tolist(),
    )


def _one_a_token(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.batches.tasks import IGNORED
    from ftcli.core.verify.verdict import collator_fix, failed, passed, warned

    batch, rows = probe.batch, probe.rows
    labels, ids = batch["labels"].numpy(), batch["input_ids"].numpy()
    if labels.shape != ids.shape:
        return failed(f"labels have the shape {list(labels.shape)}, the ids {list(ids.shape)}", collator_fix(probe))
    trained = labels != IGNORED
    empty = (trained[:, 1:].sum(-1) == 0).nonzero()[0].tolist()
    evidence = {"targets": int(trained.sum()), "slots": int(labels.size), "rows_without_targets": empty}
    shifted = trained & (labels != ids)
    if shifted.any():
        row, place = (int(numbers[0]) for numbers in shifted.nonzero())
        return failed(
            f"label {int(labels[row, place])} at position {place} of row {row} is not the token at that position: labels must not be shifted",
            "Hugging Face models shift labels themselves: the collator must not.",
            text=probe.shown[row]["text"],
            **evidence,
        )
    places = probe.places
    if (trained & ~places).any():
        return failed(
            f"padding is labelled ({int((trained & ~places).sum()):,} positions): the model would learn to predict PAD",
            "Label padding with -100.",
            **evidence,
        )
    wanted = np.full(ids.shape, IGNORED, np.int64)
    wanted[places] = probe.task.labels(rows)
    crossing = trained & (wanted == IGNORED)
    crossing[:, 1:] &= places[:, :-1]  # the first place of a row is nobody's next token
    crossing[:, 0] = False
    if crossing.any():
        row, place = (int(numbers[0]) for numbers in crossing.nonzero())
        return failed(
            f"position {place} of row {row} is a target, though mode {probe.task_name} excludes it: the first token of a text would be predicted "
            "from the text before it",
            collator_fix(probe),
            **evidence,
        )
    if empty:
        return failed(
            f"{len(empty)} rows have no target at all, first row {empty[0]}",
            "Remove rows of a single token: --min-length 2.",
            **{**evidence, "rows": rows.index[empty].tolist()},
        )
    eos = probe.tokenizer.eos_token_id
    ends = (ids == eos) & places if eos is not None else places & False
    if (ends & (wanted != IGNORED)).any() and not (ends & trained).any():
        return failed(
            "EOS occurs in the batch but is never a target: the model would never learn to stop",
            "Label EOS: mask padding by position, not by the PAD id, which is EOS here."
            if eos == probe.tokenizer.pad_token_id
            else collator_fix(probe),
            **evidence,
        )
    left_out = (wanted != IGNORED) & ~trained
    if left_out.any():
        share = float(left_out.sum() / (wanted != IGNORED).sum())
        row, place = (int(numbers[0]) for numbers in left_out.nonzero())
        token = probe.tokenizer.decode([int(ids[row, place])])
        return (failed if share > 0.5 else warned)(
            f"{share:.1%} of the tokens that mode {probe.task_name} should learn are not targets, first {token!r} at position {place} of row {row}",
            f"{collator_fix(probe)} A task that excludes tokens must do so in its own labels.",
            left_out=int(left_out.sum()),
            **evidence,
        )
    words = "the tokenizer has no EOS" if eos is None else "EOS among them" if ends.any() else "no EOS in these rows (see FT304)"
    return passed(f"{evidence['targets']:,} targets in {evidence['slots']:,} slots, {words}", **evidence)


def endings(probe: Probe) -> Check:
    """S7: the share of texts whose last token is an end to tokenizer or model, spaces and line ends behind it aside: ChatML's turns end with EOS and a
    line end, Gemma's with an end of their own. And whether it is ever a target."""
    import numpy as np

    from ftcli.core.batches.tasks import IGNORED
    from ftcli.core.storage.documents import ended
    from ftcli.core.verify.ends import configured, generating
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    if probe.task.needs_labels:
        raise Missing(f"mode {probe.task_name} does not train on the end of a text")
    eos = probe.tokenizer.eos_token_id
    if eos is None:
        raise Missing("the tokenizer has no EOS token")
    split = probe.train_split
    draw = np.random.default_rng(probe.settings.train.seed).choice(len(split), min(len(split), MOST_ROWS), replace=False)
    rows = split.rows(np.sort(draw))
    lengths = rows.input_ids.lengths if rows.seq_lengths is None else rows.seq_lengths.values.astype(np.int64)
    lengths = lengths[lengths > 0]
    places = _last_places(rows.input_ids.values, lengths, probe)
    last = rows.input_ids.values[places]
    ends = [*dict.fromkeys([int(eos), *configured(probe), *generating(probe)])]
    ending = np.isin(last, ends)
    share = float(ending.mean()) if len(last) else 0.0
    lost = _lost(probe, lengths, ending)
    cut = lost > MOST_CUT and (share >= 0.5 or lost > (1 - share) / 2)
    evidence: dict[str, Any] = {"share": round(share, 4), "texts": len(last), "eos": probe.tokenizer.eos_token, "cut": round(lost, 4)}
    if share >= 0.5:
        named = " or ".join(repr(probe.tokenizer.decode([end])) for end in ends if end in last)
        labels = np.asarray(probe.task.labels(rows))
        learned = labels[places[ending]] != IGNORED
        evidence["learned"] = round(float(learned.mean()), 4)
        # Phi-3 ends an answer with one and the conversation with another
        within = [end for end in ends if not learned.any() and (labels == end).any()]
        if not learned.any() and not within:
            return failed(
                f"{share:.1%} of {len(last):,} texts end with {named}, which is never a target: the model would never stop",
                UNLEARNED_FIX,
                **evidence,
            )
        if not cut:
            if within:
                named += ", their answers with " + " or ".join(repr(probe.tokenizer.decode([end])) for end in within)
            return passed(f"{share:.1%} of {len(last):,} texts end with {named}", **evidence)
    if share and cut:
        return warned(
            f"{lost:.1%} of {len(last):,} answers were cut at {probe.store.max_length:,} tokens and lost their end: the model learns not to stop there",
            f"{_longer(probe)}, or drop such rows: --truncation-strategy drop.",
            **evidence,
        )
    if ended(probe.store.manifest, eos):
        return noted(
            f"{share:.1%} of the texts end with {evidence['eos']!r}: every text in the data ends with it, and the others were cut or split",
            **evidence,
        )
    fix = "Prepare the data with --add-eos."
    if (probe.store.manifest.get("chat_template") or {}).get("mask"):
        usual = probe.tokenizer.decode([int(np.bincount(last).argmax())])
        fix = f"The chat template ends most conversations with {usual!r}: if that ends an answer, set it as eos_token in tokenizer_config.json."
    if cut:
        fix = f"{_longer(probe)}: their ends were cut there."
    if not share and _instructs(probe):
        return failed("no answer ends with EOS: the model would never stop", fix, **evidence)
    return warned(
        ("no text ends" if not share else f"only {share:.1%} of the texts end") + " with EOS: the model will not learn to stop",
        fix,
        **evidence,
    )


def _lost(probe: Probe, lengths: NDArray[Any], ending: NDArray[np.bool_]) -> float:
    """The share of answers that truncation took the end of: they are as long as a row can be, and lack one."""
    manifest = probe.store.manifest
    cut = probe.task_name == "sft" and (manifest.get("metrics") or {}).get("rows_truncated")
    if not cut or not len(lengths) or (manifest.get("policy") or {}).get("truncation") == "keep_end":
        return 0.0
    return float((~ending & (lengths >= probe.store.max_length)).mean())


def _longer(probe: Probe) -> str:
    counted = probe.store.manifest["metrics"]
    return f"Raise --max-length above {probe.store.max_length:,} ({counted['tokens_cut'] / counted['rows_truncated']:,.0f} tokens are missing from a cut row on average)"


def _last_places(ids: NDArray[Any], lengths: NDArray[Any], probe: Probe) -> NDArray[Any]:
    """Of every text the place of its last token that is more than space."""
    import numpy as np

    place = np.cumsum(lengths) - 1
    first = place - lengths + 1
    last: NDArray[Any] = ids[place]
    for _ in range(MOST_BLANK):
        blank = np.array([token for token in np.unique(last) if probe.tokenizer.decode([int(token)]).isspace()], dtype=ids.dtype)
        place = np.where(np.isin(last, blank), np.maximum(place - 1, first), place)
        last = ids[place]
    return place


def _instructs(probe: Probe) -> bool:
    """Whether the rows are prompts with answers: the mode is sft, or its labels leave a part of each text out."""
    import numpy as np

    from ftcli.core.batches.tasks import IGNORED

    rows = probe.rows
    labels = np.asarray(probe.task.labels(rows))
    documents = len(rows) if rows.seq_lengths is None else len(rows.seq_lengths.values)
    return probe.task_name == "sft" or int((labels == IGNORED).sum()) > documents


CHECKS = (
    CheckKind("FT302", "batch", "Targets", targets, ("store", "tokenizer", "batch")),
    CheckKind("FT304", "batch", "Ends of texts", endings, ("store", "tokenizer")),
)
