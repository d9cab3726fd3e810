"""Tasks: labels, the true loss, and what they write into a model's configuration."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from ftcli.core.batches.tasks import Classify, Pretrain, count_targets
from ftcli.core.storage.store import Store
from ftcli.errors import DataError, TokenizerError
from ftcli.testing import tiny_config, tiny_model, tiny_tokenizer
from stores import rows_of, write_store


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    return AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def _config():
    fields = tiny_config()
    return AutoConfig.for_model(fields.pop("model_type"), **fields)


def _store(folder: Path, names: list[str] | None) -> Store:
    return write_store(folder, {"train": [([5, 6], 0 if names else None)]}, label_names=names)


def test_the_loss_of_pretraining_is_that_of_transformers() -> None:
    model = tiny_model()
    ids = torch.randint(3, 384, (3, 10))
    labels = ids.clone()
    labels[:, 0] = -100
    labels[1, 6:] = -100
    output = model(input_ids=ids, labels=labels)
    assert torch.allclose(Pretrain().loss(output.logits, labels, None), output.loss, atol=1e-6)
    assert count_targets(labels) == 9 + 5 + 9
    assert torch.allclose(Pretrain().loss(output.logits, labels, 23), output.loss, atol=1e-6)
    assert torch.allclose(Pretrain().loss(output.logits, labels, torch.tensor(46)), output.loss / 2, atol=1e-6)


def test_the_loss_of_classification_is_that_of_transformers_and_is_summed_in_float32() -> None:
    model = tiny_model(labels=7)
    ids, labels = torch.randint(3, 384, (5, 10)), torch.tensor([0, 1, 6, 3, 3])
    output = model(input_ids=ids, labels=labels)
    assert torch.allclose(Classify().loss(output.logits, labels, None), output.loss, atol=1e-6)
    assert count_targets(labels) == 5
    assert Classify().loss(output.logits.bfloat16(), labels, 5).dtype == torch.float32


def test_the_first_token_of_every_text_is_no_target() -> None:
    assert Pretrain().labels(rows_of([[5, 6, 7], [8]])).tolist() == [-100, 6, 7, -100]
    assert Pretrain().labels(rows_of([[5, 6, 7, 8]], documents=[[1, 3]])).tolist() == [-100, -100, 7, 8]
    assert Pretrain().labels(rows_of([[5, 6], []])).tolist() == [-100, 6]


def test_classification_needs_labels() -> None:
    assert Classify().labels(rows_of([[5], [6]], labels=[2, 1])).tolist() == [2, 1]
    with pytest.raises(DataError, match="no labels"):
        Classify().labels(rows_of([[5]]))


def test_the_label_map_and_the_special_tokens_go_into_the_configuration(tmp_path: Path, tokenizer) -> None:
    config, store = _config(), _store(tmp_path / "store", ["a", "b", "c"])
    config.bos_token_id = 99
    Classify().configure(config, store, tokenizer)
    assert (config.num_labels, config.id2label[2], config.label2id["c"]) == (3, "c", 2)
    assert (config.pad_token_id, config.eos_token_id, config.bos_token_id) == (0, 1, 2)
    assert Classify().chance_loss(config, store) == pytest.approx(math.log(3))
    assert Classify().model_class().__name__ == "AutoModelForSequenceClassification"


def test_fewer_than_two_labels_are_refused(tmp_path: Path, tokenizer) -> None:
    with pytest.raises(DataError, match="without labels") as refused:
        Classify().configure(_config(), _store(tmp_path / "none", None), tokenizer)
    assert "--mode pretrain" in refused.value.hint
    with pytest.raises(DataError, match="one label only"):
        Classify().configure(_config(), _store(tmp_path / "one", ["a"]), tokenizer)


def test_a_classifier_without_a_pad_token_is_refused_with_the_way_out(tmp_path: Path) -> None:
    bare = AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path / "tokenizer"), pad_token=None)
    bare.pad_token = None
    with pytest.raises(TokenizerError, match="no PAD token") as refused:
        Classify().configure(_config(), _store(tmp_path / "store", ["a", "b"]), bare)
    assert '"<eos>"' in refused.value.hint


def test_pretraining_leaves_pad_out_when_it_is_eos_too(tmp_path: Path, tokenizer) -> None:
    config, store = _config(), _store(tmp_path / "store", None)
    Pretrain().configure(config, store, tokenizer)
    assert config.pad_token_id == 0
    assert Pretrain().chance_loss(config, store) == pytest.approx(math.log(384))
    shared = AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path / "shared"), pad_token="<eos>")
    Pretrain().configure(config, store, shared)
    assert config.pad_token_id is None
    assert Pretrain().model_class().__name__ == "AutoModelForCausalLM"


@pytest.mark.parametrize("items", [0, torch.tensor(0)])
def test_a_step_without_a_target_has_no_loss_and_no_gradient(items: Any) -> None:
    logits = torch.randn(2, 1, 7, requires_grad=True)
    loss = Pretrain().loss(logits, torch.full((2, 1), 5), items)
    loss.backward()
    assert (float(loss.detach()), logits.grad is not None and bool(logits.grad.any())) == (0.0, False)
