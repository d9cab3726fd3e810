"""A Python process that calls what it is sent, and whose death is noticed and named."""

from __future__ import annotations

import gc
import importlib
import io
import os
import pickle
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Protocol

from ftcli.core import alarm, deferred, progress
from ftcli.core.processes import garbage
from ftcli.core.processes.shard_handover import Finishing
from ftcli.core.processes.variables import of_child
from ftcli.errors import FtcliError

STOP_SECONDS = 5.0
"""A process that does not end by itself within this time after SIGTERM is killed."""
JEMALLOC = "jemalloc_bg_thd"
"""The thread of an allocator that pyarrow may have: it has handlers for forks of its own."""
_CODE = "import sys; sys.path[:] = {path!r}; from ftcli.core.processes.child import serve; serve({descriptor}, {preload!r})"


class ChildDied(Exception):  # noqa: N818 - its owner turns it into words for people
    """The process ended before it answered; `signal` is None where it was not killed."""

    def __init__(self, how: str, signal_: signal.Signals | None) -> None:
        super().__init__(how)
        self.how, self.signal = how, signal_


class Process(Protocol):
    """What a `Child` asks of its process, in the words of `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def wait(self, timeout: float | None = None) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Child:
    """One process, fresh: it imports nothing of the caller's script and shares neither locks nor threads with it.

    Not a fork of this process, which copies the locks of thread pools in whatever state they are, and not `multiprocessing`'s spawn, which
    imports the caller's main module again. The pipe is the only tie: when this process ends, however it ends, the child ends at its next
    message.

    Args:
        preload: modules to import while nobody waits yet.
        threads: threads its libraries compute with, or fewer where a variable says so already; None leaves the variables alone.
        tie: the pipe to, and the process of, a child that there is already.
    """

    def __init__(self, preload: Sequence[str] = (), threads: int | None = None, tie: tuple[Connection, Process] | None = None) -> None:
        self._sent: Callable[..., Any] | bytes | None = None
        self._kept: list[object] = []
        """What was sent once and is kept there, by its place."""
        if tie is not None:
            self.pipe, self.process = tie
            return
        self.pipe, theirs = Pipe()
        code = _CODE.format(path=sys.path, descriptor=theirs.fileno(), preload=tuple(preload))
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints must not end in a report on stdout
                env={**os.environ, **of_child(threads)},
            )

    def adopt(self, threads: int | None = None) -> None:
        """Give a child that was started before they were settled the variables that one started now would get."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(("variables", {**os.environ, **of_child(threads)}))

    def copy(self) -> Child | None:
        """A copy of the process as it is now, with all that it has loaded; None where there can be none: it has threads, or the system refuses.

        A fork keeps one thread of all. So what is copied has only one: nothing it waits for can be lost. The copy is a child of the
        process that it is a copy of, which tells how it ended.

        Raises:
            ChildDied: the process ended.
        """
        from multiprocessing.reduction import send_handle

        from ftcli.core.processes.copied import Copied, possible

        if not possible():
            return None
        pipe, theirs = Pipe()
        with theirs:
            with suppress(BrokenPipeError, ConnectionResetError):  # it died: the answer tells
                self.pipe.send(("copy", None))
                send_handle(self.pipe, theirs.fileno(), self.pid)
            pid = self.answer()
        if pid is None:
            return None
        copy = Child(tie=(pipe, Copied(pid, self)))
        copy._kept, copy._sent = self._kept[:], self._sent
        return copy

    def exit_code(self, pid: int) -> int | None:
        """Of a copy that has ended; None where this process has ended as well, so that nobody knows."""
        try:
            self.pipe.send(("ended", pid))
            code: int | None = self.answer()
        except (ChildDied, OSError):
            return None
        return code

    @property
    def pid(self) -> int:
        return self.process.pid

    def call(self, function: Callable[..., Any] | bytes, *arguments: Any, ahead: bool = False) -> None:
        """Ask for `function(*arguments)`; `receive` has the answer. The function travels once, however often it is called in a row, and what
        it holds of a class with `sent_once` travels once in all.

        Args:
            function: bytes are one that was pickled elsewhere, so that this process need not import what it stands on.
            ahead: another call may be made as soon as `receive` says "free", before this one is answered (`ftcli.core.deferred`).
        """
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: `receive` tells
            if function is not self._sent:
                self.pipe.send(("function", function if isinstance(function, bytes) else self._packed(function)))
                self._sent = function
            self.pipe.send(("ahead" if ahead else "call", arguments))

    def begin(self, function: Callable[[], Any]) -> None:
        """Have it do what it will probably be asked for. There is no answer: what fails, fails again when it is asked for."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(("begin", self._packed(function)))

    def _packed(self, function: Callable[..., Any]) -> bytes:
        """The function pickled; what is to be kept there goes before it."""
        pickler = _Pickler(file := io.BytesIO(), self._kept)
        pickler.dump(function)
        for place in pickler.fresh:
            self.pipe.send(("keep", (place, pickle.dumps(self._kept[place]))))
        return file.getvalue()

    def receive(self) -> tuple[str, Any]:
        """("progress", (bytes, rows, tokens, file)), ("free", None) or ("done", result).

        Raises:
            ChildDied: it ended.
            BaseException: what the function raised; what cannot travel comes as a RuntimeError in its words.
        """
        try:
            kind, payload = self.pipe.recv()
        except (EOFError, OSError):  # OSError: also within a message
            raise self._death() from None
        if kind == "failed":
            raise payload
        return kind, payload

    def ask(self, function: Callable[..., Any] | bytes, *arguments: Any) -> Any:
        """`function(*arguments)`, computed there. Raises as `receive`."""
        self.call(function, *arguments)
        return self.answer()

    def answer(self) -> Any:
        """The result of the last call, whatever is told before it. Raises as `receive`."""
        while (told := self.receive())[0] != "done":
            pass
        return told[1]

    def _death(self) -> ChildDied:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        code = self.process.returncode
        if code is not None and code < 0:
            with suppress(ValueError):
                killer = signal.Signals(-code)
                return ChildDied(f"by {killer.name}{', which ends what hangs,' if killer is signal.SIGALRM else ''}", killer)
        if code is None:  # nobody but the system, or a person, ends an idle process
            return ChildDied("with the process that it was a copy of", signal.SIGKILL)
        return ChildDied(f"with exit code {code}", None)

    def stop(self) -> None:
        """Ask it to end; `join` waits."""
        self.process.terminate()

    def join(self) -> None:
        """Wait until it has ended; it is killed after STOP_SECONDS."""
        self.pipe.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Pickler(pickle.Pickler):
    """Names by its place what is kept at the other end: a tokenizer is 5 MB, and a worker is told of it four times before its first row.

    Args:
        kept: what is there; what is not there yet is added, and named by `fresh`.
    """

    def __init__(self, file: io.BytesIO, kept: list[object]) -> None:
        super().__init__(file)
        self._kept = kept
        self.fresh: list[int] = []

    def reducer_override(self, thing: object) -> Any:
        if not getattr(type(thing), "sent_once", False):
            return NotImplemented
        place = next((place for place, one in enumerate(self._kept) if one is thing), len(self._kept))
        if place == len(self._kept):
            self._kept.append(thing)
            self.fresh.append(place)
        return kept, (place,)


# -- in the child ------------------------------------------------------------------------------------------------------

_kept: dict[int, Any] = {}


def kept(place: int) -> Any:
    """What was sent to this process to be kept."""
    if isinstance(_kept[place], bytes):
        _kept[place] = pickle.loads(_kept[place])  # noqa: S301 - from our parent
    return _kept[place]


def serve(descriptor: int, preload: Sequence[str]) -> None:
    """Answer calls until the pipe closes."""
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C and a closed terminal reach the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    alarm.arm()
    garbage.later()
    pipe = Connection(descriptor)
    back = Finishing(pipe, portable)
    for name in preload:
        with suppress(ImportError):  # whoever needs it says so better
            importlib.import_module(name)
    garbage.imported()
    function: Callable[..., Any] | None = None
    pickled = b""
    with suppress(EOFError, ConnectionError):  # the parent is gone or no longer wants this
        while True:
            try:
                kind, payload = pipe.recv()
            except OSError:  # the parent is gone amid a message
                return
            if kind == "function":
                function, pickled = None, payload
                continue
            if kind == "keep":
                _kept.update([payload])
                continue
            if kind == "variables":
                _adopt(payload)
                continue
            if kind == "begin":
                with suppress(BaseException):  # a panic in a Rust engine is one
                    pickle.loads(payload)()  # noqa: S301 - from our parent
                continue
            if kind == "copy":
                pipe = _copied(pipe)
                back = Finishing(pipe, portable)
                continue
            if kind == "ended":
                pipe.send(("done", os.waitstatus_to_exitcode(os.waitpid(payload, 0)[1])))
                continue
            try:
                function = function or pickle.loads(pickled)  # noqa: S301 - from our parent; here and not earlier, so that a failure has a way back
                assert function is not None
                with progress.to(back.tell), deferred.allowed() if kind == "ahead" else nullcontext():
                    answer = ("done", function(*payload))
            except ConnectionError:
                raise
            except BaseException as error:  # noqa: BLE001 - a panic in a Rust engine is a BaseException; the parent raises it
                answer = ("failed", portable(error))
            back.answer(answer)


def _adopt(variables: Mapping[str, str]) -> None:
    from ftcli.environment import tell_malloc

    added = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    os.environ.update(added)
    tell_malloc(added)


def _copied(pipe: Connection) -> Connection:
    """Fork, if this process has one thread only; the pipe by which whoever returns from here is talked to."""
    from multiprocessing.reduction import recv_handle

    descriptor = recv_handle(pipe)
    pid = None
    try:
        if not other_threads():
            gc.freeze()  # else the copy's first look for garbage writes to every page
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # Python 3.12 counts jemalloc's thread
                pid = os.fork()
            if not pid:
                pipe.close()
                return Connection(descriptor)
        os.close(descriptor)
    except OSError:  # no memory, too many processes: whoever asked does without
        os.close(descriptor)
    pipe.send(("done", pid))
    return pipe


def other_threads() -> bool:
    """Whether there is a thread beside this one, but for jemalloc's, which starts it anew after a fork."""
    tasks = Path("/proc/self/task")
    names = [Path(task, "comm").read_text().strip() for task in tasks.iterdir()]
    return len(names) - names.count(JEMALLOC) > 1


def portable(error: BaseException) -> BaseException:
    """The error itself where it survives pickling, else its words; with this process's traceback, unless it is for people."""
    if isinstance(error, FtcliError):
        return error
    text = "".join(traceback.format_exception(error))
    try:
        same = isinstance(error, Exception) and type(pickle.loads(pickle.dumps(error))) is type(error)  # noqa: S301 - just dumped
    except Exception:  # noqa: BLE001 - an exception may refuse in any way
        same = False
    known = error if same else RuntimeError(repr(error))
    known.add_note(text)
    return known
