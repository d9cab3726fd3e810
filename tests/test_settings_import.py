"""`ftcli settings import`: what another trainer's file says is said by ours, and no key is dropped in silence."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml
from transformers import TrainingArguments

from ftcli.commands.settings_import import as_lines
from ftcli.core.convert.foreign import KINDS, Imported, _table, read_foreign, recognise
from ftcli.core.convert.foreign_values import BOTH, FIRST
from ftcli.errors import SettingsError, UsageError
from ftcli.settings import get, walk
from ftcli.settings_train import REFUSED
from ftcli.sources import resolve
from ftcli.testing import run

AXOLOTL = """
base_model: NousResearch/Llama-3.2-1B
load_in_4bit: true
adapter: qlora
datasets:
  - path: answers.jsonl
    type: chat_template
    field_messages: dialog
    roles_to_train: [assistant]
    train_on_eos: all
test_datasets:
  - path: held-out.jsonl
sequence_len: 2048
sample_packing: true
excess_length_strategy: truncate
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
optimizer: paged_adamw_32bit
lr_scheduler: cosine
learning_rate: 2e-4
bf16: full
gradient_checkpointing: true
warmup_ratio: 0.1
evals_per_epoch: 4
saves_per_epoch: 1
wandb_project:
special_tokens: {pad_token: "<|end_of_text|>"}
hf_use_auth_token: true
not_a_key: 3
"""
LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen3-4B
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: q_proj,v_proj
dataset: identity,alpaca_en_demo
template: qwen3
cutoff_len: 4096
neat_packing: true
preprocessing_num_workers: 16
overwrite_output_dir: true
output_dir: saves/lora
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
report_to: none
val_size: 0.1
eval_strategy: no
hf_hub_token: hf_this_is_a_secret
pissa_init: true
resume_from_checkpoint: null
"""
TRL = """
model_name_or_path: Qwen/Qwen3-0.6B
dataset_name: trl-lib/Capybara
dtype: bfloat16
use_peft: true
lora_r: 64
lora_alpha: 16
lora_target_modules: [q_proj, v_proj]
packing: true
packing_strategy: bfd_split
max_length: 8192
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
learning_rate: 3.0e-4
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs: {min_lr_rate: 0.1}
warmup_steps: 100
assistant_only_loss: true
use_liger_kernel: true
push_to_hub: true
dataset_train_split: train_sft
"""
SAME: dict[str, tuple[str, dict[str, Any]]] = {
    "axolotl": (
        AXOLOTL,
        {
            "train.learning_rate": 2e-4,
            "train.per_device_train_batch_size": 2,
            "train.gradient_accumulation_steps": 4,
            "train.num_train_epochs": 4,
            "train.lr_scheduler_type": "cosine",
            "train.warmup_steps": 0.1,
            "train.optim": "paged_adamw_32bit",
            "train.bf16": True,
            "train.eval_steps": 1 / 16,
            "train.eval_strategy": "steps",
            "train.save_strategy": "steps",
            "train.save_steps": 1 / 4,
            "train.load_best_model_at_end": True,
            "train.save_total_limit": 4,
            "train.mode": "sft",
            "train.gradient_checkpointing": True,
            "model.name_or_path": "NousResearch/Llama-3.2-1B",
            "model.dtype": "bfloat16",
            "model.load_in_4bit": True,
            "model.lora_r": 32,
            "model.lora_alpha": 16,
            "model.lora_dropout": 0.05,
            "model.lora_target_modules": ["all-linear"],
            "packing.max_length": 2048,
            "packing.strategy": "bfd",
            "packing.truncation_strategy": "keep_start",
            "tokenizer.path": "NousResearch/Llama-3.2-1B",
            "dataset.sources": ["answers.jsonl", "validation=held-out.jsonl"],
            "dataset.text_column": "dialog",
        },
    ),
    "llama-factory": (
        LLAMA_FACTORY,
        {
            "train.learning_rate": 1e-4,
            "train.per_device_train_batch_size": 1,
            "train.gradient_accumulation_steps": 8,
            "train.num_train_epochs": 3,
            "train.lr_scheduler_type": "cosine",
            "train.warmup_steps": 0.1,
            "train.bf16": True,
            "train.mode": "sft",
            "train.output_dir": Path("saves/lora"),
            "train.gradient_checkpointing": True,
            "train.eval_strategy": "no",
            "train.save_strategy": "steps",
            "train.save_steps": 500,
            "train.ddp_timeout": 180000000,
            "model.name_or_path": "Qwen/Qwen3-4B",
            "model.dtype": "bfloat16",
            "model.lora_r": 8,
            "model.lora_target_modules": ["q_proj", "v_proj"],
            "packing.max_length": 4096,
            "packing.strategy": "bfd",
            "packing.truncation_strategy": "keep_start",
            "dataset.num_proc": 16,
            "dataset.validation_fraction": 0.1,
            "runtime.overwrite": True,
            "tokenizer.path": "Qwen/Qwen3-4B",
        },
    ),
    "trl": (
        TRL,
        {
            "train.learning_rate": 3e-4,
            "train.per_device_train_batch_size": 4,
            "train.gradient_accumulation_steps": 8,
            "train.lr_scheduler_type": "cosine_with_min_lr",
            "train.lr_scheduler_kwargs": {"min_lr_rate": 0.1},
            "train.warmup_steps": 100,
            "train.bf16": True,
            "train.gradient_checkpointing": True,
            "train.use_liger_kernel": True,
            "train.push_to_hub": True,
            "train.eval_strategy": "no",
            "train.save_strategy": "steps",
            "train.save_steps": 500,
            "model.name_or_path": "Qwen/Qwen3-0.6B",
            "model.dtype": "bfloat16",
            "model.lora_r": 64,
            "model.lora_alpha": 16,
            "model.lora_dropout": 0.05,
            "model.lora_target_modules": ["q_proj", "v_proj"],
            "packing.max_length": 8192,
            "packing.strategy": "bfd",
            "packing.truncation_strategy": "split",
            "dataset.sources": ["trl-lib/Capybara"],
            "dataset.assistant_only_loss": True,
            "train.mode": "sft",
            "tokenizer.path": "Qwen/Qwen3-0.6B",
        },
    ),
}
LOST = {
    "axolotl": {"datasets[0].train_on_eos", "special_tokens", "hf_use_auth_token", "not_a_key"},
    "llama-factory": {"dataset", "template", "hf_hub_token", "pissa_init"},
    "trl": {"dataset_train_split"},
}


AXOLOTLS, TRLS = {"base_model": "m", "sequence_len": 512}, {"model_name_or_path": "m", "dataset_train_split": "train"}


def read(text: str | Mapping[str, Any], kind: str | None = None) -> Imported:
    return read_foreign(yaml.safe_load(text) if isinstance(text, str) else text, kind, Path("theirs.yml"))


def words(found: Imported, key: str) -> str:
    return next(f"{line.outcome}: {line.words}" for line in found.lines if line.key == key)


@pytest.mark.parametrize(("written", "wanted"), [(True, True), ("non_padding", "non_padding"), (False, False)])
def test_counted_input_tokens_are_a_truth_value_or_a_word(written: Any, wanted: Any) -> None:
    values = read({"model_name_or_path": "m", "dataset_name": "a.jsonl", "include_num_input_tokens_seen": written}, "trl").values
    assert values["train.include_num_input_tokens_seen"] == wanted


