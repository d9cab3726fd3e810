"""The first batch: which rows are audited, what the collator makes of them, and how people read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ftcli.core.models.sizing import parameters
from ftcli.core.storage.store import Rows
from ftcli.core.verify.audit import batch_runs, decoded_rows
from ftcli.core.verify.missing import Missing
from ftcli.errors import DataError, FtcliError

if TYPE_CHECKING:
    import torch

    from ftcli.core.verify.probe import Probe

BATCH_ROWS = 12
"""Rows of the audited batch: enough to hold short and long ones, few enough for one fp32 forward of a large model."""

MOST_TOKENS = 2_048
"""Places of the audited batch, padding included, where the rows allow it, so that a model of 100 million parameters goes through it in seconds. Rows
longer than an eighth of it are left to FT204, when there are shorter ones."""

MOST_WORK = 13 * 10**10
"""Tokens × parameters of a language model's audited batch: a pack of 1,024 for one of 124 million parameters. A forward and backward of two took 39 s
of CPU, and three more checks go through the batch as often."""


def draw(probe: Probe, most_logits: int) -> Rows:
    """Random rows of the train split, the shortest and the longest of a larger draw among them; of a language model as many as keep its logits under
    `most_logits` and its work under `MOST_WORK`: 2 at least, or 1 pack."""
    split = probe.train_split
    if not len(split):
        raise DataError(f"{probe.store.path}: the train split has no rows", "Check the sources and their split names.")
    generator = np.random.default_rng(probe.settings.train.seed)
    drawn = generator.choice(len(split), size=min(len(split), 50 * BATCH_ROWS), replace=False)
    short = drawn[split.lengths[drawn] <= MOST_TOKENS // 8]
    if len(short) >= BATCH_ROWS and not split.packed:
        drawn = short
    if split.packed:  # what packs do to texts beside each other is seen in those of several
        documents = split.rows(drawn).seq_lengths
        assert documents is not None
        drawn = drawn[documents.lengths > 1] if (documents.lengths > 1).any() else drawn
    lengths = split.lengths[drawn]
    longest = max(1, int(lengths.max()))
    most = max(4, min(BATCH_ROWS, MOST_TOKENS // longest))
    if not probe.task.needs_labels:
        least = 1 if split.packed else 2
        size = _parameters(probe)
        work = MOST_WORK // (longest * size) if size else BATCH_ROWS
        most = max(least, min(BATCH_ROWS, MOST_TOKENS // longest, most_logits // (longest * len(probe.tokenizer)), work))
    if most == 1:
        return split.rows(drawn[:1])
    by_length = drawn[np.argsort(lengths, kind="stable")]
    middle = by_length[1:-1]
    chosen = generator.choice(middle, size=min(len(middle), most - 2), replace=False)
    return split.rows(np.unique(np.concatenate([by_length[:1], chosen, by_length[-1:]])))


def _parameters(probe: Probe) -> int | None:
    """About how many the planned model has; None where none is planned, or nothing is known of its kind."""
    try:
        return parameters(probe.config)
    except (Missing, FtcliError):  # FT401 says what is wrong with it
        return None


def excerpt_of(probe: Probe) -> tuple[Rows, Mapping[str, torch.Tensor]]:
    """A few short ones of the audited rows, and their batch. Raises `Missing` when it has no target."""
    from ftcli.core.storage.excerpt import excerpt

    _ = probe.batch
    rows = excerpt(probe.rows)
    batch = probe.collate(rows)
    require_targets(batch, numbers=rows.numbers is not None)
    return rows, batch


def require_targets(batch: Mapping[str, torch.Tensor], *, numbers: bool) -> None:
    """Raise `Missing` when a loss of the batch would mean nothing. `numbers`: they are to be predicted, one a row."""
    import torch

    from ftcli.core.batches.tasks import count_targets

    kind, dimensions = batch["labels"].dtype, batch["labels"].ndim
    if kind not in {torch.int64, torch.int32} and (kind != torch.float32 or dimensions != (1 if numbers else 2)):
        raise Missing("the labels are of the wrong kind (see FT302)")
    if not count_targets(batch["labels"]):
        raise Missing("the first batch has no target (see FT302)")


def read_back(probe: Probe) -> list[dict[str, Any]]:
    """The audited rows as people read them, with what the collator added."""
    shown = decoded_rows(probe.rows, probe.tokenizer, probe.store.label_names)
    try:
        batch = probe.batch
    except (Missing, FtcliError):  # FT301 says what is wrong with it
        return shown
    if len(batch["input_ids"]) != len(shown):
        return shown
    return [{**entry, **batch_runs(batch, row)} for row, entry in enumerate(shown)]
