"""What will be prepared: sources, tokenizer and policies settled into one fingerprint before any work is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.core.engines.backend import Backend, prepare_backend, strip
from ftcli.core.engines.known_tokenizer import KnownTokenizer, keep
from ftcli.core.files.manifest import fingerprint
from ftcli.core.files.stamps import SourceHashes, check_unchanged
from ftcli.core.prepare.chat_proof import proved_template
from ftcli.core.prepare.pairs import PairTemplate
from ftcli.core.prepare.pairs_proof import proved_pairs
from ftcli.core.prepare.policy import LengthPolicy, Truncation
from ftcli.core.publishing.inputs import DAY, FORMAT_VERSION
from ftcli.core.reading.conversation import MODE, RULES
from ftcli.core.reading.folders import labels_in_folders
from ftcli.core.reading.read import Plan, make_plan
from ftcli.core.reading.receipt import changing_plugins, kind_of, make_receipt, tokenizer_key
from ftcli.core.tokenizer.limit import NO_LIMIT, length_limit
from ftcli.errors import UsageError
from ftcli.records import SPLITS, ShardPlan, Split, to_json

DEFAULT_MAX_LENGTH = 1024
Load = Callable[[], Any]
"""Gives the run's tokenizer."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the output's bytes, and its fingerprint."""

    plan: Plan
    tokenizer: Any
    tokenizer_path: str
    backend: Backend
    task: str
    packing: str
    policy: LengthPolicy
    fractions: tuple[float, float]
    """Shares of the train rows that go to validation and to test."""
    output: Path
    fingerprint: str
    inputs: Mapping[str, Any]
    """What the fingerprint covers, by the names of the settings."""
    template: Mapping[str, Any] | None
    """What was proved of the chat template (`ftcli.core.tokenizer.template_proof.prove`); None where the task takes plain texts."""
    receipt: Mapping[str, str] | None
    """What a later run needs to know that it would settle on this fingerprint (`ftcli.core.reading.receipt`)."""

    @property
    def day(self) -> str | None:
        """What the chat template writes where it asks for today's date; None where it does not."""
        return None if self.template is None else self.template.get("day")

    def check_sources(self) -> None:
        """Raises `DataError` when a source changed since it was planned."""
        check_unchanged(self.plan.hashes, self.plan.hashes)

    def files(self) -> dict[tuple[int, Split], str]:
        """(shard, split) → file name inside the output, for every split that a shard's rows may go to."""
        feeding: dict[Split, list[int]] = {}
        for shard in self.plan.shards:
            for split in self._reachable(shard):
                feeding.setdefault(split, []).append(shard.index)
        return {
            (index, split): f"{split}/data-{place:05d}-of-{len(indexes):05d}.arrow"
            for split, indexes in feeding.items()
            for place, index in enumerate(indexes)
        }

    def splits(self) -> list[Split]:
        reachable = {split for shard in self.plan.shards for split in self._reachable(shard)}
        return [split for split in SPLITS if split in reachable]

    def _reachable(self, shard: ShardPlan) -> list[Split]:
        if shard.split != "train":
            return [shard.split]
        return ["train", *(split for split, share in zip(SPLITS[1:], self.fractions, strict=True) if share)]


