"""The built-in exporter: the store itself, as another directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ftcli import hookimpl
from ftcli.contracts import Exporter
from ftcli.core.durable import sync, writing
from ftcli.errors import PublishError
from ftcli.hookspecs import Register
from ftcli.records import MANIFEST_NAME

if TYPE_CHECKING:
    from ftcli.core.store import Store


class Arrow:
    """A second directory of the same bytes: hard links where the file system allows them (published files are never written to), else copies."""

    name = "arrow"

    def export(self, store: Store, output: Path) -> Iterable[Path]:
        """See `ftcli.contracts.Exporter`. The directory appears by one rename when everything is in it.

        Raises:
            PublishError: `output` is in the way, or the file system refuses.
        """
        if os.path.lexists(output) and not (output.is_dir() and not any(output.iterdir())):
            raise PublishError(f"{output} exists and is not an empty directory", "Choose another output directory.")
        names = [*(str(entry["path"]) for entry in store.manifest["files"]), MANIFEST_NAME]  # the manifest last: present means complete
        attempt = output.with_name(f".{output.name}.export-{os.getpid()}")
        try:
            with writing(output):
                for name in names:
                    _link_or_copy(store.path / name, attempt / name)
                attempt.rename(output)
                sync(output.parent)
        finally:
            shutil.rmtree(attempt, ignore_errors=True)
        return [output / name for name in names]


def _link_or_copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
        sync(target)


@hookimpl
def register_exporters(register: Register[type[Exporter]]) -> None:
    register("arrow", Arrow)
