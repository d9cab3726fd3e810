"""What came of a run: its metrics under their fixed names, and what is behind the plots."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import TrainingArguments

from ftcli.core.arrays import values
from ftcli.core.batches.slots import TokenBatches
from ftcli.core.models import as_prepared, flops
from ftcli.core.models.held_out import figures_of
from ftcli.core.processes.footprint import RSS_UNIT
from ftcli.core.storage.store import SEQ_LENGTHS, SplitData
from ftcli.core.training.run import Run
from ftcli.core.training.split_scoring import figures as test_figures
from ftcli.core.training.trainer import FtcliTrainer
from ftcli.errors import FtcliError
from ftcli.records import Check, RunStatus

LOGGED = (
    "step",
    "epoch",
    "loss",
    "grad_norm",
    "learning_rate",
    "eval_loss",
    "eval_accuracy",
    "eval_micro_f1",
    "eval_exact_match",
    "eval_pearson",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run's end. `failure` is what stopped it; then the figures are those up to there."""

    status: RunStatus
    metrics: Mapping[str, Any]
    details: Mapping[str, Any]
    checks: tuple[Check, ...]
    paths: Mapping[str, str]
    failure: FtcliError | None = None


def last_evaluation(trainer: FtcliTrainer) -> Mapping[str, Any]:
    """The log's last line with figures of held-out rows; empty where there is none."""
    return next((entry for entry in reversed(trainer.state.log_history) if "eval_loss" in entry), {})


def figures(run: Run, trainer: FtcliTrainer, checkpoint: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics under their fixed names, and what is behind the plots."""
    history = trainer.state.log_history
    losses = [entry for entry in history if "loss" in entry]
    evaluated, tested = last_evaluation(trainer), test_figures(history)
    begun = next((entry for entry in losses if entry["step"] == 1), None)
    first = trainer.first or ((begun["loss"], begun.get("grad_norm")) if begun else (None, None))
    rates = trainer.meter.rates()
    expected = run.task.chance_loss(run.model.config, run.store)
    device = torch.cuda.get_device_name() if trainer.args.device.type == "cuda" else None
    per_token = flops.flops_per_token(run.model, documents(run.train))
    devices = trainer.args.world_size
    whole_rate = _times(rates["real_tokens_per_second"], devices)
    labels = run.model.config.num_labels if run.task.needs_labels and run.train.labels is not None else None
    metrics = {
        "first_loss": first[0],
        "expected_first_loss": expected,
        "final_loss": losses[-1]["loss"] if losses else None,
        "eval_loss": evaluated.get("eval_loss"),
        "eval_accuracy": evaluated.get("eval_accuracy"),
        "eval_macro_f1": evaluated.get("eval_macro_f1"),
        "eval_micro_f1": evaluated.get("eval_micro_f1"),
        "eval_exact_match": evaluated.get("eval_exact_match"),
        "perplexity": evaluated.get("eval_perplexity"),
        "eval_pearson": evaluated.get("eval_pearson"),
        "eval_rmse": evaluated.get("eval_rmse"),
        **{f"test_{name}": tested.get(f"test_{name}") for name in figures_of(None)},
        "chance_accuracy": None if labels is None else 1 / labels,
        "majority_accuracy": majority(run) if labels is not None else None,
        "first_grad_norm": first[1],
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        **rates,
        "real_tokens_per_second": whole_rate,
        "slots_per_second": _times(rates["slots_per_second"], devices),
        "targets_per_second": _times(rates["targets_per_second"], 1 if trainer.args.average_tokens_across_devices else devices),
        "truncated_share": _truncated(run.store.manifest),
        **{f"time_{part}": seconds for part, seconds in trainer.meter.time().items()},
        "time_wall": trainer.meter.wall,
        "mfu": flops.utilisation(whole_rate, per_token, device if run.arguments.bf16 else None, devices),
        "clipped_share": trainer.watch.clipped_share,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT / 1e6,
        "peak_gpu_mb": torch.cuda.max_memory_allocated() / 1e6 if device else None,
        "resumed_from": None if checkpoint is None else str(checkpoint),
    }
    log = [{key: entry[key] for key in LOGGED if key in entry} for entry in history if "loss" in entry or "eval_loss" in entry]
    meter = trainer.meter
    details = {
        "log": log,
        "time": {part: seconds for part, seconds in meter.time().items() if seconds},
        "padding": {"real tokens": meter.tokens, "padding": meter.slots - meter.tokens},
        "expected_first_loss": expected,
        "splits": run.store.manifest["splits"],
        "flops_per_token": per_token,
        "rows_per_step": rows_per_step(run.train, run.arguments, run.token_batches),
    }
    details["asked"] = asked(run.store.manifest, labelled=run.task.needs_labels)
    details["encoding"] = as_prepared.kept(run.store.manifest)
    if trainer.compiled is not None:
        details["torch_compile"] = trainer.compiled.record()
    if trainer.confusion is not None and (names := run.store.label_names):
        details["confusion"] = trainer.confusion.report(names, run.tokenizer.decode)
    return metrics, details


def rows_per_step(train: SplitData, arguments: TrainingArguments, batches: TokenBatches | None) -> float:
    """Rows of a full optimizer step of all processes: more than there are, where they do not fill one; on average, where tokens decide."""
    at_once: int = arguments.world_size * arguments.gradient_accumulation_steps
    if batches is None:
        return float(arguments.train_batch_size * at_once)
    if len(batches) <= arguments.world_size:  # then none of them may be full
        return at_once * max(1.0, batches.budget / float(batches.widths.mean()))
    return at_once * len(train) / len(batches)


def asked(manifest: Mapping[str, Any], *, labelled: bool) -> Literal["chat", "plain", "texts", "pairs"]:
    """How a model is to be asked that learned these data, a language model or one whose rows have labels: `ftcli predict` reads it."""
    if labelled:
        return "pairs" if (manifest.get("policy") or {}).get("pair") else "texts"
    return "chat" if (manifest.get("chat_template") or {}).get("mask") else "plain"


def _times(rate: float | None, count: int) -> float | None:
    return None if rate is None else rate * count


def _truncated(manifest: Mapping[str, Any]) -> float | None:
    """Share of the texts' tokens that was cut at max_length when the data were prepared; None where it was not counted."""
    made = manifest.get("metrics") or {}
    kept, cut = made.get("tokens"), made.get("tokens_cut")
    return cut / (kept + cut) if kept and cut is not None else None


def documents(split: SplitData) -> NDArray[np.int64]:
    """Tokens of every text."""
    if not split.packed:
        return split.lengths
    return np.concatenate([values(chunk.values) for chunk in split.table.column(SEQ_LENGTHS).chunks]).astype(np.int64)


def majority(run: Run) -> float | None:
    """Accuracy on the held-out rows of always saying the label that is commonest in training."""
    if run.held_out is None or run.held_out.labels is None or run.train.labels is None:
        return None
    return float((run.held_out.labels == np.bincount(run.train.labels).argmax()).mean())
