"""Engines under trial, in a process of their own: one that aborts, or never ends, is refused by name and takes nothing with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self, cast

import pyarrow as pa

from ftcli.contracts import Encoded, Encoder, Engine, Executor
from ftcli.core.backend import Backend
from ftcli.core.child import Child, ChildDied
from ftcli.core.guard import guarded
from ftcli.core.job import load_early
from ftcli.errors import EngineError
from ftcli.pluginmanager import Plugins

PATIENCE = 120.0
"""Seconds for one batch of a proof; the slowest of the data's tokenizers took 4."""


class Apart:
    """Loads engines apart; callable as `choose_engine` wants it. `close` ends every process it started.

    Args:
        threads: of each process.
    """

    def __init__(self, plugins: Plugins, threads: int) -> None:
        self._plugins = plugins
        self._threads = threads
        self._ready: list[Child] = []
        self._encoders: list[_ApartEncoder] = []

    def start(self) -> None:
        """Start the process of the first engine, which imports what it needs while nobody waits for it."""
        self._ready.append(self.child())

    def child(self) -> Child:
        return self._ready.pop() if self._ready else Child(("ftcli.core.engine",), self._threads)

    def __call__(self, engine: Engine, backend: Backend, threads: int) -> Encoder:
        """
        Raises:
            EngineError: the engine cannot load the tokenizer, or its process ended over it.
        """
        encoder = _ApartEncoder(engine, backend, threads, self._plugins, self.child)
        self._encoders.append(encoder)
        encoder.load()
        return encoder

    def close(self) -> None:
        while self._encoders:
            self._encoders.pop().close()
        while self._ready:
            _kill(self._ready.pop())


class Early:
    """Loads engines apart, for their trial, and the first of them in every worker at the same time: it will probably be the one.

    Args:
        threads: of each worker.
    """

    def __init__(self, apart: Apart, executor: Executor, threads: int, plugins: Plugins) -> None:
        self._apart, self._executor = apart, executor
        self._where = (threads, plugins.plugins_dir, plugins.allow, plugins.describe())
        self._aside = ThreadPoolExecutor(1)
        self._begun = False

    def __call__(self, engine: Engine, backend: Backend, threads: int) -> Encoder:
        if not self._begun:
            self._begun = True
            self._aside.submit(
                self._executor.each, partial(load_early, engine.name, backend, *self._where)
            )  # what fails, fails again later
        return self._apart(engine, backend, threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._apart.close()
        self._aside.shutdown()


class _ApartEncoder:
    def __init__(self, engine: Engine, backend: Backend, threads: int, plugins: Plugins, new: Callable[[], Child]) -> None:
        self._name = f"{engine.name} {engine.version}"
        self._what = (plugins.plugins_dir, plugins.allow, engine.name, backend, threads)
        self._new = new
        self._child: Child | None = None

    def load(self) -> Child:
        self._child = self._new()
        self._ask(self._child, _load, *self._what)
        return self._child

    def encode(self, texts: pa.Array) -> Encoded:
        batch = pa.record_batch([texts], names=["text"])
        return cast("Encoded", self._ask(self._child or self.load(), _encode, batch.serialize().to_pybytes(), batch.schema))

    def _ask(self, child: Child, function: object, *arguments: object) -> object:
        child.call(function, *arguments)  # type: ignore[arg-type]
        if not child.pipe.poll(PATIENCE):
            self.close()
            raise EngineError(f"{self._name} gave no answer within {PATIENCE:.0f} s", "Use --tokenizer-engine auto or another engine.")
        try:
            return child.receive()[1]
        except ChildDied as died:
            self.close()
            raise EngineError(f"{self._name} ended its process {died.how}", "Use --tokenizer-engine auto or another engine.") from None

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            _kill(child)


def _kill(child: Child) -> None:
    with suppress(ProcessLookupError):
        child.process.kill()
    child.join()


# -- in the child ------------------------------------------------------------------------------------------------------

_encoders: list[Encoder] = []


def _load(plugins_dir: Path | None, allow: Sequence[str] | None, name: str, backend: Backend, threads: int) -> None:
    engine: Engine = Plugins(plugins_dir, allow).registry("engine").get(name, "tokenizer.engine")()
    with guarded(f"{engine.name} {engine.version} cannot load this tokenizer"):
        _encoders[:] = [engine.load(backend.json, Path(backend.folder), threads)]


def _encode(data: bytes, schema: pa.Schema) -> Encoded:
    texts = pa.ipc.read_record_batch(pa.py_buffer(data), schema).column("text")
    return _encoders[0].encode(texts)
