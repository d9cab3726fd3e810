"""FSDP and DeepSpeed: what is handed on, and what is refused with a way out."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.integrations import deepspeed as integration

from ftcli.core.distributed.sharding import full, sharding, undivided, whole
from ftcli.errors import FtcliError, MissingExtraError, SettingsError
from ftcli.settings_train import TrainSettings


def found(ranks: int = 2, **values: Any) -> dict[str, Any]:
    return sharding(TrainSettings(**values), on_gpu=True, ranks=ranks)


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())


def test_without_them_nothing_is_handed_on() -> None:
    assert found() == {}
    assert found(fsdp="false") == {}
    assert sharding(TrainSettings(), on_gpu=False, ranks=1) == {}


@pytest.mark.parametrize(("word", "value"), [("true", True), ("full_shard", True), ("shard_grad_op auto_wrap", "shard_grad_op auto_wrap")])
def test_fsdp_is_handed_on_with_its_configuration_from_a_file_or_as_it_is(word: str, value: bool | str, tmp_path: Path) -> None:
    assert found(fsdp=word) == {"fsdp": value}
    config = {"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}
    assert found(fsdp=word, fsdp_config=config) == {"fsdp": value, "fsdp_config": config}
    (tmp_path / "fsdp.json").write_text(json.dumps(config))
    assert found(fsdp=word, fsdp_config=str(tmp_path / "fsdp.json")) == {"fsdp": value, "fsdp_config": config}


@pytest.mark.usefixtures("deepspeed")
def test_deepspeed_is_handed_on_as_a_document(tmp_path: Path) -> None:
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert found(deepspeed=str(tmp_path / "zero3.json"), ranks=1) == {"deepspeed": {"zero_optimization": {"stage": 2}}}


@pytest.mark.usefixtures("deepspeed")
@pytest.mark.parametrize(
    ("values", "on_gpu", "ranks", "message"),
    [
        ({"fsdp": "full_shard"}, False, 2, "train.fsdp is set, but the run uses CPUs"),
        ({"deepspeed": {}, "fsdp": "true"}, True, 2, None),
        ({"deepspeed": {"a": 1}, "fsdp": "true"}, True, 2, "both set"),
        ({"deepspeed": {"a": 1}}, False, 2, "train.deepspeed is set, but the run uses CPUs"),
        ({"fsdp": "full_shard"}, True, 1, "one process to shard over"),
        ({"fsdp_config": {"a": 1}}, True, 2, "train.fsdp_config is set, but train.fsdp is not"),
        ({"deepspeed": "nowhere.json"}, True, 2, "nowhere.json: No such file"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], on_gpu: bool, ranks: int, message: str | None) -> None:
    if message is None:
        assert sharding(TrainSettings(**values), on_gpu=on_gpu, ranks=ranks) == {"fsdp": True}
        return
    with pytest.raises(SettingsError, match=message) as refused:
        sharding(TrainSettings(**values), on_gpu=on_gpu, ranks=ranks)
    assert refused.value.hint


@pytest.mark.usefixtures("deepspeed")
@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[1]", "holds a list")])
def test_a_file_that_is_no_configuration_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(FtcliError, match=message):
        found(deepspeed=str(tmp_path / "bad.json"))


def test_deepspeed_that_is_not_installed_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="needs the package deepspeed") as refused:
        found(deepspeed={"zero_optimization": {"stage": 2}})
    assert "pip install 'ftcli[deepspeed]'" in refused.value.hint
    with pytest.raises(SettingsError, match=r"nowhere\.json: No such file"):
        found(deepspeed="nowhere.json")


def test_a_ranks_part_of_a_weight_is_looked_at() -> None:
    class Sharded:
        def to_local(self) -> torch.Tensor:
            return torch.ones(2)

    assert torch.equal(whole(Sharded()), torch.ones(2))  # type: ignore[arg-type]
    assert torch.equal(whole(torch.zeros(3)), torch.zeros(3))


@pytest.mark.usefixtures("deepspeed")
def test_zero_3_ends_with_a_model() -> None:
    """Without the key transformers writes none, and warns."""
    key = "stage3_gather_16bit_weights_on_model_save"
    assert found(deepspeed={"zero_optimization": {"stage": 3}}) == {"deepspeed": {"zero_optimization": {"stage": 3, key: True}}}
    assert found(deepspeed={"zero_optimization": {"stage": 2}}) == {"deepspeed": {"zero_optimization": {"stage": 2}}}
    with pytest.raises(SettingsError, match="would end without a saved model"):
        found(deepspeed={"zero_optimization": {"stage": 3, key: False}})


def test_a_model_is_made_whole_under_zero_3() -> None:
    class Config:
        """As transformers keeps it, by a weak reference."""

        def is_zero3(self) -> bool:
            return True

    config = Config()
    integration.set_hf_deepspeed_config(config)
    try:
        with undivided(SimpleNamespace(hf_deepspeed_config=config)):
            assert not integration.is_deepspeed_zero3_enabled()
        assert integration._hf_deepspeed_config_weak_ref() is config
        with undivided(SimpleNamespace(hf_deepspeed_config=None)):
            assert integration._hf_deepspeed_config_weak_ref() is config
    finally:
        integration.unset_hf_deepspeed_config()


def test_parts_of_tensors_and_whole_ones() -> None:
    part = torch.zeros(3)
    divided = torch.zeros(0)
    divided.ds_tensor = part  # type: ignore[attr-defined]
    assert whole(divided) is part
    assert full(part) is part
    assert full(SimpleNamespace(full_tensor=lambda: part)) is part
    assert full(1.5) == 1.5
