"""How work is spread over a machine: nothing asked for is cut, nothing automatic is unexplained."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftcli.core.prepare import workload
from ftcli.core.prepare.recipe import settle
from ftcli.core.prepare.workload import MODES, settle_workload
from ftcli.errors import SettingsError
from ftcli.records import Value
from tokenizing import context, corpus, plugins, small_tokenizers, write

kinds = small_tokenizers

GIB = 2**30


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", corpus(200))


@pytest.fixture
def work(kinds, source, tmp_path):
    """Settle the work on a machine of so many cores and so much memory; `profile` values come from a profile."""

    def make(cores: int = 8, free: int = 100, profile: dict | None = None, **values):
        made = context(kinds["bpe"], source, tmp_path / "out", **values, **(profile or {}))
        origins = dict(made.resolved.origins)
        for key in profile or {}:
            name = key.replace("__", ".")
            origins[name] = Value(origins[name].value, "profile highend")
        made.resolved = replace(made.resolved, origins=origins)
        made.machine = replace(made.machine, cores=cores, memory_available_bytes=free * GIB)
        return settle_workload(made, settle(made)), made.notes

    return make


def test_a_small_job_runs_in_one_process_with_all_threads(work):
    found, notes = work(dataset__shard_bytes=1_000)
    assert (found.workers, found.threads) == (1, 8)
    assert any("before a second process would have started" in note for note in notes)


def test_a_large_job_takes_the_cores(work, monkeypatch):
    monkeypatch.setattr(workload, "SMALL_JOB_BYTES", 1)
    found, _ = work(dataset__shard_bytes=1_000)
    assert (found.workers, found.threads) == (8, 1)


@pytest.mark.parametrize(("workers", "asked", "threads"), [(8, 4, 1), (2, 4, 4), (2, 8, 4), (2, 1, 1), (16, 4, 1)])
def test_workers_divide_the_cores_whatever_threads_a_process_may_have(work, monkeypatch, workers, asked, threads):
    """8 workers × 4 threads on 8 cores are 32 threads that take turns."""
    monkeypatch.setattr(workload, "SMALL_JOB_BYTES", 1)
    found, _ = work(dataset__shard_bytes=500, dataset__num_proc=workers, runtime__threads=asked)
    assert (found.workers, found.threads) == (workers, threads)


def test_many_small_files_are_no_small_job(kinds, tmp_path, monkeypatch):
    for number in range(60):
        write(tmp_path / "many" / f"{number}.jsonl", ["a text"])
    made = context(kinds["bpe"], tmp_path / "many", tmp_path / "out", dataset__shard_bytes=300)
    made.machine = replace(made.machine, cores=2)
    plan = settle(made).plan
    assert len(plan.shards) > 2
    assert workload.worker_count(made, plan).value == 1
    monkeypatch.setattr(workload, "SMALL_JOB_BYTES", 60 * workload.FILE_BYTES)
    assert workload.worker_count(made, plan).value == 2


def test_there_are_no_more_workers_than_shards(work, monkeypatch):
    monkeypatch.setattr(workload, "SMALL_JOB_BYTES", 1)
    found, notes = work()
    assert (found.workers, found.threads) == (1, 8)
    assert any("1 shard of work" in note for note in notes)


@pytest.mark.parametrize(("name", "way"), [("a.jsonl.gz", "unpack it"), ("a.json", "write its rows as JSON lines"), ("a.jsonl", None)])
def test_a_file_that_one_worker_has_to_read_alone_is_named(kinds, tmp_path, monkeypatch, name, way):
    """Half of the machine stood still, and the report said that the engine is the limit."""
    monkeypatch.setattr(workload, "SMALL_JOB_BYTES", 1)
    lines = [json.dumps({"text": f"text {number}"}) for number in range(50)]
    text = json.dumps({"rows": list(map(json.loads, lines))}) if name == "a.json" else "\n".join(lines)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())

    def notes(cores, **values):
        made = context(kinds["bpe"], tmp_path / "in", tmp_path / "out", **values)
        made.machine = replace(made.machine, cores=cores)
        settle_workload(made, settle(made))
        return [note for note in made.notes if "cannot be cut" in note]

    assert [note.partition("to use more cores, ")[2] for note in notes(2)] == ([way] if way else [])
    assert not notes(1)
    assert not notes(2, dataset__num_proc=1)
    for number in range(3):
        (tmp_path / "in" / f"{number}-{name}").write_bytes((tmp_path / "in" / name).read_bytes())
    assert not notes(4)


def test_a_profile_s_count_is_cut_to_the_cores_and_a_user_s_is_not(work):
    found, notes = work(cores=2, profile={"dataset__num_proc": 48}, dataset__shard_bytes=500)
    assert found.workers == 2
    assert any("48 by profile highend, 2 used" in note for note in notes)
    found, _ = work(cores=2, dataset__num_proc=5, dataset__shard_bytes=500)
    assert (found.workers, found.threads) == (5, 1)


def test_no_more_workers_than_the_memory_holds_unless_the_user_says_so(work, monkeypatch):
    monkeypatch.setattr(workload, "SMALL_JOB_BYTES", 1)
    found, notes = work(cores=48, free=3, dataset__shard_bytes=100)
    assert found.workers == 5
    assert any("5 used: 3.0 GB of memory are free, and a worker may take 600 MB" in note for note in notes)
    assert work(cores=48, free=3, dataset__shard_bytes=100, dataset__num_proc=20)[0].workers == 20


def test_threads_that_were_set_are_used(work):
    assert work(cores=2, runtime__threads=6)[0].threads == 6


@pytest.mark.parametrize(
    ("free", "mode", "said"),
    [
        (51, "memory", "51 GB"),
        (50, "balanced", "50 GB"),
        (20, "balanced", "20 GB"),
        (19, "disk", "19 GB"),
        (3, "disk", "3,072 MB"),
        (0.25, "disk", "256 MB"),
    ],
)
def test_the_memory_mode_follows_what_is_free(free, mode, said, work):
    found, notes = work(free=free)
    assert found.buffer_rows == min(50_000, MODES[mode])
    assert any(note.startswith(f"memory mode {mode}: {said} free") for note in notes)


def test_a_memory_mode_cuts_a_profile_s_batches_and_leaves_a_user_s(work):
    found, _ = work(dataset__memory_mode="disk", profile={"dataset__batch_size": 20_000, "dataset__writer_batch_size": 100_000})
    assert (found.batch_size, found.buffer_rows) == (20_000, MODES["disk"])
    found, notes = work(dataset__memory_mode="disk", dataset__batch_size=20_000, dataset__writer_batch_size=100_000)
    assert (found.batch_size, found.buffer_rows) == (20_000, 100_000)
    assert not any("memory mode" in note for note in notes)


def test_the_sample_for_the_proof_is_the_first_rows(kinds, source, tmp_path, monkeypatch):
    monkeypatch.setattr(workload, "SAMPLE_ROWS", 70)
    made = context(kinds["bpe"], source, tmp_path / "out", dataset__shard_bytes=4_000)
    sample = workload._sample(made, settle(made))
    assert sample == corpus(200)[: len(sample)]
    assert 10 < len(sample) <= 70
    made = context(kinds["bpe"], source, tmp_path / "out")
    assert workload._sample(made, settle(made)) == corpus(70)
    monkeypatch.setattr(workload, "JOINED_BYTES", 1_000)  # of long rows only a few, at least one
    sample = workload._sample(made, settle(made))
    assert 1 < len(sample) < 40
    assert sample == corpus(200)[: len(sample)]
    monkeypatch.setattr(workload, "JOINED_BYTES", 1)
    assert workload._sample(made, settle(made)) == corpus(1)


def test_proofs_are_kept_where_the_settings_or_the_cache_of_the_user_say(kinds, source, tmp_path, monkeypatch):
    made = context(kinds["bpe"], source, tmp_path / "out", runtime__cache_dir=tmp_path / "mine")
    assert made.cache_dir == tmp_path / "mine"
    made = context(kinds["bpe"], source, tmp_path / "out", runtime__cache_dir=None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert made.cache_dir == tmp_path / "cache/ftcli"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert made.cache_dir == Path.home() / ".cache/ftcli"


def test_an_engine_that_is_not_there_is_named(work):
    with pytest.raises(SettingsError, match=r"tokenizer\.engine = 'gigatokn'") as refused:
        work(tokenizer__engine="gigatokn")
    assert "Did you mean 'gigatoken'" in refused.value.hint


def test_a_job_tells_workers_which_plugins_the_run_was_planned_with(kinds, source, tmp_path):
    loaded = plugins(tmp_path / "plugins")
    made = context(kinds["bpe"], source, tmp_path / "out", loaded)
    recipe = settle(made)
    job = settle_workload(made, recipe).job(made, recipe, tmp_path, {"a": 0})
    assert job.loaded == loaded.describe()
    assert (job.plugins_dir, job.allow) == (tmp_path / "plugins", ())
    assert job.label_ids == {"a": 0}
    assert job.policy == recipe.policy
