"""Trackers: what they get of a run, and that none of them can end it."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from ftcli.commands.train import run
from ftcli.core.training import trackers
from ftcli.core.training.trackers import Tracker, start
from runs import VOCABULARY, Bench
from stores import learnable
from timing import until

STEPS = {"train__max_steps": 4, "train__logging_steps": 2, "train__save_strategy": "no", "train__verify": False}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def store(bench: Bench) -> Path:
    return bench.store("data", {"train": learnable(40, 3, VOCABULARY, 0), "test": learnable(9, 3, VOCABULARY, 1)}, labels=3)


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Stands in for a tracker; fails in the event that `fails` names."""

    made: list[Recorder] = []  # noqa: RUF012
    fails = ""

    def __init__(self) -> None:
        if self.fails == "__init__":
            raise ConnectionError("no route to https://me:hunter2secret@host/api")
        self.events: list[str] = []
        self.logs: list[dict[str, Any]] = []
        self.made.append(self)

    def _see(self, event: str) -> None:
        self.events.append(event)
        if event == self.fails:
            raise OSError(28, "No space left on device")

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._see("on_train_begin")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        self.logs.append(logs)
        self._see("on_log")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_training_stop = False
        return SimpleNamespace(should_training_stop=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._see("on_train_end")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    """wandb, as far as this test goes."""
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    plain = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: object() if name == "wandb" else plain(name, *more))
    kind = type("Wandb", (Recorder,), {"made": []})
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "wandb", kind)
    return kind


def test_a_tracker_gets_every_line_of_the_log_and_the_reports_figures_and_is_ended_after_them(
    bench: Bench, store: Path, recorder: type[Recorder]
) -> None:
    report = run(bench.context(store, "tracked", **STEPS, tracking__report_to=["wandb"]))
    (made,) = recorder.made
    assert report.status == "ok"
    assert report.metrics["steps"] == 4, "what a tracker answers changes nothing"
    assert made.events[0] == "on_train_begin"
    assert made.events[-1] == "on_train_end"
    assert made.events.count("on_train_end") == 1
    lines = [line for line in made.logs if "learning_rate" in line]
    assert [line["loss"] for line in lines] == [entry["loss"] for entry in report.details["log"] if "loss" in entry]
    assert any("train_samples_per_second" in line for line in made.logs)
    assert any("eval_loss" in line for line in made.logs)
    final = made.logs[-1]
    assert final["real_tokens_per_second"] == report.metrics["real_tokens_per_second"]
    assert "mfu" not in final, "unknown is nothing to plot"


@pytest.mark.parametrize("event", ["__init__", "on_train_begin", "on_log", "on_train_end"])
def test_a_tracker_that_fails_is_named_once_and_the_run_goes_on(
    bench: Bench, store: Path, recorder: type[Recorder], event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "fails", event)
    report = run(bench.context(store, f"failing {event}", **STEPS, tracking__report_to=["wandb"]))
    assert (report.status, report.metrics["steps"]) == ("ok", 4)
    said = [note for note in report.notes if "tracker wandb" in note]
    assert len(said) == 1
    assert ("no route to" if event == "__init__" else "No space left on device") in said[0]
    assert "hunter2secret" not in said[0]
    if event == "on_log":
        assert recorder.made[0].events == ["on_train_begin", "on_log"], "no more of it after that"


def test_a_run_that_fails_ends_its_trackers_too(
    bench: Bench, store: Path, recorder: type[Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ftcli.core.batches.tasks import Classify
    from ftcli.errors import TrainError

    plain = Classify.loss
    monkeypatch.setattr(Classify, "loss", lambda *given: plain(*given) * float("nan"))
    with pytest.raises(TrainError):
        run(bench.context(store, "nan", **STEPS, tracking__report_to=["wandb"]))
    assert recorder.made[0].events[-1] == "on_train_end"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError], ids=lambda error: error.__name__)
