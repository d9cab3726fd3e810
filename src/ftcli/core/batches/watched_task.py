"""The task of a plugin, watched, so that what its loss and its labels do wrong is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ftcli.contracts import Task
from ftcli.core.batches.tasks import Classify, Pretrain, Regress
from ftcli.core.storage.store import Rows
from ftcli.errors import PluginError
from ftcli.pluginfaults import named
from ftcli.pluginmanager import Plugins

if TYPE_CHECKING:
    import torch

HINT = "loss(self, logits, labels, items) gives a tensor of one number: the sum over the targets divided by items, or their mean where items is None."

LABELS = "labels(self, rows) gives int64 [rows] for classes, float32 [rows, labels] for any number of them, float32 [rows] for numbers, or int64, one a token."


def watched(task: Task, name: str, plugins: Plugins) -> Task:
    """`task`, whose own labels and loss raise nothing but `FtcliError`, and whose loss gives nothing but a number; what is ftcli's is left as it is."""
    owner = plugins.outsider("task", name)
    if owner is None:
        return task
    if not _is_ftclis(task.labels):
        _watch_labels(task, name, owner)
    if not _is_ftclis(task.loss):
        _watch_loss(task, name, owner)
    return task


def _is_ftclis(method: Callable[..., Any]) -> bool:
    return str(getattr(method, "__module__", "")).startswith("ftcli.")


def _watch_labels(task: Task, name: str, owner: str) -> None:
    own = task.labels

    def labels(rows: Rows) -> np.ndarray[Any, np.dtype[Any]]:
        with named(f"labels of the task {name}", owner, LABELS):
            return own(rows)

    task.labels = labels  # type: ignore[method-assign]


def _watch_loss(task: Task, name: str, owner: str) -> None:
    own, part = task.loss, f"loss of the task {name}"

    def loss(*given: Any, **more: Any) -> torch.Tensor:
        import torch

        with named(part, owner, HINT):
            found: Any = own(*given, **more)
        if not isinstance(found, torch.Tensor) or found.ndim:
            is_ = f"a tensor of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise PluginError(f"the {part} of plugin {owner!r} is {is_}, not one number", HINT)
        return found

    task.loss = loss  # type: ignore[method-assign]


def refuse_labels(task: Task, name: str, owner: str | None, rows: Rows, note: Callable[[str], None]) -> None:
    """Look at a plugin's labels for these rows once; one with a loss of its own may know what to do with other numbers.

    Raises:
        PluginError: they have no form of labels, or one that ftcli's loss of the task cannot take.
    """
    tokens = len(rows.input_ids.values)
    if owner is None or tokens == len(rows):  # rows of one token do not tell what is one a row
        return
    part = f"labels of the task {name}"
    with named(part, owner, LABELS):
        found: Any = task.labels(rows)
    if not isinstance(found, np.ndarray):
        raise PluginError(f"the {part} of plugin {owner!r} are a {type(found).__name__}, not an array of numpy", LABELS)
    floats, whole = found.dtype.kind == "f", found.dtype.kind in "iu"
    of = "one a row" if found.shape == (len(rows),) else "one a token" if found.shape == (tokens,) else ""
    several = found.ndim == 2 and len(found) == len(rows) and floats
    takes: dict[Any, bool] = {
        Classify.loss: bool(several or (of == "one a row" and found.dtype == np.int64)),
        Regress.loss: of == "one a row" and floats,
        Pretrain.loss: of == "one a token" and whole,
    }
    if not takes.get(getattr(type(task), "loss", None), (of != "" or several) and (floats or whole)):
        words = f"{found.dtype} {list(found.shape)}{f', {of},' if of else ''}"
        raise PluginError(f"the {part} of plugin {owner!r} are {words} for {len(rows)} rows of {tokens:,} tokens", LABELS)
    if of == "one a token" and floats:
        note(
            f"the {part} are {found.dtype}, one a token: they are counted without the shift by one, and evaluated as labels that hold or not"
        )
