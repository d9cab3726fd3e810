"""Checks of the model on the first batch: what is healthy, and the smallest fault of model, batch or settings that is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ftcli.plugins.checks_tokenizer import RIGHT_ONLY
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from families import FAMILIES
from ftcli.core.batches.batch import StoreDataset
from ftcli.core.storage.store import Store
from ftcli.core.tokenizer.train_tokenizer import train_tokenizer
from ftcli.core.verify.audit import token_places
from verifying import World, texts

STAGES = ("model",)
LEFT = """from dataclasses import replace
        self.spec = replace(self.spec, padding_side="left")
        batch = super().__call__(rows)"""
NO_MASK = 'del batch["attention_mask"]'
ONES = 'batch["attention_mask"] = torch.ones_like(batch["attention_mask"])'


@pytest.mark.parametrize(
    ("kind", "model"),
    [("classify", "qwen3"), ("classify", "gpt2"), ("classify", "bert"), ("pretrain", "qwen3"), ("pretrain", "gpt2"), ("packed", "qwen3")],
)
def test_a_sound_run_passes_every_check(world: World, kind: str, model: str) -> None:
    checks = world.quiet(f"a sound run: {kind} with {model}", world.run(kind, model))
    assert all(checks[name].status == "pass" for name in ("FT401", "FT402", "FT403", "FT404", "FT405", "FT501"))
    assert checks["FT406"].status == ("info" if kind == "classify" else "pass")
    assert checks["FT407"].status == ("skipped" if kind == "packed" else "pass")
    assert checks["FT408"].status == ("pass" if kind == "packed" else "skipped")
    assert checks["FT409"].status == ("skipped" if kind == "classify" else "pass")
    assert checks["FT403"].evidence["loss"] == pytest.approx(np.log(4 if kind == "classify" else 400), rel=0.05)


def test_without_a_model_the_checks_are_skipped_with_the_reason(world: World) -> None:
    checks = world.verify(world.run("classify"), stages=STAGES)
    assert {check.status for check in checks.values()} == {"skipped"}
    assert checks["FT403"].summary == "First loss: no --model-config or --model-name-or-path"


# -- vocabulary and configuration ----------------------------------------------------------------------------------------------------------


def test_more_embedding_rows_than_ids_are_no_fault(world: World) -> None:
    world.quiet("112 embedding rows too many", world.run("pretrain", "qwen3", **{"model.config": world.config("qwen3", vocab_size=512)}))


def test_an_embedding_row_too_few_fails_once(world: World) -> None:
    values = world.run("classify", "qwen3", **{"model.config": world.config("qwen3", vocab_size=399)})
    check = world.caught("an embedding row too few", values, "FT401", words="400 ids, but the model's embedding has 399 rows")
    assert "vocab_size=400" in check.fix


def test_vocabulary_and_pad_id_need_no_data(world: World) -> None:
    values = {"tokenizer.path": str(world.bpe), "model.config": world.config("qwen3", vocab_size=399)}
    world.caught("an embedding row too few, no data", values, "FT401")
    assert world.verify({**values, "model.config": world.config("qwen3")})["FT402"].status == "pass"


@pytest.mark.parametrize("pad", [None, 7, 50256])
def test_another_pad_id_in_the_configuration_is_noted(world: World, pad: int | None) -> None:
    changes = {"pad_token_id": pad, "vocab_size": 51000 if pad == 50256 else 400}
    values = world.run("classify", "qwen3", **{"model.config": world.config("qwen3", **changes)})
    check = world.quiet(f"config.pad_token_id = {pad}, the tokenizer's is 0", values)["FT402"]
    assert check.status == "info"
    assert f"config.pad_token_id is {pad}, the tokenizer's 0" in check.summary


def test_a_model_that_cannot_be_built_fails_once(world: World, tmp_path: Path) -> None:
    both = world.run("classify", "qwen3", **{"model.name_or_path": "some/model"})
    world.caught("two models", both, "FT403", words="two models", stages=STAGES)
    missing = world.run("classify", **{"model.name_or_path": str(tmp_path / "none")})
    world.caught("a model folder that is not there", missing, "FT401", words="there is no such folder", stages=STAGES)
    t5 = tmp_path / "t5.json"
    t5.write_text(json.dumps({"model_type": "t5", "vocab_size": 400, "d_model": 32, "num_layers": 1, "num_heads": 2}))
    world.caught("an encoder-decoder", world.run("classify", **{"model.config": t5}), "FT403", words="encoder-decoder", stages=STAGES)


@pytest.mark.parametrize("task", ["classify", "pretrain"])
def test_a_model_that_cannot_take_a_batch_fails_once(world: World, task: str) -> None:
    """FT409 and FT411 broke on it, as bugs of the plugin."""
    values = world.run(task, "qwen3", **{"model.config": world.config("qwen3", num_attention_heads=4, num_key_value_heads=3)})
    world.caught("heads that do not share evenly", values, "FT403", stages=STAGES)


# -- first loss ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "status"), [(3.0, "fail"), (0.6, "warn")])
def test_a_head_that_starts_too_large_is_found_by_its_logits(world: World, scale: float, status: str) -> None:
    plugins = world.model(f"model.score.weight.data.normal_(0, {scale}, generator=torch.Generator().manual_seed(0))")
    words = "the head starts with a logit standard deviation of"
    check = world.caught(
        f"head std {scale}", world.run("classify", "qwen3"), "FT403", status=status, words=words, stages=STAGES, plugins=plugins
    )
    assert "initializer_range" in check.fix
    assert check.evidence["implied_by_logits"] == pytest.approx(check.evidence["loss"], abs=6 * check.evidence["logit_std"])


def test_a_large_initializer_range_fails(world: World) -> None:
    values = world.run("pretrain", "gpt2", **{"model.config": world.config("gpt2", initializer_range=3.0)})
    world.caught("initializer_range = 3.0", values, "FT403", words="logit standard deviation", stages=STAGES)


def test_a_mean_of_the_logits_that_is_not_zero_is_no_fault(world: World) -> None:
    checks = world.quiet("logits with mean 5", world.run("classify", "bert"), plugins=world.model("model.classifier.bias.data += 5"))
    assert checks["FT404"].evidence["mean"] == pytest.approx(5, abs=0.1)


def test_labels_that_the_fresh_head_contradicts_fail(world: World, tmp_path: Path) -> None:
    rows = [([5 + row, 6], row) for row in range(77)]
    store = world.rewritten(tmp_path / "s", {"train": rows}, label_names=[f"class {row}" for row in range(77)])
    change = """original = model.forward
        def forward(input_ids, **rest):
            found = original(input_ids=input_ids, **rest)
            found.logits = found.logits - 2.0 * torch.nn.functional.one_hot(input_ids[:, 0] - 5, 77)
            return found
        model.forward = forward"""
    values = {**world.run("classify", "qwen3"), **store}
    world.caught(
        "a fresh model that knows every label and denies it",
        values,
        "FT403",
        words="these logits imply",
        stages=("model",),
        plugins=world.model(change),
    )


def test_a_loss_that_is_no_number_fails_though_the_logits_are(world: World) -> None:
    source = """
