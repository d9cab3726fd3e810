"""A tokenizer, a model and stores for training tests, and the run on them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from ftcli.context import Context, Quiet
from ftcli.core.distributed.signals import Signals
from ftcli.core.engines.backend import tokenizer_hash
from ftcli.core.training.run import prepare
from ftcli.core.training.train import fit
from ftcli.testing import tiny_tokenizer, write_config
from stores import Row, context, write_store

VOCABULARY = 384
BRIEF = {
    "train__max_steps": 2,
    "train__verify": False,
    "train__save_strategy": "no",
    "train__eval_strategy": "no",
    "runtime__overwrite": True,
}
"""Two steps and nothing beside them."""


@dataclass(frozen=True)
class Bench:
    """A folder with a tokenizer; stores and runs are made in it."""

    folder: Path
    tokenizer: Path

    @classmethod
    def make(cls, folder: Path) -> Bench:
        return cls(folder, tiny_tokenizer(folder / "tokenizer"))

    def store(self, name: str, splits: Mapping[str, Sequence[Row]], labels: int | None = None, **more: Any) -> Path:
        loaded = AutoTokenizer.from_pretrained(self.tokenizer)
        known = {"path": str(self.tokenizer), "hash": tokenizer_hash(loaded, self.tokenizer)}
        names = None if labels is None else [f"label {number}" for number in range(labels)]
        write_store(self.folder / name, splits, label_names=names, tokenizer=known, **more)
        return self.folder / name

    def context(self, store: Path, output: str, kind: str = "qwen3", **values: Any) -> Context:
        """One thread, float32, no dropout; `values` are settings with "__" for the dot."""
        config = write_config(self.folder / f"{kind}.json", kind)
        given = {
            "dataset__sources": [str(store)],
            "tokenizer__path": str(self.tokenizer),
            "model__config": config,
            "train__output_dir": self.folder / output,
            "runtime__threads": 1,
            "train__use_cpu": True,
            **values,
        }
        return context(**given)


class StopAt(Quiet):
    """Progress that sends this process a signal when the run has made so many steps."""

    def __init__(self, step: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.step, self.number, self.done = step, number, 0.0

    def advance(self, amount: float, **figures: Any) -> None:
        self.done += amount
        if amount and self.done == self.step:
            os.kill(os.getpid(), self.number)


def weights(folder: Path) -> torch.Tensor:
    """Of the model in the folder, all in one row."""
    return torch.cat([tensor.flatten() for _, tensor in sorted(load_file(folder / "model.safetensors").items())])


def step_of(context: Context) -> tuple[float, torch.Tensor]:
    """Loss and gradient of one optimizer step of plain gradient descent, by the real run."""
    run = prepare(context)
    before = _weights(run.model)
    outcome = fit(run, Signals())
    assert outcome.metrics["steps"] == 1
    return outcome.metrics["first_loss"], before - _weights(run.model)


ONE_STEP = {
    "train__optim": "sgd",
    "train__learning_rate": 1.0,
    "train__lr_scheduler_type": "constant",
    "train__max_grad_norm": 0.0,
    "train__max_steps": 1,
    "train__save_strategy": "no",
    "train__train_sampling_strategy": "sequential",
    "runtime__overwrite": True,
}


def _weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().clone().double().flatten() for parameter in model.parameters()])
