"""Checkpoints: only a complete one of the same run is gone on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from durability import watched
from ftcli.core.publishing import staging
from ftcli.core.training import checkpoints
from ftcli.errors import TrainError
from stores import context, write_store

IDENTITY = {"data": "x", "train.learning_rate": 0.1, "train.max_steps": 3}


def _checkpoint(run: Path, step: int) -> Path:
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for name in (*checkpoints.NEEDED, "model.safetensors"):
        (folder / name).write_text("something")
    checkpoints.seal(folder, IDENTITY)
    return folder


def flip(path: Path) -> None:
    """Change one bit in the middle; the size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_newest_is_that_of_the_highest_step(tmp_path: Path) -> None:
    notes: list[str] = []
    assert checkpoints.newest(tmp_path, notes.append) is None
    for step in (2, 10, 9):
        _checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    assert checkpoints.newest(tmp_path, notes.append) == tmp_path / "checkpoint-10"
    assert not notes


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / checkpoints.MARKER).unlink(), "incomplete"),
        (lambda folder: (folder / checkpoints.MARKER).write_text("{"), "cannot be read"),
        (lambda folder: flip(folder / checkpoints.MARKER), "cannot be read"),
        (lambda folder: flip(folder / "optimizer.pt"), "optimizer.pt has the content hash"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: (folder / "model.safetensors").write_text("some"), "has 4 bytes instead of 9"),
    ],
)
def test_a_damaged_newest_is_passed_over_and_refused_by_name(tmp_path: Path, damage: Any, reason: str) -> None:
    good, bad = _checkpoint(tmp_path, 1), _checkpoint(tmp_path, 2)
    damage(bad)
    notes: list[str] = []
    assert checkpoints.choose("auto", tmp_path, notes.append) == good
    assert reason in notes[0]
    with pytest.raises(TrainError, match=reason):
        checkpoints.choose(str(bad), tmp_path, notes.append)
    assert checkpoints.choose(str(good), tmp_path, notes.append) == good


def test_a_checkpoint_without_its_optimizer_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    checkpoints.seal(folder, IDENTITY)
    assert checkpoints.damage(folder) == "it was saved without optimizer.pt"