import ftcli
from ftcli.core.batches.tasks import Classify

class Task(Classify):
    def loss(self, logits, labels, items):
        return super().loss(logits, labels, items) * float("nan")

@ftcli.hookimpl
def register_tasks(register):
    register("classify", Task, replace=True)
"""
    values, plugins = world.run("classify", "qwen3"), world.plugins(source)
    world.caught("a task whose loss is NaN", values, "FT403", "FT405", words="the first loss is nan", stages=STAGES, plugins=plugins)


# -- trained weights -----------------------------------------------------------------------------------------------------------------------


def _fit(model: Any, batches: list[dict[str, torch.Tensor]], steps: int) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(steps):
        optimizer.zero_grad()
        model(**batches[step % len(batches)]).loss.backward()
        optimizer.step()
    return model.eval()


def _batches(store: Path) -> list[dict[str, torch.Tensor]]:
    """All rows, 24 a batch, as Hugging Face models take them."""
    split = Store.open(store).split("train")
    found = []
    for start in range(0, len(split), 24):
        rows = StoreDataset(split).__getitems__(list(range(start, min(start + 24, len(split)))))
        ids = np.zeros((len(rows), int(rows.input_ids.lengths.max())), np.int64)
        for row in range(len(rows)):
            ids[row, : len(rows.input_ids.row(row))] = rows.input_ids.row(row)
        mask = token_places(ids, rows)
        labels = rows.labels if rows.labels is not None else np.where(mask, ids, -100)
        found.append(
            {
                name: torch.from_numpy(np.asarray(value, np.int64))
                for name, value in (("input_ids", ids), ("attention_mask", mask), ("labels", labels))
            }
        )
    return found


@pytest.fixture(scope="module")
def language_model(world: World) -> Path:
    """A tiny qwen3 that has learned the texts of `world.plain`, by `world.bpe`."""
    config = AutoConfig.for_model(**json.loads(world.config("qwen3").read_text()))
    torch.manual_seed(0)
    _fit(AutoModelForCausalLM.from_config(config), _batches(world.plain), 60).save_pretrained(world.folder / "lm")
    return world.folder / "lm"


@pytest.fixture(scope="module")
def classifier(world: World) -> Path:
    """A tiny qwen3 that has learned which of four ids stands at the beginning of a text: labels of `_marked`."""
    config = AutoConfig.for_model(**json.loads(world.config("qwen3").read_text()), num_labels=4)
    world.rewritten(world.folder / "marked", {"train": _marked(world)})
    torch.manual_seed(0)
    _fit(AutoModelForSequenceClassification.from_config(config), _batches(world.folder / "marked"), 60).save_pretrained(
        world.folder / "classifier"
    )
    return world.folder / "classifier"


def _marked(world: World, turn: int = 0) -> list[Any]:
    return [([300 + label] * 4, (label + turn) % 4) for _, label in world.rows(world.labelled)]


def test_a_trained_language_model_with_its_tokenizer_passes(world: World, language_model: Path) -> None:
    values = world.run("pretrain", **{"model.name_or_path": str(language_model), "train.learning_rate": 1e-5})
    checks = world.quiet("a pretrained language model", values)
    assert "well below chance" in checks["FT403"].summary


def test_a_trained_language_model_with_a_foreign_tokenizer_fails(world: World, language_model: Path) -> None:
    train_tokenizer([text[::-1] for text in texts(200, 9)], world.folder / "foreign", "bpe", 400)
    data = world.prepare("foreign-data", world.folder / "foreign", {})
    values = {"tokenizer.path": str(world.folder / "foreign"), "dataset.sources": [str(data)], "model.name_or_path": str(language_model)}
    world.caught("a foreign tokenizer of the same size", values, "FT403", words="do not belong together")


def test_text_that_a_trained_language_model_has_never_seen_is_not_laid_on_the_tokenizer(
    world: World, language_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "lm"
    shutil.copytree(language_model, folder)
    shutil.copytree(world.bpe, folder, dirs_exist_ok=True)
    source = tmp_path / "texts.txt"
    generator = np.random.default_rng(0)
    source.write_text(
        "\n".join("".join(chr(int(code)) for code in generator.integers(0x4E00, 0x9000, 40)) for _ in range(120)), encoding="utf-8"
    )
    data = world.prepare("unseen", world.bpe, {}, [f"train={source}"])
    values = world.run("pretrain", **{"model.name_or_path": str(folder), "dataset.sources": [str(data)]})
    check = world.verify(values, stages=("model",), select=("FT403",))["FT403"]
    assert "it has not seen such text" in check.summary
    assert "do not belong together" not in check.summary


def test_untrained_weights_in_a_folder_warn(world: World, tmp_path: Path) -> None:
    config = AutoConfig.for_model(**json.loads(world.config("qwen3").read_text()))
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "m")
    values = world.run("pretrain", **{"model.name_or_path": str(tmp_path / "m")})
    world.caught("weights that have learned nothing", values, "FT403", status="warn", words="learned nothing yet")


def test_a_new_head_on_trained_weights_passes(world: World, language_model: Path) -> None:
    checks = world.quiet("a new head on a language model", world.run("classify", **{"model.name_or_path": str(language_model)}))
    assert checks["FT403"].status == "pass"


def test_a_trained_classifier_passes_and_one_with_another_label_map_fails(world: World, classifier: Path, tmp_path: Path) -> None:
    values = world.run("classify", **{"model.name_or_path": str(classifier), "train.learning_rate": 1e-5})
    right = {**values, "dataset.sources": [str(world.folder / "marked")]}
    assert "may already know these labels" in world.quiet("a trained classifier", right, stages=STAGES)["FT403"].summary
    turned = {**values, **world.rewritten(tmp_path / "t", {"train": _marked(world, turn=1)})}
    check = world.caught("a trained classifier, labels permuted", turned, "FT403", words="logit standard deviation", stages=STAGES)
    assert "compare the label maps" in check.fix


# -- logits and gradients ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_weight_that_is_no_number_fails_once(world: World, value: str) -> None:
    plugins = world.model(f'model.score.weight.data[1, 2] = float("{value}")')
    check = world.caught(f"a weight that is {value}", world.run("classify", "qwen3"), "FT404", words="not finite", plugins=plugins)
    assert check.evidence["mean"] is None or not np.isfinite(check.evidence["mean"])


def test_an_unused_parameter_fails(world: World) -> None:
    plugins = world.model("model.extra = torch.nn.Linear(4, 4)")
    check = world.caught("O1: an unused layer", world.run("classify", "qwen3"), "FT405", words="2 of", stages=STAGES, plugins=plugins)
    assert check.evidence["without"] == ["extra.weight", "extra.bias"]


def test_a_cut_graph_fails(world: World) -> None:
    plugins = world.model("model.model.norm.register_forward_hook(lambda module, args, output: output.detach())")
    world.caught(
        "a graph cut behind the last layer",
        world.run("classify", "qwen3"),
        "FT405",
        "FT411",
        words="get no gradient",
        stages=STAGES,
        plugins=plugins,
    )


def test_a_model_with_nothing_to_train_fails_once(world: World) -> None:
    plugins = world.model("model.requires_grad_(False)")
    world.caught(
        "every parameter frozen", world.run("classify", "qwen3"), "FT405", words="every parameter is frozen", stages=STAGES, plugins=plugins
    )


def test_a_frozen_body_is_no_fault(world: World) -> None:
    world.quiet("a frozen body", world.run("classify", "qwen3"), stages=STAGES, plugins=world.model("model.model.requires_grad_(False)"))


def test_a_gradient_norm_above_one_is_no_fault(world: World) -> None:
    checks = world.quiet("gradient norm above 1", world.run("classify", "gpt2"))
    assert checks["FT405"].evidence["norm"] > 1


def test_a_model_without_a_mask_is_told_of_the_fixed_collator(world: World) -> None:
    values = world.run("classify", **{"model.config": world.config("fnet", pad_token_id=0)})
    check = world.caught(
        "FNet reads the padding", values, "FT407", words="on the other rows of the batch", stages=STAGES, select=("FT407", "FT415")
    )
    assert "--collator fixed" in check.fix
    world.quiet("FNet in rows of one length", {**values, "loader.collator": "fixed"}, stages=STAGES, select=("FT407", "FT415"))


def test_attention_that_is_approximated_reads_the_padding_in_spite_of_its_mask(world: World) -> None:
    values = world.run("classify", **{"model.config": world.config("yoso")})
    check = world.caught("YOSO", values, "FT407", words="on the other rows of the batch", stages=STAGES, select=("FT407",))
    assert "--collator fixed" in check.fix
    fixed = world.quiet("YOSO in rows of one length", {**values, "loader.collator": "fixed"}, stages=STAGES, select=("FT407",))["FT407"]
    assert "every row is padded alike" in fixed.summary


@pytest.mark.parametrize("kind", ["classify", "pretrain"])
def test_a_model_whose_forward_takes_no_count_of_items_passes(world: World, kind: str) -> None:
    change = """original = model.forward
        def forward(input_ids, attention_mask=None, position_ids=None, labels=None):
            return original(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, labels=labels)
        model.forward = forward"""
    checks = world.quiet("a forward without **kwargs", world.run(kind, "qwen3"), plugins=world.model(change, kind.title()))
    assert "takes no num_items_in_batch" in checks["FT406"].summary


def test_a_model_that_cannot_take_the_batch_fails_once(world: World, tmp_path: Path) -> None:
    rows = [(ids[:1] * 510, label) for ids, label in world.rows(world.labelled)[:8]]
    store = world.rewritten(tmp_path / "s", {"train": rows}, max_length=512)
    values = {**world.run("classify", "roberta"), **store, "tokenizer.path": str(world.bpe)}
    values["model.config"] = world.config("roberta", max_position_embeddings=510, vocab_size=400)
    world.caught("a position too few for the forward", values, "FT403", words="cannot take the first batch", stages=STAGES)
    values["model.config"] = world.config("roberta", max_position_embeddings=511, vocab_size=400)
    assert world.verify(values, stages=STAGES)["FT403"].status == "pass"


def test_a_batch_without_targets_leaves_the_model_alone(world: World) -> None:
    plugins = world.collator('batch["labels"][:] = -100')
    world.caught("no target at all", world.run("pretrain", "qwen3"), "FT302", words="have no target at all", plugins=plugins)


def test_a_model_too_large_for_the_memory_is_not_stepped(world: World) -> None:
    only = {"stages": ("model", "steps"), "select": ("FT405", "FT501")}
    checks = world.verify(world.run("classify", "qwen3"), memory_available_bytes=500_000, **only)
    assert (checks["FT405"].status, checks["FT501"].status) == ("pass", "skipped")
    assert "it takes" in checks["FT501"].summary
    checks = world.verify(world.run("classify", "qwen3"), memory_available_bytes=100_000, **only)
    assert checks["FT405"].status == checks["FT501"].status == "skipped"


# -- isolation of rows and documents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "kind", "model", "change", "base", "also"),
    [
        ("no mask", "classify", "bert", NO_MASK, "Dynamic", ()),
        ("no mask, padded to max_length", "classify", "bert", NO_MASK, "Fixed", ()),
        ("a mask of ones", "classify", "bert", ONES, "Dynamic", ("FT301",)),
        ("left padding", "classify", "bert", LEFT, "Dynamic", ()),
        ("left padding", "classify", "gpt2", LEFT, "Dynamic", ()),
        ("left padding", "pretrain", "gpt2", LEFT, "Dynamic", ()),
        ("left padding, no mask", "classify", "qwen3", f"{LEFT}\n        {NO_MASK}", "Dynamic", ()),
        ("left padding, no mask", "pretrain", "qwen3", f"{LEFT}\n        {NO_MASK}", "Dynamic", ()),
    ],
)
def test_rows_that_change_with_their_neighbours_fail(
    world: World, what: str, kind: str, model: str, change: str, base: str, also: tuple[str, ...]
) -> None:
    plugins = world.collator(change, base)
    check = world.caught(
        f"{what}, {kind} with {model}",
        world.run(kind, model),
        "FT407",
        *also,
        words="depending on the other rows of the batch",
        stages=("batch", "model"),
        plugins=plugins,
    )
    assert check.evidence["change"] > 5e-3


def test_left_padding_with_relative_positions_is_no_fault(world: World) -> None:
    for kind in ("classify", "pretrain"):
        world.quiet(f"left padding, {kind} with qwen3", world.run(kind, "qwen3"), plugins=world.collator(LEFT))


def test_a_head_that_pools_a_wrong_token_fails(world: World) -> None:
    plugins = world.model("config.get_text_config().pad_token_id = 7; model.config.pad_token_id = 7")
    world.caught("S3: the model pools by another PAD id", world.run("classify", "qwen3"), "FT402", "FT407", stages=STAGES, plugins=plugins)


@pytest.mark.parametrize(
    ("what", "change", "also"),
    [
        ("positions that go on", 'batch["position_ids"] = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])', ()),
        ("a mask of ones", 'batch["attention_mask"] = torch.ones_like(batch["input_ids"])', ("FT301",)),
        ("no positions", 'del batch["position_ids"]', ("FT301",)),
    ],
)
def test_documents_that_see_each_other_fail(world: World, what: str, change: str, also: tuple[str, ...]) -> None:
    plugins = world.collator(change, "Packed", "packed")
    also = tuple(name for name in also if name != "FT301" or what == "a mask of ones")
    check = world.caught(f"packed with {what}", world.run("packed", "qwen3"), "FT408", *also, words="attend to each other", plugins=plugins)
    assert check.evidence["attention"] == "sdpa"
    assert "sdpa" not in check.fix


def test_a_state_that_goes_on_in_a_pack_is_not_laid_on_attention(world: World) -> None:
    values = world.run("packed", **{"model.config": world.config("mamba")})
    words = "carries what its layers keep from one document of a pack into the next"
    check = world.caught("packed with a state space", values, "FT408", words=words, stages=STAGES, select=("FT408",))
    assert "attention" not in check.summary + check.fix


def test_a_target_across_documents_fails(world: World) -> None:
    change = """lengths = torch.tensor(rows.input_ids.lengths)[:, None]
        first = (batch["position_ids"] == 0) & (torch.arange(batch["labels"].shape[1]) < lengths)
        batch["labels"] = torch.where(first, batch["input_ids"], batch["labels"])"""
    plugins = world.collator(change, "Packed", "packed")
    world.caught("packed with every token a target", world.run("packed", "qwen3"), "FT302", words="first token of a text", plugins=plugins)


def test_packs_of_one_document_have_nothing_to_isolate(world: World, tmp_path: Path) -> None:
    rows = [(ids, None, [len(ids)]) for ids, _ in world.rows(world.plain)]
    values = {**world.run("packed", "qwen3"), **world.rewritten(tmp_path / "s", {"train": rows}, like=world.packed, max_length=1024)}
    assert "holds two documents" in world.quiet("one document a pack", values, stages=STAGES)["FT408"].summary


def test_documents_of_one_token_have_no_prediction_to_compare(world: World, tmp_path: Path) -> None:
    rows = [(ids, None, [1, len(ids) - 1]) for ids, _ in world.rows(world.plain)]
    values = {**world.run("packed", "qwen3"), **world.rewritten(tmp_path / "s", {"train": rows}, like=world.packed, max_length=1024)}
    assert world.quiet("documents of one token", values, stages=STAGES)["FT408"].status == "pass"


def test_a_model_that_looks_ahead_fails(world: World) -> None:
    values = {"tokenizer.path": str(world.wordpiece), "dataset.sources": [str(world.labelled_wordpiece)], "train.mode": "pretrain"}
    check = world.caught(
        "pretrain with an encoder", {**values, "model.config": world.config("bert")}, "FT409", words="is not causal", stages=STAGES
    )
    assert "set is_decoder to true in the configuration" in check.fix
    made = {"model.config": world.config("bert"), "model.config_overrides": "is_decoder=true"}
    assert world.quiet("an encoder made a decoder", {**values, **made}, stages=STAGES)["FT409"].status == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_no_family_is_accused_falsely_and_those_that_left_padding_changes_are_known(world: World, family: str) -> None:
    values = world.run("classify", **{"model.config": world.config(family, **FAMILIES[family])})
    checks = world.verify(values, stages=STAGES)
    assert {name for name, check in checks.items() if check.status in {"warn", "fail", "error"}} <= (
        {"FT405"} if family == "longformer" else set()
    )
    assert checks["FT407"].evidence["change"] < 2e-5
    left = world.verify(values, stages=STAGES, plugins=world.collator(LEFT), select=("FT407",))["FT407"]
    assert (left.status == "fail") == (family in RIGHT_ONLY)
    assert left.evidence["change"] < 2e-5 or left.evidence["change"] > 0.1


def test_every_family_that_is_said_to_need_right_padding_is_measured() -> None:
    assert set(FAMILIES) >= RIGHT_ONLY


# -- two steps -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "status", "words"), [(3.0, "fail", "every step overshoots"), (1e-12, "fail", "weights that have a gradient")]
)
def test_a_learning_rate_that_cannot_work_is_found(world: World, rate: float, status: str, words: str) -> None:
    values = world.run("pretrain", "qwen3", **{"train.learning_rate": rate})
    world.caught(f"learning rate {rate:g}", values, "FT501", status=status, words=words, stages=("steps",), select=("FT501",))


def test_the_weights_are_afterwards_what_they_were(world: World) -> None:
    values = world.run("classify", "qwen3", **{"train.learning_rate": 1e-2})
    first, second = (world.verify(values, stages=stages)["FT403"].evidence for stages in (STAGES, ("model",)))
    assert first == second
    from ftcli.context import Context
    from ftcli.core.verify.forward import descend
    from ftcli.core.verify.probe import Probe
    from ftcli.core.verify.rehearsal import own_optimizer

    probe = Probe(Context.make(values))
    before = [parameter.clone() for parameter in probe.model.parameters()]
    losses, moved = descend(probe.forward, own_optimizer(probe), steps=2)
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert moved > 0.5
    assert all((old == new).all() for old, new in zip(before, probe.model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in probe.model.parameters())


# -- figures -------------------------------------------------------------------------------------------------------------------------------


@given(scale=st.floats(0.01, 30), classes=st.integers(2, 300), seed=st.integers(0, 100))
def test_the_implied_loss_is_the_mean_loss_over_all_labels(scale: float, classes: int, seed: int) -> None:
    from ftcli.core.verify.forward import Forward

    logits = torch.randn(3, classes, generator=torch.Generator().manual_seed(seed)) * scale
    result = Forward(None, {}, None, logits, torch.zeros(3, dtype=torch.int64), 0.0)  # type: ignore[arg-type]
    losses = [float(torch.nn.functional.cross_entropy(logits, torch.full((3,), label))) for label in range(classes)]
    assert result.implied_loss == pytest.approx(np.mean(losses), rel=1e-4)
    assert result.implied_loss >= np.log(classes) - 1e-4
    assert result.effective_targets == 1


def test_one_logit_alone_has_a_spread() -> None:
    from ftcli.core.verify.forward import relative_change, spread

    alone = torch.tensor([[0.5]])
    assert relative_change(alone, alone + 1, spread(alone)) > 1e-2


def test_a_histogram_of_logits_without_a_number_is_empty() -> None:
    from ftcli.core.verify.forward import Forward

    result = Forward(None, {}, None, torch.full((2, 3), float("nan")), torch.zeros(2, dtype=torch.int64), 0.0)  # type: ignore[arg-type]
    assert result.histogram() == {"edges": [0.0, 1.0], "counts": [0.0]}
    assert not result.finite
