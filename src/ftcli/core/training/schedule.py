"""The planned learning rate of every optimizer step, without torch: how many steps at the full rate it amounts to, and by when."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftcli.settings import Settings
from ftcli.settings_train import TrainSettings

Steps = NDArray[np.float64]
LR_END = 1e-7
"""Of a polynomial by default."""
UNWARMED = frozenset({"constant", "reduce_lr_on_plateau", "greedy"})
"""Schedules that begin at the full rate, whatever warm-up is asked for."""
MOST_STEPS = 2_000_000
"""Steps that are counted one by one; a longer run is looked at on as many places."""


@dataclass(frozen=True)
class Schedule:
    """A run's learning rate as transformers' `get_scheduler` makes it.

    Args:
        steps: optimizer steps of the run.
        given: steps of a warm-up that were asked for.
        name: `lr_scheduler_type`.
        options: `lr_scheduler_kwargs`.
        peak: `learning_rate`, of which an absolute least rate is a share; None: not known.
    """

    steps: int
    given: int
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    peak: float | None = None

    @property
    def warmup(self) -> int:
        """Steps of the linear warm-up; step 1 is taken at the rate 0."""
        return 0 if self.name in UNWARMED else self.given

    @property
    def known(self) -> bool:
        """Whether the rate behind the warm-up can be said; else it is taken for constant there."""
        return self.name in OPTIONS and self.refused is None and ("min_lr" not in self.options or self.least is not None)

    @property
    def refused(self) -> str | None:
        """Why transformers would not make it, in words; None: it would, or nothing is known of it."""
        if (known := OPTIONS.get(self.name)) is None:
            return None
        if more := sorted(set(self.options) - known):
            takes = ", ".join(sorted(known)) or "none"
            return f"{self.name} takes no option {more[0]} (it takes: {takes})"
        if self.name == "warmup_stable_decay" and "num_decay_steps" not in self.options:
            return f"{self.name} needs num_decay_steps"
        if "min_lr_rate" in known and sum(self.options.get(name) is not None for name in ("min_lr", "min_lr_rate")) != 1:
            return f"{self.name} needs min_lr or min_lr_rate"
        if self.name == "polynomial" and self.peak and self.end >= self.peak:
            return f"its lr_end of {self.end:g} is not below the learning rate of {self.peak:g}"
        wrong = [name for name in ("warmup_type", "decay_type") if self.options.get(name, "linear") not in FALLING]
        return f"{wrong[0]} = {self.options[wrong[0]]!r} is none of {', '.join(FALLING)}" if wrong else None

    @property
    def least(self) -> float | None:
        """The share of the peak that a cosine ends at, where it is said."""
        if self.options.get("min_lr_rate") is not None:
            return float(self.options["min_lr_rate"])
        least = self.options.get("min_lr")
        return None if least is None or not self.peak else float(least) / self.peak

    @property
    def rise(self) -> float | None:
        """What the rate rises to, as a share of the peak, where the options put its least value above it."""
        least = self.options.get("min_lr_ratio") if self.name == "warmup_stable_decay" else self.least
        return float(least) if least is not None and float(least) > 1 else None

    @property
    def end(self) -> float:
        """The rate that a polynomial ends at."""
        return float(self.options.get("lr_end", LR_END))

    def share(self, step: int) -> float:
        """Learning rate of optimizer step `step`, counted from 1, as a share of the peak."""
        return float(self._shares(np.array([step - 1.0]))[0])

    def full_rate_steps(self, step: int) -> float:
        """Sum of the learning rates of the first `step` steps, divided by the peak."""
        places = np.arange(min(step, MOST_STEPS), dtype=np.float64) * (max(1, step) / max(1, min(step, MOST_STEPS)))
        return float(self._shares(places).mean() * step) if len(places) else 0.0

    def _shares(self, places: Steps) -> Steps:
        if self.known and self.name in WHOLE:
            return np.maximum(0.0, WHOLE[self.name](places, self))
        rising = places / max(1, self.warmup)
        behind = (places - self.warmup) / max(1, self.steps - self.warmup)
        decay = BEHIND[self.name](places, behind, self) if self.known else np.ones_like(places)
        return np.where(places < self.warmup, rising, decay)

    @cached_property
    def total(self) -> float:
        return self.full_rate_steps(self.steps)


def _cosine(_: Steps, behind: Steps, schedule: Schedule) -> Steps:
    cycles = float(schedule.options.get("num_cycles", 0.5))
    return np.maximum(0.0, 0.5 * (1 + np.cos(math.pi * 2 * cycles * behind)))


def _restarts(_: Steps, behind: Steps, schedule: Schedule) -> Steps:
    cycles = float(schedule.options.get("num_cycles", 1))
    return np.where(behind >= 1, 0.0, np.maximum(0.0, 0.5 * (1 + np.cos(math.pi * ((cycles * behind) % 1)))))


def _polynomial(_: Steps, behind: Steps, schedule: Schedule) -> Steps:
    least = schedule.end / schedule.peak if schedule.peak else 0.0
    return np.clip(1 - behind, 0.0, 1.0) ** float(schedule.options.get("power", 1.0)) * (1 - least) + least


def _inverse_sqrt(places: Steps, _: Steps, schedule: Schedule) -> Steps:
    scale = float(schedule.options.get("timescale") or schedule.warmup or 10_000)
    return 1 / np.sqrt(np.maximum(places + scale - schedule.warmup, 1e-9) / scale)


def _least(_: Steps, behind: Steps, schedule: Schedule) -> Steps:
    least = schedule.least or 0.0
    cycles = float(schedule.options.get("num_cycles", 0.5))
    return np.maximum(0.0, 0.5 * (1 + np.cos(math.pi * 2 * cycles * behind)) * (1 - least) + least)


def _warm_least(places: Steps, schedule: Schedule) -> Steps:
    """Its warm-up begins above 0, and everything comes one step sooner."""
    warmup, start = schedule.warmup, schedule.options.get("warmup_lr_rate")
    begun = 1 / max(1, warmup) if start is None else float(start)
    rising = begun + places * (1 / max(1, warmup) if start is None else (1 - begun) / max(1, warmup - 1))
    behind = (places - warmup + 1) / max(1, schedule.steps - warmup)
    return np.where(places < warmup, rising, _least(places, behind, schedule))


def _stable(places: Steps, schedule: Schedule) -> Steps:
    """Up, level and down, to the least rate."""
    options, warmup = schedule.options, schedule.warmup
    least, falling = float(options.get("min_lr_ratio", 0)), int(options["num_decay_steps"])
    level = options.get("num_stable_steps")
    end = warmup + (schedule.steps - warmup - falling if level is None else int(level))
    up = FALLING[options.get("warmup_type", "linear")](1 - places / max(1, warmup), 0.5)
    down = FALLING[options.get("decay_type", "cosine")](
        np.maximum(0.0, places - end) / max(1, falling), float(options.get("num_cycles", 0.5))
    )
    level_or_down = np.where(places < end, 1.0, np.where(places < end + falling, down * (1 - least) + least, least))
    return np.where(places < warmup, up * (1 - least) + least, level_or_down)


FALLING: Mapping[str, Callable[[Steps, float], Steps]] = {
    "linear": lambda progress, _: 1 - progress,
    "cosine": lambda progress, cycles: 0.5 * (1 + np.cos(math.pi * 2 * cycles * progress)),
    "1-sqrt": lambda progress, _: 1 - np.sqrt(np.clip(progress, 0, 1)),
}
"""From 1 to 0, by the names of `warmup_stable_decay`."""
WHOLE: Mapping[str, Callable[[Steps, Schedule], Steps]] = {"cosine_warmup_with_min_lr": _warm_least, "warmup_stable_decay": _stable}
"""Shares of the peak by `lr_scheduler_type`, where the warm-up is the schedule's own: (step from 0, schedule)."""
OPTIONS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("linear", "constant", "constant_with_warmup"), frozenset()),
    **dict.fromkeys(("cosine", "cosine_with_restarts"), frozenset({"num_cycles"})),
    "polynomial": frozenset({"lr_end", "power"}),
    "inverse_sqrt": frozenset({"timescale"}),
    "cosine_with_min_lr": frozenset({"num_cycles", "min_lr", "min_lr_rate"}),
    "cosine_warmup_with_min_lr": frozenset({"num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"}),
    "warmup_stable_decay": frozenset({"num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"}),
}
"""What transformers lets each be told."""

