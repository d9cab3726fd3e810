"""Checks of gradients, outputs, losses and input of the model: the smallest change that breaks each, and what must not be accused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from ftcli.core.storage.store import Store
from ftcli.pluginmanager import Plugins
from verifying import World

STAGES = ("batch", "model")
TASK = """
import ftcli
import torch
from ftcli.core.batches.tasks import {base}, _cross_entropy

class Task({base}):
    def {method}:
        {body}

@ftcli.hookimpl
def register_tasks(register):
    register({base}.name, Task, replace=True)
"""
OUTPUT = "model.score.register_forward_hook(lambda module, args, output: {0})"
FIRST = """original = model.model.forward
        def forward(*args, **rest):
            found = original(*args, **rest)
            found.last_hidden_state = found.last_hidden_state[:, :1].expand_as(found.last_hidden_state)
            return found
        model.model.forward = forward"""
BLIND = "for layer in model.model.layers: layer.self_attn.forward = lambda *args, hidden_states=None, **rest: (hidden_states, None)"
STEEP = """model.model.embed_tokens.register_forward_pre_hook(lambda module, args: setattr(model, "seen", args[0]))
        def steep(module, args):
            if args[0].requires_grad:
                args[0].register_hook(lambda gradient, ids=model.seen: gradient.masked_fill((ids == {0})[..., None], float("nan")))
        model.model.layers[0].register_forward_pre_hook(steep)"""
NOISE = "model.model.norm.register_forward_hook(lambda module, args, output: torch.nn.functional.dropout(output, 0.1, True))"
NOISE_A_LITTLE = "model.model.norm.register_forward_hook(lambda module, args, output: output * (1 + 1e-3 * torch.randn_like(output)))"
ITEMS = "return super().loss(logits, labels, None)"
UNSHIFTED = "return _cross_entropy(logits.flatten(0, 1), labels.flatten(), items)"
TWICE = "return super().loss(logits, torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100), items)"


def _task(world: World, method: str, body: str, base: str = "Classify") -> Plugins:
    return world.plugins(TASK.format(base=base, method=method, body=body))


def _loss(world: World, body: str, base: str = "Classify") -> Plugins:
    return _task(world, "loss(self, logits, labels, items)", body, base)


def _configured(world: World, body: str) -> Plugins:
    return _task(world, "configure(self, config, store, tokenizer)", f"super().configure(config, store, tokenizer); {body}")


# -- outputs -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "change", "words"),
    [
        ("a softmax behind the head", OUTPUT.format("output.softmax(-1)"), "probabilities"),
        ("a sigmoid behind the head", OUTPUT.format("output.sigmoid()"), "between 0 and 1"),
        ("a ReLU behind the head", OUTPUT.format("output.relu()"), "cut at 0"),
    ],
)
def test_outputs_that_are_no_logits_fail(world: World, what: str, change: str, words: str) -> None:
    world.caught(f"S5: {what}", world.run("classify", "qwen3"), "FT404", words=words, stages=STAGES, plugins=world.model(change))


@pytest.mark.parametrize(
    ("what", "change", "found"),
    [
        ("a column of the logits copied", OUTPUT.format("output[..., [0, 0, 2, 3]]"), True),
        ("a head with two equal rows", "model.score.weight.data[1] = model.score.weight.data[0]", False),
        ("a head at zero", "model.score.weight.data.zero_()", False),
    ],
)
def test_two_outputs_that_no_weight_can_part_fail(world: World, what: str, change: str, found: bool) -> None:
    plugins = world.model(change)
    if found:
        check = world.caught(
            f"F1: {what}", world.run("classify", "qwen3"), "FT404", words="never told apart", plugins=plugins, stages=STAGES
        )
        assert "outputs 0 ('billing') and 1 ('delivery')" in check.summary
    else:
        assert world.verify(world.run("classify", "qwen3"), plugins=plugins, stages=STAGES)["FT404"].status == "pass"


def test_a_weight_that_is_nan_where_no_token_looks_fails(world: World) -> None:
    values = world.run("classify", "qwen3", **{"model.config": world.config("qwen3", vocab_size=512)})
    plugins = world.model("model.model.embed_tokens.weight.data[511] = float('nan')")
    world.caught("O1: an unused embedding row is NaN", values, "FT404", words="contain NaN or infinity", stages=STAGES, plugins=plugins)


@pytest.mark.parametrize("kind", ["qwen3", "bert"])
def test_an_embedding_of_zeros_fails(world: World, kind: str) -> None:
    """Of Qwen3 all logits are 0, and no spread can be told; of BERT the positions differ."""
    plugins = world.model("model.get_input_embeddings().weight.data.zero_()", "Classify")
    check = world.verify(world.run("classify", kind), stages=STAGES, plugins=plugins)["FT404"]
    assert check.status == "fail"
    assert "embedding is all zero" in check.summary


def test_a_head_on_the_first_token_of_a_causal_model_fails(world: World) -> None:
    values, plugins = world.run("classify", "qwen3"), world.model(FIRST)
    check = world.caught("F2: the first token is pooled", values, "FT404", "FT411", words="same logits", stages=STAGES, plugins=plugins)
    assert check.evidence["spread_over_texts"] < 1e-5


def test_a_model_without_attention_fails(world: World) -> None:
    values = world.run("pretrain", "qwen3")
    world.caught("O1: tokens see only themselves", values, "FT405", "FT411", stages=STAGES, plugins=world.model(BLIND, "Pretrain"))


@pytest.mark.parametrize("change", ["torch.zeros_like(batch['position_ids'])", "batch['position_ids'] * 2"])
def test_packs_in_which_every_token_is_a_text_fail(world: World, change: str) -> None:
    plugins = world.collator(f"batch['position_ids'] = {change}", "Packed", "packed")
    values = world.run("packed", "qwen3")
    world.caught(f"F6: position_ids = {change}", values, "FT411", words="have no influence", stages=STAGES, plugins=plugins)


@pytest.mark.parametrize(
    ("what", "body", "words"),
    [
        ("num_labels = 9", "config.num_labels = 9", "it would start at ln 9 = 2.20, not at 1.39"),
        ("a regression", 'config.problem_type = "regression"', "problem_type is 'regression'"),
        ("a label map turned round", "config.id2label = dict(enumerate([*config.id2label.values()][::-1]))", "output 0 is named 'refund'"),
    ],
)
def test_classes_that_are_not_those_of_the_data_fail(world: World, what: str, body: str, words: str) -> None:
    plugins = _configured(world, body)
    world.caught(f"S5: {what}", world.run("classify", "qwen3"), "FT414", words=words, stages=STAGES, plugins=plugins)


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_outputs_than_classes_fail(world: World, count: int) -> None:
    plugins = _configured(world, f"config.num_labels = {count}")
    check = world.caught(f"S5: num_labels = {count}", world.run("classify", "qwen3"), "FT414", "FT403", stages=STAGES, plugins=plugins)
    assert ("regression" in check.summary) == (count == 1)


def test_a_pad_id_that_the_task_sets_wrongly_fails(world: World) -> None:
    plugins = _configured(world, "config.pad_token_id = 7")
    world.caught("S3: config.pad_token_id = 7", world.run("classify", "qwen3"), "FT402", "FT407", stages=STAGES, plugins=plugins)


def test_a_misspelt_mask_fails(world: World) -> None:
    plugins = world.collator('batch["attn_mask"] = batch.pop("attention_mask")')
    values = world.run("classify", "bert")
    check = world.caught("B2: a mask that is called attn_mask", values, "FT415", "FT407", words="attn_mask", stages=STAGES, plugins=plugins)
    assert "attention_mask" in check.fix
    plugins = world.collator('batch["weights"] = batch["attention_mask"].float()')
    assert (
        world.quiet("an argument that no model takes", world.run("classify", "qwen3"), stages=STAGES, plugins=plugins)["FT415"].status
        == "info"
    )


# -- losses --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "status"), [(8, "fail"), (1, "warn")])
def test_a_task_that_ignores_the_count_of_targets_fails_with_accumulation(world: World, steps: int, status: str) -> None:
    values = world.run("classify", "qwen3", **{"train.gradient_accumulation_steps": steps})
    words = "does not scale with the number of targets"
    world.caught(f"F1: own loss, {steps} steps", values, "FT406", status=status, words=words, stages=STAGES, plugins=_loss(world, ITEMS))


def test_processes_count_as_accumulation_does(world: World) -> None:
    check = world.quiet("F1: a plain Trainer on 4 processes", world.run("classify", "qwen3"), env={"WORLD_SIZE": "4"}, stages=STAGES)[
        "FT406"
    ]
    assert check.status == "info"
    assert "would report 4 times the loss" in check.summary
    assert check.evidence["ratio"] == pytest.approx(1.0)
    values = world.run("classify", "qwen3")
    plugins = _loss(world, ITEMS)
    world.caught("F1: own loss, 4 processes", values, "FT406", env={"WORLD_SIZE": "4"}, stages=STAGES, plugins=plugins)


def test_a_model_that_says_so_is_not_accused(world: World) -> None:
    checks = world.quiet(
        "accepts_loss_kwargs", world.run("classify", "qwen3"), stages=STAGES, plugins=world.model("model.accepts_loss_kwargs = False")
    )
    assert checks["FT406"].status == "pass"


@pytest.mark.parametrize(
    ("body", "found"), [("super().loss(100 * logits, labels, items)", True), ("0.3 * super().loss(logits, labels, items)", False)]
)
def test_what_the_run_learns_by_is_compared_with_its_loss(world: World, body: str, found: bool) -> None:
    plugins = _task(world, "training_loss(self, logits, labels, items)", f"return {body}", "Classify")
    values = world.run("classify", "qwen3", **{"model.config": world.config("qwen3", initializer_range=0.2)})
    if found:
        words = "training_loss of mode classify that is"
        world.caught("R1: logits times 100 in training", values, "FT406", status="warn", words=words, stages=STAGES, plugins=plugins)
    else:
        world.quiet("a loss of its own to learn by", values, stages=STAGES, plugins=plugins)


@pytest.mark.parametrize("factor", ["8 *", "-"])
def test_a_multiple_of_the_loss_is_found(world: World, factor: str) -> None:
    plugins = _loss(world, f"return {factor} super().loss(logits, labels, items)")
    check = world.caught(f"R1: loss {factor}", world.run("classify", "qwen3"), "FT403", "FT406", stages=STAGES, plugins=plugins)
    assert check.evidence["loss"] != pytest.approx(1.39, rel=0.2)


@pytest.mark.parametrize(
    ("what", "body", "also", "words"),
    [
        ("labels not shifted", UNSHIFTED, ("FT403", "FT406"), "labels are not shifted"),
        ("labels shifted twice", TWICE, ("FT406",), "labels are shifted twice"),
    ],
)
def test_a_loss_that_shifts_wrongly_is_found_by_the_gradient_of_the_inputs(
    world: World, what: str, body: str, also: tuple[str, ...], words: str
) -> None:
    for kind in ("pretrain", "packed"):
        checks = world.verify(world.run(kind, "qwen3"), stages=STAGES, plugins=_loss(world, body, "Pretrain"))
        assert checks["FT410"].status == "fail"
        assert words in checks["FT410"].summary
    values, plugins = world.run("pretrain", "qwen3"), _loss(world, body, "Pretrain")
    world.caught(f"F5: {what}", values, "FT410", *also, words=words, stages=STAGES, plugins=plugins)


def test_a_shift_is_seen_on_the_left_as_well(world: World) -> None:
    left = """from dataclasses import replace
        self.spec = replace(self.spec, padding_side="left")
        batch = super().__call__(rows)"""
    assert world.verify(world.run("pretrain", "qwen3"), stages=STAGES, plugins=world.collator(left))["FT410"].status == "pass"


def test_a_gradient_that_is_no_number_at_padding_is_no_fault(world: World) -> None:
    """Gemma 3n takes the root of a norm, which is 0 where PAD's embedding is."""
    checks = world.verify(world.run("pretrain", "qwen3"), stages=STAGES, plugins=world.model(STEEP.format("0"), "Pretrain"))
    assert {name: checks[name].status for name in ("FT410", "FT411")} == {"FT410": "pass", "FT411": "pass"}


