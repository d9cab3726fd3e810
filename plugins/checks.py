"""The built-in checks. Ids are stable: FT0 machine, FT05 settings, FT1 tokenizer, FT2 data, FT3 batch, FT4 model, FT5 steps."""

from __future__ import annotations

from ftcli import hookimpl
from ftcli.contracts import CheckKind
from ftcli.hookspecs import Register

from . import checks_batch, checks_data, checks_machine, checks_model, checks_settings, checks_tokenizer


@hookimpl
def register_checks(register: Register[CheckKind]) -> None:
    for module in (checks_machine, checks_settings, checks_tokenizer, checks_data, checks_batch, checks_model):
        for kind in module.CHECKS:
            register(kind.id, kind)
