"""The check of labels against texts: whether the words of a text tell its label, and on held-out rows as on those of train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check, Split

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ftcli.core.verify.label_words import Asked
    from ftcli.core.verify.probe import Probe

FEWEST, A_LABEL = 300, 10
"""Rows of train, all and for each label, under which it says nothing: 8 of 77 labels are told of 300 rows of BANKING77."""
SET_ASIDE, HELD_OUT = 50, 30
"""Rows that must be left to ask, of train and of a held-out split."""
TOLD, MANY = 3.0, 250
"""Standard errors above guessing from which words tell something, and rows set aside from which it is worth a word that they do not."""
LEAST = 0.05
"""What words must tell above guessing, of a split's rows, for a verdict on that split. Sound sets: 0.13 (ratings of films) to 0.68 (BANKING77)."""
LOST = 0.5
"""Part of that which a split must surely lack, three standard errors included, while what it has is no more than guessing. Sound splits keep 0.9 to 1.1 of it,
long texts after short ones 0.6 to 1.1; labels of another map or row -0.4 to 0.1."""
GAINED, SURELY, LIKE = 1.5, 1.25, 1.25
"""Times what the train rows set aside tell above guessing that the words of a held-out split tell, from which it warns, and the times that it must surely have,
three standard errors included; and times the unseen words that it may have. Sound sets 0.9 to 1.1; with a fifth of train's labels shuffled 1.2 to 1.3, with
half of them 1.7 to 2.8, with four fifths 4.8 and more. Of a set that was shuffled before it was split nothing is seen: its surest guesses are right as often
(0.34 to 0.61) as those of sound hard sets (0.71 to 0.78)."""
OTHER_WORDS = 2.0
"""Times the share of unseen words and pairs in a split is that of the train rows set aside, from which its texts are of another kind, or those of train variants
of one another: 1.0 where rows were drawn, 2 to 8 of train texts in ten variants, whose labels are known by heart."""
NAMED, HALF = 0.5, 0.5
"""Share of texts that hold the name of their own label, less that of other labels' names, from which it is said, and the part of it that the other split must
have. Sound sets have up to 0.023 (BANKING77)."""
NAMES_FIX = "Take the names out of the texts: they are the answer, which no text has in use."
TRAIN_FIX = "Read rows of train with their labels: labels joined to the wrong texts, or given by guess. Sound labels of harder texts than those held out look so too."
FIX = "Read rows of both splits with their labels: another label map, or labels a row away from their texts. Then prepare all splits again."


@dataclass(frozen=True, slots=True)
class _Split:
    """How the labels of a held-out split are told: rightly, as the train rows that were set aside make one expect, and by guesses that do not know the text."""

    name: Split
    rows: int
    right: float
    expected: float
    chance: float
    unseen: float
    """Times the share of unseen words of the train rows that were set aside."""
    set_aside: int

    @property
    def other_words(self) -> bool:
        return self.unseen > OTHER_WORDS

    @property
    def gained(self) -> bool:
        """Whether its words tell far more than those of train, so that labels of train do not go with their texts."""
        over, less = self.right - self.chance, max(0.0, self.expected - self.chance)
        error = (
            self.right * (1 - self.right) / max(1, self.rows) + SURELY**2 * self.expected * (1 - self.expected) / self.set_aside
        ) ** 0.5
        alike = self.rows >= HELD_OUT and self.unseen <= LIKE
        return alike and self.told and over >= max(LEAST, GAINED * less) and over - SURELY * less > TOLD * error

    @property
    def told(self) -> bool:
        return _errors(self.right, self.chance, self.rows) >= TOLD

    @property
    def judged(self) -> bool:
        return self.rows >= HELD_OUT and not self.other_words and self.expected - self.chance >= LEAST

    @property
    def lost(self) -> bool:
        error = (self.expected * (1 - self.expected) / max(1, self.rows)) ** 0.5
        return self.judged and not self.told and self.right - self.chance + TOLD * error < LOST * (self.expected - self.chance)