def settle(
    context: Context,
    on_plan: Callable[[Plan], None] = lambda _: None,
    hashes: SourceHashes | None = None,
    known: KnownTokenizer | None = None,
    load: Load | None = None,
) -> Recipe:
    """Resolve sources, tokenizer, task and policies; every automatic choice is noted with its reason.

    Args:
        on_plan: called when it is known how much there is to read; loading the tokenizer, which comes next, takes seconds.
        known: the tokenizer of the run, if `ftcli.core.prepare.preloading` has it.
        load: loads it; default: the plugins' hook.

    Raises:
        UsageError: something needed was not given, or two choices contradict each other.
        DataError, TokenizerError: sources or tokenizer cannot be used.
    """
    settings = context.settings
    if not settings.dataset.sources:
        raise UsageError("no data source given", "Example: ftcli tokenize reviews.jsonl --tokenizer-path DIR --output-dir DIR")
    if not settings.tokenizer.path:
        raise UsageError("no tokenizer: --tokenizer-path is missing", "Give a tokenizer folder, or make one: ftcli train-tokenizer")
    if settings.dataset.output_dir is None:
        raise UsageError("no output: --output-dir is missing", "Give a directory for the prepared data.")
    _refuse_unread(context)
    packing = _packing(context)
    hashes = hashes or SourceHashes(None)
    plan = make_plan(settings, context.plugins.registry("source"), context.progress, hashes)
    on_plan(plan)
    task, needs_labels = task_of(context, plan.found[0].path)
    if plan.columns.pair is not None and not needs_labels:
        raise UsageError(
            f"text_pair_column = {plan.columns.pair!r} is for classification, but the task is {task}",
            "Name the labels with --label-column.",
        )
    if lost := hashes.keep():
        context.note(lost)
    for note in plan.notes:
        context.note(note)
    chat, pairs = plan.columns.chat is not None, plan.columns.pair is not None
    tokenizer, backend = (known, known.backend) if known and not chat and not pairs else _loaded(context, settings.tokenizer.path, load)
    template = proved_template(context, plan, tokenizer) if chat else None
    pair = proved_pairs(context, plan, tokenizer, backend) if pairs else None
    policy = _policy(context, tokenizer, backend, task, packing, pair)
    fractions = _fractions(context, plan)
    inputs = to_json(_inputs(context, plan, backend, task, packing, policy, fractions, template))
    day = None if template is None else template.get("day")
    return Recipe(
        plan=plan,
        tokenizer=tokenizer,
        tokenizer_path=settings.tokenizer.path,
        backend=backend,
        task=task,
        packing=packing,
        policy=policy,
        fractions=fractions,
        output=settings.dataset.output_dir,
        fingerprint=fingerprint(inputs),
        inputs=inputs,
        template=template,
        receipt=make_receipt(context, plan.found, [plan.hashes[file.path] for file in plan.found], day),
    )


def task_of(context: Context, first: str = "") -> tuple[str, bool]:
    """The task that data are prepared for, and whether it needs labels. Raises `UsageError` where it does and none are named; what to do about it
    depends on where the `first` file lies."""
    dataset = context.settings.dataset
    task = context.settings.train.mode or ("classify" if dataset.labelled else "pretrain")
    needs_labels = context.plugins.registry("task").get(task, "train.mode")().needs_labels
    if needs_labels and not dataset.labelled:
        raise UsageError(
            f"the task {task} needs labels: --label-column is missing", labels_in_folders(first) or "Name the column that holds the label."
        )
    return task, needs_labels


def _loaded(context: Context, folder: str, load: Load | None) -> tuple[Any, Backend]:
    tokenizer = load() if load else context.plugins.load_tokenizer(context.settings)
    chosen = context.settings.tokenizer
    backend = prepare_backend(tokenizer, folder, chosen.revision, chosen.trust_remote_code)
    if (key := tokenizer_key(context)) and (lost := keep(context.cache_dir, key, tokenizer, backend)):
        context.note(lost)
    strip(tokenizer)
    return tokenizer, backend


def _fractions(context: Context, plan: Plan) -> tuple[float, float]:
    dataset = context.settings.dataset
    fractions = (dataset.validation_fraction, dataset.test_fraction)
    if sum(fractions) >= 1:
        raise UsageError(f"validation_fraction + test_fraction = {sum(fractions)} leaves nothing to train on", "Their sum must be under 1.")
    for split, share in zip(SPLITS[1:], fractions, strict=True):
        if share and any(shard.split == split for shard in plan.shards):
            raise UsageError(f"{split}_fraction = {share}, but the sources already have a {split} split", "Remove one of the two.")
    if any(fractions):
        shares = " and ".join(f"{share:.1%} {split}" for split, share in zip(SPLITS[1:], fractions, strict=True) if share)
        context.note(f"of the train rows {shares}, chosen by a hash of their tokens and seed {dataset.seed}: equal texts stay in one split")
    return fractions


