"""Training begins only when the quick checks found nothing certain against it."""

from __future__ import annotations

import pytest

from ftcli.commands import train
from ftcli.errors import TrainError
from runs import VOCABULARY, Bench
from stores import learnable


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench.make(tmp_path_factory.mktemp("preflight"))


@pytest.fixture(scope="module")
def store(bench):
    rows = learnable(48, 4, VOCABULARY, seed=1)
    return bench.store("store", {"train": rows}, labels=4)


def test_a_check_that_fails_stops_the_run_before_its_first_step(bench, store):
    context = bench.context(store, "stopped", train__max_steps=4, train__warmup_steps=9)
    with pytest.raises(TrainError, match=r"FT053: the warm-up of 9 steps") as caught:
        train.run(context)
    assert "--no-verify" in caught.value.hint
    assert not list((bench.folder / "stopped").glob("**/model.safetensors"))


def test_no_verify_goes_on_and_the_report_says_so(bench, store):
    context = bench.context(store, "forced", train__max_steps=2, train__warmup_steps=9, train__verify=False, train__save_strategy="no")
    report = train.run(context)
    assert report.status == "ok"
    assert any("--no-verify" in note for note in report.notes)
    assert not any(check.id == "FT053" for check in report.checks)


def test_a_sound_run_carries_the_verdicts_in_its_report(bench, store):
    report = train.run(bench.context(store, "sound", train__max_steps=2, train__save_strategy="no"))
    verdicts = {check.id: check.status for check in report.checks}
    assert verdicts["FT202"] == "pass"
    assert verdicts["FT203"] in {"pass", "info"}
    assert not {"fail", "error"} & set(verdicts.values())


def test_rows_on_both_sides_are_said_and_do_not_stop(bench):
    rows = learnable(48, 4, VOCABULARY, seed=2)
    leaking = bench.store("leaking", {"train": rows, "test": rows[:24]}, labels=4)
    report = train.run(bench.context(leaking, "leaked", train__max_steps=2, train__save_strategy="no"))
    assert report.status == "ok"
    assert any(note.startswith("FT205") for note in report.notes)


def test_a_warning_is_noted_and_does_not_stop(bench, store):
    context = bench.context(store, "warned", train__max_steps=4, train__warmup_steps=2, train__save_strategy="no")
    report = train.run(context)
    assert report.status == "ok"
    assert any(note.startswith("FT053") for note in report.notes)
