"""The process in which a pickle is loaded: limited before the first byte is read, it sends the wanted columns back as Arrow record batches.

`ftcli.plugins.picklefile` starts it with a pipe and an `Order`. Without trust no global is resolved, so that a pickle holds plain data or is
refused; the limits are for what plain data can do: 237 bytes stand for 2²⁹ leaves, one opcode asks for 2⁶² bytes.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import pickle
import pickletools
import resource
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ftcli.errors import DataError

if TYPE_CHECKING:
    from ftcli.core.reading.columns import Kind, Role

ALIVE, BAD, BATCH, KIND, FAILED, END = b"a", b"b", b"r", b"k", b"f", b"e"
"""Messages to the parent: one of these, then the payload."""
CPU_SECONDS, BYTES_PER_CPU_SECOND = 10, 5_000_000
"""CPU time allowed in all: the first, and a second for so many bytes read or sent. Measured: 0.3 s, then 60 MB/s for
rows of 36 bytes; a slow machine with busy neighbours takes ten times as long."""
SWELLING, SWELLING_FROM = 1_000, 1 << 30
"""Text may be so many times the pickle's bytes once it is more than 1 GiB: a text named again takes 2 bytes."""
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
REMEDY = "Create it again, preferably as parquet: DataFrame.to_parquet."


@dataclass(frozen=True, slots=True)
class Order:
    """What the child is to do; travels as JSON."""

    path: str
    wanted: list[tuple[Role, str, Kind]]
    """As `ftcli.core.reading.columns.wanted` gives them."""
    trusted: bool
    memory_bytes: int
    """Address space for what is loaded, beside the interpreter's; not limited when trusted."""
    most_bytes: int
    """The longest text."""
    kind_only: bool = False
    """Only the kind of the one wanted column is asked for."""
    special: Kind | None = None
    """A kind of label that only this run reads."""
    strict: bool = True
    """Not to find the kind is an error."""
    cpu_seconds: int = CPU_SECONDS


class _Plain(pickle.Unpickler):
    """Resolves nothing: what it builds are None, numbers, strings, bytes, tuples, lists, dicts and sets."""

    def __init__(self, file: Any, path: str) -> None:
        super().__init__(file)
        self.path = path

    def find_class(self, module: str, name: str) -> NoReturn:
        raise refusal(self.path, module, name)

    def persistent_load(self, _: object) -> NoReturn:
        raise DataError(f"{self.path}: refers to objects outside the pickle (a persistent id)", REMEDY)


def refusal(path: str, module: str, name: str) -> DataError:
    """The error for a pickle that names code."""
    frame = (
        "It holds a DataFrame"
        if name == "DataFrame" or module.partition(".")[0] in {"pandas", "polars"}
        else "It holds more than plain data"
    )
    return DataError(
        f"{path}: refers to {module}.{name}, so loading it runs code"[:400],
        f"{frame}. If you created the file: --trust-pickle. Better: convert it once with DataFrame.to_parquet.",
    )


def first_global(head: bytes) -> tuple[str, str] | None:
    """(module, name) of the first global that the opcodes in `head` name, without loading anything; None where they do not say."""
    names: list[str] = []
    with suppress(Exception):  # the head ends inside an opcode, or is no pickle: loading will say
        for opcode, argument, _ in pickletools.genops(head):
            if opcode.name in {"GLOBAL", "INST"}:
                module, _, name = str(argument).partition(" ")
                return module, name
            if opcode.name == "STACK_GLOBAL":
                return (names[-2], names[-1]) if len(names) > 1 else None
            if isinstance(argument, str):
                names.append(argument)
            elif opcode.name != "MEMOIZE":
                names.clear()
    return None


class _Source(io.RawIOBase):
    """The pickle's decompressed bytes; every read tells the parent that there is progress and allows more CPU time."""

    def __init__(self, file: Any, child: _Child) -> None:
        self._file, self._child = file, child

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), 1 << 24))
        buffer[: len(data)] = data
        self._child.advance(len(data))
        return len(data)


