"""The built-in checks. Ids are stable: FT0 machine, FT05 settings, FT1 tokenizer, FT2 data, FT3 batch, FT4 model, FT5 steps."""

from __future__ import annotations

from importlib import import_module

from ftcli import hookimpl
from ftcli.contracts import CheckKind
from ftcli.hookspecs import Register

MODULES = (
    "checks_machine",
    "checks_variables",
    "checks_versions",
    "checks_capacity",
    "checks_settings",
    "checks_schedule",
    "checks_optimizer",
    "checks_tokenizer",
    "checks_tokenizer_vocabulary",
    "checks_tokenizer_text",
    "checks_chat",
    "checks_data",
    "checks_labels",
    "checks_label_words",
    "checks_leakage",
    "checks_near_leakage",
    "checks_duplicates",
    "checks_text",
    "checks_plan",
    "checks_held_out",
    "checks_batch",
    "checks_targets",
    "checks_model",
    "checks_outputs",
    "checks_gradients",
    "checks_isolation",
    "checks_weights",
    "checks_steps",
)
"""In the order of the pipeline. They are imported by whoever asks for checks: that takes 0.05 s of CPU, in every process that tokenizes."""


@hookimpl
def register_checks(register: Register[CheckKind]) -> None:
    for name in MODULES:
        for kind in import_module(f"{__package__}.{name}").CHECKS:
            register(kind.id, kind)
