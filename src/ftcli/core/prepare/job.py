"""What every worker of a run needs to know, and what it loads once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from ftcli.contracts import Columns, Encoded, Encoder
from ftcli.core.engines.backend import Backend
from ftcli.core.engines.engine import load_encoder, loaded
from ftcli.core.engines.row_encoder import EncoderSpec, RowEncoder
from ftcli.core.files.stamps import Hashed
from ftcli.core.prepare.policy import LengthPolicy
from ftcli.errors import PluginError
from ftcli.pluginmanager import Plugins
from ftcli.records import PluginInfo, Split
from ftcli.registry import AnyRegistry
from ftcli.settings import Settings

_early: list[Encoder] = []

Expected = tuple[PluginInfo, ...]
"""The plugins that the run was planned with."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything a worker needs to know; picklable, the same for every shard."""

    directory: Path
    settings: Settings
    columns: Columns
    encoder: EncoderSpec
    policy: LengthPolicy
    packing: str
    label_ids: Mapping[str | int, int] | None
    chat: bool
    """Texts are conversations, and ids carry marks of what is learned."""
    day: str | None
    """What the chat template writes where it asks for today's date; None where it does not."""
    files: Mapping[tuple[int, Split], str]
    """(shard, split) → file name inside the output; a shard whose rows may go to several splits has several."""
    hashes: Mapping[str, Hashed]
    """Path → content hash and stamp of every source when it was planned."""
    fractions: tuple[float, float]
    """Shares of train rows that go to validation and to test."""
    batch_size: int
    buffer_rows: int
    plugins_dir: Path | None
    allow: tuple[str, ...] | None
    loaded: Expected

    @property
    def classes(self) -> int:
        """Labels there are; 0 where rows have none."""
        return max(self.label_ids.values()) + 1 if self.label_ids else 0


def load_early(
    name: str, backend: Backend, threads: int, plugins_dir: Path | None, allow: tuple[str, ...] | None, expected: Expected
) -> None:
    """Load an engine that will probably be chosen, in every worker at once, while the command still finds out whether it is."""
    _early[:] = [loaded(name, backend, threads, plugins_at(plugins_dir, allow, expected))]


def encode_early(data: bytes, schema: pa.Schema) -> Encoded:
    """The ids that the engine loaded last gives for a record batch's texts."""
    return _early[0].encode(pa.ipc.read_record_batch(pa.py_buffer(data), schema).column("text"))


def load_here(job: Job) -> tuple[RowEncoder, AnyRegistry]:
    """This process's encoder and source formats, loaded (0.3 to 1.2 s) and kept."""
    plugins = plugins_of(job)
    return load_encoder(job.encoder, plugins), plugins.registry("source")


def plugins_of(job: Job) -> Plugins:
    """The plugins of this process, loaded once.

    Raises:
        PluginError: they are not those that the run was planned with.
    """
    return plugins_at(job.plugins_dir, job.allow, job.loaded)


@lru_cache(maxsize=1)
def plugins_at(plugins_dir: Path | None, allow: tuple[str, ...] | None, expected: Expected) -> Plugins:
    """As `plugins_of`, for a process that has no job yet."""
    plugins = Plugins(plugins_dir, allow)
    changed = sorted({info.name for info in set(plugins.describe()) ^ set(expected)})
    if changed:
        raise PluginError(
            f"the plugin {changed[0]!r} has changed since the run was planned",
            "Do not change plugins during a run; run it again.",
        )
    return plugins
