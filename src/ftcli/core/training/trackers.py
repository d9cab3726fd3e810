"""Trackers (TensorBoard, MLflow, wandb, trackio …) beside a run: they may fail, and the run goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

MLFLOW_URI = "MLFLOW_TRACKING_URI"
MLFLOW_STORE = "mlflow.db"
"""File in the run's folder; without it mlflow would write where the command happens to be started."""


class Tracker(TrainerCallback):  # type: ignore[misc]
    """A callback of transformers' for one tracker, from its first failure on silent.

    The tracker is told of the run's end by `finish`, after the last evaluation, and not by `Trainer`, which ends before it.

    Args:
        callback: that of transformers.
        note: says what failed.
    """

    def __init__(self, name: str, callback: Any, note: Callable[[str], None]) -> None:
        self.name = name
        self.note = note
        self._callback = callback
        self._last: tuple[TrainingArguments, TrainerState, TrainerControl, Mapping[str, Any]] | None = None

    def event(self, name: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """Hand an event on; what the callback answers changes nothing in the run."""
        self._last = args, state, control, {key: value for key, value in parts.items() if key != "logs"}
        if name != "on_train_end":
            self._tell(name, args, state, control, **parts)

    def finish(self, figures: Mapping[str, Any]) -> None:
        """Hand over the report's numbers, and end the tracker's run."""
        if self._last is None:
            return
        args, state, control, parts = self._last
        numbers = {name: value for name, value in figures.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
        self._tell("on_log", args, state, control, logs=numbers, **parts)
        self._tell("on_train_end", args, state, control, **parts)

    def _tell(self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        if self._callback is None:
            return
        try:
            getattr(self._callback, event)(args, state, copy(control), **parts)
        except Exception as error:  # noqa: BLE001 - anything that a library of others may raise
            self._callback = None
            self.note(f"the tracker {self.name} failed after step {state.global_step} and gets no more: {type(error).__name__}: {error}")


def _handing_on(name: str) -> Callable[..., None]:
    def handler(self: Tracker, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        self.event(name, args, state, control, **parts)

    return handler


for _name in dir(TrainerCallback):
    if _name.startswith("on_"):
        setattr(Tracker, _name, _handing_on(_name))


def start(names: list[str], output: Path, note: Callable[[str], None]) -> list[Tracker]:
    """The trackers that can be started; the others are named."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    started = []
    for name in names:
        try:
            if name == "mlflow":
                _keep_mlflow_in(output)
            started.append(Tracker(name, INTEGRATION_TO_CALLBACK[name](), note))
        except Exception as error:  # noqa: BLE001 - a package that is there and broken
            note(f"the tracker {name} cannot be started, and the run goes on without it: {type(error).__name__}: {error}")
    return started


def _keep_mlflow_in(output: Path) -> None:
    """A store in the run's folder, unless the user has named one."""
    import mlflow  # type: ignore[import-not-found,unused-ignore]

    if not os.environ.get(MLFLOW_URI) and not mlflow.is_tracking_uri_set():
        mlflow.set_tracking_uri(f"sqlite:///{output.resolve() / MLFLOW_STORE}")