@pytest.mark.parametrize(("written", "wanted"), [("auto", "auto"), (True, True), (False, False)])
def test_what_axolotl_says_of_compiling_is_said_here(written: Any, wanted: Any) -> None:
    values = read({"base_model": "m", "datasets": [{"path": "a.jsonl"}], "sequence_len": 512, "torch_compile": written}).values
    assert values["train.torch_compile"] == wanted


@pytest.mark.parametrize(
    ("written", "wanted"),
    [(["full_shard", "auto_wrap"], "full_shard auto_wrap"), ("full_shard", "full_shard"), (True, "full_shard"), (False, None), ([], None)],
)
@pytest.mark.parametrize("kind", ["axolotl", "trl"])
def test_fsdp_may_be_a_list_of_words(kind: str, written: Any, wanted: str | None) -> None:
    found = read_foreign({"fsdp": written}, kind, Path("f.yaml"))
    assert found.values.get("train.fsdp") == wanted


FSDP_1 = {
    "fsdp_limit_all_gathers": True,
    "fsdp_sync_module_states": True,
    "fsdp_offload_params": True,
    "fsdp_use_orig_params": False,
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_transformer_layer_cls_to_wrap": None,
}


def test_what_axolotl_says_of_fsdp_is_said_in_the_words_of_transformers() -> None:
    found = read({**AXOLOTLS, "fsdp": ["full_shard", "auto_wrap"], "fsdp_config": {**FSDP_1, "mixed_precision_policy": "bf16"}})
    known = {"version": 1, "limit_all_gathers": True, "sync_module_states": True, "cpu_offload": True, "use_orig_params": False}
    assert (found.values["train.fsdp"], found.values["train.fsdp_config"]) == ("full_shard auto_wrap", known)
    assert words(found, "fsdp_config.mixed_precision_policy") == "no counterpart: transformers does not read it"

    second = {"offload_params": False, "reshard_after_forward": True, "use_orig_params": True, "limit_all_gathers": True}
    found = read({**AXOLOTLS, "fsdp_version": 2, "fsdp_config": second})
    assert found.values["train.fsdp"] == "full_shard"
    assert found.values["train.fsdp_config"] == {"version": 2, "cpu_offload": False, "reshard_after_forward": True}
    assert words(found, "fsdp_config.limit_all_gathers") == "no counterpart: FSDP 2 has no such option"
    assert words(found, "fsdp_version") == "no effect: is part of train.fsdp_config"
    inside = read({**AXOLOTLS, "fsdp_config": {"fsdp_version": 2, "use_orig_params": True}})
    assert (inside.values["train.fsdp_config"], len(inside.of("no counterpart"))) == ({"version": 2}, 1)


@pytest.mark.parametrize(
    ("version", "strategy", "kept", "lost"),
    [
        (1, "FULL_SHARD", None, None),
        (1, "HYBRID_SHARD", None, "hybrid_shard: under FSDP 1 accelerate shards the whole model"),
        (1, 2, None, "2: under FSDP 1 accelerate shards the whole model"),
        (2, "FULL_SHARD", True, None),
        (2, "SHARD_GRAD_OP", False, None),
        (2, "HYBRID_SHARD", None, "hybrid_shard exists in FSDP 1 only"),
    ],
)
def test_a_strategy_of_fsdp_is_kept_as_far_as_it_counts(version: int, strategy: Any, kept: bool | None, lost: str | None) -> None:
    found = read({**AXOLOTLS, "fsdp_version": version, "fsdp_config": {"fsdp_sharding_strategy": strategy}})
    assert found.values["train.fsdp_config"].get("reshard_after_forward") is kept
    assert [line.words for line in found.of("no counterpart")] == ([lost] if lost else [])


def test_a_table_for_fsdp_that_nothing_asks_for_is_not_taken_over() -> None:
    alone = read({**TRLS, "fsdp_config": {"version": 2}})
    assert words(alone, "fsdp_config") == "no effect: nothing is sharded without fsdp"
    asked = read({**TRLS, "fsdp": "full_shard", "fsdp_config": {"offload_params": True, "sync_module_states": True}})
    assert asked.values["train.fsdp_config"] == {"cpu_offload": True}
    assert words(read({**TRLS, "fsdp": True, "fsdp_config": "fsdp.json"}), "fsdp_config") == "mapped: train.fsdp_config"
    assert words(read({**AXOLOTLS, "fsdp": True, "fsdp_version": 1}), "fsdp_version") == "no counterpart: set it in train.fsdp_config"


