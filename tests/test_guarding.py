"""Bad steps: what counts as one, and what stop, skip and rollback do about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ftcli.core.training.guarding import CHECKS_SHOWN, FEWEST, MOST_ROLLBACKS, MOST_SKIPPED, Guard, Policy, Rollback, most_usual
from ftcli.errors import TrainError
from ftcli.records import Check

NAN, INFINITE = float("nan"), float("inf")


class Course:
    """A guard with what it records and notes."""

    def __init__(self, policy: Policy, **more: Any) -> None:
        self.checks: list[Check] = []
        self.notes: list[str] = []
        given = {"scaled": False, "fatal": True, **more}
        self.guard = Guard(policy, 2.0, record=self.checks.append, note=self.notes.append, **given)
        self.step = 0

    def __call__(self, loss: float, norm: float = 1.0) -> bool:
        self.step += 1
        return self.guard.judge(self.step, loss, norm, lambda: [7, 8])


@pytest.mark.parametrize(("loss", "norm"), [(NAN, NAN), (INFINITE, NAN), (1.0, INFINITE), (1.0, NAN)])
def test_what_is_no_number_is_left_out_and_named_with_its_rows(loss: float, norm: float) -> None:
    course = Course("skip")
    assert not course(1.0)
    assert course(loss, norm)
    assert not course(1.0)
    (check,) = course.checks
    assert (check.id, check.status, check.evidence["step"], check.evidence["rows"]) == ("bad-step", "warn", 2, [7, 8])
    assert "step 2" in course.notes[0]
    assert "rows 7, 8" in course.notes[0]


def test_an_infinite_gradient_under_float16_is_left_to_its_scaler() -> None:
    assert not Course("skip", scaled=True)(1.0, INFINITE)


def test_a_jump_of_the_loss_is_one_only_beside_what_is_usual_and_above_guessing() -> None:
    course = Course("skip")
    assert not course(500.0)  # nothing is usual yet
    course = Course("skip")
    for _ in range(FEWEST):
        assert not course(0.01)
    assert not course(19.0)  # 1,900 times what was usual, but a batch of wrong labels may cost that
    assert course(21.0)
    for _ in range(FEWEST):
        assert not course(5.0)


def test_the_first_steps_are_judged_by_the_largest_loss_before() -> None:
    course = Course("skip")
    assert not course(3.0)
    assert not course(29.0)  # not ten times
    assert not course(3.0)
    assert course(300.0)
    assert course.guard.skipped == [4]


def test_stop_names_a_jump_and_leaves_what_is_no_number_to_the_watch() -> None:
    course = Course("stop")
    assert not course(NAN)
    for _ in range(FEWEST):
        course(1.0)
    with pytest.raises(TrainError, match="step 10: the loss is 200, 100 times its usual value") as stopped:
        course(200.0)
    assert "--on-nonfinite skip" in stopped.value.hint
    assert [check.status for check in course.checks] == ["fail"]


def test_a_run_that_may_go_on_only_notes_a_jump() -> None:
    course = Course("stop", fatal=False)
    for _ in range(FEWEST):
        course(1.0)
    assert not course(200.0)
    assert "step 9" in course.notes[0]


def test_leaving_out_ends_when_it_does_not_help() -> None:
    course = Course("skip")
    for _ in range(3):  # what lies between counts anew
        for _ in range(MOST_SKIPPED):
            assert course(NAN)
        assert not course(1.0)
    for _ in range(MOST_SKIPPED):
        course(NAN)
    with pytest.raises(TrainError, match=f"as in the {MOST_SKIPPED} steps before"):
        course(NAN)


def test_going_back_leaves_out_more_each_time_and_ends() -> None:
    course = Course("rollback")
    course.step = 99
    left_out = []
    for _ in range(MOST_ROLLBACKS):
        with pytest.raises(Rollback) as back:
            course(NAN)
        left_out.append((back.value.before, len(back.value.left_out), back.value.left_out[-1]))
    assert left_out == [(99, 1, 100), (93, 8, 101), (38, 64, 102)]
    with pytest.raises(TrainError, match=f"after {MOST_ROLLBACKS} rollbacks"):
        course(NAN)


def test_checks_are_not_repeated_without_end() -> None:
    course = Course("skip")
    for _ in range(CHECKS_SHOWN + 5):
        course(NAN)
        course(1.0)
    assert (len(course.checks), len(course.notes)) == (CHECKS_SHOWN, CHECKS_SHOWN + 5)


def test_a_device_is_waited_for_only_where_a_policy_needs_it() -> None:
    assert Course("stop").guard.looks(torch.device("cpu"))
    assert not Course("stop").guard.looks(torch.device("cuda"))
    assert Course("skip").guard.looks(torch.device("cuda"))


def test_guessing_may_cost_as_much_as_the_rarest_row() -> None:
    def weighed(*weights: float) -> Any:
        return SimpleNamespace(class_weights=np.array(weights))

    assert most_usual(1.4, 8, SimpleNamespace(), None) == 1.4
    assert most_usual(1.4, 8, weighed(0.5, 250.0), None) == pytest.approx(1.4 * 250 / 8)
    assert most_usual(1.4, 8, weighed(0.5, 2.0), None) == 1.4
    assert most_usual(9.0, 8, SimpleNamespace(), np.array([-40.0, 3.0])) == 200
    assert most_usual(9.0, 8, SimpleNamespace(), np.array([1.0, 3.0])) == 9


def test_after_going_back_nothing_is_usual_yet() -> None:
    course = Course("rollback")
    for _ in range(FEWEST):
        assert not course(0.5)
    with pytest.raises(Rollback):
        course(100.0)
    assert not course(100.0), "the run is where it was, and so may its loss be"
