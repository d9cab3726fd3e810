"""The check of train texts that stand more than once: under several labels, or often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ftcli.core.verify.probe import Probe

CONFLICTS = 0.005
"""Share of rows in conflict that warns. banking77 has none; 3i4k 0.8 %, GoEmotions 0.8 %, O*NET 9 %."""
ONE_PAIR = 0.05
"""The same where there is one pair: two rows in a hundred are no cause."""
COPIES = 1 / 3
"""Share of rows that repeat another one that warns, whatever is learned of them."""
TORN = 0.5
"""Share of rows in conflict that fails: most of what is learned is contradicted."""
NEARLY = 0.1
"""Share of rows in conflict but for the signs that their texts end with, beyond those, that warns. BANKING77 has 0.02 %, 3i4k 0.9 %, GoEmotions 1.4 %."""
BY_END = 0.5
"""Part of what guessing gets wrong of these rows that their last token tells, from which the ends make the labels: questions and statements."""
ONE_ANSWER = "Keep one label per text: of rows that contradict each other at most one can be learned."


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
        torn = _torn(hashes, labels[rows])
        number, conflict = len(np.unique(hashes[torn])), int(torn.sum())
        evidence |= {"texts_in_conflict": number, "rows_in_conflict": conflict}
        if number:
            first = rows[hashes == hashes[torn].min()]
            evidence |= {"first_rows": first[:5].tolist(), "labels": _labels_of(probe, first[:5])}
        differ = "several labels" if flags is None else "other labels where they occur again"
        many = conflict > (CONFLICTS if conflict > 2 else ONE_PAIR) * len(hashes)
        loose = hashes_of(probe, "train", loose=True)[0]
        nearly = _torn(loose, labels[rows])
        if conflict <= TORN * len(hashes) and nearly.sum() - conflict > NEARLY * len(hashes) and not _by_end(probe, nearly, labels[rows]):
            first = rows[loose == loose[nearly & ~torn].min()]
            evidence |= {
                "rows_nearly_in_conflict": int(nearly.sum()),
                "first_rows": first[:5].tolist(),
                "labels": _labels_of(probe, first[:5]),
            }
            words = f"{nearly.mean():.2%} of the rows hold texts that differ only in their final punctuation, and have {differ}"
            return warned(words, ONE_ANSWER, **evidence)
        words = f"{number:,} texts have {differ} ({conflict / max(1, len(hashes)):.2%} of the rows)"
        if many:
            cut = cut_words(probe, lengths[torn])
            return (failed if conflict > TORN * len(hashes) else warned)(words + cut, LONGER if cut else ONE_ANSWER, **evidence)
        if number:
            return noted(words, **evidence)
    words = f"{share:.2%} of the train rows are duplicates of another row"
    repeated, named = _read_twice(probe)
    if repeated > 0.05:
        evidence["share_read_again"] = round(repeated, 4)
        words += f": {named} are the same bytes, and each was read"
        if max(share, repeated) > COPIES:
            return warned(words, "Prepare the data again from one of them.", **evidence)
        return noted(words, **evidence)
    if share > COPIES:
        cut = cut_words(probe, lengths[counts[place] > 1])
        fix = LONGER if cut else "Remove the duplicates: each counts as much as any other row and hides how few distinct texts there are."
        return warned(words + cut, fix, **evidence)
    return noted(words, **evidence) if share > 0.05 else passed(words, **evidence)


def _read_twice(probe: Probe) -> tuple[float, str]:
    """Share of the bytes of train's sources that were read again under another name, and some of the names."""
    files = [file for file in probe.store.manifest.get("sources") or () if file["split"] == "train" and file["bytes"] and file.get("xxh3")]
    same: dict[tuple[int, str], list[str]] = {}
    for file in files:
        same.setdefault((file["bytes"], file["xxh3"]), []).append(str(file["path"]))
    again = {key: paths for key, paths in same.items() if len(paths) > 1}
    largest = max(again, key=lambda key: key[0] * len(again[key]), default=None)
    if largest is None:
        return 0.0, ""
    share = sum(size * (len(paths) - 1) for (size, _), paths in again.items()) / sum(file["bytes"] for file in files)
    return share, " and ".join([*again[largest][:2], *(["others"] if len(again[largest]) > 2 or len(again) > 1 else [])])


def _torn(hashes: NDArray[np.uint64], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """By row, whether its text has another label elsewhere."""
    import numpy as np

    order = np.lexsort((labels, hashes))
    texts, sorted_labels = hashes[order], labels[order]
    return np.isin(hashes, texts[1:][(texts[1:] == texts[:-1]) & (sorted_labels[1:] != sorted_labels[:-1])])


def _by_end(probe: Probe, chosen: NDArray[np.bool_], labels: NDArray[np.int64]) -> bool:
    """Whether the last token of these rows, special ones left out, tells their label."""
    import numpy as np

    from ftcli.core.verify.split_texts import spelling_of, texts_of

    ids, spelling = texts_of(probe, "train").ids, spelling_of(probe)
    assert spelling is not None  # without one no texts are nearly the same
    text = np.repeat(np.arange(len(ids)), ids.lengths)[real := spelling.sizes[0][ids.values] > 0]
    last = np.zeros(len(ids), np.int64)
    last[text] = ids.values[real]  # the last one stays
    pairs, counts = np.unique(np.stack([last[chosen], labels[chosen]]), axis=1, return_counts=True)
    best = np.maximum.reduceat(counts, np.unique(pairs[0], return_index=True)[1]).sum()
    guess = np.bincount(pairs[1], counts).max()
    return bool(best - guess >= BY_END * (counts.sum() - guess))


def _labels_of(probe: Probe, rows: Any) -> list[Any]:
    """Names of the labels of some train rows, or their numbers where they have none."""
    from ftcli.core.storage.label_flags import names_of

    names, taken = probe.store.label_names or [], probe.train_split.rows(rows)
    if taken.flags is not None:
        return [names_of(row, names) for row in taken.flags]
    assert taken.labels is not None
    return [names[label] if 0 <= label < len(names) else label for label in taken.labels.tolist()]


CHECKS = (CheckKind("FT207", "data", "Duplicates", duplicates, ("store",), after=("FT201", "FT113")),)