def label_words(probe: Probe) -> Check:
    from ftcli.core.verify.label_words import ROWS, LabelWords
    from ftcli.core.verify.missing import Missing
    from ftcli.core.verify.verdict import noted, passed, warned

    train, names = probe.train_split, probe.store.label_names
    if probe.task_name != "classify" or train.labels is None or train.packed or not names:
        raise Missing("it is for rows with one label each")
    both: tuple[Split, ...] = ("validation", "test")
    held = [name for name in both if name in probe.store.split_names and len(probe.store.split(name))]
    if not all(_in_range(probe.store.split(name).labels, len(names)) for name in ("train", *held)):
        raise Missing("some labels are out of range (see FT203)")
    if found := _named(probe, ("train", *held)):
        return found
    if min(len(train), ROWS) < max(FEWEST, A_LABEL * len(names)):
        raise Missing(f"{min(len(train), ROWS):,} rows are too few to say what the words of {len(names):,} labels are")
    words = LabelWords(train, len(names))
    own, asked = words.train, {name: words.ask(probe.store.split(name)) for name in held}
    if len(own.rows) < SET_ASIDE:
        raise Missing(f"{words.learned:,} different rows are too few to say what the words of {len(names):,} labels are")
    splits = [_split(name, own, found, len(names)) for name, found in asked.items() if len(found.rows)]
    chance = own.chance(len(names))
    over = _errors(own.accuracy, chance, len(own.rows))
    evidence: dict[str, Any] = {
        "rows_learned": words.learned,
        "rows_set_aside": len(own.rows),
        "right": round(own.accuracy, 4),
        "by_chance": round(chance, 4),
    }
    for split in splits:
        evidence[split.name] = {
            "rows": split.rows,
            "right": round(split.right, 4),
            "expected": round(split.expected, 4),
            "by_chance": round(split.chance, 4),
            "other_words": split.other_words,
        }
    said = f"the words of a text tell the label of {own.accuracy:.1%} of the train rows that were set aside (guessing {chance:.1%})"
    if over >= TOLD and (lost := [split for split in splits if split.lost]):
        worst = min(lost, key=lambda split: split.right - split.expected)
        evidence["examples"] = _examples(asked[worst.name], names)
        where = f"but of {worst.right:.1%} of {worst.name} (guessing {worst.chance:.1%}): the labels there do not go with their texts as those of train do"
        return warned(f"{said}, {where}", FIX, **evidence)
    if over > -TOLD and (gained := [split for split in splits if split.gained]):
        best = max(gained, key=lambda split: split.right - split.expected)
        wrong = 1 - max(0.0, best.expected - best.chance) / (best.right - best.chance)
        return warned(
            f"{said}, and of {best.right:.1%} of {best.name} (guessing {best.chance:.1%}): so it is where about {wrong:.0%} of the labels of train do not belong to their texts",
            TRAIN_FIX,
            **evidence,
        )
    if abs(over) < TOLD and len(own.rows) >= MANY and not any(split.told for split in splits):
        return noted(
            f"no words of a text tell its label better than guessing ({own.accuracy:.1%} of {len(own.rows):,} train rows that were set aside, guessing "
            f"{chance:.1%}): so it is where labels were shuffled, and where no single words decide",
            **evidence,
        )
    more = ["where nearly the same words stand under other labels"] if over <= -TOLD else []
    more += [f"of {split.right:.1%} of {split.name}" + ", which has other words" * split.other_words for split in splits]
    return passed(", ".join([said, *more]), **evidence)


def _in_range(labels: NDArray[np.int64] | None, classes: int) -> bool:
    return labels is not None and bool(((labels >= 0) & (labels < classes)).all())


def _named(probe: Probe, splits: Sequence[Split]) -> Check | None:
    """What is to be said of texts that hold the names of their labels."""
    from ftcli.core.verify.label_names import named
    from ftcli.core.verify.split_texts import own_tokenizer
    from ftcli.core.verify.verdict import noted, warned

    names, pieces = probe.store.label_names, own_tokenizer(probe) and probe.pieces
    if not names or pieces is None:
        return None
    found = {split: named(probe.store.split(split), names, pieces) for split in splits}
    told = {split: shares for split, shares in found.items() if shares is not None}
    more = [own - other for own, other in told.values()]
    if "train" not in told or max(more) < NAMED:
        return None
    words = f"texts contain the name of their own label: {', '.join(f'{own:.1%} of {split}' for split, (own, _) in told.items())}"
    evidence = {f"named_{split}": {"own": round(own, 4), "another": round(other, 4)} for split, (own, other) in told.items()}
    if min(more) < HALF * max(more):
        return warned(words, NAMES_FIX, **evidence)
    return noted(f"{words}, and few that of another: a model need not read anything else", **evidence)


def _split(name: Split, own: Asked, asked: Asked, classes: int) -> _Split:
    import numpy as np

    shares = np.bincount(asked.labels, minlength=classes) / len(asked.labels)
    unseen = (1 - asked.known) / max(1e-9, 1 - own.known)
    expected = float(shares @ own.right(classes))
    return _Split(name, len(asked.rows), asked.accuracy, expected, asked.chance(classes), unseen, len(own.rows))


def _errors(right: float, chance: float, rows: int) -> float:
    """Standard errors of `rows` guesses that `right` lies above `chance`."""
    least = max(chance, 1 / rows)
    return float((right - chance) / max(1e-9, least * (1 - least) / rows) ** 0.5)


def _examples(asked: Asked, names: Any) -> list[dict[str, Any]]:
    wrong = [number for number in range(len(asked.rows)) if asked.labels[number] != asked.guesses[number]][:5]
    return [
        {"row": int(asked.rows[number]), "label": names[asked.labels[number]], "its_words_say": names[asked.guesses[number]]}
        for number in wrong
    ]


CHECKS = (CheckKind("FT215", "data", "Labels and texts", label_words, ("store",), severity="warn", after=("FT201", "FT203", "FT113")),)
