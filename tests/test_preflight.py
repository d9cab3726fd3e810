"""Training begins only when the quick checks found nothing certain against it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from ftcli.commands import train
from ftcli.core.training import refused, run
from ftcli.core.training.trainer import FtcliTrainer
from ftcli.errors import FtcliError, TrainError, UsageError
from ftcli.pluginmanager import Plugins
from ftcli.testing import tiny_model, tiny_tokenizer
from runs import VOCABULARY, Bench
from stores import learnable
from thirdparty import put
from tokenizing import plugins


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench.make(tmp_path_factory.mktemp("preflight"))


@pytest.fixture(scope="module")
def store(bench):
    rows = learnable(48, 4, VOCABULARY, seed=1)
    return bench.store("store", {"train": rows}, labels=4)


def test_a_check_that_fails_stops_the_run_before_its_first_step(bench, store):
    context = bench.context(store, "stopped", train__max_steps=4, train__warmup_steps=9)
    with pytest.raises(TrainError, match=r"FT053: the warm-up of 9 steps") as caught:
        train.run(context)
    assert "--ignore FT053" in caught.value.hint
    assert not list((bench.folder / "stopped").glob("**/model.safetensors"))


@pytest.mark.parametrize(
    ("values", "words"),
    [({"train__adam_epsilon": 1.0}, "FT054"), ({"train__warmup_steps": 9}, "FT053"), ({"train__optim": "lomo"}, "lomo_optim")],
)
def test_what_settings_alone_tell_stops_the_run_before_the_model_is_loaded(bench, store, values, words, monkeypatch):
    monkeypatch.setattr(refused, "_installed", lambda module: False)
    monkeypatch.setattr(run, "build", lambda *parts: pytest.fail("the model was loaded"))
    with pytest.raises(FtcliError, match=words):
        train.run(bench.context(store, "early", train__max_steps=4, **values))


BROKEN = """
from ftcli import hookimpl
from ftcli.contracts import CheckKind, Page

def broken(probe):
    raise LookupError("no wall")

@hookimpl
def register_checks(register):
    register("XY001", CheckKind("XY001", "data", "Own", broken, page=Page("a", "b", "c", "d")))
"""


def test_a_check_of_a_plugin_that_breaks_is_not_said_to_be_a_run_that_does_not_learn(bench, store, tmp_path):
    context = replace(bench.context(store, "broken", train__max_steps=2), plugins=plugins(tmp_path, BROKEN, "wall"))
    with pytest.raises(
        TrainError, match=r"^a check before the run broke:\nXY001: Own: the check of plugin 'wall' broke: LookupError"
    ) as caught:
        train.run(context)
    assert "--ignore XY001" in caught.value.hint


def test_no_verify_goes_on_and_the_report_says_so(bench, store):
    context = bench.context(store, "forced", train__max_steps=2, train__warmup_steps=9, train__verify=False, train__save_strategy="no")
    report = train.run(context)
    assert report.status == "ok"
    assert any("--no-verify" in note for note in report.notes)
    assert not any(check.id == "FT053" for check in report.checks)


def test_a_sound_run_carries_the_verdicts_in_its_report(bench, store):
    report = train.run(bench.context(store, "sound", train__max_steps=2, train__save_strategy="no"))
    verdicts = {check.id: check.status for check in report.checks}
    assert verdicts["FT202"] == "pass"
    assert verdicts["FT203"] in {"pass", "info"}
    assert not {"fail", "error"} & set(verdicts.values())


def test_rows_on_both_sides_are_said_and_do_not_stop(bench):
    rows = learnable(48, 4, VOCABULARY, seed=2)
    leaking = bench.store("leaking", {"train": rows, "test": rows[:24]}, labels=4)
    report = train.run(bench.context(leaking, "leaked", train__max_steps=2, train__save_strategy="no"))
    assert report.status == "ok"
    assert any(note.startswith("FT205") for note in report.notes)


def test_a_warning_is_noted_and_does_not_stop(bench, store):
    context = bench.context(store, "warned", train__max_steps=4, train__warmup_steps=2, train__save_strategy="no")
    report = train.run(context)
    assert report.status == "ok"
    assert any(note.startswith("FT053") for note in report.notes)


# -- what the user brings: weights, and a collator ----------------------------------------------------------------------------------------------


def weights(bench, name, tokenizer):
    folder = bench.folder / name
    tiny_model("qwen3", labels=4).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return {"model__config": None, "model__name_or_path": str(folder), "train__max_steps": 2, "train__save_strategy": "no"}


def test_trained_weights_with_the_tokenizer_of_another_model_stop_the_run(bench, store):
    other = tiny_tokenizer(bench.folder / "other", vocab_size=384)
    words = json.loads((other / "tokenizer.json").read_text())
    ids = words["model"]["vocab"]
    words["model"]["vocab"] = {word: place if place < 3 else 386 - place for word, place in ids.items()}
    (other / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(TrainError, match=r"FT417: .* are different tokens for the model"):
        train.run(bench.context(store, "strangers", **weights(bench, "theirs", other)))


def test_trained_weights_with_their_own_tokenizer_begin(bench, store):
    report = train.run(bench.context(store, "kin", **weights(bench, "ours", bench.tokenizer)))
    assert {check.id: check.status for check in report.checks}["FT417"] == "pass"


COLLATOR = """
from ftcli import hookimpl
from ftcli.contracts import CollatorKind