def test_a_gradient_that_is_no_number_in_a_text_fails_and_is_said(world: World) -> None:
    plugins = world.model(STEEP.format("ids[:, 1:2]"), "Pretrain")
    checks = world.verify(world.run("pretrain", "qwen3"), stages=STAGES, plugins=plugins)
    for name in ("FT410", "FT411"):
        assert checks[name].status == "fail"
        assert "NaN or infinite gradient, first at position 1" in checks[name].summary
    assert "a division at 0" in checks["FT405"].fix


def test_of_a_gradient_that_is_no_number_the_steps_blame_nothing(world: World) -> None:
    change = 'model.score.weight.register_hook(lambda gradient: gradient * float("nan"))'
    check = world.caught(
        "a gradient of NaN", world.run("classify", "qwen3"), "FT405", stages=("model", "steps"), plugins=world.model(change)
    )
    assert "a division at 0" in check.fix


def test_a_model_whose_embedding_is_no_layer_is_not_asked_what_it_reads(world: World) -> None:
    """Perceiver's is the matrix of its latents."""
    plugins = world.model("model.get_input_embeddings = lambda: model.model.embed_tokens.weight")
    check = world.verify(world.run("classify", "qwen3"), stages=STAGES, plugins=plugins)["FT411"]
    assert check.status == "skipped"
    assert "no embedding layer" in check.summary


