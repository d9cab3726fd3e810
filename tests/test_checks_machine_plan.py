"""Checks of whether the planned run suits the machine: variables, threads, shared memory, disk, memory of a step, versions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ftcli.plugins import checks_versions

from ftcli import machine
from ftcli.core.models.sizing import parameters
from ftcli.core.processes.variables import of_child
from ftcli.records import Gpu
from verifying import World

ENV = ("env",)
TINY = (Gpu("a small GPU", 2**20, "8.0"),)


@pytest.mark.parametrize(
    ("env", "values", "words"),
    [
        ({"OMP_NUM_THREAD": "4"}, {}, "did you mean OMP_NUM_THREADS"),
        ({"HF_DATASET_CACHE": "/x"}, {}, "did you mean HF_DATASETS_CACHE"),
        ({"OMP_NUM_THREADS": "many"}, {}, "not a number of threads"),
        ({"RAYON_NUM_THREADS": "-1"}, {}, "not a number of threads"),
        ({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "2"}, {}, "contradict each other"),
        ({"TOKENIZERS_PARALLELISM": "true"}, {"loader.num_workers": 2}, "2 forked DataLoader workers"),
        ({"OMP_PROC_BIND": "close"}, {"loader.num_workers": 2}, "OMP_PROC_BIND=close"),
        ({"OMP_PROC_BIND": "true"}, {"dataset.num_proc": 4}, "OMP_PROC_BIND=true"),
    ],
)
def test_a_variable_that_hurts_this_plan_warns(world: World, env: dict[str, str], values: dict[str, Any], words: str) -> None:
    cause = " ".join(f"{name}={value}" for name, value in {**env, **values}.items())
    world.caught(cause, values, "FT004", status="warn", words=words, stages=ENV, env=env)


@pytest.mark.parametrize(
    ("env", "values"),
    [
        ({"TOKENIZERS_PARALLELISM": "true"}, {}),
        ({"TOKENIZERS_PARALLELISM": "false"}, {"loader.num_workers": 2}),
        ({"TOKENIZERS_PARALLELISM": "true"}, {"loader.num_workers": 2, "train.dataloader_multiprocessing_context": "spawn"}),
        ({"OMP_PROC_BIND": "close"}, {}),
        ({"OMP_PROC_BIND": "false"}, {"loader.num_workers": 2}),
        ({"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4", "RAYON_NUM_THREADS": "4"}, {}),
        ({"OMP_NUM_THREADS": "4,2", "OMP_NUM_TEAMS": "2", "GOTO_NUM_THREADS": "4", "HF_HUB_OFFLINE": "1"}, {}),
        ({"CUDA_VISIBLE_DEVICES": "0", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, {}),
    ],
)
def test_a_variable_that_does_not_hurt_is_at_most_noted(world: World, env: dict[str, str], values: dict[str, Any]) -> None:
    world.quiet(" ".join(f"{name}={value}" for name, value in {**env, **values}.items()), values, stages=ENV, env=env)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux binds threads by affinity")
def test_what_is_said_of_omp_proc_bind_is_true() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    code = "import os, torch; torch.ones(300, 300) @ torch.ones(300, 300); print(len(os.sched_getaffinity(0)))"
    env = {"OMP_PROC_BIND": "close", "OMP_NUM_THREADS": "1"}
    assert int(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout) == 1


@pytest.mark.parametrize(
    ("env", "values", "words"),
    [
        ({"OMP_NUM_THREADS": "8"}, {}, "OMP_NUM_THREADS=8 are 8 threads on 4 cores"),
        ({"OMP_NUM_THREADS": "4", "LOCAL_WORLD_SIZE": "2"}, {}, "2 ranks × OMP_NUM_THREADS=4 are 8 threads"),
        ({"LOCAL_WORLD_SIZE": "4"}, {"runtime.threads": 2}, "4 ranks × runtime.threads = 2"),
        ({"LOCAL_WORLD_SIZE": "2"}, {"loader.num_workers": 3}, "2 ranks × loader.num_workers = 3"),
    ],
)
def test_more_threads_than_cores_warn(world: World, env: dict[str, str], values: dict[str, Any], words: str) -> None:
    cause = " ".join(f"{name}={value}" for name, value in {**env, **values}.items())
    world.caught(cause, values, "FT071", status="warn", words=words, stages=("settings",), env=env)


def test_threads_that_fit_the_cores_pass(world: World) -> None:
    values = {"dataset.num_proc": 4, "loader.num_workers": 2, "runtime.threads": 2}
    env = {"OMP_NUM_THREADS": "2", "LOCAL_WORLD_SIZE": "2"}
    world.quiet("2 ranks × 2 threads on 4 cores", values, stages=("settings",), env=env)


def test_several_workers_share_the_cores_whatever_rayon_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """ftcli itself sets the variable to the number of cores, and a worker gets its share of them."""
    world.quiet("4 workers", {"dataset.num_proc": 4}, stages=("settings",), env={"RAYON_NUM_THREADS": "4"})
    monkeypatch.setenv("RAYON_NUM_THREADS", "4")
    assert of_child(1)["RAYON_NUM_THREADS"] == "1"


def test_workers_without_room_in_shared_memory_fail(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {**world.run("classify"), "loader.num_workers": 4, "train.per_device_train_batch_size": 512}
    monkeypatch.setattr(machine, "shared_memory", lambda: 2**30)
    world.quiet("4 workers, 1 GB of shared memory", values, stages=ENV)
    monkeypatch.setattr(machine, "shared_memory", lambda: 2**23)
    check = world.caught("4 workers, 8 MB of shared memory", values, "FT006", words="/dev/shm", stages=ENV)
    assert check.evidence["needed_mb"] == pytest.approx(9 * 512 * 137 * 24 / 2**20, abs=0.1)
    world.quiet("no workers, 8 MB of shared memory", world.run("classify"), stages=ENV)


def test_rows_of_unknown_width_only_warn_of_shared_memory_and_data_that_are_not_prepared_are_said_to_be_so(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "where is my parcel"}\n', encoding="utf-8")
    raw = {**world.run("classify", "qwen3"), "dataset.sources": [str(tmp_path / "rows.jsonl")]}
    monkeypatch.setattr(machine, "shared_memory", lambda: 2**20)
    found = world.caught("4 workers", {**raw, "loader.num_workers": 4}, "FT006", status="warn", words="/dev/shm", stages=ENV)
    assert found.evidence["needed_mb"] == pytest.approx(9 * 8 * 1024 * 24 / 2**20, abs=0.1)
    assert "the sources are not prepared yet" in world.quiet("raw data", raw, stages=ENV)["FT009"].summary
    known = {**raw, "loader.num_workers": 4, "train.max_tokens_per_batch": 2**20}
    world.caught("a budget of tokens", known, "FT006", words="/dev/shm", stages=ENV)


def test_a_step_that_does_not_fit_the_device_is_found(world: World) -> None:
    values = {**world.run("classify", "qwen3"), "train.optim": "adamw_torch"}
    found = world.quiet("a small model", values, stages=ENV)["FT009"]
    assert found.status == "pass"
    need = int(found.evidence["total_gb"] * 2**30)
    small = {**values, "train.per_device_train_batch_size": 4096}
    world.caught(
        "activations beyond the GPU",
        small,
        "FT009",
        status="warn",
        words="a training step takes",
        stages=ENV,
        gpus=(Gpu("G", 2**28, "8.0"),),
    )
    world.caught(
        "weights and Adam beyond the GPU",
        values,
        "FT009",
        status="warn",
        words="a training step takes",
        stages=ENV,
        gpus=(Gpu("G", min(need, 2**19), "8.0"),),
    )
    world.quiet("a GPU of unknown memory", values, stages=ENV, gpus=(Gpu("NVIDIA GB10", 0, "12.1"),))


def test_the_memory_of_a_step_by_tokens_is_that_of_its_budget(world: World) -> None:
    values = {**world.run("classify", "qwen3"), "train.max_tokens_per_batch": 1370}
    found = world.quiet("a budget of ten rows of 137", values, stages=ENV)["FT009"]
    assert (found.evidence["rows"], found.evidence["width"]) == (10, 137)
    large = {**values, "train.max_tokens_per_batch": 4096 * 137}
    found = world.caught(
        "a budget beyond the GPU", large, "FT009", status="warn", words="a training step", stages=ENV, gpus=(Gpu("G", 2**28, "8.0"),)
    )
    assert "Lower --max-tokens-per-batch" in found.fix


def test_checkpoints_that_do_not_fit_the_disk_fail(world: World, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    values = {**world.run("classify", "qwen3"), "train.output_dir": tmp_path / "run"}
    monkeypatch.chdir(tmp_path)
    checks = world.quiet("room for checkpoints", values, stages=ENV)
    need = int(checks["FT008"].evidence["needed_gb"] * 2**30)
    assert checks["FT008"].evidence["checkpoints"] == 3
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=need))
    world.caught("room for all but the last checkpoint", values, "FT008", status="warn", words="3 checkpoints", stages=ENV)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=need // 4))
    world.caught("no room for a checkpoint", values, "FT008", words="3 checkpoints", stages=ENV)
    for step in (1, 2):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=need))
    assert world.quiet("two checkpoints are there already", values, stages=ENV)["FT008"].evidence["held"] == 2
    third = checks["FT008"].evidence["weights"] * 4 * 4  # with its optimizer, and the model
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=third))
    world.caught("just room for the third", values, "FT008", status="warn", words="1 more checkpoint of", stages=ENV)


def test_a_version_with_a_defect_that_ftcli_does_not_avoid_warns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = checks_versions.Defect("torch", "2.0", None, "loses bits", "https://example.org/1")
    monkeypatch.setattr(checks_versions, "DEFECTS", (bad,))
    world.caught("a library with a known defect", {}, "FT007", status="warn", words="loses bits", stages=ENV)
    fixed = checks_versions.Defect("torch", None, "2.0", "loses bits", "https://example.org/1")
    monkeypatch.setattr(checks_versions, "DEFECTS", (fixed,))
    assert world.quiet("the defect is mended", {}, stages=ENV)["FT007"].status == "pass"


@pytest.mark.parametrize(
    ("version", "packing", "scaling"),
    [("4.57.0", False, False), ("4.57.1", True, True), ("5.22.9", True, True), ("5.23.0", False, True), ("5.23.0.dev0+cpu", False, True)],
)
def test_versions_are_compared_as_numbers(version: str, packing: bool, scaling: bool) -> None:
    loss, leak = checks_versions.DEFECTS[0], checks_versions.DEFECTS[1]
    assert checks_versions._has(leak, version) == packing
    assert checks_versions._has(loss, version) == scaling


def test_tf32_set_in_two_ways_is_found() -> None:
    code = (
        "import torch; from ftcli.plugins.checks_versions import _tf32; assert not _tf32(); "
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'; print(_tf32())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "allow_tf32" in answer.stdout


@pytest.mark.parametrize("kind", ["qwen3", "gpt2", "bert", "roberta"])
def test_weights_are_counted_from_the_configuration(world: World, kind: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(world.config(kind, hidden_size=128, intermediate_size=512, n_inner=512))
    config.num_labels = 4
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config)
    real = sum(parameter.numel() for parameter in model.parameters())
    assert parameters(config, 4) == pytest.approx(real, rel=0.06)  # a pooler and biases weigh more in a model of two layers


@pytest.mark.parametrize("kind", ["albert", "electra"])
def test_weights_that_layers_share_and_narrow_embeddings_are_counted_once(kind: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.for_model(kind, num_labels=4, hidden_size=768, num_attention_heads=12, intermediate_size=3072)
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config)
    assert parameters(config, 4) == pytest.approx(sum(parameter.numel() for parameter in model.parameters()), rel=0.06)


@pytest.mark.parametrize(("kind", "head"), [("qwen3", None), ("llama", 4), ("bert", 4)])
def test_learned_weights_of_adapters_are_at_least_what_peft_makes(world: World, kind: str, head: int | None) -> None:
    import torch
    from peft import LoraConfig, TaskType, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    from ftcli.core.models.trainable_weights import learned
    from ftcli.settings import Settings

    config = AutoConfig.from_pretrained(world.config(kind, hidden_size=128, intermediate_size=512))
    config.num_labels = head or 2
    family = AutoModelForCausalLM if head is None else AutoModelForSequenceClassification
    with torch.device("meta"):
        model = family.from_config(config)
    kind_of_task = TaskType.CAUSAL_LM if head is None else TaskType.SEQ_CLS
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type=kind_of_task))
    real = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    settings = Settings(model={"lora_r": 8})  # type: ignore[arg-type]
    counted = learned(settings, config, head)
    assert counted is not None
    assert counted.kind == "adapter"
    assert real <= counted.count <= 1.6 * real
    assert counted.kept == 4 * counted.count
    narrow = learned(Settings(model={"lora_r": 8, "load_in_4bit": True}), config, head)  # type: ignore[arg-type]
    assert narrow is not None
    assert narrow.held < counted.held


LARGE = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32}


def test_a_run_that_learns_a_part_needs_space_and_memory_for_that_part(
    world: World, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    values = {**world.run("pretrain"), "model.config": world.config("llama", **LARGE), "train.output_dir": tmp_path / "run"}
    values["train.per_device_train_batch_size"] = 1
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=20 * 2**30))
    card = (Gpu("G", 24 * 2**30, "8.0"),)
    found = world.caught("all of 6.5 billion weights", values, "FT008", "FT009", words="3 checkpoints", stages=ENV, gpus=card)
    assert found.evidence["learned"] == found.evidence["weights"]
    unsaved = {**values, "train.save_strategy": "no"}
    one = world.caught("a model that does not fit", unsaved, "FT008", words="the model needs", select=("FT008",))
    assert one.evidence["checkpoints"] == 0
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=30 * 2**30))
    world.quiet("room for the model, and no checkpoints", unsaved, select=("FT008",), disk_free_bytes=2**40)
    adapter = {**values, "model.lora_r": 16, "model.dtype": "bfloat16"}
    checks = world.quiet("adapters of rank 16", adapter, stages=ENV, gpus=card)
    assert checks["FT008"].status == "pass"
    assert checks["FT008"].evidence["needed_gb"] < 3
    assert checks["FT009"].evidence["gradients"] < 0.2
    assert checks["FT009"].evidence["weights"] == pytest.approx(12.2, abs=0.6)
    narrow = world.quiet("a base of 4 bits", {**adapter, "model.load_in_4bit": True}, stages=ENV, gpus=card)
    assert narrow["FT009"].evidence["weights"] == pytest.approx(3.3, abs=1.5)


def test_states_are_counted_in_their_own_bits(world: World, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    monkeypatch.chdir(tmp_path)
    values = {**world.run("classify"), "model.config": world.config("llama", **LARGE), "train.output_dir": tmp_path / "run"}
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**50))
    sizes = {}
    for name in ("adamw_torch", "paged_adamw_8bit", "adamw_torch_4bit", "adafactor", "ademamix"):
        found = world.quiet(name, {**values, "train.optim": name}, select=("FT008",), disk_free_bytes=2**50)["FT008"]
        model = found.evidence["weights"] * 4 / 2**30
        sizes[name] = (found.evidence["needed_gb"] - model) / found.evidence["checkpoints"] / model
    assert sizes == pytest.approx(
        {"adamw_torch": 3, "paged_adamw_8bit": 1.5, "adamw_torch_4bit": 1.25, "adafactor": 1, "ademamix": 4}, rel=0.02
    )


def test_weights_of_16_bits_by_their_file_are_counted_so(world: World, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = {
        **world.run("classify"),
        "train.output_dir": tmp_path / "run",
        "model.config": world.config("qwen3", dtype="bfloat16", hidden_size=2048, num_hidden_layers=16),
    }
    whole = world.quiet("float32", values, stages=ENV)["FT009"].evidence["gradients"]
    half = world.quiet("what the file says", {**values, "model.dtype": "auto"}, stages=ENV)["FT009"].evidence["gradients"]
    assert half == pytest.approx(whole / 2, rel=0.1)
