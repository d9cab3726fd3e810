"""The evaluating half of the run's trainer: exact figures of held-out rows, each counted once over all ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader

from ftcli.contracts import Task
from ftcli.core.batches.batch import StoreDataset
from ftcli.core.distributed.agree import stopped, summed
from ftcli.core.distributed.signals import Signals
from ftcli.core.models.confusion import FlagSummary, Summary
from ftcli.core.models.held_out import HeldOut
from ftcli.core.models.lean_head import LeanHead
from ftcli.core.models.tied import really_missing
from ftcli.core.training.health import Watch
from ftcli.core.training.loading import Loading


class StoppedEvaluation(Exception):  # noqa: N818 - not a failure
    """A signal came in the middle of an evaluation."""


class Evaluating(Loading):
    """What `FtcliTrainer` does in an evaluation. The attributes are its own."""

    task: Task
    watch: Watch
    signals: Signals
    head: LeanHead | None
    evaluating: bool
    confusion: Summary | FlagSummary | None
    _held_out: HeldOut

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.watch.check()
        self.evaluating = True
        with self.meter.timing("evaluation"):
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        self.evaluating = False
        return metrics

    def score(self, dataset: StoreDataset) -> None:
        """Log the figures of other rows than the held-out ones, once, under test_…; what patience and the best model go by is not touched."""
        self.watch.check()
        self.evaluating, confusion = True, self.confusion
        with self.meter.timing("evaluation"):
            self.log(self.predict(dataset).metrics)
        self.evaluating, self.confusion = False, confusion

    def get_test_dataloader(self, test_dataset: StoreDataset) -> DataLoader[Any]:
        return self.get_eval_dataloader(test_dataset)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Called behind the best weights' loading."""
        super()._issue_warnings_after_load(really_missing(self.model, load_result))

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
        figures = self._held_out.metrics(summed)
        self.confusion = self._held_out.confusion.summary(summed)
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in figures.items()})
        return output

    def prediction_step(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> tuple[None, None, None]:
        self._common_batches -= 1
        self._own_batches -= 1
        if self._common_batches >= 0 and stopped(self.signals):  # a rank may have one batch more than the others
            raise StoppedEvaluation
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        head = self.head
        with torch.no_grad(), self.compute_loss_context_manager(), nullcontext() if head is None else head.measuring():
            given = model(**inputs)["logits"]
            if self._own_batches < 0:  # the model is divided, and other ranks have a batch more
                return None, None, None
            self._held_out.add(given, labels, inputs, None if head is None else head.loss(given, labels, 1))
        return None, None, None