@pytest.mark.parametrize("version", [1, 2])
def test_keys_of_fsdp_are_those_that_transformers_reads(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import TrainingArguments

    class Asked(dict[str, Any]):
        names: ClassVar[set[str]] = set()

        def get(self, name: str, default: Any = None) -> Any:
            self.names.add(name)
            return super().get(name, default)

        def __contains__(self, name: object) -> bool:
            self.names.add(str(name))
            return super().__contains__(name)

        def __getitem__(self, name: str) -> Any:
            self.names.add(name)
            return super().__getitem__(name)

    Asked.names = {"xla_fsdp_v2", "xla_fsdp_settings"}  # of TPUs
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")
    TrainingArguments._process_fsdp_args(SimpleNamespace(fsdp=True, fsdp_config=Asked(version=version), activation_checkpointing=False))  # type: ignore[arg-type]
    assert Asked.names == (BOTH | FIRST if version == 1 else BOTH)


@pytest.mark.parametrize("kind", SAME)
def test_the_written_file_gives_the_same_run(kind: str, tmp_path: Path) -> None:
    text, expected = SAME[kind]
    (tmp_path / "theirs.yml").write_text(text)

    result = run("settings", "import", tmp_path / "theirs.yml", "--output", tmp_path / "run.toml", "--json")

    assert result.exit_code == 0, result.stderr
    lost = len(LOST[kind])
    assert result.report["details"]["title"].endswith(f"are mapped, {lost} {'has' if lost == 1 else 'have'} no counterpart")
    settings = resolve(config=tmp_path / "run.toml", environ={}).settings
    assert {key: get(settings, key) for key in expected} == expected
    written = tomllib.loads((tmp_path / "run.toml").read_text())
    assert {f"{section}.{name}" for section, table in written.items() for name in table} == set(expected)


@pytest.mark.parametrize("kind", SAME)
def test_every_key_is_mapped_or_listed_with_its_reason(kind: str) -> None:
    text = SAME[kind][0]
    found = read(text)

    assert {line.key for line in found.of("no counterpart")} == LOST[kind]
    assert {line.key.partition("[")[0] for line in found.lines} == set(yaml.safe_load(text))
    assert all(line.words for line in found.lines)


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_of_the_tables_names_settings_that_there_are(kind: str) -> None:
    known, table = {f"{section}.{name}" for section, name, _ in walk()}, _table(KINDS[kind])
    rules = [
        each for part in ("keys", "items") for rule in table.get(part, {}).values() for each in (rule if isinstance(rule, list) else [rule])
    ]
    named = [rule if isinstance(rule, str) else rule.get("to", []) for rule in rules]
    targets = {target for each in named for target in ([each] if isinstance(each, str) else each)}

    assert len(rules) > 100
    assert all("when" not in rule[-1] for rule in table["keys"].values() if isinstance(rule, list)), (
        "of several rules the last one always holds"
    )
    assert targets | {default["to"] for default in table["defaults"]} <= known
    assert set(table["marks"]) <= {*table["keys"], *(key for rule in table.get("refused", []) for key in rule["keys"])}
    for rule in rules:
        assert isinstance(rule, str) or set(rule) <= {
            "to",
            "values",
            "pass",
            "as",
            "harmless",
            "when",
            "also",
            "lost",
            "same",
            "note",
            "null",
        }
        assert isinstance(rule, str) or {"to", "lost", "same", "as"} & set(rule)


def test_no_field_of_the_installed_trl_is_unknown() -> None:
    trl = pytest.importorskip("trl")
    known = _table("trl")["keys"]
    names = {each.name for kind in (trl.SFTConfig, trl.ModelConfig, trl.ScriptArguments) for each in fields(kind) if each.init}

    assert sorted(names - set(known)) == []


def test_a_default_of_theirs_is_written_where_nothing_is_said() -> None:
    trl, axolotl = read({"dataset_name": "a.jsonl"}).values, read({"base_model": "m", "learning_rate": 1e-5}).values

    assert (trl["train.learning_rate"], trl["packing.max_length"], trl["train.bf16"], "model.lora_r" in trl) == (2e-5, 1024, True, False)
    assert (axolotl["train.lr_scheduler_type"], axolotl["train.warmup_steps"], axolotl["packing.max_length"]) == ("cosine", 0.03, 512)
    unlimited = read({"dataset_name": "a.jsonl", "max_length": None})
    assert "packing.max_length" not in unlimited.values
    assert [line.outcome for line in unlimited.lines if line.key == "max_length"] == ["no counterpart"]
    factory = read({"stage": "pt", "finetuning_type": "full"}).values
    assert (factory["train.mode"], factory["packing.strategy"], "model.lora_r" in factory) == ("pretrain", "concat", False)
    assert read({"stage": "sft"}).values["model.lora_target_modules"] == ["all-linear"]


@pytest.mark.parametrize(
    ("keys", "mode", "column", "assistant"),
    [
        ({}, "sft", None, False),
        ({"dataset_text_field": "content"}, "pretrain", "content", None),
        ({"dataset_text_field": "text", "assistant_only_loss": False, "completion_only_loss": False}, "pretrain", "text", None),
        ({"dataset_text_field": "messages"}, "sft", "messages", False),
        ({"dataset_text_field": "text", "assistant_only_loss": True}, "sft", None, True),
        ({"dataset_text_field": "text", "completion_only_loss": True}, "sft", None, False),
    ],
)
def test_a_file_of_trl_is_of_conversations_unless_it_names_a_column_of_texts(
    keys: dict[str, Any], mode: str, column: str | None, assistant: bool | None
) -> None:
    values = read({"dataset_name": "a.jsonl", **keys}, "trl").values
    assert [values.get(key) for key in ("train.mode", "dataset.text_column", "dataset.assistant_only_loss")] == [mode, column, assistant]
    assert ("dataset.completion_only_loss" in values) == (keys.get("completion_only_loss") is True)


@pytest.mark.parametrize(
    ("names", "outcome"),
    [
        ({"role": "role", "content": "content"}, "no effect"),
        ({"content": "value", "role": "from"}, "no effect"),
        ({"role": "speaker", "content": "text"}, "no counterpart"),
    ],
)
def test_names_of_messages_that_are_found_anyway_are_not_lost(names: dict[str, str], outcome: str) -> None:
    data = {"path": "a.jsonl", "type": "chat_template", "message_property_mappings": names}
    found = read({"base_model": "m", "datasets": [data]}, "axolotl")
    assert words(found, "datasets[0].message_property_mappings").startswith(f"{outcome}: ")


@pytest.mark.parametrize(
    ("roles", "outcome"),
    [
        ({"user": ["human"], "assistant": ["gpt"]}, "no effect"),
        ({"user": ["human"], "assistant": ["gpt"], "system": ["system"]}, "no effect"),
        ({"system": ["system"], "user": ["user"], "assistant": ["assistant"]}, "no effect"),
        ({"user": ["gpt"], "assistant": ["human"]}, "no counterpart"),
        ({"user": ["customer"], "assistant": ["agent"]}, "no counterpart"),
    ],
)
def test_roles_as_sharegpt_and_templates_name_them_are_not_lost(roles: dict[str, list[str]], outcome: str) -> None:
    data = {"path": "a.jsonl", "type": "chat_template", "roles": roles}
    found = read({"base_model": "m", "datasets": [data]}, "axolotl")
    assert words(found, "datasets[0].roles").startswith(f"{outcome}: ")


def test_what_is_learned_and_what_is_cut_off_is_that_of_the_other_trainer() -> None:
    trl, axolotl = {"dataset_name": "a.jsonl"}, {"base_model": "m", "sequence_len": 512}
    assert read(trl).values["dataset.assistant_only_loss"] is False
    assert read({**trl, "assistant_only_loss": True}).values["dataset.assistant_only_loss"] is True
    cut = "packing.truncation_strategy"
    for plain in (
        {"datasets": [{"path": "a", "type": "completion"}]},
        {"pretraining_dataset": [{"path": "a", "type": "pretrain", "name": None}]},
    ):
        found = read({**axolotl, **plain})
        assert (found.values["train.mode"], found.values["dataset.sources"], found.values[cut]) == ("pretrain", ["a"], "split")
    assert read({**axolotl, "datasets": [{"path": "a", "type": "chat_template"}]}).values[cut] == "drop"
    assert cut not in read({"stage": "sft"}).values
    assert read({"stage": "sft", "packing": True}).values[cut] == "keep_start"
    assert cut not in read({"stage": "pt", "packing": True}).values


def test_texts_whose_place_is_lost_are_texts_all_the_same() -> None:
    """A data set of axolotl's examples: documents that are longer than a row would be left out."""
    data = {"path": "allenai/c4", "name": "en", "type": "pretrain", "text_column": "body"}
    found = read({"base_model": "m", "sequence_len": 512, "pretraining_dataset": [data]})
    wanted = {"train.mode": "pretrain", "packing.truncation_strategy": "split", "dataset.text_column": "body"}
    assert {key: found.values.get(key) for key in (*wanted, "dataset.sources")} == {**wanted, "dataset.sources": None}
    assert words(found, "pretraining_dataset").endswith(
        "give its files as dataset.sources; the rest is kept: train.mode, dataset.text_column"
    )

    plain = read({"base_model": "m", "pretraining_dataset": {"path": "a.jsonl", "text_column": "body"}})
    assert (plain.values["dataset.sources"], plain.values["dataset.text_column"]) == (["a.jsonl"], "body")
    several = [{"path": "a.jsonl", "text_column": "body"}, {"path": "b.jsonl", "text_column": "text"}]
    found = read({"base_model": "m", "pretraining_dataset": several})
    assert words(found, "pretraining_dataset").startswith("no counterpart: its text columns have different names")


def test_a_name_on_the_hub_is_axolotls_wish_for_an_upload() -> None:
    pushed = read({"base_model": "m", "sequence_len": 512, "hub_model_id": "me/mine", "hub_strategy": "end"}).values
    assert {key: value for key, value in pushed.items() if key.startswith(("train.hub_", "train.push_"))} == {
        "train.push_to_hub": True,
        "train.hub_private_repo": True,
        "train.hub_model_id": "me/mine",
        "train.hub_strategy": "end",
        "train.hub_always_push": True,
    }
    alone = read({"base_model": "m", "sequence_len": 512, "hub_strategy": "end"})
    assert words(alone, "hub_strategy") == "no effect: nothing is uploaded without hub_model_id"


@pytest.mark.parametrize(
    ("theirs", "dtype"),
    [
        ({"base_model": "m", "adapter": "lora"}, "bfloat16"),
        ({"base_model": "m", "adapter": "qlora", "bf16": True}, "bfloat16"),
        ({"base_model": "m", "adapter": "lora", "bf16": "auto", "float32": True}, "float32"),
        ({"base_model": "m", "adapter": "lora", "bf16": False}, None),
        ({"base_model": "m", "adapter": "lora", "fp16": True}, None),
        ({"base_model": "m", "bf16": "auto"}, None),
        ({"stage": "sft", "bf16": True}, "bfloat16"),
        ({"stage": "sft", "bf16": False}, None),
        ({"stage": "sft", "bf16": True, "finetuning_type": "full"}, None),
    ],
)
def test_the_base_of_an_adapter_is_loaded_as_the_other_trainer_does(theirs: dict[str, Any], dtype: str | None) -> None:
    assert read(theirs).values.get("model.dtype") == dtype


@pytest.mark.parametrize(("said", "noted"), [("auto", True), (True, True), (False, False), ("full", False)])
def test_weights_of_bfloat16_that_are_float32_here_are_spoken_of(said: Any, noted: bool) -> None:
    found = read({"base_model": "m", "sequence_len": 512, "bf16": said})
    assert ("#   bf16: axolotl also loads the weights in bfloat16" in "\n".join(as_lines(found, Path("theirs.yml")))) == noted


def test_no_key_becomes_a_setting_that_every_run_refuses() -> None:
    refused = {f"train.{name}" for name in (*REFUSED, "label_smoothing_factor")}
    for kind in KINDS.values():
        for key, rule in _table(kind)["keys"].items():
            rules = rule if isinstance(rule, list) else [{"to": rule} if isinstance(rule, str) else rule]
            assert not {each.get("to") for each in rules if isinstance(each.get("to"), str)} & refused, (kind, key)


@pytest.mark.parametrize(
    ("key", "value", "outcome"),
    [
        ("debug", "underflow_overflow", "no counterpart"),
        ("debug", "", "no effect"),
        ("debug", [], "no effect"),
        ("label_smoothing_factor", 0.1, "no counterpart"),
        ("label_smoothing_factor", 0.0, "no effect"),
        ("ignore_data_skip", True, "no counterpart"),
        ("bf16_full_eval", False, "no effect"),
        ("average_tokens_across_devices", True, "no effect"),
        ("dataloader_in_order", False, "no counterpart"),
    ],
)
def test_what_every_run_refuses_is_lost_with_its_reason(key: str, value: Any, outcome: str) -> None:
    found = read({"model_name_or_path": "m", "dataset_name": "a", key: value})
    assert words(found, key).startswith(f"{outcome}: ")
    assert f"train.{key}" not in found.values


@pytest.mark.parametrize("theirs", [{"dataset_name": "a"}, {"stage": "sft"}])
def test_what_transformers_saves_and_evaluates_is_said(theirs: dict[str, Any]) -> None:
    cadence = "train.save_strategy", "train.save_steps", "train.eval_strategy", "train.eval_steps"
    for said, wanted in (
        ({}, ["steps", 500, "no", None]),
        ({"save_steps": 200}, ["steps", 200, "no", None]),
        ({"save_strategy": "epoch", "eval_strategy": "epoch"}, ["epoch", None, "epoch", None]),
        ({"eval_strategy": "steps", "eval_steps": 50}, ["steps", 500, "steps", 50]),
    ):
        values = read({**theirs, **said}).values
        assert [values.get(key) for key in cadence] == wanted


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400])
@pytest.mark.parametrize("key", ["batch_size", "val_set_size", "saves_per_epoch", "learning_rate"])
def test_a_number_without_an_end_is_lost(key: str, value: Any) -> None:
    theirs = {"base_model": "m", "sequence_len": 512, "micro_batch_size": 2, key: value}
    if key == "learning_rate" and isinstance(value, int):
        with pytest.raises(SettingsError, match=r"train\.learning_rate"):
            read(theirs)
    else:
        assert words(read(theirs), key).startswith("no counterpart: ")
    inside = read({**theirs, key: None, "lr_scheduler_kwargs": {"min_lr": float("inf")}})
    assert words(inside, "lr_scheduler_kwargs") == "no counterpart: inf is not a finite number"


