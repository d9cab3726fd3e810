"""What `benchmarks/train.py` trains on: rows of given lengths, a tokenizer of one id a word, and a model, made once under the work folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import process
from benchmarks.process import environment, python
from numpy.typing import NDArray

Lengths = NDArray[np.int64]
SEED = 7
VOCABULARY = 8_192
LABELS = 280
NAMES = ",".join(f"{label:03}" for label in range(LABELS))
"""All of them, also where a few rows do not have each."""
UNKNOWN = "<eos>"
MODEL: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1_024,
    "tie_word_embeddings": True,
}
QWEN3_600M: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1_024,
    "intermediate_size": 3_072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
"""Of Qwen3-0.6B, for a GPU; the weights are random."""


def incident1(rows: int, generator: np.random.Generator) -> Lengths:
    """211.5 tokens on average, at most 287."""
    return np.clip(generator.normal(211.5, 30, rows), 20, 287).astype(np.int64)


def long_tail(rows: int, generator: np.random.Generator) -> Lengths:
    """Log-normal: median 120, 176 on average, up to 1,024; the longest is there."""
    lengths = np.clip(generator.lognormal(math.log(120), 0.875, rows), 8, 1_024).astype(np.int64)
    lengths[generator.integers(rows)] = 1_024
    return lengths


def equal(rows: int, generator: np.random.Generator) -> Lengths:  # noqa: ARG001 - the others'
    """256 tokens each, so that every way pads the same: not at all."""
    return np.full(rows, 256, np.int64)


@dataclass(frozen=True, slots=True)
class Work:
    """One comparison."""

    name: str
    lengths: Callable[[int, np.random.Generator], Lengths]
    max_length: int
    task: str
    batch: int
    required: dict[str, float] = field(default_factory=dict)
    """How many times as fast as a way ftcli has to be."""
    model: dict[str, Any] = field(default_factory=lambda: MODEL)
    device: str = "cpu"
    """What it is for."""


WORKS = {
    work.name: work
    for work in (
        Work("incident1", incident1, 320, "classify", 16, {"fixed": 3.0, "dynamic": 2.5, "best": 1.15}),
        Work("long-tail", long_tail, 1_024, "classify", 16, {"fixed": 10.0, "dynamic": 3.5}),
        Work("lm", equal, 256, "pretrain", 8, {"fixed": 2.7, "dynamic": 2.7}),
        Work("gpu-incident1", incident1, 320, "classify", 64, {"dynamic": 2.0}, QWEN3_600M, "cuda"),
        Work("gpu-long-tail", long_tail, 1_024, "classify", 32, {"dynamic": 2.0}, QWEN3_600M, "cuda"),
        Work("gpu-lm", equal, 256, "pretrain", 32, {"dynamic": 2.0}, QWEN3_600M, "cuda"),
    )
}


@dataclass(frozen=True, slots=True)
class Made:
    """Folders of one work."""

    store: Path
    tokenizer: Path
    model: Path


def make(work: Work, rows: int, folder: Path) -> Made:
    """Tokenizer, initial weights and data prepared by `ftcli tokenize`; what already exists is kept."""
    size = int(work.model["vocab_size"])
    made = Made(folder / f"{work.name}-{rows}", folder / f"tokenizer-{size}", folder / f"model-{work.task}-{size}")
    if not made.tokenizer.exists():
        _tokenizer(made.tokenizer, size)
    if not made.model.exists():
        _model(made.model, work.task, work.model)
    if not made.store.exists():
        source = folder / f"{made.store.name}.jsonl"
        _texts(source, work, rows, size)
        words: list[str | Path] = [
            "tokenize",
            source,
            "--tokenizer-path",
            made.tokenizer,
            "--output-dir",
            made.store,
            "--max-length",
            str(work.max_length),
        ]
        words += ["--no-add-eos", "--tokenizer-engine", "hf", "--report-dir", folder / "reports", "--num-proc", "1"]
        words += ["--label-column", "label", "--label-names", NAMES] if work.task == "classify" else []
        process.run(python("-m", "ftcli", *words), os.sched_getaffinity(0), environment(folder), folder)
    return made


def _texts(path: Path, work: Work, rows: int, size: int) -> None:
    generator = np.random.default_rng(SEED)
    with path.open("w", encoding="utf-8") as out:
        for number, length in enumerate(work.lengths(rows, generator).tolist()):
            words = generator.integers(2, size, length).tolist()
            row: dict[str, Any] = {"text": " ".join(f"w{word}" for word in words)}
            if work.task == "classify":
                row["label"] = f"{number % LABELS:03}"
            out.write(json.dumps(row) + "\n")


def _tokenizer(folder: Path, size: int) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, **{f"w{number}": number for number in range(2, size)}}
    backend = Tokenizer(models.WordLevel(words, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    roles = {"pad_token": "<pad>", "eos_token": UNKNOWN}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **roles)
    tokenizer.save_pretrained(str(folder))


def _model(folder: Path, task: str, values: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    labels = {"num_labels": LABELS} if task == "classify" else {}
    rest = {name: value for name, value in values.items() if name != "model_type"}
    config = AutoConfig.for_model(values["model_type"], **rest, **labels, pad_token_id=0, eos_token_id=1, bos_token_id=1)
    torch.manual_seed(SEED)
    kind = AutoModelForSequenceClassification if task == "classify" else AutoModelForCausalLM
    kind.from_config(config).save_pretrained(str(folder))
