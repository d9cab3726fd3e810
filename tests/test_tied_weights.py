"""A model whose head is its embeddings is saved without the head, which is no reason to say that something is missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ftcli.core.distributed.signals import Signals
from ftcli.core.models.tied import really_missing
from ftcli.core.training.run import prepare
from ftcli.core.training.train import fit
from runs import VOCABULARY, Bench
from stores import packed

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What transformers' Trainer warns of."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers.trainer")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def test_the_best_weights_of_a_tied_model_are_loaded_without_a_word_of_missing_ones(tmp_path: Path, said: list[str]) -> None:
    bench = Bench.make(tmp_path)
    store = bench.store("texts", {"train": packed(24, 32, VOCABULARY, 0), "validation": packed(4, 32, VOCABULARY, 1)}, max_length=32)
    values = {"train__mode": "pretrain", "train__max_steps": 4, "train__eval_strategy": "steps", "train__save_strategy": "steps"}
    values |= {"train__eval_steps": 2, "train__save_steps": 2, "train__load_best_model_at_end": True, "train__lean_step": "off"}
    with Signals() as signals:
        outcome = fit(prepare(bench.context(store, "run", **values)), signals)
    assert outcome.status == "ok"
    assert "lm_head.weight" not in load_file(str(tmp_path / "run" / "model.safetensors")), "the model is tied"
    assert [line for line in said if "missing keys" in line] == []


def test_a_weight_that_no_loaded_one_stands_for_is_missing() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head, self.norm = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False), torch.nn.LayerNorm(4)
            self.head.weight = self.embedding.weight

    def missing(*names: str) -> Any:
        return really_missing(Model(), SimpleNamespace(missing_keys=list(names), unexpected_keys=["x"]))

    assert missing("head.weight").missing_keys == []
    assert missing("head.weight").unexpected_keys == ["x"]
    assert missing("head.weight", "norm.bias").missing_keys == ["norm.bias"]
    assert missing("head.weight", "embedding.weight").missing_keys == ["head.weight", "embedding.weight"], "neither was loaded"
    assert missing("of.another").missing_keys == ["of.another"]