def test_numbers_of_yaml_without_a_dot_are_numbers_in_a_table(tmp_path: Path) -> None:
    theirs, output = tmp_path / "theirs.yml", tmp_path / "run.toml"
    theirs.write_text(
        "base_model: m\nsequence_len: 512\nlr_scheduler_kwargs: {min_lr: 1e-6, named: '1e-6'}\nlearning_rate: 2e-4\nwandb_name: 1e3\n"
    )
    assert run("settings", "import", theirs, "--output", output).exit_code == 0
    written = tomllib.loads(output.read_text())
    assert written["train"]["lr_scheduler_kwargs"] == {"min_lr": 1e-6, "named": "1e-6"}
    assert (written["train"]["learning_rate"], written["tracking"]["run_name"]) == (2e-4, "1e3")


def test_what_cannot_be_printed_is_written_as_an_escape(tmp_path: Path) -> None:
    theirs, output = tmp_path / "theirs.yml", tmp_path / "run.toml"
    theirs.write_text('base_model: m\nsequence_len: 512\n"wei\\erd": 1\nlr_scheduler_kwargs: {"a\\x7f": 1}\n')
    output.write_text("# good\n")
    done = run("settings", "import", theirs, "--output", output, "--overwrite")
    assert done.exit_code == 0, done.stderr
    assert "#   wei\\x1brd: ftcli does not know this key" in output.read_text()
    assert tomllib.loads(output.read_text())["train"]["lr_scheduler_kwargs"] == {"a\x7f": 1}


def test_what_no_file_can_hold_replaces_none(tmp_path: Path) -> None:
    theirs, output = tmp_path / "theirs.json", tmp_path / "run.toml"
    theirs.write_text('{"base_model": "m", "sequence_len": 512, "wandb_name": "half \\ud800"}')
    output.write_text("# good\n")
    done = run("settings", "import", theirs, "--output", output, "--overwrite")
    assert (done.exit_code, "bug" in done.stderr, output.read_text()) == (2, False, "# good\n")


def test_a_prompt_that_is_written_otherwise_is_said_in_the_file() -> None:
    alpaca = read({"base_model": "m", "sequence_len": 512, "datasets": [{"path": "a", "type": "alpaca"}]})

    assert alpaca.values["train.mode"] == "sft"
    assert "#   datasets[0].type: axolotl uses Alpaca's own prompt" in "\n".join(as_lines(alpaca, Path("theirs.yml")))


@pytest.mark.parametrize(
    "config",
    [
        {"model_name_or_path": "m", "stage": "dpo", "pref_beta": 0.1},
        {"model_name_or_path": "m", "stage": "rm", "lora_rank": 8},
        {"base_model": "m", "sequence_len": 512, "rl": "dpo"},
        {"base_model": "m", "sequence_len": 512, "reward_model": True},
    ],
)
def test_a_training_of_another_kind_is_not_made_one_of_ours(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"ftcli (does not train on preferences|has no reward models)"):
        read(config)


TRL_SFT = {"model_name_or_path": "m", "dataset_name": "a.jsonl", "max_length": 512}


