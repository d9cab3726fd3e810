"""Where a run's time goes: parts inside parts count once, and together they are the wall clock."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from ftcli.core.distributed.signals import Signals
from ftcli.core.models import flops
from ftcli.core.training.callbacks import RunCallback
from ftcli.core.training.clock import clock_of
from ftcli.core.training.hints import standing_out
from ftcli.core.training.meter import PARTS, ROWS, TOKENS, Meter
from ftcli.core.training.timed_trainer import Timed
from ftcli.settings import Settings, update
from ftcli.testing import tiny_model


class Clock:
    def __init__(self) -> None:
        self.now = 10.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    return made


def test_a_part_inside_another_is_taken_off_it_and_all_add_up_to_the_wall_clock(clock: Clock) -> None:
    meter = Meter()
    meter.start()
    clock.now += 1
    with meter.timing("forward"):
        clock.now += 2
        with meter.timing("host_to_device"):
            clock.now += 4
        clock.now += 8
    meter.timed("backward", lambda seconds: setattr(clock, "now", clock.now + seconds))(16)
    meter.stop()
    clock.now += 100
    found = meter.time()
    assert {part: seconds for part, seconds in found.items() if seconds} == {"forward": 10, "host_to_device": 4, "backward": 16, "other": 1}
    assert set(found) == {*PARTS, "other"}
    assert sum(found.values()) == meter.wall == 31


@pytest.mark.parametrize("part", ["evaluation", "checkpoint"])
def test_what_happens_in_an_evaluation_or_a_save_belongs_to_it(part: str, clock: Clock) -> None:
    meter = Meter()
    meter.start()
    with meter.timing(part):
        clock.now += 1
        with meter.timing("forward"):
            clock.now += 2
            with meter.timing("logging"):
                clock.now += 4
    with meter.timing("forward"):
        clock.now += 8
    meter.stop()
    assert (meter.seconds[part], meter.seconds["forward"], meter.seconds["logging"]) == (7, 8, 0)


def test_an_error_leaves_no_part_open(clock: Clock) -> None:
    meter = Meter()
    meter.start()
    meter.enter("optimizer")
    meter.enter("communication")
    clock.now += 3
    meter.stop()
    assert meter.time()["communication"] == 3
    assert sum(meter.time().values()) == meter.wall == 3


def test_the_clock_runs_from_the_beginning_also_unasked(clock: Clock) -> None:
    """verify takes single steps of a run's Trainer, whose training never begins."""
    meter = Meter()
    clock.now += 1
    with meter.timing("forward"):
        clock.now += 2
    assert meter.time()["forward"] == 2
    assert meter.wall == 3


def test_a_second_start_forgets_what_was_before(clock: Clock) -> None:
    meter = Meter()
    meter.start()
    with meter.timing("checkpoint"):
        clock.now += 5
    meter.start()
    clock.now += 1
    meter.stop()
    assert sum(meter.time().values()) == meter.wall == 1


def test_what_a_step_costs_beside_the_model_and_waiting_is_a_share_of_its_own(clock: Clock) -> None:
    meter = Meter()
    meter.start()
    clock.now += 50
    for seconds in (100.0, 1.0):
        meter.count({"tokens": 4, "rows": torch.arange(2), "input_ids": torch.zeros(2, 4)})
        for part in ("data_wait", "forward", "backward", "optimizer", "communication"):
            with meter.timing(part):
                clock.now += 18 * seconds
        for part in ("host_to_device", "logging"):
            with meter.timing(part):
                clock.now += 3 * seconds
        clock.now += 4 * seconds
        meter.step()
        with meter.timing("checkpoint"):
            clock.now += 1000
    clock.now += 500  # the run's end is no step
    meter.stop()
    assert meter.rates()["host_overhead_share"] == pytest.approx(0.1)


def test_flops_are_those_of_trainer_and_the_weights_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Timed.__new__(Timed)
    trainer.model = tiny_model()
    batches = [{"input_ids": torch.zeros(shape)} for shape in ((2, 8), (3, 5), (1, 64))]
    expected = [Trainer.floating_point_ops(trainer, batch) for batch in batches]
    counted: list[int] = []
    plain = trainer.model.num_parameters
    monkeypatch.setattr(trainer.model, "num_parameters", lambda **named: (counted.append(1), plain(**named))[1])
    assert [trainer.floating_point_ops(batch) for batch in batches] == expected
    assert min(expected) > 0
    assert len(counted) == 1


