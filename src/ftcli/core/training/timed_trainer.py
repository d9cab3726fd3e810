"""`transformers.Trainer` whose parts of a step say when they begin and end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ftcli.core.training.meter import Meter
from ftcli.core.training.optimizer import OptimizerTrainer


class Timed(OptimizerTrainer):
    """Every override only puts the part of the meter around what Trainer does there; one keeps what Trainer would find again for every batch.

    On a GPU they are the GPU's (`ftcli.core.training.clock`): a part lasts from when the work before it is done until its own is.
    """

    meter: Meter
    _flops_a_slot: int | None = None

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.backward = self.meter.timed("backward", self.accelerator.backward)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        with self.meter.timing("data_wait"):
            batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.meter.count_targets(items)
        return batches, items

    def _get_num_items_in_batch(self, *args: Any, **kwargs: Any) -> Any:
        with self.meter.timing("communication" if self.args.world_size > 1 else "data_wait"):  # processes add up their targets
            return super()._get_num_items_in_batch(*args, **kwargs)

    def _prepare_inputs(self, inputs: Any) -> Any:
        with self.meter.timing("host_to_device"):
            return super()._prepare_inputs(inputs)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        with self.meter.timing("forward"):
            return super().compute_loss(*args, **kwargs)

    def _clip_grad_norm(self, model: Any) -> Any:
        with self.meter.timing("optimizer"):
            return super()._clip_grad_norm(model)

    def floating_point_ops(self, inputs: Any) -> int:
        """As Trainer gives them: 6 × slots × weights. Trainer goes through all modules and weights for that, in every batch: 3.6 ms of a Qwen3 with
        28 layers, 0.6 ms with 4, on a loaded machine."""
        slots: int = inputs["input_ids"].numel()
        if self._flops_a_slot is None:
            self._flops_a_slot = super().floating_point_ops(inputs) // max(1, slots)
        return slots * self._flops_a_slot

    def log(self, *args: Any, **kwargs: Any) -> None:
        with self.meter.timing("logging"):
            super().log(*args, **kwargs)
