"""The check of texts on both sides of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ftcli.core.verify.probe import Probe

MANY = 0.05
"""Share of a held-out split that fails."""
INSTRUCTION = 0.1
"""Share of train rows with the same prompt from which it is no question of its own."""
AFTER = ("FT201", "FT113")
"""Where most of a text is the unknown token, different texts are the same ids: copies that are none."""
APART = "Keep validation and test disjoint: otherwise the best model, or when to stop, is chosen on test rows."
UNKNOWN = "Prepare the data with a tokenizer that covers these texts: as they are, leakage into train cannot be detected."
BY_PROMPT = "Split by prompt: all answers to one prompt belong in one split."


@dataclass(frozen=True, slots=True)
class _Shared:
    """What of split `name` stands in split `other` as well: the texts `rows`, of which `passages` are only parts of longer ones."""

    name: str
    other: str
    rows: NDArray[np.int64]
    passages: int
    whole: float
    share: float
    taken: float
    """Share of the other split's rows that was looked at."""

    @property
    def words(self) -> str:
        found, about = ("were found", "about ") if self.taken < 1 else ("are", "")
        place = "train as well" if self.other == "train" else self.other
        part = f", estimated from {self.taken:.1%} of the {self.other} rows" if self.taken < 1 else ""
        return f"{about}{self.whole:.2%} of the {self.name} rows ({len(self.rows) - self.passages:,}) {found} in {place}{part}"


def leakage(probe: Probe) -> Check:
    from ftcli.core.verify.missing import Missing
    from ftcli.core.verify.split_texts import SOME, hashes_of, held_out, texts_of
    from ftcli.core.verify.verdict import noted, passed, warned

    names = held_out(probe)
    sides = [_shared(probe, name, "train") for name in names]
    worst = max(sides, key=lambda side: (side.whole, side.share))
    name, rows = worst.name, texts_of(probe, worst.name).index[worst.rows]
    evidence: dict[str, Any] = {"split": name, "rows": len(rows), "of": len(hashes_of(probe, name)[0]), "first_rows": rows[:5].tolist()}
    evidence |= {"shares": {side.name: side.share for side in sides}, "train_share_looked_at": round(worst.taken, 4)}
    unlike = {split: _unlike(probe, split) for split in names}
    evidence["with_unknown_tokens"] = unlike[name][0]
    if worst.passages:
        evidence["passages"] = worst.passages
    words, both = worst.words, _between(probe, names, evidence)
    if unlike[name][0]:
        words += f"; {unlike[name][0]:,} of {evidence['of']:,} have an unknown token and were not compared"
    if worst.whole > SOME:
        return _leak(probe, worst, words + both, evidence)
    if both:
        return warned(words + both, APART, **evidence)
    if blind := [split for split in names if unlike[split][1]]:
        if _unlike(probe, "train")[1]:  # FT113 and FT209 have told it of the whole data
            raise Missing(f"{unlike[blind[0]][0]:,} rows of {blind[0]} have an unknown token and were not compared")
        told = "" if name in blind else f"; {unlike[blind[0]][0]:,} rows of {blind[0]} have an unknown token and were not compared"
        return warned(words + told, UNKNOWN, **evidence)
    if worst.passages and worst.share > SOME:
        found = "were found" if worst.taken < 1 else "are"
        return noted(
            f"{worst.share:.2%} of the {name} rows ({len(rows):,}) {found} in train as well: passages that longer texts share, such as licences. "
            "ftcli split the texts itself and keeps equal texts in one split, so no other split would help; the evaluation is too optimistic by about that share",
            **evidence,
        )
    prompts = max((_prompts(probe, split) for split in names), key=lambda found: found[0])
    if prompts[0] > SOME:
        evidence["prompts"] = round(prompts[0], 5)
        return warned(f"{words}, {prompts[1]}", BY_PROMPT, **evidence) if prompts[0] > MANY else noted(f"{words}, {prompts[1]}", **evidence)
    return passed(words, **evidence)


