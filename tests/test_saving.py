"""Checkpoints and models under crashes: what was there stays, what appears is whole, and plain `Trainer` goes on from it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from crashing import crashing
from ftcli.core.distributed.signals import Signals
from ftcli.core.publishing import staging
from ftcli.core.training import checkpoints, health, saving, train
from ftcli.core.training.callbacks import RunCallback
from ftcli.core.training.meter import Meter
from ftcli.core.training.run import prepare
from ftcli.core.training.trainer import FtcliTrainer
from ftcli.errors import TrainError
from reliability import size
from runs import VOCABULARY, Bench
from stores import learnable


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("bench"))
    made.store("store", {"train": learnable(24, 3, VOCABULARY, 0)}, labels=3)
    return made


@pytest.fixture(scope="module")
def trainer(bench: Bench) -> Iterator[FtcliTrainer]:
    """A trainer after its first step, with nothing saved yet."""
    values = {"train__max_steps": 1, "train__save_strategy": "no", "train__per_device_train_batch_size": 4, "train__verify": False}
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    context = bench.context(bench.folder / "store", "run", **values)
    run = prepare(context)
    meter, signals = Meter(), Signals()
    watch = health.Watch(context.note, stop=True, clip=1.0, scaled=False)
    callback = RunCallback(context, meter, signals, lambda _: None, lambda: None)
    made = train._trainer(run, meter, watch, signals, [callback], checkpoints.identity(context, run.store, run.task.name))
    made.train()
    yield made
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def _save(trainer: FtcliTrainer, step: int, save: Callable[[], Any] | None = None) -> None:
    trainer.state.global_step = step
    (save or (lambda: saving.save_checkpoint(trainer, trainer.identity, trainer.kept(), pytest.fail)))()


def _fresh(trainer: FtcliTrainer, limit: int, steps: tuple[int, ...] = (1, 2)) -> Path:
    """The run's folder with complete checkpoints of these steps and nothing else."""
    run = Path(trainer.args.output_dir)
    kept = run.with_name(f"kept {steps}")
    shutil.rmtree(run)
    if not kept.exists():
        run.mkdir()
        trainer.args.save_total_limit = None
        for step in steps:
            _save(trainer, step)
        run.rename(kept)
    trainer.args.save_total_limit = limit
    shutil.copytree(kept, run)
    return run


def _points(calls: int) -> list[int]:
    """Where to crash: at every call in the full form, at every third and the last in the short one."""
    return sorted({*range(0, calls, size(3, 1)), calls - 1})


def _complete(run: Path) -> list[str]:
    """Every folder that looks like a checkpoint, all proved complete."""
    found = sorted(run.glob("checkpoint-*"))
    assert [checkpoints.damage(folder, full=True) for folder in found] == [""] * len(found)
    return [folder.name for folder in found]


def _damaged_newest(run: Path) -> None:
    (run / "checkpoint-3").mkdir()
    (run / "checkpoint-3" / "optimizer.pt").write_text("half")


@pytest.mark.fault
@pytest.mark.reliability(15, "a crash at every call of a save")
@pytest.mark.parametrize("limit", [1, 2])
def test_a_crash_at_any_call_of_a_save_leaves_complete_checkpoints_only(
    trainer: FtcliTrainer, limit: int, tally: Callable[..., None]
) -> None:
    run = _fresh(trainer, limit)
    before, after = _complete(run), ["checkpoint-2", "checkpoint-3"][-limit:]
    with crashing(run) as counted:
        _save(trainer, 3)
    assert counted.calls > 25
    for point in _points(counted.calls):
        run = _fresh(trainer, limit)
        with crashing(run, point) as crash:
            _save(trainer, 3)
        assert crash.calls > point
        found = _complete(run)
        assert found[-1] in {"checkpoint-2", "checkpoint-3"}
        assert found[:2] == before or found[-1] == "checkpoint-3", "an old one went before the new one was there"
        _save(trainer, 3)  # the next save goes through, and clears what the crash left
        assert sorted(path.name for path in run.iterdir()) == after
    tally(points=len(_points(counted.calls)), wrong=0)


