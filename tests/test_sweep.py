"""`ftcli benchmark sweep`: halving finds the fastest on a model of costs, keeps what is not beaten, and saves a profile that loads."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ftcli.commands import benchmark, sweep
from ftcli.context import Context
from ftcli.core.benchmark import full_path, halving, pace, saved_profile, worker_counts
from ftcli.core.benchmark.grids import PRESENT, candidates, name_of
from ftcli.core.benchmark.halving import search
from ftcli.errors import FtcliError, TrainError, UsageError
from ftcli.sources import resolve
from tokenizing import corpus, write


class Rates:
    """Seconds of a candidate by its name, with 3 % of noise, on a clock of its own."""

    def __init__(self, seconds: Mapping[str, float], monkeypatch: pytest.MonkeyPatch, seed: int = 0, start: float = 0.0) -> None:
        self.seconds, self.now, self.asked, self.start = seconds, 0.0, list[str](), start
        self.generator = np.random.default_rng(seed)
        monkeypatch.setattr(halving.time, "perf_counter", lambda: self.now)

    def __call__(self, name: str) -> Mapping[str, float]:
        self.asked.append(name)
        if self.seconds[name] < 0:
            raise TrainError("out of memory", "")
        took = self.seconds[name] * self.generator.lognormal(0, 0.03)
        self.now += took + self.start
        return {"tokens": 100.0, "seconds": took}


@pytest.mark.parametrize("seed", range(5))
def test_the_fastest_of_many_is_found_and_compared_in_pairs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {PRESENT: 2.0, **{f"c{number}": 1.2 + 0.1 * number for number in range(14)}, "broken": -1.0}
    rates = Rates(seconds, monkeypatch, seed)
    found = search(list(seconds), PRESENT, rates, repeats=5)
    assert found.best == "c0"
    assert found.ratio is not None
    assert (found.ratio["verdict"], found.ratio["n"]) == ("faster", 5)
    assert found.ratio["median"] == pytest.approx(2.0 / 1.2, rel=0.1)
    assert found.dropped == {"broken": "out of memory"}
    assert rates.asked.count("broken") == 1
    assert [len(rung) for rung in found.rungs] == [16, 8, 4]
    assert {m.unit for m in found.measurements} == {"tokens/s", "seconds"}


def test_what_is_not_beaten_beyond_the_noise_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {PRESENT: 1.0, **{f"c{number}": 1.0 for number in range(6)}}
    kept = [search(list(seconds), PRESENT, Rates(seconds, monkeypatch, seed), repeats=5).best == PRESENT for seed in range(20)]
    assert sum(kept) >= 18


def test_a_budget_cuts_the_search_short_and_leaves_some_for_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {PRESENT: 2.0, **{f"c{number}": 1.0 + 0.05 * number for number in range(60)}}
    rates = Rates(seconds, monkeypatch)
    found = search(list(seconds), PRESENT, rates, repeats=5, budget=200.0)
    assert rates.now < 200
    assert found.ratio is not None
    assert found.ratio["n"] >= 5
    assert found.best != PRESENT


@pytest.mark.parametrize("budget", [30.0, 90.0, 200.0, 600.0])
def test_no_budget_is_overrun_by_more_than_a_run_and_all_that_have_room_are_compared(
    budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """41 candidates of 5 s, most of it their start, took 221 s of a budget of 90, and nothing was decided."""
    seconds = {PRESENT: 2.0, **{f"c{number}": 1.9 - 0.01 * number for number in range(40)}}
    rates = Rates(seconds, monkeypatch, start=3.0)
    found = search(list(seconds), PRESENT, rates, repeats=5, budget=budget)
    assert rates.now <= budget + 10
    assert len(found.untried) + sum(1 for name in found.rates if found.rates[name]) == len(seconds)
    assert found.seconds == pytest.approx(5, rel=0.06)
    if budget == 30:  # the four pairs of the comparison alone take 40 s
        assert (len(found.untried), found.ratio, found.best) == (40, None, PRESENT)
    else:
        assert found.untried == list(seconds)[-len(found.untried) :]
        assert found.ratio is not None
        assert found.ratio["n"] >= 4


@pytest.mark.parametrize("count", [2, 5, 41])
def test_the_budget_that_is_named_holds_all(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {PRESENT: 2.0, **{f"c{number}": 2.0 - 0.01 * number for number in range(count - 1)}}
    rates = Rates(seconds, monkeypatch, start=3.0)
    found = search(list(seconds), PRESENT, rates, repeats=5, budget=1.0)
    again = Rates(seconds, monkeypatch, start=3.0)
    assert search(list(seconds), PRESENT, again, repeats=5, budget=halving.whole_budget(count, found.seconds, found.first)).untried == []


def test_what_the_first_run_takes_is_told_and_has_room_in_the_budget_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {PRESENT: 2.0, **{f"c{number}": 2.0 for number in range(4)}}
    proved = [60.0]

    class Slow(Rates):
        def __call__(self, name: str) -> Mapping[str, float]:
            self.now += proved[0] if not self.asked else 0.0
            return super().__call__(name)

    found = search(list(seconds), PRESENT, Slow(seconds, monkeypatch), repeats=5, budget=70.0)
    assert len(found.untried) == 4
    assert found.first == pytest.approx(62, abs=1)
    words = sweep._untried(found, len(seconds), 70.0)
    assert "the first took 1 min" in words.replace("\u00a0", " ")
    budget = float(words.split("--budget ")[-1].split()[0])
    again = search(list(seconds), PRESENT, Slow(seconds, monkeypatch), repeats=5, budget=budget)
    assert again.untried == []


def test_a_candidate_that_fails_in_the_last_comparison_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {PRESENT: 2.0, "a": 1.0, "b": 1.2, "c": 3.0}
    rates = Rates(seconds, monkeypatch)

    def run(name: str) -> Mapping[str, float]:
        if name == "a" and rates.asked.count("a") == 3 + 2:
            raise TrainError("out of memory", "")
        return rates(name)

    found = search(list(seconds), PRESENT, run, repeats=5)
    assert found.dropped == {"a": "out of memory"}
    assert found.best == "b"
    assert found.ratio is not None
    assert found.ratio["n"] == 5


@pytest.mark.parametrize(("runs", "rung", "pairs"), [(4, 1, 0), (14, 2, 1), (18, 2, 3)])
def test_an_interrupted_search_keeps_what_it_has_found(runs: int, rung: int, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {PRESENT: 2.0, **{f"c{number}": 1.0 + 0.1 * number for number in range(4)}}
    rates = Rates(seconds, monkeypatch)

    def run(name: str) -> Mapping[str, float]:
        if len(rates.asked) == runs:
            raise KeyboardInterrupt
        return rates(name)

    found = search(list(seconds), PRESENT, run, repeats=5)
    assert found.interrupted
    assert (len(found.rungs), found.ratio["n"] if found.ratio else 0) == (rung, pairs)
    assert sweep._title(found, {}).startswith("interrupted") == (not pairs)
    rates.asked[:] = [PRESENT] * runs
    with pytest.raises(KeyboardInterrupt):
        search(list(seconds), PRESENT, run, repeats=5)


def test_the_runs_of_a_search_are_known_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (1, 2, 3, 5, 8, 41):
        seconds = {PRESENT: 2.0, **{f"c{number}": 1.0 + 0.1 * number for number in range(count - 1)}}
        rates = Rates(seconds, monkeypatch)
        search(list(seconds), PRESENT, rates, repeats=5)
        assert len(rates.asked) - 1 - (10 if count > 1 else 0) == halving.rungs_runs(count), count


def test_present_settings_that_cannot_run_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FtcliError, match="out of memory"):
        search([PRESENT, "a", "b"], PRESENT, Rates({PRESENT: -1.0, "a": 1.0, "b": 1.0}, monkeypatch), repeats=5)


# -- grids -----------------------------------------------------------------------------------------------------------------


def context(cores: int = 4, **values: Any) -> Context:
    made = Context.make({key.replace("__", "."): value for key, value in values.items()})
    return replace(made, machine=replace(made.machine, cores=cores))


def test_workers_batches_writers_and_engines_are_tried_for_tokenize() -> None:
    found = candidates(context(), "tokenize", engines=["auto", "hf"], collators=(), on_gpu=False)
    assert found[PRESENT] == {}
    assert len(found) == 3 * 2 * 2 * 2
    assert {values.get("dataset.num_proc") for values in found.values()} == {None, 1, 2}  # unset are all four
    changed = [len(values) for values in found.values()]
    assert changed == sorted(changed)
    assert changed.count(1) == 2 + 1 + 1 + 1
    assert found["num_proc=2, engine=hf"] == {"dataset.num_proc": 2, "tokenizer.engine": "hf"}
    given = candidates(context(dataset__num_proc=2), "tokenize", engines=["auto"], collators=(), on_gpu=False)
    assert {values.get("dataset.num_proc") for values in given.values()} == {None, 1, 4}
    assert name_of({"dataset.num_proc": 2, "loader.prefetch_factor": None}) == "num_proc=2, prefetch_factor=unset"


def test_batches_are_prefetched_only_by_workers_and_pinned_only_for_a_gpu() -> None:
    found = candidates(context(), "batch", engines=(), collators=["dynamic", "fixed"], on_gpu=False).values()
    assert all(("loader.num_workers" in values) == ("loader.prefetch_factor" in values) for values in found)
    assert not any("loader.pin_memory" in values for values in found)
    assert len(candidates(context(), "batch", engines=(), collators=["dynamic"], on_gpu=True)) > len(found) / 2


def test_steps_keep_their_rows_whatever_the_micro_batch() -> None:
    made = context(train__per_device_train_batch_size=6, train__gradient_accumulation_steps=2)
    names = ("train.per_device_train_batch_size", "train.gradient_accumulation_steps")
    found = candidates(made, "train", engines=(), collators=(), on_gpu=False).values()
    assert {tuple(values.get(name) for name in names) for values in found} == {(1, 12), (2, 6), (4, 3), (12, 1), (None, None)}
    assert {values.get("model.attn_implementation", "as it is") for values in found} == {"as it is", "eager"}  # unset is sdpa
    compiled = candidates(made, "train", engines=(), collators=(), on_gpu=True)
    assert {values.get("train.torch_compile") for values in compiled.values()} == {None, True}


def test_batches_that_are_made_faster_and_computed_slower_are_left_out() -> None:
    """Padding to one width makes batches at twice the rate of bucketed ones, and nine times the slots."""
    slots = {"bucketed": 104.0, "dynamic": 106.0, "fixed": 900.0}
    run = sweep._no_fuller(lambda settings: {"real tokens": 100.0, "slots": slots[settings.loader.collator or ""], "seconds": 1.0})
    for name in ("bucketed", "dynamic"):
        assert run(context(loader__collator=name).settings)["slots"] == slots[name]
    with pytest.raises(FtcliError, match=r"leaves 88.9.% of the slots empty, the present settings 3.8.%"):
        run(context(loader__collator="fixed").settings)


# -- profiles --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "ftcli" / "profiles"


def test_a_profile_is_loaded_by_its_name_and_says_what_was_measured(home: Path) -> None:
    path = saved_profile.check_name("fast", overwrite=False)
    saved_profile.write(
        path,
        'of "me"',
        ["a: 1.5×\n(n 5)", "b"],
        {"dataset.num_proc": 2, "loader.prefetch_factor": None, "tokenizer.engine": "hf", "loader.pin_memory": False},
    )
    assert path == home / "fast.toml"
    found = resolve({}, profile="fast", environ={})
    assert (found.settings.dataset.num_proc, found.settings.tokenizer.engine, found.settings.loader.pin_memory) == (2, "hf", False)
    assert found.origin("dataset.num_proc") == "profile fast"
    assert tomllib.loads(path.read_text())["profile"]["measured"] == ["a: 1.5×\n(n 5)", "b"]
    assert "# a: 1.5× (n 5)" in path.read_text().splitlines()
    with pytest.raises(UsageError, match="already"):
        saved_profile.check_name("fast", overwrite=False)
    assert saved_profile.check_name("fast", overwrite=True) == path


@pytest.mark.parametrize("name", ["../up", "a/b", "", "fast.toml", ".hidden"])
def test_a_name_that_is_a_path_is_refused(name: str, home: Path) -> None:
    with pytest.raises(UsageError, match="not a valid name"):
        saved_profile.check_name(name, overwrite=False)


# -- the command -----------------------------------------------------------------------------------------------------------


def test_the_best_is_reported_and_saved_with_its_reason(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0)

    def tokenized(settings: Any, texts: Any, folder: Path, *_: Any) -> Mapping[str, float]:
        assert texts.rows == 20
        return {"tokens": 400.0 / (settings.dataset.num_proc or 4), "rows": 20.0, "seconds": float(noise.lognormal(0, 0.02))}

    monkeypatch.setattr(sweep, "_tokenized", tokenized)
    monkeypatch.setattr(worker_counts, "workers", lambda settings, *_: settings.dataset.num_proc or 4)  # as of large sources
    monkeypatch.setattr(worker_counts, "SHARD_BYTES", 100)
    monkeypatch.setattr(pace, "_best", lambda _: (0.01, 0.01))  # 40 looks at the machine take 9 s
    source = write(tmp_path / "data.jsonl", corpus(20))
    values = {
        "dataset.sources": [str(source)],
        "tokenizer.path": "anything",
        "benchmark.save_profile": "best",
        "runtime.report_dir": tmp_path / "reports",
    }
    made = Context.make(values)
    report = benchmark.run(replace(made, machine=replace(made.machine, cores=4)), "sweep", ["tokenize"])
    assert report.metrics["best"]["dataset.num_proc"] == 1
    assert report.metrics["ratios"][0]["verdict"] == "faster"
    assert report.details["title"].startswith("best: num_proc=1")
    assert len(report.details["pace"]["cpu_seconds"]) == 1 + sum(map(len, report.metrics["rates"].values())) + 2 * 5
    assert report.metrics["frequency_drift"] is not None
    assert resolve({}, profile="best", environ={}).settings.dataset.num_proc == 1
    assert "faster" in (home / "best.toml").read_text()
    assert report.command == "benchmark sweep tokenize"  # its own file: sweep train in the same folder would write over it
    assert report.paths["html"].endswith("benchmark-sweep-tokenize.html")
    assert Path(report.paths["html"]).is_file()


LARGE = full_path.Texts(Path("t.jsonl"), 10, 10, exact=True, prepared=False, cut=100, bytes=20_000_000, shards=9, source_bytes=10**9)


@pytest.mark.parametrize(
    ("asked", "texts", "number"),
    [
        (None, LARGE, 4),
        (8, LARGE, 8),  # a user's own
        (12, LARGE, 4),  # a profile's
        (16, LARGE, 9),
        (None, replace(LARGE, source_bytes=10**7), 1),
        (8, replace(LARGE, shards=1), 1),
    ],
)
def test_the_texts_of_a_benchmark_have_the_workers_of_the_whole_run(asked: int | None, texts: full_path.Texts, number: int) -> None:
    """The texts were one small file: whatever num_proc was, one worker prepared them, and it made no difference."""
    known = frozenset({(worker_counts.WORKERS, 12)})
    settings = context(dataset__num_proc=asked).settings
    assert worker_counts.workers(settings, texts, 4, known) == number
    made, bounds = worker_counts.with_workers(settings, texts, 4, known, most=number)
    if number == 1:
        assert (made, bounds) == (settings, known)
        return
    assert made.dataset.num_proc == number
    assert made.dataset.shard_bytes == max(1_000_000, 20_000_000 // (4 * number))
    assert ((worker_counts.WORKERS, number) in bounds) == (asked in (None, 12))


def test_how_many_rows_tell_the_workers_is_said() -> None:
    assert worker_counts.too_few(LARGE, 10) is None
    assert worker_counts.too_few(LARGE, 1) is None
    assert "use --rows 160" in (worker_counts.too_few(LARGE, 16) or "")


def test_workers_that_few_rows_cannot_tell_are_not_tried(tmp_path: Path) -> None:
    source = write(tmp_path / "data.jsonl", corpus(400))
    for values, words in (({}, "so small that one"), ({"dataset.num_proc": 2, "dataset.shard_bytes": 2_000}, "--rows")):
        made = Context.make({"dataset.sources": [str(source)], "tokenizer.path": "anything", "benchmark.rows": 50, **values})
        grid, _, _ = sweep._work(made, "tokenize", tmp_path)
        assert not any(worker_counts.WORKERS in changed for changed in grid.values())
        assert len(grid) > 4
        assert "the number of workers is not tried" in made.notes[-1]
        assert words in made.notes[-1]


@pytest.mark.parametrize(
    ("values", "held"), [({"train.mode": "sft"}, "conversations"), ({"dataset.label_columns": ["a", "b"]}, "several label columns")]
)
def test_sources_of_more_than_texts_and_a_label_are_named(tmp_path: Path, values: Any, held: str) -> None:
    source = write(tmp_path / "data.jsonl", corpus(20))
    context = Context.make({"dataset.sources": [str(source)], "tokenizer.path": "anything", **values})
    with pytest.raises(UsageError, match=f"these sources have {held}"):
        full_path.cut(context, context.settings, tmp_path / "cut", 10)


def test_a_sweep_that_compared_nothing_says_that_no_profile_was_saved(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(dropped={}, untried=[], seconds=1.0, best="a", rungs=[], interrupted=False)
    monkeypatch.setattr(sweep, "_work", lambda *_: ({"a": {"dataset.num_proc": 1}}, None, "data"))
    monkeypatch.setattr(sweep, "search", lambda *_, **__: found)
    monkeypatch.setattr(sweep, "_result", lambda *_: ({"rungs": []}, {}))
    context = Context.make({"dataset.sources": ["x"], "tokenizer.path": "y", "benchmark.save_profile": "best"})
    looks: Any = SimpleNamespace(look=lambda: None)
    sweep.sweep(context, ["tokenize"], looks)
    assert context.notes[-1] == "nothing was compared, so no profile best was saved"
    assert not (home / "best.toml").exists()


@pytest.mark.parametrize("what", [[], ["everything"], ["batch", "train"]])
def test_what_cannot_be_swept_is_refused(what: list[str]) -> None:
    with pytest.raises(UsageError, match=r"sweep needs one of"):
        benchmark.run(Context.make({"dataset.sources": ["x"], "tokenizer.path": "y"}), "sweep", what)
    with pytest.raises(UsageError, match=r"sweep needs one of"):
        benchmark.run(Context.make({}), "sweep", what)
    with pytest.raises(UsageError, match="needs --dataset"):
        benchmark.run(Context.make({}), "sweep", ["batch"])


def test_a_candidate_s_own_seconds_are_those_of_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"metrics": {"tokens": 1_000, "tokens_per_second": 500.0, "rows_written": 10}}
    made: list[Any] = []
    monkeypatch.setattr(full_path, "run_child", lambda _, settings, *__: made.append(settings) or document)
    texts = full_path.Texts(tmp_path / "t.jsonl", 10, 10, exact=True, prepared=False)
    done = sweep._tokenized(Context.make({"dataset.source_format": "json"}).settings, texts, tmp_path / "run", {}, ())
    assert made[0].dataset.source_format is None  # the texts are JSON lines, whatever they were cut from
    assert done == {"tokens": 1_000, "rows": 10, "seconds": 2.0}
    assert not (tmp_path / "run").exists()
