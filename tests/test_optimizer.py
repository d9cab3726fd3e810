"""Names in `--optim-args` that an optimizer leaves aside."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from ftcli.core.training.optimizer import OptimizerTrainer, ignored
from ftcli.errors import SettingsError


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


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"adam_beta1": 1.5}, "train.adam_beta1 = 1.5"),
        ({"adam_beta2": -0.5}, "train.adam_beta2 = -0.5"),
        ({"adam_epsilon": -1.0}, "train.adam_epsilon = -1.0"),
        ({"learning_rate": -1.0}, "train.learning_rate = -1.0"),
        ({"optim": "sgd", "optim_args": "momentum=-1"}, "train.optim_args = momentum=-1"),
    ],
)
def test_a_number_that_torch_refuses_is_called_by_the_settings_name(values: dict[str, Any], told: str, tmp_path: Path) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], **values)
    with pytest.raises(SettingsError, match=re.escape(told)):
        OptimizerTrainer(model=torch.nn.Linear(2, 2), args=arguments).create_optimizer()
