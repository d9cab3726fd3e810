"""Checks of the prepared data: complete, of this tokenizer, labelled as the task expects, not leaking, not cut."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.label_flags import LabelFlags
    from ftcli.core.probe import Probe

POSITIONS_AFTER_PAD = frozenset(
    {
        "camembert",
        "data2vec-text",
        "ibert",
        "longformer",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
"""Model families that count positions from PAD + 1, so that max_position_embeddings says 514 for 512 tokens."""


def complete(probe: Probe) -> Check:
    from ftcli.core.publish import check_published
    from ftcli.core.verdict import passed

    store = probe.store
    check_published(store.path, full=True)
    splits = {name: len(store.split(name)) for name in store.split_names}
    return passed(
        f"{store.path}: every file holds what was written ({', '.join(f'{name} {rows:,} rows' for name, rows in splits.items())})",
        fingerprint=store.fingerprint,
        **splits,
    )


def same_tokenizer(probe: Probe) -> Check:
    from ftcli.core.verdict import failed, passed

    prepared = probe.store.manifest["tokenizer"]
    found = probe.tokenizer_hash
    if found == prepared["hash"]:
        return passed("the data were prepared with this tokenizer", hash=found)
    return failed(
        f"the data were prepared with another tokenizer ({prepared['path']}, hash {prepared['hash'][:12]}…, here {found[:12]}…)",
        "Prepare them again with this tokenizer, or give --tokenizer-path the one they were prepared with.",
        prepared=prepared["hash"],
        here=found,
    )


def labels(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.probe import Missing
    from ftcli.core.verdict import failed, noted, passed, warned

    store = probe.store
    names, ids = store.label_names, probe.train_split.labels
    if probe.task_name == "pretrain" or (names is None and probe.task_name != "classify"):
        raise Missing(f"mode {probe.task_name} has no labels")
    if names is not None and probe.train_split.flags is not None:
        return _label_flags(probe, probe.train_split.flags, names)
    if names is None or ids is None:
        return failed("the data have no labels", "Prepare them with --label-column.")
    for split in store.split_names:
        found = store.split(split).labels
        if found is not None and len(wrong := np.flatnonzero((found < 0) | (found >= len(names)))):
            row = int(wrong[0])
            return failed(
                f"row {row} of {split} has the label {int(found[row])}, the {len(names)} labels are 0 to {len(names) - 1}",
                "Prepare the data again.",
                rows=len(wrong),
            )
    counts = np.bincount(ids, minlength=len(names))
    shares = counts[counts > 0] / counts.sum()
    entropy = float(-(shares * np.log(shares)).sum())
    majority = int(counts.argmax())
    evidence = {
        "classes": len(names),
        "chance_loss": round(math.log(len(names)), 4),
        "prior_entropy": round(entropy, 4),
        "majority": names[majority],
        "majority_share": round(float(counts[majority] / counts.sum()), 4),
    }
    if int((counts > 0).sum()) < 2:
        return failed(f"all rows have the label {names[majority]!r}", "Check the label column.", **evidence)
    absent = [names[number] for number in np.flatnonzero(counts == 0)[:5]]
    if absent:
        return warned(
            f"{int((counts == 0).sum())} of {len(names)} classes have no training row, first {', '.join(absent)}",
            "Add rows for them, or leave them out of --label-names.",
            **evidence,
        )
    blocks = int((np.diff(ids) != 0).sum())
    if len(ids) > 10 * len(names) and blocks < 2 * len(names):
        return noted(f"the rows are sorted by label ({blocks + 1} runs): ftcli shuffles them", **evidence)
    return passed(f"{len(names)} classes, the largest has {counts[majority] / counts.sum():.1%} of the rows", **evidence)


def _label_flags(probe: Probe, flags: LabelFlags, names: list[str]) -> Check:
    """FT203 where a row has any number of labels: each one is a question of its own, answered with yes and with no."""
    from ftcli.core.label_flags import entropy
    from ftcli.core.verdict import failed, passed, warned

    for name in probe.store.split_names:
        found = probe.store.split(name).flags
        if found is None or found.width != len(names):
            return failed(f"{name} says nothing of {len(names)} labels", "Prepare the data again.")
        if odd := next(found.odd(), None):
            return failed(
                f"row {odd[0]} of {name} has {odd[1]:g} where a label holds (1) or not (0)", "Prepare the data again.", row=odd[0]
            )
    counts, rows = flags.counts, len(flags)
    most = int(counts.argmax())
    evidence = {
        "labels": len(names),
        "chance_loss": round(math.log(2), 4),
        "prior_entropy": round(entropy(counts, rows), 4),
        "labels_a_row": round(float(counts.sum() / rows), 4),
        "rows_without_labels": flags.without,
        "commonest": names[most],
        "commonest_share": round(float(counts[most] / rows), 4),
    }
    constant = (counts == 0) | (counts == rows)
    if constant.all():
        return failed("every label holds in all rows or in none: there is nothing to tell apart", "Check the label column.", **evidence)
    for fixed, words in ((counts == 0, "hold in no training row"), (counts == rows, "hold in every training row")):
        if fixed.any():
            first = ", ".join(name for name, one in zip(names, fixed.tolist(), strict=True) if one)[:200]
            fix = (
                "Add rows for them, or leave them out of --label-names."
                if words.startswith("hold in no")
                else "Leave them out: they say nothing."
            )
            return warned(f"{int(fixed.sum())} of {len(names)} labels {words}, first {first}", fix, **evidence)
    return passed(
        f"{len(names)} labels, {counts.sum() / rows:.3g} a row, the commonest in {counts[most] / rows:.1%} of the rows; {flags.without:,} rows have none",
        **evidence,
    )


def lengths(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.verdict import failed, passed, warned

    store, tokens = probe.store, probe.train_split.lengths
    counted = store.manifest.get("metrics", {})
    cut = counted.get("tokens_cut", 0) / max(1, counted.get("tokens_cut", 0) + counted.get("tokens", 0))
    limit = _positions(probe)
    evidence = {
        "mean": round(float(tokens.mean()), 1),
        "median": int(np.median(tokens)),
        "longest": int(tokens.max()),
        "positions": limit,
        "rows_truncated": counted.get("rows_truncated"),
        "tokens_cut_share": round(cut, 4),
    }
    for name in store.split_names:
        found = store.split(name).lengths
        if len(found) and not found.min():
            return failed(f"row {int(found.argmin())} of {name} has no tokens", "Prepare the data again with --min-length 1.", **evidence)
        if limit and len(found) and found.max() > limit:
            return failed(
                f"row {int(found.argmax())} of {name} has {int(found.max()):,} tokens, the model has {limit:,} positions",
                f"Prepare the data with --max-length {limit}.",
                **evidence,
            )
    if cut > 0.05:
        return warned(
            f"truncation cut {cut:.1%} of all tokens ({counted.get('rows_truncated'):,} rows)",
            "Raise --max-length, or use --truncation-strategy split.",
            **evidence,
        )
    return passed(f"{tokens.mean():.1f} tokens a row on average, at most {int(tokens.max())}; {cut:.2%} of all tokens were cut", **evidence)


def _positions(probe: Probe) -> int | None:
    """Tokens that the model has positions for; None when there is no model or no such limit."""
    from ftcli.core.probe import Missing

    try:
        config = probe.config.get_text_config()
    except Missing:
        return None
    limit: int | None = getattr(config, "max_position_embeddings", None)
    if limit is None or config.model_type not in POSITIONS_AFTER_PAD:
        return limit
    try:
        pad = probe.tokenizer.pad_token_id
    except Missing:
        pad = None
    return limit - 1 - int(config.pad_token_id if pad is None else pad)


CHECKS = (
    CheckKind("FT201", "data", "Prepared data", complete, ("store",)),
    CheckKind("FT202", "data", "Same tokenizer", same_tokenizer, ("store", "tokenizer")),
    CheckKind("FT203", "data", "Labels", labels, ("store",)),
    CheckKind("FT204", "data", "Lengths", lengths, ("store",)),
)
