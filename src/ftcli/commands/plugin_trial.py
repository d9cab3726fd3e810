"""Parts and hooks of plugins, tried on a few made-up rows: what they give is seen before there is a model or any data."""

from __future__ import annotations

from collections.abc import Sequence

from ftcli.environment import compute
from ftcli.errors import FtcliError, PluginError
from ftcli.machine import detect
from ftcli.pluginfaults import HOOKS
from ftcli.pluginmanager import Plugins
from ftcli.settings import Settings

TRIED = frozenset({"collator", "packer"})
"""Kinds whose parts are used here; others are made and no more, or need a run."""
LENGTHS = (3, 5, 2)
"""Tokens of the made-up rows."""
MOST = 8
"""Tokens that a row or a pack of them may hold."""


def tried(plugins: Plugins, hooks: set[str], parts: Sequence[tuple[str, str]]) -> list[str]:
    """Use what can be used cheaply; the rest, in words.

    Args:
        hooks, parts: of the plugins that are not ftcli's; a part is a kind and a name.

    Raises:
        FtcliError: what one gives is not what its contract says; names the plugin.
    """
    if "environment" in hooks:
        compute(plugins, Settings(), detect())
    left = [f"{kind} {name}" for kind, name in parts if kind not in TRIED]
    for kind, name in parts:
        if kind == "packer":
            _pack(plugins, name)
        elif kind == "collator" and (refused := _collate(plugins, name)):
            left.append(f"collator {name} ({refused})")
    return [*left, *(hook for hook in HOOKS if hook in hooks and not hook.startswith("register_") and hook != "environment")]


def _pack(plugins: Plugins, name: str) -> None:
    import numpy as np

    from ftcli.core.prepare.packs import pack

    pack(plugins.registry("packer").get(name)(), np.array(LENGTHS, np.int64), MOST, plugins.outsider("packer", name))


def _collate(plugins: Plugins, name: str) -> str:
    """Why it was not tried, in words. A collator may be written for one task alone: it is at fault where no task's rows give a batch."""
    import numpy as np

    from ftcli.contracts import BatchSpec, Task
    from ftcli.core.batches.collating import made, refuse_batch
    from ftcli.core.batches.tasks import Classify, Pretrain, Regress
    from ftcli.core.ragged import to_offsets
    from ftcli.core.storage.store import Ragged, Rows

    count = len(LENGTHS)
    lengths = np.array(LENGTHS, np.int64)
    ids = Ragged(np.arange(1, 1 + lengths.sum(), dtype=np.int32), to_offsets(lengths))
    documents = Ragged(lengths.astype(np.int32), np.arange(count + 1)) if plugins.registry("collator").get(name).packed else None
    rows = Rows(np.arange(count), ids, labels=np.arange(count) % 2, seq_lengths=documents, numbers=np.ones(count, np.float32))
    tasks: tuple[Task, ...] = (Pretrain(), Classify(), Regress())
    faults: list[FtcliError] = []
    for task in tasks:
        try:
            refuse_batch(made(plugins, name, BatchSpec(0, "right", MOST, 1, task)), task, rows)
        except FtcliError as error:
            faults.append(error)
        else:
            return ""
    refusal = next((fault for fault in faults if not isinstance(fault, PluginError)), None)
    if refusal is None:
        raise faults[0]
    return f"it refuses made-up rows: {refusal.message}"
