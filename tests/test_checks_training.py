"""Faults that are there in training only, rates that learn nothing, and a PAD that is a word: each with what is healthy beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification

from ftcli.context import Context
from ftcli.core.verify.probe import Probe
from ftcli.core.verify.rehearsal import own_optimizer
from verifying import World, texts

MODEL = ("model",)
STEPS = ("model", "steps")
DROP = "model.score.register_forward_pre_hook(lambda module, given: (torch.nn.functional.dropout(given[0], {rate}, module.training),))"
DETACHED = """model.model.register_forward_hook(
            lambda module, given, output: type(output)(last_hidden_state=output.last_hidden_state.detach()) if module.training else output
        )"""


@pytest.mark.parametrize(
    ("what", "change", "words"),
    [
        ("all is dropped in training", DROP.format(rate=1.0), "get no gradient in training mode"),
        ("the graph is cut in training", DETACHED, "get no gradient in training mode"),
    ],
)
def test_what_is_cut_in_training_only_fails(world: World, what: str, change: str, words: str) -> None:
    world.caught(f"O1: {what}", world.run("classify", "qwen3"), "FT405", words=words, stages=MODEL, plugins=world.model(change))


def test_what_training_lets_through_is_quiet(world: World) -> None:
    world.quiet("half is dropped in training", world.run("classify", "qwen3"), stages=MODEL, plugins=world.model(DROP.format(rate=0.5)))


NOISE = "model.{place}.register_forward_hook(lambda module, given, output: output + {size} * torch.randn_like(output) if module.training else output)"


@pytest.mark.parametrize(
    ("what", "change", "status", "words"),
    [
        ("functional dropout of 0.95", DROP.format(rate=0.95), "fail", "of the gradient: the rest is noise"),
        ("functional dropout of 0.8", DROP.format(rate=0.8), "warn", "of the gradient: the rest is noise"),
        ("noise on the embeddings", NOISE.format(place="model.embed_tokens", size=1), "fail", "of the gradient: the rest is noise"),
        ("noise on the logits", NOISE.format(place="score", size=10), "warn", "in evaluation mode"),
    ],
)
def test_noise_that_no_setting_names_is_found(world: World, what: str, change: str, status: str, words: str) -> None:
    world.caught(
        f"O3: {what}", world.run("classify", "qwen3"), "FT416", status=status, words=words, stages=MODEL, plugins=world.model(change)
    )


def test_a_model_that_knows_the_rows_is_not_accused_of_noise(world: World, tmp_path: Path) -> None:
    """Of a loss that is next to nothing the gradient is noise, whatever the dropout is."""
    rows = [(ids, 0) for ids, _ in world.rows(world.labelled_wordpiece)]
    config = world.config("bert", hidden_dropout_prob=0.3)
    values = {
        **world.run("classify", **{"model.config": config}),
        **world.rewritten(tmp_path / "one", {"train": rows}, like=world.labelled_wordpiece),
    }
    sure = world.model("model.classifier.bias.data[0] = 20.0")
    evidence = world.quiet("rows that are known", values, stages=MODEL, select=("FT416",), plugins=sure)["FT416"].evidence
    assert "kept" not in evidence
    unsure = world.model("model.classifier.bias.data[0] = 0.0")
    assert world.quiet("rows that are not", values, stages=MODEL, select=("FT416",), plugins=unsure)["FT416"].evidence["kept"] > 0.2


@pytest.mark.parametrize(
    ("optimizer", "rate", "kind"),
    [("sgd", 0.1, "SGD"), ("adafactor", 1e-3, "Adafactor"), ("rmsprop", 1e-4, "RMSprop"), ("adamw_8bit", 1e-3, "AdamW")],
)
def test_steps_are_those_of_the_runs_optimizer(world: World, optimizer: str, rate: float, kind: str) -> None:
    """AdamW overshoots at 0.1; SGD does not. One that needs bitsandbytes is AdamW where there is none."""
    values = world.run("classify", "qwen3", **{"train.optim": optimizer, "train.learning_rate": rate})
    world.quiet(f"{optimizer} at {rate:g}", values, stages=STEPS, select=("FT501",))
    probe = Probe(Context.make(values))
    made = own_optimizer(probe)([*probe.model.parameters()])
    assert (type(made).__name__, made.param_groups[0]["lr"]) == (kind, rate)


@pytest.mark.parametrize(("rate", "status"), [(1.0, "fail"), (0.1, "warn")])
def test_a_learning_rate_that_overshoots_by_far_fails(world: World, rate: float, status: str) -> None:
    values = world.run("classify", "qwen3", **{"train.learning_rate": rate})
    world.caught(
        f"O3: learning rate {rate:g}, classify",
        values,
        "FT501",
        status=status,
        words="the batch's loss" if status == "fail" else "did not lower",
        stages=STEPS,
        select=("FT501",),
    )


@pytest.mark.parametrize(("rate", "status"), [(0.95, "fail"), (0.1, "pass")])
def test_layers_that_are_left_out_count_as_dropout(world: World, rate: float, status: str) -> None:
    config = world.config("opt", layerdrop=rate, ffn_dim=64, word_embed_proj_dim=32)
    values = world.run("classify", **{"model.config": config})
    if status == "fail":
        world.caught("O3: layerdrop 0.95", values, "FT416", words="layerdrop drops 95%", stages=MODEL)
    else:
        world.quiet("layerdrop 0.1", values, stages=MODEL)


@pytest.mark.parametrize(
    ("kind", "rate", "status"),
    [
        ("classify", 1e-9, "fail"),
        ("classify", 5e-7, "warn"),
        ("classify", 2e-5, "pass"),
        ("pretrain", 1e-9, "fail"),
        ("pretrain", 1e-5, "warn"),
        ("pretrain", 1e-4, "pass"),
    ],
)
def test_a_learning_rate_too_small_for_the_run_is_found(world: World, kind: str, rate: float, status: str) -> None:
    """Few planned steps are judged as 200 of them: a rate of 1e-8 passed while 1,000 were."""
    values = world.run(kind, "qwen3", **{"train.learning_rate": rate})
    if status == "pass":
        world.quiet(f"learning rate {rate:g}, {kind}", values, stages=STEPS, select=("FT501",))
        return
    cause = f"O3: learning rate {rate:g}, {kind}"
    check = world.caught(cause, values, "FT501", status=status, words="even 200 of them", stages=STEPS, select=("FT501",))
    assert check.fix == "Raise --learning-rate."


def test_a_pad_that_is_a_word_warns_for_language_models_too(world: World, tmp_path: Path) -> None:
    source = tmp_path / "texts.txt"
    source.write_text("\n".join(texts(120, 9)), encoding="utf-8")
    tokenizer = world.tokenizer(tmp_path / "pad", pad_token="e")
    world.prepare("pad-is-a-word", Path(tokenizer), {}, [f"train={source}"])
    values = {**world.run("pretrain", "qwen3"), "tokenizer.path": tokenizer, "dataset.sources": [str(world.folder / "pad-is-a-word")]}
    world.caught("S2: PAD is a letter", values, "FT303", status="warn", words="PAD ('e') occurs inside", stages=("batch",))


@pytest.mark.parametrize(("trained", "status"), [(True, "warn"), (False, "info")])
def test_texts_without_the_token_that_trained_weights_begin_with_warn(world: World, tmp_path: Path, trained: bool, status: str) -> None:
    data = world.prepare("no-cls", world.wordpiece, {"dataset.label_column": "label", "tokenizer.add_special_tokens": False})
    values = {**world.run("classify", "bert"), "dataset.sources": [str(data)]}
    if trained:
        config = AutoConfig.for_model(**json.loads(values.pop("model.config").read_text()))
        AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "weights")
        values["model.name_or_path"] = str(tmp_path / "weights")
        world.caught("F7: no [CLS] before texts for BERT", values, "FT105", status=status, words="none of 240", stages=("tokenizer",))
    else:
        check = world.quiet("no [CLS] for random weights", values, stages=("tokenizer",))["FT105"]
        assert (check.status, "random weights" in check.summary) == (status, True)
