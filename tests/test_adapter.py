"""LoRA and the frozen backbone: what is learned, what is saved, going on, merging; and what is refused."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, GPT2Config

from ftcli.commands.train import run
from ftcli.core.batches.tasks import Classify, Pretrain
from ftcli.core.doctor import installed
from ftcli.core.models.adapter import check_choice
from ftcli.core.models.adapter_base import ADAPTER_CONFIG, refuse_absent
from ftcli.core.models.frozen import frozen_base
from ftcli.core.models.merge import load_adapted, merge
from ftcli.core.training.run import prepare
from ftcli.errors import MissingExtraError, ModelError, TrainError, UsageError
from ftcli.settings import Settings
from ftcli.testing import tiny_model
from runs import ONE_STEP, VOCABULARY, Bench, step_of
from stores import learnable, packed

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT = {"train__max_steps": 2, "train__learning_rate": 1e-2, "train__per_device_train_batch_size": 8, "train__eval_strategy": "no"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("adapters"))
    made.store("classify", {"train": learnable(48, 4, VOCABULARY, 0)}, labels=4)
    made.store("packs", {"train": packed(48, 32, VOCABULARY, 3)}, max_length=32)
    for kind in ("qwen3", "bert"):
        tiny_model(kind, labels=4 if kind == "bert" else None).save_pretrained(made.folder / kind)
    return made


def _saved(folder: Path) -> dict[str, torch.Tensor]:
    """All weights but the head that peft keeps beside the learned one, which is random."""
    return {name: weight for name, weight in load_adapted(folder).state_dict().items() if "original_module" not in name}


def _context(bench: Bench, store: str, output: str, base: str | Path = "qwen3", **values: Any) -> Any:
    given = {"model__config": None, "model__name_or_path": str(bench.folder / base), **values}
    return bench.context(bench.folder / store, output, **given)


@pytest.mark.parametrize("store", ["classify", "packs"])
def test_the_loss_and_the_gradient_of_lora_do_not_depend_on_the_accumulation(bench: Bench, store: str) -> None:
    found = {}
    for steps in (1, 4, 12):
        split = {"train__gradient_accumulation_steps": steps, "train__per_device_train_batch_size": 48 // steps}
        found[steps] = step_of(_context(bench, store, "law", **ONE_STEP, **split, model__lora_r=4))
    loss, gradient = found[1]
    assert gradient.norm() > 1e-4
    for other_loss, other in found.values():
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert (other - gradient).norm() / gradient.norm() < 1e-4


def test_a_router_that_gives_more_than_a_tensor_gets_no_adapter(bench: Bench, tmp_path: Path) -> None:
    """peft takes Phi-MoE's for a plain linear layer, and the first step ended as a bug."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = AutoConfig.for_model(
        "phimoe", vocab_size=VOCABULARY, num_local_experts=4, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "phimoe")
    report = run(_context(bench, "packs", "routed", tmp_path / "phimoe", **SHORT, model__lora_r=4))
    assert report.status == "ok"
    learned = load_file(bench.folder / "routed" / "adapter_model.safetensors")
    assert any("q_proj" in name for name in learned)
    assert not any("router" in name for name in learned)


@pytest.mark.parametrize(("store", "base"), [("classify", "qwen3"), ("classify", "bert"), ("packs", "qwen3")])
def test_a_run_with_lora_saves_an_adapter_that_merges_into_a_plain_model(bench: Bench, store: str, base: str, tmp_path: Path) -> None:
    output = f"lora {store} {base}"
    before = AutoModelForCausalLM.from_pretrained(bench.folder / "qwen3").get_input_embeddings().weight
    report = run(_context(bench, store, output, base, **SHORT, model__lora_r=4, train__save_strategy="steps", train__save_steps=1))
    folder = bench.folder / output
    for saved in (folder, folder / "checkpoint-1"):
        assert (saved / "adapter_model.safetensors").is_file()
        assert not (saved / "model.safetensors").exists()
    assert any("are trained" in note for note in report.notes)
    adapted = load_adapted(folder)
    ids = torch.randint(10, VOCABULARY, (3, 9))
    with torch.no_grad():
        wanted = adapted(input_ids=ids).logits
        start = PeftModel.from_pretrained(adapted.unload(), folder)
    assert merge(folder, tmp_path / "merged")["weights"]
    family = AutoModelForSequenceClassification if store == "classify" else AutoModelForCausalLM
    plain = family.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        found = plain(input_ids=ids).logits
        untrained = start.get_base_model()
    assert torch.allclose(found, wanted, atol=1e-5)
    assert untrained is not None
    if base == "qwen3":
        assert torch.equal(plain.get_input_embeddings().weight, before)
    if store == "classify":
        assert plain.config.id2label[3] == "label 3"
        assert plain.config.problem_type == "single_label_classification"
    with pytest.raises(UsageError, match="already exists"):
        merge(folder, tmp_path / "merged")
    with pytest.raises(UsageError, match="is not an adapter"):
        merge(tmp_path / "merged", tmp_path / "again")