# -- gradients and repeatability -----------------------------------------------------------------------------------------------------------


def test_a_head_that_starts_at_zero_is_no_fault(world: World) -> None:
    checks = world.quiet(
        "a head of zeros", world.run("classify", "qwen3"), stages=STAGES, plugins=world.model("model.score.weight.data.zero_()")
    )
    assert checks["FT405"].status == "pass"
    assert checks["FT403"].evidence["loss"] == pytest.approx(1.3863, abs=1e-3)


def test_weights_that_are_all_zero_fail(world: World) -> None:
    plugins = world.model("for parameter in model.parameters(): parameter.data.zero_()")
    world.caught(
        "O1: every weight is zero",
        world.run("classify", "qwen3"),
        "FT405",
        "FT404",
        words="the gradient norm is 0",
        stages=STAGES,
        plugins=plugins,
    )


def test_a_new_head_that_is_frozen_fails_and_a_frozen_body_is_said(world: World) -> None:
    plugins = world.model("model.score.requires_grad_(False)")
    world.caught(
        "O1: a frozen new head", world.run("classify", "qwen3"), "FT405", words="would never be trained", stages=STAGES, plugins=plugins
    )
    plugins = world.model("model.model.requires_grad_(False)")
    check = world.quiet("a frozen body", world.run("classify", "qwen3"), stages=STAGES, plugins=plugins)["FT405"]
    assert check.status == "info"
    assert check.evidence["trained_share"] < 0.1