def test_the_first_step_is_left_out_of_what_stands_out(clock: Clock) -> None:
    meter = Meter()
    meter.start()
    for seconds in (100.0, 1.0, 1.0):
        meter.count({"tokens": 4, "rows": torch.arange(2), "input_ids": torch.zeros(2, 4)})
        with meter.timing("data_wait"):
            clock.now += seconds
        clock.now += 3
        meter.step()
    found, steps = meter.since_first_step()
    assert steps == 2
    assert {part: seconds for part, seconds in found.items() if seconds} == {"data_wait": 2, "other": 6}


class Behind:
    """The clock of a device that works behind the host: at a mark it has `asked` seconds of work before it, and has done `done` of them."""

    def __init__(self) -> None:
        self.asked = self.done = 0.0
        self.waits = 0

    def mark(self) -> float:
        return self.asked

    def passed(self, mark: float) -> bool:
        return mark <= self.done

    def wait(self, mark: float) -> None:
        self.waits += mark > self.done
        self.done = max(self.done, mark)

    def seconds(self, start: float, end: float) -> float:
        assert end <= self.done, "not known yet"
        return end - start


def test_a_device_that_works_behind_the_host_has_its_own_seconds(clock: Clock) -> None:
    """The host asks for 3 s of work a step and waits for none of it, but at the end."""
    device = Behind()
    meter = Meter(device)
    meter.start()
    for _ in range(5):
        meter.count({"tokens": 4, "rows": torch.arange(2), "input_ids": torch.zeros(2, 4)})
        for part, seconds in (("data_wait", 0.0), ("forward", 1.0), ("backward", 2.0)):
            with meter.timing(part):
                device.asked += seconds
        device.done = max(0.0, device.asked - 4)
        meter.step()
    assert device.waits == 0
    clock.now += 15
    assert meter.rates()["real_tokens_per_second"] == pytest.approx(4 / 3)  # 4 steps of 3 s behind the first
    assert device.waits > 0
    found, steps = meter.since_first_step()
    assert (found["forward"], found["backward"], found["data_wait"], steps) == (4, 8, 0, 4)
    meter.stop()
    assert {part: seconds for part, seconds in meter.time().items() if seconds} == {"forward": 5, "backward": 10}
    assert meter.rates()["host_overhead_share"] == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_seconds_of_a_gpu_are_those_of_the_work_and_add_up_to_the_wall() -> None:
    meter = Meter(clock_of(torch.device("cuda")))
    a = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    meter.start()
    with meter.timing("forward"):
        for _ in range(200):
            a = (a @ a).clamp(-1, 1)
    with meter.timing("data_wait"):
        a.sum().item()  # waits for all that; the work is of the part above
    meter.stop()
    time_ = meter.time()
    assert time_["forward"] > 10 * time_["data_wait"]
    assert sum(time_.values()) == pytest.approx(meter.wall, rel=0.02)


# -- hints -----------------------------------------------------------------------------------------------------------------


def settings(**values: object) -> Settings:
    return update(Settings(), {key.replace("__", "."): value for key, value in values.items()})


def test_a_run_that_waits_for_data_is_told_what_to_raise() -> None:
    waits = {"data_wait": 31.0, "forward": 40.0, "backward": 29.0}
    words = "the model waits for data 31% of the time: raise --dataloader-num-workers (now 0)"
    assert standing_out(waits, 0.1, 100, Settings()) == {"data_wait": words}
    assert "--dataloader-prefetch-factor (now 2)" in standing_out(waits, 0.1, 100, settings(loader__num_workers=2))["data_wait"]
    assert "slow collator" in standing_out(waits, 0.1, 100, settings(loader__num_workers=2, loader__prefetch_factor=8))["data_wait"]
    assert standing_out(waits, 0.1, 5, Settings()) == {}  # too early to say


@pytest.mark.parametrize(
    ("part", "share", "words"),
    [
        ("evaluation", 0.5, "--eval-steps"),
        ("checkpoint", 0.3, "--save-steps"),
        ("logging", 0.2, "--logging-steps (now 10)"),
        ("communication", 0.4, "slower device"),
    ],
)
def test_every_part_that_stands_out_has_its_advice(part: str, share: float, words: str) -> None:
    assert words in standing_out({part: share, "forward": 1 - share}, None, 50, Settings())[part]
    assert standing_out({part: 0.05, "forward": 0.95}, None, 50, Settings()) == {}


