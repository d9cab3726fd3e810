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

Steps = NDArray[np.float64]
MOST_STEPS = 2_000_000
"""Steps that are counted one by one; a longer run is looked at on as many places."""


@dataclass(frozen=True)
class Schedule:
    """A run's learning rate as transformers' `get_scheduler` makes it.

    Args:
        steps: optimizer steps of the run.
        warmup: steps of the linear warm-up; step 1 is taken at the rate 0.
        name: `lr_scheduler_type`.
        options: `lr_scheduler_kwargs`.
    """

    steps: int
    warmup: int
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether the rate behind the warm-up can be said; else it is taken for constant there."""
        return self.name in BEHIND and not set(self.options) - {"num_cycles", "lr_end", "power", "timescale"}

    def share(self, step: int) -> float:
        """Learning rate of optimizer step `step`, counted from 1, as a share of the peak."""
        return float(self._shares(np.array([step - 1.0]))[0])

    def full_rate_steps(self, step: int) -> float:
        """Sum of the learning rates of the first `step` steps, divided by the peak."""
        places = np.arange(min(step, MOST_STEPS), dtype=np.float64) * (max(1, step) / max(1, min(step, MOST_STEPS)))
        return float(self._shares(places).mean() * step) if len(places) else 0.0

    def _shares(self, places: Steps) -> Steps:
        rising = places / max(1, self.warmup)
        behind = (places - self.warmup) / max(1, self.steps - self.warmup)
        decay = BEHIND[self.name](places, behind, self) if self.known else np.ones_like(places)
        if self.name == "constant":
            return decay
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
    """The end rate is absolute and by default 1e-7: as a share of the peak it is taken for nothing."""
    return np.clip(1 - behind, 0.0, 1.0) ** float(schedule.options.get("power", 1.0))


def _inverse_sqrt(places: Steps, _: Steps, schedule: Schedule) -> Steps:
    scale = float(schedule.options.get("timescale") or schedule.warmup or 10_000)
    return 1 / np.sqrt(np.maximum(places + scale - schedule.warmup, 1e-9) / scale)


BEHIND: Mapping[str, Callable[[Steps, Steps, Schedule], Steps]] = {
    "linear": lambda _, behind, __: np.clip(1 - behind, 0.0, 1.0),
    "cosine": _cosine,
    "cosine_with_restarts": _restarts,
    "polynomial": _polynomial,
    "inverse_sqrt": _inverse_sqrt,
    "constant": lambda places, _, __: np.ones_like(places),
    "constant_with_warmup": lambda places, _, __: np.ones_like(places),
}
"""Shares of the peak behind the warm-up, by `lr_scheduler_type`: (step from 0, progress behind the warm-up, schedule)."""


@dataclass(frozen=True)
class Plan:
    """A run's schedule and when it is first looked at. `first_eval` is None where nothing is evaluated."""

    schedule: Schedule
    steps_an_epoch: int
    log_every: int
    first_eval: int | None


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
    strategy = train.eval_strategy or ("epoch" if held_out else "no")
    first = {"no": None, "epoch": an_epoch, "steps": _every(train.eval_steps or train.logging_steps, steps)}[strategy]
    schedule = Schedule(steps, warmup, train.lr_scheduler_type, train.lr_scheduler_kwargs or {})
    return Plan(schedule, an_epoch, logs, None if first is None else min(first, steps))


def _every(value: float, steps: int) -> int:
    """A number of steps, or a share of all of them when under 1."""
    return int(value) if value >= 1 else max(1, math.ceil(value * steps))
