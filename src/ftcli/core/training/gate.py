"""What is refused before the first step: data, tokenizer and model that do not belong together, and runs that would overwrite another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from ftcli.contracts import CollatorKind, Task
from ftcli.core.arrays import values
from ftcli.core.batches.collate import rounded
from ftcli.core.engines.backend import tokenizer_hash
from ftcli.core.models.config import cache_of, set_cache
from ftcli.core.models.layers import places, positions, remembers
from ftcli.core.models.model import embedding_rows
from ftcli.core.models.refusals import of_the_model
from ftcli.core.publishing.output_location import check_folder
from ftcli.core.storage.label_flags import LabelFlags
from ftcli.core.storage.store import INPUT_IDS, SplitData, Store
from ftcli.errors import DataError, ModelError, SettingsError, StoreError, TrainError
from ftcli.records import RUN_NAME

LEAK = 1e-3
"""Change of a logit, in standard deviations, by a token that must not be seen: the largest in float32 (clean models: 5e-6; leaks: 2e-3, BERT of 16 states
and fresh weights, to 6); in 16 bits the root mean square, since the largest is a step of the largest logit (leaks: 3e-3 to 0.6; clean: 0, the shapes are the same)."""
APART_HALF = 3e-2
"""The same in 16 bits between a text in a pack and in a row of its own, which have other shapes. Clean: 4e-3 (Qwen3-0.6B on an H200); positions that count
on: 7e-2 (OPT) and more."""


def check_tokenizer(store: Store, tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    """Raises `StoreError` when the data were prepared with another tokenizer."""
    prepared = store.manifest["tokenizer"]
    given = tokenizer_hash(tokenizer, path)
    if prepared["hash"] != given and path == prepared["path"]:
        raise StoreError(
            f"the tokenizer {path} has changed since {store.path} was prepared with it (hash {prepared['hash'][:12]} then, {given[:12]} now)",
            "Prepare the data again with it, or restore the old tokenizer.",
        )
    if prepared["hash"] != given:
        raise StoreError(
            f"{store.path} was prepared with the tokenizer {prepared['path']} (hash {prepared['hash'][:12]}), but {path} is a different one ({given[:12]})",
            f"Give --tokenizer-path {prepared['path']}, or prepare the data again with this one.",
        )


def check_collator(name: str, kind: CollatorKind, task: Task, split: SplitData, store: Store) -> None:
    """Raises `SettingsError` when rows, collator and task do not fit."""
    if split.packed and task.needs_labels:
        raise SettingsError(
            f"{store.path} holds packed rows (several texts per row), but {task.name} needs one label per row",
            "Prepare it again without --packing; batches of similar length waste about 1 % only.",
        )
    if split.packed and not kind.packed:
        raise SettingsError(
            f"loader.collator = {name}: texts packed into one row would attend to each other", "Leave it unset, or set it to packed."
        )


def check_batches(arguments: TrainingArguments, rows: int, *, fixed: bool) -> None:
    """Raises `SettingsError` when an epoch has no whole batch, and only whole ones are wanted.

    Args:
        fixed: a batch has a fixed number of rows.
    """
    wanted = arguments.train_batch_size * arguments.world_size
    if fixed and arguments.dataloader_drop_last and rows < wanted:
        raise SettingsError(
            f"train.dataloader_drop_last leaves nothing to train on: train has {rows:,} rows, but a batch over all processes needs {wanted:,}",
            "Leave it out, or lower --per-device-train-batch-size.",
        )


def check_data(
    store: Store, names: list[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, fixed: bool, multiple: int
) -> None:
    """Every row against the model: length, ids and labels.

    Raises:
        DataError: a row without tokens or a label out of range; names split and row.
        ModelError: rows longer than the model's positions, or ids beyond its embedding.
    """
    limit, rows = places(model), embedding_rows(model)
    for name in names:
        split = store.split(name)
        if not len(split):
            hint = "Check the sources and their split names. With few rows a small fraction may hold out none: use a larger one, or another --split-seed."
            raise DataError(f"{store.path}: the {name} split has no rows", hint)
        if split.lengths.min() < 1:
            raise DataError(
                f"{store.path}: row {int(split.lengths.argmin())} of {name} has no tokens", "Prepare the data again with --min-length 1."
            )
        width = rounded(store.max_length if fixed else int(split.lengths.max()), multiple)
        if limit is not None and width > limit:
            enough = width - limit + (positions(model.config) or 0)
            raise ModelError(
                f"rows of {name} have up to {width:,} tokens, but the model has {limit:,} positions",
                f"Prepare the data with --max-length {limit}, or add --config-overrides max_position_embeddings={enough}: random weights allow any number, "
                "pretrained ones only if positions are not learned (rotary).",
            )
        if len(tokenizer) > rows and (largest := _largest_id(split)) >= rows:
            raise ModelError(
                f"{name} contains the id {largest:,}, but the model's embedding has {rows:,} rows", "Use the model's own tokenizer."
            )
        _check_labels(store, split, name, model)


def check_learnable(model: PreTrainedModel, *, packed: bool) -> None:
    """Prove on a few random tokens that the model predicts from the past only and, packed, that documents do not see each other.

    Raises:
        ModelError: they do, or the model cannot compute them.
    """
    config = model.config
    cache, training = cache_of(config), model.training
    config.use_cache = False
    full = model.dtype == torch.float32
    try:
        with of_the_model(model, "compute a few tokens"):
            ahead, across, apart, noise = _leaks(model.eval(), _largest if full else _mean)
    finally:
        set_cache(config, cache)
        model.train(training)
    limit = LEAK + 3 * noise
    if ahead > limit:
        switch = getattr(config, "is_decoder", None) is False
        more = f", or set is_decoder to true in the configuration: with it {config.model_type} attends to the past only" if switch else ""
        raise ModelError(
            f"{type(model).__name__} is not causal: a later token changes earlier predictions by {ahead:.2g} standard deviations",
            f"Mode pretrain predicts the next token: use a decoder (qwen3, llama, gpt2 …){more}.",
        )
    if packed and (across > limit or apart > (limit if full else APART_HALF)):
        attention = config._attn_implementation
        unpacked = "the data without --packing: batches of similar length waste about 1 % only."
        if remembers(model):
            raise ModelError(
                f"{type(model).__name__} carries what its layers keep from one packed text into the next: logits differ by {max(across, apart):.2g} standard deviations",
                f"Prepare {unpacked}",
            )
        raise ModelError(
            f"{type(model).__name__} with {attention} attention lets packed texts attend to each other: logits differ by {max(across, apart):.2g} standard deviations",
            f"Prepare {unpacked}" if attention in {"sdpa", "eager"} else f"Use sdpa or eager attention, or prepare {unpacked}",
        )


def check_output(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Before anything is loaded; makes nothing.

    Raises:
        PublishError: the folder cannot be made, or written in.
        TrainError: it holds a run that neither is to be resumed nor may be replaced.
    """
    check_folder(folder)
    if resume or overwrite or not folder.is_dir():
        return
    newest = sorted(folder.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name), reverse=True)
    earlier = next((entry for entry in (*newest, folder / RUN_NAME) if entry.exists()), None)
    if earlier is not None:
        raise TrainError(
            f"{folder} holds an earlier run ({earlier.name})",
            "Resume with --resume-from-checkpoint auto, choose another --output-dir, or replace it with --overwrite.",
        )


