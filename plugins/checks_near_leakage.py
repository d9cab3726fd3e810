"""The check of held-out texts that are nearly the same as a train text, or a passage of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ftcli.core.storage.store import Ragged
    from ftcli.core.verify.probe import Probe

NEAR_TOKENS = 2_000_000
"""Train tokens that near duplicates are looked for in: 1 s. More are sampled, and what is found is scaled."""
NEAR_ROWS = 10_000
"""Held-out texts that are looked for."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Texts of a held-out split that are nearly a train text. `rows`: their places among the texts that were looked at."""

    rows: NDArray[np.int64]
    passages: float
    """Part of `rows` that no other split of whole texts would mend."""
    share: float
    pairs: list[tuple[int, int]]
    similarity: list[float]
    within: int
    """How many of them are passages of longer train texts."""
    compared: int
    of: int
    unknown: int


class _Train:
    """The train texts that are looked in, and how texts are compared with them."""

    def __init__(self, probe: Probe) -> None:
        from ftcli.core.storage.documents import documents
        from ftcli.core.storage.near_duplicates import LEAST_TOKENS, scale
        from ftcli.core.verify.split_texts import spelling_of

        self.texts = documents(probe.train_split, NEAR_TOKENS)
        self.spelling = spelling_of(probe)
        size = None if self.spelling is None else self.spelling.bytes_a_token(self.texts.ids.values[:100_000])
        self.width, self.least = (2, LEAST_TOKENS) if size is None else scale(size)


def near(probe: Probe) -> Check:
    from ftcli.core.storage.near_duplicates import SAME
    from ftcli.core.verify.missing import Missing
    from ftcli.core.verify.split_texts import HALF, SOME, held_out
    from ftcli.core.verify.verdict import noted, passed, warned

    train = _Train(probe)
    found = {name: _look(probe, name, train) for name in held_out(probe)}
    name = max(found, key=lambda split: found[split].share)
    worst, sampled = found[name], train.texts.share
    evidence: dict[str, Any] = {split: _told(one) for split, one in found.items()}
    evidence |= {"split": name, "examples": _shown(probe, name, worst.pairs[:2]), "similarity_from": SAME}
    evidence |= {"shortest_tokens": train.least, "train_share": sampled}
    part = "" if sampled == 1 else f" (estimated from {sampled:.1%} of the train rows)"
    words = f"{worst.share:.2%} of the {name} rows ({len(worst.rows):,}) are near-duplicates of a train row{part}"
    if worst.within:
        words += f", {worst.within:,} of them a passage of a longer one"
    if max(one.share * (1 - one.passages) for one in found.values()) <= SOME < worst.share:
        return noted(f"{words}: passages of longer texts, and ftcli split by whole texts", **evidence)
    if worst.share > SOME and len(worst.rows) > 1:
        return warned(
            words, "Split by source or by template instead of by row: rows derived from one another belong in one split.", **evidence
        )
    for split, one in found.items():
        if one.unknown > HALF * one.of:
            raise Missing(f"{one.unknown:,} of {one.of:,} rows of {split} have an unknown token and were not compared")
    split, least = min(found.items(), key=lambda item: item[1].compared / max(1, item[1].of))
    if least.compared < HALF * least.of:
        few = f"only {least.compared:,} of {least.of:,} rows of {split} are long enough to be compared ({train.least} tokens)"
        return noted(f"{words}; {few}", **evidence)
    return noted(words, **evidence) if len(worst.rows) else passed(words, **evidence)


def _look(probe: Probe, name: str, train: _Train) -> _Found:
    import numpy as np

    from ftcli.core.storage.documents import documents
    from ftcli.core.storage.near_duplicates import near_pairs
    from ftcli.core.verify.split_texts import hash_texts, hashes_of, in_parts, is_passage, is_within, split_by_ftcli, take

    held = documents(probe.store.split(name), NEAR_TOKENS)
    alike = np.isin(hash_texts(probe, held)[1], np.unique(hashes_of(probe, "train", loose=True)[0]))
    if in_parts(probe):
        alike |= is_within(probe, held, "train")
    unknown = np.zeros(len(alike), np.bool_)
    if train.spelling is not None:  # unknown tokens are equal where the words are not
        unknown = train.spelling.unspelled(held.ids.values, held.ids.lengths) & ~alike
    chosen = np.flatnonzero(~alike & ~unknown)[:NEAR_ROWS]
    texts = take(held, chosen)
    pairs = near_pairs(texts, train.texts.ids, train.width, train.least)
    inside = _passages(probe, texts, train)
    rows = np.union1d(pairs.rows, np.flatnonzero(inside))
    part = is_passage(probe, name, held.ids)[chosen] | (inside & split_by_ftcli(probe, name))
    return _Found(
        rows,
        float(part[rows].mean()) if len(rows) else 0.0,
        min(1.0, len(rows) / max(1, min(len(held.ids), NEAR_ROWS)) / train.texts.share),
        [(int(held.index[chosen[row]]), int(train.texts.index[other])) for row, other in zip(pairs.rows, pairs.others, strict=True)],
        pairs.similarity[:5].round(3).tolist(),
        int(np.setdiff1d(np.flatnonzero(inside), pairs.rows).size),
        int((alike | (~unknown & (held.ids.lengths >= train.least))).sum()),
        len(held.ids),
        int(unknown.sum()),
    )


def _passages(probe: Probe, texts: Ragged, train: _Train) -> NDArray[np.bool_]:
    """Of whole texts that are continued, those that stand within a longer train text."""
    import numpy as np

    from ftcli.core.storage.near_duplicates import SAME
    from ftcli.core.storage.windows import every_for, known_windows, within
    from ftcli.core.verify.split_texts import in_parts, unknown_token, window_of

    width = window_of(probe, train.texts)
    if probe.task_name != "pretrain" or in_parts(probe) or not width:
        return np.zeros(len(texts), np.bool_)
    every = every_for(len(train.texts.ids.values))
    return within(texts, known_windows(train.texts.ids, width, every, unknown_token(probe)), SAME)


def _told(found: _Found) -> dict[str, Any]:
    return {
        "share": round(found.share, 5),
        "rows": len(found.rows),
        "passages": round(found.passages, 4),
        "pairs": found.pairs[:5],
        "similarity": found.similarity,
        "compared": found.compared,
        "of": found.of,
    }


def _shown(probe: Probe, name: str, pairs: list[tuple[int, int]]) -> list[list[str]]:
    from ftcli.core.verify.split_texts import own_tokenizer

    tokenizer = own_tokenizer(probe)
    if tokenizer is None:
        return []
    sides = ((probe.store.split(name), 0), (probe.train_split, 1))
    return [[tokenizer.decode(split.rows([pair[side]]).input_ids.values)[:300] for split, side in sides] for pair in pairs]


CHECKS = (CheckKind("FT206", "data", "Near leakage", near, ("store",), severity="warn", after=("FT201", "FT113")),)
