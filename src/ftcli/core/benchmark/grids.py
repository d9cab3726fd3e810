"""What `benchmark sweep` tries: settings that change how fast the work is done and not what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from ftcli.context import Context
from ftcli.errors import UsageError
from ftcli.settings import get

Values = Mapping[str, Any]
"""Settings ("section.field" → value) of one candidate."""
PRESENT = "present settings"


def candidates(context: Context, what: str, *, engines: Sequence[str], collators: Sequence[str | None], on_gpu: bool) -> dict[str, Values]:
    """Every candidate by its name, with what it changes: the present settings first, then those that change the fewest.

    Args:
        what: tokenize, batch or train.
        engines: those that may be exact for the tokenizer.
        collators: those that fit the data; None in place of the one that unset means.

    Raises:
        UsageError: an unknown `what`.
    """
    makers: Mapping[str, Callable[[], dict[str, Sequence[Any]]]] = {
        "tokenize": lambda: _tokenize(context, engines),
        "batch": lambda: _batch(context, collators, on_gpu=on_gpu),
        "train": lambda: _train(context, on_gpu=on_gpu),
    }
    if what not in makers:
        raise UsageError(f"benchmark sweep needs one of {', '.join(makers)}, not {what!r}", "Write: ftcli benchmark sweep tokenize")
    possible = [values for values in _grid(makers[what]()) if _possible(context, what, values)]
    changes = [{key: value for key, value in values.items() if get(context.settings, key) != value} for values in possible]
    return {PRESENT: {}, **{name_of(values): values for values in sorted(changes, key=len) if values}}


def without(grid: Mapping[str, Values], key: str) -> dict[str, Values]:
    """The candidates that leave a setting as it is."""
    return {name: values for name, values in grid.items() if key not in values}


def name_of(values: Values) -> str:
    """A candidate in words: "num_proc=2, engine=hf"."""
    return ", ".join(f"{key.partition('.')[2]}={_word(value)}" for key, value in values.items())


def _tokenize(context: Context, engines: Sequence[str]) -> dict[str, Sequence[Any]]:
    processes = _powers(context.machine.cores)
    return {
        "dataset.num_proc": processes if context.settings.dataset.num_proc else [None, *processes[:-1]],  # unset means every core
        "dataset.batch_size": (10_000, 50_000),
        "dataset.writer_batch_size": (10_000, 50_000),
        "tokenizer.engine": engines,
    }


def _batch(context: Context, collators: Sequence[str | None], *, on_gpu: bool) -> dict[str, Sequence[Any]]:
    train = context.settings.train
    sized = "per_device_train_batch_size" if train.max_tokens_per_batch is None else "max_tokens_per_batch"
    size = getattr(train, sized)
    return {
        "loader.collator": collators,
        f"train.{sized}": (size, 2 * size, 4 * size),
        "loader.num_workers": (0, *_powers(min(4, context.machine.cores))),
        "loader.prefetch_factor": (None, 2, 4),
        "loader.pin_memory": (True, False) if on_gpu else (context.settings.loader.pin_memory,),
    }


def _train(context: Context, *, on_gpu: bool) -> dict[str, Sequence[Any]]:
    train, attention = context.settings.train, context.settings.model.attn_implementation
    size, steps = train.per_device_train_batch_size, train.gradient_accumulation_steps
    whole = size * steps
    budget = train.max_tokens_per_batch is not None  # then other numbers would make other steps
    return {
        "train.per_device_train_batch_size": [size] if budget else [size for size in _powers(whole) if whole % size == 0],
        "train.gradient_accumulation_steps": [steps] if budget else [steps for steps in range(1, whole + 1) if whole % steps == 0],
        "train.torch_compile": (None, True) if on_gpu else (train.torch_compile,),
        "model.attn_implementation": (attention and "sdpa", "eager", *(("flash_attention_2",) if on_gpu else ())),  # unset is sdpa
    }


def _possible(context: Context, what: str, values: Values) -> bool:
    """The same rows in an optimizer step, and no prefetching without workers."""
    train = context.settings.train
    if what == "train":
        step = values["train.per_device_train_batch_size"] * values["train.gradient_accumulation_steps"]
        return bool(step == train.per_device_train_batch_size * train.gradient_accumulation_steps)
    return what != "batch" or bool(values["loader.num_workers"]) == (values["loader.prefetch_factor"] is not None)


def _grid(axes: Mapping[str, Sequence[Any]]) -> Iterator[Values]:
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _powers(most: int) -> list[int]:
    """1, 2, 4 … and `most` itself."""
    return sorted({1 << power for power in range(most.bit_length()) if 1 << power <= most} | {most})


def _word(value: Any) -> str:
    return {None: "unset", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)
