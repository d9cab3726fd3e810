"""What the Hub gets of a run, and what is said where it takes nothing."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects

from ftcli.commands import train
from ftcli.core.training import hub_upload
from ftcli.errors import TrainError
from ftcli.testing import tiny_tokenizer
from runs import Bench

pytestmark = pytest.mark.usefixtures("one_thread")


class Hub:
    """Takes down what would be uploaded."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses, self.uploads = refuses, []

    def create_repo(self, name: str, **_: Any) -> Any:
        self._refuse("create")
        return SimpleNamespace(repo_id=f"me/{name}")

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str, **rest: Any) -> Any:
        files = [str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*") if path.is_file()]
        patterns = {name: rest.get(name) for name in ("allow_patterns", "ignore_patterns")}
        self.uploads.append((repo_id, commit_message, sorted(filter_repo_objects(files, **patterns))))
        done: Future[None] = Future()
        if rest.get("run_as_future"):
            done.set_exception(ConnectionError("gone")) if self.refuses == "checkpoint" else done.set_result(None)
            return done
        self._refuse("model")
        return None

    def _refuse(self, what: str) -> None:
        if self.refuses == what:
            raise ConnectionError("no way there")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("pushing")
    return Bench(folder, tiny_tokenizer(folder / "tokenizer"))


def pushed(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch, hub: Hub, **values: Any) -> Any:
    monkeypatch.setattr(hub_upload, "_api", lambda: hub)
    rows = [{"text": f"word {number} and {number % 7}", "label": "ab"[number % 2]} for number in range(40)]
    (bench.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "dataset__label_column": "label",
        "train__max_steps": 4,
        "train__save_strategy": "steps",
        "train__save_steps": 2,
        "train__verify": False,
    }
    return train.run(bench.context(bench.folder / "rows.jsonl", name, **{**given, "train__push_to_hub": True, **values}))


def test_the_hub_gets_the_model_and_its_card_and_nothing_of_the_data(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    report = pushed(bench, "all", monkeypatch, hub)
    assert report.status == "ok"
    assert (bench.folder / "all" / "prepared").is_dir()
    assert [message for _, message, _ in hub.uploads] == [*(f"Training in progress, step {step}" for step in (2, 4)), "Model save"]
    for repository, _, files in hub.uploads:
        assert repository == "me/all"
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(files)
        assert not any(
            "/" in name or name.endswith((".arrow", ".jsonl", ".pt", ".pth")) or name.startswith("trainer_state") for name in files
        )
    assert {"README.md", "ftcli-model.json"} <= set(hub.uploads[-1][2])


def test_by_strategy_the_end_alone_or_whole_checkpoints_are_uploaded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    pushed(bench, "end", monkeypatch, hub, train__hub_strategy="end")
    assert [message for _, message, _ in hub.uploads] == ["Model save"]
    hub = Hub()
    pushed(bench, "whole", monkeypatch, hub, train__hub_strategy="checkpoint")
    assert ["trainer_state.json" in files for _, message, files in hub.uploads if message.endswith("checkpoint")] == [True, True]


@pytest.mark.parametrize(
    ("refuses", "words"),
    [
        ("model", "but was not uploaded: ConnectionError: no way there"),
        ("checkpoint", "a checkpoint was not uploaded: ConnectionError: gone"),
    ],
)
def test_an_upload_that_fails_is_noted_and_costs_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, refuses: str, words: str
) -> None:
    report = pushed(bench, refuses, monkeypatch, Hub(refuses))
    assert report.status == "ok"
    assert any(words in note for note in report.notes)
    assert (bench.folder / refuses / "model.safetensors").exists()
    assert (bench.folder / refuses / "ftcli-run.json").exists()


def test_a_hub_that_gives_no_repository_ends_the_run_before_its_first_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainError, match="the repository none on the Hub is not accessible: ConnectionError") as refused:
        pushed(bench, "none", monkeypatch, Hub("create"))
    assert "HF_TOKEN" in refused.value.hint
