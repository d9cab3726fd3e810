"""What a run consists of, opened, loaded and checked against each other before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from ftcli.context import Context
from ftcli.contracts import BatchSpec, Collator, CollatorKind, Task
from ftcli.core.batches.balance import balance
from ftcli.core.batches.batch import EpochSampler, LengthGroupedSampler
from ftcli.core.batches.collating import made, refuse_batch
from ftcli.core.batches.order import ORDERS, padded
from ftcli.core.batches.slots import TokenBatches, rows_a_batch, token_batches
from ftcli.core.batches.watched_task import refuse_labels, watched
from ftcli.core.distributed.sharding import undivided
from ftcli.core.models.adapter import adapt
from ftcli.core.models.held_out import figures_of
from ftcli.core.models.model import build
from ftcli.core.models.side_by_side import Texts
from ftcli.core.storage.ignored_settings import refuse_ignored_settings
from ftcli.core.storage.store import SplitData, Store
from ftcli.core.training import gate, huge_pages
from ftcli.core.training.arguments import check_metric, make_arguments
from ftcli.core.training.run_lock import Claim
from ftcli.core.training.schedule import make_plan
from ftcli.core.training.split_scoring import that_fits, to_score
from ftcli.errors import SettingsError, UsageError

SAMPLE = 100_000
"""Rows whose lengths stand for all in an estimate."""
FEW = 8
"""Rows whose labels show what a plugin's task gives."""


@dataclass(frozen=True, slots=True)
class Run:
    """Parts of a run that fit together."""

    context: Context
    store: Store
    tokenizer: PreTrainedTokenizerBase
    task: Task
    model: PreTrainedModel
    collator: Collator
    order: str
    token_batches: TokenBatches | None
    """By `train.max_tokens_per_batch`; None: a batch has a fixed number of rows."""
    arguments: TrainingArguments
    train: SplitData
    held_out: SplitData | None
    unpadded: bool = False
    """Rows of one text each are to be computed side by side, without padding."""
    padded_right: bool = False
    """The collator is one of ftcli's, and a row is one text."""
    test: SplitData | None = None
    """Scored once, at the end; None: there is none, or it is not to be."""
    claim: Claim | None = None
    """On the run's folder."""

    @property
    def texts(self) -> Texts | None:
        """What stands side by side; None: every row is one text, padded."""
        on_gpu = self.arguments.device.type == "cuda" and self.padded_right
        if not self.train.packed and not self.unpadded and not on_gpu:
            return None
        splits = (self.train, *(split for split in (self.held_out, self.test) if split))
        return Texts(max(int(split.lengths.max(initial=0)) for split in splits), not self.train.packed, needed=self.unpadded)

    @property
    def trackers(self) -> list[str]:
        """Names of the trackers that are told of the run."""
        return [name for name in self.context.settings.tracking.report_to or [] if name != "none"]

    @property
    def told(self) -> dict[str, Any]:
        """What trackers are told of ftcli's settings, as the report has them, and of the data."""
        return {"dataset.fingerprint": self.store.fingerprint} | {
            key: value.value for key, value in self.context.resolved.origins.items() if value.value is not None
        }

    @property
    def output(self) -> Path:
        return Path(self.arguments.output_dir)


