"""Settings that say how data are prepared, given to a run on data that are prepared already: they would be passed over without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ftcli.context import Context
from ftcli.core.reading.label_names import in_id_order
from ftcli.core.storage.store import Store
from ftcli.errors import UsageError
from ftcli.settings import Settings, get

PLAIN = ("sample_by", "max_row_tokens", "validation_fraction", "test_fraction")
"""Of `dataset`, recorded as they are set, whatever the mode."""
TEXTS = ("label_column", "text_pair_column", "label_separator", "label_names")
"""The same where rows are texts; conversations have none of these."""
SAID = ("completion_only_loss", "assistant_only_loss")
PACKING = ("strategy", "max_length", "min_length", "truncation_strategy")
UNSET = Settings()


def refuse_ignored_settings(context: Context, store: Store) -> None:
    """Raises `UsageError` when a setting that somebody gave asks for data that were prepared otherwise; names all of them and their origins."""
    there_is = {"packing.strategy": store.manifest.get("packing"), **(store.manifest.get("inputs") or {})}
    inputs: Mapping[str, Any] = {
        **there_is,
        "dataset.label_names": store.label_names,
    }  # recorded is what was given, none where they were found
    wrong = [
        f"{key.partition('.')[2]} = {_shown(wanted)} (from {origin}), there {_shown(there)}"
        for key, wanted, there in _compared(context.settings, inputs)
        if wanted != there and not (origin := context.resolved.origin(key)).startswith("profile ")
    ]
    if wrong:
        raise UsageError(
            f"{store.path} is already prepared with different settings: {'; '.join(wrong)}",
            "Remove these settings, or prepare the data again with them: ftcli tokenize.",
        )


def _compared(settings: Settings, inputs: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(setting, what is asked for, what the manifest records), of all that are set and that the manifest tells."""
    conversations = inputs.get("train.mode") == "sft"
    dataset, packing = [f"dataset.{name}" for name in (PLAIN if conversations else PLAIN + TEXTS)], [f"packing.{name}" for name in PACKING]
    told = bool(inputs.get("format version"))
    for key in [*(dataset if told else ()), *(packing if told else packing[:1])]:
        if (wanted := get(settings, key)) != get(UNSET, key):
            yield key, in_id_order(wanted) if key == "dataset.label_names" else wanted, inputs.get(key)
    if not told:
        return
    wishes = settings.dataset
    if wishes.text_column != UNSET.dataset.text_column:
        yield "dataset.text_column", wishes.text_column, inputs.get("dataset.text_column")
    if wishes.label_columns and not conversations:
        yield "dataset.label_columns", wishes.label_columns, next(iter(inputs.get("dataset.label_columns") or ()), None)
    if wishes.seed != UNSET.dataset.seed and inputs.get("dataset.seed") is not None:
        yield "dataset.seed", wishes.seed, inputs["dataset.seed"]
    for key in [f"dataset.{name}" for name in SAID] if conversations else ():
        if (wanted := get(settings, key)) is not None:
            yield key, wanted, inputs.get(key)
    yield from _ends(settings, inputs, conversations=conversations)
    if wishes.rename_columns and conversations:
        pairs = [f"{ours}={theirs}" for theirs, ours in inputs.get("dataset.rename_columns") or ()]
        yield (
            "dataset.rename_columns",
            sorted("=".join(map(str.strip, pair.split("=", 1))) for pair in wishes.rename_columns),
            sorted(pairs),
        )


def _ends(settings: Settings, inputs: Mapping[str, Any], *, conversations: bool) -> Iterator[tuple[str, Any, Any]]:
    """What is added to texts, where the manifest tells it."""
    wanted, special = settings.tokenizer.add_eos, ("ids before a text", "ids behind a text")
    if conversations:
        if wanted is not None:
            yield "tokenizer.add_eos", wanted, inputs.get("tokenizer.add_eos")
        return
    added = any(inputs.get(name) for name in special)
    if not settings.tokenizer.add_special_tokens and added:
        yield "tokenizer.add_special_tokens", False, True
    # the other way round nothing is wrong: a tokenizer may end texts by itself, by its post-processor or in code of its own; a BOS before them ends none
    if (
        wanted
        and not inputs.get("ids behind a text")
        and not inputs.get("whole rows by the reference")
        and "dataset.text_pair_column" not in inputs
    ):
        yield "tokenizer.add_eos", True, inputs.get("EOS behind a text") is not None


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
