"""Adapters that another program trained, or one that was trained on a base of 4 bits, on their base and merged with it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BitsAndBytesConfig

from ftcli.core.models.adapter import describe
from ftcli.core.models.merge import load_adapted, merge
from ftcli.core.models.predict import load, predict
from ftcli.errors import ModelError, UsageError
from ftcli.testing import TEXTS, run, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

FOUR_BITS = BitsAndBytesConfig(load_in_4bit=True).to_dict()


def _adapted(folder: Path, labels: int | None = None, **config: Any) -> Any:
    """A model with an adapter, whose base lies in `folder`/base without a tokenizer; and the adapter in `folder`/adapter."""
    model = tiny_model(labels=labels)
    for name, value in config.items():
        setattr(model.config, name, value)
    model.save_pretrained(folder / "base")
    model.name_or_path = str(folder / "base")
    kind = TaskType.CAUSAL_LM if labels is None else TaskType.SEQ_CLS
    made = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type=kind, init_lora_weights=False))
    made.save_pretrained(str(folder / "adapter"))
    return made


def test_an_adapter_of_a_base_in_4_bits_is_put_on_the_base_as_it_lies(tmp_path: Path) -> None:
    made = _adapted(tmp_path)
    made.get_base_model().config.quantization_config = FOUR_BITS
    made.get_base_model().config.save_pretrained(tmp_path / "adapter")
    assert load_adapted(tmp_path / "adapter").dtype == torch.float32


@pytest.mark.parametrize("on_file", [False, True])
def test_an_adapter_says_of_its_base_what_the_base_says_itself(tmp_path: Path, on_file: bool) -> None:
    made = _adapted(tmp_path)
    base = made.get_base_model()
    base.config.quantization_config, base.hf_quantizer = FOUR_BITS, SimpleNamespace(pre_quantized=on_file)
    describe(made, tmp_path / "adapter")
    assert ("quantization_config" in json.loads((tmp_path / "adapter" / "config.json").read_text())) == on_file
    assert base.config.quantization_config == FOUR_BITS


def test_a_base_that_needs_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _adapted(tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise ImportError("`bitsandbytes` is required")

    monkeypatch.setattr("ftcli.core.models.merge.AutoModelForCausalLM.from_pretrained", refuse)
    with pytest.raises(ModelError, match="`bitsandbytes` is required"):
        load_adapted(tmp_path / "adapter")


def test_a_base_with_code_of_its_own_is_merged_where_its_code_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    _adapted(tmp_path)
    base = tmp_path / "base"
    tiny_tokenizer(base)
    (base / "mine.py").write_text(
        "from transformers import Qwen3Config, Qwen3ForCausalLM\n\n\nclass MyConfig(Qwen3Config):\n    model_type = 'mine'\n\n\n"
        "class MyForCausalLM(Qwen3ForCausalLM):\n    config_class = MyConfig\n"
    )
    config = json.loads((base / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.MyConfig", "AutoModelForCausalLM": "mine.MyForCausalLM"}}
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        merge(tmp_path / "adapter", tmp_path / "merged")
    assert "add --trust-remote-code" in caught.value.hint
    assert merge(tmp_path / "adapter", tmp_path / "merged", trust=True)["weights"]


def test_a_classifier_without_pad_is_merged_with_the_tokenizer_of_its_base(tmp_path: Path) -> None:
    made = _adapted(tmp_path, labels=3, pad_token_id=None)
    tiny_tokenizer(tmp_path / "base")
    merge(tmp_path / "adapter", tmp_path / "merged")
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    ids = torch.arange(5, 20)[None]
    with torch.no_grad():
        assert torch.allclose(merged(input_ids=ids).logits, made.eval()(input_ids=ids).logits, atol=1e-5)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "merged")) == 384
    assert predict(load(str(tmp_path / "adapter")), TEXTS[:1], batch_size=1, max_new_tokens=1)[0]["label"].startswith("LABEL")


def test_an_adapter_without_any_tokenizer_says_so(tmp_path: Path) -> None:
    _adapted(tmp_path)
    with pytest.raises(ModelError, match="tokenizer"):
        merge(tmp_path / "adapter", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_a_merged_model_has_the_type_of_its_base_and_was_compared_in_float32(tmp_path: Path, kind: torch.dtype) -> None:
    made = _adapted(tmp_path)
    tiny_tokenizer(tmp_path / "base")
    made.get_base_model().config.save_pretrained(tmp_path / "adapter")  # says float32, as a run saves it
    tiny_model().to(kind).save_pretrained(tmp_path / "base")
    told = merge(tmp_path / "adapter", tmp_path / "merged")
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {kind}
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == str(kind).removeprefix("torch.") == told["dtype"]
    assert told["largest_difference"] < 1e-4
    assert (told["largest_rounding"] > 0) == (kind != torch.float32)


def test_an_earlier_merged_model_alone_is_replaced(tmp_path: Path) -> None:
    _adapted(tmp_path)
    tiny_tokenizer(tmp_path / "base")
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    merge(adapter, merged)
    (merged / "config.json").unlink()
    with pytest.raises(UsageError, match="already exists") as caught:
        merge(adapter, merged)
    assert "--overwrite" in caught.value.hint
    result = run("merge", adapter, "--output-dir", merged, "--overwrite", "--json")
    assert result.exit_code == 0, result.stderr
    assert (merged / "config.json").is_file()
    (merged / "mine.txt").write_text("kept")
    with pytest.raises(UsageError, match=r"mine\.txt is not of a merged model"):
        merge(adapter, merged, overwrite=True)
    assert (merged / "mine.txt").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base", "merged"]


def test_what_a_merge_reads_is_never_replaced(tmp_path: Path) -> None:
    _adapted(tmp_path)
    tiny_tokenizer(tmp_path / "base")
    merge(tmp_path / "adapter", tmp_path / "merged")
    described = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps({**described, "base_model_name_or_path": str(tmp_path / "merged")})
    )
    (tmp_path / "link").symlink_to(tmp_path / "merged")
    for output in (tmp_path / "adapter", tmp_path / "merged", tmp_path / "link", tmp_path):
        with pytest.raises(UsageError, match="is read from it"):
            merge(tmp_path / "adapter", output, overwrite=True)
    with pytest.raises(UsageError, match="base is not a merged model"):
        merge(tmp_path / "adapter", tmp_path / "base", overwrite=True)