def test_parts_that_a_family_leaves_out_by_design_are_not_accused(world: World) -> None:
    checks = world.quiet("bert's segments and pooler", world.run("pretrain", "gpt2"), stages=STAGES)
    assert checks["FT405"].evidence["without"] == []
    assert checks["FT405"].summary.startswith("every trainable parameter gets a gradient; norm ")
    esm = world.run("classify", **{"model.config": world.config("esm", position_embedding_type="absolute")})
    left_out = world.quiet("esm's contact head", esm, stages=STAGES)["FT405"]
    assert left_out.evidence["without"]
    assert "parameters get a gradient; the others need none; norm " in left_out.summary


def test_dropout_in_evaluation_is_found(world: World) -> None:
    plugins = world.model(NOISE)
    world.caught(
        "dropout in evaluation", world.run("classify", "qwen3"), "FT413", "FT407", words="differ by", stages=STAGES, plugins=plugins
    )


def test_a_little_noise_in_evaluation_is_found_too(world: World) -> None:
    plugins = world.model(NOISE_A_LITTLE)
    check = world.verify(world.run("classify", "qwen3"), stages=STAGES, plugins=plugins)["FT413"]
    assert check.status == "fail"
    assert check.evidence["change"] < 0.05


def test_a_collator_that_does_not_follow_the_seed_warns(world: World) -> None:
    change = 'import os; batch["weights"] = torch.tensor(list(os.urandom(8)))'
    values, plugins = world.run("classify", "qwen3"), world.collator(change)
    world.caught("a collator without seed", values, "FT413", status="warn", words="a different weights", stages=STAGES, plugins=plugins)


