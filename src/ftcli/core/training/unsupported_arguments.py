"""Options that libraries do not know: refused before anything is made."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import fields
from inspect import signature

from torch.utils.checkpoint import checkpoint
from transformers.trainer_pt_utils import AcceleratorConfig

from ftcli.core.training.refused import refuse_settings
from ftcli.errors import SettingsError
from ftcli.settings import Settings
from ftcli.settings_train import TrainSettings


def refuse_unsupported(settings: Settings) -> None:
    """Raises `SettingsError` or `MissingExtraError`: a setting asks for what ftcli does not do, for what is not installed, or names what a library does not know."""
    refuse_settings(settings)
    train = settings.train
    _refuse_compilers(train)
    recompute = set(signature(checkpoint).parameters) - {"function", "args", "kwargs"} | {"preserve_rng_state"}
    for name, library, known, example in (
        ("gradient_checkpointing_kwargs", "torch.utils.checkpoint", recompute, "use_reentrant"),
        ("activation_checkpointing_kwargs", "torch.utils.checkpoint", recompute, "use_reentrant"),
        ("accelerator_config", "accelerate", {field.name for field in fields(AcceleratorConfig)}, "even_batches"),
    ):
        if unknown := sorted(set(getattr(train, name) or {}) - known):
            raise SettingsError(
                f"train.{name} = {getattr(train, name)}: {library} takes no option {unknown[0]}",
                f"It takes {', '.join(sorted(known))}; for example --{name.replace('_', '-')} '{{\"{example}\": false}}'.",
            )


def _refuse_compilers(train: TrainSettings) -> None:
    """Names that torch's compiler does not know, which it would say in the middle of the run."""
    if not train.torch_compile and train.torch_compile is not None:
        return
    offered: dict[str, Sequence[str]] = {}
    if train.torch_compile_backend is not None:
        from accelerate.utils import DynamoBackend
        from torch._dynamo import list_backends

        known = list_backends(exclude_tags=()) if train.torch_compile == "auto" else [backend.value.lower() for backend in DynamoBackend]
        offered["torch_compile_backend"] = sorted(set(known) - {"no"})
    if train.torch_compile_mode is not None:
        from torch._inductor import list_mode_options

        offered["torch_compile_mode"] = sorted(list_mode_options())
    for name, names in offered.items():
        if (value := getattr(train, name)).lower() not in names:
            near = difflib.get_close_matches(value, names, n=1)
            raise SettingsError(
                f"train.{name} = {value!r} is not supported",
                f"Choose from: {', '.join(names)}.{f' Did you mean {near[0]}?' if near else ''}",
            )
