"""`transformers.Trainer` whose optimizer and schedule are made of settings, or refused by the setting's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainingArguments

from ftcli.errors import MissingExtraError, SettingsError

MORE = {"optim": "optim_args", "lr_scheduler_type": "lr_scheduler_kwargs"}
"""What each is told."""
NUMBERS = re.compile(r"Invalid (?:(beta) parameter at index (\d)|(learning rate|epsilon value)): ")
"""How torch's optimizers refuse a number."""
OWN_NAMES = {
    "beta0": "adam_beta1",
    "beta1": "adam_beta2",
    "learning rate": "learning_rate",
    "epsilon value": "adam_epsilon",
}


class OptimizerTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that says which setting its optimizer or schedule cannot be made of."""

    def create_optimizer(self, model: Any = None) -> Any:
        with made_of(self.args, "optim"):
            refuse_ignored(self.args, self.model if model is None else model)
            return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        with made_of(self.args, "lr_scheduler_type"):
            return super().create_scheduler(num_training_steps, optimizer)


def follow(schedule: Any) -> None:
    """Give the optimizer the rate of its own schedule, where one was restored: a state has that of the run which saved it, 0 at the end of a shorter one.

    Of a run as long as that one it is the same number, by the same product.
    """
    if not isinstance(schedule, LambdaLR):  # of another kind, the rate follows from those before it
        return
    shares = [share(schedule.last_epoch) for share in schedule.lr_lambdas]
    for group, base, share in zip(schedule.optimizer.param_groups, schedule.base_lrs, shares, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(base * share)
        else:
            group["lr"] = base * share
    schedule._last_lr = [group["lr"] for group in schedule.optimizer.param_groups]


def refuse_ignored(arguments: TrainingArguments, model: Any = None) -> None:
    """
    Raises:
        SettingsError: `optim_args` holds what the optimizer does not read, or it does not read `optim_target_modules`.
        ValueError: they are not names with values.
    """
    unread = ignored(arguments, model)
    if unread:
        raise SettingsError(
            f"train.optim = {arguments.optim.value} does not read {', '.join(unread)} of train.optim_args = {arguments.optim_args}",
            "Leave it out, or correct its name; weight decay, betas and epsilon are settings of their own (ftcli settings --all).",
        )
    if arguments.optim_target_modules is not None and _modules_unread(arguments, model):
        raise SettingsError(
            f"train.optim = {arguments.optim.value} does not read train.optim_target_modules = {arguments.optim_target_modules}",
            "Remove it; only GaLore, APOLLO and similar optimizers read it.",
        )


def _modules_unread(arguments: TrainingArguments, model: Any) -> bool:
    without = copy(arguments)
    without.optim_target_modules = None
    with suppress(Exception):  # those that read it need it
        return repr(Trainer.get_optimizer_cls_and_kwargs(without, model)) == repr(Trainer.get_optimizer_cls_and_kwargs(arguments, model))
    return False


def ignored(arguments: TrainingArguments, model: Any) -> list[str]:
    """The names in `optim_args` that transformers leaves aside without a word: what is made is the same without them, and with other values.

    Raises:
        ValueError: they are not names with values.
    """
    given = (arguments.optim_args or "").replace(" ", "")
    if not given:
        return []
    if wrong := [pair for pair in given.split(",") if pair.count("=") != 1]:
        raise ValueError(f"{wrong[0]!r} is not name=value")
    words = dict(pair.split("=") for pair in given.split(","))
    whole = _made(arguments, model, words)
    if whole is None:  # its maker says why
        return []
    return [
        name
        for name, value in words.items()
        if whole == _made(arguments, model, {other: word for other, word in words.items() if other != name})
        and whole == _made(arguments, model, {**words, name: _other(value)})
    ]


def _made(arguments: TrainingArguments, model: Any, words: dict[str, str]) -> str | None:
    """The class and its arguments in words; None where it cannot be made."""
    trial = copy(arguments)
    trial.optim_args = ",".join(f"{name}={value}" for name, value in words.items())
    try:
        return repr(Trainer.get_optimizer_cls_and_kwargs(trial, model))
    except Exception:  # noqa: BLE001 - a handler may fail in any way over a value
        return None


def _other(value: str) -> str:
    """Another value of its kind: one that is the default is not one that nobody reads."""
    if value.lower() in {"true", "false"}:
        return "false" if value.lower() == "true" else "true"
    try:
        return str(int(value) + 1)
    except ValueError:
        with suppress(ValueError):
            return str(float(value) + 1)
        return f"{value}_"


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
        if own := _setting(str(error), getattr(arguments, more) or ""):
            raise SettingsError(f"{said} refuses train.{own} = {getattr(arguments, own)}: {error}", f"Leave train.{own} out.") from error
        raise SettingsError(
            f"{said} cannot be created with train.{more} = {getattr(arguments, more) or {}}: {error}",
            f"Correct the option that the message names, or train.{more}; or remove train.{name}.",
        ) from error


def _setting(refusal: str, told: object) -> str | None:
    """The field of `train` whose number torch refuses; None: it is told something else, or the number may stand in the options."""
    found = NUMBERS.match(refusal)
    if found is None or "=" in str(told):
        return None
    return OWN_NAMES.get(found[3] or found[1] + found[2])
