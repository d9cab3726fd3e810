"""Health: figures that are none are found at their step, and first losses are explained."""

from __future__ import annotations

import math

import pytest
import torch

from ftcli.core.training.health import Start, Watch, finite, first_loss, look_at, warm_up
from ftcli.core.training.meter import Meter
from ftcli.errors import TrainError

NAN, INF = float("nan"), float("inf")


def _watch(notes: list[str], **changes: bool) -> Watch:
    return Watch(notes.append, **{"stop": True, "clip": 1.0, "scaled": False, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("loss", "norm"), [(NAN, 1.0), (INF, 1.0), (2.0, NAN), (2.0, INF)])
def test_a_step_that_is_not_finite_stops_the_run_and_is_named(loss: float, norm: float) -> None:
    watch = _watch([])
    watch.step(1, torch.tensor(2.0), torch.tensor(1.0))
    with pytest.raises(TrainError, match="step 2"):
        watch.step(2, torch.tensor(loss), torch.tensor(norm))


@pytest.mark.parametrize(("number", "blamed"), [(1, False), (2, True)])
def test_the_learning_rate_is_not_blamed_before_the_first_update(number: int, blamed: bool) -> None:
    watch = _watch([])
    with pytest.raises(TrainError) as stopped:
        watch.step(number, torch.tensor(2.0), torch.tensor(NAN))
    assert ("Lower the learning rate" in stopped.value.hint) == blamed
    assert ("a division at 0" in stopped.value.hint) != blamed


def test_the_first_bad_step_is_said_once_when_the_run_is_to_go_on() -> None:
    notes: list[str] = []
    watch = _watch(notes, stop=False)
    for number, loss in enumerate([1.0, NAN, 1.0, NAN], start=1):
        watch.step(number, torch.tensor(loss), torch.tensor(0.5))
    watch.check()
    assert len(notes) == 1
    assert notes[0].startswith("step 2: the loss is nan")


def test_infinite_norms_are_normal_with_loss_scaling() -> None:
    watch = _watch([], scaled=True)
    watch.step(1, torch.tensor(1.0), torch.tensor(INF))
    with pytest.raises(TrainError):
        watch.step(2, torch.tensor(NAN), torch.tensor(1.0))


def test_the_share_of_clipped_steps_is_counted() -> None:
    watch = _watch([])
    assert watch.clipped_share is None
    for norm in (0.5, 2.0, 3.0, 1.0):
        watch.step(1, torch.tensor(1.0), torch.tensor(norm))
    assert watch.clipped_share == 0.5
    later = _watch([])
    later.take(watch.kept())
    assert later.clipped_share == 0.5
    for norm in (2.0, 0.5, 0.5, 0.5):
        later.step(5, torch.tensor(1.0), torch.tensor(norm))
    assert later.clipped_share == 3 / 8
    assert later.kept() == [8, 3]


def test_a_weight_that_is_no_number_is_found() -> None:
    layer = torch.nn.Linear(3, 3)
    assert finite(layer)
    with torch.no_grad():
        layer.weight[1, 1] = NAN
    assert not finite(layer)


def test_the_first_logits_say_which_loss_they_mean() -> None:
    torch.manual_seed(0)
    small = look_at(torch.randn(300, 280) * 0.01, torch.randint(0, 280, (300,)))
    assert small.uniform_loss == pytest.approx(math.log(280), abs=0.01)
    large = look_at(torch.randn(300, 280) * 2.5, torch.randint(0, 280, (300,)))
    assert large.logit_std == pytest.approx(2.5, abs=0.1)
    assert large.uniform_loss == pytest.approx(8.6, abs=0.2)  # reference/failures.md, 1d
    labels = torch.full((2, 6), -100)
    labels[1, 3] = 4
    chosen = look_at(torch.arange(2 * 6 * 5).reshape(2, 6, 5).float() ** 2, labels)
    assert chosen.logit_std == pytest.approx(float((torch.arange(40, 45).float() ** 2).std()))


@pytest.mark.parametrize(
    ("loss", "start", "fresh", "status", "words"),
    [
        (5.7, Start(0.1, 5.64), True, "pass", "uniform guessing"),
        (67.7, Start(0.1, 5.64), True, "fail", "12.0 times"),  # accumulation steps times the true loss
        (9.0, Start(0.1, 5.64), True, "warn", "1.6 times"),
        (67.7, Start(0.1, 5.64), False, "warn", "12.0 times"),
        (8.6, Start(2.5, 8.6), True, "warn", "standard deviation of 2.50"),
        (6.9, Start(1.5, 6.6), True, "info", "standard deviation of 1.50"),
        (8.6, Start(2.5, 8.6), False, "warn", "standard deviation of 2.50"),
        (3.0, Start(0.1, 5.64), True, "warn", "which random weights cannot do"),
        (3.0, Start(3.0, 9.0), False, "info", "already knows something"),
    ],
)
def test_the_verdict_on_the_first_loss(loss: float, start: Start, fresh: bool, status: str, words: str) -> None:
    check = first_loss(loss, math.log(280), start, fresh=fresh)
    assert (check.status, check.id) == (status, "first-loss")
    assert words in check.summary
    assert bool(check.fix) == (status in {"warn", "fail"} or "deviation" in check.summary)
    assert ("initializer_range" in check.fix) == (fresh and "deviation" in check.summary)


def test_a_trained_language_model_near_chance_has_the_wrong_tokenizer_or_weights() -> None:
    start = Start(1.0, 12.4)
    check = first_loss(9.39, math.log(1000), start, fresh=False, language=True)
    assert check.status == "warn"
    assert "may belong to another model, or the model was hardly trained on such texts" in check.fix
    assert first_loss(6.7, math.log(1000), start, fresh=False, language=True).status == "warn"
    assert first_loss(3.1, math.log(1000), start, fresh=False, language=True).status == "info"


def test_a_warm_up_of_half_the_run_is_a_warning() -> None:
    assert warm_up(9, 20) is None
    half = warm_up(10, 20)
    assert half is not None
    assert half.status == "warn"
    whole = warm_up(20, 20)
    assert whole is not None
    assert "never reaches its peak" in whole.summary


def test_a_meter_leaves_the_first_step_evaluations_and_saves_out_of_its_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    meter = Meter()
    meter.start()

    def step(seconds: float, wait: float) -> None:
        with meter.timing("data_wait"):
            now[0] += wait
        assert meter.count({"tokens": 60, "rows": torch.arange(2), "input_ids": torch.zeros(8, 10)}) == [0, 1]
        meter.count_targets(torch.tensor(10))
        now[0] += seconds
        meter.step()

    step(50.0, 1.0)
    step(1.5, 0.5)
    with meter.timing("evaluation"):
        now[0] += 30
    with meter.timing("checkpoint"):
        now[0] += 20
    step(1.5, 0.5)
    meter.stop()
    now[0] += 1000
    rates = meter.rates()
    assert rates == {
        "real_tokens_per_second": 30,
        "slots_per_second": 40,
        "targets_per_second": 5,
        "padding_share": 0.25,
        "data_wait_share": 0.25,
        "host_overhead_share": 0.75,
    }
    found = {part: seconds for part, seconds in meter.time().items() if seconds}
    assert found == {"other": 53, "data_wait": 2, "evaluation": 30, "checkpoint": 20}
    assert set(Meter().rates().values()) == {None}
