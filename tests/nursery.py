"""Processes of ftcli forked from one that has imported everything: 0.2 s of CPU in place of 2 to 4, for a small training 1 in place of 15.

The fixture `nursery` gives a test such processes wherever it, or a command that it runs, starts a module of `MODULES`, a `Child` or the reader of a pickle,
also by `ip netns exec`; every other process starts as ever. What is born has a pid, a parent, a group, an environment, streams and a command
line of its own, as if it had been started: it can be killed, stopped and traced. What such a process cannot show is how a fresh one begins:
which modules it imports, and when, and that nothing depends on the seed of its hashes, which all that are born share.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import io
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

TITLE = 16_000
"""Bytes that a process keeps for the command line of what is born from it."""
DECISIVE = ("PYTHON", "LD_", "LC_", "LANG")
"""Beginnings of variables that a process reads when it begins: where they are not those of the nursery, a process of its own is started."""
LIBRARIES = (
    "torch",
    "transformers",
    "transformers.trainer",
    "datasets",
    "pyarrow.dataset",
    "pandas",
    "matplotlib.figure",
    "ftcli.testing",
    "accelerate",
)
CLONE_PARENT, CLONE_NEWNET = 0x8000, 0x40000000
IN_NETWORK = ("ip", "netns", "exec")
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
MODULES = (
    *("ftcli", "ftcli.core.processes.dies_with_parent", "torch.distributed.run"),
    *("benchmarks.incident2", "benchmarks.naive", "benchmarks.alone", "naive_driver", "rank_steps", "the_code", "the_fence"),
)
ROOT = Path(__file__).resolve().parents[1]
"""Of the source tree: may stand in PYTHONPATH before what the nursery has there."""
OPTIONS = ("-P", "-u")
CHILD = "import sys; sys.path[:] = "
FRESH = os.environ.get("FTCLI_TEST_NURSERY") == "off"
"""Processes start as they do for a user: where what an installation adds is tried. Read here, because the tests hide FTCLI_* variables."""
SERVES = ("from ftcli.core.processes.child import serve", "from ftcli.core.reading.unpickle import main")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
HIGH = 400
"""The first of the file descriptors that nobody asks for."""


def takes(arguments: Any, env: Mapping[str, str] | None, own: Mapping[str, str]) -> bool:
    """Whether this command line can be born."""
    if not isinstance(arguments, list | tuple):
        return False
    _, command = inside([str(word) for word in arguments])
    if command[:1] != [sys.executable]:
        return False
    options, words = program(command)
    child = options == {"-P"} and words[:1] == ["-c"] and words[1].startswith(CHILD) and any(each in words[1] for each in SERVES)
    if not child and not (words[:1] == ["-m"] and words[1] in MODULES):
        return False
    environ = os.environ if env is None else env
    alike = {**own, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), own.get("PYTHONPATH"))))}
    names = {name for name in (*environ, *own) if name.startswith(DECISIVE)} - {"PYTHONDONTWRITEBYTECODE"}
    return all(environ.get(name) in (own.get(name), alike.get(name)) for name in names)


def inside(words: Sequence[str]) -> tuple[str, list[str]]:
    """The network namespace that a command is to run in ("": this one), and the command."""
    return (words[3], list(words[4:])) if tuple(words[:3]) == IN_NETWORK else ("", list(words))


def program(words: Sequence[str]) -> tuple[set[str], list[str]]:
    """Python's options in a command line, and what follows them."""
    end = next((place for place, word in enumerate(words) if place and word not in OPTIONS), len(words))
    return set(words[1:end]), list(words[end:])