@pytest.mark.parametrize(
    "keys",
    [
        {"beta": 0.1, "max_prompt_length": 512},
        {"beta": 0.0},
        {"loss_type": "apo_zero"},
        {"loss_type": "sigmoid"},
        {"desirable_weight": 1.0},
        {"reward_funcs": ["accuracy"]},
        {"max_completion_length": 256},
        {"reward_model_path": "r"},
        {"reference_free": True},
        {"center_rewards_coefficient": 0.01},
        {"teacher_model_name_or_path": "t"},
    ],
)
def test_a_file_of_trl_that_is_none_of_sft_is_refused(keys: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump({**TRL_SFT, **keys}))
    refused = run("settings", "import", tmp_path / "theirs.yaml")
    assert (refused.exit_code, next(iter(keys)) in refused.stderr, "use the trainer" in refused.stderr) == (2, True, True)


@pytest.mark.parametrize("loss", ["nll", "chunked_nll", "dft"])
def test_losses_of_sft_are_none_of_another_training(loss: str) -> None:
    assert read({**TRL_SFT, "loss_type": loss}).values["train.mode"] == "sft"


def test_no_key_of_sft_makes_a_file_one_of_another_training() -> None:
    trl = pytest.importorskip("trl")
    names = {each.name for kind in (trl.SFTConfig, trl.ModelConfig, trl.ScriptArguments) for each in fields(kind)}
    assert {key for rule in _table("trl")["refused"] for key in rule["keys"]} & names == {"loss_type"}


LLAMA_FACTORYS = {"model_name_or_path": "m", "template": "qwen3", "finetuning_type": "lora"}


@pytest.mark.parametrize(
    ("config", "why", "way"),
    [
        (
            {"model": "m", "model_class": "llm", "train_dataset": "d.yaml", "micro_batch_size": 1, "cutoff_len": 512},
            "version 1",
            "version 0",
        ),
        ({"model": "m", "peft_config": {"name": "lora", "export_dir": "d"}}, "peft_config is set: this is a file of", "version 0"),
        ({**LLAMA_FACTORYS, "adapter_name_or_path": "a", "export_dir": "merged"}, "merges or exports", "ftcli merge"),
        ({**LLAMA_FACTORYS, "infer_backend": "huggingface"}, "is for inference, not for training", "ftcli predict"),
        ({**LLAMA_FACTORYS, "stage": "sft", "do_predict": True}, "is for inference or evaluation", "ftcli predict"),
        ({**LLAMA_FACTORYS, "task": "mmlu_test"}, "is for inference or evaluation", "ftcli predict"),
    ],
)
def test_a_file_of_llama_factory_that_trains_nothing_or_in_other_words_is_refused(config: dict[str, Any], why: str, way: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        read(config)
    assert way in refused.value.hint


@pytest.mark.parametrize("key", ["export_dir", "infer_backend", "do_predict", "do_eval"])
def test_what_a_training_of_llama_factory_may_say_besides_refuses_nothing(key: str) -> None:
    assert read({**LLAMA_FACTORYS, "do_train": True, key: True}).values["model.lora_r"] == 8


def test_a_key_that_asks_for_no_such_training_is_none() -> None:
    assert words(read({"base_model": "m", "sequence_len": 512, "rl": False}), "rl") == "no effect: false: the same in ftcli"
    assert words(read({"base_model": "m", "sequence_len": 512, "rl": None}), "rl") == "no effect: not set"


def test_offloaded_activations_are_computed_again_which_is_said() -> None:
    found = read({"base_model": "m", "sequence_len": 512, "gradient_checkpointing": "offload"})

    assert found.values["train.gradient_checkpointing"] is True
    assert "not offloaded" in words(found, "gradient_checkpointing")
    assert words(read({"base_model": "m", "sequence_len": 512, "gradient_checkpointing": True}), "gradient_checkpointing").startswith(
        "mapped"
    )


def test_nothing_is_evaluated_where_nothing_is_held_out() -> None:
    axolotl = {"base_model": "m", "sequence_len": 512, "evals_per_epoch": 4}

    found = read({**axolotl, "val_set_size": 0.0})
    assert "train.eval_strategy" not in found.values
    assert words(found, "evals_per_epoch") == "no effect: no data are held out to evaluate on"
    assert read({**axolotl, "val_set_size": 0.1}).values["train.eval_strategy"] == "steps"
    for said in ({}, {"val_set_size": None}, {"eval_steps": 10}, {"eval_strategy": "epoch"}):  # nothing is held out where nothing is said
        assert "train.eval_strategy" not in read({**axolotl, **said}).values
    tested = read({**axolotl, "val_set_size": 0, "test_datasets": [{"path": "v.jsonl", "type": "chat_template"}]})
    assert tested.values["train.eval_strategy"] == "steps"


@pytest.mark.parametrize("theirs", [AXOLOTLS, TRLS])
@pytest.mark.parametrize(
    ("item", "sources"),
    [
        ({"path": "org/set", "data_files": "a.jsonl"}, ["org/set/a.jsonl"]),
        ({"path": "data/", "data_files": ["a.jsonl", "/b.jsonl"]}, ["data/a.jsonl", "/b.jsonl"]),
        ({"path": "json", "data_files": ["a.jsonl"]}, ["a.jsonl"]),
        ({"path": "data", "data_files": None}, ["data"]),
    ],
)
def test_files_of_a_data_set_are_those_in_it_and_not_the_set_once_more(
    theirs: dict[str, Any], item: dict[str, Any], sources: list[str]
) -> None:
    found = read({**theirs, "datasets": [item]})
    assert found.values["dataset.sources"] == sources
    assert {line.key for line in found.lines} >= {f"datasets[0].{name}" for name in item}


def test_checkpoints_that_would_be_kept_are_spoken_of_where_nothing_is_said(tmp_path: Path) -> None:
    """Nothing said keeps all of them there, and two here."""
    for text, lost in ((TRL, True), (LLAMA_FACTORY, True), (TRL + "save_total_limit: 3\n", False), (AXOLOTL, False)):
        (tmp_path / "theirs.yml").write_text(text)
        done = run("settings", "import", tmp_path / "theirs.yml", "--output", tmp_path / "run.toml", "--overwrite", "--json")
        assert any("that trainer keeps all checkpoints" in note for note in done.report["notes"]) == lost
        assert ("that trainer keeps all checkpoints" in (tmp_path / "run.toml").read_text()) == lost
    assert "save_total_limit" not in {line.key for line in read({**TRLS, "save_strategy": "no"}).unsaid}
    null = read({**TRLS, "save_total_limit": None})
    assert words(null, "save_total_limit").startswith("no counterpart: that trainer keeps all checkpoints")


@pytest.mark.parametrize("written", ["all", ["all"]])
def test_every_tracker_is_none_that_can_be_named(written: Any) -> None:
    found = read({**TRLS, "report_to": written})
    assert "tracking.report_to" not in found.values
    assert words(found, "report_to") == "no counterpart: name the trackers: tracking.report_to"


def test_an_unknown_key_without_a_value_is_not_set() -> None:
    assert words(read({"base_model": "m", "sequence_len": 512, "brand_new": None}), "brand_new") == "no effect: not set"


def test_texts_of_a_row_are_spoken_of_only_where_rows_hold_several() -> None:
    assert read({"stage": "sft", "packing": False}).values["packing.strategy"] == "none"
    assert words(read({"stage": "sft", "packing": False}), "packing") == "mapped: packing.strategy"
    assert "do not attend to each other" in words(read({"stage": "sft", "packing": True}), "packing")


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_byte_order_mark_is_no_key_and_the_folder_of_the_output_is_made(tmp_path: Path, suffix: str) -> None:
    theirs, output = tmp_path / f"theirs.{suffix}", tmp_path / "new" / "run.toml"
    theirs.write_text(json.dumps({"base_model": "m", "sequence_len": 512}), encoding="utf-8-sig")

    done = run("settings", "import", theirs, "--output", output)

    assert done.exit_code == 0, done.stderr
    assert 'name_or_path = "m"' in output.read_text()
    assert run("settings", "--config", output).exit_code == 0
    missing = run("settings", "import", tmp_path / f"gone.{suffix}")
    assert run("settings", "import", tmp_path / f"gone.{suffix}", "--json").report["command"] == "settings import"
    assert (missing.exit_code, "Errno" in missing.stderr, f"gone.{suffix} does not exist" in missing.stderr) == (2, False, True)


EXPRESSION = r"model.layers.[\d]+.(mlp|self_attn).(up|q)_proj"


@pytest.mark.parametrize(
    ("theirs", "key"),
    [
        ({**AXOLOTLS, "adapter": "lora"}, "lora_target_modules"),
        ({**TRLS, "use_peft": True}, "lora_target_modules"),
        ({"stage": "sft"}, "lora_target"),
    ],
)
def test_an_expression_for_layers_is_no_name_of_one(theirs: dict[str, Any], key: str) -> None:
    assert words(read({**theirs, key: EXPRESSION}), key).startswith("no counterpart: a regular expression")
    assert read({**theirs, key: "q_proj"}).values["model.lora_target_modules"] == ["q_proj"]


@pytest.mark.parametrize(
    ("cadence", "best"),
    [
        ({"saves_per_epoch": 1, "evals_per_epoch": 4}, True),
        ({"saves_per_epoch": 4, "evals_per_epoch": 1}, None),
        ({"save_steps": 5000, "eval_steps": 1000, "early_stopping_patience": 3}, True),
        ({"save_steps": 500, "eval_steps": 300, "early_stopping_patience": 3}, None),
        ({"save_steps": 500, "evals_per_epoch": 2}, None),
        ({"saves_per_epoch": 1, "evals_per_epoch": 4, "load_best_model_at_end": False}, False),
        ({"saves_per_epoch": 1, "evals_per_epoch": 4, "val_set_size": 0}, None),
    ],
)
def test_axolotl_ends_with_the_best_model_where_saves_meet_evaluations(cadence: dict[str, Any], best: bool | None) -> None:
    found = read({**AXOLOTLS, "num_epochs": 4, "val_set_size": 0.1, **cadence})
    assert found.values.get("train.load_best_model_at_end") is best


@pytest.mark.parametrize(
    ("written", "strategy", "cut"),
    [("ffd", "bfd", "keep_start"), ("bfd", "bfd", "keep_start"), ("bfd-requeue", "bfd", "split"), ("wrapped", "concat", "split")],
)
def test_older_names_of_packing_are_known(written: str, strategy: str, cut: str) -> None:
    values = read({**TRLS, "packing": True, "packing_strategy": written}).values
    assert (values["packing.strategy"], values["packing.truncation_strategy"]) == (strategy, cut)


@pytest.mark.parametrize(
    ("said", "doubt"),
    [({}, True), ({"assistant_only_loss": True}, False), ({"chat_template": "{{ x }}"}, False), ({"dataset_text_field": "text"}, False)],
)
def test_that_a_file_of_trl_may_mean_plain_texts_is_said(said: dict[str, Any], doubt: bool, tmp_path: Path) -> None:
    """TRL's own example: a model, a data set of texts, and no word of which kind it is."""
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump({**TRLS, "dataset_name": "imdb", **said}))
    done = run("settings", "import", tmp_path / "theirs.yaml", "--json")
    assert any(note.startswith("train.mode, which theirs.yaml does not say: sft") for note in done.report["notes"]) == doubt
    assert ("#   train.mode: sft is for conversations" in "\n".join(done.report["details"]["lines"])) == doubt


