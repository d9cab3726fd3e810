"""A run's course: every rule speaks once, at the step where a run turns sick, and says nothing about a sound one."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import numpy as np
import pytest

from ftcli.core.training.schedule import Schedule
from ftcli.core.training.trends import Course, clipping
from ftcli.records import Check

CHANCE = math.log(280)


def course(steps: int = 1000, warmup: int = 0, **changes: Any) -> Course:
    given = {
        "chance": CHANCE,
        "unlearned": 5.2,
        "peak": 1e-3,
        "optimizer": "adamw_torch_fused",
        "schedule": Schedule(steps, warmup, "linear"),
    }
    return Course(**{**given, **changes})


def run(watched: Course, losses: Any, *, every: int = 10, norm: Any = 1.0, rate: Any = None, clipped: float | None = 0.0) -> list[Check]:
    """Log one loss after the other; norms and rates by line where they are functions."""
    assert watched.schedule is not None
    found: list[Check] = []
    for line, loss in enumerate(losses):
        step = 1 if line == 0 else line * every
        entry = {"step": step, "loss": float(loss), "grad_norm": norm(line) if callable(norm) else norm}
        entry["learning_rate"] = watched.schedule.share(step) * watched.peak if rate is None else rate(line, step)
        found += watched.log(entry, clipped)
    return found


def falling(lines: int = 100, start: float = CHANCE) -> Any:
    return start * np.exp(-np.arange(lines) / 40) + np.random.default_rng(0).normal(0, 0.1, lines) * 0.3


def test_a_sound_run_brings_nothing() -> None:
    assert run(course(), falling()) == []
    assert run(course(), falling(start=29.0), norm=lambda line: 30 / (1 + line), clipped=0.995) == []  # a head too large, and AdamW clipped
    assert run(course(7004 * 10, 7004), 69.5 - 0.026 * 10 * np.arange(20), norm=204.0) == []  # incident 2's first 200 updates


def test_a_gradient_of_zero_is_certain_and_a_spike_is_said() -> None:
    (check,) = run(course(), falling(), norm=lambda line: 0.0 if line > 4 else 1.0)
    assert (check.id, check.status) == ("gradient-norm", "fail")
    assert check.summary.startswith("step 50: the gradient is zero")
    (check,) = run(course(), falling(), norm=lambda line: 500.0 if line == 20 else 2.0)
    assert (check.id, check.status) == ("gradient-norm", "warn")
    assert "250 times" in check.summary
    assert run(course(), [CHANCE, *[0.0] * 40], norm=lambda line: 0.0 if line > 3 else 1.0) == []  # nothing is left to learn


def test_a_rate_that_is_zero_or_not_as_planned_is_said() -> None:
    found = run(course(), falling(), rate=lambda line, step: 0.0 if line > 9 else 1e-3 * (1 - (step - 1) / 1000))
    assert [(check.id, check.status) for check in found] == [("learning-rate", "warn"), ("learning-rate", "fail")]
    assert "has been 0 since the previous log line" in found[1].summary
    once = run(course(), falling(), rate=lambda line, step: 0.0 if line == 9 else 1e-3 * (1 - (step - 1) / 1000))
    assert [check.status for check in once] == ["warn"]
    (check,) = run(course(), falling(), rate=lambda line, step: 5e-4)
    assert "the schedule says 0.001" in check.summary
    unknown = course(schedule=Schedule(1000, 0, "warmup_stable_decay"))
    assert run(unknown, falling(), rate=lambda line, step: 3e-4) == []


def test_a_loss_that_runs_away_is_said_and_stops_the_run_when_it_is_certain() -> None:
    found = run(course(), [*falling(20), *[30.0 + line for line in range(10)]])
    assert [(check.id, check.status) for check in found] == [("rising-loss", "warn"), ("diverged", "fail")]
    assert run(course(), [*falling(20), 30.0, 40.0, *falling(60)[20:]]) == []  # a bump
    assert run(course(), [40.0] * 8) == []  # it began there


def test_a_loss_that_stands_still_is_said_after_enough_full_rate_steps() -> None:
    (check,) = run(course(), 5.2 + np.random.default_rng(1).normal(0, 0.02, 60))
    assert (check.id, check.status) == ("stalled-loss", "warn")
    assert check.evidence["full_rate_steps"] >= 200
    assert "5.200" in check.summary
    assert run(course(), [5.2] * 20) == []  # too early
    assert run(course(100_000, 7004), [5.6] * 60) == []  # in the warm-up
    assert run(course(), [5.0] * 60) == []  # under what the labels' shares alone give
    assert run(course(unlearned=None), [5.2] * 60) == []  # a pretrained language model


def test_clipping_is_a_fault_of_plain_gradient_descent_only() -> None:
    (check,) = run(course(optimizer="sgd"), falling(), clipped=0.995)
    assert (check.id, check.status) == ("clip-share", "warn")
    assert check.evidence["step"] >= 100
    assert run(course(), falling(), clipped=0.995) == []
    said = clipping(0.995, "adamw_torch_fused")
    assert said is not None
    assert said.status == "info"
    assert clipping(0.995, "sgd") is None
    assert clipping(0.5, "adamw_torch_fused") is None


@pytest.mark.parametrize(
    ("loss", "accuracy", "eval_loss", "status"),
    [(0.3, 0.011, 9.0, "warn"), (0.3, 0.5, 9.0, None), (4.9, 0.011, 5.3, None), (0.3, 0.011, 4.0, None)],
)
def test_rows_learned_by_heart_show_in_the_held_out_rows(loss: float, accuracy: float, eval_loss: float, status: str | None) -> None:
    watched = course(held_out_majority=(0.01, 1000))
    run(watched, [CHANCE, loss])
    found = watched.log({"step": 20, "eval_accuracy": accuracy, "eval_loss": eval_loss}, None)
    assert [check.status for check in found] == ([status] if status else [])
    assert watched.log({"step": 30, "eval_accuracy": accuracy, "eval_loss": eval_loss}, None) == []
    assert watched.log({"step": 30, "train_runtime": 1.0}, None) == []


@pytest.mark.parametrize(
    ("changes", "entry", "steps", "said"),
    [
        ({}, {"eval_loss": 5.19, "eval_accuracy": 0.012}, 60, True),
        ({}, {"eval_loss": 9.0, "eval_accuracy": 0.012}, 60, True),
        ({}, {"eval_loss": 5.19, "eval_accuracy": 0.012}, 20, False),
        ({}, {"eval_loss": 5.0, "eval_accuracy": 0.012}, 60, False),
        ({}, {"eval_loss": 9.0, "eval_accuracy": 0.2}, 60, False),
        ({"weighed": True}, {"eval_loss": 5.19, "eval_accuracy": 0.0}, 60, False),  # of which no macro F1 is known
        ({"unlearned": None}, {"eval_loss": 5.19, "eval_accuracy": 0.012}, 60, False),
        ({"held_out_majority": None}, {"eval_loss": 5.19, "eval_micro_f1": 0.0}, 60, True),
        ({"held_out_majority": None}, {"eval_loss": 4.9, "eval_micro_f1": 0.0}, 60, False),
        ({}, {}, 60, False),
        ({}, {"eval_loss": math.nan, "eval_accuracy": 0.0}, 60, False),
    ],
)
def test_a_run_that_taught_nothing_about_other_rows_is_said_at_its_end(
    changes: dict[str, Any], entry: dict[str, float], steps: int, said: bool
) -> None:
    history = [{"step": 1, "loss": CHANCE}, {"step": steps, "loss": 5.1}, *([{"step": steps, **entry}] if entry else [])]
    check = course(**{"held_out_majority": (0.01, 1000), **changes}).end(history, steps, best=False)
    assert (check is not None) == said
    if check is not None:
        assert (check.id, check.status) == ("nothing-learned", "warn")
        assert f"after {steps} steps" in check.summary


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"eval_loss": 9.3, "eval_accuracy": 0.001, "eval_macro_f1": 1.6e-05}, True),
        ({"eval_loss": 5.62, "eval_accuracy": 0.004, "eval_macro_f1": 0.004}, True),  # says anything
        ({"eval_loss": 9.3, "eval_accuracy": 0.112, "eval_macro_f1": 0.0008}, True),  # says the commonest label
        ({"eval_loss": 9.3, "eval_accuracy": 0.09, "eval_macro_f1": 0.05}, False),  # of rare labels it knows some
        ({"eval_loss": 9.3, "eval_accuracy": 0.2, "eval_macro_f1": 0.005}, False),
        ({"eval_loss": 4.0, "eval_accuracy": 0.09, "eval_macro_f1": 0.005}, False),
        ({"eval_loss": 9.3, "eval_micro_f1": 0.0, "eval_macro_f1": 0.0}, False),  # of any number of labels
    ],
)
def test_a_weighed_run_is_judged_by_its_macro_f1(entry: dict[str, float], said: bool) -> None:
    history = [{"step": 1, "loss": 2.34}, {"step": 60, "loss": 9.34}, {"step": 60, **entry}]
    watched = course(unlearned=CHANCE, held_out_majority=(0.112, 1000), held_out_labels=244, weighed=True)
    check = watched.end(history, 60, best=False)
    assert (None if check is None else (check.id, check.status)) == (("nothing-learned", "warn") if said else None)
    assert check is None or "where guessing gives 0.41%" in check.summary


def test_guessing_by_the_labels_shares_is_hardly_ever_taken_for_learning() -> None:
    draw = np.random.default_rng(0)
    called = 0
    for _ in range(200):
        shares = draw.dirichlet(np.full(20, 0.7))
        true, guess = (draw.choice(20, 500, p=shares) for _ in range(2))
        hits, counted = np.bincount(true[true == guess], minlength=20), np.bincount(true, minlength=20) + np.bincount(guess, minlength=20)
        macro = float((2 * hits[counted > 0] / counted[counted > 0]).mean())
        watched = course(unlearned=3.0, held_out_majority=(0.99, 500), held_out_labels=len(np.unique(true)), weighed=True)
        entry = {"step": 60, "eval_loss": 9.0, "eval_accuracy": 0.1, "eval_macro_f1": macro}
        called += watched.end([{"step": 1, "loss": 3.0}, entry], 60, best=False) is not None
    assert called >= 180


def test_of_numbers_the_held_out_rows_have_a_spread_of_their_own() -> None:
    history = [{"step": 1, "loss": 3.0}, {"step": 60, "loss": 2.1}, {"step": 60, "eval_loss": 2.36, "eval_pearson": 0.0}]
    numbers = {"chance": 9.0, "unlearned": 2.144}
    check = course(**numbers, held_out_unlearned=2.364).end(history, 60, best=False)
    assert check is not None
    assert check.summary.endswith("is 2.360, where ignoring the texts gives 2.364")
    assert course(**numbers, held_out_unlearned=2.5).end(history, 60, best=False) is None


def test_what_a_line_of_the_log_has_said_is_not_said_again_at_the_end() -> None:
    watched = course(held_out_majority=(0.01, 1000))
    assert [check.id for check in run(watched, np.full(60, 5.2))] == ["stalled-loss"]
    entry = {"step": 590, "eval_loss": 5.2, "eval_accuracy": 0.01}
    assert watched.end([entry], 590, best=False) is None


def ended(losses: list[float], held_out: list[dict[str, float]], *, best: bool = False, **changes: Any) -> Check | None:
    """The verdict on a run with a line and an evaluation every 100 steps."""
    history = [{"step": 100 * line, "loss": loss} for line, loss in enumerate(losses, 1)]
    history += [{"step": 100 * line, **entry} for line, entry in enumerate(held_out, 1)]
    return course(**changes).end(history, 100 * len(losses), best=best)


def of(*losses: float, **named: list[float]) -> list[dict[str, float]]:
    return [{"eval_loss": loss, **{f"eval_{name}": values[at] for name, values in named.items()}} for at, loss in enumerate(losses)]


@pytest.mark.parametrize("changes", [{}, {"unlearned": None}, {"weighed": True}])
def test_a_held_out_loss_that_rises_while_the_training_loss_falls_is_overfitting_with_the_best_step(changes: dict[str, Any]) -> None:
    check = ended([5.0, 3.0, 1.0, 0.2], of(5.0, 4.0, 4.5, 9.0), **changes)
    assert check is not None
    assert (check.id, check.status) == ("overfitting", "warn")
    assert check.evidence["best_step"] == 200
    assert "best at step 200 (4.000) and is 9.000 after 400" in check.summary
    assert "--load-best-model-at-end" in check.fix
    assert "--patience" in check.fix


@pytest.mark.parametrize(
    ("losses", "held_out"),
    [
        ([5.0, 3.0, 1.0], of(5.0, 4.0, 4.1)),  # noise
        ([5.0, 3.0, 3.5], of(5.0, 4.0, 4.9)),  # the training loss rises, too
        ([5.0, 3.0, 1.0], of(5.0, 4.0, 4.9, accuracy=[0.1, 0.5, 0.6])),  # more is right than before
        ([1.0, 0.1, 0.001], of(0.02, 0.01, 0.02)),
        ([5.0, 3.0, 2.5, 2.0], of(5.0, 4.0, 4.1, 4.9)),  # the last evaluation alone
        ([5.0, 3.0, 2.9, 2.8], of(5.0, 4.0, 4.7, 4.9)),  # the training loss stands, but for noise
    ],
)
def test_what_is_no_overfitting_is_not_called_so(losses: list[float], held_out: list[dict[str, float]]) -> None:
    assert ended(losses, held_out) is None


@pytest.mark.parametrize(("evaluations", "noise"), [(3, 0.02), (10, 0.02), (40, 0.02), (10, 0.04)])
def test_of_noisy_plateaus_few_are_called_overfitting_and_of_runs_that_overfit_most(evaluations: int, noise: float) -> None:
    random, runs = np.random.default_rng(0), 200
    steps = [int(100 * (place + 1) / evaluations) for place in range(evaluations)]

    def called(train: Any, held_out: Any) -> int:
        said = 0
        for _ in range(runs):
            history = [{"step": step, "loss": train(step) * (1 + 0.05 * random.normal())} for step in range(1, 101)]
            history += [{"step": step, "eval_loss": held_out(step) * (1 + noise * random.normal())} for step in steps]
            said += course(unlearned=None).end(history, 100, best=False) is not None
        return said

    assert called(lambda step: 0.5 * (1 + 0.3 * math.exp(-step / 15)), lambda step: 0.6) <= 0.05 * runs
    if evaluations > 3:
        assert (
            called(lambda step: 0.7 * math.exp(-step / 60), lambda step: 0.6 + 0.2 * max((step - 40) / 60, (40 - step) / 40)) >= 0.97 * runs
        )


def test_of_too_few_held_out_rows_nothing_is_said() -> None:
    assert ended([5.0, 3.0, 1.0, 0.2], of(5.0, 4.0, 4.5, 9.0), few=True) is None
    assert ended([5.5, 5.3, 5.2, 5.1], of(5.3, 5.3, 5.3, 5.3), few=True) is None


def test_a_run_that_ends_with_its_best_model_does_not_overfit() -> None:
    assert ended([5.0, 3.0, 1.0, 0.2], of(5.0, 4.0, 9.0, 4.0), best=True) is None


def test_rows_that_are_learned_without_what_holds_on_others_are_overfitting_and_not_nothing_learned() -> None:
    check = ended([5.0, 3.0, 1.0, 0.2], of(5.3, 6.0, 7.0, 9.0, accuracy=[0.01] * 4), held_out_majority=(0.01, 1000))
    assert check is not None
    assert check.id == "overfitting"
    assert "the training loss is 0.200" in check.summary
    assert "higher learning rate" not in check.fix
    check = ended([5.5, 5.3, 5.2, 5.1], of(5.3, 5.3, 5.3, 5.3))
    assert check is not None
    assert check.id == "nothing-learned"


def test_a_line_of_a_long_log_is_compared_for_what_one_of_a_short_log_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each line the medians of all lines so far were made, and the whole schedule was summed up: 5.7 ms at 40,000 lines."""
    looked_at = 0

    def counted(function: Any) -> Any:
        def call(values: Any, *more: Any) -> Any:
            nonlocal looked_at
            found = [*values] if not isinstance(values, (int, Schedule)) else values
            looked_at += len(found) if isinstance(found, list) else more[0]
            return function(found, *more)

        return call

    monkeypatch.setattr("ftcli.core.training.trends.median", counted(median))
    monkeypatch.setattr(Schedule, "full_rate_steps", counted(Schedule.full_rate_steps))
    lines = 4_000
    run(course(20_000), CHANCE * np.ones(lines), every=5)
    assert looked_at < 2_000 * lines


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_held_out_rows_that_a_model_makes_no_numbers_of_fail(loss: float) -> None:
    """A run of which every evaluation was NaN ended as ok."""
    (check,) = course().log({"step": 40, "eval_loss": loss, "eval_accuracy": 0.02}, None)
    assert (check.id, check.status) == ("held-out-nan", "fail")
    assert course().log({"step": 40, "eval_loss": 2.0}, None) == []
