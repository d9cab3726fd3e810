"""The run's collator by its name. Those of plugins are watched, so that what one of them does wrong is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ftcli.contracts import BatchSpec, Collator, CollatorKind, Task
from ftcli.errors import FtcliError, PluginError
from ftcli.pluginfaults import named, reason_of
from ftcli.pluginmanager import Plugins

if TYPE_CHECKING:
    import torch

    from ftcli.core.storage.store import Rows

BROKE = "Mend the plugin, or use one of ftcli's collators."
USABLE = "A collator gives input_ids and labels, and a mask or positions; the labels must be called labels."


class Watched:
    """A plugin's collator, which raises nothing but `FtcliError`, and gives nothing but batches."""

    def __init__(self, inner: Collator, name: str, owner: str) -> None:
        self.inner = inner
        self.name = name
        self.owner = owner

    def __call__(self, rows: Rows) -> dict[str, torch.Tensor]:
        """
        Raises:
            PluginError: it breaks, or gives something else than tensors with ids and labels.
        """
        with named(f"collator {self.name}", self.owner, BROKE):
            batch: Any = self.inner(rows)
        self.refuse(_fault(batch))
        return {**batch}

    def refuse(self, fault: str) -> None:
        if fault:
            raise PluginError(f"the collator {self.name} of plugin {self.owner!r} makes an unusable batch: {fault}", USABLE)


def made(plugins: Plugins, name: str, spec: BatchSpec) -> Collator:
    """A collator for a run.

    Raises:
        PluginError: the plugin's factory breaks, or gives nothing that can be called.
    """
    kind: CollatorKind = plugins.registry("collator").get(name, "loader.collator")
    owner = plugins.outsider("collator", name)
    if owner is None:
        return kind.make(spec)
    hint = "CollatorKind(make): make is a class, or a function, that is called with a BatchSpec and gives a collator."
    try:
        collator: Any = kind.make(spec)
    except FtcliError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"the collator {name} of plugin {owner!r} cannot be made: {reason_of(error)}", hint) from error
    if not callable(collator):
        raise PluginError(f"the collator {name} of plugin {owner!r} is {collator!r}, which cannot be called with rows", hint)
    return Watched(collator, name, owner)


def refuse_batch(collator: Collator, task: Task, rows: Rows) -> None:
    """Look once at the batch that a plugin's collator makes of these rows, as far as its shapes and types go: `verify` looks at the rest.

    Raises:
        PluginError: nothing can be learned of it.
    """
    if isinstance(collator, Watched):
        collator.refuse(_misfit(collator(rows), task, rows))


def _misfit(batch: Mapping[str, torch.Tensor], task: Task, rows: Rows) -> str:
    import torch

    ids, labels, wanted = batch["input_ids"], batch["labels"], torch.from_numpy(task.labels(rows)).dtype
    if ids.ndim != 2:
        return f"input_ids have the shape {list(ids.shape)}, not [rows, width]"
    if len(ids) not in {1, len(rows)}:  # rows may be laid behind each other
        return f"{len(ids)} rows of ids for {len(rows)} rows"
    if not labels.ndim or len(labels) not in {len(ids), len(rows)}:
        return f"{len(labels) if labels.ndim else 'no'} labels for {len(ids)} rows of ids"
    if labels.dtype != wanted and not (labels.is_floating_point() and wanted.is_floating_point):
        return f"labels are {labels.dtype}, where those of the task are {wanted}"
    return ""


def _fault(batch: Any) -> str:
    """Why nothing can be done with it, in words."""
    import torch

    if not isinstance(batch, Mapping):
        return f"it is {type(batch).__name__}"
    if wanted := [key for key in ("input_ids", "labels") if key not in batch]:
        return f"no {' and no '.join(wanted)}"
    odd = [key for key, value in batch.items() if not isinstance(value, torch.Tensor)]
    if odd:
        return f"{odd[0]} is a {type(batch[odd[0]]).__name__} and no tensor"
    kind = batch["input_ids"].dtype
    return f"input_ids are {kind}: token ids must be integers" if kind.is_floating_point else ""