def test_a_run_that_is_broken_off_ends_its_trackers_before_its_report(
    bench: Bench, store: Path, recorder: type[Recorder], error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they say as Python exits would stand on stdout, behind the report."""
    from ftcli.core.batches.tasks import Classify

    def broken(*_: Any) -> None:
        raise error("in the middle of a step")

    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(Classify, "loss", broken)
    with pytest.raises(error, match="in the middle of a step"):
        run(bench.context(store, f"broken {error.__name__}", **STEPS, tracking__report_to=["wandb"]))
    assert recorder.made[0].events[-1] == "on_train_end"
    assert module.ended == [1]


def test_tensorboard_writes_under_the_runs_folder_and_nothing_secret(bench: Bench, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("HF_TOKEN", "hf_canarycanarycanary")
    report = run(bench.context(store, "board", **STEPS, tracking__report_to=["tensorboard"]))
    (folder,) = (bench.folder / "board" / "runs").iterdir()
    found = EventAccumulator(str(folder))
    found.Reload()
    tags = set(found.Tags()["scalars"])
    assert {"train/loss", "train/learning_rate", "eval/loss", "train/train_samples_per_second", "train/real_tokens_per_second"} <= tags
    losses = [event.value for event in found.Scalars("train/loss")]
    assert losses == pytest.approx([entry["loss"] for entry in report.details["log"] if "loss" in entry])
    files = list(folder.iterdir())
    assert len(files) == 1, "one run is one file"
    assert b"hf_canarycanarycanary" not in files[0].read_bytes()


@pytest.mark.parametrize(("variable", "expected"), [("", "sqlite:///{}/mlflow.db"), ("http://tracker:5000", None)])
def test_mlflow_keeps_its_store_in_the_runs_folder_unless_another_is_named(
    variable: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uris: list[str] = []
    module = ModuleType("mlflow")
    module.is_tracking_uri_set = lambda: bool(uris)  # type: ignore[attr-defined]
    module.set_tracking_uri = uris.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "mlflow", TrainerCallback)
    monkeypatch.setenv(trackers.MLFLOW_URI, variable)
    started = start(["mlflow"], tmp_path, lambda _: None)
    assert [tracker.name for tracker in started] == ["mlflow"]
    assert uris == ([] if expected is None else [expected.format(tmp_path)])


class Wandb(ModuleType):
    """The module, as far as ftcli speaks to it itself."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.run = SimpleNamespace(id="abc", config=SimpleNamespace(update=self.update))
        self.told: dict[str, Any] = {}
        self.ended: list[int] = []

    def update(self, told: dict[str, Any], *, allow_val_change: bool) -> None:
        assert allow_val_change
        self.told |= told

    def finish(self, exit_code: int) -> None:
        print("wandb: run summary")
        self.ended.append(exit_code)


def test_wandb_is_told_ftclis_settings_and_ended_before_the_report_is_written(
    bench: Bench, store: Path, recorder: type[Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("HF_TOKEN", "hf_canarycanarycanary")
    run(bench.context(store, "ended", **STEPS, tracking__report_to=["wandb"], tracking__run_name="hf_canarycanarycanary"))
    assert module.ended == [0]
    assert module.told["tracking.report_to"] == ["wandb"]
    assert module.told["train.max_steps"] == 4
    assert module.told["dataset.fingerprint"]
    assert "canary" not in str(module.told)


def test_a_tracker_that_does_not_answer_is_told_while_it_is_waited_for_and_mlflow_is_given_less_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trackers, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    said: list[str] = []
    seen: list[str | None] = []

    class Slow(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            until(lambda: said)
            seen.extend(os.environ.get(f"MLFLOW_HTTP_REQUEST_{name}") for name in ("MAX_RETRIES", "TIMEOUT"))
            raise ConnectionError("refused")

    tracker = Tracker("mlflow", Slow(), said.append)
    tracker.event("on_train_begin", None, SimpleNamespace(global_step=0), None)  # type: ignore[arg-type]
    assert said[0].startswith("the tracker mlflow has not answered for 0.1 s: the run starts when it answers or gives up")
    assert "is no longer used: ConnectionError: refused" in said[1]
    assert seen == ["4", "77"], "what the user has set counts"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0", "mlflow asks once more as Python exits"


def test_a_tracker_whose_server_is_lost_during_the_run_delays_its_end_briefly_and_is_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlflow logs beside the run, and at its end the command stood still without a word for 8 minutes."""
    monkeypatch.setattr(trackers, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "")
    said: list[str] = []
    seen: list[str | None] = []

    class Lost(TrainerCallback):  # type: ignore[misc]
        def on_log(self, *_: Any, **__: Any) -> None:
            seen.append(os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES"))

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.on_log()
            until(lambda: said)

    tracker = Tracker("mlflow", Lost(), said.append)
    for event in ("on_train_begin", "on_log"):
        tracker.event(event, None, SimpleNamespace(global_step=0), None)  # type: ignore[arg-type]
    tracker.finish({"steps": 1})
    assert seen == ["4", "4", "4"]
    assert said == ["the tracker mlflow has not answered for 0.1 s: the command ends when it answers or gives up"]


def test_a_tracker_that_answers_is_not_spoken_of() -> None:
    said: list[str] = []
    Tracker("trackio", TrainerCallback(), said.append).event("on_train_begin", None, SimpleNamespace(global_step=0), None)  # type: ignore[arg-type]
    assert said == []


def test_wandb_is_ended_with_an_error_where_its_run_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    tracker = Tracker("wandb", TrainerCallback(), lambda _: None)
    tracker.event("on_step_end", None, SimpleNamespace(global_step=0), None)  # type: ignore[arg-type]
    tracker.finish({}, 1)
    assert module.ended == [1]


class Begun(Recorder):
    """Stands in for transformers' callback; what it finds in the environment as it begins is kept."""

    seen: list[dict[str, str | None]] = []  # noqa: RUF012

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen.append({name: os.environ.get(name) for name in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_DIR")})


@pytest.mark.parametrize("own", [None, "mine"])
def test_a_resumed_run_goes_on_in_the_tracked_run_and_one_that_begins_anew_does_not(
    bench: Bench, store: Path, recorder: type[Recorder], own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Wandb())
    kind = type("Begun", (Begun,), {"seen": []})
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "wandb", kind)
    name = f"resumed {own}"
    given = {**STEPS, "train__save_strategy": "steps", "train__save_steps": 2, "tracking__report_to": ["wandb"]}
    run(bench.context(store, name, **given))
    if own is not None:
        monkeypatch.setenv("WANDB_RUN_ID", own)
    run(bench.context(store, name, **{**given, "train__max_steps": 6}, train__resume_from_checkpoint="auto"))
    run(bench.context(store, name, **given, runtime__overwrite=True))
    folder = str(bench.folder / name)
    assert kind.seen == [
        {"WANDB_RUN_ID": None, "WANDB_RESUME": None, "WANDB_DIR": folder},
        {"WANDB_RUN_ID": own or "abc", "WANDB_RESUME": "allow", "WANDB_DIR": folder},
        {"WANDB_RUN_ID": own, "WANDB_RESUME": None, "WANDB_DIR": folder},
    ]
    assert "WANDB_DIR" not in os.environ


def test_tensorboard_goes_on_in_the_folder_that_the_run_began(bench: Bench, store: Path) -> None:
    given = {**STEPS, "train__save_strategy": "steps", "train__save_steps": 2, "tracking__report_to": ["tensorboard"]}
    run(bench.context(store, "board again", **given))
    (before,) = (bench.folder / "board again" / "runs").iterdir()
    run(bench.context(store, "board again", **{**given, "train__max_steps": 6}, train__resume_from_checkpoint="auto"))
    assert list((bench.folder / "board again" / "runs").iterdir()) == [before]
    assert len(list(before.iterdir())) == 2


def test_a_run_that_overwrites_another_leaves_none_of_its_curves(bench: Bench, store: Path) -> None:
    board = bench.folder / "board over"
    given = {**STEPS, "train__save_strategy": "steps", "train__save_steps": 2, "tracking__report_to": ["tensorboard"]}
    run(bench.context(store, board.name, **given))
    mine = board / "runs" / "mine.txt"
    mine.write_text("mine")
    (before,) = board.glob("runs/*/events*")
    run(bench.context(store, board.name, **given, runtime__overwrite=True))
    assert not before.exists()
    assert len(list(board.glob("runs/*/events*"))) == 1
    assert mine.exists()
    run(bench.context(store, board.name, **{**given, "tracking__report_to": []}, runtime__overwrite=True))
    assert [path.name for path in (board / "runs").iterdir()] == ["mine.txt"]
    assert not (board / trackers.TRACKED).exists()


@pytest.mark.parametrize("name", ["../elsewhere", ".", "runs/gone", 3])
def test_only_event_files_in_the_runs_own_folder_are_forgotten(name: object, tmp_path: Path) -> None:
    for folder in ("elsewhere", "run/runs/other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "events.out.tfevents.1").touch()
    (tmp_path / "run" / trackers.TRACKED).write_text(json.dumps({"tensorboard": name}))
    trackers.forget(tmp_path / "run")
    assert len(list(tmp_path.rglob("events*"))) == 2
    assert not (tmp_path / "run" / trackers.TRACKED).exists()


def test_mlflow_gets_the_settings_in_parts_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(variable, "1")
    told: list[dict[str, str]] = []
    seen: list[tuple[str | None, str | None]] = []

    class Begins(TrainerCallback):  # type: ignore[misc]
        _async_log = True

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            seen.append((os.environ.get("MLFLOW_RUN_ID"), os.environ.get("MLFLOW_MAX_LOG_PARAMS")))

    module = ModuleType("mlflow")
    module.active_run = lambda: SimpleNamespace(info=SimpleNamespace(run_id="abc"))  # type: ignore[attr-defined]
    module.log_params = told.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    settings = {f"section.{number}": number for number in range(250)}
    state = SimpleNamespace(global_step=0)
    for again in (False, True):
        tracker = Tracker("mlflow", Begins(), pytest.fail, tmp_path, settings)
        if again:
            trackers.go_on([tracker], tmp_path)
        tracker.event("on_train_begin", SimpleNamespace(), state, SimpleNamespace())  # type: ignore[arg-type]
        assert not tracker._callback._async_log, "beside the run it would not say what failed"
    assert [len(part) for part in told] == [100, 100, 50], "it takes 100 at a time, and of one that goes on none can change"
    assert seen == [(None, None), ("abc", "0")]
    assert "MLFLOW_RUN_ID" not in os.environ


def test_two_trackers_are_two_classes(tmp_path: Path, recorder: type[Recorder]) -> None:
    kinds = {type(tracker) for tracker in start(["wandb", "tensorboard"], tmp_path, lambda _: None)}
    assert len(kinds) == 2, "transformers warns of two callbacks of one class"


def test_every_event_of_transformers_is_handed_on() -> None:
    events = [name for name in dir(TrainerCallback) if name.startswith("on_")]
    assert len(events) > 10
    for name in events:
        seen: list[str] = []
        callback = SimpleNamespace(**{name: lambda *_, **__: seen.append("seen")})  # noqa: B023 - called in this round
        tracker = Tracker("x", callback, seen.append)
        getattr(tracker, name)(None, SimpleNamespace(global_step=0), None)
        assert seen == ([] if name == "on_train_end" else ["seen"]), name
