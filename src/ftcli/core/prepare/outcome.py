"""What became of the rows of a run: refused where nobody can train on it, else said where it may not be what was meant."""

from __future__ import annotations

from collections.abc import Sequence

from ftcli.context import Context
from ftcli.core.figures import percent
from ftcli.core.prepare.encode import NO_LABEL
from ftcli.core.prepare.held_out import few_held_out
from ftcli.core.prepare.labels import unlabelled_note
from ftcli.core.prepare.recipe import Recipe
from ftcli.core.prepare.tally import Tally
from ftcli.core.reading.columns import FLAGS
from ftcli.core.reading.label_lists import flags_per_row
from ftcli.core.reading.reject import HINT as ROW_HINT
from ftcli.errors import DataError


def refuse_unusable(recipe: Recipe, tally: Tally, rejects: Sequence[str], advice: str) -> None:
    """
    Args:
        rejects: the first rows that were rejected; `advice` says what to do about the first.

    Raises:
        DataError: no row is left to train on, or the lists of labels are flags.
    """
    if (width := flags_per_row(tally.lists)) is not None:
        raise DataError(
            f"{next(iter(tally.sources))}: {recipe.plan.columns.label!r} holds {width} times 0 or 1 in every row: these are flags, one a label; "
            "a list must hold the labels themselves",
            FLAGS,
        )
    empty = [split for split in recipe.splits() if not tally.rows[split]]
    counts, longest = tally.counts, f"longer than max_length {recipe.policy.max_length:,}"
    if "train" in empty and (kept := {split: tally.rows[split] for split in recipe.splits() if tally.rows[split]}):
        raise DataError(
            f"no train row is left: {', '.join(f'{split} has {rows:,}' for split, rows in kept.items())}, and equal texts stay on one side",
            "Use another --split-seed, a smaller fraction, or a separate file: validation=PATH.",
        )
    if "train" in empty or len(empty) == len(recipe.splits()):
        rejected = counts["rows_rejected"] > counts["rows_filtered"]
        parts = {
            f"{counts['rows_too_long']:,} of them {longest}": counts["rows_too_long"],
            f"{counts['rows_untargeted']:,} of them without a token to learn": counts["rows_untargeted"],
        }
        raise DataError(
            f"no row is left to write: {counts['rows_read']} read, {counts['rows_rejected']} rejected, {counts['rows_filtered']} filtered"
            + "".join(f", {words}" for words, count in parts.items() if count)
            + (f". The first: {rejects[0]}" if rejected else ""),
            (advice or ROW_HINT)
            if rejected
            else "Raise --max-length, or keep a part of long texts: --truncation-strategy keep_start."
            if counts["rows_too_long"]
            else "No row has an answer."
            if counts["rows_unanswered"] == counts["rows_untargeted"] > 0
            else "Raise --max-length: truncation cuts the answers off."
            if counts["rows_untargeted"]
            else "Check --text-column and --min-length.",
        )


def note_outcome(context: Context, recipe: Recipe, tally: Tally, names: Sequence[str] | None) -> None:
    """Say what came out empty, or not as planned."""
    _note_left_out(context, recipe, tally)
    if (unnamed := [number for number, name in enumerate(names or ()) if not name.strip()]) and tally.labels[unnamed[0]]:
        context.note(f"{tally.labels[unnamed[0]]:,} rows have an empty label, which counts as a class")
    named = context.settings.dataset.label_names or context.settings.dataset.label_columns or recipe.plan.label_names
    if names and not named and (note := unlabelled_note(names, tally.labels, tally.counts["rows_read"])):
        context.note(note)
    for words in few_held_out(recipe, tally, labelled=names is not None):
        context.note(words)
    if recipe.plan.columns.multi_label:
        total = sum(tally.rows.values())
        given = sum(count for label, count in tally.labels.items() if label != NO_LABEL)
        context.note(f"{given / total:.3g} of {len(names or ())} labels a row; {tally.labels[NO_LABEL]:,} of {total:,} rows have none")
    unused = [name for number, name in enumerate(names or ()) if not tally.labels[number]]
    if unused:
        context.note(f"{len(unused)} of {len(names or ())} labels have no row: {', '.join(unused[:10])}{' …' if len(unused) > 10 else ''}")
    for words in tally.failures[:3]:
        context.note(words)
    if len(tally.failures) > 3:
        context.note(f"… and {len(tally.failures) - 3} more such engine failures")


def _note_left_out(context: Context, recipe: Recipe, tally: Tally) -> None:
    """Why rows that could be read are not among those written."""
    counts, limit = tally.counts, recipe.policy.max_length
    unanswered, untargeted, long = (counts[f"rows_{name}"] for name in ("unanswered", "untargeted", "too_long"))
    short = counts["rows_filtered"] - long - untargeted
    reasons = {
        f"longer than max_length {limit:,} (--truncation-strategy drop)": long,
        "without an answer to be learned": unanswered,
        f"with the answers behind max_length {limit:,}; --max-length is how long a row may be": untargeted - unanswered,
        f"with fewer tokens than min_length {recipe.policy.min_length}": short,
    }
    read = counts["rows_read"]
    for reason, rows in reasons.items():
        if rows:
            context.note(f"left out: {rows:,} of {read:,} rows ({percent(rows / read)}), {reason}")