def _leak(probe: Probe, worst: _Shared, words: str, evidence: dict[str, Any]) -> Check:
    from ftcli.core.verify.split_texts import LONGER, cut_words, split_by_ftcli, texts_of
    from ftcli.core.verify.verdict import failed, warned

    verdict = failed if worst.whole > MANY else warned
    if cut := cut_words(probe, texts_of(probe, worst.name).ids.lengths[worst.rows]):
        return verdict(words + cut, LONGER, **evidence)
    own = " ftcli split the texts and keeps equal ones in one split: these differ in case, spaces or their ends." * split_by_ftcli(
        probe, worst.name
    )
    if worst.whole > MANY:
        fix = own or " Or let ftcli split: --validation-fraction keeps equal texts in one split."
        return verdict(words, f"Remove the duplicates.{fix}", **evidence)
    return verdict(words, f"Remove the duplicates: the evaluation is too optimistic by about that share.{own}", **evidence)


def _shared(probe: Probe, name: str, other: str) -> _Shared:
    import numpy as np

    from ftcli.core.verify.split_texts import hashes_of, in_parts, is_passage, is_remainder, is_within, texts_of

    known, taken = hashes_of(probe, other, loose=True)
    texts = texts_of(probe, name)
    same = np.isin(hashes_of(probe, name, loose=True)[0], np.unique(known)) & ~is_remainder(probe, name)
    if in_parts(probe):
        same |= is_within(probe, texts, other)
    rows = np.flatnonzero(same)
    passages = int(is_passage(probe, name, texts.ids)[rows].sum())
    whole, share = (min(1.0, count / max(1, len(texts.ids)) / taken) for count in (len(rows) - passages, len(rows)))
    return _Shared(name, other, rows, passages, whole, share, taken)


def _between(probe: Probe, names: list[str], evidence: dict[str, Any]) -> str:
    """What is to be said of test rows that stand in validation."""
    from ftcli.core.verify.split_texts import SOME

    if len(names) < 2:
        return ""
    found = _shared(probe, "test", "validation")
    evidence["test_in_validation"] = round(found.whole, 5)
    return f"; {found.words}" if found.whole > SOME else ""


def _unlike(probe: Probe, name: str) -> tuple[int, bool]:
    """Texts of a split that were compared with none for their unknown tokens, and whether these are most of it."""
    from ftcli.core.verify.split_texts import HALF, spelling_of, texts_of

    spelling, ids = spelling_of(probe), texts_of(probe, name).ids
    count = 0 if spelling is None else int(spelling.unlike(ids.values, ids.lengths).sum())
    return count, count > HALF * len(ids)


def _prompts(probe: Probe, name: str) -> tuple[float, str]:
    """Share of the rows of a split whose prompt stands in train, but with another answer, and what is to be said of it."""
    import numpy as np

    from ftcli.core.storage.documents import Documents, prompts
    from ftcli.core.storage.near_duplicates import LEAST_TOKENS
    from ftcli.core.verify.split_texts import hash_texts, hashes_of, texts_of

    if not (probe.train_split.targeted and probe.store.split(name).targeted):
        return 0.0, ""
    numbers, lengths = {}, {}
    for split in ("train", name):
        texts = texts_of(probe, split)
        asked = prompts(probe.store.split(split), texts)
        numbers[split], lengths[split] = hash_texts(probe, Documents(asked, texts.index, texts.share))[1], asked.lengths
    known, counts = np.unique(numbers["train"], return_counts=True)
    known = known[counts <= max(2, INSTRUCTION * len(numbers["train"]))]
    whole = np.isin(hashes_of(probe, name, loose=True)[0], hashes_of(probe, "train", loose=True)[0])
    found = np.isin(numbers[name], known) & (lengths[name] >= LEAST_TOKENS) & ~whole
    taken = texts_of(probe, "train").share
    share = min(1.0, float(found.mean()) / taken) if len(found) else 0.0
    return share, f"{share:.2%} of the {name} rows ({int(found.sum()):,}) have a prompt that is in train with another answer"


CHECKS = (CheckKind("FT205", "data", "Leakage", leakage, ("store",), after=AFTER),)
