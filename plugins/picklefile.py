"""Pickled tables. Plain data (lists, dicts, strings) are read without resolving a name; whatever names code is read on request only."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from ftcli.contracts import Columns, Place, Reject
from ftcli.errors import DataError
from ftcli.machine import free_memory
from ftcli.records import BadRow, Piece
from ftcli.settings import Settings

from .fileformat import FileFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from ftcli.core.reading.columns import Kind
    from ftcli.core.reading.unpickle import Order

HEAD = 1 << 16
"""Bytes that are looked at while planning; a DataFrame names itself in the first 100."""
SILENT_SECONDS = 300.0
"""A child that says nothing for so long hangs; it speaks every second as it reads. The CPU time of `unpickle` ends before that, also on
a machine with twenty others at work."""
FRAME_SLACK = 64 << 20
PROGRAM = "import sys; sys.path[:] = sys.argv[3:]; from ftcli.core.reading.unpickle import main; main(int(sys.argv[1]), sys.argv[2])"


class Pickle(FileFormat):
    """.pkl and .pickle, plain or compressed: one piece, held in the memory of a process of its own (see `ftcli.core.reading.unpickle`).

    A list of dicts, of strings or of lists (columns by number), or a dict of lists; with `dataset.trust_pickle` a DataFrame as well.
    """

    name = "pickle"
    suffixes: tuple[str, ...] = (".pkl", ".pickle")

    def plan(self, path: str, target_bytes: int, settings: Settings) -> list[Piece]:
        from ftcli.core.files.streams import data_errors, open_stream
        from ftcli.core.reading.unpickle import first_global, refusal

        size = Path(path).stat().st_size
        if not settings.dataset.trust_pickle:
            with data_errors(path), open_stream(path) as stream:
                named = first_global(stream.read(HEAD))
            if named is not None:
                raise refusal(path, *named)
        return [Piece(path, self.name, 0, size, "file", size)] if size else []

    def label_kind(self, path: str, column: str, settings: Settings) -> Kind | None:
        from ftcli.core.reading.columns import WORDS
        from ftcli.core.reading.unpickle import KIND

        order = _order(path, Columns(column, column, labels_only=True), settings, kind_only=True)
        with _child(order) as answers:
            for answer, kind in answers:
                assert answer == KIND
                return next((known for known in WORDS if known.encode() == kind), "string")
        return None

    def read(self, piece: Piece, columns: Columns, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from ftcli.core.reading.columns import target_type, wanted
        from ftcli.core.reading.unpickle import BAD

        schema = pa.schema([(role, target_type(kind)) for role, _, kind in wanted(columns)])
        with _child(_order(piece.path, columns, settings)) as answers:
            for answer, payload in answers:
                if answer == BAD:
                    for row, code, reason, name, hint in json.loads(payload):
                        reject(BadRow(piece.path, code, reason, row=row, field=name, hint=hint))
                else:
                    batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
                    batch.validate(full=True)  # what another process says is not taken on trust
                    yield batch

    def places(self, piece: Piece, settings: Settings) -> Iterator[Place]:
        return (Place(row=row) for row in count(1))


def _order(path: str, columns: Columns, settings: Settings, *, kind_only: bool = False) -> Order:
    """Memory for a pickle: as much as is free (a fifth stays), or 1 GiB and 64 times its bytes. A dict of two short strings takes 400 bytes
    for 20 to 40 in the file."""
    from ftcli.core.files.streams import codec_of
    from ftcli.core.reading.columns import special_kind, wanted
    from ftcli.core.reading.unpickle import Order

    size = Path(path).stat().st_size * (8 if codec_of(path) else 1)
    return Order(
        path=path,
        wanted=wanted(columns),
        trusted=settings.dataset.trust_pickle,
        memory_bytes=min(free_memory() * 4 // 5, (1 << 30) + 64 * size),
        most_bytes=settings.dataset.max_line_bytes,
        kind_only=kind_only,
        special=special_kind(settings),
        strict=settings.dataset.on_bad == "strict",
    )


@contextmanager
def _child(order: Order) -> Iterator[Iterator[tuple[bytes, bytes]]]:
    """The answers of a process that loads `order`'s file. It ends with the block.

    Raises:
        DataError: what the child found wrong with the file, or that it died or hangs.
    """
    ours, theirs = Pipe(duplex=False)
    arguments = [str(theirs.fileno()), json.dumps(asdict(order)), *sys.path]
    outputs = None if order.trusted else subprocess.DEVNULL
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=outputs,
                stderr=outputs,
            )
        try:
            yield _answers(order, process, ours)
        finally:
            process.kill()
            process.wait()


def _answers(order: Order, process: subprocess.Popen[bytes], pipe: Connection) -> Iterator[tuple[bytes, bytes]]:
    from ftcli.core.reading.unpickle import ALIVE, END, FAILED

    try:
        while True:
            if not pipe.poll(SILENT_SECONDS):
                raise DataError(
                    f"{order.path}: no progress in loading it for {SILENT_SECONDS:.0f} s",
                    "Check that the file is intact and its disk responds.",
                )
            answer, payload = pipe.recv_bytes(1), pipe.recv_bytes(order.most_bytes + FRAME_SLACK)
            if answer == END:
                return
            if answer == FAILED:
                raise DataError(*json.loads(payload))
            if answer != ALIVE:
                yield answer, payload
    except (EOFError, OSError):
        raise _died(order, process) from None


def _died(order: Order, process: subprocess.Popen[bytes]) -> DataError:
    """The child is gone, or what it says is no answer."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(SILENT_SECONDS)  # its pipe is closed; a machine that swaps takes seconds to free gigabytes
    from ftcli.core.reading.unpickle import REMEDY

    code = process.returncode
    if code == -signal.SIGXCPU:
        return DataError(f"{order.path}: loading it takes longer than data of its size should need", REMEDY)
    how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
    memory = (
        " The operating system kills a process when memory runs out: free memory, or convert the file to parquet."
        if code == -signal.SIGKILL
        else ""
    )
    return DataError(f"{order.path}: the process that loads it ended {how}", REMEDY + memory)
