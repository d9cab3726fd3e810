"""Checks of the machine: what is healthy, and the smallest difference that is not."""

from __future__ import annotations

import pytest

from ftcli.records import Gpu
from verifying import World

ENV = ("env",)
GPU = (Gpu("NVIDIA H200", 141 * 2**30, "9.0"),)


def test_a_healthy_machine_passes(world: World) -> None:
    checks = world.quiet("a healthy machine", {}, stages=ENV)
    assert {name: check.status for name, check in checks.items()} == {
        "FT001": "pass",
        "FT002": "pass",
        "FT003": "pass",
        "FT004": "pass",
        "FT005": "info",
        "FT006": "pass",
        "FT007": "info",
        "FT008": "skipped",
        "FT009": "skipped",
    }
    assert "4 cores by affinity" in checks["FT001"].summary
    assert "no nvidia-smi" in checks["FT005"].summary


def test_a_loaded_machine_is_noted(world: World) -> None:
    check = world.quiet("more processes than cores", {}, stages=ENV, load_average=9.0)["FT001"]
    assert check.status == "info"
    assert "9.0 processes" in check.summary


def test_an_unknown_load_is_no_load(world: World) -> None:
    assert world.verify({}, stages=ENV, load_average=None)["FT001"].status == "pass"


def test_little_memory_warns(world: World) -> None:
    world.caught("1.5 GB of memory free", {}, "FT002", status="warn", words="1.5 GB", stages=ENV, memory_available_bytes=3 * 2**29)


@pytest.mark.parametrize(("free", "mode"), [(60, "memory"), (50, "balanced"), (20, "balanced"), (19, "disk")])
def test_the_memory_mode_follows_what_is_free(world: World, free: int, mode: str) -> None:
    assert world.verify({}, stages=ENV, memory_available_bytes=free * 2**30)["FT002"].evidence["memory_mode"] == mode


def test_a_full_disk_fails(world: World) -> None:
    world.caught("0.5 GB of disk free", {}, "FT003", words="0.50 GB", stages=ENV, disk_free_bytes=2**29)


@pytest.mark.parametrize(("kind", "status"), [("hdd", "warn"), ("network", "warn")])
def test_a_slow_disk_warns(world: World, kind: str, status: str) -> None:
    world.caught(f"a {kind} disk", {}, "FT003", status=status, words=kind, stages=ENV, disk_kind=kind)


@pytest.mark.parametrize(("kind", "status"), [("unknown", "info"), ("memory", "pass")])
def test_a_disk_that_is_not_known_to_be_slow_does_not_warn(world: World, kind: str, status: str) -> None:
    assert world.quiet(f"disk of kind {kind}", {}, stages=ENV, disk_kind=kind)["FT003"].status == status


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "serialises every kernel launch"),
        ("OMP_NUM_THREADS", "1", "3 of 4 cores idle"),
        ("MKL_NUM_THREADS", "1", "3 of 4 cores idle"),
        ("DATASET_NUMPROC", "8", "did you mean DATASET_NUM_PROC"),
    ],
)
def test_a_variable_that_hurts_warns(world: World, variable: str, value: str, words: str) -> None:
    check = world.caught(f"{variable}={value}", {}, "FT004", status="warn", words=words, stages=ENV, env={variable: value})
    assert check.fix


def test_several_variables_are_all_named(world: World) -> None:
    env = {"CUDA_LAUNCH_BLOCKING": "1", "OMP_NUM_THREADS": "1"}
    check = world.caught("two variables", {}, "FT004", status="warn", stages=ENV, env=env)
    assert "CUDA_LAUNCH_BLOCKING" in check.summary
    assert "OMP_NUM_THREADS" in check.summary
    assert check.evidence["CUDA_LAUNCH_BLOCKING"] == "1"


def test_one_thread_is_right_where_it_is_wanted_or_a_gpu_computes(world: World) -> None:
    env = {"OMP_NUM_THREADS": "1"}
    world.quiet("OMP_NUM_THREADS=1 and runtime.threads=1", {"runtime.threads": 1}, stages=ENV, env=env)
    world.quiet("OMP_NUM_THREADS=1, cores shared by ranks", {}, stages=ENV, env={**env, "LOCAL_WORLD_SIZE": "2"}, cores=2)
    world.quiet("OMP_NUM_THREADS=1 on one core", {}, stages=ENV, env=env, cores=1)
    world.quiet("OMP_NUM_THREADS=1 beside a GPU", {}, stages=ENV, env=env, gpus=GPU)
    world.caught("OMP_NUM_THREADS=1, GPU not used", {"train.use_cpu": True}, "FT004", status="warn", stages=ENV, env=env, gpus=GPU)


@pytest.mark.parametrize("variable", ["MKL_SERVICE_FORCE_INTEL", "MKL_THREADING_LAYER"])
def test_a_variable_without_effect_is_noted(world: World, variable: str) -> None:
    check = world.quiet(f"{variable} set", {}, stages=ENV, env={variable: "1", "CUDA_LAUNCH_BLOCKING": "0"})["FT004"]
    assert check.status == "info"
    assert variable in check.summary


def test_gpus_are_named(world: World) -> None:
    check = world.verify({}, stages=ENV, gpus=GPU)["FT005"]
    assert check.status == "pass"
    assert "NVIDIA H200, 141 GB, capability 9.0" in check.summary