@hookimpl
def register_collators(register):
    from ftcli.core.batches.collate import Dynamic

    class Mine(Dynamic):
        def __call__(self, rows):
            batch = super().__call__(rows)
            {body}
            return batch

    register("mine", CollatorKind(Mine, order="grouped"))
"""


def with_collator(bench, store, output, body, **values):
    folder = put(bench.folder / f"plugins of {output}", COLLATOR.replace("{body}", body), "mine")
    values = {"train__max_steps": 2, "train__save_strategy": "no", "loader__collator": "mine", **values}
    return replace(bench.context(store, output, **values), plugins=Plugins(plugins_dir=folder, allow=()))


def test_a_plugins_collator_that_spoils_labels_stops_the_run(bench, store):
    with pytest.raises(TrainError, match=r"FT302: row \d+ of the batch has the label") as caught:
        train.run(with_collator(bench, store, "spoiled", "batch['labels'] = batch['labels'].flip(0)"))
    assert "--ignore FT302" in caught.value.hint


def test_a_check_that_is_ignored_does_not_stop_the_run_and_is_told(bench, store):
    spoils = "batch['labels'] = batch['labels'].flip(0)"
    report = train.run(with_collator(bench, store, "ignored", spoils, train__ignore_checks=["FT302"]))
    assert "checks skipped: FT302 (--ignore)" in report.notes
    assert "FT302" not in {check.id for check in report.checks}
    assert "FT301" in {check.id for check in report.checks}


def test_a_plugins_collator_may_change_tokens_and_it_is_said(bench, store):
    report = train.run(with_collator(bench, store, "masked", "batch['input_ids'][:, 1] = 3"))
    assert any(note.startswith("FT301") for note in report.notes)


def test_an_id_of_no_check_is_refused(bench, store):
    with pytest.raises(UsageError, match="no check's id begins with 'FT999'"):
        train.run(bench.context(store, "unknown", train__ignore_checks=["FT999"]))


def test_of_ftclis_own_collators_no_batch_is_made(bench, store):
    report = train.run(bench.context(store, "own", train__max_steps=2, train__save_strategy="no", loader__collator="dynamic"))
    assert not {"FT301", "FT302"} & {check.id for check in report.checks}


# -- while it runs: a run made sick, and the same run sound ------------------------------------------------------------------------------------


SICK = {"train__max_steps": 8, "train__save_strategy": "no", "train__logging_steps": 1, "train__per_device_train_batch_size": 4}


def test_a_gradient_that_vanishes_stops_a_real_run_with_its_name(bench, store, monkeypatch):
    monkeypatch.setattr(FtcliTrainer, "training_step", _without_gradient(FtcliTrainer.training_step, at=5))
    with pytest.raises(TrainError, match="step 5: the gradient is zero"):
        train.run(bench.context(store, "vanished", **SICK))
    written = json.loads((bench.folder / "vanished" / "ftcli-run.json").read_text())
    assert {check["id"]: check["status"] for check in written["checks"]}["gradient-norm"] == "fail"


def test_the_same_is_only_said_where_that_is_wanted(bench, store, monkeypatch):
    monkeypatch.setattr(FtcliTrainer, "training_step", _without_gradient(FtcliTrainer.training_step, at=5))
    report = train.run(bench.context(store, "vanished too", **SICK, train__on_unhealthy="warn"))
    assert report.status == "ok"
    assert sum("the gradient is zero" in note for note in report.notes) == 1


def test_a_learning_rate_that_is_not_the_planned_one_is_said(bench, store, monkeypatch):
    original = FtcliTrainer._get_learning_rate
    monkeypatch.setattr(FtcliTrainer, "_get_learning_rate", lambda self: original(self) * 0.5)
    report = train.run(bench.context(store, "rate", **SICK))
    assert {check.id: check.status for check in report.checks}["learning-rate"] == "warn"


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup"])
def test_a_sound_run_brings_no_name(bench, store, schedule):
    report = train.run(bench.context(store, f"sound {schedule}", **SICK, train__lr_scheduler_type=schedule, train__warmup_steps=2))
    assert {check.id for check in report.checks if check.stage == "steps" and check.status in {"warn", "fail"}} == set()
    assert not [note for note in report.notes if note.startswith("step ")]


def _without_gradient(original, at):
    """`training_step` whose gradients are zero from update `at` on."""

    def step(self, *args, **kwargs):
        loss = original(self, *args, **kwargs)
        if self.state.global_step + 1 >= at:
            for parameter in self.model.parameters():
                parameter.grad.zero_()
        return loss

    return step
