"""The built-in packers: none, concat and bfd."""

from __future__ import annotations

from ftcli import hookimpl
from ftcli.contracts import Packer
from ftcli.hookspecs import Register


@hookimpl
def register_packers(register: Register[type[Packer]]) -> None:
    from ftcli.core.prepare.pack import BestFit, Concat, Single

    register("none", Single)
    register("concat", Concat)
    register("bfd", BestFit)
