"""The built-in exporters: the store itself as another directory, and the formats of other trainers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ftcli import hookimpl
from ftcli.contracts_export import Exporter, ExportJob
from ftcli.hookspecs import Register

from .export_jsonl import Jsonl
from .export_mds import Mds
from .export_megatron import Megatron
from .export_nanotron import Nanotron

if TYPE_CHECKING:
    from ftcli.core.storage.store import Store


class Arrow:
    """A second directory of the same bytes: hard links where the file system allows them (published files are never written to), else copies."""

    name = "arrow"
    is_store = True

    def export(self, store: Store, output: Path, job: ExportJob) -> Iterable[Path]:
        """See `ftcli.contracts_export.Exporter`."""
        for entry in store.manifest["files"]:
            target = output / entry["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(store.path / entry["path"], target)
            yield target
        job.advance(sum(len(store.split(name)) for name in job.splits))


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


@hookimpl
def register_exporters(register: Register[type[Exporter]]) -> None:
    register("arrow", Arrow)
    register("jsonl", Jsonl)
    register("mds", Mds)
    register("megatron", Megatron)
    register("nanotron", Nanotron)
