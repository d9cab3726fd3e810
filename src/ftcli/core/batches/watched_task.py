"""The task of a plugin, watched, so that what its loss does wrong is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import Task
from ftcli.errors import PluginError
from ftcli.pluginfaults import named
from ftcli.pluginmanager import Plugins

if TYPE_CHECKING:
    import torch

HINT = "loss(self, logits, labels, items) gives a tensor of one number: the sum over the targets divided by items, or their mean where items is None."


def watched(task: Task, name: str, plugins: Plugins) -> Task:
    """`task`, whose own loss raises nothing but `FtcliError` and gives nothing but a number; one of ftcli's, or with its loss, is left as it is."""
    owner, own = plugins.outsider("task", name), task.loss
    if owner is None or str(getattr(own, "__module__", "")).startswith("ftcli."):
        return task
    part = f"loss of the task {name}"

    def loss(*given: Any, **more: Any) -> torch.Tensor:
        import torch

        with named(part, owner, HINT):
            found: Any = own(*given, **more)
        if not isinstance(found, torch.Tensor) or found.ndim:
            is_ = f"a tensor of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise PluginError(f"the {part} of plugin {owner!r} is {is_}, not one number", HINT)
        return found

    task.loss = loss  # type: ignore[method-assign]
    return task
