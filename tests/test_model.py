"""Models and their configurations: what is built, what is refused, and that no weight is random by accident."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from bad_corpus import POINTER
from ftcli.core.batches.tasks import Classify, Pretrain
from ftcli.core.models.adapter_base import refuse_absent
from ftcli.core.models.config import from_file, planned, published
from ftcli.core.models.model import _hint, build
from ftcli.core.storage.store import Store
from ftcli.errors import ModelError, UsageError
from ftcli.records import RUN_NAME
from ftcli.testing import tiny_config, tiny_model, tiny_tokenizer, write_config
from stores import context, write_store

NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(tmp_path / "store", {"train": [([5, 6], 0)]}, label_names=NAMES)


def _read(tmp_path: Path, overrides: str | None = None, notes: list[str] | None = None, **fields: Any) -> Any:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**tiny_config(), **fields}))
    return from_file(path, overrides, (notes if notes is not None else []).append)


# -- configurations ----------------------------------------------------------------------------------------------------


def test_overrides_take_the_type_of_what_they_replace(tmp_path: Path) -> None:
    config = _read(
        tmp_path, "hidden_size=64, num_hidden_layers=3,attention_dropout=0.1,tie_word_embeddings=false,hidden_act=gelu,sliding_window=7"
    )
    assert (config.hidden_size, config.num_hidden_layers, config.attention_dropout) == (64, 3, 0.1)
    assert config.tie_word_embeddings is False
    assert config.hidden_act == "gelu"


@pytest.mark.parametrize(
    ("overrides", "message", "hint"),
    [
        ("hiden_size=64", "qwen3 has no 'hiden_size'", "'hidden_size'"),
        ("hidden_size=big", "not a whole number", "32 now"),
        ("attention_dropout=big", "not a number", "0.0 now"),
        ("tie_word_embeddings=perhaps", "not true or false", "true now"),
        ("hidden_size", "not NAME=VALUE", "hidden_size=256"),
        ("rope_parameters=17", "not a valid qwen3 configuration", "Change"),
    ],
)
def test_an_impossible_override_is_refused(tmp_path: Path, overrides: str, message: str, hint: str) -> None:
    with pytest.raises(ModelError, match=message) as refused:
        _read(tmp_path, overrides)
    assert hint in refused.value.hint


@pytest.mark.parametrize("layers", [1, 5])
def test_layer_types_follow_the_number_of_layers(tmp_path: Path, layers: int) -> None:
    notes: list[str] = []
    config = _read(tmp_path, f"num_hidden_layers={layers}", notes, layer_types=["full_attention", "full_attention"])
    assert config.layer_types == ["full_attention"] * layers
    assert notes == [f"layer_types follows num_hidden_layers = {layers}"]


def test_key_value_heads_follow_attention_heads_only_where_they_must(tmp_path: Path) -> None:
    notes: list[str] = []
    assert _read(tmp_path, "num_attention_heads=8", notes).num_key_value_heads == 2
    assert not notes
    assert _read(tmp_path, "num_attention_heads=3", notes).num_key_value_heads == 3
    assert "2 do not divide" in notes[0]
    assert _read(tmp_path, "num_attention_heads=3,num_key_value_heads=1").num_key_value_heads == 1


def test_unknown_keys_are_left_out_and_named_and_code_is_never_kept(tmp_path: Path) -> None:
    notes: list[str] = []
    config = _read(tmp_path, None, notes, num_hiden_layers=9, auto_map={"AutoModel": "evil.Model"}, torch_dtype="bfloat16")
    assert "num_hiden_layers" in notes[0]
    assert "'num_hidden_layers'" in notes[0]
    assert not hasattr(config, "auto_map")
    assert not hasattr(config, "num_hiden_layers")


def test_a_synonym_in_the_file_does_not_defeat_an_override(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_embd": 96, "n_head": 4}))
    assert from_file(path, "hidden_size=32", print).n_embd == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{bad", "cannot be read"),
        ("[1]", "not contain a JSON object"),
        ('{"model_type": "qwen33"}', "not a model type"),
        ("{}", "model_type = None"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        from_file(tmp_path, None, print)


def test_a_missing_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        from_file(tmp_path / "nothing.json", None, print)


def test_a_file_beside_a_missing_configuration_is_proposed(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text("{}")
    with pytest.raises(ModelError) as refused:
        from_file(tmp_path / "smal.json", None, print)
    assert refused.value.hint == f"Did you mean {str(tmp_path / 'small.json')!r}?"


@pytest.mark.real
def test_published_configurations_can_all_be_made_small(real_data: Path) -> None:
    found = {}
    for path in sorted((real_data / "configs").glob("*/config.json")):
        found[path.parent.name] = from_file(path, "num_hidden_layers=3", lambda _: None).num_hidden_layers
    assert len(found) >= 9
    assert set(found.values()) == {3}


# -- models from scratch -----------------------------------------------------------------------------------------------


def test_random_weights_depend_on_the_seed_and_are_float32(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    path = write_config(tmp_path / "config.json")

    def weights(seed: int) -> torch.Tensor:
        model = build(context(model__config=path, train__seed=seed), Classify(), store, tokenizer)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert model.config.id2label == dict(enumerate(NAMES))
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    first = weights(1)
    assert torch.equal(first, weights(1))
    assert not torch.equal(first, weights(2))


def test_where_texts_begin_and_end_is_the_tokenizers_to_say(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    path = write_config(tmp_path / "config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": 7}))
    assert build(context(model__config=path), Pretrain(), store, tokenizer).config.eos_token_id == tokenizer.eos_token_id
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.eos_token = None
    assert build(context(model__config=path), Pretrain(), store, tokenizer).config.eos_token_id is None


def test_dtype_attention_and_task_are_taken_from_the_settings(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    values = {"model__config": write_config(tmp_path / "config.json"), "model__dtype": "bfloat16", "model__attn_implementation": "eager"}
    model = build(context(**values), Pretrain(), store, tokenizer)
    assert model.dtype == torch.bfloat16
    assert build(context(**{**values, "model__dtype": "auto"}), Pretrain(), store, tokenizer).dtype == torch.float32
    assert model.config._attn_implementation == "eager"
    assert type(model).__name__ == "Qwen3ForCausalLM"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "neither --model-config nor --model-name-or-path"),
        ({"model__config": "a.json", "model__name_or_path": "b"}, "model-config and --model-name-or-path"),
    ],
)
def test_exactly_one_source_of_weights_is_needed(given: dict[str, Any], words: str, store: Store, tokenizer: Any) -> None:
    with pytest.raises(UsageError, match=words):
        build(context(**given), Classify(), store, tokenizer)


def test_more_ids_than_embedding_rows_are_refused(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    path = write_config(tmp_path / "config.json", vocab_size=100)
    with pytest.raises(ModelError, match="some ids would have no vector") as refused:
        build(context(model__config=path), Classify(), store, tokenizer)
    assert f"vocab_size={len(tokenizer)}" in refused.value.hint


def test_encoder_decoders_and_unfit_attention_are_refused(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "t5", "vocab_size": 400}))
    with pytest.raises(ModelError, match="encoder-decoder"):
        build(context(model__config=path), Classify(), store, tokenizer)
    values = {"model__config": write_config(path), "model__attn_implementation": "no_such_attention"}
    with pytest.raises(ModelError, match="no_such_attention") as refused:
        build(context(**values), Classify(), store, tokenizer)
    assert "sdpa" in refused.value.hint
    path.write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ModelError):
        build(context(model__config=path), Classify(), store, tokenizer)


def test_the_auxiliary_loss_of_a_router_is_said_to_be_left_out(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    path = tmp_path / "config.json"
    for on in (True, False):
        path.write_text(
            json.dumps({"model_type": "mixtral", "vocab_size": 400, "num_local_experts": 2, "output_router_logits": on, **small})
        )
        run = context(model__config=path)
        build(run, Pretrain(), store, tokenizer)
        assert any("auxiliary loss is not added" in note for note in run.notes) is on


def test_a_classifier_that_would_pool_padding_is_refused(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    path = tmp_path / "config.json"
    small = {"model_type": "xlnet", "vocab_size": 400, "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}
    path.write_text(json.dumps(small))
    with pytest.raises(ModelError, match="xlnet pools by summary_type = last") as refused:
        build(context(model__config=path), Classify(), store, tokenizer)
    assert "bert" in refused.value.hint
    assert type(build(context(model__config=path), Pretrain(), store, tokenizer)).__name__ == "XLNetLMHeadModel"  # which pools nothing
    path.write_text(json.dumps({**small, "summary_type": "first"}))
    assert type(build(context(model__config=path), Classify(), store, tokenizer)).__name__ == "XLNetForSequenceClassification"


def test_adapters_of_languages_want_to_know_which(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    """XMOD's own words are: call set_default_language()."""
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "languages": ["en_XX", "ko_KR"]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "xmod", "vocab_size": 400, **small}))
    with pytest.raises(ModelError, match="adapters for 2 languages") as refused:
        build(context(model__config=path), Classify(), store, tokenizer)
    assert "--config-overrides default_language=en_XX" in refused.value.hint
    build(context(model__config=path, model__config_overrides="default_language=ko_KR"), Classify(), store, tokenizer)