def _refuse_unread(context: Context) -> None:
    """A setting that this run would pass over without a word: what it was given for does not happen."""
    dataset, mode = context.settings.dataset, context.settings.train.mode
    said = [name for name in ("label_names", "label_separator") if getattr(dataset, name) and not dataset.labelled]
    if said and mode != MODE:
        raise UsageError(
            f"{' and '.join(said)}: no label column is given, so the texts would be prepared without labels",
            f"Name it with --label-column, or leave {' and '.join(said)} out.",
        )
    if dataset.rename_columns and mode != MODE:
        raise UsageError(
            f"rename_columns = {', '.join(dataset.rename_columns)} is for conversations, but the mode is {mode or 'not sft'}",
            f"For conversations: --mode {MODE}. Text and label columns are set by --text-column and --label-column.",
        )
    if (day := context.settings.tokenizer.template_date) and mode != MODE:
        raise UsageError(
            f"template_date = {day} is for conversations, but the mode is {mode or f'not {MODE}'}",
            f"For conversations: --mode {MODE}. Else leave out --template-date.",
        )


def _packing(context: Context) -> str:
    settings = context.settings
    packing = settings.packing.strategy or "none"
    context.plugins.registry("packer").get(packing, "packing.strategy")
    if packing != "none" and settings.dataset.labelled:
        column, several = settings.dataset.label_column, settings.dataset.label_columns
        asked = f"label_column = {column!r}" if column else f"label_columns = {', '.join(several or ())}"
        raise UsageError(
            f"packing = {packing} and {asked} contradict each other: a packed row has no single label",
            "Remove --packing for classification (batches of similar length waste about 1 %), or --label-column for pretraining.",
        )
    return packing


def _policy(context: Context, tokenizer: Any, backend: Backend, task: str, packing: str, pair: PairTemplate | None) -> LengthPolicy:
    settings = context.settings
    packed = packing != "none"
    special, chat = settings.tokenizer.add_special_tokens and task != MODE, task == MODE
    prefix, suffix = (backend.prefix, backend.suffix) if special else ((), ())
    limit = length_limit(tokenizer)
    max_length = settings.packing.max_length
    if max_length is None:
        max_length = DEFAULT_MAX_LENGTH if packed else min(DEFAULT_MAX_LENGTH, limit)
        context.note(
            f"max_length = {max_length}: "
            + (
                "the default for packed rows"
                if packed
                else f"the tokenizer's limit is {limit:,}"
                if limit < NO_LIMIT
                else "the tokenizer has no limit"
            )
        )
    truncation: Truncation = settings.packing.truncation_strategy or ("split" if packed and not chat else "keep_start")
    if chat and truncation == "split":
        raise UsageError("truncation_strategy = split separates answers from questions", "Use keep_start, keep_end, drop or error.")
    if chat and packed and context.plugins.registry("packer").get(packing)().splits:
        raise UsageError(f"packing = {packing} cuts conversations at arbitrary places", "Use --packing bfd, which keeps them whole.")
    if pair is not None and truncation == "split":
        raise UsageError("truncation_strategy = split would separate the two texts", "Use keep_start, keep_end, drop or error.")
    eos = backend.ends if special and pair is None else None
    if eos is None and not chat:
        eos = _eos(context, tokenizer, task, suffix if pair is None else pair.ending)
    policy = LengthPolicy(
        max_length=max_length,
        min_length=settings.packing.min_length,
        truncation=truncation,
        prefix=prefix,
        suffix=suffix,
        eos=eos,
        parts_end=(backend.ends is not None and special) or task != "pretrain",
        packed=packed,
        packer_splits=packed and context.plugins.registry("packer").get(packing)().splits,
        targets=chat,
        pair=pair,
    )
    if policy.room < 1:
        raise UsageError(f"max_length = {max_length} leaves no room for text beside the special tokens", "Raise --max-length.")
    return policy


