"""Going on is exact: the same rows, the same random numbers and in the end the same weights, bit by bit; no batch is fetched twice."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from ftcli.commands.train import run
from ftcli.context import Quiet
from ftcli.core.batches.batch import StoreDataset
from ftcli.core.training import arguments
from ftcli.core.training.trainer import FtcliTrainer
from ftcli.errors import TrainError
from ftcli.testing import tiny_model, write_config
from reliability import FULL
from runs import VOCABULARY, Bench, StopAt, weights
from stores import learnable, packed
from timing import PATIENCE

STEPS = {"train__num_train_epochs": 2, "train__per_device_train_batch_size": 4, "train__learning_rate": 3e-3, "train__verify": False}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("bench"))
    made.store("texts", {"train": learnable(30, 3, VOCABULARY, 0)}, labels=3)
    made.store("packs", {"train": packed(30, 24, VOCABULARY, 0)}, max_length=24)
    return made


@pytest.mark.fault
@pytest.mark.reliability(14, "random order, counted")
def test_a_run_that_goes_on_fetches_each_row_that_is_left_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    fetched: list[list[int]] = []
    original = StoreDataset.__getitems__
    monkeypatch.setattr(StoreDataset, "__getitems__", lambda self, rows: (fetched.append(rows), original(self, rows))[1])
    values = {**STEPS, "loader__collator": "dynamic", "model__config_overrides": "attention_dropout=0.1"}
    assert run(bench.context(bench.folder / "texts", "whole", **values)).metrics["steps"] == 16
    order = list(fetched)
    stop = bench.context(bench.folder / "texts", "stopped", **values)
    stop.progress = StopAt(11)
    assert run(stop).metrics["steps"] == 11
    fetched.clear()
    run(bench.context(bench.folder / "texts", "stopped", **values, train__resume_from_checkpoint="auto"))
    assert fetched == order[11:]
    assert sorted(row for rows in order[8:] for row in rows) == list(range(30))
    assert torch.equal(weights(bench.folder / "stopped"), weights(bench.folder / "whole"))
    tally(doubled=0, missed=0)


@pytest.mark.parametrize("collator", ["dynamic", "bucketed"])
def test_a_run_by_tokens_goes_on_with_the_rows_that_are_left_from_any_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, collator: str
) -> None:
    fetched: list[list[int]] = []
    original = StoreDataset.__getitems__
    monkeypatch.setattr(StoreDataset, "__getitems__", lambda self, rows: (fetched.append(rows), original(self, rows))[1])
    values = {**STEPS, "train__max_tokens_per_batch": 96, "loader__collator": collator, "model__config_overrides": "attention_dropout=0.1"}
    steps = run(bench.context(bench.folder / "texts", f"whole {collator}", **values)).metrics["steps"]
    order = list(fetched)
    assert len(order) == steps
    assert len({len(rows) for rows in order}) > 1
    for epoch in (order[: steps // 2], order[steps // 2 :]):
        assert sorted(row for rows in epoch for row in rows) == list(range(30))
    for at in (1, steps // 2, steps // 2 + 2):
        output = f"stopped {collator} {at}"
        stop = bench.context(bench.folder / "texts", output, **values)
        stop.progress = StopAt(at)
        assert run(stop).metrics["steps"] == at
        fetched.clear()
        run(bench.context(bench.folder / "texts", output, **values, train__resume_from_checkpoint="auto"))
        assert fetched == order[at:]
        assert torch.equal(weights(bench.folder / output), weights(bench.folder / f"whole {collator}"))


def test_a_run_does_not_go_on_in_the_precision_that_another_machine_chooses(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {**STEPS, "train__max_steps": 1, "train__bf16": None}
    monkeypatch.setattr(arguments, "bf16_choice", lambda *_, **__: (False, "the CPU has no bfloat16"))
    run(bench.context(bench.folder / "texts", "elsewhere", **values))
    monkeypatch.setattr(arguments, "bf16_choice", lambda *_, **__: (True, "the CPU has bfloat16"))
    again = {**values, "train__max_steps": 2, "train__resume_from_checkpoint": "auto"}
    with pytest.raises(TrainError, match=r"the precision, .* was float32, now bfloat16"):
        run(bench.context(bench.folder / "texts", "elsewhere", **again))
    assert run(bench.context(bench.folder / "texts", "elsewhere", **{**again, "train__bf16": False})).metrics["steps"] == 2


def test_beginning_an_epoch_draws_nothing_from_the_random_numbers_of_dropout(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose workers persist begins its loader once, one that goes on twice: what each beginning drew would be missing in one of them."""
    drawn: list[bool] = []

    def looked(self: FtcliTrainer) -> Any:
        loader = load(self)
        before = torch.get_rng_state()
        iter(loader.base_dataloader)
        drawn.append(not torch.equal(before, torch.get_rng_state()))
        generator, loader.base_dataloader.generator = loader.base_dataloader.generator, None
        iter(loader.base_dataloader)
        drawn.append(not torch.equal(before, torch.get_rng_state()))  # as it is by default
        loader.base_dataloader.generator = generator
        return loader

    load = FtcliTrainer.get_train_dataloader
    monkeypatch.setattr(FtcliTrainer, "get_train_dataloader", looked)
    run(bench.context(bench.folder / "texts", "drawn", **{**STEPS, "train__max_steps": 1}))
    assert drawn == [False, True]


