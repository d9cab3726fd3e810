"""The first updates of the planned run, made by its own Trainer on a few short rows, with its loss, collator, order and optimizer."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, Trainer, TrainingArguments, set_seed
from transformers.utils import logging as transformers_logging

from ftcli.contracts import Task
from ftcli.core.batches.batch import StoreDataset
from ftcli.core.batches.order import ORDERS
from ftcli.core.batches.tasks import count_targets
from ftcli.core.distributed.signals import Signals
from ftcli.core.models.config import cache_of, set_cache
from ftcli.core.storage.few_rows import Few, short_rows
from ftcli.core.training.arguments import make_arguments
from ftcli.core.training.health import Watch
from ftcli.core.training.meter import Meter
from ftcli.core.training.trainer import FtcliTrainer
from ftcli.core.verify.forward import LARGE
from ftcli.core.verify.missing import Missing
from ftcli.errors import FtcliError, ModelError
from ftcli.settings import update

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

MICRO_ROWS, LONGEST = 2, 16
"""Rows of a batch and tokens of a row: neither the division of the loss nor the optimizer depends on them, and a model of 100 M takes 0.2 s."""
MOST_MICRO = 16
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
OFF: dict[str, Any] = {
    "train.lr_scheduler_type": "constant",  # every update at the peak
    "train.lr_scheduler_kwargs": None,
    "train.warmup_steps": 0.0,
    "train.num_train_epochs": 1.0,
    "train.per_device_train_batch_size": MICRO_ROWS,
    "train.max_tokens_per_batch": None,
    "train.logging_steps": 1.0,
    "train.eval_strategy": "no",
    "train.eval_steps": None,
    "train.do_predict": None,
    "train.save_strategy": "no",
    "train.save_steps": None,
    "train.load_best_model_at_end": None,
    "train.patience": None,
    "train.resume_from_checkpoint": None,
    "train.push_to_hub": None,
    "train.deepspeed": None,
    "train.fsdp": None,
    "train.fsdp_config": None,
    "train.accelerator_config": None,
    "train.torch_compile": None,
    "train.torch_compile_backend": None,
    "train.torch_compile_mode": None,
    "train.gradient_checkpointing": None,
    "train.gradient_checkpointing_kwargs": None,
    "train.activation_checkpointing": None,
    "train.activation_checkpointing_kwargs": None,
    "train.use_liger_kernel": None,
    "train.liger_kernel_config": None,
    "train.tf32": None,
    "train.log_level": None,
    "train.log_level_replica": None,
    "train.fp16": None,
    "train.bf16": False,
    "train.fp16_full_eval": None,
    "train.bf16_full_eval": None,
    "train.use_cpu": True,
    "train.eval_on_start": None,
    "train.auto_find_batch_size": None,
    "train.include_num_input_tokens_seen": None,
    "tracking.report_to": [],
    "loader.num_workers": 0,
    "loader.prefetch_factor": None,
    "loader.persistent_workers": False,
}
"""What a rehearsal leaves out: schedule, evaluation, saving, distribution, compilation, kernels of GPUs, autocast, the device and how much is logged. None of it is looked at here."""


@dataclass
class Rehearsal:
    """What came of some updates.

    `logged` and `norms` are those of the log, one an update; `micro` the (mean loss, targets) of every batch of an update, by the task's own
    loss of the same logits.
    """

    accumulation: int
    logged: list[float]
    norms: list[float]
    micro: list[list[tuple[float, int]]]
    moved: float | None
    """Share that the first update changed of the weights with a large gradient; None when that was not asked for."""
    reached: int = 0
    """Weights with a large gradient when the first update was made, where that was asked for."""
    forgotten: list[str] = field(default_factory=list)
    """Tensors that the loss depends on and that want a gradient, but that the optimizer does not have."""
    digest: float = 0.0
    """Sum of all weights after the last update."""

    @property
    def ratio(self) -> float:
        """Logged loss of the first update / mean over its targets."""
        batches = self.micro[0]
        true = sum(loss * targets for loss, targets in batches) / sum(targets for _, targets in batches)
        return self.logged[0] / true if true else math.nan


class _Heard:
    """The run's task, whose calls are recorded."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.needs_labels = task.needs_labels
        self.name = task.name
        self.calls: list[tuple[float, int]] = []
        self.leaves: dict[int, torch.Tensor] = {}
        self.embedded: list[torch.Tensor] = []
        """Inputs of the layers, which `enable_input_require_grads` makes leaves where the embeddings are frozen."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def training_loss(self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
        loss = getattr(self._task, "training_loss", self._task.loss)
        found: torch.Tensor = loss(logits, labels, items)
        with torch.no_grad():
            self.calls.append((float(loss(logits.detach(), labels, None)), int(count_targets(labels))))
        if not self.leaves:
            inputs = set(map(id, self.embedded))
            self.leaves = {id(leaf): leaf for leaf in _leaves(found) if id(leaf) not in inputs}
        self.embedded.clear()
        return found


class _Trainer(FtcliTrainer):
    """Keeps which weights have a large gradient when the first update comes, if asked to."""

    reached: list[torch.Tensor] | None = None

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if self.reached is not None and not self.reached:
            self.reached = [_large(parameter) for parameter in self.model.parameters() if parameter.requires_grad]
        return norm


def rehearse(probe: Probe, *, updates: int, accumulation: int, watch_weights: bool = False) -> Rehearsal:
    """Make `updates` updates at the peak rate from the run's seed, then put the weights back.

    Args:
        watch_weights: count how many weights the first update changes, in the type that they have in the run; for one update.

    Raises:
        ModelError: the Trainer cannot make them; says why.
        Missing: the memory does not take a copy of the weights, gradients and optimizer state.
    """
    probe.require_memory(5)
    model, settings = probe.model, probe.settings
    wanted = min(accumulation, MOST_MICRO)
    rows = short_rows(probe.train_split, settings.train.seed, count=MICRO_ROWS * wanted * updates, longest=LONGEST)
    many = Few(rows).rows([place % len(rows) for place in range(MICRO_ROWS * wanted * updates)])
    heard = _Heard(probe.task)
    with tempfile.TemporaryDirectory() as folder, restored(model), _quiet():
        arguments = _arguments(probe, Path(folder), updates, wanted)
        model.to(HALF.get(probe.ready("learned_type") or "", torch.float32) if watch_weights else torch.float32)
        try:
            set_seed(settings.train.seed)
            kind = probe.context.plugins.registry("collator").get(probe.collator_name, "loader.collator")
            strategy = settings.train.train_sampling_strategy
            trainer = _Trainer(
                model=model,
                args=arguments,
                task=heard,
                order=ORDERS.get(strategy or "", kind.order),
                collator=probe.collator,
                meter=Meter(),
                watch=Watch(lambda _: None, stop=False, clip=arguments.max_grad_norm, scaled=True),
                signals=Signals(),
                train_dataset=StoreDataset(Few(many)),
                processing_class=probe.tokenizer,
            )
            trainer.reached = [] if watch_weights else None
            before = [parameter.detach().clone() for parameter in model.parameters() if parameter.requires_grad] if watch_weights else []
            with _listening(model, heard.embedded):
                trainer.train()
        except FtcliError:
            raise
        except Exception as error:  # whatever a model, an optimizer's library or transformers raise
            words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise ModelError(f"the run's Trainer cannot make its first update: {words}", _hint(settings.train.optim, words)) from error
        log = [entry for entry in trainer.state.log_history if "loss" in entry]
        return Rehearsal(
            accumulation=wanted,
            logged=[entry["loss"] for entry in log],
            norms=[entry.get("grad_norm", math.nan) for entry in log],
            micro=[heard.calls[place : place + wanted] for place in range(0, len(heard.calls), wanted)],
            moved=_moved(model, before, trainer.reached or []) if watch_weights else None,
            reached=sum(int(large.sum()) for large in trainer.reached or []),
            forgotten=_forgotten(model, heard.leaves, trainer.optimizer),
            digest=float(sum(parameter.detach().double().sum() for parameter in model.parameters())),
        )


def own_optimizer(probe: Probe) -> Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]:
    """What makes the run's optimizer, at its peak rate and without weight decay; AdamW where the run's is an Adam that cannot be made on this CPU.

    Raises:
        Missing: it cannot be made here, and is no Adam; FT502 says why.
    """
    rate, name = probe.settings.train.learning_rate, probe.settings.train.optim
    with tempfile.TemporaryDirectory() as folder, _quiet():
        try:
            arguments = _arguments(probe, Path(folder), updates=1, accumulation=1)
            kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments, probe.model)
            made = partial(kind, **{**options, "weight_decay": 0.0})
            made([parameter for parameter in probe.model.parameters() if parameter.requires_grad])
        except Exception as error:  # whatever an optimizer's library raises
            if "adam" not in name:
                raise Missing(f"train.optim = {name} cannot be made here (see FT502)") from error
            return partial(torch.optim.AdamW, lr=rate, weight_decay=0.0)
    return made


def _arguments(probe: Probe, folder: Path, updates: int, accumulation: int) -> TrainingArguments:
    changes = {**OFF, "train.output_dir": folder, "train.max_steps": updates, "train.gradient_accumulation_steps": accumulation}
    return make_arguments(probe.context.with_settings(update(probe.settings, changes)), held_out=False)


def _moved(model: PreTrainedModel, before: list[torch.Tensor], reached: list[torch.Tensor]) -> float:
    now = (parameter.detach() for parameter in model.parameters() if parameter.requires_grad)
    changed = total = 0
    for old, parameter, had in zip(before, now, reached, strict=True):
        changed += int(((parameter != old) & had).sum())
        total += int(had.sum())
    return changed / max(1, total)


def _forgotten(model: PreTrainedModel, leaves: dict[int, torch.Tensor], optimizer: Any) -> list[str]:
    """Names of what should be trained and is in no group of the optimizer."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    lost = {key: names.get(key, f"a tensor {list(leaf.shape)} that is no parameter of the model") for key, leaf in leaves.items()}
    wanted = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return [name for key, name in {**wanted, **lost}.items() if key not in trained]


