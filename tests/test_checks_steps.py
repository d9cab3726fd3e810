"""The first optimizer steps: every check has a run that is healthy and the smallest change that breaks it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from ftcli.context import Context
from ftcli.core.storage.few_rows import Few, short_rows
from ftcli.core.storage.store import Store
from ftcli.core.verify.probe import Probe
from ftcli.core.verify.rehearsal import rehearse
from verifying import World

STEPS = ("steps",)
NOT_DIVIDED = """
import ftcli
import torch
from ftcli.core.batches.tasks import {base}

class Task({base}):
    def loss(self, logits, labels, items):
        {change}

@ftcli.hookimpl
def register_tasks(register):
    register({base}.name, Task, replace=True)
"""


def _task(world: World, change: str, base: str = "Classify"):
    return world.plugins(NOT_DIVIDED.format(base=base, change=change))


# -- FT502 -----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classify", "pretrain", "packed"])
def test_a_healthy_run_passes_every_step(world: World, kind: str) -> None:
    checks = world.quiet(f"{kind}: healthy steps", world.run(kind, "qwen3", **{"train.gradient_accumulation_steps": 3}), stages=STEPS)
    assert {name: check.status for name, check in checks.items() if check.status != "pass"} == {"FT510": "skipped"}
    assert checks["FT502"].evidence["ratio"] == pytest.approx(1, abs=1e-4)
    assert "--learnability-steps" in checks["FT510"].summary


@pytest.mark.parametrize("kind", ["classify", "pretrain"])
def test_a_loss_that_is_not_divided_by_the_accumulation_steps_is_caught_with_its_factor(world: World, kind: str) -> None:
    values = world.run(kind, "qwen3", **{"train.gradient_accumulation_steps": 4})
    plugins = _task(world, "return super().loss(logits, labels, None)", {"classify": "Classify", "pretrain": "Pretrain"}[kind])
    check = world.caught(
        f"{kind}: R1, a mean loss × 4", values, "FT502", words="not divided", stages=STEPS, select=("FT502", "FT501"), plugins=plugins
    )
    assert check.evidence["ratio"] == pytest.approx(4, rel=0.02)
    assert "4 times" in check.summary


def test_without_accumulation_the_same_fault_is_only_said(world: World) -> None:
    plugins = _task(world, "return super().loss(logits, labels, None)")
    checks = world.quiet("R1 without accumulation", world.run("classify", "qwen3"), stages=STEPS, select=("FT502",), plugins=plugins)
    assert checks["FT502"].status == "info"


def test_any_other_factor_is_caught(world: World) -> None:
    values = world.run("classify", "qwen3", **{"train.gradient_accumulation_steps": 2})
    plugins = _task(world, "return super().loss(logits, labels, items) * (1 if items is None else 1.05)")
    world.caught("R1, 5 % too much", values, "FT502", words="1.05 times", stages=STEPS, select=("FT502",), plugins=plugins)


# -- FT503 -----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "rate", "status"), [("bfloat16", 1e-5, "fail"), ("bfloat16", 1e-3, "pass"), (None, 1e-5, "pass"), ("bfloat16", 2e-5, "fail")]
)
def test_updates_lost_in_bfloat16_are_found_at_the_peak_rate(world: World, dtype: str | None, rate: float, status: str) -> None:
    values = world.run("classify", "qwen3", **{"model.dtype": dtype, "train.learning_rate": rate, "train.warmup_steps": 10})
    if status == "fail":
        check = world.caught(
            f"O2, {dtype} weights at {rate:g}", values, "FT503", words="lost to rounding", stages=STEPS, select=("FT502", "FT503", "FT504")
        )
        assert "float32" in check.fix
    else:
        check = world.quiet(f"{dtype} weights at {rate:g}", values, stages=STEPS, select=("FT502", "FT503", "FT504"))["FT503"]
    assert (check.evidence["moved"] < 0.5) == (status == "fail")


@pytest.mark.parametrize("how", ["the configuration of random weights", "the weights' folder"])
def test_updates_lost_in_a_type_that_auto_finds_are_found(world: World, tmp_path: Path, how: str) -> None:
    values = world.run("classify", "qwen3", **{"model.dtype": "auto", "train.learning_rate": 1e-5})
    values["model.config"] = world.config("qwen3", dtype="bfloat16")
    if how == "the weights' folder":
        from transformers import AutoConfig, AutoModelForSequenceClassification

        config = AutoConfig.for_model(**json.loads(values.pop("model.config").read_text()), num_labels=4)
        AutoModelForSequenceClassification.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path / "weights")
        values["model.name_or_path"] = str(tmp_path / "weights")
    check = world.caught(
        f"O2, bfloat16 by {how}", values, "FT503", "FT052", words="in bfloat16", stages=("settings", "steps"), select=("FT052", "FT503")
    )
    assert check.evidence["dtype"] == "bfloat16"
    world.caught(f"O2, quick, bfloat16 by {how}", values, "FT052", status="warn", words="bfloat16", stages=("settings",), level="quick")


def test_a_gradient_that_is_clipped_to_nothing_is_not_called_rounding(world: World) -> None:
    values = world.run("classify", "qwen3", **{"train.max_grad_norm": 1e-9})
    world.caught(
        "O7: max_grad_norm = 1e-9",
        values,
        "FT054",
        "FT503",
        words="clips every gradient",
        stages=("settings", "steps"),
        select=("FT05", "FT503"),
    )


def test_a_trainer_that_cannot_be_made_fails_once(world: World) -> None:
    values = world.run("classify", "qwen3", **{"train.optim": "sgd", "train.optim_args": "momentum=-1"})
    world.caught("an optimizer that torch refuses", values, "FT502", words="Invalid momentum", stages=STEPS)


# -- FT504 -----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "model.extra = [torch.nn.Linear(4, 4)]; model.score.register_forward_hook(lambda m, i, o: model.extra[0](o))",
            "no parameter of the model",
        ),
        (
            "old = model.named_parameters; model.named_parameters = lambda *a, **k: [p for p in old(*a, **k) if p[0] != 'score.weight']",
            "",
        ),
    ],
)
def test_trained_tensors_that_the_optimizer_lacks_are_found(world: World, change: str, words: str) -> None:
    values = world.run("classify", "qwen3")
    checks = world.verify(values, stages=STEPS, select=("FT504",), plugins=world.model(change))
    assert checks["FT504"].status == "fail", checks["FT504"]
    assert words in checks["FT504"].summary
    world.table.append(("O4, a tensor outside the optimizer", "FT504 fail", "", 0.0))


# -- FT505 -----------------------------------------------------------------------------------------------------------------------------------

CANNOT = {
    "the inputs never arrive": "model.model.embed_tokens.register_forward_hook(lambda m, i, o: o * 0)",
    "a head whose output is cut off": "model.score.register_forward_hook(lambda m, i, o: o.detach() + 0 * o.sum())",
    "gradients that are turned round": "[p.register_hook(lambda g: -g) for p in model.parameters()]",
}


@pytest.mark.parametrize("cause", CANNOT)
def test_a_model_that_cannot_learn_a_few_rows_by_heart_is_caught(world: World, cause: str) -> None:
    checks = world.verify(world.run("classify", "qwen3"), stages=STEPS, select=("FT505",), plugins=world.model(CANNOT[cause]))
    assert checks["FT505"].status == "fail", checks["FT505"]
    world.table.append((f"O3, {cause}", "FT505 fail", "", 0.0))


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_sound_models_learn_by_heart(world: World, model: str) -> None:
    checks = world.verify(world.run("classify", model), stages=STEPS, select=("FT505",))
    assert checks["FT505"].status == "pass"
    assert checks["FT505"].evidence["steps"] <= 40


def test_a_sound_model_that_damps_its_logits_learns_by_heart_at_a_larger_rate(world: World) -> None:
    cohere = world.config("cohere", num_key_value_heads=2, tie_word_embeddings=True)
    values = {**world.run("pretrain", "qwen3"), "model.config": cohere}
    checks = world.verify(values, stages=STEPS, select=("FT505",))
    assert checks["FT505"].status == "pass", checks["FT505"]


# -- FT506 -----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "plugins"),
    [
        ("a collator that draws by itself", "collator"),
        ("a model with noise from the clock", "model"),
    ],
)
def test_two_runs_from_one_seed_that_differ_are_named(world: World, cause: str, plugins: str) -> None:
    altered = {
        "collator": lambda: world.collator(
            'import secrets; batch["input_ids"][0, 0] = 5 + secrets.randbelow(300); batch["input_ids"][1, 0] = 5 + secrets.randbelow(300)'
        ),
        "model": lambda: world.model(
            "import time; model.score.register_forward_hook(lambda m, i, o: o + 1e-3 * (time.perf_counter_ns() % 997) * o.detach())"
        ),
    }[plugins]()
    checks = world.verify(world.run("classify", "qwen3"), stages=STEPS, select=("FT506",), plugins=altered)
    assert checks["FT506"].status == "warn", checks["FT506"]
    world.table.append((f"two runs differ: {cause}", "FT506 warn", "", 0.0))


# -- FT510 -----------------------------------------------------------------------------------------------------------------------------------


def _words(shuffled: bool) -> list[tuple[list[int], int]]:
    """Rows whose label is decided by their words; shuffled: by nothing."""
    random = np.random.default_rng(0)
    rows = [([*random.integers(20 + 60 * label, 80 + 60 * label, 8).tolist()], label) for label in random.integers(0, 4, 400).tolist()]
    labels = random.permutation([label for _, label in rows]) if shuffled else [label for _, label in rows]
    return [(ids, int(label)) for (ids, _), label in zip(rows, labels, strict=True)]


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_learnability_run_shows_shuffled_labels(world: World, tmp_path, shuffled: bool) -> None:
    rows = _words(shuffled)
    values = {**world.run("classify", "qwen3"), **world.rewritten(tmp_path / "s", {"train": rows[:320], "test": rows[320:]})}
    values["train.learnability_steps"] = 60
    check = world.verify(values, stages=STEPS, select=("FT510",))["FT510"]
    assert check.status == ("warn" if shuffled else "pass"), check
    assert check.evidence["prior_entropy"] == pytest.approx(np.log(4), abs=0.1)
    if not shuffled:
        assert check.evidence["held_out_accuracy"] > 0.5


# -- parts -----------------------------------------------------------------------------------------------------------------------------------


def test_a_rehearsal_leaves_the_model_as_it_was(world: World) -> None:
    kernels = {"train.use_liger_kernel": True, "train.liger_kernel_config": {"rope": True}}  # which run on GPUs alone
    probe = Probe(Context.make(world.run("classify", "qwen3", **{"model.dtype": "bfloat16", **kernels})))
    before = {name: tensor.clone() for name, tensor in probe.model.state_dict().items()}
    state = torch.get_rng_state()
    found = rehearse(probe, updates=2, accumulation=3)
    after = probe.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not probe.model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert len(found.logged) == len(found.norms) == len(found.micro) == 2
    assert [len(update) for update in found.micro] == [3, 3]
    assert found.logged[1] != found.logged[0]


def test_short_rows_are_short_differ_and_have_several_labels(world: World) -> None:
    split = Store.open(world.labelled).split("train")
    rows = short_rows(split, 0, count=8, longest=16)
    assert len(rows) == 8
    assert rows.input_ids.lengths.max() <= 16
    assert len({rows.input_ids.row(row).tobytes() for row in range(8)}) == 8
    assert rows.labels is not None
    assert len(set(rows.labels.tolist())) == 4
    packs = short_rows(Store.open(world.packed).split("train"), 0, count=3, longest=20)
    assert packs.seq_lengths is not None
    assert [int(packs.seq_lengths.row(row).sum()) for row in range(3)] == packs.input_ids.lengths.tolist()
    again = Few(packs).rows([2, 0])
    assert again.input_ids.row(1).tolist() == packs.input_ids.row(0).tolist()


def test_rehearsals_do_not_say_what_a_training_says_at_the_log_level_of_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: said.append(record.getMessage()))
    monkeypatch.setattr(logging.getLogger("transformers.trainer"), "handlers", [handler])
    values = world.run("pretrain", "qwen3", **{"train.log_level": "info", "train.log_level_replica": "info"})
    assert world.quiet("log_level = info", values, stages=STEPS, select=("FT502",))["FT502"].status == "pass"
    assert said == []
