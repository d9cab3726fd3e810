"""What an option that a command does not have was probably meant to be: a name of another trainer, a short form, or a slip."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from ftcli.cli.catalog import COMMANDS
from ftcli.cli.options import options_of, setting_options
from ftcli.cli.spec import CommandSpec
from ftcli.errors import UsageError

SHORT = {
    "o": ("output-dir",),
    "output-path": ("output-dir",),
    "save-dir": ("output-dir",),
    "save-path": ("output-dir",),
    "i": ("dataset", "input"),
    "input": ("dataset", "input"),
    "input-file": ("dataset", "input"),
    "data": ("dataset",),
    "data-dir": ("dataset",),
    "data-path": ("dataset",),
    "file": ("dataset",),
    "train-file": ("dataset",),
    "text-field": ("text-column",),
    "label-field": ("label-column",),
    "target-column": ("label-column",),
    "m": ("model-name-or-path", "tokenizer-path"),
    "model": ("model-name-or-path", "tokenizer-path"),
    "model-path": ("model-name-or-path", "tokenizer-path"),
    "model-name": ("model-name-or-path", "tokenizer-path"),
    "pretrained-model": ("model-name-or-path", "tokenizer-path"),
    "t": ("tokenizer-path",),
    "engine": ("tokenizer-engine",),
    "bs": ("per-device-train-batch-size", "batch-size"),
    "batch-size": ("per-device-train-batch-size",),
    "per-device-batch-size": ("per-device-train-batch-size",),
    "train-batch-size": ("per-device-train-batch-size",),
    "eval-batch-size": ("per-device-eval-batch-size",),
    "lr": ("learning-rate",),
    "epoch": ("num-train-epochs",),
    "epochs": ("num-train-epochs",),
    "steps": ("max-steps",),
    "accum": ("gradient-accumulation-steps",),
    "grad-accum": ("gradient-accumulation-steps",),
    "optimizer": ("optim",),
    "scheduler": ("lr-scheduler-type",),
    "max-len": ("max-length",),
    "seq-len": ("max-length",),
    "block-size": ("max-length",),
    "max-tokens": ("max-new-tokens", "max-length"),
    "eos": ("add-eos",),
    "truncation": ("truncation-strategy",),
    "val-split": ("validation-fraction",),
    "val-size": ("validation-fraction",),
    "validation-split": ("validation-fraction",),
    "test-split": ("test-fraction",),
    "test-size": ("test-fraction",),
    "j": ("num-proc",),
    "jobs": ("num-proc",),
    "workers": ("num-proc",),
    "num-workers": ("num-proc",),
    "processes": ("num-proc",),
    "packing-strategy": ("packing",),
    "gpus": ("nproc-per-node",),
    "num-gpus": ("nproc-per-node",),
    "num-processes": ("nproc-per-node",),
    "force": ("overwrite",),
    "wandb": ("report-to",),
}
"""Short forms and names that are usual elsewhere, and are no keys of a configuration file that `ftcli settings import` reads."""
SLIP = 0.75
"""Least likeness of a slip, without the dashes. At difflib's 0.6 and with them, `--lr` was meant to be `--floor`, and `--header` `--threads`."""


def unknown_option(spec: CommandSpec, flag: str, flags: Sequence[str]) -> UsageError:
    """The error for a flag that the command does not have, with what was probably meant."""
    return UsageError(f"ftcli {spec.name} has no option {flag}", _hint(spec, flag, flags))


def _hint(spec: CommandSpec, flag: str, flags: Sequence[str]) -> str:
    name = flag.lstrip("-")
    elsewhere = {option.flags[0]: option.key for option in setting_options()}
    for meant in SHORT.get(name, ()):
        if f"--{meant}" in flags:
            return f"Did you mean --{meant}?"
    begins = [own for own in flags if own.startswith(f"--{name}-")]
    if begins:
        return f"Did you mean {min(begins, key=len)}?"
    if flag in elsewhere:
        users = ", ".join(other for other, its in COMMANDS.items() if any(flag in option.flags for option in options_of(its)))
        use = f"It belongs to: ftcli {users}. " if users else ""
        return f"{use}Any setting can be given as --set {elsewhere[flag]}=VALUE."
    if hint := _formerly(name) or _in_other_trainers(name, flags):
        return hint
    for known in (flags, elsewhere):
        if near := difflib.get_close_matches(name, [other.lstrip("-") for other in known], n=1, cutoff=SLIP):
            return f"Did you mean --{near[0]}?"
    return f"See: ftcli {spec.name} --help"


def _formerly(name: str) -> str:
    """A name that transformers has, or had."""
    from ftcli.settings_train import NOT_OFFERED, REMOVED

    old = REMOVED.get(name.replace("-", "_")) or NOT_OFFERED.get(name.replace("-", "_"))
    flags = {option.key: option.flags[0] for option in setting_options()}
    return f"Use {re.sub(r'[a-z]+[.][a-z0-9_]+', lambda key: flags.get(key[0], key[0]), old)}." if old else ""


def _in_other_trainers(name: str, flags: Sequence[str]) -> str:
    """A key of their configuration files, as `ftcli settings import` reads it."""
    from ftcli.core.convert.foreign import meanings

    own = {option.key: option.flags[0] for option in setting_options() if option.flags[0] in flags}
    for trainer, keys in meanings(name.replace("-", "_")):
        if meant := [own[key] for key in keys if key in own]:
            return f"Use {' and '.join(meant)}, which is {name.replace('-', '_')} of {trainer}."
    return ""
