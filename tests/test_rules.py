"""Choosing and running checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcli.context import Context
from ftcli.contracts import CheckKind
from ftcli.core.verify.probe import Missing, Probe
from ftcli.core.verify.rules import QUICK_STAGES, _sound, chosen, run_checks, worst
from ftcli.core.verify.verdict import failed, noted, passed, warned
from ftcli.errors import DataError, PluginError, StoreError, UsageError
from ftcli.pluginmanager import Plugins
from ftcli.records import MANIFEST_NAME, STAGES, Check
from ftcli.registry import Registry

PROBE: Any = None


def _registry(*kinds: CheckKind, plugin: str = "mine") -> Registry[CheckKind]:
    registry: Registry[CheckKind] = Registry("check")
    for kind in kinds:
        registry.registrar(plugin)(kind.id, kind)
    return registry


def _kind(name: str, stage: str = "env", run: Callable[[Any], Check] = lambda probe: passed("fine")) -> CheckKind:
    return CheckKind(name, stage, f"Title of {name}", run)


def _raising(error: Exception) -> Callable[[Any], Check]:
    def run(probe: Any) -> Check:
        raise error

    return run


def _run(*kinds: CheckKind) -> list[Check]:
    return list(run_checks(PROBE, kinds, _registry(*kinds).owner, lambda check: None))


def _ids(
    stages: Sequence[str] = (), level: str = "full", select: Sequence[str] = (), ignore: Sequence[str] = (), registry: Any = None
) -> list[str]:
    some = _registry(_kind("B2", "steps"), _kind("A1", "model"), _kind("A2", "model"), _kind("C1", "env"), _kind("B1", "data"))
    return [kind.id for kind in chosen(registry or some, stages, level, select, ignore)]


# -- choosing ------------------------------------------------------------------------------------------------------------------------------


def test_checks_run_in_stage_order_then_by_id() -> None:
    assert _ids() == ["C1", "B1", "A1", "A2", "B2"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stages": ("model",)}, ["A1", "A2"]),
        ({"stages": ("steps", "env")}, ["C1", "B2"]),
        ({"level": "quick"}, ["C1", "B1"]),
        ({"level": "quick", "stages": ("data", "model")}, ["B1"]),
        ({"select": ("A",)}, ["A1", "A2"]),
        ({"select": ("A2", "B")}, ["B1", "A2", "B2"]),
        ({"ignore": ("A",)}, ["C1", "B1", "B2"]),
        ({"select": ("A",), "ignore": ("A2",)}, ["A1"]),
        ({"select": ("B",), "stages": ("data",)}, ["B1"]),
    ],
)
def test_stages_level_select_and_ignore_narrow_the_choice(options: dict[str, Any], expected: list[str]) -> None:
    assert _ids(**options) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": "slow"}, "level 'slow'"),
        ({"stages": ("modle",)}, "stage 'modle'"),
        ({"select": ("X",)}, "'X'"),
        ({"ignore": ("A3",)}, "'A3'"),
        ({"level": "quick", "stages": ("model",)}, "no check is left"),
        ({"ignore": ("A", "B", "C")}, "no check is left"),
    ],
)
def test_a_choice_that_names_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        _ids(**options)
    assert words in caught.value.message
    assert caught.value.hint


def test_a_check_for_no_stage_or_under_another_name_is_refused_and_the_plugin_named() -> None:
    with pytest.raises(PluginError, match=r"plugin 'mine'.*stage 'modle'"):
        _ids(registry=_registry(_kind("A1", "modle")))
    registry: Registry[CheckKind] = Registry("check")
    registry.registrar("mine")("other", _kind("A1"))
    with pytest.raises(PluginError, match="'other' with the id 'A1'"):
        _ids(registry=registry)


def test_the_quick_stages_are_the_first_ones() -> None:
    assert STAGES[: len(QUICK_STAGES)] == QUICK_STAGES


# -- running -------------------------------------------------------------------------------------------------------------------------------


def test_a_verdict_gets_id_and_stage_and_is_told_at_once() -> None:
    told: list[str] = []
    kinds = [_kind("A1", "model", lambda probe: warned("so so", "mend it", figure=3)), _kind("A2", "model")]
    checks = run_checks(PROBE, kinds, lambda name: "mine", lambda check: told.append(check.id))
    assert replace(checks[0], seconds=None) == Check("A1", "model", "warn", "so so", {"figure": 3}, "mend it", severity="fail")
    assert told == ["A1", "A2"]


def test_a_verdict_says_how_long_it_took_and_how_bad_it_can_get() -> None:
    (check,) = _run(replace(_kind("A1", run=lambda probe: time.sleep(0.02) or passed("fine")), severity="warn"))  # type: ignore[func-returns-value]
    assert check.seconds is not None
    assert check.seconds >= 0.02
    assert check.severity == "warn"


def _after(name: str, *before: str, run: Callable[[Any], Check] = lambda probe: passed("fine")) -> CheckKind:
    return replace(_kind(name, run=run), after=before)


def test_a_check_runs_behind_those_it_comes_after_and_the_verdicts_keep_their_order() -> None:
    told: list[str] = []
    kinds = [_after("A1", "A3"), _after("A2"), _after("A3", "A4", "not there"), _after("A4")]
    checks = run_checks(PROBE, kinds, lambda name: "mine", lambda check: told.append(check.id))
    assert told == ["A2", "A4", "A3", "A1"]
    assert [check.id for check in checks] == ["A1", "A2", "A3", "A4"]


@pytest.mark.parametrize("answer", [failed("bad", "mend it"), None])
def test_a_check_that_comes_after_one_that_failed_or_broke_is_skipped_and_says_so(answer: Any) -> None:
    ran: list[str] = []
    checks = _run(_after("A1", run=lambda probe: answer), _after("A2", "A1", run=lambda probe: ran.append("A2") or passed("fine")))  # type: ignore[func-returns-value]
    assert (checks[1].status, ran) == ("skipped", [])
    assert checks[1].summary == "Title of A2: it comes after A1, which did not pass"


@pytest.mark.parametrize("answer", [warned("so so", "mend it"), noted("hm"), passed("fine")])
def test_a_check_that_comes_after_one_that_warned_runs(answer: Check) -> None:
    assert _run(_after("A1", run=lambda probe: answer), _after("A2", "A1"))[1].status == "pass"


def test_a_check_runs_when_the_one_before_it_was_not_chosen() -> None:
    assert _run(_after("A2", "A1"))[0].status == "pass"


def test_checks_that_wait_for_each_other_are_refused_and_their_plugins_named() -> None:
    with pytest.raises(PluginError, match=r"wait for each other: A\d after A\d.*plugins mine"):
        _ids(registry=_registry(_after("A1", "A2"), _after("A2", "A1"), _after("A3")))


def test_a_missing_part_skips_the_check_with_the_reason() -> None:
    (check,) = _run(_kind("A1", run=_raising(Missing("no --dataset"))))
    assert (check.status, check.summary) == ("skipped", "Title of A1: no --dataset")


def test_an_error_for_people_fails_the_check_with_its_hint() -> None:
    (check,) = _run(_kind("A1", run=_raising(DataError("row 3 is empty", "Remove it."))))
    assert (check.status, check.summary, check.fix) == ("fail", "Title of A1: row 3 is empty", "Remove it.")


def test_the_same_unusable_part_fails_one_check_and_the_others_refer_to_it() -> None:
    error = DataError("row 3 is empty", "Remove it.")
    other = DataError("row 3 is empty", "Remove it.")
    checks = _run(_kind("A1", run=_raising(error)), _kind("A2", run=_raising(error)), _kind("A3", run=_raising(other)))
    assert [check.status for check in checks] == ["fail", "skipped", "fail"]
    assert "A1" in checks[1].summary


def test_a_check_that_ends_the_process_is_an_error_and_no_proof() -> None:
    checks = _run(_kind("A1", run=_raising(SystemExit("no licence"))), _kind("A2"))
    assert [check.status for check in checks] == ["error", "pass"]
    assert "broke: SystemExit: no licence" in checks[0].summary


def test_a_broken_check_is_an_error_that_names_the_plugin_and_hides_nothing() -> None:
    checks = _run(_kind("A1", run=_raising(ZeroDivisionError("by\n  zero" + "!" * 1000))), _kind("A2"))
    assert [check.status for check in checks] == ["error", "pass"]
    assert "plugin 'mine' broke: ZeroDivisionError: by zero!" in checks[0].summary
    assert len(checks[0].summary) < 500
    assert checks[0].fix.startswith("If the plugin is yours: a check gets a probe and returns a ftcli.records.Check")
    assert checks[0].fix.endswith("Otherwise report it to its author, and skip it with --ignore A1.")


@pytest.mark.parametrize(
    "answer", [None, "pass", Check("", "", "good", "fine"), passed("fine", where=object()), passed("fine", size=2**70 * 1j)]
)  # type: ignore[arg-type]
def test_an_answer_that_no_report_can_hold_is_an_error(answer: Any) -> None:
    (check,) = _run(_kind("A1", run=lambda probe: answer))
    assert check.status == "error"
    assert "plugin 'mine' broke" in check.summary


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "it returned None, and no ftcli.records.Check"), (Check("", "", "warning", "x"), "'warning' is no status; those are pass, ")],  # type: ignore[arg-type]
)
def test_an_answer_that_is_no_verdict_is_told_as_such(answer: Any, words: str) -> None:
    assert words in _run(_kind("A1", run=lambda probe: answer))[0].summary


def test_a_check_that_needs_a_part_that_there_is_not_is_refused_with_the_nearest() -> None:
    kind = replace(_kind("A1"), needs=("store", "tokeniser"))

    with pytest.raises(PluginError, match="plugin 'mine': check 'A1' needs 'tokeniser'") as caught:
        _ids(registry=_registry(kind))
    assert caught.value.hint.startswith("Did you mean 'tokenizer'? Parts are: tokenizer, ")


def test_an_interrupt_is_no_verdict() -> None:
    def run(probe: Any) -> Check:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(_kind("A1", run=run))


def test_the_worst_verdict_decides() -> None:
    fine, bad = [passed("a"), noted("b")], [warned("c", "d")]
    assert worst([]) == worst(fine) == 0
    assert worst([*fine, *bad]) == 1
    assert worst([*fine, *bad, failed("e", "f")]) == worst([Check("", "", "error", "g")]) == 2


# -- plugins -------------------------------------------------------------------------------------------------------------------------------

PLUGIN = """
import ftcli
from ftcli.contracts import CheckKind
from ftcli.core.verify.verdict import passed

