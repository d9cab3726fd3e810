"""The run's collator by its name. Those of plugins are watched, so that what one of them does wrong is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ftcli.contracts import BatchSpec, Collator, CollatorKind
from ftcli.errors import DataError, FtcliError, PluginError
from ftcli.pluginfaults import reason_of
from ftcli.pluginmanager import Plugins

if TYPE_CHECKING:
    import torch

    from ftcli.core.storage.store import Rows

USABLE = "A collator gives input_ids and labels, and a mask or positions; the labels must be called labels."


class Watched:
    """A collator that raises nothing but `FtcliError`, and gives nothing but batches."""

    def __init__(self, inner: Collator, name: str) -> None:
        self.inner = inner
        self.name = name

    def __call__(self, rows: Rows) -> dict[str, torch.Tensor]:
        return {**collate(self.inner, self.name, rows)}


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
    except Exception as error:
        raise PluginError(f"the collator {name} of plugin {owner!r} cannot be made: {reason_of(error)}", hint) from error
    if not callable(collator):
        raise PluginError(f"the collator {name} of plugin {owner!r} is {collator!r}, which cannot be called with rows", hint)
    return Watched(collator, name)


def collate(collator: Collator, name: str, rows: Rows) -> Mapping[str, torch.Tensor]:
    """The collator's batch. Raises `DataError` when it breaks, or gives something else than tensors with ids and labels."""
    import torch

    try:
        batch: Any = collator(rows)
    except FtcliError:
        raise
    except Exception as error:  # a plugin's collator may raise anything
        raise DataError(f"the collator {name} breaks: {reason_of(error)}", "Use one of ftcli's, or fix the plugin.") from error
    if not isinstance(batch, Mapping):
        raise DataError(f"the collator {name} makes an unusable batch: it is {type(batch).__name__}", USABLE)
    wanted = [key for key in ("input_ids", "labels") if key not in batch]
    odd = [key for key, value in batch.items() if not isinstance(value, torch.Tensor)]
    if wanted or odd:
        reason = f"no {' and no '.join(wanted)}" if wanted else f"{odd[0]} is a {type(batch[odd[0]]).__name__} and no tensor"
        raise DataError(f"the collator {name} makes an unusable batch: {reason}", USABLE)
    return batch