# -- models from weights -----------------------------------------------------------------------------------------------


def test_only_the_head_may_be_new_and_it_is_said(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    tiny_model(seed=3).save_pretrained(tmp_path / "model")
    run = context(model__name_or_path=str(tmp_path / "model"), model__config_overrides="attention_dropout=0.25")
    model = build(run, Classify(), store, tokenizer)
    assert torch.equal(model.model.embed_tokens.weight, tiny_model(seed=3).model.embed_tokens.weight)
    assert model.config.num_labels == 3
    assert model.config.attention_dropout == 0.25
    assert any("new random head (score.weight)" in note for note in run.notes)


def test_an_override_that_a_trained_model_cannot_have_is_refused(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    run = context(model__name_or_path=str(tmp_path / "model"), model__config_overrides="rope_parameters=[1]")
    with pytest.raises(ModelError, match=r"rope_parameters cannot be \[1\]"):
        build(run, Classify(), store, tokenizer)


def test_the_planned_configuration_has_the_overrides_and_the_published_one_has_not(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    run = context(model__name_or_path=str(tmp_path / "model"), model__config_overrides="max_position_embeddings=640")
    assert planned(run.settings).max_position_embeddings == 640
    assert published(run.settings).max_position_embeddings == 512


def test_a_head_for_other_labels_is_replaced_and_said(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    tiny_model("bert", labels=9).save_pretrained(tmp_path / "model")
    run = context(model__name_or_path=str(tmp_path / "model"))
    assert build(run, Classify(), store, tokenizer).classifier.weight.shape[0] == 3
    assert any("classifier.weight" in note for note in run.notes)


def _named(folder: Path, names: list[str], kind: str = "bert", **more: Any) -> Any:
    model = tiny_model(kind, labels=len(names), **more)
    torch.nn.init.normal_(model.classifier.bias if kind == "bert" else model.score.weight)
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: number for number, name in enumerate(names)}
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_a_head_for_the_same_labels_in_another_order_answers_as_it_did(tmp_path: Path, store: Store, tokenizer: Any, kind: str) -> None:
    """It was kept as it is under the new names, in silence: the best of models had an accuracy of nothing."""
    saved = _named(tmp_path / "model", ["b", "c", "a"], kind)
    run = context(model__name_or_path=str(tmp_path / "model"))
    model = build(run, Classify(), store, tokenizer)
    saved.config.pad_token_id = model.config.pad_token_id
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        old, new = saved.eval()(ids).logits[0], model.eval()(ids).logits[0]
    assert {model.config.id2label[place]: round(float(new[place]), 5) for place in range(3)} == {
        name: round(float(old[place]), 5) for place, name in enumerate(["b", "c", "a"])
    }
    assert any("reordered to match the data, a, b, c; it was trained with b, c, a" in note for note in run.notes)


@pytest.mark.parametrize(
    ("names", "told"), [(NAMES, False), (["LABEL_0", "LABEL_1", "LABEL_2"], False), (["x", "y", "z"], True), (["b", "a", "z"], True)]
)
def test_a_head_for_other_labels_of_the_same_number_is_said(
    tmp_path: Path, store: Store, tokenizer: Any, names: list[str], told: bool
) -> None:
    saved = _named(tmp_path / "model", names)
    run = context(model__name_or_path=str(tmp_path / "model"))
    model = build(run, Classify(), store, tokenizer)
    assert torch.equal(model.classifier.weight, saved.classifier.weight)
    assert torch.equal(model.classifier.bias, saved.classifier.bias)
    assert [note for note in run.notes if f"was trained for the labels {', '.join(names)} and is now used for a, b, c" in note] == [
        note for note in run.notes if "is now used for" in note
    ]
    assert any("is now used for" in note for note in run.notes) == told


def test_weights_of_another_head_are_left_out_and_said(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    tiny_model(labels=4).save_pretrained(tmp_path / "model")
    run = context(model__name_or_path=str(tmp_path / "model"))
    build(run, Pretrain(), store, tokenizer)
    assert any("do not exist in this model were ignored, first score.weight" in note for note in run.notes)


@pytest.mark.parametrize("damage", ["prefix", "missing", "shape"])
def test_weights_that_are_not_loaded_are_an_error(tmp_path: Path, store: Store, tokenizer: Any, damage: str) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    tiny_model().save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    if damage == "prefix":  # as torch.compile writes them
        weights = {f"_orig_mod.{name}": tensor for name, tensor in weights.items()}
    if damage == "missing":
        del weights["model.layers.1.mlp.up_proj.weight"]
    if damage == "shape":
        weights["model.norm.weight"] = torch.ones(31)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="weights of the base model are missing from the file"):
        build(context(model__name_or_path=str(folder)), Pretrain(), store, tokenizer)


def test_weights_that_are_a_pointer_of_git_lfs_are_named(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_bytes(POINTER)
    build(context(model__name_or_path=str(tmp_path / "model")), Classify(), store, tokenizer)  # which nobody reads here
    (tmp_path / "model" / "model.safetensors").write_bytes(POINTER)
    with pytest.raises(ModelError, match=r"model\.safetensors is a Git LFS pointer"):
        build(context(model__name_or_path=str(tmp_path / "model")), Classify(), store, tokenizer)


def test_weights_that_could_run_code_are_not_loaded(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    folder = tmp_path / "model"
    model = tiny_model()
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="no pretrain model can be loaded") as refused:
        build(context(model__name_or_path=str(folder)), Pretrain(), store, tokenizer)
    assert "safetensors" in refused.value.hint


def test_a_model_that_brings_code_is_refused_and_so_is_one_that_is_nowhere(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}))
    (folder / "mine.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError) as refused:
        build(context(model__name_or_path=str(folder)), Pretrain(), store, tokenizer)
    assert "--trust-remote-code" in refused.value.hint
    with pytest.raises(ModelError, match="there is no such folder"):
        build(context(model__name_or_path=str(tmp_path / "nowhere")), Pretrain(), store, tokenizer)


def test_the_saved_configuration_loads_as_any_other(tmp_path: Path, store: Store, tokenizer: Any) -> None:
    model = build(context(model__config=write_config(tmp_path / "config.json")), Classify(), store, tokenizer)
    model.save_pretrained(tmp_path / "saved")
    config = AutoConfig.from_pretrained(tmp_path / "saved")
    assert config.label2id == {"a": 0, "b": 1, "c": 2}
    assert config.problem_type == "single_label_classification"


@pytest.mark.parametrize(
    ("message", "flag"),
    [
        ("FlashAttention2 has been toggled on, but it cannot be used", "model.attn_implementation"),
        ("The hidden size (30) is not a multiple of the number of attention heads (4)", "--config-overrides"),
    ],
)
def test_a_model_that_cannot_be_built_is_told_with_the_flag_that_matters(message: str, flag: str) -> None:
    assert flag in _hint(message)


def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    """A folder of models may be an owner of the hub by name; what the hub's cache holds is no folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "Qwen" / "Qwen3-4B").mkdir(parents=True)
    (tmp_path / "Qwen" / "Qwen3-4B" / "config.json").write_text("{}")
    (tmp_path / "runs" / "first").mkdir(parents=True)
    for name in ("./nope", "a/b/c", "~/nope", "/nope"):
        with pytest.raises(ModelError, match="there is no such folder here"):
            refuse_absent(name)
    refuse_absent("runs/nope")  # a folder without models says nothing: bert/ for code, and bert/… on the hub
    (tmp_path / "runs" / "first" / RUN_NAME).write_text("{}")
    (tmp_path / "runs" / "first" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="there is no such folder here") as refused:
        refuse_absent("runs/nope")
    assert refused.value.hint == "runs has first."
    (tmp_path / "cache" / "models--runs--nope").mkdir(parents=True)
    for name in ("runs/nope", "runs/first", "Qwen/Qwen3-0.6B", "nope/x", "gpt2"):
        refuse_absent(name)


def test_what_is_neither_here_nor_to_be_had_from_the_hub_is_said_to_be_neither(monkeypatch):
    from ftcli.core.models import predict

    def unreached(*_, **__):
        raise OSError("We couldn't connect to 'https://huggingface.co' to load the files")

    monkeypatch.setattr(AutoConfig, "from_pretrained", unreached)
    settings = context(model__name_or_path="nope/x").settings
    for ask in (lambda: predict.load("nope/x"), lambda: published(settings)):
        with pytest.raises(ModelError, match="nope/x is neither a local folder nor available on the hub: We couldn't connect") as refused:
            ask()
        assert "or give a folder" in refused.value.hint
