"""The plain loop that `benchmarks/accuracy.py` holds `ftcli train` against, and the judge of both, as programs in processes of their own.

Prints one JSON line. `judge` loads a model folder as anybody would and says which held-out rows it gets right.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EVERY = 10
"""Steps between two readings of the clocks, as ftcli's log lines have them."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=("plain", "judge"))
    for name in ("--store", "--model", "--output"):
        parser.add_argument(name, type=Path, required=name != "--output")
    for name in ("--batch", "--epochs", "--warmup", "--seed"):
        parser.add_argument(name, type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--bf16", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    given = arguments(argv)
    import torch
    from datasets import load_from_disk
    from transformers import AutoModelForSequenceClassification, set_seed
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    set_seed(given.seed)
    model = AutoModelForSequenceClassification.from_pretrained(given.model, dtype=torch.float32).to(given.device)
    store = load_from_disk(str(given.store))
    splits = {name: ([torch.tensor(ids) for ids in rows["input_ids"]], list(rows["labels"])) for name, rows in store.items()}
    return judge(given, model, splits) if given.way == "judge" else plain(given, model, splits)


def padded(model: Any, ids: Sequence[Any]) -> dict[str, Any]:
    """Rows padded on the right to the longest of them, and their mask."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    mask = pad_sequence([torch.ones_like(each) for each in ids], batch_first=True)
    return {
        "input_ids": pad_sequence(list(ids), batch_first=True, padding_value=model.config.pad_token_id).to(model.device),
        "attention_mask": mask.to(model.device),
    }


def right(given: argparse.Namespace, model: Any, split: tuple[list[Any], list[int]]) -> list[bool]:
    """Which rows of a split the model gets right, in order."""
    import torch

    ids, labels = split
    found: list[bool] = []
    model.eval()
    with torch.inference_mode():
        for begin in range(0, len(ids), given.batch):
            said = model(**padded(model, ids[begin : begin + given.batch]), use_cache=False).logits.argmax(-1).tolist()
            found += [one == other for one, other in zip(said, labels[begin : begin + given.batch], strict=True)]
    return found


def judge(given: argparse.Namespace, model: Any, splits: dict[str, Any]) -> dict[str, Any]:
    """Rows of the test split that are right, as a string of 0 and 1."""
    found = right(given, model, splits["test"])
    return {"accuracy": sum(found) / len(found), "right": "".join("01"[each] for each in found)}


def plain(given: argparse.Namespace, model: Any, splits: dict[str, Any]) -> dict[str, Any]:
    """Shuffled batches padded to their longest row, mean cross-entropy, fused AdamW, clipping, warm-up and a linear schedule; evaluated each epoch."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader
    from transformers import get_linear_schedule_with_warmup

    ids, labels = splits["train"]
    order = torch.Generator().manual_seed(given.seed)
    loader = DataLoader(range(len(ids)), batch_size=given.batch, shuffle=True, generator=order, collate_fn=list)  # type: ignore[arg-type, var-annotated]
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=given.rate, weight_decay=0.0, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, given.warmup, given.epochs * len(loader))
    readings: list[dict[str, float]] = []
    losses: list[float] = []
    accuracies: list[float] = []
    step = 0
    for _ in range(given.epochs):
        model.train()
        for rows in loader:
            with torch.autocast(given.device, torch.bfloat16, enabled=given.bf16):
                logits = model(**padded(model, [ids[row] for row in rows]), use_cache=False).logits
            loss: Any = cross_entropy(logits.float(), torch.tensor([labels[row] for row in rows], device=given.device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step += 1
            if step % EVERY == 0 or step == 1:
                losses.append(loss.item())
                readings.append({"step": step, "wall": time.perf_counter(), "cpu": time.process_time()})
        found = right(given, model, splits["test"])
        accuracies.append(sum(found) / len(found))
    model.save_pretrained(str(given.output))
    return {"first_loss": losses[0], "final_loss": losses[-1], "steps": step, "accuracies": accuracies, "readings": readings}


if __name__ == "__main__":
    print(json.dumps(main()))