class Nursery:
    """The other end of a process with `serve`."""

    def __init__(self, pipe: socket.socket, environ: Mapping[str, str]) -> None:
        self.pipe, self.environ = pipe, environ
        self._lock = threading.Lock()

    def execute(
        self, process: Any, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Sequence[int], cwd: Any, env: Any,
        startupinfo: Any, creationflags: Any, shell: bool, *rest: Any,
    ) -> bool:  # fmt: skip
        """`Popen._execute_child` for what can be born; False for everything else."""
        p2cread, _, _, c2pwrite, _, errwrite, _, gid, gids, uid, umask, session, group = rest
        odd = preexec_fn or shell or not close_fds or gid is not None or gids is not None or uid is not None or umask != -1 or group != -1
        if odd or executable not in (None, sys.executable) or not takes(args, env, self.environ):
            return False
        streams = [given if given != -1 else number for number, given in enumerate((p2cread, c2pwrite, errwrite))]
        network, words = inside([os.fsdecode(word) for word in args])
        request = {
            "words": words,
            "network": network,
            "environ": dict(os.environ if env is None else env),
            "cwd": os.fspath(cwd) if cwd is not None else str(Path.cwd()),
            "targets": [0, 1, 2, *pass_fds],
            "session": session,
        }
        data = pickle.dumps(request)
        with self._lock:
            socket.send_fds(self.pipe, [len(data).to_bytes(8, "big")], [*streams, *pass_fds])
            self.pipe.sendall(data)
            process.pid = int.from_bytes(_read(self.pipe, 8), "big")
        process._child_created = True
        process._close_pipe_fds(*rest[:6])
        return True


