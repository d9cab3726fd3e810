"""Models with parts for images (Gemma 3 and 4) trained on text, and models whose own code cannot compute what their configuration says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import runs
from ftcli.commands.train import run
from ftcli.core.models.adapter import _left_out
from ftcli.core.models.predict import load
from ftcli.core.models.refusals import of_the_model
from ftcli.errors import ModelError
from ftcli.testing import tiny_model
from runs import VOCABULARY, Bench
from stores import packed

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
SIGHT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
KINDS: dict[str, dict[str, Any]] = {
    "gemma3": {"text_config": {**TEXT, "num_hidden_layers": 2}, "vision_config": SIGHT},
    "gemma4": {
        "text_config": {
            **TEXT,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCABULARY,
            "global_head_dim": 32,
        },
        "vision_config": SIGHT,
    },
}
BRIEF = {**runs.BRIEF, "model__config": None}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    bench = Bench.make(tmp_path_factory.mktemp("see"))
    bench.store("plain", {"train": [(ids, None) for ids, *_ in packed(24, 32, VOCABULARY, 0)]}, max_length=32)
    for kind, values in KINDS.items():
        AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**values)).save_pretrained(bench.folder / kind)
    return bench


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_trained_with_lora_and_asked(bench: Bench, kind: str) -> None:
    """peft's choice for Gemma 4 is an expression, which was taken letter by letter; all-linear reached the parts for images, which no text does."""
    report = run(
        bench.context(bench.folder / "plain", f"lora {kind}", model__name_or_path=str(bench.folder / kind), model__lora_r=4, **BRIEF)
    )
    assert report.status == "ok"
    learned = load_file(bench.folder / f"lora {kind}" / "adapter_model.safetensors")
    assert learned
    assert all("language_model" in name for name in learned)
    assert not load(str(bench.folder / f"lora {kind}")).classifies


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_sees_is_asked_like_another(bench: Bench, kind: str) -> None:
    """They are saved as …ForConditionalGeneration, as translators are."""
    run(bench.context(bench.folder / "plain", f"full {kind}", model__name_or_path=str(bench.folder / kind), **BRIEF))
    assert not load(str(bench.folder / f"full {kind}")).classifies


def test_a_configuration_that_only_computing_shows_to_be_wrong_is_named(bench: Bench) -> None:
    values = {
        **TEXT,
        "num_hidden_layers": 1,
        "num_experts": 2,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 16,
        "layer_types": ["full_attention"],
    }
    config = CONFIG_MAPPING["qwen3_5_moe_text"](**values, shared_expert_intermediate_size=16)
    AutoModelForCausalLM.from_config(config).save_pretrained(bench.folder / "routed")
    with pytest.raises(ModelError, match=r"Qwen3_5Moe\w+ cannot compute .*out of range \(modeling_qwen3_5_moe.py, line \d+\)"):
        run(bench.context(bench.folder / "plain", "wrong", model__name_or_path=str(bench.folder / "routed"), **BRIEF))


@pytest.mark.parametrize(
    ("words", "file", "kind"),
    [
        ("sizes do not fit", "/x/transformers/models/kind/modeling_kind.py", ModelError),
        ("CUDA out of memory", "/x/transformers/models/kind/modeling_kind.py", RuntimeError),
        ("can't allocate memory", "/x/transformers/models/kind/modeling_kind.py", RuntimeError),
        ("sizes do not fit", "/x/ftcli/core/models/lean.py", RuntimeError),
    ],
)
def test_memory_that_ran_out_and_other_errors_stay_what_they_are(words: str, file: str, kind: type[Exception]) -> None:
    model, known = tiny_model(vocab_size=64), dict[str, Any]()
    exec(compile(f"def fails():\n    raise RuntimeError({words!r})", file, "exec"), known)
    with pytest.raises((ModelError, RuntimeError), match=words) as raised, of_the_model(model, "compute"):
        known["fails"]()
    assert type(raised.value) is kind


def test_a_type_that_auto_classes_do_not_know_is_said(tmp_path: Path, bench: Bench) -> None:
    values = {**TEXT, "num_hidden_layers": 2, "cross_attention_layers": [1]}
    values.pop("head_dim")
    config = CONFIG_MAPPING["mllama"](text_config=values, vision_config={"hidden_size": 32, "num_hidden_layers": 1})
    config.to_json_file(tmp_path / "mllama.json")
    report = run(bench.context(bench.folder / "plain", "unknown", **{**BRIEF, "model__config": tmp_path / "mllama.json"}))
    assert any("AutoModelForCausalLM does not know mllama_text_model" in note for note in report.notes)


class Router(torch.nn.Linear):
    """As Phi-MoE's, by its name."""


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("qwen3", {"model.vision.proj", "model.language_model.router"}),
        ("falcon_h1", {"model.vision.proj", "model.language_model.router", "model.language_model.out_proj"}),
    ],
)
def test_linear_layers_that_get_no_adapter(kind: str, found: set[str]) -> None:
    parts = {"q_proj": torch.nn.Linear(2, 2), "out_proj": torch.nn.Linear(2, 2), "router": Router(2, 2)}
    inner = torch.nn.ModuleDict(
        {"language_model": torch.nn.ModuleDict(parts), "vision": torch.nn.ModuleDict({"proj": torch.nn.Linear(2, 2)})}
    )
    model = torch.nn.ModuleDict({"model": inner, "lm_head": torch.nn.Linear(2, 2)})
    model.config = SimpleNamespace(model_type=kind)  # type: ignore[assignment]
    assert set(_left_out(model)) == found
