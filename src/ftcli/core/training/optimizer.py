"""`transformers.Trainer` whose optimizer and schedule are made of settings, or refused by the setting's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import Trainer, TrainingArguments

from ftcli.errors import MissingExtraError, SettingsError

MORE = {"optim": "optim_args", "lr_scheduler_type": "lr_scheduler_kwargs"}
"""What each is told."""


class OptimizerTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that says which setting its optimizer or schedule cannot be made of."""

    def create_optimizer(self, model: Any = None) -> Any:
        with made_of(self.args, "optim"):
            return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        with made_of(self.args, "lr_scheduler_type"):
            return super().create_scheduler(num_training_steps, optimizer)


@contextmanager
def made_of(arguments: TrainingArguments, name: str) -> Iterator[None]:
    """Around what is made of the argument `name`.

    Raises:
        MissingExtraError: it needs a package that is not installed.
        SettingsError: it cannot be made of what it is told.
    """
    chosen, more = getattr(arguments, name), MORE[name]
    said = f"train.{name} = {getattr(chosen, 'value', chosen)}"
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{said} needs a package that is not installed: {error}", "Install it, or choose another one.") from error
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{said} cannot be made with train.{more} = {getattr(arguments, more) or {}}: {error}",
            f"Set what the message names, or train.{more}, to what it takes; or leave train.{name} out.",
        ) from error