@pytest.mark.fault
@pytest.mark.reliability(14, "Trainer with group_by_length", control=True)
def test_plain_trainer_grouped_by_length_goes_on_with_other_rows(tmp_path: Path, tally: Callable[..., None]) -> None:
    rows = [{"input_ids": [5 + row] * (2 + row % 7), "labels": [5 + row] * (2 + row % 7)} for row in range(60)]

    def trained(output: str, checkpoint: Path | None) -> tuple[torch.Tensor, list[int]]:
        seen: list[int] = []

        class Seeing(Trainer):  # type: ignore[misc]
            def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
                seen.extend(int(row) for row in inputs["input_ids"][:, 0])
                return super().training_step(model, inputs, *rest)

        def padded(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
            width = max(len(row["input_ids"]) for row in batch)
            ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in batch])
            return {"input_ids": ids, "labels": ids.clone()}

        given: dict[str, Any] = {"train_sampling_strategy": "group_by_length", "save_steps": 18, "num_train_epochs": 2, "report_to": []}
        arguments = TrainingArguments(str(tmp_path / output), per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True, **given)
        trainer = Seeing(tiny_model(), arguments, train_dataset=rows, data_collator=padded)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()]), seen

    whole, order = trained("whole", None)
    resumed, rest = trained("resumed", tmp_path / "whole" / "checkpoint-18")
    second = order[60:72] + rest  # of the second epoch, 12 rows before the checkpoint and those after it
    assert len(second) == 60
    doubled = len(second) - len(set(second))
    assert doubled
    assert not torch.equal(whole, resumed)
    tally(f"Trainer with group_by_length: {doubled} of 60 rows doubled and as many missed after going on, other weights")


# -- every cell --------------------------------------------------------------------------------------------------------

SENDER = """
import os, signal
from ftcli import hookimpl

@hookimpl
def on_step(step):
    if step.step == int(os.environ.get("STRUCK_AT", 0)):
        os.kill(os.getpid(), signal.SIGTERM)
"""
ORDERS = {
    "random": ("texts", "dynamic", None),
    "grouped": ("texts", "bucketed", None),
    "packed": ("packs", "packed", None),
    "tokens": ("texts", "bucketed", 48),
}
CELLS = list(itertools.product((1, 4), (0, 2), (False, True), ORDERS, (0.0, 0.1), (1, 2)))
"""Accumulation, workers, persistent, order, dropout, ranks. There is no streaming: the store is mapped, of whatever size."""


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.skipif(not FULL, reason="FTCLI_FAULTS=full: some seconds of CPU for each of the cells")
@pytest.mark.reliability(14, "every cell by the command line")
@pytest.mark.parametrize(("accumulation", "workers", "persistent", "order", "dropout", "ranks"), CELLS)
def test_every_cell_is_bitwise_equal(
    bench: Bench,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    accumulation: int,
    workers: int,
    persistent: bool,
    order: str,
    dropout: float,
    ranks: int,
    tally: Callable[..., None],
) -> None:
    if persistent and not workers:
        pytest.skip("nothing persists without workers")
    store, collator, budget = ORDERS[order]
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "sender.py").write_text(SENDER)
    config = write_config(tmp_path / "qwen3.json", "qwen3")
    words = {
        "--dataset": bench.folder / store,
        "--tokenizer-path": bench.tokenizer,
        "--model-config": config,
        "--config-overrides": f"attention_dropout={dropout}",
        "--num-train-epochs": 3,
        "--per-device-train-batch-size": 2,
        "--gradient-accumulation-steps": accumulation,
        "--dataloader-num-workers": workers,
        "--collator": collator,
        "--logging-steps": 1,
        "--nproc-per-node": ranks,
        "--threads": 1,
        "--plugins-dir": tmp_path / "plugins",
        **({"--max-tokens-per-batch": budget} if budget else {}),
    }
    flags = ["--no-verify", "--no-bf16", "--json", *(["--dataloader-persistent-workers"] if persistent else [])]

    def trained(output: str, *more: str, struck_at: int = 0) -> tuple[int, dict[str, Any]]:
        command = [sys.executable, "-m", "ftcli", "train", *(str(part) for pair in words.items() for part in pair), *flags]
        environment = {**os.environ, "STRUCK_AT": str(struck_at), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--output-dir", str(tmp_path / output), *more], env=environment, capture_output=True, text=True, timeout=PATIENCE * 3
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    if (accumulation, workers, dropout, ranks) != (1, 0, 0.0, 1):
        request.getfixturevalue("nursery")
    code, whole = trained("whole")  # of every order once by a fresh process, with another seed of its hashes
    assert code == 0, whole["error"]
    request.getfixturevalue("nursery")
    steps = whole["metrics"]["steps"]
    for stop in (2, steps // 2 + 1):
        code, _ = trained(f"stopped {stop}", struck_at=stop)
        assert code == 3
        code, _ = trained(f"stopped {stop}", "--resume-from-checkpoint")
        assert code == 0
        assert torch.equal(weights(tmp_path / f"stopped {stop}"), weights(tmp_path / "whole"))
    tally(cells=1)


def test_what_is_shown_last_is_the_last_line_of_the_log(bench: Bench) -> None:
    """ "train: done, 10 steps …, loss 11.95" was the first step's loss, and the evaluation at the end was never shown."""
    shown: list[dict[str, Any]] = []

    class Seen(Quiet):
        def advance(self, amount: float, **figures: Any) -> None:
            shown.append({"amount": amount, **figures})

    store = bench.store("judged", {name: learnable(12, 3, VOCABULARY, seed) for seed, name in enumerate(("train", "validation"))}, labels=3)
    context = bench.context(store, "shown", train__max_steps=5, train__logging_steps=3)
    context.progress = Seen()
    report = run(context)
    assert sum(each["amount"] for each in shown) == 5
    assert shown[-1]["loss"] == report.metrics["final_loss"]
    assert shown[-1]["eval_loss"] == report.metrics["eval_loss"]