@pytest.mark.fault
@pytest.mark.reliability(15, "a crash while a damaged checkpoint is replaced")
def test_a_crash_while_a_damaged_checkpoint_is_replaced_leaves_the_one_before(trainer: FtcliTrainer, tally: Callable[..., None]) -> None:
    run = _fresh(trainer, 2, (2,))
    _damaged_newest(run)
    with crashing(run) as counted:
        _save(trainer, 3)
    assert _complete(run) == ["checkpoint-2", "checkpoint-3"]
    for point in _points(counted.calls):
        run = _fresh(trainer, 2, (2,))
        _damaged_newest(run)
        with crashing(run, point):
            _save(trainer, 3)
        notes: list[str] = []
        found = checkpoints.newest(run, notes.append)
        assert found is not None
        assert found.name in {"checkpoint-2", "checkpoint-3"}
        assert (found.name == "checkpoint-3") != any("passed over" in note for note in notes)
    tally(points=len(_points(counted.calls)), wrong=0)


@pytest.mark.fault
@pytest.mark.reliability(15, "Trainer's own save", control=True)
def test_trainers_own_save_leaves_half_checkpoints_that_its_resume_takes(trainer: FtcliTrainer, tally: Callable[..., None]) -> None:
    def save() -> None:
        Trainer._save_checkpoint(trainer, trainer.model, None)

    run = _fresh(trainer, 2)
    with crashing(run) as counted:
        _save(trainer, 3, save)
    whole = {path.name for path in (run / "checkpoint-3").iterdir()}
    taken = 0
    for point in _points(counted.calls):
        run = _fresh(trainer, 2)
        with crashing(run, point):
            _save(trainer, 3, save)
        last = get_last_checkpoint(str(run))
        assert last is not None
        taken += Path(last).name == "checkpoint-3" and {path.name for path in Path(last).iterdir()} != whole
    assert taken
    tally(f"Trainer's own save: {taken} of {len(_points(counted.calls))} crashes left a half checkpoint that its resume takes")


def _predicts(folder: Path) -> torch.Tensor | None:
    """The weights of a folder that loads as a model with its tokenizer; None where nothing loads."""
    try:
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError):
        return None
    return torch.cat([parameter.detach().flatten() for _, parameter in sorted(model.named_parameters())])


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_weights_can_be_read_by_whom_the_umask_lets(trainer: FtcliTrainer, umask: int) -> None:
    before = os.umask(umask)
    try:
        run = _fresh(trainer, 2, (1,))
        _save(trainer, 2)
        saving.save_model(trainer, {"step": 2}, pytest.fail)
    finally:
        os.umask(before)
    for folder in (run, run / "checkpoint-2"):
        for name in ("model.safetensors", "config.json"):
            assert (folder / name).stat().st_mode & 0o777 == 0o666 & ~umask, f"{folder.name}/{name}"


