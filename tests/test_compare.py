"""`ftcli benchmark compare`: a regression beyond the noise ends with 1, and what cannot be compared is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftcli import testing
from ftcli.core.benchmark import pace, report_comparison
from ftcli.core.benchmark.pace import Pace, Taken, taken
from ftcli.errors import DataError, UsageError

MACHINE = {"cpu_model": "EPYC", "cores": 2, "memory_bytes": 10, "disk_kind": "ssd", "gpus": [], "platform": "Linux", "python": "3.12"}


def report(
    rates: Mapping[str, Sequence[float]], unit: str = "real tokens/s", command: str = "benchmark batch", **machine: Any
) -> dict[str, Any]:
    rows = [
        {"name": name, "unit": kind, "median": float(np.median(values)), "low": 0, "high": 0, "n": len(values), "samples": list(values)}
        for name, samples in rates.items()
        for kind, values in ((unit, samples), ("seconds", [1 / each for each in samples]))
    ]
    return {
        "schema": "ftcli.report/1",
        "command": command,
        "metrics": {"measurements": rows},
        "machine": {**MACHINE, "load_average": 0.5, **machine},
    }


def around(rate: float, seed: int, noise: float = 0.02, runs: int = 5) -> list[float]:
    found: list[float] = (rate * np.random.default_rng(seed).lognormal(0, noise, runs)).tolist()
    return found


def verdicts(first: Mapping[str, Any], second: Mapping[str, Any], tolerance: float = 0.0) -> dict[str, tuple[str, bool]]:
    rows, _ = report_comparison.compare(first, second, tolerance)
    return {row["name"]: (row["verdict"], row["regression"]) for row in rows}


def test_worse_better_and_equal_figures_are_told_apart() -> None:
    first = report({"a": around(100, 1), "b": around(100, 2), "c": around(100, 3)})
    second = report({"a": around(80, 4), "b": around(130, 5), "c": around(100, 6)})
    assert verdicts(first, second) == {"a": ("slower", True), "b": ("faster", False), "c": ("no difference", False)}
    assert verdicts(first, second, tolerance=0.5)["a"] == ("slower", False)


def test_equal_versions_are_no_regression_19_times_out_of_20() -> None:
    found = [verdicts(report({"a": around(100, seed)}), report({"a": around(100, 10_000 + seed)}))["a"] for seed in range(300)]
    assert sum(regressed for _, regressed in found) <= 15
    assert sum(verdict == "no difference" for verdict, _ in found) >= 285


def beside(document: Mapping[str, Any], others: float | None) -> dict[str, Any]:
    """The report, made while other processes took a share of the CPUs."""
    return {**document, "details": {"pace": {"others": others}}}


@pytest.mark.parametrize(
    ("rate", "others", "verdict"),
    [
        (80, (0.0, 0.0), "slower"),
        (80, (None, None), "slower"),
        (80, (0.0, 0.5), "not decided: the machine changed"),
        (80, (0.5, 0.0), "slower"),  # the first would have been faster alone
        (80, (0.0, 0.05), "slower"),  # more than those can explain
        (30, (0.0, 0.5), "slower"),
        (130, (0.5, 0.0), "not decided: the machine changed"),
        (130, (0.0, 0.5), "faster"),
        (300, (0.5, 0.0), "faster"),
        (100, (0.5, 0.5), "no difference"),
    ],
)
def test_a_difference_that_other_processes_explain_is_not_decided(rate: float, others: tuple[float, float], verdict: str) -> None:
    first, second = beside(report({"a": around(100, 1)}), others[0]), beside(report({"a": around(rate, 4)}), others[1])
    assert verdicts(first, second) == {"a": (verdict, verdict == "slower")}
    assert report_comparison.crowded(first, second).count("50.0") == others.count(0.5)


def test_seconds_count_where_there_is_no_rate_and_more_of_them_are_slower() -> None:
    rows = [{"name": "whole", "unit": "seconds", "median": value, "samples": around(value, seed)} for seed, value in ((1, 2.0), (2, 3.0))]
    first, second = ({**report({}), "metrics": {"measurements": [row]}} for row in rows)
    assert verdicts(first, second) == {"whole": ("slower", True)}


def test_too_few_runs_are_no_regression() -> None:
    (row,), _ = report_comparison.compare(report({"a": [100.0]}), report({"a": [50.0]}), 0.0)
    assert row["verdict"].startswith("not decided")
    assert not row["regression"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (report({"a": [1.0] * 5}, command="benchmark train"), "measure different things"),
        (
            {**report({}), "metrics": {"measurements": [{"name": "a", "unit": "MB/s", "median": 1.0, "samples": [1.0]}]}},
            "in different units",
        ),
        (report({"b": [1.0] * 5}), "no variant in common"),
    ],
)
def test_what_cannot_be_compared_is_refused(second: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        report_comparison.compare(report({"a": [1.0] * 5}), second, 0.0)


def test_a_variant_of_one_report_is_named(tmp_path: Path) -> None:
    _, alone = report_comparison.compare(report({"a": [1.0] * 5, "b": [1.0] * 5}), report({"a": [1.0] * 5}), 0.0)
    assert alone == ["b, real tokens/s", "b, seconds"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema": "ftcli.report/1", "metrics": {}}', None])
def test_a_file_that_is_no_report_is_refused(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=r"a\.json"):
        report_comparison.read_report(path)


@pytest.mark.parametrize(
    "damage",
    [
        {"metrics": []},
        {"metrics": [1]},
        {"metrics": {"measurements": [1]}},
        {"metrics": {"measurements": {"a": 1}}},
        {"metrics": {"measurements": [{"name": "a"}]}},
        {"metrics": {"measurements": [{"name": "a", "unit": "s", "median": "fast"}]}},
        {"metrics": {"measurements": [{"name": "a", "unit": "s", "median": 1, "samples": ["x"]}]}},
        {"command": None},
        {"command": ""},
        {"machine": "mine"},
        {"machine": {"load_average": "high"}},
        {"machine": {"versions": "new"}},
        {"settings": {"train.seed": 1}},
        {"details": {"pace": {"cpu_seconds": ["x"]}}},
        {"details": {"pace": {"others": "many"}}},
        {"details": [1]},
    ],
    ids=str,
)
def test_a_damaged_report_is_refused_by_its_name(damage: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**report({"x": [1.0, 2.0]}), **damage}))
    with pytest.raises(DataError, match=r"a\.json is not a report of ftcli benchmark"):
        report_comparison.read_report(tmp_path / "a.json")


def test_the_command_ends_with_1_on_a_regression_and_shows_other_machines(tmp_path: Path) -> None:
    files = {
        "a": report({"x": around(100, 1)}),
        "b": report({"x": around(50, 2)}, cpu_model="Xeon"),
    }
    for name, document in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    worse = testing.run("benchmark", "compare", "a.json", "b.json", "--json", cwd=tmp_path)
    assert worse.exit_code == 1
    assert worse.report["metrics"]["regressions"] == 1
    assert worse.report["metrics"]["machines_differ"] == ["cpu_model"]
    assert any("EPYC and Xeon" in note for note in worse.report["notes"])
    assert worse.report["error"] is None
    for name, torch in (("a", "2.12.0"), ("b", "2.13.0")):
        files[name]["machine"]["versions"] = {"torch": torch, "numpy": "2.4.0"}
        (tmp_path / f"{name}.json").write_text(json.dumps(files[name]))
    assert report_comparison.cards_differ(files["a"], files["b"])[1:] == [["torch", "2.12.0", "2.13.0"]]
    better = testing.run("benchmark", "compare", "b.json", "a.json", cwd=tmp_path)
    assert better.exit_code == 0, better.stderr
    assert "0 of 1 figures are worse" in better.stdout
    assert "faster" in better.stdout
    assert testing.run("benchmark", "compare", "a.json", cwd=tmp_path).exit_code == 2


def made_with(document: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    found = {
        "benchmark.rows": 100,
        "train.per_device_train_batch_size": 8,
        "runtime.report_dir": "a",
        "benchmark.repeats": 5,
        "train.optim": "x",
    }
    found |= {key.replace("__", "."): value for key, value in values.items()}
    return {**document, "settings": {key: {"value": value, "origin": "default"} for key, value in found.items()}}


def test_other_work_is_no_regression_and_the_settings_that_make_it_are_named(tmp_path: Path) -> None:
    first, worse = made_with(report({"x": around(100, 1)})), report({"x": around(50, 2)})
    same = made_with(worse, runtime__report_dir="b", benchmark__repeats=9, model__lora_r=8)
    other = made_with(worse, benchmark__rows=50, train__per_device_train_batch_size=16)
    for second, keys in ((same, []), (other, ["benchmark.rows", "train.per_device_train_batch_size"])):
        assert [key for key, *_ in report_comparison.work_differs(first, second)] == keys
    tokenize = [{**each, "command": "benchmark tokenize"} for each in (first, made_with(worse, train__optim="y"))]
    assert report_comparison.work_differs(*tokenize) == []  # how a step is computed says nothing of encoding
    assert [key for key, *_ in report_comparison.work_differs(*({**each, "command": "benchmark train"} for each in tokenize))] == [
        "train.optim"
    ]
    assert verdicts(first, same) == {"x": ("slower", True)}
    assert verdicts(first, other) == {"x": ("not decided: the work differs: benchmark.rows, train.per_device_train_batch_size", False)}
    for name, document in (("a", first), ("b", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    done = testing.run("benchmark", "compare", "a.json", "b.json", "--json", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert done.report["metrics"]["settings_differ"] == ["benchmark.rows", "train.per_device_train_batch_size"]
    assert any("benchmark.rows: 100 and 50" in note for note in done.report["notes"])
    assert "The work differs" in Path(tmp_path / done.report["paths"]["html"]).read_text()


def test_other_data_under_one_path_are_no_regression() -> None:
    first, worse = made_with(report({"x": around(100, 1)})), made_with(report({"x": around(50, 2)}))
    marked = [{**each, "details": {"data": {"data": mark}}} for each, mark in ((first, "a"), (worse, "b"), (worse, "a"))]
    assert verdicts(first, marked[1]) == {"x": ("slower", True)}  # a report of an earlier version does not say
    assert verdicts(marked[0], marked[2]) == {"x": ("slower", True)}
    assert report_comparison.work_differs(*marked[:2]) == [["data", "a", "b"]]
    assert verdicts(*marked[:2]) == {"x": ("not decided: the work differs: data", False)}


def test_what_others_took_is_what_this_process_and_its_children_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_cpus", lambda: [0, 1])
    looked = Pace(taken=[Taken(10.0, 100.0, 7.0), Taken(11.0, 100.4, 7.4), Taken(12.0, 103.0, 9.0)])
    assert looked.others == pytest.approx(0.25)  # 3 s of busy CPUs, 2 of them ours, of 4
    assert Pace(taken=looked.taken[:1]).others is None
    assert Pace(taken=[Taken(10.0, 100.0, 7.0), Taken(10.1, 100.1, 7.0)]).others is None
    assert Pace(taken=[Taken(10.0, 100.0, 7.0), Taken(12.0, 101.0, 8.5)]).others == 0.0  # the system's clock ticks behind ours


def test_cpu_time_is_read_from_the_system() -> None:
    before = taken()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    after = taken()
    assert after.clock > before.clock
    assert after.busy >= before.busy > 0
    assert after.own > before.own > 0


@pytest.mark.parametrize("samples", [[0, 0, 0], [1, float("nan")], [2, -1]])
def test_figures_that_are_none_are_refused(samples: list[float]) -> None:
    broken = report({"x": [1, 2, 3]})
    broken["metrics"]["measurements"][0]["samples"] = samples
    with pytest.raises(DataError, match="has invalid figures in real tokens/s"):
        report_comparison.compare(report({"x": [1, 2, 3]}), broken, 0.05)


def test_a_report_that_is_not_there_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        report_comparison.read_report(tmp_path / "a.json")
    assert caught.value.message == f"{tmp_path / 'a.json'} cannot be read: No such file or directory"