def test_an_interrupted_run_with_lora_goes_on_as_if_it_had_not_been(bench: Bench) -> None:
    values = {**SHORT, "model__lora_r": 4, "model__lora_dropout": 0.1, "train__save_strategy": "steps", "train__save_steps": 1}
    run(_context(bench, "classify", "whole", **{**values, "train__max_steps": 3}))
    run(_context(bench, "classify", "parts", **{**values, "train__max_steps": 3, "train__lr_scheduler_type": "linear"}))
    (bench.folder / "parts" / "checkpoint-3").rename(bench.folder / "parts" / "gone")
    run(_context(bench, "classify", "parts", **{**values, "train__max_steps": 3, "train__resume_from_checkpoint": "auto"}))
    one, other = (_saved(bench.folder / name) for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(TrainError, match=r"model\.lora_r was 4, now 8"):
        run(_context(bench, "classify", "parts", **{**values, "model__lora_r": 8, "train__resume_from_checkpoint": "auto"}))


def _with_other_weights(model: Path, folder: Path) -> None:
    """A copy whose first tensor has another last value."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values())).view(-1)[-1] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_adapters_go_on_over_the_base_that_they_were_trained_on_wherever_it_lies_and_over_no_other(bench: Bench) -> None:
    values = {**SHORT, "model__lora_r": 4, "train__save_strategy": "steps", "train__save_steps": 1}
    run(_context(bench, "classify", "based", **values))
    shutil.copytree(bench.folder / "qwen3", bench.folder / "moved")
    resumed = {**values, "train__max_steps": 3, "train__resume_from_checkpoint": "auto"}
    assert run(_context(bench, "classify", "based", "moved", **resumed)).metrics["steps"] == 3
    _with_other_weights(bench.folder / "qwen3", bench.folder / "other")
    with pytest.raises(TrainError, match=r"the base model that the adapters are trained on .* was \w{16}, now \w{16}"):
        run(_context(bench, "classify", "based", "other", **{**resumed, "train__max_steps": 4}))


def test_an_adapter_is_neither_merged_nor_asked_nor_trained_on_over_another_base(bench: Bench, tmp_path: Path) -> None:
    """A base that was trained again into its folder was taken without a word, and the merged model was another."""
    shutil.copytree(bench.folder / "qwen3", tmp_path / "base")
    values = {**SHORT, "train__save_strategy": "steps", "train__save_steps": 1, "train__save_total_limit": 5}
    run(_context(bench, "packs", str(tmp_path / "run"), tmp_path / "base", **values, model__lora_r=2))
    merge(tmp_path / "run", tmp_path / "merged")
    tiny_model("qwen3", seed=7).save_pretrained(tmp_path / "base")
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoint-1"):
        with pytest.raises(ModelError, match=r"is not the model that the adapter .* was trained on"):
            load_adapted(folder)
    with pytest.raises(ModelError, match="was trained on"):
        run(_context(bench, "packs", "further", tmp_path / "run", **SHORT))
    shutil.rmtree(tmp_path / "base")
    shutil.copytree(bench.folder / "qwen3", tmp_path / "base")
    load_adapted(tmp_path / "run")


@pytest.mark.parametrize("use", [load_adapted, lambda folder: refuse_absent(str(folder))])
def test_a_base_that_was_moved_is_asked_for_by_name(use: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / ADAPTER_CONFIG).write_text(json.dumps({"base_model_name_or_path": "/nowhere/base"}))
    with pytest.raises(ModelError, match=r"the base model of the adapter .* does not exist: /nowhere/base") as refused:
        use(tmp_path)
    assert f"base_model_name_or_path in {tmp_path / ADAPTER_CONFIG}" in refused.value.hint


def test_a_base_is_known_by_its_content_not_by_its_files(bench: Bench, tmp_path: Path) -> None:
    def base(folder: Path) -> str | None:
        return frozen_base(_context(bench, "classify", "none", folder, model__lora_r=4).settings)

    known = base(bench.folder / "qwen3")
    assert known
    tiny_model("qwen3").save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert base(tmp_path / "shards") == known
    _with_other_weights(bench.folder / "qwen3", tmp_path / "weights")
    shutil.copytree(bench.folder / "qwen3", tmp_path / "config")
    config = json.loads((tmp_path / "config" / "config.json").read_text())
    (tmp_path / "config" / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    assert len({known, base(tmp_path / "weights"), base(tmp_path / "config")}) == 3
    (tmp_path / "config" / "config.json").write_text(json.dumps({**config, "transformers_version": "0", "limit": float("inf")}))
    assert base(tmp_path / "config")


def test_where_every_weight_is_in_the_checkpoint_no_base_is_asked_for(bench: Bench) -> None:
    assert frozen_base(_context(bench, "classify", "none", "nowhere").settings) is None


def test_an_adapter_names_its_base_wherever_it_is_loaded_from(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(bench.folder)
    run(_context(bench, "classify", "placed", **{**SHORT, "model__name_or_path": "qwen3"}, model__lora_r=4))
    monkeypatch.chdir(tmp_path)
    assert load_adapted(bench.folder / "placed").num_labels == 4


@pytest.mark.parametrize("asked", ["v1", None])
def test_an_adapter_stays_on_the_revision_that_it_was_learned_on(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    root = tmp_path / "hub" / "models--org--base"
    (root / "refs").mkdir(parents=True)
    for revision, commit in (("v1", "b" * 40), ("main", "a" * 40)):
        (root / "refs" / revision).write_text(commit)
        folder = root / "snapshots" / commit
        if revision == "v1":
            shutil.copytree(bench.folder / "qwen3", folder)
        else:
            _with_other_weights(bench.folder / "qwen3", folder)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    values = {**SHORT, "model__name_or_path": "org/base", "model__revision": asked, "train__output_dir": str(tmp_path / "out")}
    run(_context(bench, "packs", "revised", **values, model__lora_r=4))
    described = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert described["revision"] == ("b" if asked else "a") * 40
    learned_on = load_file(root / "snapshots" / ("b" * 40 if asked else "a" * 40) / "model.safetensors")
    (root / "refs" / "main").write_text("b" * 40 if asked is None else "a" * 40)  # it moves on
    merge(tmp_path / "out", tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    name = next(iter(learned_on))
    assert torch.equal(merged[name], learned_on[name])
    going_on = _context(
        bench,
        "packs",
        "revised",
        **{**values, "model__revision": None, "model__name_or_path": str(tmp_path / "out"), "train__output_dir": str(tmp_path / "more")},
    )
    weights = prepare(going_on).model.get_base_model().state_dict()
    same = next(key for key in weights if key.replace(".base_layer", "") == name)
    assert torch.equal(weights[same], learned_on[name])


def test_training_goes_on_from_an_adapter(bench: Bench) -> None:
    run(_context(bench, "classify", "first", **SHORT, model__lora_r=4))
    first = _saved(bench.folder / "first")
    prepared = prepare(_context(bench, "classify", "second", "first", **SHORT))
    begun = prepared.model.state_dict()
    assert all(torch.equal(first[name], begun[name]) for name in first)
    learned = [name for name, weight in prepared.model.named_parameters() if weight.requires_grad]
    assert learned
    assert all("lora" in name or "score" in name for name in learned)
    run(_context(bench, "classify", "second", "first", **SHORT))
    second = _saved(bench.folder / "second")
    assert any(not torch.equal(first[name], second[name]) for name in first if "lora_B" in name)
    with pytest.raises(UsageError, match="is already an adapter"):
        prepare(_context(bench, "classify", "third", "first", **SHORT, model__lora_r=4))


def test_an_adapter_for_the_same_labels_in_another_order_is_refused_and_for_others_said(bench: Bench) -> None:
    run(_context(bench, "classify", "labelled", **SHORT, model__lora_r=4))
    file = bench.folder / "labelled" / "config.json"
    config = json.loads(file.read_text())
    names = list(config["id2label"].values())
    for given, words in ((names[::-1], ",".join(names[::-1])), (["x", *names[1:]], "")):
        file.write_text(json.dumps({**config, "id2label": {str(number): name for number, name in enumerate(given)}}))
        other = _context(bench, "classify", "other labels", "labelled", **SHORT)
        if words:
            with pytest.raises(ModelError, match="of these data in another order") as refused:
                prepare(other)
            assert f"--label-names {words}" in refused.value.hint
        else:
            prepare(other)
            assert any(f"was trained for the labels {', '.join(given)}" in note for note in other.notes)


def test_which_layers_get_lora_can_be_said(bench: Bench) -> None:
    for wanted, count in ((["q_proj"], 2), (["all-linear"], 14), (["auto"], None)):
        model = prepare(_context(bench, "packs", "layers", **SHORT, model__lora_r=2, model__lora_target_modules=wanted)).model
        found = sum(name.endswith("lora_A.default.weight") for name, _ in model.named_parameters())
        assert found == count if count else found
    with pytest.raises(ModelError, match="LoRA cannot be put into"):
        prepare(_context(bench, "packs", "layers", **SHORT, model__lora_r=2, model__lora_target_modules=["nothing"]))


def test_gpt2_gets_lora_without_a_warning_of_peft(bench: Bench) -> None:
    config = GPT2Config(vocab_size=384, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(bench.folder / "gpt2")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*fan_in_fan_out")
        model = prepare(_context(bench, "packs", "gpt2 layers", "gpt2", **SHORT, model__lora_r=2)).model
    assert any(name.endswith("lora_A.default.weight") for name, _ in model.named_parameters())


@pytest.mark.parametrize(("base", "head"), [("qwen3", "score"), ("bert", "classifier")])
def test_a_frozen_backbone_leaves_everything_but_the_head_as_it_was(bench: Bench, base: str, head: str) -> None:
    context = _context(bench, "classify", f"frozen {base}", base, **SHORT, model__freeze_backbone=True)
    before = {name: weight.clone() for name, weight in prepare(context).model.state_dict().items()}
    run(context)
    after = AutoModelForSequenceClassification.from_pretrained(bench.folder / f"frozen {base}").state_dict()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed
    assert all(head in name for name in changed)


@pytest.mark.parametrize(
    ("values", "task", "words"),
    [
        ({"model__lora_alpha": 8}, Classify, "without model.lora_r"),
        ({"model__freeze_backbone": True, "model__lora_r": 4}, Classify, "already freezes the backbone"),
        ({"model__freeze_backbone": True}, Pretrain, "no separate head to train"),
        ({"model__freeze_backbone": True, "model__config": "x.json", "model__name_or_path": None}, Classify, "random weights"),
        ({"model__load_in_4bit": True}, Classify, "cannot be trained directly"),
        ({"model__lora_r": 4, "model__config": "x.json", "model__name_or_path": None}, Classify, "random weights"),
    ],
)
def test_choices_that_contradict_each_other_are_refused(bench: Bench, values: dict[str, Any], task: type[Any], words: str) -> None:
    settings = _context(bench, "classify", "none", **values).settings
    with pytest.raises(UsageError, match=words):
        check_choice(settings, task())


def test_four_bits_are_refused_where_there_is_no_gpu(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = _context(bench, "classify", "none", model__lora_r=4, model__load_in_4bit=True).settings
    with pytest.raises(UsageError, match="needs an NVIDIA GPU") as refused:
        check_choice(settings, Classify())
    assert "LoRA works without" in refused.value.hint


@pytest.mark.parametrize(("here", "said"), [(None, "LoRA needs the package peft"), ("0.12.0", "peft>=0.19, but 0.12.0 is installed")])
def test_a_peft_that_is_missing_or_too_old_is_said_before_a_model_is_loaded(
    here: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old one had the run end as a bug, at its LoraConfig, when data and model were there."""
    plain = installed.version
    monkeypatch.setattr(installed, "find_spec", lambda _: here)
    monkeypatch.setattr(installed, "version", lambda name: here if name == "peft" else plain(name))
    with pytest.raises(MissingExtraError) as refused:
        check_choice(Settings(model={"name_or_path": "base", "lora_r": 4}), None)

    assert said in refused.value.message
    assert refused.value.hint == "Run: pip install 'ftcli[peft]'"
    with pytest.raises(MissingExtraError):
        load_adapted(Path("adapter"))
