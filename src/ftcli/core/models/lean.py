"""The lean step: the same function of the same weights with fewer passes over memory, used only where that was proved on this very model.

Each part replaces the `forward` of some modules of the model's instance, for as long as the run takes; no weight, name or class changes, and what is
saved is the model as it was. Before its use a part computes logits, loss and every gradient of a real batch beside the model's own code, in float32; a part
that differs is taken out again, with the reason in the report. Dropout is off meanwhile, and then has to be drawn as often and at the same rates. Where the
run computes in bfloat16, a part that rounds at other places than the model's own code has to be as near to the float32 figures as that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, TrainingArguments

from ftcli.contracts import Collator, Task
from ftcli.core.batches.tasks import IGNORED, count_targets
from ftcli.core.models import last_layer, lean_head, lean_layers, lean_mask, side_by_side
from ftcli.core.models.adapter_base import inner
from ftcli.core.models.last_layer import LastLayer
from ftcli.core.models.lean_head import LeanHead
from ftcli.core.models.lean_proof import EXACT, HALF, POSITIONS, Batch, Forwards, bent, computed, put, rounded, seen, take, tried
from ftcli.core.models.refusals import of_the_model
from ftcli.core.models.side_by_side import Texts, learned_texts
from ftcli.core.storage.store import SplitData
from ftcli.errors import SettingsError

LAYERS = "decoder layers"
FEW = 64
"""Rows of which the shortest and the longest are tried."""


@contextmanager
def lean(
    model: PreTrainedModel,
    task: Task,
    batches: Sequence[Batch],
    arguments: TrainingArguments,
    use_head: Callable[[LeanHead | None], None] | None = None,
    use_texts: Callable[[Texts | None], None] | None = None,
    *,
    wanted: str,
    texts: Texts | None = None,
) -> Iterator[str]:
    """Inside, the model computes leanly where it can; yields what was done and why.

    Args:
        batches: a few rows as the collator makes them: with padding if the run has any, and without.
        use_head: gets the output layer in pieces where that is to be used for the loss, and None at the end.
        use_texts: gets `texts` where they are computed side by side, and else None.
        wanted: "auto" or "off".
        texts: of rows whose texts can be computed side by side; None: they cannot.

    Raises:
        SettingsError: padding is to be left out, and cannot be.
    """
    reason = "turned off by train.lean_step" if wanted == "off" else _ruled_out(arguments)
    if reason:
        _need(texts, reason)
        yield f"lean step off: {reason}"
        return
    elsewhere = _not_here(model, arguments)
    said: list[str] = []
    replaced: list[nn.Module] = []
    batches = [{name: value.to(arguments.device) for name, value in batch.items()} for batch in batches]
    head = None
    try:
        if use_head is not None:  # first, so that the other proofs need no logits of whole rows
            head, words = _in_pieces(model, task, [_narrow(batch) for batch in batches], arguments, alone=elsewhere is not None)
            replaced += [] if head is None else head.forwards
            said.append(f"cross-entropy in pieces {words}")
        if texts is not None:
            beside, words = _beside(model, task, batches, arguments, texts, head, alone=elsewhere is not None)
            replaced += beside
            said.append(f"texts side by side {words}")
            if use_texts is not None:
                use_texts(texts if beside else None)
        if elsewhere is None:
            with of_the_model(model, "compute the first rows"):
                truths = [computed(model, task, batch, head) for batch in batches]
            for name, impossible, forwards in _parts(model, batches, unpadded=texts is not None and texts.unpad):
                reason = impossible or tried(model, task, batches, truths, forwards, head=head)
                if reason is None and arguments.bf16 and name == LAYERS:
                    reason = rounded(model, task, batches, truths, forwards, head)
                if reason is None:
                    put(forwards)
                    replaced += forwards
                said.append(f"{name} {_words(reason)}")
        if use_head is not None and head is not None:
            head.kind = torch.bfloat16 if arguments.bf16 else None
            use_head(head)
        rest = f"the rest off: {elsewhere}"
        yield f"lean step: {'; '.join([*said, rest] if elsewhere else said)}" if said else f"lean step off: {elsewhere}"
    finally:
        take(replaced)
        if use_head is not None:
            use_head(None)


def few_rows(split: SplitData, collator: Collator) -> list[dict[str, torch.Tensor]]:
    """Batches for the proof: two rows of different lengths, so that there is padding, and the longer one alone; each has a target, if any row has.

    Not the shorter one: a text of one token is the same to attention that looks ahead and to attention that does not. Of packed rows the shorter one holds
    several texts, if any of the first `FEW` that do has two with a target: long documents fill many rows alone, and in those there is nothing to keep apart.
    """
    lengths = split.lengths[:FEW]
    if lengths.min() == lengths.max():
        lengths = split.lengths
    order = lengths.argsort(kind="stable").tolist()

    def taught(row: int) -> bool:
        return bool(count_targets(collator(split.rows([row]))["labels"]))

    def several(row: int) -> bool:
        return learned_texts(collator(split.rows([row]))) > 1

    shortest = next(filter(taught, order[:FEW]), order[0])
    longest = next(filter(taught, order[: -FEW - 1 : -1]), order[-1])
    if split.packed and not any(several(row) for row in (shortest, longest)):
        packs = np.flatnonzero(split.text_counts > 1)[:FEW]
        packs = packs[split.lengths[packs].argsort(kind="stable")]
        shortest = next(filter(several, packs.tolist()), shortest)
    rows = list(dict.fromkeys([shortest, longest]))
    return [collator(split.rows(some)) for some in (rows, rows[-1:])]


def _narrow(batch: Batch) -> Batch:
    """Some slots a row from the first target on, where all of its tensors are [rows, width]: enough for the output layer."""
    labels = batch["labels"]
    if labels.ndim != 2 or any(value.shape != labels.shape for value in batch.values()):
        return batch
    taught = (labels[:, 1:] != IGNORED).any(0).nonzero()
    begin = int(taught[0]) if len(taught) else 0
    return {name: value[:, begin : begin + POSITIONS] for name, value in batch.items()}


def _in_pieces(
    model: PreTrainedModel, task: Task, batches: Sequence[Batch], arguments: TrainingArguments, *, alone: bool
) -> tuple[LeanHead | None, str]:
    """The output layer in pieces, in place, where it gives the same; and what was done and why.

    Args:
        alone: no part is proved in float32, so that 16 bits, where the run computes in them, may be those of the proof.
    """
    reason = lean_head.why_not(model, task) or _searched(arguments)
    if reason is None and (arguments.fp16 or model.dtype == torch.float16):
        reason = "in float16 gradients vanish unless the loss is scaled first"
    if reason:
        return None, _words(reason)
    head = LeanHead(model)
    if reason := bent(model, batches[0], head):
        return None, _words(reason)
    sixteen_bits = alone and (arguments.bf16 or model.dtype != torch.float32)
    with torch.autocast(arguments.device.type, torch.bfloat16, enabled=alone and arguments.bf16):
        truths = [computed(model, task, batch) for batch in batches]
        reason = tried(model, task, batches, truths, head.forwards, HALF if sixteen_bits else EXACT, head)
    if reason is None and arguments.bf16 and not alone:
        reason = rounded(model, task, batches, truths, head.forwards, head)
    if reason is None:
        put(head.forwards)
    return None if reason else head, _words(reason)


def _beside(
    model: PreTrainedModel,
    task: Task,
    batches: Sequence[Batch],
    arguments: TrainingArguments,
    texts: Texts,
    head: LeanHead | None,
    *,
    alone: bool,
) -> tuple[Forwards, str]:
    """Texts side by side, in place, where that gives the same; and what was done and why.

    Args:
        alone: as for `_in_pieces`.
    """
    autocast = arguments.bf16 or arguments.fp16
    sixteen_bits = autocast or model.dtype != torch.float32
    if texts.unpad and not any(bool((batch["attention_mask"] == 0).any()) for batch in batches):
        return {}, "not needed (no row has padding)"
    forwards: Forwards = {}
    reason = side_by_side.why_not(model, batches, texts, sixteen_bits=sixteen_bits)
    if texts.unpad and arguments.neftune_noise_alpha is not None:
        reason = "the noise of NEFTune depends on the batch's size, padding included"
    if reason is None:
        forwards = side_by_side.forwards(model, unpad=texts.unpad)
        kind = torch.float16 if arguments.fp16 else torch.bfloat16
        with torch.autocast(arguments.device.type, kind, enabled=alone and autocast):
            truths = [computed(model, task, batch, head) for batch in batches]
            reason = tried(model, task, batches, truths, forwards, HALF if alone and sixteen_bits else EXACT, head, apart=True)
            reason = reason or seen(model, batches[0], forwards, head)
    _need(texts, reason)
    if reason is None:
        put(forwards)
    return {} if reason else forwards, _words(reason)


def _words(reason: str | None) -> str:
    return "on, proved equal on this model" if reason is None else f"off ({reason})"


def _need(texts: Texts | None, reason: str | None) -> None:
    if texts is not None and texts.unpad and texts.needed and reason is not None:
        raise SettingsError(
            f"loader.collator = packed computes rows side by side without padding, which this run cannot do: {reason}",
            "Leave loader.collator unset: batches of similar length leave about 1 % of the slots empty.",
        )


def _not_here(model: PreTrainedModel, arguments: TrainingArguments) -> str | None:
    """Why nothing but texts side by side and the loss in pieces can be used."""
    if arguments.device.type != "cpu":
        return f"it is for CPUs, and the device is {arguments.device.type}"
    if arguments.fp16:
        return "float16 on a CPU is 30 to 100 times slower than float32"
    if arguments.activation_checkpointing or getattr(model, "is_activation_checkpointing", False):
        return "activation_checkpointing itself replaces the model's code"
    if model.dtype != torch.float32:
        return f"the weights are {str(model.dtype).removeprefix('torch.')}, but equality is only proved in float32"
    return None


def _ruled_out(arguments: TrainingArguments) -> str | None:
    for name in ("torch_compile", "fsdp", "deepspeed"):
        if getattr(arguments, name, None):
            return f"{name} itself replaces the model's code"
    return None


def _parts(model: PreTrainedModel, batches: Sequence[Batch], *, unpadded: bool) -> Iterator[tuple[str, str | None, Forwards]]:
    """Name, why it cannot be tried, and what it would replace; each is looked at when those before it stand. The mask is first, so that layers
    are proved as they will run: without one they compute attention in another way."""
    reason = (
        "there is none"
        if unpadded
        else lean_mask.why_not(model, [batch["attention_mask"] for batch in batches if "attention_mask" in batch])
    )
    yield "right padding without a mask", reason, {} if reason else lean_mask.forwards(model)
    own = inner(model)
    reason = lean_layers.why_not(own)
    yield LAYERS, reason, {} if reason else lean_layers.forwards(own)
    reason = last_layer.why_not(own)
    yield "last layer for pooled tokens only", reason, {} if reason else LastLayer(own).forwards


def _searched(arguments: TrainingArguments) -> str | None:
    """DistributedDataParallel takes a weight for unused, and fails, when only the loss uses it and it searches the graph of what `forward` gave."""
    searching = arguments.world_size > 1 and arguments.ddp_find_unused_parameters is not False
    return (
        "ddp_find_unused_parameters only looks at the output of forward, but the loss uses the output layer after it" if searching else None
    )