@pytest.mark.parametrize(("rate", "status"), [(0.95, "fail"), (0.6, "warn"), (0.4, "pass")])
def test_too_much_dropout_is_found(world: World, rate: float, status: str) -> None:
    values = world.run("classify", "bert", **{"model.config": world.config("bert", hidden_dropout_prob=rate)})
    if status == "pass":
        assert world.quiet("dropout 0.4", values, stages=STAGES)["FT416"].evidence["largest"] == rate
    else:
        world.caught(f"dropout {rate}", values, "FT416", status=status, words=f"drops {rate:.0%}", stages=STAGES)


# -- attention, cache ----------------------------------------------------------------------------------------------------------------------


def test_a_cache_lets_packed_documents_see_each_other(world: World) -> None:
    values = world.run("packed", "qwen3", **{"train.use_cache": True})
    check = world.caught("F6: use_cache", values, "FT408", words="train.use_cache is on", stages=STAGES)
    assert check.fix == "Leave train.use_cache unset."
    assert check.evidence["change"] > 1e-2


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_packs_are_apart_with_either_attention(world: World, attention: str) -> None:
    checks = world.quiet(f"packed, {attention}", world.run("packed", "qwen3", **{"model.attn_implementation": attention}), stages=STAGES)
    assert checks["FT408"].evidence["attention"] == attention


# -- trained weights -----------------------------------------------------------------------------------------------------------------------


def _saved(world: World, folder: Path, head: Any = AutoModelForSequenceClassification, **changes: Any) -> Any:
    config = AutoConfig.for_model(**{**json.loads(world.config("qwen3").read_text()), **changes})
    torch.manual_seed(0)
    model = head.from_config(config)
    model.save_pretrained(folder)
    return model