def _read(pipe: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = pipe.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _patched(nursery: Nursery) -> Callable[..., None]:
    original = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute(self: Any, *given: Any) -> None:
        if not nursery.execute(self, given[0], given[1], *given[2:]):
            original(self, *given)

    return execute


# -- in the test's process ---------------------------------------------------------------------------------------------


BEGUN: list[tuple[Nursery | None, Callable[[], None]]] = []
"""The nursery of this session, and what ends it."""
USERS = pytest.StashKey[set[Path]]()
"""Files with tests that ask for it."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Files that ask for the nursery come first and one after the other: it takes 10 s of CPU to begin and ends with the last of them."""
    yield
    users = {item.path for item in items if "nursery" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in users)
    if items:
        items[0].session.stash[USERS] = users


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Elsewhere tests look at what processes they leave."""
    if BEGUN and item.path not in item.session.stash[USERS]:
        BEGUN.pop()[1]()


def pytest_sessionfinish() -> None:
    if BEGUN:
        BEGUN.pop()[1]()


def begin() -> tuple[Nursery | None, Callable[[], None]]:
    """Start a nursery; None where this machine cannot have one."""
    machine = os.uname()
    if FRESH or machine.sysname != "Linux" or machine.machine not in SYS_CLONE:
        return None, lambda: None
    ours, theirs = socket.socketpair()
    environ = dict(os.environ)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # a thread would not be forked
    limits["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    command = [sys.executable, str(Path(__file__)), str(theirs.fileno()), "-" * TITLE]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env={**environ, **limits}, stdin=subprocess.DEVNULL)
    theirs.close()
    ready = _read(ours, 1)

    def end() -> None:
        ours.close()
        process.wait()

    return Nursery(ours, environ) if ready == b"1" else None, end


@pytest.fixture
def nursery(request: pytest.FixtureRequest) -> Iterator[None]:
    """Processes of ftcli are born, where this machine can."""
    with births(request):
        yield


@contextmanager
def births(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same inside of a fixture that several tests share, each of which asks for `nursery`."""
    request.session.stash[USERS].add(request.path)  # a test may ask only when it runs
    if not BEGUN:
        BEGUN.append(begin())
    with pytest.MonkeyPatch.context() as patch:
        if (found := BEGUN[0][0]) is not None:
            patch.setattr(subprocess.Popen, "_execute_child", _patched(found))
        yield


# -- in the nursery ----------------------------------------------------------------------------------------------------


def prepare() -> bool:
    """Import everything; whether there is still a single thread, without which nothing can be forked."""
    for name in LIBRARIES:
        with suppress(ImportError):
            import_module(name)
    from conftest import import_ours

    import_ours()
    _rehearse()
    gc.collect()
    gc.freeze()  # no collection of a child copies the pages of what it has been given
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _rehearse() -> None:
    """Write a page of every command: jinja makes what it keeps, 0.8 s of CPU of each command that begins without it. Plots stay undrawn, and
    proofs short. Prepare a few rows and train on them: what torch sets up and compiles for a first step takes 0.35 s of a small training."""
    from loguru import logger

    import short_proof
    import tokenizing
    from conftest import undrawn
    from ftcli.commands import train
    from ftcli.core.reports import plots
    from ftcli.core.reports.report import render_html
    from report_samples import FULL
    from runs import VOCABULARY, Bench
    from stores import learnable

    plots._document = undrawn
    short_proof.decide(whole=False)
    for report in FULL.values():
        render_html(report())
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        bench = Bench.make(Path(name))
        tokenizing.here(patch)
        tokenizing.prepare(bench.tokenizer, tokenizing.write(bench.folder / "texts.jsonl", tokenizing.corpus(20)), bench.folder / "texts")
        rows = learnable(12, 4, VOCABULARY, 0)
        store = bench.store("rows", {"train": rows, "validation": rows[:4]}, labels=4)
        values = {"train__max_steps": 2, "train__verify": False, "runtime__report_dir": bench.folder / "reports"}
        logger.disable("ftcli")  # until a command says what it is to show, it shows everything
        train.run(bench.context(store, "run", **values))
        logger.enable("ftcli")


def serve(pipe: socket.socket) -> dict[str, Any] | None:
    """Give birth until the pipe closes. Returns twice, like a fork: None at the end, and in each child what it was born for."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            head, descriptors, _, _ = socket.recv_fds(pipe, 8, 16)
            if not head:
                return None
            request = pickle.loads(_read(pipe, int.from_bytes(head, "big")))
        except (EOFError, ConnectionError):
            return None
        if _clone() == 0:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            if request["session"]:
                os.setsid()
            pipe.sendall(os.getpid().to_bytes(8, "big"))  # whoever knows it can signal it and its group
            pipe.close()
            return {**request, "descriptors": descriptors}
        for descriptor in descriptors:
            os.close(descriptor)


def _clone() -> int:
    """A fork whose parent is this process's parent; 0 in what is born."""
    libc, python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = int(libc.syscall(SYS_CLONE[os.uname().machine], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    failed = ctypes.get_errno()
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(failed, os.strerror(failed))
    return pid


def become(request: dict[str, Any]) -> None:
    """Take over streams, folder, environment and command line."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH) for descriptor in request["descriptors"]]
    os.closerange(3, HIGH)
    for descriptor, target in zip(high, request["targets"], strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    if request["network"]:
        with Path("/run/netns", request["network"]).open() as place:
            if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"namespace {request['network']}")
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    through = bool(os.environ.get("PYTHONUNBUFFERED")) or "-u" in program(request["words"])[0]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it lives as long as the process
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        raw = io.BufferedWriter(io.FileIO(number, "wb", closefd=False))
        setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=number == 2, write_through=through))
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
    _title(request["words"])


def _title(words: Sequence[str]) -> None:
    """The command line that other processes see."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"\0".join(map(os.fsencode, words))[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def live(words: Sequence[str]) -> None:
    """What Python would do with these words."""
    sys.orig_argv = list(words)
    options, (how, what, *rest) = program(words)
    sys.argv = [how, *rest]
    if how == "-m":
        sys.path[0:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder not in sys.path]
        if "-P" not in options:
            sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(what, {"__name__": "__main__"})


def end(live: Callable[[], None]) -> None:
    """Run it and leave as Python does, without looking for what could be freed."""
    code = 0
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        live()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - its traceback is what Python shows
        traceback.print_exc()
        code = 1
    with suppress(Exception):
        threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


def main() -> None:
    pipe = socket.socket(fileno=int(sys.argv[1]))
    pipe.set_inheritable(False)
    pipe.sendall(b"1" if prepare() else b"0")
    sys.path[0:1] = []  # this folder
    environ = dict(os.environ)
    while (request := serve(pipe)) is not None:
        become(request)
        if "-m" in program(request["words"])[1][:1]:  # what it starts itself is born too, from a copy of this one
            ours, pipe = socket.socketpair()
            if os.fork() == 0:
                ours.close()
                pipe = socket.socket(fileno=fcntl.fcntl(pipe.detach(), fcntl.F_DUPFD_CLOEXEC, HIGH))
                nothing = os.open(os.devnull, os.O_RDWR)
                for number in range(3):
                    os.dup2(nothing, number)
                os.closerange(3, HIGH)
                _title(["nursery"])
                continue
            pipe.close()
            subprocess.Popen._execute_child = _patched(Nursery(ours, environ))  # type: ignore[attr-defined]
        end(lambda words=request["words"]: live(words))  # type: ignore[misc]
    os._exit(0)


if __name__ == "__main__":
    main()