def broken(probe):
    raise RuntimeError("no such thing")

@ftcli.hookimpl
def register_checks(register):
    register("FT001", CheckKind("FT001", "env", "Cores", lambda probe: passed("replaced")), replace=True)
    register("XY001", CheckKind("XY001", "data", "Own", broken))
"""


@pytest.mark.parametrize(
    ("value", "words"), [(object, "evidence 'figure' is a type"), (b"x", "evidence 'figure' is a bytes"), ([{1: object()}], "is a list")]
)
def test_evidence_that_no_report_can_hold_is_named(value: Any, words: str) -> None:
    """Python's own words named neither the evidence nor a line of the plugin."""
    with pytest.raises(TypeError, match=words):
        _sound(Check("", "", "pass", "all is well", {"rows": 3, "figure": value}))


def test_a_plugin_adds_a_check_and_replaces_another(tmp_path: Path) -> None:
    (tmp_path / "house.py").write_text(PLUGIN)
    context = Context.make({}, Plugins(tmp_path, allow=()))
    registry = context.plugins.registry("check")
    checks = {
        check.id: check for check in run_checks(Probe(context), chosen(registry, (), "quick", (), ()), registry.owner, lambda check: None)
    }
    assert checks["FT001"].summary == "replaced"
    assert checks["XY001"].status == "error"
    assert "plugin 'house' broke: RuntimeError: no such thing" in checks["XY001"].summary


def test_two_plugins_with_one_id_clash(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(PLUGIN.replace('register("FT001"', '# register("FT001"'))
    with pytest.raises(PluginError, match=r"'one' and 'two'|'two' and 'one'"):
        Plugins(tmp_path, allow=()).registry("check")


# -- the probe -----------------------------------------------------------------------------------------------------------------------------


def test_a_part_is_built_once_and_an_unusable_one_fails_the_same_way_each_time(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text("damaged")
    probe = Probe(Context.make({"dataset.sources": [str(tmp_path)]}))
    errors = []
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            _ = probe.store
        errors.append(caught.value)
    assert errors[0] is errors[1]
    assert probe.ready("store") is None
    assert probe.ready("model") is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "pretrain"),
        ({"dataset.label_column": "label"}, "classify"),
        ({"train.mode": "pretrain", "dataset.label_column": "label"}, "pretrain"),
    ],
)
def test_without_data_the_settings_decide_the_task(values: dict[str, Any], expected: str) -> None:
    assert Probe(Context.make(values)).task_name == expected
    assert Probe(Context.make({**values, "dataset.sources": ["nowhere"]})).task_name == expected
