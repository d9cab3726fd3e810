"""What `benchmark train` times: optimizer steps of the planned model on the prepared rows, by collator and precision."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from ftcli.context import Context
from ftcli.core.batches.batch import StoreDataset
from ftcli.core.batches.tasks import count_targets
from ftcli.core.benchmark.bench_batch import batches_of, counted
from ftcli.core.benchmark.limits import Limit, gemm_flops_per_second
from ftcli.core.benchmark.measure import Variant
from ftcli.core.models.adapter import adapt
from ftcli.core.models.flops import flops_per_token
from ftcli.core.models.model import build
from ftcli.core.training.arguments import bf16_choice
from ftcli.core.training.outcome import documents
from ftcli.core.verify.forward import inputs_of
from ftcli.core.verify.planned_data import prepared
from ftcli.core.verify.probe import Probe
from ftcli.errors import UsageError
from ftcli.machine import compute_threads
from ftcli.settings import get

PRECISIONS = ("fp32", "bf16")
PLAIN: dict[str, tuple[Any, ...]] = {
    "train.optim": ("adamw_torch_fused",),
    "train.gradient_checkpointing": (None, False),
    "train.activation_checkpointing": (None, False),
    "train.torch_compile": (None, False),
    "train.use_liger_kernel": (None, False),
    "train.lean_step": ("off",),
}
"""Settings that change a step of a run, each with what it is in the steps that are measured here."""


def variants(context: Context) -> list[Variant]:
    """One variant a collator and precision ("bucketed/bf16"); by default the run's own collator, the one that pads to the maximum, and both
    precisions where the device has them. Every variant starts from the same weights.

    Raises:
        UsageError: prepared data, tokenizer or model are missing, or a variant's name is not COLLATOR/PRECISION.
    """
    settings = context.settings
    if not settings.dataset.sources or not settings.tokenizer.path:
        raise UsageError("benchmark train needs --dataset PREPARED, --tokenizer-path DIR and a model", "Prepare data with: ftcli tokenize")
    probe = Probe(context)
    probe.give(store=prepared(context))
    device = torch.device("cuda" if torch.cuda.is_available() and not settings.train.use_cpu else "cpu")
    has_bf16, reason = bf16_choice(context, on_gpu=device.type == "cuda")
    packed = probe.train_split.packed
    collators = ["packed"] if packed else ["bucketed", "fixed"]
    names = list(dict.fromkeys(settings.benchmark.variants or ())) or [
        f"{collator}/{precision}" for precision in (("bf16", "fp32") if has_bf16 else ("fp32",)) for collator in collators
    ]
    context.note(f"{'bf16 and fp32' if has_bf16 else 'fp32'} on {device}: {reason}")
    if other := [f"{key} = {get(settings, key)}" for key, plain in PLAIN.items() if get(settings, key) not in plain]:
        context.note(f"plain steps are measured, without {', '.join(other)}; to time a run's actual steps use ftcli benchmark sweep train")
    torch.set_num_threads(compute_threads(settings.runtime.threads, context.machine.cores).value)
    model = adapt(context, build(context, probe.task, probe.store, probe.tokenizer), probe.task).to(device).train()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    return [_variant(name, probe, model, start, device) for name in names]


def _variant(name: str, probe: Probe, model: torch.nn.Module, start: Mapping[str, torch.Tensor], device: torch.device) -> Variant:
    collator_name, _, precision = name.partition("/")
    precision = precision or "fp32"
    if precision not in PRECISIONS:
        raise UsageError(
            f"the variant {name!r} is not COLLATOR/PRECISION", f"Precisions: {', '.join(PRECISIONS)}; for example bucketed/bf16."
        )
    train = probe.settings.train
    each = train.gradient_accumulation_steps
    batches = batches_of(probe, collator_name, probe.settings)[: probe.settings.benchmark.steps * each]
    steps = [batches[begin : begin + each] for begin in range(0, len(batches), each)]
    collator, dataset = probe.make_collator(collator_name), StoreDataset(probe.train_split)
    figures = counted(probe, batches)

    def run() -> Mapping[str, float]:
        model.load_state_dict(start)
        optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=train.learning_rate, fused=True)
        slots = 0
        for step in steps:
            together = [collator(dataset.__getitems__(rows)) for rows in step]
            targets = sum(count_targets(batch["labels"]) for batch in together)
            for given in together:
                batch = {key: value.to(device) for key, value in given.items()}
                slots += batch["input_ids"].numel()
                with torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext():
                    loss = probe.task.loss(model(**inputs_of(batch)).logits, batch["labels"], targets)
                torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), train.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return {**figures, "slots": slots, "steps": len(steps)}

    def beside(rate: float) -> Limit:
        threads = torch.get_num_threads()
        best = gemm_flops_per_second(precision, device.type, threads)
        what = f"matrix products in {precision}" + (f", {threads} thread{'s' * (threads > 1)}" if device.type == "cpu" else "")
        return Limit(name, what, "GFLOP/s", rate * (per_token or 0.0) / 1e9, best / 1e9)

    per_token = flops_per_token(model, documents(probe.train_split))
    return Variant(name, run, None if per_token is None else beside, probe.store.manifest["content_hash"])
