"""The check of the rows that are held out: whether a figure of them says anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.held_out_rows import Figure
    from ftcli.core.storage.store import SplitData, Store
    from ftcli.core.verify.probe import Probe


def held_out(probe: Probe) -> Check:
    from ftcli.core.held_out_rows import more
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    store = probe.store
    names = [name for name in ("validation", "test") if name in store.split_names]
    if probe.settings.train.do_predict and not ("test" in names and len(store.split("test"))):
        what = "it is empty" if "test" in names else "there is none"
        return failed(f"train.do_predict scores the test split, and {what}", f"{more('test')} Or leave --do-predict out.")
    if not names:
        return noted("no rows are held out: nothing will show whether what is learned holds on other texts (--validation-fraction 0.05)")
    evidence: dict[str, Any] = {name: len(store.split(name)) for name in names}
    said, fixes, worst = [], dict[str, None](), warned
    for name in names:
        if not evidence[name] and name == store.eval_split:
            said.append(f"the split {name} is empty, and every evaluation is on it")
            worst = failed
        elif not evidence[name]:
            said.append(f"the split {name} is empty")
        elif words := _too_few(probe, store.split(name)):
            said.append(f"the split {name} has {words}")
        elif label := _only_label(store, store.split(name)):
            evidence["label"] = label
            said.append(f"all {evidence[name]:,} rows of {name} have the label {label!r}: their accuracy only shows how often that is said")
            fixes["Hold out rows of all labels: --validation-fraction 0.05 draws from the train rows."] = None
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


def _only_label(store: Store, split: SplitData) -> str | None:
    import numpy as np

    names = store.label_names or ()
    if split.labels is None or len(names) < 2 or len(np.unique(split.labels)) > 1:
        return None
    return names[int(split.labels[0])]


CHECKS = (CheckKind("FT214", "data", "Held-out rows", held_out, ("store",), after=("FT201",)),)
