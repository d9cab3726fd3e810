"""What the configuration says of every layer: its heads, its reach, its feed-forward."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedConfig

from ftcli.core.models import flops, sizing
from ftcli.core.models.layers import layers, positions, shortest_window
from ftcli.core.models.step_memory import loss_in_pieces, training_step
from ftcli.core.models.trainable_weights import Learned, learned
from ftcli.settings import Settings

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 128}


def config_of(kind: str, **changes: object) -> PreTrainedConfig:
    found: PreTrainedConfig = AutoConfig.for_model(kind, **{**SMALL, **changes})
    return found


def every_weight(config: PreTrainedConfig) -> Learned:
    found = learned(Settings(), config, None)
    assert found is not None
    return found


def test_layers_that_differ_are_each_their_own() -> None:
    """Gemma 4: transformers raises for `config.head_dim`, which differs between layers."""
    config = config_of(
        "gemma4_unified_text",
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=16,
        per_layer_config={"1": {"head_dim": 24}},
    )
    with pytest.raises(Exception, match="per-layer attribute"):
        _ = config.head_dim
    assert [(layer.width, layer.reach) for layer in layers(config)] == [(8, 16), (24, None)]
    assert shortest_window(config) == 16
    assert sizing.parameters(config) is not None
    step = training_step(
        config, every_weight(config), head=None, rows=2, width=8, optimizer="adamw", half=False, half_weights=False, recompute=True
    )
    assert step.activations == 2 * 8 * 4 * (2 * 32 + 5 * 32 + 3 * 24 * 6 + 4 * 64)


@pytest.mark.parametrize(
    ("kind", "changes", "reaches"),
    [
        ("qwen3", {"num_hidden_layers": 2}, [None, None]),
        ("mistral", {"num_hidden_layers": 2, "sliding_window": 16}, [16, 16]),
        ("qwen2", {"num_hidden_layers": 2, "sliding_window": 16, "use_sliding_window": False}, [None, None]),
        ("qwen3_next", {"num_hidden_layers": 4}, [0, 0, 0, None]),
        ("gemma3_text", {"num_hidden_layers": 6, "sliding_window": 16}, [16, 16, 16, 16, 16, None]),
    ],
)
def test_how_far_a_layer_sees(kind: str, changes: dict[str, object], reaches: list[int | None]) -> None:
    assert [layer.reach for layer in layers(config_of(kind, **changes))] == reaches


def test_a_window_bounds_the_flops_of_attention() -> None:
    lengths = np.array([10, 30])
    values = {"num_hidden_layers": 2, "tie_word_embeddings": False}
    models = [AutoModelForCausalLM.from_config(config_of("mistral", sliding_window=window, **values)) for window in (None, 16)]
    whole, bounded = (flops.flops_per_token(model, lengths) for model in models)
    assert whole is not None
    assert bounded is not None
    assert whole - bounded == pytest.approx(12 * 2 * 32 * ((100 + 900) - (100 + 30 * 16)) / 40)


def test_layers_that_are_passed_often_are_multiplied_as_often() -> None:
    """ALBERT has the weights of one layer for all: 12 passes were counted as one."""
    sizes = {"vocab_size": 64, "embedding_size": 8, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    once, often = (
        AutoModelForSequenceClassification.from_config(
            AutoConfig.for_model("albert", **sizes, num_hidden_layers=layers, num_hidden_groups=1)
        )
        for layers in (1, 6)
    )
    layer = 4 * 32 * 32 + 2 * 32 * 64
    assert flops.multiplied(often) == flops.multiplied(once) + 5 * layer
    lengths = np.array([10])
    attention = 12 * 32 * 10
    assert flops.flops_per_token(often, lengths) == pytest.approx((flops.flops_per_token(once, lengths) or 0) + 5 * (6 * layer + attention))


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", None),
        ("NVIDIA A100X", None),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA RTX A6000", 155e12),
        ("NVIDIA RTX A4000", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H20", None),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA L40", 181e12),
    ],
)
def test_a_card_is_known_by_its_whole_name(device: str, peak: float | None) -> None:
    assert flops.peak_flops(device) == peak


def test_a_feed_forward_may_have_a_width_for_every_layer() -> None:
    config = config_of(
        "gemma3n_text",
        num_hidden_layers=2,
        intermediate_size=[64, 96],
        activation_sparsity_pattern=[0.0, 0.0],
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=16,
        num_kv_shared_layers=0,
    )
    assert [layer.inner for layer in layers(config)] == [64, 96]
    assert shortest_window(config) == 16
    assert sizing.parameters(config) is not None


def test_a_configuration_that_does_not_say_costs_no_run_its_end() -> None:
    model = AutoModelForCausalLM.from_config(config_of("qwen3", num_hidden_layers=2))
    assert flops.flops_per_token(model, np.array([10, 30])) is not None
    values = vars(model.config)
    for name, value in (("intermediate_size", [64]), ("num_hidden_layers", "many"), ("head_dim", [8, 8])):
        kept, values[name] = values[name], value  # what a class checks when it is set
        assert flops.flops_per_token(model, np.array([10, 30])) is None
        assert shortest_window(model.config) is None
        values[name] = kept


@pytest.mark.parametrize(
    ("kind", "changes", "limit"),
    [
        ("qwen3", {"max_position_embeddings": 64}, 64),
        ("deberta-v2", {"max_position_embeddings": 64, "position_biased_input": True}, 64),
        ("deberta-v2", {"max_position_embeddings": 64, "position_biased_input": False, "relative_attention": True}, None),
        ("deberta", {"max_position_embeddings": 64, "position_biased_input": False, "relative_attention": True}, None),
        ("xlnet", {"n_head": 4, "d_model": 32}, None),
        ("bloom", {}, None),
    ],
)
def test_how_long_a_text_may_be(kind: str, changes: dict[str, object], limit: int | None) -> None:
    assert positions(AutoConfig.for_model(kind, **changes)) == limit


def test_what_is_no_transformer_has_no_window() -> None:
    assert shortest_window(AutoConfig.for_model("rwkv", hidden_size=32)) is None


def test_logits_are_counted_as_they_are_there() -> None:
    config = config_of("qwen3", num_hidden_layers=2, vocab_size=100_000)
    asked = {"rows": 64, "width": 512, "optimizer": "adamw", "half": True, "half_weights": False, "recompute": False}
    whole, pieces, on_gpu = (
        training_step(config, every_weight(config), head=None, pieces_on=pieces_on, **asked) for pieces_on in (None, "cpu", "gpu")
    )
    assert whole.logits == 64 * 512 * 100_000 * 10
    assert pieces.logits == 256 * 100_000 * 10
    assert on_gpu.logits == 2**27 * 10
    assert pieces.total - pieces.logits == whole.total - whole.logits


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("qwen3", {}, True),
        ("granite", {"logits_scaling": 1.0}, True),
        ("granite", {"logits_scaling": 8.0}, False),
        ("gemma2", {}, False),
        ("cohere", {}, False),
        ("phi", {}, False),
        ("gpt2", {}, True),
    ],
)
def test_a_loss_in_pieces_is_expected_where_logits_are_a_plain_product(kind: str, changes: dict[str, float], expected: bool) -> None:
    assert loss_in_pieces(AutoConfig.for_model(kind, **changes)) is expected
