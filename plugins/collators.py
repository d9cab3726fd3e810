"""The built-in collators: dynamic, fixed, bucketed and packed."""

from __future__ import annotations

from ftcli import hookimpl
from ftcli.contracts import CollatorKind
from ftcli.hookspecs import Register


@hookimpl
def register_collators(register: Register[CollatorKind]) -> None:
    from ftcli.core.batches.collate import Dynamic, Fixed, Packed

    register("dynamic", CollatorKind(Dynamic))
    register("fixed", CollatorKind(Fixed))
    register("bucketed", CollatorKind(Dynamic, order="grouped"))
    register("packed", CollatorKind(Packed, packed=True))