@pytest.mark.parametrize("key", ["dataset_mixture", "dataset_mixer", "dataset_splits", "chat_template"])
def test_keys_of_the_alignment_handbook_are_lost_with_their_reason(key: str) -> None:
    told = words(read({**TRLS, key: {"a": 1}}), key)
    assert told.startswith("no counterpart: ")
    assert "does not know this key" not in told


def test_do_eval_beside_a_strategy_says_nothing_more() -> None:
    assert words(read({**TRLS, "do_eval": True, "eval_strategy": "epoch"}), "do_eval").startswith("no effect: ")
    assert words(read({**TRLS, "do_eval": True}), "do_eval").startswith("no counterpart: ")


def test_lora_keys_count_only_where_lora_is_on() -> None:
    found = read({"dataset_name": "a", "lora_r": 8})

    assert words(found, "lora_r") == "no effect: use_peft is false"


def test_where_two_keys_mean_one_setting_the_second_is_listed() -> None:
    found = read({"base_model": "m", "warmup_ratio": 0.1, "warmup_steps": 10})

    assert found.values["train.warmup_steps"] == 10
    assert words(found, "warmup_ratio") == "no counterpart: train.warmup_steps is already set by warmup_steps"
    zero = read({"stage": "sft", "warmup_ratio": 0.1, "warmup_steps": 0})
    assert zero.values["train.warmup_steps"] == 0.1


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (
            "val_set_size",
            500,
            "no counterpart: a number of rows (500), but dataset.validation_fraction is a share of the rows: set it, otherwise nothing is held out for evaluation",
        ),
        ("attn_implementation", "xformers", "no counterpart: xformers has no counterpart"),
        ("attn_implementation", "sage", "no counterpart: sage has no counterpart"),
        ("attn_implementation", "kernels-community/vllm-flash-attn3", "mapped: model.attn_implementation"),
        ("val_set_size", 0.05, "mapped: dataset.validation_fraction"),
        ("batch_size", 32, "mapped: train.gradient_accumulation_steps"),
        ("optimizer", "muon", "no counterpart: muon has no counterpart"),
        ("gradient_checkpointing", "unsloth", "no counterpart: unsloth has no counterpart"),
        ("bf16", "auto", "no effect: auto: the same in ftcli"),
        ("load_in_8bit", False, "no effect: false: the same in ftcli"),
        ("load_in_8bit", True, "no counterpart: only 4-bit quantisation: model.load_in_4bit"),
        ("trust_remote_code", True, "no counterpart: it runs code, so only the command line can set it: --trust-remote-code"),
        ("lr_scheduler_kwargs", {"min_lr": None}, "no counterpart: it holds a null, which TOML cannot represent"),
        ("pretraining_dataset", [{"path": "a.jsonl"}, "b.jsonl"], "mapped: dataset.sources, train.mode"),
        (
            "pretraining_dataset",
            [{"path": "a.jsonl", "skip": 3}],
            "no counterpart: it is more than a path: give its files as dataset.sources; the rest is kept: train.mode",
        ),
        ("datasets", [], "no effect: empty"),
    ],
)
def test_a_value_decides_what_becomes_of_a_key(key: str, value: object, told: str) -> None:
    assert words(read({"base_model": "m", "micro_batch_size": 4, key: value}), key) == told


def test_the_rows_of_a_step_become_batches_that_are_summed() -> None:
    assert read({"base_model": "m", "micro_batch_size": 4, "batch_size": 32}).values["train.gradient_accumulation_steps"] == 8


