"""One rank of a job that makes one step of gradient descent of every task of `test_rank_law`, cut into so many micro-batches.

cd tests; python -m rank_steps FOLDER MICRO_BATCHES          # RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ftcli.core.batches.tasks import IGNORED
from ftcli.core.distributed.group import leave
from runs import ONE_STEP, VOCABULARY, Bench, step_of
from stores import learnable, packed, told

ROWS = 48
"""Of the global batch."""
RAGGED = [([10 + (number * 7 + place) % 300 for place in range(2 + number % 17)], None) for number in range(ROWS)]
LORA: dict[str, Any] = {"model__config": None, "model__lora_r": 4}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "classify": ("classify", {}),
    "classify, any number": ("any number", {}),
    "pretrain, ragged": ("ragged", {}),
    "pretrain, packed": ("packs", {}),
    "sft, ragged": ("answers", {}),
    "sft, packed": ("answer packs", {}),
    "classify by LoRA": ("classify", LORA),
    "sft by LoRA, packed": ("answer packs", LORA),
    "classify by tokens": ("classify", {"train__max_tokens_per_batch": 4096}),
}
"""Task → its store and what else it sets."""


def answered(ids: Sequence[int]) -> list[int]:
    """A label a token: about one in three is learned, the number differs from row to row."""
    return [token if place and token % 3 == 0 else IGNORED for place, token in enumerate(ids)]


def stores(bench: Bench) -> None:
    """The stores of all tasks; the rows of each are the global batch."""
    packs = packed(ROWS, 32, VOCABULARY, 3)
    bench.store("classify", {"train": learnable(ROWS, 4, VOCABULARY, 0)}, labels=4)
    bench.store("any number", {"train": told(ROWS, 4, VOCABULARY, 0)}, labels=4)
    bench.store("ragged", {"train": RAGGED})
    bench.store("packs", {"train": packs})
    bench.store("answers", {"train": [(ids, answered(ids)) for ids, _ in RAGGED]}, task="sft")
    bench.store("answer packs", {"train": [(ids, answered(ids), parts) for ids, _, parts in packs]}, task="sft")


def step(bench: Bench, task: str, ranks: int, micro_batches: int) -> tuple[float, torch.Tensor]:
    """Loss and gradient of the global batch, cut for the ranks and the micro-batches of each."""
    store, more = TASKS[task]
    if "train__max_tokens_per_batch" in more:  # a batch holds a rank's share
        micro_batches = 1
    if "model__lora_r" in more:
        more = {**more, "model__name_or_path": str(bench.folder / "qwen3")}
    split = {"train__gradient_accumulation_steps": micro_batches, "train__per_device_train_batch_size": ROWS // ranks // micro_batches}
    return step_of(bench.context(bench.folder / store, f"law {ranks}", **{**ONE_STEP, **split, **more}))


def main() -> None:
    folder, ranks = Path(sys.argv[1]), int(os.environ["WORLD_SIZE"])
    bench = Bench(folder, folder / "tokenizer")
    torch.set_num_threads(1)
    for task in TASKS:
        found = step(bench, task, ranks, int(sys.argv[2]))
        if os.environ["RANK"] == "0":
            torch.save(found, folder / f"{task} {ranks}.pt")
    leave()


if __name__ == "__main__":
    main()