@pytest.mark.fault
@pytest.mark.reliability(15, "a crash at every call of the final save")
@pytest.mark.parametrize("older", [False, True], ids=["new", "replaced"])
def test_a_crash_in_the_final_save_leaves_no_half_model(trainer: FtcliTrainer, older: bool, tally: Callable[..., None]) -> None:
    def fresh() -> Path:
        run = _fresh(trainer, 2, (1,))
        if older:
            saving.save_model(trainer, {}, pytest.fail)
            for name in ("config.json", "tokenizer_config.json"):  # marks the older one; weights stay the same
                (run / name).write_text((run / name).read_text() + "\n")
        return run

    run = fresh()
    with crashing(run) as counted:
        saving.save_model(trainer, {"step": 1}, pytest.fail)
    wanted = _predicts(run)
    assert wanted is not None
    manifest = json.loads((run / staging.MODEL_MANIFEST).read_text())
    assert {entry["path"] for entry in manifest["files"]} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert not list(run.glob(".saving*"))
    loads = 0
    for point in _points(counted.calls):
        run = fresh()
        with crashing(run, point):
            saving.save_model(trainer, {"step": 1}, pytest.fail)
        if (run / "config.json").exists():
            loads += 1
            marked = [(run / name).read_text().endswith("\n\n") for name in ("config.json", "tokenizer_config.json")]
            assert len(set(marked)) == 1, "a mixture of two models"
            names = {path.name for path in run.iterdir() if path.is_file()}
            assert {"model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
            assert (run / "model.safetensors").stat().st_size > 1000
        assert _complete(run) == ["checkpoint-1"]
    assert loads
    tally(points=len(_points(counted.calls)), wrong=0)


def _plain(folder: Path, output: Path, **changes: Any) -> Trainer:
    """Plain `Trainer` on a checkpoint's model."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    rows = [{"input_ids": [11, 12, 13], "attention_mask": [1, 1, 1], "labels": 1}] * 24
    given = {
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return Trainer(model, TrainingArguments(str(output), **{**given, **changes}), train_dataset=rows)


def test_plain_trainer_goes_on_from_our_checkpoint(trainer: FtcliTrainer, tmp_path: Path) -> None:
    run = _fresh(trainer, 2, (1,))
    plain = _plain(run / "checkpoint-1", tmp_path)
    plain.train(resume_from_checkpoint=str(run / "checkpoint-1"))
    assert plain.state.global_step == 3


@pytest.mark.fault
@pytest.mark.reliability(21, "plain Trainer", control=True)
def test_plain_trainer_goes_on_with_the_old_learning_rate_and_says_nothing(
    trainer: FtcliTrainer, tmp_path: Path, tally: Callable[..., None], recwarn: pytest.WarningsRecorder
) -> None:
    run = _fresh(trainer, 2, (1,))
    plain = _plain(run / "checkpoint-1", tmp_path, learning_rate=0.7, seed=8, lr_scheduler_type="constant")
    plain.train(resume_from_checkpoint=str(run / "checkpoint-1"))
    assert plain.state.global_step == 3
    assert plain.optimizer.param_groups[0]["lr"] < 0.01
    assert not [warning for warning in recwarn if "learning" in str(warning.message)]
    tally("plain Trainer goes on with a changed seed, and with the old learning rate, in silence")


FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "config.json")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "bit flip": _flip,
}


@pytest.mark.fault
@pytest.mark.reliability(16, "six files, four damages")
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_taken(trainer: FtcliTrainer, tally: Callable[..., None]) -> None:
    for name in FILES:
        for damage in DAMAGES.values():
            run = _fresh(trainer, 2)
            damage(run / "checkpoint-2" / name)
            notes: list[str] = []
            assert checkpoints.choose("auto", run, notes.append) == run / "checkpoint-1"
            assert f"checkpoint-2 is passed over: {name} " in notes[0]
            with pytest.raises(TrainError, match=f"checkpoint-2 cannot be used: {name} "):
                checkpoints.choose(str(run / "checkpoint-2"), run, notes.append)
    tally(damages=len(FILES) * len(DAMAGES), silent=0)


@pytest.mark.fault
@pytest.mark.reliability(16, "plain Trainer", control=True)
def test_plain_trainer_takes_a_checkpoint_without_its_optimizer(trainer: FtcliTrainer, tmp_path: Path, tally: Callable[..., None]) -> None:
    run = _fresh(trainer, 2, (1,))
    (run / "checkpoint-1" / "optimizer.pt").unlink()
    plain = _plain(run / "checkpoint-1", tmp_path)
    plain.train(resume_from_checkpoint=str(run / "checkpoint-1"))
    assert plain.state.global_step == 3
    tally("plain Trainer goes on without its optimizer's states, in silence")


@pytest.mark.fault
@pytest.mark.reliability(23, "a limit that the files of a checkpoint exceed, one after the other")
def test_a_checkpoint_that_cannot_be_written_leaves_those_before(trainer: FtcliTrainer, tally: Callable[..., None]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = sorted({path.stat().st_size for path in (_fresh(trainer, 2, (1,)) / "checkpoint-1").iterdir()})
    for size_limit in sizes:
        run = _fresh(trainer, 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_limit - 1, hard))  # the real calls of torch and safetensors fail
        try:
            with pytest.raises(
                TrainError, match=r"checkpoint-3 cannot be written: .*bytes of it were written.*bytes are free there"
            ) as refused:
                _save(trainer, 3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "--resume-from-checkpoint auto" in refused.value.hint
        assert ("ulimit -f" in refused.value.hint) is ("File too large" in refused.value.message)  # torch does not say why
        assert _complete(run) == ["checkpoint-1", "checkpoint-2"]
        assert not list(run.glob(".saving*"))
    tally(limits=len(sizes), lost=0)


def test_a_full_folder_of_temporary_files_costs_no_checkpoint(trainer: FtcliTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _fresh(trainer, 2, (1,))
    monkeypatch.setattr(saving, "several", lambda: True)
    monkeypatch.setattr(tempfile, "tempdir", str(run / "none"))
    _save(trainer, 3)
    assert _complete(run) == ["checkpoint-1", "checkpoint-3"]
    assert (run / "checkpoint-3" / "rng_state.pth").stat().st_size
    assert not list(run.glob(".saving*"))

    def refused(_: str) -> None:
        raise RuntimeError("unexpected pos 64 vs 0")

    monkeypatch.setattr(trainer, "_save_rng_state", refused)
    with pytest.raises(TrainError, match="checkpoint-4 cannot be written: unexpected pos 64 vs 0"):
        _save(trainer, 4)
    assert not list(run.glob(".saving*"))


@pytest.mark.fault
@pytest.mark.reliability(23, "Trainer's own save", control=True)
def test_trainers_own_save_leaves_a_half_checkpoint_on_a_full_disk(trainer: FtcliTrainer, tally: Callable[..., None]) -> None:
    run = _fresh(trainer, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = (run / "checkpoint-2" / "optimizer.pt").stat().st_size - 1
    trainer.state.global_step = 3
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises((OSError, RuntimeError)):
            Trainer._save_checkpoint(trainer, trainer.model, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert get_last_checkpoint(str(run)) == str(run / "checkpoint-3")
    assert not (run / "checkpoint-3" / "trainer_state.json").exists()
    tally("Trainer's own save leaves a half checkpoint that its resume takes")


def test_values_that_are_no_numbers_are_saved_neither_as_weights_nor_as_states(trainer: FtcliTrainer) -> None:
    run = _fresh(trainer, 2, ())
    state = next(iter(trainer.optimizer.state.values()))["exp_avg_sq"]
    before = state.clone()
    try:
        state.view(-1)[0] = float("inf")
        with pytest.raises(TrainError, match="the optimizer's states contain NaN or infinity: nothing is saved"):
            trainer._save_checkpoint(None, None)
        assert list(run.iterdir()) == []
    finally:
        state.copy_(before)
    _save(trainer, 4)
    assert load_file(run / "checkpoint-4" / "model.safetensors")


def test_a_damaged_best_checkpoint_is_not_loaded_at_the_end(trainer: FtcliTrainer) -> None:
    run = _fresh(trainer, 2, (1,))
    weights = run / "checkpoint-1" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-200] ^= 1
    weights.write_bytes(content)
    trainer.state.best_model_checkpoint = str(run / "checkpoint-1")
    try:
        with pytest.raises(TrainError, match=r"best checkpoint .* cannot be used: model.safetensors has the content hash"):
            trainer._load_best_model()
    finally:
        trainer.state.best_model_checkpoint = None