def test_whose_file_it_is_is_found_out_or_asked() -> None:
    assert [recognise(yaml.safe_load(SAME[kind][0]), Path("a.yml")) for kind in SAME] == list(SAME)
    with pytest.raises(UsageError, match="do not show which trainer it belongs to"):
        read({"learning_rate": 1e-4})
    assert read({"learning_rate": 1e-4}, "trl").values["train.learning_rate"] == 1e-4


CLASSIFIES = {"model_name_or_path": "bert", "train_file": "a.csv", "validation_file": "b.csv", "text_column_names": "review",
    "label_column_name": "stars", "max_seq_length": 128, "pad_to_max_length": False, "early_stopping_patience": 3, "warmup_ratio": 0.06}  # fmt: skip
SPEAKS = {
    "model_name_or_path": "gpt2",
    "train_file": "a.txt",
    "block_size": 512,
    "preprocessing_num_workers": 4,
    "config_overrides": "n_embd=8",
}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (CLASSIFIES, {"dataset.sources": ["a.csv", "validation=b.csv"], "dataset.text_column": "review", "dataset.label_column": "stars",
            "packing.max_length": 128, "train.patience": 3, "train.warmup_steps": 0.06}),
        (SPEAKS, {"train.mode": "pretrain", "packing.strategy": "concat", "packing.max_length": 512, "dataset.num_proc": 4}),
    ],
)  # fmt: skip
def test_the_arguments_of_a_script_around_trainer_are_none_of_trl_or_llama_factory(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """BERT's classification became TRL's sft with its learning rate and length, GPT-2's pretraining LLaMA-Factory's sft with LoRA."""
    found = read(theirs)

    assert found.name == "Trainer"
    assert {key: found.values.get(key) for key in ours} == ours
    assert not {"train.mode", "model.lora_r"} & set(found.values) - set(ours)
    assert not found.of("no counterpart")


OLD = {  # written by transformers 4.46, where no script has set it
    "output_dir": "out", "overwrite_output_dir": False, "evaluation_strategy": None, "per_gpu_train_batch_size": None, "lr_scheduler_kwargs": {},
    "warmup_ratio": 0.0, "logging_dir": "out/runs/Nov30_10-00-00_host", "save_safetensors": True, "no_cuda": False, "use_cpu": False,
    "use_mps_device": False, "jit_mode_eval": False, "use_ipex": False, "fp16_opt_level": "O1", "half_precision_backend": "auto", "local_rank": 0,
    "tpu_num_cores": None, "tpu_metrics_debug": False, "past_index": -1, "run_name": "out", "disable_tqdm": False, "fsdp": [],
    "fsdp_min_num_params": 0, "fsdp_config": {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False},
    "fsdp_transformer_layer_cls_to_wrap": None, "adafactor": False, "group_by_length": False, "use_legacy_prediction_loop": False,
    "include_inputs_for_metrics": False, "fp16_backend": "auto", "push_to_hub_model_id": None, "push_to_hub_organization": None,
    "push_to_hub_token": "<PUSH_TO_HUB_TOKEN>", "hub_token": "<HUB_TOKEN>", "mp_parameters": "", "torchdynamo": None, "ray_scope": "last",
    "dispatch_batches": None, "split_batches": None, "include_tokens_per_second": False, "include_num_input_tokens_seen": False, "tp_size": 0,
    "_n_gpu": 1, "sharded_ddp": [], "debug": [], "report_to": ["tensorboard"], "save_total_limit": 2,
    "accelerator_config": {"split_batches": False, "dispatch_batches": None, "even_batches": True, "use_seedable_sampler": True,
                           "non_blocking": False, "gradient_accumulation_kwargs": None},
}  # fmt: skip


def test_of_a_dump_only_what_somebody_has_set_is_lost(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    usual = {"output_dir": str(tmp_path), "use_cpu": True, "disable_tqdm": False}  # the last is True where logging has been made quiet
    new = json.loads(TrainingArguments(**usual).to_json_string())
    sft = json.loads(trl.SFTConfig(**usual, bf16=False).to_json_string())
    for dump, kind in ((new, "trainer"), (OLD, "trainer"), (sft, "trl")):
        found = read_foreign(dump, kind, Path("theirs.json"))
        assert {line.key for line in found.of("no counterpart")} <= {"save_total_limit"}
        assert "train.accelerator_config" not in found.values
    set_by_hand = {**OLD, "logging_dir": "elsewhere", "use_ipex": True, "past_index": 2, "tp_size": 4, "disable_tqdm": True}
    set_by_hand["accelerator_config"] = {**OLD["accelerator_config"], "even_batches": False}  # type: ignore[dict-item]
    found = read_foreign(set_by_hand, "trainer", Path("theirs.json"))
    assert {line.key for line in found.of("no counterpart")} == {"logging_dir", "use_ipex", "past_index", "tp_size", "disable_tqdm"}
    assert found.values["train.accelerator_config"] == {"even_batches": False}


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("max_source_length", 512, "no counterpart: prompt and answer have one limit together: packing.max_length"),
        ("checkpoint_dir", "lora", "no counterpart: to continue from an adapter, give its folder as model.name_or_path"),
        ("sft_packing", True, "mapped: packing.strategy (packed texts do not attend to each other, as with neat_packing)"),
        ("flash_attn", True, "mapped: model.attn_implementation"),
        ("flash_attn", False, "no effect: false: the same in ftcli"),
        ("neft_alpha", 5.0, "mapped: train.neftune_noise_alpha"),
        ("neft_alpha", 0, "no effect: 0: the same in ftcli"),
        ("num_layer_trainable", 3, "no counterpart: all weights, LoRA, or the head alone: model.freeze_backbone"),
        ("temperature", 0.95, "no effect: for chatting only"),
        ("image_max_pixels", 589824, "no effect: text models only"),
        ("dpo_beta", 0.1, "no effect: stage sft and pt have no use for it"),
        ("hf_auth_token", "hf_secret", "no counterpart: tokens are not stored in files: set the environment variable HF_TOKEN"),
    ],
)
def test_older_keys_of_llama_factory_are_known(key: str, value: Any, told: str) -> None:
    found = read({"stage": "sft", "do_train": True, "finetuning_type": "lora", "template": "qwen", key: value})
    assert words(found, key) == told


def test_a_dump_of_a_trl_script_is_for_conversations() -> None:
    """`SFTConfig(…).to_json_string()` holds every default; its text column made a run on conversations one on plain texts."""
    trl = pytest.importorskip("trl")
    dumped = json.loads(trl.SFTConfig(output_dir="x", report_to="none", bf16=False, use_cpu=True).to_json_string())
    found = read(dumped)

    assert (found.name, found.values["train.mode"]) == ("TRL", "sft")
    assert "dataset.text_column" not in found.values
    assert read({"dataset_text_field": "text"}).values["train.mode"] == "pretrain"


