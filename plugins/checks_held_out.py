"""The check of the rows that are held out: whether a figure of them says anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.held_out_rows import Figure
    from ftcli.core.storage.store import SplitData, Store
    from ftcli.core.verify.probe import Probe

AWAY, TIMES = 3.0, 10.0
"""Standard deviations of train between the means, and times one standard deviation is the other, from which held-out numbers are on another scale."""
FAR_FIX = "Put the labels of all splits on one scale, or draw the held-out rows from the train rows: --validation-fraction 0.05."


def held_out(probe: Probe) -> Check:
    from ftcli.core.held_out_rows import more
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    store = probe.store
    names = [name for name in ("validation", "test") if name in store.split_names]
    if probe.settings.train.do_predict and not ("test" in names and len(store.split("test"))):
        what = "it is empty" if "test" in names else "there is none"
        return failed(f"train.do_predict scores the test split, and {what}", f"{more('test')} Or leave --do-predict out.")
    if not names:
        return noted("no rows are held out: nothing will show whether the model generalizes (--validation-fraction 0.05)")
    evidence: dict[str, Any] = {name: len(store.split(name)) for name in names}
    said, fixes, worst = [], dict[str, None](), warned
    for name in names:
        if not evidence[name] and name == store.eval_split:
            said.append(f"the split {name} is empty, and every evaluation uses it")
            worst = failed
        elif not evidence[name]:
            said.append(f"the split {name} is empty")
        elif words := _too_few(probe, store.split(name)):
            said.append(f"the split {name} has {words}")
        elif alike := _all_alike(store, store.split(name)):
            what, kind, found = alike
            evidence |= found
            said.append(f"all {evidence[name]:,} rows of {name} have {what}")
            fixes[f"Hold out rows of all {kind}: --validation-fraction 0.05 draws from the train rows."] = None
            continue
        elif words := _far(store, name, evidence):
            said.append(words)
            fixes[FAR_FIX] = None
            continue
        else:
            continue
        fixes[more(name)] = None
    if said:
        return worst("; ".join(said), " ".join(fixes), **evidence)
    return passed(f"rows are held out: {', '.join(f'{name} {evidence[name]:,}' for name in names)}", **evidence)


def _too_few(probe: Probe, split: SplitData) -> str | None:
    from ftcli.core.held_out_rows import too_few

    manifest = probe.store.manifest
    figure: Figure = "correlation" if split.numbers is not None else "exact_match" if split.flags is not None else "accuracy"
    return too_few(
        int(split.text_counts.sum()),
        int(split.lengths.sum()),
        figure if probe.task.needs_labels else None,
        packs=len(split) if split.packed else 0,
        conversations=split.targeted,
        parts=manifest.get("packing") == "concat" or (manifest.get("inputs") or {}).get("packing.truncation_strategy") == "split",
    )


def _all_alike(store: Store, split: SplitData) -> tuple[str, str, dict[str, Any]] | None:
    """What all rows have, with what it means for their figures, where those of train differ; what there is of it; and that as evidence."""
    import numpy as np

    from ftcli.core.storage.label_flags import names_of

    names, train = store.label_names or (), store.split("train")
    if split.labels is not None and len(names) > 1 and len(np.unique(split.labels)) == 1:
        label = names[int(split.labels[0])]
        return f"the label {label!r}: their accuracy only shows how often it is predicted", "labels", {"label": label}
    if split.numbers is not None and train.numbers is not None and np.ptp(split.numbers) == 0 != np.ptp(train.numbers):
        number = float(split.numbers[0])
        return f"the value {number:g}: no correlation can be computed with a constant", "numbers", {"number": number}
    if split.flags is not None and train.flags is not None and len(np.unique(split.flags.codes)) == 1 < len(np.unique(train.flags.codes)):
        held = names_of(split.flags.gather(np.zeros(1, np.int64))[0], list(names) or None)
        what = f"the labels {', '.join(map(repr, held[:5]))} and no other" if held else "none of the labels"
        return f"{what}: their exact match only shows how often it is predicted", "labels", {"labels": held}
    return None


def _far(store: Store, name: str, evidence: dict[str, Any]) -> str | None:
    """How the numbers of a split are other ones than those of train. Mean and standard deviation as well as median and middle half have to say so: few
    numbers far out move the one pair, and many equal ones the other."""
    import numpy as np

    own, train = store.split(name).numbers, store.split("train").numbers
    if own is None or train is None:
        return None
    (low, middle, high), (first, median, last) = (np.quantile(numbers, (0.25, 0.5, 0.75)) for numbers in (own, train))
    mean, spread, center, width = (
        float(figure) for numbers in (own, train) for figure in (numbers.mean(dtype=float), numbers.std(dtype=float))
    )
    if not width or last == first:
        return None
    away = min(abs(mean - center) / width, abs(middle - median) / (last - first)) > AWAY
    ratios = spread / width, (high - low) / (last - first)
    if not away and not min(ratios) > TIMES and not 0 < max(ratios) < 1 / TIMES:
        return None
    evidence |= {f"{name}_mean": mean, f"{name}_std": spread, "train_mean": center, "train_std": width}
    return (
        f"the numbers of {name} are {mean:.3g} on average with a standard deviation of {spread:.3g}, those of train {center:.3g} with {width:.3g}: "
        "their metrics say nothing about labels like those of train"
    )


CHECKS = (CheckKind("FT214", "data", "Held-out rows", held_out, ("store",), after=("FT201",)),)