BEHIND: Mapping[str, Callable[[Steps, Steps, Schedule], Steps]] = {
    "linear": lambda _, behind, __: np.clip(1 - behind, 0.0, 1.0),
    "cosine": _cosine,
    "cosine_with_restarts": _restarts,
    "polynomial": _polynomial,
    "cosine_with_min_lr": _least,
    "inverse_sqrt": _inverse_sqrt,
    "constant": lambda places, _, __: np.ones_like(places),
    "constant_with_warmup": lambda places, _, __: np.ones_like(places),
}
"""Shares of the peak behind the warm-up, by `lr_scheduler_type`: (step from 0, progress behind the warm-up, schedule)."""


@dataclass(frozen=True)
class Plan:
    """A run's schedule and when it is first looked at. `first_eval` is None where nothing is evaluated.

    Args:
        evals_before_end: evaluations that come before the last step; behind it there is one more.
    """

    schedule: Schedule
    steps_an_epoch: int
    log_every: int
    first_eval: int | None
    evals_before_end: int = 0

    def too_few_evaluations(self, train: TrainSettings) -> str | None:
        """Why patience or the best model's choice can change nothing about this run; None: they can, or are not asked for."""
        before = self.evals_before_end
        if self.first_eval is None:
            return None
        if train.patience and before <= train.patience:
            return (
                f"train.patience = {train.patience} cannot end this run: it needs {train.patience + 1} evaluations before the last step, "
                f"but there are {before:,}"
            )
        if train.load_best_model_at_end and not before:
            return f"train.load_best_model_at_end has only one model to choose from: the only evaluation is at the end, step {self.schedule.steps:,}"
        return None


