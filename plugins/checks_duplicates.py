"""The check of train texts that stand more than once: under several labels, or often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

CONFLICTS = 0.005
"""Share of rows in conflict that warns. banking77 has none; 3i4k 0.8 %, GoEmotions 0.8 %, O*NET 9 %."""
ONE_PAIR = 0.05
"""The same where there is one pair: two rows in a hundred are no cause."""
COPIES = 1 / 3
"""Share of rows that repeat another one that warns, whatever is learned of them."""
TORN = 0.5
"""Share of rows in conflict that fails: most of what is learned is contradicted."""


def duplicates(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.verify.split_texts import LONGER, cut_words, hashes_of, texts_of
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    hashes, taken = hashes_of(probe, "train")
    texts, place, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    share = 1 - len(texts) / max(1, len(hashes))
    evidence: dict[str, Any] = {
        "duplicate_share": round(share, 5),
        "most_copies": int(counts.max(initial=0)),
        "share_looked_at": round(taken, 4),
    }
    flags, rows, lengths = probe.train_split.flags, texts_of(probe, "train").index, texts_of(probe, "train").ids.lengths
    labels: Any = probe.train_split.labels if flags is None else flags.codes
    if labels is not None and probe.task_name == "classify" and not probe.train_split.packed:
        order = np.lexsort((labels[rows], place))
        sorted_place, sorted_label = place[order], labels[rows][order]
        changes = np.flatnonzero((np.diff(sorted_place) == 0) & (sorted_label[1:] != sorted_label[:-1]))
        torn = np.unique(sorted_place[changes])
        conflict = int(counts[torn].sum())
        evidence |= {"texts_in_conflict": len(torn), "rows_in_conflict": conflict}
        if len(torn):
            first = rows[np.flatnonzero(place == torn[0])]
            evidence |= {"first_rows": first[:5].tolist(), "labels": _labels_of(probe, first[:5])}
        differ = "several labels" if flags is None else "other labels where they occur again"
        words = f"{len(torn):,} texts have {differ} ({conflict / max(1, len(hashes)):.2%} of the rows)"
        if conflict > (CONFLICTS if conflict > 2 else ONE_PAIR) * len(hashes):
            cut = cut_words(probe, lengths[np.isin(place, torn)])
            fix = LONGER if cut else "Keep one label per text: of rows that contradict each other at most one can be learned."
            return (failed if conflict > TORN * len(hashes) else warned)(words + cut, fix, **evidence)
        if len(torn):
            return noted(words, **evidence)
    words = f"{share:.2%} of the train rows are duplicates of another row"
    if share > COPIES:
        cut = cut_words(probe, lengths[counts[place] > 1])
        fix = LONGER if cut else "Remove the duplicates: each counts as much as any other row and hides how few distinct texts there are."
        return warned(words + cut, fix, **evidence)
    return noted(words, **evidence) if share > 0.05 else passed(words, **evidence)


def _labels_of(probe: Probe, rows: Any) -> list[Any]:
    """Names of the labels of some train rows, or their numbers where they have none."""
    from ftcli.core.storage.label_flags import names_of

    names, taken = probe.store.label_names or [], probe.train_split.rows(rows)
    if taken.flags is not None:
        return [names_of(row, names) for row in taken.flags]
    assert taken.labels is not None
    return [names[label] if 0 <= label < len(names) else label for label in taken.labels.tolist()]


CHECKS = (CheckKind("FT207", "data", "Duplicates", duplicates, ("store",), after=("FT201", "FT113")),)