def test_a_configuration_of_a_launcher_is_told_from_those_of_trainers() -> None:
    with pytest.raises(UsageError, match="configuration of accelerate's launcher") as refused:
        recognise({"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "mixed_precision": "bf16"}, Path("fsdp.yaml"))
    assert "accelerate launch --config_file fsdp.yaml -m ftcli train" in refused.value.hint


def test_an_impossible_value_names_file_and_key() -> None:
    with pytest.raises(SettingsError, match=r"train\.learning_rate = 'much' \(from theirs\.yml: learning_rate\)"):
        read({"base_model": "m", "learning_rate": "much"})


def test_printed_without_an_output_and_no_secret_is_shown(tmp_path: Path) -> None:
    (tmp_path / "theirs.json").write_text(json.dumps(yaml.safe_load(LLAMA_FACTORY)))

    result = run("settings", "import", tmp_path / "theirs.json")

    assert "learning_rate = 0.0001  # learning_rate" in result.stdout
    assert "#   hf_hub_token: tokens are not stored in files: set the environment variable HF_TOKEN" in result.stdout
    assert "secret" not in result.stdout + result.stderr
    (tmp_path / "run.toml").write_text(result.stdout)
    assert resolve(config=tmp_path / "run.toml", environ={}).settings.model.lora_r == 8


def test_an_output_is_replaced_only_on_demand(tmp_path: Path) -> None:
    (tmp_path / "theirs.yml").write_text(TRL)
    (tmp_path / "run.toml").write_text("mine")

    refused = run("settings", "import", tmp_path / "theirs.yml", "--output", tmp_path / "run.toml")
    assert (refused.exit_code, (tmp_path / "run.toml").read_text()) == (1, "mine")
    assert run("settings", "import", tmp_path / "theirs.yml", "--output", tmp_path / "run.toml", "--overwrite").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml", "theirs.yml"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("import",), "needs a file"),
        (("import", "nowhere.yml"), "does not exist"),
        (("show", "a.yml"), "takes no file"),
        (("import", "a.yml", "--output", "run.yaml"), "is no .toml file"),
    ],
)
def test_what_does_not_fit_is_refused(typed: tuple[str, ...], message: str) -> None:
    result = run("settings", *typed)

    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("said", "limit"), [({"save_strategy": "no"}, None), ({"save_strategy": False}, None), ({"save_strategy": "epoch"}, 4), ({}, 4)]
)
def test_where_axolotl_saves_nothing_no_checkpoints_are_limited(said: dict[str, Any], limit: int | None) -> None:
    assert read({"base_model": "m", "sequence_len": 512, **said}).values.get("train.save_total_limit") == limit


INFO: dict[str, Any] = {
    "identity": {"file_name": "identity.json"},
    "asked": {
        "file_name": "asked.jsonl",
        "columns": {"prompt": "question", "query": "more", "response": "answer", "system": "system", "history": None},
    },
    "said": {
        "hf_hub_url": "me/said",
        "ms_hub_url": "me/said",
        "formatting": "sharegpt",
        "split": "train",
        "subset": "small",
        "num_samples": 5,
        "columns": {"messages": "dialog", "tools": "functions", "images": "pictures"},
        "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "bot", "system_tag": "boss"},
    },
    "spoken": {"file_name": "spoken.json", "formatting": "sharegpt", "tags": {"role_tag": "role", "content_tag": "value"}},
    "chosen": {"file_name": "dpo.json", "ranking": True, "columns": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}},
    "wiki": {"file_name": "wiki.txt", "columns": {"prompt": "text"}},
    "news": {"file_name": "news", "columns": {"prompt": "body"}},
    "odd": {"script_url": "odd", "what": 1},
    "none": [],
    "empty": {"columns": {"prompt": "instruction"}},
}


def registered(folder: Path, **keys: Any) -> Imported:
    (folder / "dataset_info.json").write_text(json.dumps(INFO), encoding="utf-8")
    return read_foreign({"stage": "sft", "model_name_or_path": "m", **keys}, "llama-factory", folder / "theirs.yaml")


def test_data_sets_of_llama_factory_are_looked_up_beside_the_file(tmp_path: Path) -> None:
    found = registered(tmp_path, dataset="asked, said", eval_dataset=["asked"])
    place = str(tmp_path / "asked.jsonl")
    assert found.values["dataset.sources"] == [place, "me/said", f"validation={place}"]
    assert found.values["dataset.rename_columns"] == ["instruction=question", "input=more", "output=answer", "tools=functions"]
    assert found.values["dataset.text_column"] == "dialog"
    assert {line.key: line.words for line in found.of("no counterpart")}.keys() == {
        "dataset[said].subset",
        "dataset[said].num_samples",
        "dataset[said].columns.images",
        "dataset[said].tags.system_tag",
    }
    assert words(found, "dataset[said].tags.user_tag").startswith("no effect")
    assert words(found, "dataset[said].ms_hub_url") == "no effect: hf_hub_url is used"
    assert words(found, "dataset[asked].columns.system") == "no effect: system: the same in ftcli"
    assert "with a blank line between them" in words(found, "dataset[asked].file_name")


def test_plain_texts_of_llama_factory_have_one_column(tmp_path: Path) -> None:
    found = registered(tmp_path, stage="pt", dataset="wiki")
    assert (found.values["dataset.sources"], found.values["dataset.text_column"]) == ([str(tmp_path / "wiki.txt")], "text")
    several = registered(tmp_path, stage="pt", dataset="wiki,news")
    assert several.values["dataset.sources"] == [str(tmp_path / "wiki.txt")]
    assert words(several, "dataset[news]").startswith("no counterpart: its text column is 'body', that of dataset[wiki] is 'text'")
    assert registered(tmp_path, stage="pt", dataset="identity").values["dataset.text_column"] == "instruction"
    assert words(registered(tmp_path, stage="pt", dataset="said"), "dataset[said]").startswith("no counterpart: conversations")


@pytest.mark.parametrize(
    ("name", "key", "reason"),
    [
        ("absent", "dataset[absent]", "has no entry of this name"),
        ("none", "dataset[none]", "is not an object"),
        ("empty", "dataset[empty]", "names no file"),
        ("odd", "dataset[odd].script_url", "it runs code"),
        ("odd", "dataset[odd].what", "ftcli does not know this key of LLaMA-Factory"),
        ("chosen", "dataset[chosen]", "preference data"),
        ("spoken", "dataset[spoken].tags.content_tag", "role and content, or from and value"),
        ("identity,asked", "dataset[asked]", "its instruction column is 'question', that of dataset[identity] is 'instruction'"),
    ],
)
def test_what_llama_factory_says_of_data_and_ftcli_cannot_is_listed(name: str, key: str, reason: str, tmp_path: Path) -> None:
    found = registered(tmp_path, dataset=name)
    assert words(found, key).startswith("no counterpart: ")
    assert reason in words(found, key)


def test_the_folder_of_data_sets_is_the_one_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"stage": "sft", "model_name_or_path": "m", "dataset": "identity"}
    (tmp_path / "data").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "run").mkdir()
    for name in ("data", "other"):
        (tmp_path / name / "dataset_info.json").write_text(json.dumps({"identity": {"file_name": f"{name}.json"}}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for said, wanted in (({}, "data/data.json"), ({"dataset_dir": "other"}, "other/other.json")):
        found = read_foreign({**theirs, **said}, None, Path("run/theirs.yaml"))
        assert found.values["dataset.sources"] == [wanted]
        assert {line.key for line in found.of("no counterpart")} == set()
    online = read_foreign({**theirs, "dataset_dir": "ONLINE", "dataset": "me/set"}, None, Path("run/theirs.yaml"))
    assert online.values["dataset.sources"] == ["me/set"]
    for folder, reason in (("nowhere", "is not in nowhere"), ("REMOTE:me/sets", "on the Hub")):
        lost = read_foreign({**theirs, "dataset_dir": folder}, None, Path("run/theirs.yaml"))
        assert reason in words(lost, "dataset")
        assert words(lost, "dataset_dir").startswith("no counterpart")
    (tmp_path / "data" / "dataset_info.json").write_text("{")
    assert "cannot be read" in words(read_foreign(theirs, None, Path("run/theirs.yaml")), "dataset")
