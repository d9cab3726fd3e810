"""Publishes a tiny prepared directory, well or naively: the program that the fault tests kill, starve and race.

Run as a script it imports the commit layer without the rest of ftcli, so that one run takes some 70 ms:

    python -S -E -s publish_driver.py FTCLI_PACKAGE SITE_PACKAGES MODE OUTPUT VERSION

Without the last three it imports the commit layer once, reads them and a file for what is printed from every line of stdin, and forks a
process for each, which prints its pid and waits for an empty line, so that a tracer can attach. Its exit status follows (negative: a signal).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

START, END = "/start-of-the-commit-layer", "/end-of-the-commit-layer"


def content(version: str) -> dict[str, bytes]:
    """Every file of a version except the manifest. Sizes are equal in all versions, as in a re-run with another seed."""
    names = ("train/data-00000-of-00002.arrow", "train/data-00001-of-00002.arrow", "a/deep/folder/data.arrow")
    shards = {name: (f"{version}{index} " * 3000).encode() for index, name in enumerate(names)}
    return {**shards, "train/state.json": f'{{"version": "{version}"}}'.encode(), "dataset_dict.json": b'{"splits": ["train"]}'}


def mark(path: str) -> None:
    """Leave a system call that a trace can find: opening a file that does not exist."""
    with contextlib.suppress(FileNotFoundError):
        os.close(os.open(path, os.O_RDONLY))


def prepare(
    output: Path,
    version: str,
    *,
    wait: bool = False,
    patience: float = 60.0,
    stop_after: int = 99,
    pause: Callable[[], object] = lambda: None,
    on_wait: Callable[[object], None] = lambda _: None,
) -> int:
    """Publish `version` at `output`, unless it stops after some shards, and return how many shards had to be written for it.

    Args:
        pause: called after every shard.
        on_wait: called while another process holds the lease.
    """
    from ftcli.core.files.manifest import fingerprint
    from ftcli.core.publishing.publish import Attempt

    files = content(version)
    shards = {f"train-{index}": name for index, name in enumerate(files) if name.endswith(".arrow")}
    worked = 0
    with Attempt.open(output, fingerprint({"version": version}), replace=True, wait=wait, patience=patience, on_wait=on_wait) as attempt:
        if attempt.ready:
            return 0
        for shard_name, file_name in shards.items():
            if attempt.done(shard_name) is None:
                if worked == stop_after:
                    return worked
                worked += 1
                with attempt.shard(shard_name) as shard:
                    shard.path(file_name).write_bytes(files[file_name])
                    shard.commit([file_name], {"rows": 3000})
                pause()
        for name in ("train/state.json", "dataset_dict.json"):
            attempt.write(name, files[name])
        attempt.publish({"rows": 9000}, shards)
    return worked


def manifest_of(output: Path, version: str) -> bytes:
    """The manifest that `prepare` writes, made without it."""
    from ftcli.core.files.manifest import describe, fingerprint, seal
    from ftcli.records import MANIFEST_SCHEMA

    files = []
    for name, data in sorted(content(version).items()):
        sample = output.with_name(f"{output.name}.sample")
        sample.write_bytes(data)
        files.append(describe(sample, name))
        sample.unlink()
    return seal(
        {
            "schema": MANIFEST_SCHEMA,
            "fingerprint": fingerprint({"version": version}),
            "rows": 9000,
            "content_hash": fingerprint({entry["path"]: entry["xxh3"] for entry in files}),
            "files": files,
        }
    )


def naive(output: Path, version: str, *, manifest_first: bool) -> None:
    """What most tools do: write every file in its final place."""
    manifest = (output / "ftcli-manifest.json", manifest_of(output, version))
    files = [(output / name, data) for name, data in content(version).items()]
    for path, _ in files:
        path.parent.mkdir(parents=True, exist_ok=True)
    for path, data in [manifest, *files] if manifest_first else [*files, manifest]:
        path.write_bytes(data)


def without_exchange() -> None:
    """Pretend that the file system cannot exchange two directories, as NFS cannot."""
    import ftcli.core.publishing.publish

    vars(ftcli.core.publishing.publish)["exchange"] = lambda one, other: False


def without_heartbeat() -> None:
    """A run that is counted or struck call by call makes the same calls however slow the machine is."""
    import ftcli.core.files.lease

    vars(ftcli.core.files.lease)["BEAT_SECONDS"] = 3600.0


def hang() -> None:
    time.sleep(100_000)


def step() -> None:
    """Say that a shard is finished, and go on when told to."""
    print("shard", flush=True)
    sys.stdin.readline()


def say_once() -> Callable[[object], None]:
    """Says on stderr that another process is waited for."""
    said: list[object] = []

    def on_wait(sight: object) -> None:
        if not said:
            said.append(sight)
            print("waiting", file=sys.stderr, flush=True)

    return on_wait


def main(mode: str, output: Path, version: str) -> int:
    from ftcli.errors import FtcliError

    mark(START)
    try:
        if mode == "naive-manifest-first":
            naive(output, version, manifest_first=True)
        elif mode == "naive-manifest-last":
            naive(output, version, manifest_first=False)
        else:
            if mode == "no-exchange":
                without_exchange()
            if mode == "no-fsync":
                vars(os)["fsync"] = lambda descriptor: None
            if mode in {"normal", "no-exchange", "no-fsync"}:
                without_heartbeat()
            pause = {"step": step, "hang": hang}.get(mode, lambda: None)
            patience = 1.0 if mode == "impatient" else 100_000.0
            waits: dict[str, Any] = {"wait": True, "on_wait": say_once()} if mode in {"wait", "impatient"} else {}
            print("worked", prepare(output, version, patience=patience, pause=pause, **waits))
    except FtcliError as error:
        print(type(error).__name__, error.message, error.hint, sep=" | ")
        return 1
    finally:
        mark(END)
    return 0


def serve() -> None:
    import ftcli.core.publishing.publish
    import ftcli.errors  # noqa: F401 - for all that are forked

    while line := sys.stdin.readline():
        mode, output, version, printed = line.split()
        pid = os.fork()
        if pid == 0:
            print(os.getpid(), flush=True)
            os.read(0, 1)
            with open(printed, "w", encoding="utf-8") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):  # noqa: PTH123
                code = main(mode, Path(output), version)
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    package = types.ModuleType("ftcli")  # the package without its __init__, which imports pluggy
    package.__path__ = [sys.argv[1]]
    sys.modules["ftcli"] = package
    sys.path.append(sys.argv[2])
    if sys.argv[3:]:
        sys.exit(main(sys.argv[3], Path(sys.argv[4]), sys.argv[5]))
    serve()