def make_plan(settings: Settings, rows: int | None, *, held_out: bool, token_batches: int | None = None) -> Plan | None:
    """The plan of a run on `rows` training rows, as `Trainer` counts it; None when neither rows nor `max_steps` say how long it is.

    Args:
        token_batches: of an epoch on all ranks, where `train.max_tokens_per_batch` decides how many rows they have.
    """
    train = settings.train
    if rows is None and train.max_steps < 0:
        return None
    world = int(os.environ.get("WORLD_SIZE", "1"))
    taken = train.per_device_train_batch_size * world
    batches = 0 if rows is None else rows // taken if train.dataloader_drop_last else math.ceil(rows / taken)
    if token_batches is not None:
        batches = token_batches // world
    an_epoch = max(1, math.ceil(batches / train.gradient_accumulation_steps))
    steps = train.max_steps if train.max_steps >= 0 else math.ceil(an_epoch * train.num_train_epochs)
    warmup = int(train.warmup_steps) if train.warmup_steps >= 1 else math.ceil(train.warmup_steps * steps)
    logs = _every(train.logging_steps, steps)
    cadence = train.cadence(held_out=held_out)
    by_steps = _every(cadence.get("eval_steps") or train.logging_steps, steps)
    every = {"no": None, "epoch": an_epoch, "steps": by_steps}[cadence["eval_strategy"]]
    delay = (train.eval_delay or 0) * (an_epoch if cadence["eval_strategy"] == "epoch" else 1)
    first = None if every is None else every * max(1, math.ceil(delay / every))
    before = 0 if first is None or every is None else len(range(first, steps, every))
    schedule = Schedule(steps, warmup, train.lr_scheduler_type, train.lr_scheduler_kwargs or {}, train.learning_rate)
    return Plan(schedule, an_epoch, logs, None if first is None else min(first, steps), before)


def _every(value: float, steps: int) -> int:
    """A number of steps, or a share of all of them when under 1."""
    return int(value) if value >= 1 else max(1, math.ceil(value * steps))


def planned(arguments: Any, steps: int) -> Schedule:
    """Of a run of so many steps with these `TrainingArguments`."""
    options, kind = arguments.lr_scheduler_kwargs or {}, str(arguments.lr_scheduler_type.value)
    return Schedule(steps, arguments.get_warmup_steps(steps), kind, options, arguments.learning_rate)
