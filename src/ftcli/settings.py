"""The typed settings tree: one frozen section a noun, the single source of names, types, defaults, help, flags and variables.

A field `section.field` is the variable `SECTION_FIELD`, the key `field` under `[section]` in a file, and, where a command
shows it, the flag `--field` (or the name in its `flag`). Unset is None; then the reason for what is used is in the report.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from ftcli.fields import LocalFolder, MaybeDay, MaybeLocalFolder, RayAddress, Section, Share, setting
from ftcli.home import home
from ftcli.settings_launch import LaunchSettings
from ftcli.settings_train import TrainSettings


class DatasetSettings(Section):
    """What is read, and how it is prepared."""

    @property
    def labelled(self) -> bool:
        """Whether rows have labels."""
        return self.label_column is not None or bool(self.label_columns)

    sources: list[str] | None = setting(
        None,
        "Files, globs, directories, hub ids or s3:// addresses to read; SPLIT=PATH sets the split. For verify and train: the prepared directory, or sources for train to prepare first.",
        flag="--dataset",
        path=True,
    )
    output_dir: Path | None = setting(None, "Where the prepared data are published: a directory, or s3://bucket/name (extra s3).")
    text_column: str = setting("text", "Column that holds the text.")
    text_pair_column: str | None = setting(
        None, "Column that holds the second text (text-pair classification): encoded like tokenizer([text], [text_pair])."
    )
    label_column: str | None = setting(None, "Column that holds the label (classification).")
    label_columns: list[str] | None = setting(
        None, "Columns of 0 or 1 (false or true), one per label, named after it: multi-label classification."
    )
    label_separator: str | None = setting(
        None,
        "Separator between labels in a string label column (a|b): multi-label classification.",
        min_length=1,
    )
    label_names: list[str] | None = setting(
        None, "Label names in id order, or VALUE=NAME,… (0=negative,1=positive); default: the sorted distinct labels of all splits."
    )
    rename_columns: list[str] | None = setting(
        None, "Mode sft: map known columns to the data's names: instruction=question,output=answer.", flag="--rename"
    )
    completion_only_loss: bool | None = setting(None, "Train only on the completion of prompt and completion (mode sft); default: yes.")
    assistant_only_loss: bool | None = setting(None, "Train only on the assistant's messages (mode sft); default: yes.")
    source_format: str | None = setting(
        None, "Read every source as jsonl, json, csv (any separator), text, parquet, arrow or pickle; default: by its suffix."
    )
    sample_by: Literal["line", "paragraph", "document"] = setting("line", "What counts as a row in a .txt file.")
    validation_fraction: float = setting(0.0, "Share of the train rows to hold out as validation, chosen by seed.", ge=0, lt=1)
    test_fraction: float = setting(0.0, "Share of the train rows to hold out as test, chosen by seed.", ge=0, lt=1)
    seed: int = setting(42, "Seed of the split.", flag="--split-seed")
    trust_pickle: bool = setting(False, "Allow code in .pkl sources to run (a DataFrame needs it): only for files you created.")
    on_bad: Literal["strict", "quarantine"] = setting(
        "strict", "What to do with an unusable row: strict stops, quarantine writes it to rejects.jsonl and continues."
    )
    max_bad: Share = setting(0.001, "Largest share of rows that quarantine may reject (0.001 or 0.1%).", ge=0, le=1)
    max_line_bytes: int = setting(256_000_000, "Longest line (or text) in bytes; a longer one is a bad row.", ge=1, hidden=True)
    max_row_tokens: int | None = setting(None, "A text with more tokens is a bad row; default: no limit.", ge=1, hidden=True)
    num_proc: int | None = setting(None, "Worker processes; default: the available cores.", ge=1)
    batch_size: int = setting(50_000, "Maximum number of rows encoded at a time; about 4 MB are read at a time.", ge=1)
    writer_batch_size: int = setting(50_000, "Rows buffered before writing; does not affect the output.", ge=1)
    memory_mode: Literal["auto", "memory", "balanced", "disk"] = setting(
        "auto", "How much memory reading and writing may take; auto decides by the free memory."
    )
    shard_bytes: int | None = setting(
        None,
        "Source bytes per shard; default: 16 to 64 MB, by total size. Changes the layout of the output, not its rows.",
        ge=1,
        hidden=True,
    )


class TokenizerSettings(Section):
    """The tokenizer and how text becomes ids."""

    path: str | None = setting(None, "Tokenizer folder or hub id.", flag="--tokenizer-path", path=True)
    revision: str | None = setting(None, "Revision of a hub tokenizer.", flag="--tokenizer-revision", hidden=True)
    engine: str = setting(
        "auto",
        "auto uses the fastest engine proved to give identical ids for this tokenizer.",
        flag="--tokenizer-engine",
    )
    audit: Share = setting(
        0.0, "Share of the rows that the reference engine also encodes (0.001 or 0.1%); a difference stops the run.", ge=0, le=1
    )
    add_special_tokens: bool = setting(True, "Add what the tokenizer's post-processor adds (BOS, CLS, SEP …).")
    add_eos: bool | None = setting(
        None, "End every text with EOS, never twice; default: yes for pretrain and plain prompts with completions, no for classify."
    )
    template_date: MaybeDay = setting(
        None, "Mode sft: the date (2026-11-28) used where a chat template inserts today's, as Llama 3's do; default: today."
    )
    trust_remote_code: bool = setting(False, "Run Python code that comes with the tokenizer or model (command line only).")


class PackingSettings(Section):
    """How long rows are, and whether several texts share one."""

    strategy: str | None = setting(
        None,
        "none, concat (cut one stream) or bfd (best-fit decreasing, texts stay whole); --packing alone means bfd.",
        flag="--packing",
        bare="bfd",
    )
    max_length: int | None = setting(
        None, "Maximum tokens per row; default: 1,024 when packing, else the tokenizer's limit up to 1,024.", ge=2
    )
    min_length: int = setting(1, "Drop and count texts with fewer tokens.", ge=0)
    truncation_strategy: Literal["keep_start", "keep_end", "drop", "split", "error"] | None = setting(
        None, "What to do with a text longer than max_length; default: split when packing, else keep_start."
    )


class LoaderSettings(Section):
    """From the store to batches."""

    collator: str | None = setting(None, "dynamic, fixed, bucketed or packed; default: the best one for data and device.")
    pad_to_multiple_of: int = setting(1, "Pad to a multiple of this.", ge=1)
    num_workers: int = setting(0, "DataLoader workers; 0 is best for prepared data.", flag="--dataloader-num-workers", ge=0)
    prefetch_factor: int | None = setting(None, "Batches each worker prefetches.", flag="--dataloader-prefetch-factor", ge=1)
    pin_memory: bool = setting(True, "Pin batches in page-locked memory where there is a GPU.", flag="--dataloader-pin-memory")
    persistent_workers: bool = setting(False, "Keep workers between epochs.", flag="--dataloader-persistent-workers")


class ModelSettings(Section):
    """The model: from a configuration (random weights) or from a folder or hub id."""

    name_or_path: str | None = setting(None, "Model folder or hub id to start from.", flag="--model-name-or-path", path=True)
    config: Path | None = setting(None, "config.json of a model to train from scratch.", flag="--model-config")
    config_overrides: str | None = setting(None, "Overrides of the model's configuration: hidden_size=256,num_hidden_layers=4", pairs=True)
    revision: str | None = setting(None, "Revision of a hub model.", flag="--model-revision", hidden=True)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = setting(
        None, "Type of the weights; default: float32, which keeps small updates."
    )
    lora_r: int | None = setting(None, "Rank of LoRA adapters on a frozen base (extra peft); default: all weights are trained.", ge=1)
    lora_alpha: int | None = setting(None, "LoRA alpha (the scale is alpha / r); default: 2 r.", ge=1)
    lora_dropout: float | None = setting(None, "Dropout before LoRA; default: none.", ge=0, lt=1)
    lora_target_modules: list[str] | None = setting(
        None, "Layers that get LoRA: auto (peft's choice for the model), all-linear, or names; default: auto."
    )
    load_in_4bit: bool | None = setting(None, "Load the frozen base in 4 bits (QLoRA; NVIDIA GPU and bitsandbytes).")
    freeze_backbone: bool | None = setting(None, "Train only the classification head.")
    attn_implementation: str | None = setting(None, "sdpa, eager, flash_attention_2 …; default: the model's own choice.")


class RuntimeSettings(Section):
    """Where and how the work runs."""

    executor: str = setting("local", "local, ray (several machines; extra ray), or one from a plugin.")
    ray_address: RayAddress = setting(
        "auto",
        "The Ray cluster: auto (RAY_ADDRESS, else the one running on this machine), local (start one here) or HOST:PORT.",
    )
    cache_dir: MaybeLocalFolder = setting(None, "Cache folder for engine proofs; default: ~/.cache/ftcli (XDG_CACHE_HOME).")
    report_dir: LocalFolder = setting(Path("ftcli-reports"), "Where tokenize, verify and benchmark write their HTML and JSON reports.")
    overwrite: bool = setting(False, "Replace the output of an earlier run.")
    floor: Literal["auto", "always", "never"] = setting(
        "auto",
        "After tokenizing, measure engine and disk alone (1.5 s at most) to rate the speed; auto: after 60 s of work.",
        hidden=True,
    )
    threads: int | None = setting(None, "Compute threads per process; default: the available cores.", ge=1)
    lease_timeout: float = setting(
        20.0,
        "Seconds without a heartbeat from the process that prepares the data, after which waiting processes give up.",
        ge=2,
        hidden=True,
    )
    manage_environment: bool = setting(True, "Apply the variables that the environment hook computes.", hidden=True)


class BenchmarkSettings(Section):
    """How things are measured."""

    repeats: int = setting(5, "Timed runs of each variant; with a budget, the minimum.", ge=1)
    warmup: int = setting(1, "Runs before timing.", ge=0)
    rows: int = setting(20_000, "Rows per run (tokenize, batch).", ge=1)
    steps: int = setting(20, "Optimizer steps per timed run (train).", ge=1)
    variants: list[str] | None = setting(None, "Engines, collators or settings to compare; default: all that apply.")
    budget: float | None = setting(None, "Maximum seconds to measure: runs repeat until the intervals are narrow enough.", gt=0)
    narrow: Share = setting(0.02, "With a budget: stop when an interval's half-width over its middle is at most this.", gt=0, lt=1)
    tolerance: Share = setting(0.0, "compare: by how much a figure may be slower before it counts as a regression.", ge=0, lt=1)
    save_profile: str | None = setting(None, "sweep: save the best settings under this name, for --profile NAME.")


class TrackingSettings(Section):
    """Where a run is reported to."""

    report_to: list[str] | None = setting(None, "tensorboard, mlflow, wandb, trackio …; default: none.")
    run_name: str | None = setting(None, "Name of the run in the trackers.")


class Settings(BaseModel):
    """Everything that can be set. Build it with `ftcli.sources.resolve`, which knows where each value comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: DatasetSettings = DatasetSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    packing: PackingSettings = PackingSettings()
    loader: LoaderSettings = LoaderSettings()
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    benchmark: BenchmarkSettings = BenchmarkSettings()
    tracking: TrackingSettings = TrackingSettings()
    launch: LaunchSettings = LaunchSettings()


def sections() -> dict[str, type[Section]]:
    """Section name → model, in the tree's order."""
    return {name: cast("type[Section]", info.annotation) for name, info in Settings.model_fields.items()}


def walk() -> Iterator[tuple[str, str, FieldInfo]]:
    """Every field as (section, field, info)."""
    for section, model in sections().items():
        for name, info in model.model_fields.items():
            yield section, name, info


def get(settings: Settings, key: str) -> Any:
    """The value of "section.field"."""
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


def cache_folder(settings: Settings) -> Path:
    """Where proofs, hashes, tokenizers and copies of objects are kept from run to run."""
    return settings.runtime.cache_dir or Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache") / "ftcli"


def template_day(settings: Settings) -> str:
    """The day of a chat template that asks for today's date: the one that is set, or today in this process's time zone, as transformers has it."""
    return settings.tokenizer.template_date or date.today().isoformat()  # noqa: DTZ011


def update(settings: Settings, values: dict[str, Any]) -> Settings:
    """A copy with "section.field" values changed and validated; for tests, benchmarks and plugins."""
    tree = settings.model_dump()
    for key, value in values.items():
        section, _, name = key.partition(".")
        tree[section][name] = value
    return Settings.model_validate(tree)