def test_weights_saved_from_a_compiled_model_fail_and_the_fix_names_the_prefix(world: World, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = _saved(world, tmp_path / "m", num_labels=4)
    weights = {f"_orig_mod.{name}": value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    values = world.run("classify", **{"model.name_or_path": str(tmp_path / "m")})
    check = world.caught("K1: _orig_mod. before every name", values, "FT403", words="missing from the file", stages=STAGES)
    assert "_orig_mod." in check.fix


def test_a_new_head_is_noted_and_a_head_of_another_name_warns(world: World, tmp_path: Path) -> None:
    _saved(world, tmp_path / "lm", AutoModelForCausalLM)
    values = world.run("classify", **{"model.name_or_path": str(tmp_path / "lm")})
    assert "the head is new" in world.quiet("K1: a new head", values, stages=STAGES)["FT412"].summary
    _saved(world, tmp_path / "c", num_labels=4)
    values = world.run("classify", **{"model.name_or_path": str(tmp_path / "c")})
    assert world.quiet("all weights loaded", values, stages=STAGES)["FT412"].status == "pass"


def test_a_language_model_without_its_output_layer_fails(world: World, tmp_path: Path) -> None:
    _saved(world, tmp_path / "c", num_labels=4, tie_word_embeddings=False)
    values = world.run("pretrain", **{"model.name_or_path": str(tmp_path / "c")})
    checks = world.verify(values, stages=STAGES)
    assert checks["FT412"].status == "fail"
    assert "lm_head.weight" in checks["FT412"].summary


@pytest.mark.parametrize(
    ("tied", "same", "status", "words"),
    [
        (True, True, "pass", "all weights"),
        (False, False, "pass", "all weights"),
        (True, False, "warn", "tie_word_embeddings = true"),
        (False, True, "info", "tie_word_embeddings = false"),
    ],
)
def test_an_output_layer_that_is_not_tied_as_the_configuration_says_is_said(
    world: World, tmp_path: Path, tied: bool, same: bool, status: str, words: str
) -> None:
    """transformers 5 then unties them and says so once, on stderr; other releases and programs let one replace the other."""
    from safetensors.torch import save_file

    model = _saved(world, tmp_path / "m", AutoModelForCausalLM, tie_word_embeddings=False)
    if same:
        model.lm_head.weight.data.copy_(model.model.embed_tokens.weight)
    save_file(model.state_dict(), tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    model.config.tie_word_embeddings = tied
    model.config.save_pretrained(tmp_path / "m")
    check = world.verify(world.run("pretrain", **{"model.name_or_path": str(tmp_path / "m")}), stages=STAGES)["FT412"]
    assert (check.status, words in check.summary) == (status, True)
    values = world.run("classify", **{"model.name_or_path": str(tmp_path / "m")})
    assert "the head is new" in world.quiet("a classifier has no such layer", values, stages=STAGES)["FT412"].summary


def test_another_architecture_than_that_of_the_weights_warns(world: World, tmp_path: Path) -> None:
    _saved(world, tmp_path / "c", num_labels=4)
    values = world.run("classify", **{"model.name_or_path": str(tmp_path / "c"), "model.config_overrides": "hidden_act=relu"})
    check = world.caught(
        "K1: hidden_act of the weights overridden", values, "FT412", status="warn", words="hidden_act: silu", stages=STAGES
    )
    assert check.evidence["changed"] == ["hidden_act: silu → relu"]


@pytest.mark.parametrize("head", [AutoModelForSequenceClassification, AutoModelForCausalLM, AutoModel])
def test_layers_that_the_configuration_leaves_out_warn(world: World, tmp_path: Path, head: Any) -> None:
    _saved(world, tmp_path / "c", head, num_labels=4)
    file = tmp_path / "c" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_hidden_layers": 1, "layer_types": ["full_attention"]}))
    values = world.run("classify", **{"model.name_or_path": str(tmp_path / "c")})
    check = world.caught("K1: a layer fewer than the file", values, "FT412", status="warn", words="they are not loaded", stages=STAGES)
    assert "layers.1." in check.evidence["left_out"][0]
    assert "num_hidden_layers" in check.fix


def test_heads_poolers_and_buffers_that_are_not_used_are_no_loss(world: World, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    config = AutoConfig.for_model(**json.loads(world.config("bert").read_text()))
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / "c")
    file = tmp_path / "c" / "model.safetensors"
    more = {"bert.embeddings.position_ids": torch.arange(1024)[None], "bert.pooler.extra.weight": torch.ones(2)}
    save_file({**load_file(file), **more}, file, metadata={"format": "pt"})
    values = world.run("classify", "bert", **{"model.name_or_path": str(tmp_path / "c"), "model.config": None})
    check = world.verify(values, stages=STAGES)["FT412"]
    assert check.status == "info"
    assert any("cls.predictions" in name for name in check.evidence["unused"])


def test_positions_of_trained_weights_may_be_overridden(world: World, tmp_path: Path) -> None:
    """Rotary positions are computed: the run trains, and FT204 asks the run's configuration."""
    longest = int(Store.open(world.labelled).split("train").lengths.max())
    _saved(world, tmp_path / "c", num_labels=4, max_position_embeddings=longest - 1)
    values = world.run("classify", **{"model.name_or_path": str(tmp_path / "c")})
    world.caught("a position too few", values, "FT204", words=f"has {longest - 1} positions", stages=("data",))
    values["model.config_overrides"] = f"max_position_embeddings={longest}"
    assert world.quiet("positions overridden", values, stages=("data", *STAGES))["FT412"].status == "pass"


def test_a_tokenizer_that_is_not_the_models_fails_for_classifiers_too(world: World, tmp_path: Path) -> None:
    _saved(world, tmp_path / "m", num_labels=4)
    values = world.run("classify", **{"model.name_or_path": str(tmp_path / "m")})
    assert "not a folder with its own tokenizer" in world.quiet("no tokenizer beside the weights", values, stages=STAGES)["FT417"].summary
    AutoTokenizer.from_pretrained(world.bpe).save_pretrained(tmp_path / "m")
    assert world.quiet("the model's own tokenizer", values, stages=STAGES)["FT417"].status == "pass"
    AutoTokenizer.from_pretrained(world.wordpiece).save_pretrained(tmp_path / "m")
    world.caught("F7: another tokenizer beside the weights", values, "FT417", words="are different tokens for the model", stages=STAGES)


def test_a_token_that_was_renamed_is_a_warning_and_not_another_tokenizer(world: World, tmp_path: Path) -> None:
    """As BERT's unused tokens are: the rest has its meaning still."""
    _saved(world, tmp_path / "m", num_labels=4)
    AutoTokenizer.from_pretrained(world.bpe).save_pretrained(tmp_path / "m")
    file = tmp_path / "m" / "tokenizer.json"
    words = json.loads(file.read_text())
    vocabulary, ids = words["model"]["vocab"], {int(number) for ids, _ in world.rows(world.labelled)[:4] for number in ids}
    name = next(name for name, number in vocabulary.items() if number in ids and len(name) == 1)
    vocabulary["[unused1]"] = vocabulary.pop(name)
    words["model"]["merges"] = [pair for pair in words["model"]["merges"] if name not in "".join(pair)]
    file.write_text(json.dumps(words))
    values = world.run("classify", **{"model.name_or_path": str(tmp_path / "m")})
    check = world.verify(values, stages=("model",), select=("FT417",))["FT417"]
    assert (check.status, check.evidence["different"]) == ("warn", 1)
    assert "unused tokens were renamed" in check.fix


def test_a_model_that_the_hub_did_not_give_is_not_asked_for_its_tokenizer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: Any, **__: Any) -> Any:
        raise OSError("We couldn't connect to 'https://huggingface.co' to load the files")

    monkeypatch.setattr(AutoConfig, "from_pretrained", no_network)
    own = AutoTokenizer.from_pretrained
    asked = []
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda name, *args, **rest: asked.append(name) or own(name, *args, **rest))
    check = world.verify(world.run("classify", **{"model.name_or_path": "someone/unknown"}), select=("FT417",))["FT417"]
    assert check.status == "skipped"
    assert "someone/unknown is neither a local folder nor available on the hub" in check.summary
    assert "someone/unknown" not in map(str, asked)


def test_data_with_an_id_beyond_the_embedding_fail(world: World, tmp_path: Path) -> None:
    rows = [*world.rows(world.labelled)[:30], ([400], 0)]
    values = {**world.run("classify", "qwen3"), **world.rewritten(tmp_path / "s", {"train": rows})}
    checks = world.verify(values, stages=("model",))
    assert checks["FT401"].status == "fail"
    assert checks["FT401"].evidence["largest_id_in_data"] == 400


# -- FT440 -----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "used", "words"), [(None, "sdpa", "the model's own choice"), ("eager", "eager", "as asked")])
def test_the_attention_of_the_model_is_told(world: World, asked: str | None, used: str, words: str) -> None:
    values = world.run("classify", "qwen3", **({"model.attn_implementation": asked} if asked else {}))
    check = world.verify(values, stages=("model",), select=("FT440",))["FT440"]
    assert (check.status, check.evidence["used"]) == ("pass", used)
    assert words in check.summary


def test_another_attention_than_was_asked_for_warns(world: World) -> None:
    values = world.run("classify", "qwen3", **{"model.attn_implementation": "sdpa"})
    plugins = world.model("model.set_attn_implementation('eager')")
    world.caught(
        "a model that takes another attention",
        values,
        "FT440",
        status="warn",
        words="the model uses eager",
        stages=("model",),
        select=("FT440",),
        plugins=plugins,
    )


def test_a_model_without_fused_attention_is_noted(world: World) -> None:
    plugins = world.model("model.set_attn_implementation('eager')")
    check = world.verify(world.run("classify", "qwen3"), stages=("model",), select=("FT440",), plugins=plugins)["FT440"]
    assert (check.status, "no sdpa" in check.summary) == ("info", True)
