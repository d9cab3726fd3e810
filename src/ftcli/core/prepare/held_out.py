"""What is said of the rows that were held out, where they are too few for a figure."""

from __future__ import annotations

from collections.abc import Iterator

from ftcli.core.held_out_rows import Figure, more, too_few
from ftcli.core.prepare.recipe import Recipe
from ftcli.core.prepare.tally import Tally


def few_held_out(recipe: Recipe, tally: Tally, *, labelled: bool) -> Iterator[str]:
    """A note for each split beside train that has no rows, or so few that a figure of them says little."""
    columns, packed = recipe.plan.columns, recipe.packing != "none"
    figure: Figure | None = (
        "correlation" if columns.number else None if not labelled else "exact_match" if columns.multi_label else "accuracy"
    )
    for split in sorted({*recipe.splits()} - {"train"}, reverse=True):
        rows = tally.rows[split]
        if not rows:
            yield f"the split {split} is empty, and ftcli train refuses an empty one. {more(split)}"
            continue
        words = too_few(
            max(rows, tally.texts[split]) if packed else rows,
            tally.tokens[split],
            figure,
            packs=rows if packed else 0,
            conversations=recipe.template is not None,
            parts=recipe.policy.truncation == "split" and not recipe.policy.packer_splits,
        )
        if words:
            yield f"the split {split} has {words}. {more(split)}"
