"""Engines under trial, never in this process: one that aborts, or never ends, is refused by name and takes nothing with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from concurrent.futures import wait as wait_for
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from ftcli.contracts import Encoded, Encoder, Engine, Executor
from ftcli.contracts_executor import Arriving, Copying
from ftcli.core.engines.backend import Backend
from ftcli.core.engines.guard import guarded
from ftcli.core.engines.proof import differing_rows
from ftcli.core.prepare.dialogue import load_template_early
from ftcli.core.prepare.job import encode_early, load_early
from ftcli.core.processes.child import Child, ChildDied
from ftcli.errors import EngineError, WorkerDied
from ftcli.pluginmanager import Plugins
from ftcli.settings import Settings

PATIENCE = 120.0
"""Seconds for one batch of a proof; the slowest of the data's tokenizers took 4."""
ARRIVE_SECONDS = 0.1
"""Between two looks whether a worker has come."""


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
        return self._ready.pop() if self._ready else Child(("ftcli.core.engines.engine",), self._threads)

    def __call__(self, engine: Engine, backend: Backend, threads: int, proved: bool = False) -> Encoder:  # noqa: ARG002 - `Load`'s
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
    """Loads engines for their trial: one without a proof apart, one that an earlier run proved in the workers, which need it anyway.

    While the first is on trial apart, the workers load it too: it will probably be the one.
    """

    def __init__(self, apart: Apart, executor: Executor, plugins: Plugins) -> None:
        self._apart, self._executor = apart, executor
        self._where = (plugins.plugins_dir, plugins.allow, plugins.describe())
        self._aside = ThreadPoolExecutor(1)
        self._loading: tuple[str, Future[Any]] | None = None
        self._workers = self._threads = 1

    def start(self, workers: int, threads: int, engine: Engine | None = None) -> None:
        """Start so many workers with so many threads each, unless they are at work already; `engine` is what they will probably load."""
        if self._loading is None:
            self._workers, self._threads = workers, threads
            alone = getattr(engine, "single_threaded", False) and threads == 1 and workers > 1
            if alone and isinstance(self._executor, Copying):
                self._executor.start_copies(workers)
            else:
                self._executor.start(workers)

    def begin(self, name: str, backend: Backend) -> None:
        """Let the workers load an engine while this process goes on."""
        if self._loading is None or self._loading[0] != name:
            self.wait()
            work = partial(load_early, name, backend, self._threads, *self._where)
            self._loading = name, self._aside.submit(self._executor.each, work)

    def begin_template(self, settings: Settings) -> None:
        """Let the workers load the tokenizer with its chat template; what fails, fails again when they get ready."""
        self._aside.submit(self._executor.each, partial(load_template_early, settings, *self._where))

    def __call__(self, engine: Engine, backend: Backend, threads: int, proved: bool = False) -> Encoder:
        """
        Raises:
            EngineError: the engine cannot load the tokenizer, or a process ended over it.
        """
        if proved:
            self.begin(engine.name, backend)
            self.wait(f"{engine.name} {engine.version}")
            return _InWorkers(self, f"{engine.name} {engine.version}")
        if self._loading is None:
            self.begin(engine.name, backend)  # what fails, fails again apart
        return self._apart(engine, backend, threads)

    def each(self, name: str, function: Callable[[], Any]) -> list[Any]:
        """What the workers answer.

        Raises:
            EngineError: one ended over it, or never answered; `name` is the engine's.
            WorkerDied: none came.
        """
        return self._answer(self._aside.submit(self._executor.each, function), name)

    def wait(self, name: str = "") -> None:
        """Until the workers have loaded what `begin` named.

        Raises:
            EngineError, WorkerDied: they could not, or none came, and `name` names an engine; nothing is raised without one.
        """
        try:
            if self._loading is not None:
                self._answer(self._loading[1], name)
        except (EngineError, WorkerDied):
            self._loading = None
            if name:
                raise

    def _answer(self, future: Future[list[Any]], name: str) -> list[Any]:
        hint = "Use --tokenizer-engine auto or another engine."
        arriving = self._executor if isinstance(self._executor, Arriving) else None
        while arriving and not arriving.arrived() and not future.done():  # a busy cluster is no fault of an engine
            wait_for([future], ARRIVE_SECONDS)
        try:
            return future.result(PATIENCE)
        except Late:
            self._executor.close()
            self._executor.start(self._workers)
            raise EngineError(f"{name} did not answer within {PATIENCE:.0f} s", hint) from None
        except WorkerDied as died:
            if arriving and not arriving.arrived():
                raise
            raise EngineError(f"{name}: {died.message}", hint) from None
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"{name} failed in a worker: {type(error).__name__}: {error}", hint) from error

    def stop(self) -> None:
        """End the workers, whatever they do."""
        self._executor.close()
        self.wait()
        self._loading = None

    def close(self) -> None:
        self.wait()
        self._apart.close()
        self._aside.shutdown()


class _InWorkers:
    """The engine as all workers loaded it."""

    def __init__(self, early: Early, name: str) -> None:
        self._early, self._name = early, name

    def encode(self, texts: pa.Array) -> Encoded:
        batch = pa.record_batch([texts], names=["text"])
        found = self._early.each(self._name, partial(encode_early, batch.serialize().to_pybytes(), batch.schema))
        first, *others = cast("list[Encoded]", found)
        if any(len(differing_rows(first, other)) for other in others):
            raise EngineError(f"{self._name} gives different ids in different workers", "Use --tokenizer-engine hf.")
        return first


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
            raise EngineError(f"{self._name} did not answer within {PATIENCE:.0f} s", "Use --tokenizer-engine auto or another engine.")
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