def test_a_bit_in_the_middle_of_a_large_file_is_found_by_whoever_goes_on_from_it(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    for name in checkpoints.NEEDED:
        (folder / name).write_bytes(bytes(200_000))
    checkpoints.seal(folder, IDENTITY)
    flip(folder / "optimizer.pt")
    assert checkpoints.damage(folder) == ""  # a look at sizes and edges, as rotation takes it
    assert "optimizer.pt has the content hash" in checkpoints.damage(folder, full=True)
    with pytest.raises(TrainError, match=r"optimizer.pt has the content hash"):
        checkpoints.choose(str(folder), tmp_path, [].append)


def test_a_checkpoint_is_durable_before_it_appears_and_its_name_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = staging.begin(tmp_path / "checkpoint-1")
    (staged / "states").mkdir()
    for name in ("a.bin", "states/b.bin"):
        (staged / name).write_text("something")
    steps = watched(monkeypatch)
    staging.sealed(staged, "manifest.json", {})
    staging.appear(staged, tmp_path / "checkpoint-1")
    assert steps == [
        *("sync a.bin", "sync b.bin", "sync manifest.json", "sync states", "sync .saving-checkpoint-1"),
        *("move checkpoint-1", f"sync {tmp_path.name}"),
    ]


@pytest.mark.parametrize("swaps", [True, False], ids=["exchanged", "moved"])
def test_a_checkpoint_that_replaces_a_damaged_one_is_durable_before_the_old_one_is_removed(
    tmp_path: Path, swaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = _checkpoint(tmp_path, 1)
    staged = staging.begin(final)
    (staged / "a.bin").write_text("new")
    exchange = staging.exchange
    steps = watched(monkeypatch)
    monkeypatch.setattr(staging, "exchange", lambda one, other: swaps and exchange(one, other))
    monkeypatch.setattr(staging.shutil, "rmtree", lambda path, **_: steps.append(f"clear {path.name}"))
    staging.appear(staged, final)
    moved = (
        []
        if swaps
        else ["clear .removing-checkpoint-1", "move .removing-checkpoint-1", "clear .removing-checkpoint-1", "move checkpoint-1"]
    )
    assert steps == [*moved, f"sync {tmp_path.name}", "clear .saving-checkpoint-1"]
    assert (final / "a.bin").read_text() == "new"


def test_a_model_that_replaces_another_is_durable_before_anything_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "run"
    output.mkdir()
    for names in (("config.json", "weights.bin", "stale.bin"), ("config.json", "weights.bin")):
        staged = staging.begin(output / "model")
        for name in names:
            (staged / name).write_text("something")
        with monkeypatch.context() as patch:
            steps = watched(patch)
            staging.publish_model(staged, output, {})
    assert steps == [
        *("sync config.json", "sync weights.bin", "sync ftcli-model.json", "sync .saving-model"),
        *("remove config.json", "remove ftcli-model.json", "sync run"),
        *("remove stale.bin", "move weights.bin", "move ftcli-model.json", "sync run"),
        *("move config.json", "sync run"),
    ]


def test_a_model_that_is_withdrawn_is_durably_none_before_its_weights_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = staging.begin(tmp_path / "model")
    for name in ("config.json", "a.safetensors"):
        (staged / name).write_text("something")
    staging.publish_model(staged, tmp_path, {})
    steps = watched(monkeypatch)
    staging.withdraw(tmp_path)
    assert steps[-3:] == ["remove config.json", f"sync {tmp_path.name}", "remove a.safetensors"]


def test_who_goes_back_takes_the_step_itself_and_leaves_nothing_newer(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        _checkpoint(tmp_path, step)
    assert checkpoints.go_back(tmp_path, 2, pytest.fail) == tmp_path / "checkpoint-2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-2"]
    assert checkpoints.go_back(tmp_path, 0, pytest.fail) is None


def test_only_complete_checkpoints_count_and_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        _checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-4" / "scheduler.pt").unlink()
    checkpoints.rotate(tmp_path, 2, None, pytest.fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-4", "checkpoint-5"]
    checkpoints.rotate(tmp_path, 1, str(tmp_path / "checkpoint-3"), pytest.fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-4", "checkpoint-5"]
    checkpoints.rotate(tmp_path, None, None, pytest.fail)
    checkpoints.rotate(tmp_path, 1, None, pytest.fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-4", "checkpoint-5"]


def test_a_folder_that_cannot_be_removed_is_said_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    for step in (1, 2):
        _checkpoint(tmp_path, step)

    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(staging, "remove", refuse)
    checkpoints.rotate(tmp_path, 1, None, notes.append)
    assert "checkpoint-1 cannot be removed: Permission denied" in notes[0]


def test_checkpoints_of_sharded_runs_are_complete_too(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    for name in ("trainer_state.json", "scheduler.pt", "optimizer_0/__0_0.distcp", "pytorch_model_fsdp_0/.metadata", "rng_state_0.pth"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("something")
    checkpoints.seal(folder, IDENTITY)
    assert checkpoints.damage(folder, full=True) == ""


def test_auto_without_a_checkpoint_starts_at_zero_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    notes: list[str] = []
    assert checkpoints.choose("auto", tmp_path, notes.append) is None
    assert "step 0" in notes[0]
    with pytest.raises(TrainError, match="does not exist"):
        checkpoints.choose(str(tmp_path / "checkpoint-7"), tmp_path, notes.append)


@pytest.mark.reliability(21, "data, learning rate and length")
def test_what_would_break_exactness_is_listed_and_a_new_length_only_noted(tmp_path: Path) -> None:
    folder, notes = _checkpoint(tmp_path, 1), []
    checkpoints.compare(folder, IDENTITY, notes.append)
    assert not notes
    checkpoints.compare(folder, {**IDENTITY, "train.max_steps": 9}, notes.append)
    assert "was 3 in checkpoint-1 and is 9 now" in notes[0]
    with pytest.raises(TrainError, match=r"the prepared data, .* was x, now y; train.learning_rate, .* was 0.1, now 0.2"):
        checkpoints.compare(folder, {**IDENTITY, "data": "y", "train.learning_rate": 0.2}, notes.append)


def test_the_identity_holds_data_mode_processes_and_settings(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", {"train": [([5], None)]})
    found = checkpoints.identity(context(train__learning_rate=0.25), store, "pretrain")
    assert (found["mode"], found["processes"], found["train.learning_rate"]) == ("pretrain", 1, 0.25)
    assert found["data"] == store.fingerprint
    assert json.loads(json.dumps(found)) == found


def _goes_on(
    tmp_path: Path, before: dict[str, Any], now: dict[str, Any], *, settled: tuple[str, str] = ("float32", "float32")
) -> list[str]:
    """What is noted when a run goes on with other settings."""
    store = write_store(tmp_path / "store", {"train": [([5], None)]})
    old, new = (
        checkpoints.identity(context(**values), store, "pretrain", precision)
        for values, precision in zip((before, now), settled, strict=True)
    )
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    checkpoints.seal(folder, old)
    notes: list[str] = []
    checkpoints.compare(folder, new, notes.append)
    return notes


def test_the_order_in_which_a_mapping_is_given_says_nothing(tmp_path: Path) -> None:
    one, other = {"min_lr_rate": 0.1, "num_cycles": 0.5}, {"num_cycles": 0.5, "min_lr_rate": 0.1}
    assert not _goes_on(tmp_path, {"train__lr_scheduler_kwargs": one}, {"train__lr_scheduler_kwargs": other})


CHANGES: dict[str, Any] = {
    "train.seed": 7,
    "train.data_seed": 7,
    "train.per_device_train_batch_size": 5,
    "train.max_tokens_per_batch": 900,
    "train.gradient_accumulation_steps": 3,
    "train.learning_rate": 0.5,
    "train.lr_scheduler_type": "cosine",
    "train.warmup_steps": 7.0,
    "train.optim": "sgd",
    "train.weight_decay": 0.2,
    "train.max_grad_norm": 0.7,
    "train.train_sampling_strategy": "sequential",
    "train.lr_scheduler_kwargs": {"num_cycles": 2},
    "train.adam_beta1": 0.8,
    "train.adam_beta2": 0.9,
    "train.adam_epsilon": 1e-6,
    "train.optim_args": "a=1",
    "train.optim_target_modules": ["mlp"],
    "train.neftune_noise_alpha": 5.0,
    "train.ignore_data_skip": True,
    "train.dataloader_drop_last": True,
    "train.lean_step": "off",
    "train.torch_compile": True,
    "train.torch_compile_backend": "eager",
    "train.torch_compile_mode": "reduce-overhead",
    "train.use_liger_kernel": True,
    "train.liger_kernel_config": {"rope": False},
    "train.tf32": True,
    "train.accelerator_config": {"split_batches": True},
    "loader.collator": "fixed",
    "loader.pad_to_multiple_of": 8,
    "model.config_overrides": "hidden_size=8",
    "model.dtype": "bfloat16",
    "model.lora_r": 4,
    "model.lora_alpha": 4,
    "model.lora_dropout": 0.1,
    "model.lora_target_modules": ["q_proj"],
    "model.load_in_4bit": True,
    "model.freeze_backbone": True,
    "train.class_weights": "balanced",
    "train.metric_for_best_model": "eval_f1",
    "train.greater_is_better": True,
}
"""Of every setting that a continued run cannot change, another value than its default."""


@pytest.mark.parametrize("key", CHANGES)
def test_a_setting_that_changes_the_mathematics_is_refused_by_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(TrainError, match=rf"{key}(, .*)? was .*, now "):
        _goes_on(tmp_path, {}, {key.replace(".", "__"): CHANGES[key]})


def test_every_setting_that_is_compared_is_tried() -> None:
    assert {*checkpoints.EXACT} == {*CHANGES}


@pytest.mark.parametrize("kind", ["file", "folder", "model"])
def test_a_configuration_that_was_edited_is_refused_by_its_keys(tmp_path: Path, kind: str) -> None:
    """A folder had no hash, and of --model-name-or-path nothing was compared: the run went on as another model."""
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, eps in ((before, 1e-6), (after, 0.01)):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "rms_norm_eps": eps}))
    key = "model__name_or_path" if kind == "model" else "model__config"
    old, new = (str(folder) if kind == "model" else folder / "config.json" if kind == "file" else folder for folder in (before, after))
    with pytest.raises(TrainError, match=r"the configuration of the model differs in rms_norm_eps \(was 1e-06, now 0\.01\)"):
        _goes_on(tmp_path, {key: old}, {key: new})


def test_the_same_configuration_written_otherwise_is_the_same(tmp_path: Path) -> None:
    values = {"model_type": "qwen3", "rms_norm_eps": 1e-6, "transformers_version": "5.0"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "other.json").write_text(json.dumps(dict(sorted(values.items())) | {"transformers_version": "5.23"}, indent=1))
    assert not _goes_on(tmp_path, {"model__config": tmp_path}, {"model__config": tmp_path / "other.json"})


def test_epochs_say_nothing_where_steps_decide(tmp_path: Path) -> None:
    values = {"train__max_steps": 9}
    assert not _goes_on(tmp_path, values, values | {"train__num_train_epochs": 7.0})


def test_other_kernels_are_noted(tmp_path: Path) -> None:
    (said,) = _goes_on(tmp_path, {}, {"model__attn_implementation": "eager"})
    assert said.startswith("model.attn_implementation was None in checkpoint-1 and is eager now: the weights may differ")


@pytest.mark.parametrize(("old", "flag"), [("float32", "--no-bf16"), ("bfloat16", "--bf16"), ("float16", "--fp16")])
def test_another_precision_is_refused_also_where_the_machine_has_chosen_it(tmp_path: Path, old: str, flag: str) -> None:
    """What was settled counts, not what was asked for: `bf16` unset follows the machine."""
    new = "float32" if old != "float32" else "bfloat16"
    with pytest.raises(TrainError, match=f"the precision, .* was {old}, now {new}") as caught:
        _goes_on(tmp_path, {"train__bf16": None}, {"train__bf16": None}, settled=(old, new))
    assert f"{flag} asks for {old}" in caught.value.hint


def test_what_an_older_checkpoint_does_not_say_is_not_compared_and_noted(tmp_path: Path) -> None:
    folder, notes = _checkpoint(tmp_path, 1), []
    checkpoints.compare(folder, {**IDENTITY, "precision": "float32"}, notes.append)
    assert notes == ["checkpoint-1 and this run cannot be compared in precision, which one of them does not record"]