def _eos(context: Context, tokenizer: Any, task: str, suffix: tuple[int, ...]) -> int | None:
    wanted = context.settings.tokenizer.add_eos
    eos = tokenizer.eos_token_id
    if wanted is False or (wanted is None and task != "pretrain"):
        return None
    if eos is None:
        if wanted:
            raise UsageError(
                "tokenizer.add_eos is set, but the tokenizer has no EOS token", "Remove --add-eos, or set an eos_token in its config."
            )
        context.note("no EOS between texts: the tokenizer has none")
        return None
    if suffix and suffix[-1] == eos:
        return None
    if wanted is None:
        context.note(f"every text ends with {tokenizer.eos_token!r} ({eos}), so that the model learns to stop; turn off with --no-add-eos")
    return int(eos)


def _inputs(
    context: Context,
    plan: Plan,
    backend: Backend,
    task: str,
    packing: str,
    policy: LengthPolicy,
    fractions: tuple[float, float],
    template: Mapping[str, Any] | None,
) -> Mapping[str, Any]:
    """What the fingerprint covers: content and policies, no paths, no execution knobs."""
    dataset = context.settings.dataset
    parted = not policy.packed and policy.truncation == "split"
    lines = dataset.sample_by != "document" and any(file.format == "text" for file in plan.files)
    spoken = template and {
        "chat template": template["template"],
        **({DAY: template["day"]} if "day" in template else {}),
        "rules of conversations": RULES,
        **({"dataset.rename_columns": sorted(plan.columns.renamed)} if plan.columns.renamed else {}),
        "dataset.completion_only_loss": dataset.completion_only_loss is not False,
        "dataset.assistant_only_loss": dataset.assistant_only_loss is not False,
        "tokenizer.add_eos": context.settings.tokenizer.add_eos is not False,
        # stands before rows that no template renders, and which those are is not known before all are read
        **({"tokenizer.add_special_tokens": context.settings.tokenizer.add_special_tokens} if backend.prefix else {}),
    }
    return {
        **(spoken or {}),
        **({"dataset.text_pair_column": plan.columns.pair, "token types": policy.pair.types} if policy.pair else {}),
        **({"a pair is cut as by": "a slow tokenizer"} if policy.pair and policy.pair.slow else {}),
        **({"dataset.label_columns": [list(plan.columns.flags), list(plan.columns.flag_kinds)]} if plan.columns.flags else {}),
        **({"dataset.label_separator": dataset.label_separator} if dataset.label_separator else {}),
        **({"label names of the sources": list(plan.label_names)} if plan.label_names else {}),
        "format version": FORMAT_VERSION,
        "sources": [[kind_of(file.format, file.path), file.split, file.bytes, file.xxh3] for file in plan.files],
        "dataset.text_column": plan.columns.text,
        "dataset.label_column": plan.columns.label,
        "kind of label": plan.columns.label_kind,
        "dataset.label_names": dataset.label_names,
        "dataset.sample_by": dataset.sample_by,
        **({"a line of whitespace": "is empty"} if lines else {}),
        "dataset.max_line_bytes": dataset.max_line_bytes,
        "dataset.max_row_tokens": dataset.max_row_tokens,
        "dataset.validation_fraction": fractions[0],
        "dataset.test_fraction": fractions[1],
        "dataset.seed": dataset.seed if any(fractions) else None,
        "dataset.shard_bytes": dataset.shard_bytes,
        "tokenizer": backend.hash,
        # then ids before and behind a text do not say what is added
        "whole rows by the reference": context.settings.tokenizer.add_special_tokens and not backend.constant,
        "train.mode": task,
        "packing.strategy": packing,
        "packing.max_length": policy.max_length,
        "packing.min_length": policy.min_length,
        "packing.truncation_strategy": policy.truncation,
        "ids before a text": policy.prefix,
        "ids behind a text": policy.suffix,
        "EOS behind a text": policy.eos,
        **({"an EOS of a text's own": "takes its place"} if policy.eos is not None and policy.ends_rows else {}),
        **({"special tokens of a text cut for a pack": "stay"} if policy.cut_for_packs and policy.room < policy.max_length else {}),
        **({"EOS of a text in parts": "behind the last"} if policy.eos is not None and parted and not policy.parts_end else {}),
        "plugins": changing_plugins(context.plugins),
    }
