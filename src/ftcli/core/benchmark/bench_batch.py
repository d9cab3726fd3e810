"""What `benchmark batch` times: from the store to the model's arguments, by collator."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import accumulate

from torch.utils.data import DataLoader

from ftcli.context import Context
from ftcli.core.batches.batch import EpochSampler, LengthGroupedSampler, StoreDataset
from ftcli.core.batches.slots import token_batches
from ftcli.core.benchmark.limits import Limit, copied_bytes_per_second
from ftcli.core.benchmark.measure import Variant
from ftcli.core.verify.planned_data import prepared
from ftcli.core.verify.probe import Probe
from ftcli.errors import UsageError
from ftcli.settings import Settings


def variants(context: Context) -> list[Variant]:
    """One variant a collator that fits the data; `transformers` is its own DataCollatorWithPadding on the same rows through `datasets`.

    Raises:
        UsageError: no prepared data or no tokenizer, or `transformers` is asked for where its collator cannot work.
    """
    settings = context.settings
    if not settings.dataset.sources or not settings.tokenizer.path:
        raise UsageError("benchmark batch needs --dataset PREPARED and --tokenizer-path DIR", "Prepare data with: ftcli tokenize")
    probe = Probe(context)
    probe.give(store=prepared(context))
    known = fitting(probe)
    asked = list(dict.fromkeys(settings.benchmark.variants or ()))
    problem = _problem(probe)
    if problem and "transformers" in asked:
        raise UsageError(f"the variant transformers cannot be measured: {problem}", f"Variants: {', '.join(known)}.")
    if problem and not asked:
        context.note(f"transformers is left out: {problem}")
    names = asked or [*known, *([] if problem else ["transformers"])]
    return [_transformers(probe) if name == "transformers" else collator_variant(probe, name) for name in names]


def fitting(probe: Probe) -> list[str]:
    """Collators that take the prepared rows."""
    registry = probe.context.plugins.registry("collator")
    return [name for name, kind in registry.items() if kind.packed == probe.train_split.packed]


def loading(probe: Probe, settings: Settings) -> Mapping[str, float]:
    """The first `benchmark.rows` rows through a DataLoader with these settings, the start of its workers included."""
    name = settings.loader.collator or probe.collator_name
    batches = batches_of(probe, name, settings)
    workers = settings.loader.num_workers
    loader = DataLoader(
        StoreDataset(probe.train_split),
        batch_sampler=batches,
        collate_fn=probe.make_collator(name),  # type: ignore[arg-type]  # `Rows`, since the dataset has `__getitems__`
        num_workers=workers,
        prefetch_factor=settings.loader.prefetch_factor if workers else None,
        pin_memory=settings.loader.pin_memory and bool(probe.machine.gpus),
    )
    clock = time.perf_counter()
    slots = sum(batch["input_ids"].numel() for batch in loader)
    return {
        **counted(probe, batches),
        "slots": slots,
        "seconds": time.perf_counter() - clock,
    }


def _problem(probe: Probe) -> str:
    """Why DataCollatorWithPadding cannot take these rows; empty when it can."""
    if probe.train_split.packed:
        return "DataCollatorWithPadding does not keep packed texts apart"
    if probe.train_split.targeted:
        return "DataCollatorWithPadding does not pad what is learned of a conversation"
    return "" if probe.tokenizer.pad_token_id is not None else "DataCollatorWithPadding needs a PAD token, and the tokenizer has none"


def batches_of(probe: Probe, name: str, settings: Settings) -> list[list[int]]:
    """The batches of one run, in the order that the collator wants: those of the first `benchmark.rows` of an epoch."""
    kind = probe.context.plugins.registry("collator").get(name, "benchmark.variants")
    split, rows = probe.train_split, settings.benchmark.rows
    filled = token_batches(settings, split.lengths, collator=name, kind=kind, max_length=probe.store.max_length, ranks=1)
    if filled is not None:
        begins = accumulate((len(batch) for batch in filled), initial=0)
        return [batch for batch, begin in zip(filled, begins, strict=False) if begin < rows]
    size = settings.train.per_device_train_batch_size
    sampler = LengthGroupedSampler(split.lengths, size, 0) if kind.order == "grouped" else EpochSampler(len(split), 0)
    order = sampler.order()[:rows].tolist()
    return [order[start : start + size] for start in range(0, len(order), size)]


def counted(probe: Probe, batches: list[list[int]]) -> dict[str, int]:
    """Real tokens and rows of some batches."""
    return {"real tokens": int(sum(probe.train_split.lengths[batch].sum() for batch in batches)), "rows": sum(map(len, batches))}


def collator_variant(probe: Probe, name: str) -> Variant:
    batches = batches_of(probe, name, probe.settings)
    collator = probe.make_collator(name)
    dataset = StoreDataset(probe.train_split)
    figures = counted(probe, batches)

    def run() -> Mapping[str, float]:
        slots = sum(collator(dataset.__getitems__(batch))["input_ids"].numel() for batch in batches)
        return {**figures, "slots": slots}

    def beside(rate: float) -> Limit:
        seconds = (4 * figures["real tokens"] + 16 * sum(shapes)) / copied_bytes_per_second()
        return Limit(name, "copying the ids read and the ids and mask written", "real tokens/s", rate, figures["real tokens"] / seconds)

    shapes = [collator(dataset.__getitems__(batch))["input_ids"].numel() for batch in batches]
    return Variant(name, run, beside, probe.store.manifest["content_hash"])


def _transformers(probe: Probe) -> Variant:
    from datasets import load_from_disk
    from transformers import DataCollatorWithPadding

    rows = load_from_disk(str(probe.store.path))["train"].remove_columns("length")
    collator = DataCollatorWithPadding(probe.tokenizer)
    batches = batches_of(probe, "dynamic", probe.settings)
    figures = counted(probe, batches)

    def run() -> Mapping[str, float]:
        slots = sum(collator(rows.__getitems__(batch))["input_ids"].numel() for batch in batches)
        return {**figures, "slots": slots}

    return Variant("transformers", run, data=probe.store.manifest["content_hash"])
