"""One way of training, as a program in a process of its own: plain `Trainer` in three settings, a plain torch loop, or TRL's `SFTTrainer`.

Prints one JSON line. With `--equal` it makes one step of plain gradient descent on the first rows instead, and leaves its weights in the output folder.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

RATE = 1e-4


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=("fixed", "dynamic", "best", "torch", "trl"), required=True)
    parser.add_argument("--task", choices=("classify", "pretrain"), required=True)
    for name in ("--store", "--tokenizer", "--model", "--output"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--batch", "--max-length"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--equal", action="store_true")
    return parser.parse_args(argv)


class Clock:
    """Readings at the ends of steps; a rate is formed from the end of the first step to the end of the last."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.tokens: list[int] = []
        """Real tokens of every batch, in the order in which they are trained on."""
        self.readings: list[tuple[float, float]] = []

    def step(self) -> None:
        if not self.readings:
            self._arrive()
        self.readings.append((time.perf_counter(), time.process_time()))

    def end(self) -> None:
        """The last step's end, also where its work is done later than it was asked for."""
        self._arrive()
        self.readings[-1] = (time.perf_counter(), time.process_time())

    def _arrive(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def rates(self) -> dict[str, float]:
        (wall, cpu), (last_wall, last_cpu) = self.readings[0], self.readings[-1]
        tokens = sum(self.tokens[1 : len(self.readings)])
        return {
            "real_tokens_per_second": tokens / (last_wall - wall),
            "real_tokens_per_cpu_second": tokens / (last_cpu - cpu),
            "steps": len(self.readings),
        }


def main(argv: list[str] | None = None) -> dict[str, Any]:
    given = arguments(argv)
    import torch
    from datasets import load_from_disk
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, set_seed
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    set_seed(42)
    tokenizer = AutoTokenizer.from_pretrained(given.tokenizer)
    kind = AutoModelForSequenceClassification if given.task == "classify" else AutoModelForCausalLM
    model = kind.from_pretrained(given.model)
    rows = load_from_disk(str(given.store))["train"].remove_columns("length")
    if given.equal:
        rows = rows.select(range(given.batch))
    clock = Clock(given.device)
    run = {"torch": loop, "trl": trl}.get(given.way, trainer)
    loss = run(given, model, tokenizer, rows, clock)
    if given.equal:
        model.save_pretrained(str(given.output))
        return {"loss": loss}
    memory = {"peak_gpu_mb": torch.cuda.max_memory_allocated() / 1e6} if given.device == "cuda" else {}
    return {"loss": loss, **clock.rates(), **memory}


def collator(given: argparse.Namespace, tokenizer: Any, clock: Clock) -> Any:
    """What people use: `DataCollatorWithPadding` to classify, `DataCollatorForLanguageModeling` else."""
    from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding

    padded = {"padding": "max_length", "max_length": given.max_length} if given.way == "fixed" else {}
    collate = (
        DataCollatorWithPadding(tokenizer, **padded) if given.task == "classify" else DataCollatorForLanguageModeling(tokenizer, False)
    )

    def counted(features: list[dict[str, Any]]) -> Any:
        clock.tokens.append(sum(len(feature["input_ids"]) for feature in features))
        return collate(features)

    return counted


def options(given: argparse.Namespace) -> dict[str, Any]:
    """`TrainingArguments` of a way; `best` is what somebody who knows it all would set."""
    common: dict[str, Any] = {
        "output_dir": str(given.output),
        "per_device_train_batch_size": given.batch,
        "learning_rate": RATE,
        "num_train_epochs": 1,
        "bf16": given.bf16,
        "use_cpu": given.device == "cpu",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 10,
        "logging_first_step": True,
    }
    if given.equal:
        descent = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "max_steps": 1}
        return {**common, **descent, "train_sampling_strategy": "sequential"}
    if given.way == "best":
        return {**common, "train_sampling_strategy": "group_by_length", "logging_nan_inf_filter": False}
    return common


def trainer(given: argparse.Namespace, model: Any, tokenizer: Any, rows: Any, clock: Clock) -> float:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Stopwatch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.step()

    made = Trainer(
        model=model,
        args=TrainingArguments(**options(given)),
        train_dataset=rows,
        data_collator=collator(given, tokenizer, clock),
        processing_class=tokenizer,
        callbacks=[Stopwatch()],
    )
    made.train()
    clock.end()
    return float(made.state.log_history[0]["loss"])


def trl(given: argparse.Namespace, model: Any, tokenizer: Any, rows: Any, clock: Clock) -> float:
    from transformers import TrainerCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    class Stopwatch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.step()

    class Counted(SFTTrainer):
        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            batches, items = super().get_batch_samples(*args, **kwargs)
            clock.tokens.extend(int((batch["labels"] != -100).sum()) for batch in batches)  # every token is a label
            return batches, items

    chosen = {
        "max_length": given.max_length,
        "packing": False,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "gradient_checkpointing": False,
    }
    made = Counted(
        model=model,
        args=SFTConfig(**options(given), **chosen),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[Stopwatch()],
    )
    made.train()
    clock.end()
    return float(made.state.log_history[0]["loss"])


def loop(given: argparse.Namespace, model: Any, tokenizer: Any, rows: Any, clock: Clock) -> float:
    """The loop of a tutorial: shuffled batches padded to their longest row, fused AdamW, clipping, a linear schedule."""
    import torch
    from torch.utils.data import DataLoader
    from transformers import get_linear_schedule_with_warmup

    batches = DataLoader(rows, batch_size=given.batch, shuffle=not given.equal, collate_fn=collator(given, tokenizer, clock))
    weights = list(model.parameters())
    optimizer: Any = torch.optim.SGD(weights, lr=1.0) if given.equal else torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0, fused=True)
    schedule = None if given.equal else get_linear_schedule_with_warmup(optimizer, 0, len(batches))
    model.to(given.device).train()
    first: float | None = None
    for found in batches:
        batch = {name: values.to(given.device) for name, values in found.items()}
        with torch.autocast(given.device, torch.bfloat16, enabled=given.bf16):
            loss = model(**batch, use_cache=False).loss
        loss.backward()
        if schedule is not None:
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        first = loss.item() if first is None else first
        clock.step()
    clock.end()
    assert first is not None
    return first


if __name__ == "__main__":
    print(json.dumps(main()))
