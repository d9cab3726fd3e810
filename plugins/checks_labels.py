"""The check of the labels: in range, told apart, occurring often enough to be learned, and in an order that mixes them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ftcli.core.storage.label_flags import LabelFlags
    from ftcli.core.verify.probe import Probe

MANY, ONCE, HALF_ONCE, ENOUGH = 20, 0.95, 0.5, 200
"""Of more than `MANY` classes the share with a single row (of numbers with decimals: half) from which it warns, and in `ENOUGH` rows fails: those are no classes but an
id, a number or free text. 400 random rows of the real set with most classes (900) have 0.8, all of it has 20 rows a class."""
NEARLY_ALL, MOST = 0.99, 0.9
"""Share of the largest class from which it warns, and is noted: 35 % in the real set where sizes are farthest apart (GoEmotions, 329 to 1)."""

FAR = 100.0
"""Mean or standard deviation of numbers from which a fresh head has far to go. A judgement: AdamW moves a bias by the learning rate a step."""
CLOSE = 0.01
"""Standard deviation of numbers under which steps of AdamW are coarse beside what there is to tell apart. Measured at 4e-5: after 300 steps the error is
7 times the standard deviation."""
SCALE = "Subtract their mean and divide by their standard deviation before preparing, and undo it on the predictions"


def _numbers(probe: Probe) -> Check:
    """Numbers that are to be predicted: whether a head that starts at 0 gets there."""
    import numpy as np

    from ftcli.core.verify.verdict import failed, passed, warned

    numbers = probe.train_split.numbers
    assert numbers is not None
    odd = np.flatnonzero(~np.isfinite(numbers))
    if len(odd):
        return failed(f"row {int(odd[0])} of train has the label {numbers[odd[0]]}", "Prepare the data again.", rows=len(odd))
    mean, spread = float(numbers.mean(dtype=np.float64)), float(numbers.std(dtype=np.float64))
    evidence = {"least": float(numbers.min()), "most": float(numbers.max()), "mean": round(mean, 6), "std": float(f"{spread:.6g}")}
    words = f"labels from {evidence['least']:g} to {evidence['most']:g}, {mean:.3g} on average, with a standard deviation of {spread:.3g}"
    if evidence["least"] == evidence["most"]:
        return failed(f"every row of train has the label {mean:g}: there is nothing to learn", "Check --label-column.", **evidence)
    if max(abs(mean), spread) > FAR:
        far = f"{words}: a new head predicts about 0, so the mean squared error starts at {mean**2 + spread**2:.3g}"
        return warned(far, f"{SCALE}; or raise the learning rate of the head.", **evidence)
    if spread < CLOSE:
        return warned(
            f"{words}: a new head's initial outputs, and every step it takes, are large compared to that", f"{SCALE}.", **evidence
        )
    return passed(words, **evidence)


def labels(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    store = probe.store
    names, ids = store.label_names, probe.train_split.labels
    if probe.train_split.numbers is not None:
        return _numbers(probe)
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
    evidence: dict[str, Any] = {
        "classes": len(names),
        "chance_loss": round(math.log(len(names)), 4),
        "prior_entropy": round(entropy, 4),
        "majority": names[majority],
        "majority_share": round(float(counts[majority] / counts.sum()), 4),
    }
    if int((counts > 0).sum()) < 2:
        return failed(f"all rows have the label {names[majority]!r}", "Check the label column.", **evidence)
    there, once = int((counts > 0).sum()), int((counts == 1).sum())
    scale = _scale(names)
    if there > MANY and once >= (HALF_ONCE if scale else ONCE) * there:
        kind = "numbers on a scale" if scale else "an id or free text"
        return (failed if once >= ONCE * there and len(ids) >= ENOUGH else warned)(
            f"{once:,} of {there:,} classes have a single training row, such as {', '.join(map(repr, names[:3]))}: the label column seems to hold {kind}, "
            "and a label that occurs once does not generalize",
            "Check --label-column. Predict numbers on a scale with --mode regress, or bin them into classes first, such as low, middle, high.",
            **evidence,
        )
    runs = int((np.diff(ids) != 0).sum()) + 1
    is_sorted = len(ids) > 10 * len(names) and runs <= 2 * len(names)
    if probe.settings.train.train_sampling_strategy == "sequential" and (is_sorted or _blocks(probe, len(ids), runs, shares)):
        return failed(
            f"the rows are sorted by label ({runs:,} runs of one label in {len(ids):,} rows), and train_sampling_strategy = sequential keeps that order: "
            "every step would learn one label and forget the others",
            "Remove --train-sampling-strategy: the rows are then shuffled.",
            runs=runs,
            **evidence,
        )
    if alike := _alike(names):
        return _same_words(alike, evidence)
    absent = [names[number] for number in np.flatnonzero(counts == 0)[:5]]
    if absent:
        return warned(
            f"{int((counts == 0).sum())} of {len(names)} classes have no training row, first {', '.join(absent)}",
            "Add training rows for them, or remove them from the labels (from --label-names, if given).",
            **evidence,
        )
    share = float(counts[majority] / counts.sum())
    words = f"{len(names)} classes, the largest has {share:.1%} of the rows"
    if share > MOST:
        words += f": always predicting {names[majority]!r} gives a loss of {entropy:.3f} and that accuracy, so neither figure shows what was learned"
        if share > NEARLY_ALL and probe.settings.train.class_weights != "balanced":
            return warned(words, "Use --class-weights balanced, or add rows of the other classes.", **evidence)
        return noted(words, **evidence)
    if is_sorted:
        return noted(f"the rows are sorted by label ({runs} runs): ftcli shuffles them", **evidence)
    return passed(words, **evidence)


def _blocks(probe: Probe, rows: int, runs: int, shares: NDArray[np.float64]) -> bool:
    """Whether runs of one label are as long as a step's batch, and four times as long as chance makes them."""
    train = probe.settings.train
    run, by_chance = rows / runs, 1 / max(1e-9, 1 - float((shares**2).sum()))
    return run >= train.per_device_train_batch_size * train.gradient_accumulation_steps and run > 4 * by_chance


