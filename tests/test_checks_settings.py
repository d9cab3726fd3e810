"""Checks of the settings against the machine and against each other."""

from __future__ import annotations

from typing import Any

import pytest

from ftcli.records import Gpu
from verifying import World

STAGE = ("settings",)
T4 = (Gpu("Tesla T4", 15 * 2**30, "7.5"),)
H200 = (Gpu("NVIDIA H200", 141 * 2**30, "9.0"),)


def test_defaults_pass(world: World) -> None:
    checks = world.quiet("default settings", {}, stages=STAGE)
    assert {check.status for name, check in checks.items() if name not in {"FT053", "FT091"}} <= {"pass", "info", "skipped"}
    assert (checks["FT051"].status, checks["FT052"].status, checks["FT090"].status) == ("pass", "pass", "pass")
    assert "no --dataset" in checks["FT053"].summary


@pytest.mark.parametrize("key", ["dataset.num_proc", "loader.num_workers", "runtime.threads"])
def test_more_workers_than_cores_by_the_user_warn(world: World, key: str) -> None:
    world.quiet(f"{key} = 4 on 4 cores", {key: 4}, stages=STAGE)
    check = world.caught(f"{key} = 5 on 4 cores", {key: 5}, "FT051", status="warn", words="4 cores by affinity", stages=STAGE)
    assert f"{key} = 5 (from argument)" in check.summary


def test_a_variable_that_asks_for_too_many_workers_is_named(world: World) -> None:
    env = {"DATASET_NUM_PROC": "48"}
    world.caught("DATASET_NUM_PROC=48 on 4 cores", {}, "FT051", status="warn", words="from DATASET_NUM_PROC", stages=STAGE, env=env)


def test_workers_that_tokenize_are_no_matter_where_the_data_are_prepared(world: World) -> None:
    asked, env = {"dataset.num_proc": 48}, {"OMP_PROC_BIND": "close"}
    given = {"dataset.sources": [str(world.labelled)]}
    assert world.verify({**asked, **given}, stages=STAGE)["FT051"].status == "pass"
    assert world.verify(given, stages=STAGE, profile="highend")["FT051"].status == "pass"
    assert world.verify({**asked, **given}, stages=("env",), env=env)["FT004"].status == "pass"
    raw = {"dataset.sources": [str(world.folder / "labelled-train.jsonl")]}
    assert world.verify({**asked, **raw}, stages=STAGE)["FT051"].status == "warn"


def test_a_profile_is_a_ceiling_and_only_noted(world: World) -> None:
    check = world.quiet("48 workers by profile highend", {}, stages=STAGE, profile="highend")["FT051"]
    assert check.status == "info"
    assert "48 by profile highend, 4 used: 4 cores by affinity" in check.summary


@pytest.mark.parametrize(
    ("values", "machine", "status", "words"),
    [
        ({"train.fp16": True}, {}, "fail", "float16 on a CPU"),
        ({"train.fp16_full_eval": True}, {}, "fail", "float16 on a CPU"),
        ({"model.dtype": "float16"}, {}, "fail", "float16 on a CPU"),
        ({"train.fp16": True, "train.use_cpu": True}, {"gpus": H200}, "fail", "float16 on a CPU"),
        ({"train.bf16": True}, {"cpu_flags": ("avx2",)}, "warn", "emulated"),
        (
            {"model.dtype": "bfloat16", "train.learning_rate": 1e-3},
            {"cpu_flags": ("avx2",)},
            "warn",
            "weights in bfloat16 on a CPU without bf16 instructions: emulated",
        ),
        ({"train.bf16": True}, {"gpus": T4}, "fail", "capability 7.5"),
        ({"model.dtype": "bfloat16", "train.learning_rate": 1e-5}, {}, "warn", "16 % of bf16 weights"),
    ],
)
def test_a_precision_that_does_not_suit_the_device_is_refused(
    world: World, values: dict[str, Any], machine: dict[str, Any], status: str, words: str
) -> None:
    cause = ", ".join(f"{key} = {value}" for key, value in values.items()) + "".join(f", {name} {found}" for name, found in machine.items())
    refused = ("FT054",) if "train.fp16_full_eval" in values else ()  # on every device
    world.caught(cause.replace("|", "/")[:90], values, "FT052", *refused, status=status, words=words, stages=STAGE, **machine)


@pytest.mark.parametrize(
    ("values", "machine"),
    [
        ({"train.bf16": True}, {}),
        ({"train.bf16": True}, {"cpu_flags": ("amx_bf16",)}),
        ({"train.bf16": True}, {"gpus": H200}),
        ({"train.bf16": True}, {"gpus": (Gpu("unknown", 2**30, None),)}),
        ({"train.fp16": True}, {"gpus": T4}),
        ({"train.fp16": True}, {"gpus": (Gpu("MIG-1f5a", 0, None),)}),
        ({"model.dtype": "bfloat16", "train.learning_rate": 1e-4}, {}),
    ],
)
def test_a_precision_that_suits_the_device_passes(world: World, values: dict[str, Any], machine: dict[str, Any]) -> None:
    world.quiet(f"{values} {list(machine)}", values, stages=STAGE, **machine)


@pytest.mark.parametrize(
    ("warmup", "steps", "status"),
    [(7004, 200, "fail"), (200, 200, "fail"), (199, 200, "warn"), (100, 200, "warn"), (0.5, 200, "warn")],
)
def test_a_warm_up_that_takes_the_run_is_found(world: World, warmup: float, steps: int, status: str) -> None:
    values = {"train.warmup_steps": warmup, "train.max_steps": steps}
    check = world.caught(f"warm-up {warmup} of {steps} steps", values, "FT053", status=status, words="warm-up", stages=STAGE)
    assert "--warmup-steps to about 10" in check.fix


@pytest.mark.parametrize("warmup", [0, 20, 99, 0.03])
def test_a_short_warm_up_passes(world: World, warmup: float) -> None:
    check = world.quiet(f"warm-up {warmup} of 200 steps", {"train.warmup_steps": warmup, "train.max_steps": 200}, stages=STAGE)["FT053"]
    assert check.status == "pass"


def test_the_steps_of_a_run_follow_rows_batches_accumulation_epochs_and_processes(world: World) -> None:
    values = world.run("classify", **{"train.gradient_accumulation_steps": 4, "train.num_train_epochs": 2.5})

    def steps(**env: str) -> int:
        return int(world.verify(values, stages=STAGE, env=env)["FT053"].evidence["steps"])

    assert steps() == 20  # 240 rows, 30 batches of 8, 8 steps an epoch
    assert steps(WORLD_SIZE="2") == 10


def test_data_that_cannot_be_opened_leave_the_warm_up_to_the_check_of_the_data(world: World) -> None:
    checks = world.verify({"dataset.sources": ["nowhere"]}, stages=("settings", "data"))
    assert checks["FT053"].status == "skipped"
    assert checks["FT201"].status == "fail"
    assert "nowhere" in checks["FT201"].summary