class _Child:
    """The work on one order."""

    def __init__(self, order: Order, pipe: Connection) -> None:
        self.order, self.pipe = order, pipe
        self.read_bytes = self.sent_bytes = 0
        self._told = time.monotonic()

    def run(self) -> None:
        order = self.order
        file = open(order.path, "rb", buffering=0)  # noqa: PTH123, SIM115 - before the limits; it ends with the process
        _leave_network()
        _limit(order)
        try:
            self._answer(file)
        except MemoryError:
            gc.collect()
            self.fail(f"{order.path}: needs more than {order.memory_bytes >> 20:,} MiB of memory to load", REMEDY)
        except DataError as error:
            self.fail(error.message, error.hint)

    def fail(self, message: str, hint: str) -> None:
        self.send(FAILED, json.dumps([message, hint]).encode())

    def send(self, kind: bytes, payload: Any = b"") -> None:
        self.pipe.send_bytes(kind)
        self.pipe.send_bytes(payload)
        self._told = time.monotonic()

    def advance(self, read: int = 0, sent: int = 0) -> None:
        self.read_bytes += read
        self.sent_bytes += sent
        if not self.order.trusted:
            _allow_cpu(self.order.cpu_seconds + (self.read_bytes + self.sent_bytes) // BYTES_PER_CPU_SECOND)
            if self.sent_bytes > max(SWELLING_FROM, SWELLING * self.read_bytes):
                raise DataError(
                    f"{self.order.path}: {self.read_bytes:,} bytes of pickle expand to more than {self.sent_bytes:,} bytes of text", REMEDY
                )
        if time.monotonic() - self._told > 1:
            self.send(ALIVE)

    def _answer(self, file: io.FileIO) -> None:
        from ftcli.core.reading.tabular import Table

        order = self.order
        gc.disable()  # 1 M dicts: 0.9 instead of 2.4 s
        table = Table(order.path, self._load(file), order.wanted, order.most_bytes)
        if order.kind_only:
            kind = table.kind(strict=order.strict, special=order.special)
            self.send(KIND if kind else END, (kind or "").encode())
            return
        for batch, bad in table.batches():
            if bad:
                self.send(BAD, json.dumps(bad).encode())
            if batch.num_rows:
                self.advance(sent=batch.nbytes)
                self.send(BATCH, batch.serialize())
        self.send(END)

    def _load(self, file: io.FileIO) -> Any:
        import pyarrow as pa

        from ftcli.core.files.compressed import decompressed
        from ftcli.core.files.streams import codec_of, data_errors

        path, codec = self.order.path, codec_of(self.order.path)
        stream = io.BufferedReader(_Source(file if codec is None else decompressed(pa.PythonFile(file), codec), self), 1 << 20)
        with data_errors(path):
            try:
                loaded = pickle.load(stream) if self.order.trusted else _Plain(stream, path).load()  # noqa: S301 - the user said so
            except (OSError, MemoryError, DataError):
                raise
            except Exception as error:  # a pickle may raise anything
                reason = f"{type(error).__name__}: {error}"[:200]
                raise DataError(f"{path}: cannot be unpickled: {reason}", REMEDY) from error
            if stream.read(1):
                raise DataError(f"{path}: data follow the end of the pickle", "Write one pickle per file: one list of all rows.")
        return loaded


def _leave_network() -> None:
    """A network namespace of its own, in which nothing can be reached, where the system lets a process have one."""
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    if unshare is not None and unshare(CLONE_NEWNET):
        unshare(CLONE_NEWUSER | CLONE_NEWNET)


def _limit(order: Order) -> None:
    """Before anything is loaded. A trusted pickle may compute, connect and write: only it is the first that the system kills for memory."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if order.trusted:
        return
    import pyarrow as pa  # noqa: F401 - its address space is not the pickle's

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with suppress(OSError):  # systems without /proc
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + order.memory_bytes,) * 2)
    _allow_cpu(order.cpu_seconds)


def _allow_cpu(seconds: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard == resource.RLIM_INFINITY else min(seconds, hard), hard))


def main(pipe: int, document: str) -> None:
    """The child's program."""
    os.set_inheritable(pipe, False)
    os.dup2(2, 1)  # what a trusted pickle prints is no report
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C and a closed terminal reach the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    with suppress(BrokenPipeError):  # nobody reads any more
        _Child(Order(**json.loads(document)), Connection(pipe, readable=False)).run()
    sys.stdout.flush()
    os._exit(0)  # 10⁷ objects take seconds to free