def _scale(names: Sequence[str]) -> bool:
    try:
        return any(not float(name).is_integer() for name in names)
    except ValueError:
        return False


def _alike(names: Sequence[str]) -> list[list[str]]:
    """Names that are the same word but for case and spaces. Single letters may well differ in case."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        words = " ".join(name.split())
        groups[words.casefold() if len(words) > 1 else words].append(name)
    return [group for group in groups.values() if len(group) > 1]


def _same_words(alike: list[list[str]], evidence: dict[str, Any]) -> Check:
    from ftcli.core.verify.verdict import warned

    return warned(
        f"{len(alike)} {'label is' if len(alike) == 1 else 'labels are'} spelled in several ways, each of which counts as a class: {' and '.join(map(repr, alike[0][:4]))}",
        "Spell each label one way in the sources, and prepare the data again.",
        alike=alike[:8],
        **evidence,
    )


def _label_flags(probe: Probe, flags: LabelFlags, names: list[str]) -> Check:
    """FT203 where a row has any number of labels: each one is a question of its own, answered with yes and with no."""
    from ftcli.core.storage.label_flags import entropy
    from ftcli.core.verify.verdict import failed, passed, warned

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
        return failed("every label is set in all rows or in none: there is nothing to learn", "Check the label column.", **evidence)
    for fixed, words in ((counts == 0, "hold in no training row"), (counts == rows, "hold in every training row")):
        if fixed.any():
            first = ", ".join(name for name, one in zip(names, fixed.tolist(), strict=True) if one)[:200]
            fix = (
                "Add training rows for them, or remove them from the labels (from --label-names or --label-columns, if given)."
                if words.startswith("hold in no")
                else "Remove them: they carry no information."
            )
            return warned(f"{int(fixed.sum())} of {len(names)} labels {words}, first {first}", fix, **evidence)
    if alike := _alike(names):
        return _same_words(alike, evidence)
    return passed(
        f"{len(names)} labels, {counts.sum() / rows:.3g} per row, the most frequent in {counts[most] / rows:.1%} of the rows; {flags.without:,} rows have none",
        **evidence,
    )


CHECKS = (CheckKind("FT203", "data", "Labels", labels, ("store",)),)