@contextmanager
def _listening(model: PreTrainedModel, outputs: list[torch.Tensor]) -> Iterator[None]:
    """Keep what the embeddings give, where checkpoints ask that it wants a gradient."""
    if not getattr(model, "_require_grads_hook", None):
        yield
        return
    hook = model.get_input_embeddings().register_forward_hook(lambda _, __, output: outputs.append(output))
    try:
        yield
    finally:
        hook.remove()


def _leaves(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """Every tensor that backward would give a gradient to."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        waiting.extend(following for following, _ in node.next_functions)


def _large(parameter: torch.nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter, dtype=torch.bool)
    return parameter.grad.abs() > LARGE


@contextmanager
def restored(model: PreTrainedModel) -> Iterator[None]:
    """The weights in fp32, the mode, and torch's random state, afterwards as before."""
    training, state, cache = model.training, torch.get_rng_state(), cache_of(model.config)
    weights = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    try:
        yield
    finally:
        model.float()
        with torch.no_grad():
            for tensor, old in zip((*model.parameters(), *model.buffers()), weights, strict=True):
                tensor.copy_(old)
        model.zero_grad(set_to_none=True)
        model.train(training)
        set_cache(model.config, cache)
        torch.set_rng_state(state)


@contextmanager
def _quiet() -> Iterator[None]:
    before, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        if bars:
            transformers_logging.enable_progress_bar()


def _hint(optimizer: str, words: str) -> str:
    if optimizer.split("_", maxsplit=1)[0] in words or "optim" in words or "No module" in words or "ImportError" in words:
        return f"Install what --optim {optimizer} needs, or leave it at adamw_torch_fused."
    return "Compare the model's forward with the batch (FT301), and the settings of train with those of transformers.TrainingArguments."
