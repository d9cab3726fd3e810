"""Names in `--optim-args` that an optimizer leaves aside."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import TrainingArguments

from ftcli.core.training.optimizer import ignored


@pytest.mark.parametrize(
    ("optimizer", "words", "unread"),
    [
        ("adamw_torch", None, []),
        ("adamw_torch", "foo=1", ["foo"]),
        ("adamw_torch", "betas=0.9, eps=1e-6", ["betas", "eps"]),
        ("sgd", "momentum=0.9,nesterov=true", []),
        ("sgd", "momentum=0.9,momentun=0.9", ["momentun"]),
        ("sgd", "momentum=0", []),
        ("sgd", "nesterov=false", []),
        ("rmsprop", "alpha=0.99,centered=yes", []),
        ("rmsprop", "alpha=0.99,beta=word", ["beta"]),
        ("sgd", "momentum=high", []),
        ("galore_adamw", "rank=64", []),
    ],
)
def test_a_name_that_changes_nothing_is_found(optimizer: str, words: str | None, unread: list[str], tmp_path: Path) -> None:
    """What cannot be made at all (a word for a number, a package that is missing) is for its maker to say."""
    arguments = TrainingArguments(output_dir=str(tmp_path), optim=optimizer, optim_args=words, use_cpu=True, report_to=[])

    assert ignored(arguments, torch.nn.Linear(2, 2)) == unread


@pytest.mark.parametrize("words", ["foo", "a=1,foo", "a=1=2"])
def test_what_is_no_name_with_a_value_is_said(words: str, tmp_path: Path) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), optim_args=words, use_cpu=True, report_to=[])

    with pytest.raises(ValueError, match="is not name=value"):
        ignored(arguments, torch.nn.Linear(2, 2))
