"""The store in other hands: `datasets`, plain `transformers.Trainer` and TRL's `SFTTrainer` take it as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import DatasetDict, load_from_disk
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from ftcli.testing import tiny_model
from tokenizing import corpus, prepare, small_tokenizers, write

__all__ = ["small_tokenizers"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_plots")]
VOCABULARY = 640


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.commands.tokenize.filed", lambda report, *_: report)


@pytest.fixture
def folder(small_tokenizers: Mapping[str, Path]) -> Path:
    return small_tokenizers["bpe"]


def opened(folder: Path, tmp_path: Path, labels: Sequence[str] | None = None, **values: Any) -> DatasetDict:
    source = write(tmp_path / "data.jsonl", corpus(400), labels)
    prepare(folder, source, tmp_path / "out", dataset__validation_fraction=0.1, **values)
    found = load_from_disk(str(tmp_path / "out"))
    assert isinstance(found, DatasetDict)
    return found


def options(tmp_path: Path, **values: Any) -> dict[str, Any]:
    return {
        "output_dir": str(tmp_path / "run"),
        "max_steps": 40,
        "per_device_train_batch_size": 8,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        **values,
    }


def learns(trainer: Trainer) -> None:
    """The loss of the last steps is well under that of the first ones."""
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5]), losses


def model_of(kind: str = "qwen3", labels: int | None = None) -> PreTrainedModel:
    return tiny_model(kind, vocab_size=VOCABULARY, labels=labels)


def test_plain_trainer_learns_language_from_it(folder: Path, tmp_path: Path) -> None:
    data = opened(folder, tmp_path, packing__max_length=64)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    trainer = Trainer(
        model=model_of(),
        args=TrainingArguments(**options(tmp_path)),
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    batch = next(iter(trainer.get_train_dataloader()))
    assert {"input_ids", "labels", "attention_mask"} == set(batch)
    learns(trainer)
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("kind", ["qwen3", "bert"])
def test_plain_trainer_learns_classes_from_it(folder: Path, tmp_path: Path, kind: str) -> None:
    labels = [f"class {number % 3}" for number in range(400)]
    data = opened(folder, tmp_path, labels, dataset__label_column="label", packing__max_length=32)
    assert data["train"].features["labels"].names == ["class 0", "class 1", "class 2"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = model_of(kind, labels=3)
    model.config.pad_token_id = tokenizer.pad_token_id
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**options(tmp_path, max_steps=60)),
        train_dataset=data["train"],
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    batch = next(iter(trainer.get_train_dataloader()))
    assert set(batch) == {"input_ids", "labels", "attention_mask"}
    assert batch["labels"].dtype == torch.int64
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-10:]) < sum(losses[:10])


def trl_trainer(data: DatasetDict, folder: Path, tmp_path: Path, **values: Any) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return SFTTrainer(
        model=model_of(),
        args=SFTConfig(**options(tmp_path, bf16=False, **values)),
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=tokenizer,
    )


@pytest.mark.parametrize("skip", [True, False])
def test_trl_trains_on_packed_rows_without_padding(folder: Path, tmp_path: Path, skip: bool) -> None:
    """Whether or not TRL is told that the rows are prepared, positions restart with every document, whose first token is no target."""
    data = opened(folder, tmp_path, packing__strategy="bfd", packing__max_length=128)
    trainer = trl_trainer(
        data,
        folder,
        tmp_path,
        padding_free=True,
        max_length=None,
        per_device_train_batch_size=2,
        dataset_kwargs={"skip_prepare_dataset": skip},
    )
    rows = data["train"].to_list()
    for batch, _ in zip(trainer.get_train_dataloader(), range(5), strict=False):
        positions = batch["position_ids"][0]
        starts = (positions == 0).nonzero().flatten().tolist()
        lengths = [stop - start for start, stop in pairwise([*starts, len(positions)])]
        ids = batch["input_ids"][0].tolist()
        one = next(row for row in rows if ids[: len(row["input_ids"])] == row["input_ids"])
        other = next(row for row in rows if ids[len(one["input_ids"]) :] == row["input_ids"])
        assert lengths == [*one["seq_lengths"], *other["seq_lengths"]]
        targets = batch["labels"][0]
        assert [place for place, target in enumerate(targets.tolist()) if target == -100] == starts
        assert torch.equal(targets[positions > 0], batch["input_ids"][0][positions > 0])
    learns(trainer)


def test_without_our_lengths_trl_would_take_a_pack_for_one_document(folder: Path, tmp_path: Path) -> None:
    data = opened(folder, tmp_path, packing__strategy="bfd", packing__max_length=128).remove_columns("seq_lengths")
    trainer = trl_trainer(data, folder, tmp_path, padding_free=True, max_length=None, per_device_train_batch_size=2)
    assert int((next(iter(trainer.get_train_dataloader()))["position_ids"] == 0).sum()) == 2


def test_trl_trains_on_rows_that_hold_one_document(folder: Path, tmp_path: Path) -> None:
    """Unpacked, TRL prepares the rows itself: it adds labels, and leaves the ids as they are."""
    data = opened(folder, tmp_path, packing__max_length=64)
    trainer = trl_trainer(data, folder, tmp_path, max_length=64)
    known = {tuple(row["input_ids"]) for row in data["train"].to_list()}
    batch = next(iter(trainer.get_train_dataloader()))
    for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"].bool(), batch["labels"], strict=True):
        assert tuple(ids[mask].tolist()) in known
        assert torch.equal(labels[mask], ids[mask])
        assert set(labels[~mask].tolist()) <= {-100}
    learns(trainer)


def test_trl_packs_unpacked_rows_itself(folder: Path, tmp_path: Path) -> None:
    data = opened(folder, tmp_path, packing__max_length=64)
    learns(trl_trainer(data, folder, tmp_path, packing=True, max_length=128, per_device_train_batch_size=2))
