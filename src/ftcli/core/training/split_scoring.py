"""The test split: scored once, at the end, by the model that is saved."""

from __future__ import annotations

from collections.abc import Callable

from transformers import Trainer, TrainingArguments

from ftcli.context import Context
from ftcli.core.batches.batch import StoreDataset
from ftcli.core.held_out_rows import more
from ftcli.core.storage.store import SplitData, Store
from ftcli.errors import DataError, ModelError, SettingsError

TEST = "test"


def to_score(context: Context, store: Store, arguments: TrainingArguments) -> SplitData | None:
    """The split that is to be scored; None: there is none, it is what is evaluated on anyway, or evaluations are off.

    Raises:
        SettingsError: it is asked for, and there is none, or no row in it.
    """
    asked, there = context.settings.train.do_predict, TEST in store.split_names
    if asked and (words := unmet(store)):
        raise SettingsError(f"train.do_predict scores the test split, and {words}", f"{more(TEST)} Or leave --do-predict out.")
    if not there or asked is False or (asked is None and store.eval_split == TEST):
        return None
    split = store.split(TEST)
    if not len(split):
        context.note("the test split is empty, so it is not scored")
        return None
    if asked is None and arguments.eval_strategy == "no":
        context.note(f"the test split ({len(split):,} rows) is not scored, because evaluations are off: --do-predict scores it")
        return None
    return split


def that_fits(context: Context, split: SplitData | None, check: Callable[[list[str]], None]) -> SplitData | None:
    """The split where the model can take its rows. A row that it cannot take is no reason to leave the training undone, unless the score is asked for.

    Raises:
        ModelError, DataError: it cannot, and the score is asked for.
    """
    try:
        check([] if split is None else [TEST])
    except (ModelError, DataError) as error:
        if context.settings.train.do_predict:
            raise type(error)(error.message, f"{error.hint} Or do not score the test split: --no-do-predict.".strip()) from error
        context.note(f"the test split is not scored: {error.message}")
        return None
    return split


def unmet(store: Store) -> str | None:
    """Why no test split can be scored, in words; None where one can."""
    if TEST not in store.split_names:
        return f"{store.path} has none"
    return None if len(store.split(TEST)) else f"that of {store.path} is empty"


def score(trainer: Trainer, split: SplitData) -> None:
    """One pass over it with the model as it is now; the figures are a line of the log, under test_…"""
    if trainer.is_deepspeed_enabled and trainer.deepspeed is None:
        trainer.watch.note("the test split is not scored: this process did not train, so DeepSpeed has no engine for it")
        return
    trainer.score(StoreDataset(split))


def figures(log: list[dict[str, float]]) -> dict[str, float]:
    """Of the log's last line about the test split; empty where there is none."""
    return next((entry for entry in reversed(log) if f"{TEST}_loss" in entry), {})
