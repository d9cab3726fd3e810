"""The built-in tasks: classify, regress, pretrain and sft."""

from __future__ import annotations

from ftcli import hookimpl
from ftcli.contracts import Task
from ftcli.hookspecs import Register


@hookimpl
def register_tasks(register: Register[type[Task]]) -> None:
    from ftcli.core.batches.tasks import Classify, Pretrain, Regress, Sft

    register("classify", Classify)
    register("regress", Regress)
    register("pretrain", Pretrain)
    register("sft", Sft)
