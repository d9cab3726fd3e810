"""`transformers.Trainer` whose batches come from the store, in our order."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import TrainingArguments

from ftcli.contracts import Collator
from ftcli.core.batches.batch import EpochSampler, LengthGroupedSampler, StoreDataset, common_batches, eval_batches
from ftcli.core.batches.shares import Shares
from ftcli.core.batches.slots import TokenBatches
from ftcli.core.distributed.loader_workers import outliving
from ftcli.core.training.timed_trainer import Timed


class Loading(Timed):
    """Which rows come together, and when."""

    order: str
    """"random", "grouped" (by length) or "sequential"."""
    collator: Collator
    token_batches: TokenBatches | None
    """The batches of an epoch, where a budget of tokens decides how many rows they have; None: `args` and `order` do."""
    _common_batches = _own_batches = 0

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        dataset: StoreDataset = train_dataset or self.train_dataset
        order, world = self._order(dataset), self.args.world_size
        if world == 1:
            return order
        return Shares(order, dataset.split.lengths, self._train_batch_size, world, drop_last=self.args.dataloader_drop_last)

    def _order(self, dataset: StoreDataset) -> Sampler[int]:
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        if self.order == "sequential":
            return SequentialSampler(dataset)
        if self.order == "grouped":
            return LengthGroupedSampler(dataset.split.lengths, self._train_batch_size * self.args.world_size, seed)
        return EpochSampler(len(dataset), seed)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        dataset: StoreDataset = eval_dataset or self.eval_dataset
        size, world = self.args.eval_batch_size, self.args.world_size
        batches = eval_batches(dataset.split.lengths, size, self.args.process_index, world)
        self._common_batches, self._own_batches = common_batches(len(dataset), size, world), len(batches)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:  # every rank has to take part in every forward pass
            batches += [[0]] * (len(eval_batches(dataset.split.lengths, size, 0, world)) - len(batches))
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=self.collator,  # type: ignore[arg-type]  # `Rows`, since the dataset has `__getitems__`
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return outliving(loader)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Its workers' seeds come from a generator of its own: drawn from the global one, a run with persistent workers would go on with other dropout."""
        loader: DataLoader[Any] = super().get_train_dataloader() if self.token_batches is None else self._by_tokens(self.token_batches)
        base: DataLoader[Any] = getattr(loader, "base_dataloader", loader)
        outliving(base).generator = torch.Generator().manual_seed(self.args.seed)
        return loader

    def _by_tokens(self, batches: TokenBatches) -> Any:
        """accelerate deals the batches to the ranks one by one, which is the order that they are in."""
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset,
            batch_sampler=batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
        )
        return self.accelerator.prepare(loader)

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Rows of a step on all ranks, on average, by which `Trainer` counts samples a second of a run by `max_steps`."""
        if self.token_batches is None:
            return int(super().get_total_train_batch_size(args))
        rows: float = len(self.train_dataset) / len(self.token_batches) * args.world_size * args.gradient_accumulation_steps
        return round(rows)