def test_the_only_evaluation_of_a_run_cannot_be_made_less_often() -> None:
    said = standing_out({"evaluation": 0.66, "forward": 0.34}, None, 60, Settings(), once={"evaluation"})["evaluation"]
    assert said == "evaluation takes 66% of the time: evaluate in larger batches (--per-device-eval-batch-size)"


def test_the_only_checkpoint_of_a_run_cannot_be_saved_less_often() -> None:
    shares = {"checkpoint": 0.3, "evaluation": 0.5, "forward": 0.2}
    said = standing_out(shares, None, 60, Settings(), once={"checkpoint"})
    assert (
        said["checkpoint"] == "the only checkpoint takes 30% of the time: leave it out (--save-strategy no), the model is saved without it"
    )
    assert said["evaluation"].startswith("evaluations take 50% of the time: evaluate less often (--eval-steps)")


@pytest.mark.parametrize(
    ("saves", "interrupted", "said"),
    [(1, False, ["the only checkpoint takes 40%"]), (2, False, ["checkpoints take 40%"]), (1, True, [])],
)
def test_how_often_a_part_came_is_known_when_the_run_has_ended(saves: int, interrupted: bool, said: list[str]) -> None:
    """The last checkpoint is saved after the last step was logged."""
    notes: list[str] = []
    meter = SimpleNamespace(since_first_step=lambda: ({"checkpoint": 40.0, "forward": 60.0}, 30), slots=0)
    callback = RunCallback(
        cast("Any", SimpleNamespace(settings=Settings(), note=notes.append)), cast("Any", meter), Signals(), lambda _: None, lambda: None
    )
    callback.interrupted = interrupted
    arguments, state = TrainingArguments(), TrainerState(global_step=30, max_steps=30, is_world_process_zero=False)
    state.log_history.append({"loss": 1.0, "step": 30})
    callback.on_log(arguments, state, TrainerControl())
    assert notes == []
    for _ in range(saves):
        callback.on_save(arguments, state, TrainerControl())
    state.log_history.append({"train_runtime": 9.0, "step": 30})
    callback.on_log(arguments, state, TrainerControl())
    assert [note.partition(" of")[0] for note in notes] == said


def test_padding_stands_out_by_itself() -> None:
    assert "42% of the slots are padding" in standing_out({"forward": 1.0}, 0.42, 50, Settings())["padding"]


# -- MFU -------------------------------------------------------------------------------------------------------------------


def flop_count(trained: str) -> float:
    """FLOPs of a token with only the parameters trained whose name holds a word."""
    model = tiny_model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    found = flops.flops_per_token(model, np.array([10, 30]))
    assert found is not None
    return found


def test_a_frozen_weight_counts_four_and_two_where_backward_does_not_come() -> None:
    layer, head = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64, 32 * 384
    weights, attention = 2 * layer + head, 2 * 32 * (100 + 900) / 40
    assert flop_count("") == pytest.approx(6 * weights + 12 * attention)
    assert flop_count("embed_tokens") == pytest.approx(4 * weights + 2 * head + 12 * attention)  # tied: the head is trained with it
    first = 32 * 32
    assert flop_count("layers.0.self_attn.q_proj") == pytest.approx(4 * weights + 2 * first + 12 * attention)
    assert flop_count("nothing") == pytest.approx(2 * weights + 4 * attention)
    last = flop_count("layers.1.mlp.down_proj")
    assert 2 * weights + 4 * attention < last < 4 * weights + 8 * attention


def test_an_attempt_behind_another_goes_on_by_its_clock(clock: Clock) -> None:
    """After a rollback: 100 steps and 20 more at 100 tokens a second were said to be 626 a second."""
    meter = Meter()
    batch = {"input_ids": torch.ones(1, 100), TOKENS: 100, ROWS: np.arange(1)}
    for _ in range(5):
        meter.count(dict(batch))
        with meter.timing("forward"):
            clock.now += 1
        meter.step()
    meter.enter("forward")
    clock.now += 1
    meter.start()
    clock.now += 2
    for _ in range(2):
        meter.count(dict(batch))
        with meter.timing("forward"):
            clock.now += 1
        meter.step()
    meter.stop()
    assert meter.wall == 10
    assert sum(meter.time().values()) == pytest.approx(10)
    assert meter.rates()["real_tokens_per_second"] == pytest.approx(600 / 9)