def _check_labels(store: Store, split: SplitData, name: str, model: PreTrainedModel) -> None:
    labels, count = split.labels, model.config.num_labels
    if split.flags is not None and model.config.problem_type is not None:
        _check_flags(store, split.flags, name, count)
    if labels is None or model.config.problem_type is None:
        return
    wrong = np.flatnonzero((labels < 0) | (labels >= count))
    if len(wrong):
        raise DataError(
            f"{store.path}: row {wrong[0]} of {name} has the label {labels[wrong[0]]}, the {count} labels are 0 to {count - 1} ({len(wrong):,} such rows)",
            "The data are damaged: prepare them again.",
        )


def _check_flags(store: Store, flags: LabelFlags, name: str, count: int) -> None:
    if flags.width != count:
        raise DataError(f"{store.path}: {name} has {flags.width} labels, the model {count}", "The data are damaged: prepare them again.")
    if odd := next(flags.odd(), None):
        raise DataError(
            f"{store.path}: row {odd[0]} of {name} has {odd[1]:g} where a label holds (1) or not (0)",
            "The data are damaged: prepare them again.",
        )


def _largest_id(split: SplitData) -> int:
    return max((int(values(chunk.values).max()) for chunk in split.table.column(INPUT_IDS).chunks if len(chunk.values)), default=0)


def _largest(changes: torch.Tensor) -> float:
    return float(changes.abs().max())


def _mean(changes: torch.Tensor) -> float:
    """Root mean square."""
    return float(changes.square().mean().sqrt())


@torch.no_grad()
def _leaks(model: PreTrainedModel, size: Callable[[torch.Tensor], float]) -> tuple[float, float, float, float]:
    """In standard deviations of the logits: the change by a later token, by the neighbour in the row, in a row of its own, and from one time to the next."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, embedding_rows(model), (1, 12), generator=generator)
    places = torch.cat([torch.arange(5), torch.arange(7)])[None]

    def logits(tokens: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(
            input_ids=tokens.to(model.device), **{name: value.to(model.device) for name, value in more.items()}
        ).logits
        return found[0].float()

    alone = torch.cat([logits(ids[:, :5]), logits(ids[:, 5:])])
    spread = float(alone.std())
    others = (ids + 1) % 2
    ahead = size(logits(torch.cat([ids[:, :4], others[:, 4:5]], 1))[:-1] - alone[:4])
    packed = logits(ids, position_ids=places)
    across = size((logits(torch.cat([others[:, :5], ids[:, 5:]], 1), position_ids=places) - packed)[5:])
    noise = size(logits(ids, position_ids=places) - packed)  # a kernel whose sums come in any order
    return ahead / spread, across / spread, size(packed - alone) / spread, noise / spread
