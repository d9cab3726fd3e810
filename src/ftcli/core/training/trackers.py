"""Trackers (TensorBoard, MLflow, wandb, trackio …) beside a run: they may fail, and the run goes on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from itertools import islice
from pathlib import Path
from threading import Timer
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

MLFLOW_URI = "MLFLOW_TRACKING_URI"
MLFLOW_STORE = "mlflow.db"
"""File in the run's folder; without it mlflow would write where the command happens to be started."""
MLFLOW_BATCH = 100
"""Parameters that it takes at a time."""
PATIENCE_SECONDS = 5.0
"""After which it is said that a tracker is waited for."""
BRIEF = {"mlflow": {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}}
"""Set from a tracker's begin on, where the user has not set them; mlflow asks its server as Python exits, too. Of itself mlflow asks a server that cannot be reached for 4 minutes, with 4
retries for 28 s."""
TRACKED = "trackers.json"
"""File in the run's folder: tracker → what its run is called there, so that a run that is resumed goes on in it."""

EVENTS = "events.out.tfevents.*"
"""What TensorBoard's writer calls its files."""


class Tracker(TrainerCallback):  # type: ignore[misc]
    """A callback of transformers' for one tracker, from its first failure on silent.

    The tracker is told of the run's end by `finish`, after the last evaluation, and not by `Trainer`, which ends before it.

    Args:
        callback: that of transformers.
        note: says what failed.
        output: the run's folder, where the tracked run's name is kept.
        settings: ftcli's, flat and without secrets; `Trainer` knows its own arguments only.
    """

    def __init__(
        self, name: str, callback: Any, note: Callable[[str], None], output: Path | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self.note = note
        self.variables: dict[str, str] = {"WANDB_DIR": str(output)} if output is not None and name == "wandb" else {}
        """Set while the tracker begins, where the user has not set them."""
        self._output = output
        self._settings = settings or {}
        self._callback = callback
        self._last: tuple[TrainingArguments, TrainerState, TrainerControl, Mapping[str, Any]] | None = None

    def event(self, name: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """Hand an event on; what the callback answers changes nothing in the run."""
        self._last = args, state, control, {key: value for key, value in parts.items() if key != "logs"}
        if name == "on_train_begin":
            os.environ.update({name: value for name, value in BRIEF.get(self.name, {}).items() if not os.environ.get(name)})
            with (
                _unless_set(self.variables),
                self._told_if_slow("the run starts when it answers or gives up; remove --report-to to start at once"),
            ):
                self._tell(name, args, state, control, **parts)
                if self._callback is not None:
                    self._guarded(state.global_step, self._begun)
        elif name != "on_train_end":
            self._tell(name, args, state, control, **parts)

    def go_on(self, name: str) -> None:
        """Have the tracker take up the run of this name when it begins."""
        if self.name == "tensorboard" and self._output is not None and not os.environ.get("TENSORBOARD_LOGGING_DIR"):
            self._callback.logging_dir = str(self._output / name)
        elif self.name == "wandb":
            self.variables |= {"WANDB_RUN_ID": name, "WANDB_RESUME": "allow"}
        elif self.name == "mlflow":
            self.variables |= {"MLFLOW_RUN_ID": name, "MLFLOW_MAX_LOG_PARAMS": "0"}  # parameters of a run cannot change

    def _begun(self) -> None:
        """Keep the tracked run's name, and hand over the settings."""
        name: str | None = None
        module = sys.modules.get(self.name)
        if self.name == "tensorboard":
            name = os.path.relpath(self._callback.logging_dir, self._output)
            self._callback.tb_writer.add_text("ftcli", json.dumps(self._settings, indent=1, default=str))
        elif self.name == "wandb" and (run := getattr(module, "run", None)) is not None:
            name = run.id
            run.config.update(self._settings, allow_val_change=True)
        elif self.name == "trackio" and module is not None and module.config is not None:
            module.config.update(self._settings, allow_val_change=True)
        elif self.name == "mlflow" and module is not None and (run := module.active_run()) is not None:
            name = run.info.run_id
            self._callback._async_log = (
                False  # it tells nobody what failed, and at the end tries every line again: 80 lines took over 16 minutes
            )
            if "MLFLOW_RUN_ID" not in self.variables:
                settings = iter(self._settings.items())
                while some := [*islice(settings, MLFLOW_BATCH)]:
                    module.log_params({key: str(value)[:500] for key, value in some})
        if name is not None and self._output is not None:
            path = self._output / TRACKED
            path.write_text(json.dumps({**_kept(path), self.name: name}), encoding="utf-8")

    def finish(self, figures: Mapping[str, Any], exit_code: int = 0) -> None:
        """Hand over the report's numbers, and end the tracker's run."""
        if self._last is None:
            return
        args, state, control, parts = self._last
        numbers = {name: value for name, value in figures.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
        with self._told_if_slow("the command ends when it answers or gives up"):
            self._tell("on_log", args, state, control, logs=numbers, **parts)
            self._tell("on_train_end", args, state, control, **parts)
        if self.name == "wandb" and (end := getattr(sys.modules.get("wandb"), "finish", None)) is not None:
            self._guarded(state.global_step, lambda: end(exit_code=exit_code))  # else when Python exits, on stdout behind the report

    def _tell(self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        if self._callback is not None:
            self._guarded(state.global_step, lambda: getattr(self._callback, event)(args, state, copy(control), **parts))

    @contextmanager
    def _told_if_slow(self, then: str) -> Iterator[None]:
        words = f"the tracker {self.name} has not answered for {PATIENCE_SECONDS:g} s: {then}"
        timer = Timer(PATIENCE_SECONDS, self.note, [words])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _guarded(self, step: int, told: Callable[[], Any]) -> None:
        try:
            told()
        except Exception as error:  # noqa: BLE001 - anything that a library of others may raise
            failed = self._callback is None
            if self.name == "mlflow" and not failed:  # what its callback tries when it goes, and mlflow itself as Python exits
                self._callback._auto_end_run = False
                os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
            self._callback = None
            if not failed:
                self.note(f"the tracker {self.name} failed after step {step} and is no longer used: {type(error).__name__}: {error}")


def _handing_on(name: str) -> Callable[..., None]:
    def handler(self: Tracker, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        self.event(name, args, state, control, **parts)

    return handler


for _name in dir(TrainerCallback):
    if _name.startswith("on_"):
        setattr(Tracker, _name, _handing_on(_name))


def start(names: list[str], output: Path, note: Callable[[str], None], settings: Mapping[str, Any] | None = None) -> list[Tracker]:
    """The trackers that can be started; the others are named."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    started = []
    for name in names:
        try:
            if name == "mlflow":
                _keep_mlflow_in(output)
            kind = type(f"Tracker_{name}", (Tracker,), {})  # transformers warns of two callbacks of one class
            started.append(kind(name, INTEGRATION_TO_CALLBACK[name](), note, output, settings))
        except Exception as error:  # noqa: BLE001 - a package that is there and broken
            note(f"the tracker {name} cannot be started; the run continues without it: {type(error).__name__}: {error}")
    return started


def go_on(tracked: list[Tracker], output: Path) -> None:
    """Have the trackers of a run that is resumed go on in the runs that they began."""
    kept = _kept(output / TRACKED)
    for tracker in tracked:
        if isinstance(name := kept.get(tracker.name), str):
            tracker.go_on(name)


def forget(output: Path) -> None:
    """Remove what an older run left in the folder for its trackers: else TensorBoard draws its curves beside the new ones, and a later run goes on in it."""
    where, path = output.resolve(), output / TRACKED
    name = _kept(path).get("tensorboard")
    folder = (where / name).resolve() if isinstance(name, str) else where.parent
    if folder.is_relative_to(where):
        for events in folder.glob(EVENTS):
            events.unlink(missing_ok=True)
        for empty in (folder, *folder.parents):
            if not empty.is_relative_to(where) or empty == where:
                break
            with suppress(OSError):  # it is gone, or something else lies there
                empty.rmdir()
    path.unlink(missing_ok=True)


def _kept(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


@contextmanager
def _unless_set(variables: Mapping[str, str]) -> Iterator[None]:
    added = {name: value for name, value in variables.items() if not os.environ.get(name)}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _keep_mlflow_in(output: Path) -> None:
    """A store in the run's folder, unless the user has named one."""
    import mlflow  # type: ignore[import-not-found,unused-ignore]

    if not os.environ.get(MLFLOW_URI) and not mlflow.is_tracking_uri_set():
        mlflow.set_tracking_uri(f"sqlite:///{output.resolve() / MLFLOW_STORE}")
