"""`transformers.Trainer` with the task's own loss, our order of rows, exact evaluation and a look at every step."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from ftcli.contracts import Collator, Task
from ftcli.core.batch import EpochSampler, LengthGroupedSampler, StoreDataset, eval_batches
from ftcli.core.health import Start, Watch, finite, look_at
from ftcli.core.held_out import HeldOut
from ftcli.core.meter import Counted, Meter
from ftcli.core.signals import Signals
from ftcli.errors import TrainError


class StoppedEvaluation(Exception):  # noqa: N818 - not a failure
    """A signal came in the middle of an evaluation."""


class FtcliTrainer(Trainer):  # type: ignore[misc]
    """One run.

    The loss is the sum over targets divided by the targets of the whole optimizer step on all ranks, so that it and its gradient do not
    depend on how a global batch is split. transformers does that for a `compute_loss_func`; without one it multiplies the loss of most
    classification models by accumulation steps and processes (huggingface/transformers#47688).

    Args:
        order: "random", "grouped" (by length) or "sequential".
        collator: padded batches for training and evaluation.
    """

    def __init__(
        self,
        *,
        args: TrainingArguments,
        task: Task,
        order: str,
        collator: Collator,
        meter: Meter,
        watch: Watch,
        signals: Signals,
        train_dataset: StoreDataset,
        **rest: Any,
    ) -> None:
        self.task = task
        self.order = order
        self.collator = collator
        self.meter = meter
        self.watch = watch
        self.signals = signals
        self.start: Start | None = None
        self.first: tuple[float, float] | None = None
        """Loss and gradient norm of step 1."""
        self._step_loss: torch.Tensor | None = None
        self._held_out = HeldOut(task)
        super().__init__(args=args, data_collator=Counted(collator), train_dataset=train_dataset, compute_loss_func=self._loss, **rest)
        self.model_accepts_loss_kwargs = False  # nothing but `_loss` is to see num_items_in_batch
        self.remove_callback(PrinterCallback)  # stdout belongs to the report

    # -- data ----------------------------------------------------------------------------------------------------------

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        dataset: StoreDataset = train_dataset or self.train_dataset
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        if self.order == "sequential":
            return SequentialSampler(dataset)
        if self.order == "grouped":
            return LengthGroupedSampler(dataset.split.lengths, self._train_batch_size * self.args.world_size, seed)
        return EpochSampler(len(dataset), seed)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        dataset: StoreDataset = eval_dataset or self.eval_dataset
        batches = eval_batches(dataset.split.lengths, self.args.eval_batch_size, self.args.process_index, self.args.world_size)
        return DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=self.collator,  # type: ignore[arg-type]  # `Rows`, since the dataset has `__getitems__`
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        with self.meter.timing("data_wait"):
            batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        for batch in batches:
            self.meter.count(batch)
        return batches, items

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None) -> torch.Tensor:
        logits = outputs["logits"]
        if self.start is None:
            self.start = look_at(logits, labels)
        return self.task.loss(logits, labels, num_items_in_batch)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self._step_loss = loss if self._step_loss is None else self._step_loss + loss
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        assert self._step_loss is not None
        number = self.state.global_step + 1
        self.watch.step(number, self._step_loss, torch.as_tensor(norm))
        if number == 1:
            self.first = float(self.accelerator.reduce(self._step_loss, reduction="mean")), float(norm)
        self._step_loss = None
        return norm

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.watch.check()
        with self.meter.timing("evaluation"):
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        return metrics

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,  # noqa: ARG002 - nothing but sums is kept
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        self._held_out = HeldOut(self.task)
        output = super().evaluation_loop(dataloader, description, True, ignore_keys, metric_key_prefix)
        figures = self._held_out.metrics(lambda sums: self.accelerator.reduce(sums, reduction="sum"))
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in figures.items()})
        return output

    def prediction_step(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> tuple[None, None, None]:
        if self.signals.received and self.args.world_size == 1:
            raise StoppedEvaluation
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        with torch.no_grad(), self.compute_loss_context_manager():
            self._held_out.add(model(**inputs)["logits"], labels)
        return None, None, None

    def _maybe_log_save_evaluate(self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, *rest: Any, **named: Any) -> None:
        try:
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *rest, **named)
        except StoppedEvaluation:
            self.control.should_training_stop = True
            self.checkpoint()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Save a checkpoint now, unless this step has one."""
        if not (Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}").is_dir():
            self._save_checkpoint(self.model_wrapped, None)
            self.callback_handler.on_save(self.args, self.state, self.control)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.watch.check()
        self.refuse_broken_weights()
        with self.meter.timing("saving"):
            try:
                super()._save_checkpoint(model, trial)
            except (OSError, RuntimeError, SafetensorError) as error:
                folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
                shutil.rmtree(folder, ignore_errors=True)
                raise TrainError(
                    f"the checkpoint {folder} cannot be written: {error}",
                    "Free space there; then --resume-from-checkpoint auto goes on from the checkpoint before.",
                ) from error

    def refuse_broken_weights(self) -> None:
        """Raise `TrainError` when a weight is not a number: such a model is never saved."""
        if not finite(self.model):
            raise TrainError(
                f"after step {self.state.global_step} the weights hold values that are no numbers: nothing is saved",
                "Lower the learning rate or warm up longer; an earlier checkpoint may be good.",
            )
