"""Checks of the prepared data: complete, of this tokenizer, not cut."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

MANY_LEFT_OUT = 0.01
"""Share of the rows that may be left out for their length, or for an answer or a text that is not there, without a word."""
MANY_CUT = 0.05
"""Share of the tokens that truncation may cut, and of the rows where each ends with its answer."""
RAISE = "Raise --max-length."
BEHIND = "with their answer cut off by truncation"
UNANSWERED = "Mode sft needs an answer in every row (preference data have none): remove these rows, or check --rename."
TEXTLESS = "Check --text-column, or remove the rows without text from the sources."


def complete(probe: Probe) -> Check:
    from ftcli.core.files.manifest import check_published
    from ftcli.core.verify.missing import Missing
    from ftcli.core.verify.planned_data import unprepared
    from ftcli.core.verify.verdict import passed

    try:
        store = probe.store
    except Missing:
        if unprepared(probe.settings):
            return _readable(probe)
        raise
    check_published(store.path, full=True)
    splits = {name: len(store.split(name)) for name in store.split_names}
    return passed(
        f"{store.path}: every file is as it was written ({', '.join(f'{name} {rows:,} rows' for name, rows in splits.items())})",
        fingerprint=store.fingerprint,
        **splits,
    )


def _readable(probe: Probe) -> Check:
    """Of sources that are not prepared yet: what would stop `ftcli tokenize` at their first rows."""
    from ftcli.core.figures import size
    from ftcli.core.prepare.sample import sample
    from ftcli.core.verify.verdict import failed, noted

    found = sample(probe.context)
    words = f"{found.files:,} file{'s' if found.files > 1 else ''} of {size(found.bytes)}"
    if not found.rows:
        return failed(f"no row can be read at the start of {words}", "Check the sources and --text-column.")
    return noted(
        f"the sources ({words}) are not prepared yet: ftcli train prepares them first, ftcli tokenize --output-dir does it now; their first rows can be read",
        rows=found.rows,
        files=found.files,
    )


def same_tokenizer(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import failed, passed

    prepared = probe.store.manifest["tokenizer"]
    found = probe.tokenizer_hash
    if found == prepared["hash"]:
        return passed("the data were prepared with this tokenizer", hash=found)
    return failed(
        f"the data were prepared with another tokenizer ({prepared['path']}, hash {prepared['hash'][:12]}…, here {found[:12]}…)",
        "Prepare them again with this tokenizer, or set --tokenizer-path to the one they were prepared with.",
        prepared=prepared["hash"],
        here=found,
    )


def lengths(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.verify.verdict import failed, noted, passed, warned

    store, tokens = probe.store, probe.train_split.lengths
    counted = store.manifest.get("metrics", {})
    cut = counted.get("tokens_cut", 0) / max(1, counted.get("tokens_cut", 0) + counted.get("tokens", 0))
    limit = _positions(probe)
    evidence = {
        "mean": round(float(tokens.mean()), 1),
        "median": int(np.median(tokens)),
        "longest": int(tokens.max()),
        "positions": limit,
        "rows_truncated": counted.get("rows_truncated"),
        "tokens_cut_share": round(cut, 4),
        "rows_too_long": counted.get("rows_too_long", 0),
        "rows_untargeted": counted.get("rows_untargeted", 0),
        "rows_too_short": _textless(counted),
    }
    for name in store.split_names:
        found = store.split(name).lengths
        if len(found) and not found.min():
            return failed(f"row {int(found.argmin())} of {name} has no tokens", "Prepare the data again with --min-length 1.", **evidence)
        if limit and len(found) and found.max() > limit:
            said = f"row {int(found.argmax())} of {name} has {int(found.max()):,} tokens, the model has {limit:,} positions"
            fix = f"Prepare the data with --max-length {limit}."
            if name != "test" or store.eval_split == name or probe.settings.train.do_predict:
                return failed(said, fix, **evidence)
            return warned(f"{said}: train does not score {name}", fix, **evidence)
    reasons, read = _left_out(probe), counted.get("rows_read", 0)
    words, fixes = list[str](), list[str]()
    if (left_out := sum(rows for rows, _ in reasons.values())) > MANY_LEFT_OUT * read:
        why = {f"{rows:,} {words}": fix for words, (rows, fix) in reasons.items() if rows}
        words.append(f"{left_out:,} of {read:,} rows ({left_out / read:.1%}) were left out: {', '.join(why)}")
        fixes += why.values()
    if cut > MANY_CUT:
        words.append(f"truncation cut {cut:.1%} of all tokens ({counted.get('rows_truncated'):,} rows)")
        fixes.append(_uncut(probe, counted, reasons[BEHIND][0]))
        if fixes[-1] != RAISE:
            fixes = [fix for fix in fixes if fix != RAISE]
    if words:
        return warned("; ".join(words), " ".join(dict.fromkeys(fixes)), **evidence)
    said = f"{tokens.mean():.1f} tokens per row on average, at most {int(tokens.max())}; {cut:.2%} of all tokens were cut"
    truncated = (counted.get("rows_truncated") or 0) / max(1, counted.get("rows_written", 0))
    if probe.task_name == "sft" and truncated:
        said += f", in {truncated:.1%} of the rows (FT304 checks whether they still end properly)"
        return noted(said, **evidence) if truncated > MANY_CUT else passed(said, **evidence)
    return passed(said, **evidence)


def _uncut(probe: Probe, counted: Mapping[str, int], behind: int) -> str:
    """What helps where truncation cut much. In mode sft nothing is split, and to drop what is too long helps where at least half of the rows would stay."""
    if probe.task_name != "sft":
        return f"{RAISE[:-1]}, or use --truncation-strategy split."
    truncated = counted.get("rows_truncated", 0)
    whole = counted.get("rows_read", 0) - counted.get("rows_filtered", 0) - truncated
    return f"{RAISE[:-1]}, or use --truncation-strategy drop." if whole >= truncated + behind else RAISE


def _textless(counted: Mapping[str, int]) -> int:
    """Rows that were filtered out for having too few tokens: none, or fewer than the minimum."""
    return max(0, counted.get("rows_filtered", 0) - counted.get("rows_too_long", 0) - counted.get("rows_untargeted", 0))


def _left_out(probe: Probe) -> dict[str, tuple[int, str]]:
    """Why rows are missing that nobody asked to leave out: how many, and what helps. Empty lines of running text are none, nor are short rows where a
    minimum is set."""
    counted: Mapping[str, int] = probe.store.manifest.get("metrics", {})
    untargeted = counted.get("rows_untargeted", 0)
    unanswered = counted.get("rows_unanswered", 0 if counted.get("rows_truncated") else untargeted)
    asked = (probe.store.manifest.get("policy") or {}).get("min_length", 1) > 1 or probe.task_name == "pretrain"
    return {
        "too long": (counted.get("rows_too_long", 0), RAISE),
        BEHIND: (untargeted - unanswered, RAISE),
        "without an answer": (unanswered, UNANSWERED),
        "without text": (0 if asked else _textless(counted), TEXTLESS),
    }


def _positions(probe: Probe) -> int | None:
    """Tokens that the model has positions for; None when there is no model or no such limit."""
    from ftcli.core.models.layers import text_places
    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    try:
        config = probe.config
    except Missing:
        return None
    pad = None
    with suppress(Missing, FtcliError):  # FT101 says what is wrong with it
        pad = probe.tokenizer.pad_token_id
    return text_places(config, pad)


CHECKS = (
    CheckKind("FT201", "data", "Prepared data", complete, ("store",)),
    CheckKind("FT202", "data", "Same tokenizer", same_tokenizer, ("store", "tokenizer")),
    CheckKind("FT204", "data", "Lengths", lengths, ("store",)),
)
