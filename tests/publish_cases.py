"""What the tests of the commit layer share: two small shards, well prepared or interrupted, and the driver as a program."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import xxhash

import publish_driver
from ftcli.core.files.manifest import check_published
from ftcli.core.publishing import publish
from ftcli.core.publishing.publish import Attempt
from ftcli.core.publishing.shard import ShardWriter
from ftcli.errors import StoreError

BIG = os.urandom(300_000)
NOBODY = 65534
limited = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
SHARDS = {"a": {"train/a.arrow": BIG}, "b": {"train/b.arrow": BIG[::-1], "test/b.arrow": b""}}


def write_shard(attempt: Attempt, name: str, files: dict[str, bytes]) -> dict[str, Any]:
    with attempt.shard(name) as shard:
        for file_name, data in files.items():
            shard.path(file_name).write_bytes(data)
        return shard.commit(list(files), {"rows": len(files)})


def prepare(output: Path, key: str = "f", shards: dict[str, dict[str, bytes]] = SHARDS, **options: Any) -> dict[str, Any]:
    with Attempt.open(output, key, **options) as attempt:
        for name, files in shards.items():
            if attempt.done(name) is None:
                write_shard(attempt, name, files)
        attempt.write("info.json", "{}")
        return attempt.publish({"rows": 3}, shards)


def interrupt(output: Path, key: str = "f", names: Sequence[str] = ("a",)) -> Path:
    """Finish some shards, then stop; the attempt directory."""
    with Attempt.open(output, key, replace=True) as attempt:
        for name in names:
            write_shard(attempt, name, SHARDS[name])
        return attempt.directory


def write_and(shard: ShardWriter, then: Callable[[], object]) -> None:
    with shard:
        shard.path("x").write_bytes(b"written")
        then()


def stop() -> None:
    raise KeyboardInterrupt


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(path: Path, share: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 4
    path.write_bytes(data)


def truncate(path: Path, share: float) -> None:
    os.truncate(path, int(share * path.stat().st_size))


def zero_tail(path: Path, share: float) -> None:
    size = path.stat().st_size
    truncate(path, share)
    os.truncate(path, size)


def delete(path: Path, _: float) -> None:
    path.unlink()


# -- the driver as a program -------------------------------------------------------------------------------------------

DRIVER = [
    *(sys.executable, "-S", "-E", "-s", "-B", publish_driver.__file__),
    *(str(Path(publish.__file__).parents[2]), str(Path(xxhash.__file__).parents[1])),
]
OLD, NEW = "A", "B"


def command(mode: str, output: Path, version: str = NEW) -> list[str]:
    return [*DRIVER, mode, str(output), version]


def seen(output: Path) -> str:
    """What a reader sees, by the raw bytes; the check of the library must agree with it."""
    if not output.exists():
        return "none"
    files = {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}
    manifest = files.pop("ftcli-manifest.json", b"")
    for version in (OLD, NEW):
        if files == publish_driver.content(version) and manifest == publish_driver.manifest_of(output.parent / "m", version):
            check_published(output, full=True)
            return version
    with pytest.raises(StoreError):
        check_published(output, full=True)
    return "broken"


def as_nobody(call: Callable[[], object]) -> str:
    """What `call` says to a user without rights; it runs in a child."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        said = "said nothing"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            call()
        except BaseException as error:  # noqa: BLE001 - all of it goes to the parent
            said = f"{type(error).__name__} | {getattr(error, 'message', error)} | {getattr(error, 'hint', '')}"
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter and only its owner may write to; pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(prefix="ftcli-public-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