def prepare(context: Context, claim: Claim | None = None, before_model: Callable[[Store], None] = lambda _: None) -> Run:
    """Open the store, load tokenizer and model, and refuse what cannot work. Every automatic choice is noted with its reason.

    Args:
        claim: on the run's folder, to be taken as soon as the ranks can speak to each other; None: nothing is written there.
        before_model: told of the data when all that needs no model was found in order; may refuse the run.

    Raises:
        PublishError: another run is at work in the folder.
        UsageError, StoreError, DataError, TokenizerError, ModelError, SettingsError, TrainError: what does not fit, and what to do.
    """
    settings = context.settings
    sources = settings.dataset.sources or []
    if len(sources) != 1:
        raise UsageError(
            f"train needs one prepared directory, {len(sources)} are given", "Set --dataset to the directory that ftcli tokenize made."
        )
    store = Store.open(Path(sources[0]))
    refuse_ignored_settings(context, store)
    arguments = make_arguments(context, held_out=store.eval_split is not None)
    if claim is not None:
        claim.take()
    resume = settings.train.resume_from_checkpoint is not None
    gate.check_output(Path(arguments.output_dir), resume=resume, overwrite=settings.runtime.overwrite)
    tokenizer = context.plugins.load_tokenizer(settings)
    gate.check_tokenizer(store, tokenizer, str(settings.tokenizer.path))
    task = _task(context, store)
    train = store.split("train")
    if settings.train.mode is None or context.plugins.outsider("task", settings.train.mode) is None:
        check_metric(settings.train.metric_for_best_model, figures_of(task, train))
    name, kind = _collator(context, task, train, store)
    unpadded = kind.packed and not train.packed
    if unpadded and settings.train.lean_step == "off":
        raise SettingsError(
            f"loader.collator = {name} on rows of one text each needs the lean step, but train.lean_step = off",
            "Leave one of them unset.",
        )
    batches = token_batches(
        settings, train.lengths, collator=name, kind=kind, max_length=store.max_length, ranks=arguments.world_size, unpadded=unpadded
    )
    if batches is not None:
        context.note(batches.said)
    gate.check_batches(arguments, len(train), fixed=batches is None)
    plan = make_plan(settings, len(train), held_out=store.eval_split is not None, token_batches=None if batches is None else len(batches))
    if plan is not None and (said := plan.too_few_evaluations(settings.train)):
        context.note(said)
    balance(context, task, train, store.label_names)
    before_model(store)
    if arguments.device.type == "cpu":
        huge_pages.reserve(*huge_pages.MAIN)
    with undivided(arguments):
        model = build(context, task, store, tokenizer)
    multiple = settings.loader.pad_to_multiple_of
    fits = partial(gate.check_data, store, model=model, tokenizer=tokenizer, fixed=name == "fixed", multiple=multiple)
    fits(["train", *([store.eval_split] if store.eval_split else [])])
    test = that_fits(context, to_score(context, store, arguments), fits)
    mode = settings.train.mode or store.task_name
    few = train.rows([*range(min(FEW, len(train)))])
    refuse_labels(task, mode, context.plugins.outsider("task", mode), few, context.note)
    collator = made(context.plugins, name, BatchSpec(_padding_id(tokenizer), "right", store.max_length, multiple, task))
    refuse_batch(collator, task, few)
    if not task.needs_labels:
        gate.check_learnable(model, packed=train.packed)
    if kind.packed and arguments.use_cache:
        raise UsageError("train.use_cache = true lets packed texts attend to each other", "Remove it: training needs no cache.")
    return Run(
        context=context,
        store=store,
        tokenizer=tokenizer,
        task=task,
        model=adapt(context, model, task),
        collator=collator,
        order=ORDERS.get(settings.train.train_sampling_strategy or "", kind.order),
        token_batches=batches,
        arguments=arguments,
        train=train,
        held_out=store.split(store.eval_split) if store.eval_split else None,
        test=test,
        claim=claim,
        unpadded=unpadded,
        padded_right=not train.packed and context.plugins.outsider("collator", name) is None,
    )


def _task(context: Context, store: Store) -> Task:
    asked = context.settings.train.mode
    mode = asked or store.task_name
    task: Task = watched(
        context.plugins.registry("task").get(mode, "train.mode" if asked else f"the task of {store.path}")(), mode, context.plugins
    )
    if asked is None:
        why = {
            "classify": "have labels",
            "regress": "have numeric labels",
            "sft": "have conversations with per-token labels",
            "pretrain": "have no labels",
        }.get(mode, "were made for it")
        context.note(f"mode {mode}: the prepared data {why}")
    prepared = store.manifest.get("task")
    if prepared and prepared != mode and {prepared, mode} != {"classify", "regress"}:
        context.note(f"the data were prepared for {prepared}, but the mode is {mode}: check that texts end correctly (--add-eos)")
    return task


def _collator(context: Context, task: Task, split: SplitData, store: Store) -> tuple[str, CollatorKind]:
    registry = context.plugins.registry("collator")
    name = context.settings.loader.collator
    if name is None:
        name = "packed" if split.packed else "bucketed"
        context.note(f"collator {name}: {'the rows hold several texts each' if split.packed else _why_grouped(context, split)}")
    kind: CollatorKind = registry.get(name, "loader.collator")
    gate.check_collator(name, kind, task, split, store)
    return name, kind


def _padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """PAD, or any id where there is none: what is padded is masked and no target."""
    return next((found for found in (tokenizer.pad_token_id, tokenizer.eos_token_id) if found is not None), 0)


def _why_grouped(context: Context, split: SplitData) -> str:
    settings = context.settings.train
    lengths = split.lengths[:SAMPLE]
    size = min(rows_a_batch(context.settings, lengths), max(1, len(lengths)))
    shares = [
        padded(lengths[sampler.order()], size)
        for sampler in (LengthGroupedSampler(lengths, size, settings.seed), EpochSampler(len(lengths), settings.seed))
    ]
    return f"batches of similar length leave {shares[0]:.1%} of the slots empty, random batches {shares[1]:.1%}"
