"""The check of the rows that are held out: whether a figure of them says anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe


def held_out(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.held_out_rows import more, too_few
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    store = probe.store
    names = [name for name in ("validation", "test") if name in store.split_names]
    rows = {name: len(store.split(name)) for name in names}
    if not names:
        return noted("no rows are held out: nothing will show whether what is learned holds on other texts (--validation-fraction 0.05)")
    for name in names:
        split = store.split(name)
        if not len(split):
            if name != store.eval_split:
                return warned(f"the split {name} is empty", more(name), **rows)
            return failed(f"the split {name} is empty, and every evaluation is on it", more(name), **rows)
        if words := too_few(int(split.text_counts.sum()), int(split.lengths.sum()), answers=probe.task.needs_labels):
            return warned(f"the split {name} has {words}", more(name), **rows)
        if split.labels is not None and len(np.unique(split.labels)) == 1 and len(store.label_names or ()) > 1:
            label = (store.label_names or ())[int(split.labels[0])]
            return warned(
                f"all {len(split):,} rows of {name} have the label {label!r}: their accuracy only shows how often that is said",
                "Hold out rows of all labels: --validation-fraction 0.05 draws from the train rows.",
                label=label,
                **rows,
            )
    return passed(f"rows are held out: {', '.join(f'{name} {count:,}' for name, count in rows.items())}", **rows)


CHECKS = (CheckKind("FT214", "data", "Held-out rows", held_out, ("store",), after=("FT201",)),)
