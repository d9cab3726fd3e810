"""Object stores: the few operations that ftcli needs, with errors in words.

Everything goes through fsspec; who may do what is told by the environment and the store's own configuration files (for S3 those of AWS), never
by a setting of ftcli, so that no secret can get into a manifest or a report.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ftcli.core.files.manifest import hash_bytes
from ftcli.errors import DataError, FtcliError, MissingExtraError, UsageError, adding
from ftcli.fields import ADDRESS, NAMELESS
from ftcli.masking import masked

EXTRAS = {
    "s3": ("s3fs", adding("s3")),
    "s3a": ("s3fs", adding("s3")),
    "gs": ("gcsfs", "Run: pip install gcsfs"),
    "gcs": ("gcsfs", "Run: pip install gcsfs"),
    "az": ("adlfs", "Run: pip install adlfs"),
    "abfs": ("adlfs", "Run: pip install adlfs"),
    "abfss": ("adlfs", "Run: pip install adlfs"),
}
"""Scheme → what fsspec needs for it, and the hint where it is missing."""
CONDITIONAL = frozenset({"s3", "s3a"})
"""Schemes whose conditional put is known here."""
URL = re.compile(rf"({'|'.join(EXTRAS)}):/{{1,2}}([^/].*?)/*", re.DOTALL)
"""One slash, too: a `Path` leaves no more of them."""
VERSION_KEYS = ("ETag", "etag", "generation", "content_md5", "md5Hash", "LastModified", "last_modified", "updated", "mtime")
BLOCK_BYTES = 16 << 20
SIGNER = "ftcli-by"
READS = 3
"""How often an object that changes while it is read is read again."""
CREDENTIALS = "Credentials come from the environment or the store's own files (AWS_PROFILE, AWS_ACCESS_KEY_ID …, ~/.aws); check them and the access rights."
AGAIN = "Run the same command again: what has been transferred already is not transferred again."
REFUSED, CONFLICT, UNKNOWN = 412, 409, 501
"""What a store answers to a condition: it does not hold, somebody else is at it, conditions are unknown here."""


def url_of(path: str | Path) -> str | None:
    """The URL of an object store that a word is, in one spelling; None: it is something else.

    Raises:
        UsageError: a name or secret stands in it, or no bucket.
    """
    if NAMELESS.fullmatch(str(path)) and str(path).partition(":")[0] in EXTRAS:
        raise UsageError(f"{path} names no bucket", "Is a variable in it empty? Write the address as s3://bucket/name.")
    match = URL.fullmatch(str(path))
    if match is None:
        return None
    if "@" in match[2].partition("/")[0]:
        raise UsageError(f"{masked(f'{match[1]}://{match[2]}')}: the address contains a user name or secret", CREDENTIALS)
    return f"{match[1]}://{match[2]}"


def in_small_letters(address: str) -> str:
    """What may have been meant by S3://bucket/name, in words; "" where the letters are not the matter."""
    scheme, _, rest = address.partition(":")
    url = url_of(f"{scheme.lower()}:{rest}")
    return f"Did you mean {url}?" if url and scheme != scheme.lower() else ""


def output_of(path: Path) -> str | None:
    """The URL of an object store that data are to be published in; None: it is a directory.

    Raises:
        UsageError: it is an address that nothing can be published at, or a name or secret stands in it.
    """
    if (url := url_of(path)) is None and ADDRESS.match(str(path)):
        raise _no_directory(path, "prepared data can only go", "Give a directory, or an address such as s3://bucket/name.")
    return url


def refuse_url(path: Path, what: str) -> None:
    """Raises `UsageError`: what can only be a directory is an address."""
    if (url := url_of(path)) is not None or ADDRESS.match(str(path)):
        raise _no_directory(url or path, f"{what} can only go", "Give a directory, and copy it to the store afterwards.")


def _no_directory(path: str | Path, what: str, hint: str) -> UsageError:
    scheme, _, rest = str(path).partition(":")
    rest = rest.lstrip("/")
    if scheme.lower() == "file":
        hint = f"Write only the path: /{rest}"
    return UsageError(f"{masked(f'{scheme}://{rest}')}: {what} into a directory", hint)


class Retries(logging.Handler):
    """Says that a store is asked again: botocore tells it at the level of debugging alone, and goes on for minutes."""

    FROM = ("botocore.retryhandler", "botocore.retries.standard")
    TOLD = 3
    """Tries of one request that fail before a word is said: the waits before them are of a second."""

    def __init__(self) -> None:
        super().__init__()
        self.failed, self._why = 0, ""

    def listen(self) -> None:
        for name in self.FROM:
            source = logging.getLogger(name)
            source.setLevel(logging.DEBUG)
            source.addHandler(self)
            source.propagate = False  # nobody else has asked for that level

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage()
        if words.startswith("retry needed"):
            self._why = words.rpartition("caught: ")[2]
        elif words.startswith("Retry needed"):
            self.failed += 1
            if self.failed % self.TOLD == 0:
                from loguru import logger

                each = os.environ.get("AWS_MAX_ATTEMPTS", "5")
                logger.warning(
                    f"retrying the object store, {self.failed} attempts have failed: {masked(self._why)}. Each request is tried {each} times, and "
                    "all of that five times if a connection is lost, for a few minutes at most; to give up sooner: AWS_MAX_ATTEMPTS=1"
                )


_retries = Retries()


@dataclass(frozen=True, slots=True)
class Object:
    """One version of an object. `key` begins with the bucket."""

    key: str
    size: int
    version: str
    """Of its ETag, or of what the store has in place of one."""
    etag: str


class ObjectStore:
    """A store, by the URLs of what lies in it. Errors are of `kind`; FtcliErrors pass."""

    def __init__(self, url: str, kind: type[FtcliError] = DataError) -> None:
        """
        Raises:
            MissingExtraError: what fsspec needs for the scheme is not installed.
        """
        self.scheme, self.kind = url.partition(":")[0], kind
        module, hint = EXTRAS[self.scheme]
        try:
            self._fs = _file_system(self.scheme, os.getpid(), frozenset(os.environ.items()))
        except ImportError as error:
            raise MissingExtraError(f"{url}: {self.scheme}:// needs {module}, which cannot be imported ({error})", hint) from error

    @contextmanager
    def _asking(self, url: str) -> Iterator[None]:
        _retries.failed = 0
        try:
            yield
        except FtcliError:
            raise
        except Exception as error:  # botocore, aiohttp and fsspec raise their own
            raise self._refusal(url, error) from error

    def _refusal(self, url: str, error: Exception) -> FtcliError:
        if isinstance(error, PermissionError) or type(error).__name__ in {
            "NoCredentialsError",
            "ProfileNotFound",
            "PartialCredentialsError",
        }:
            return self.kind(f"{url}: the store refuses access: {masked(str(error))}", CREDENTIALS)
        if isinstance(error, FileNotFoundError):
            return self.kind(
                f"{url}: there is no such bucket or object", "Check the name, and for a store other than Amazon's also AWS_ENDPOINT_URL."
            )
        return self.kind(f"{url}: the store failed: {masked(str(error)) or type(error).__name__}", AGAIN)

    def _object(self, info: Mapping[str, Any]) -> Object:
        told = next((str(info[key]).strip('"') for key in VERSION_KEYS if info.get(key)), "")
        count = int(info["size"] or 0)
        return Object(str(info["name"]).lstrip("/"), count, hash_bytes(f"{told} {count}".encode()), str(info.get("ETag") or ""))

    def info(self, url: str) -> Object | None:
        """The object; None where there is none (a prefix is none)."""
        with self._asking(url):
            try:
                found = self._fs.info(url, refresh=True) if self.scheme in CONDITIONAL else self._fs.info(url)
            except FileNotFoundError:
                return None
            return self._object(found) if found["type"] == "file" else None

    def below(self, url: str) -> list[Object]:
        """Every object below a prefix, by key."""
        with self._asking(url):
            found = self._fs.find(f"{url}/", detail=True)
            return [self._object(info) for _, info in sorted(found.items()) if info["type"] == "file"]

    def matching(self, pattern: str) -> list[Object]:
        """Every object that a pattern names, by key."""
        with self._asking(pattern):
            found = self._fs.glob(pattern, detail=True)
            return [self._object(info) for _, info in sorted(found.items()) if info["type"] == "file"]

    def url(self, one: Object) -> str:
        return f"{self.scheme}://{one.key}"

    def blocks(self, one: Object) -> Iterator[bytes]:
        """The content of an object, piece by piece. Pieces may be of different versions: see `unchanged`."""
        url = self.url(one)
        with self._asking(url):
            for start in range(0, one.size, BLOCK_BYTES):
                end = min(one.size, start + BLOCK_BYTES)
                data = self._fs.cat_file(url, start=start, end=end)
                if len(data) != end - start:
                    raise self.kind(f"{url}: {len(data):,} bytes were received instead of {end - start:,}", AGAIN)
                yield data

    def unchanged(self, one: Object) -> bool:
        """Whether the object still is that version: what was read of it in between is of one version."""
        return self.info(self.url(one)) == one

    def read(self, url: str) -> tuple[bytes, Object] | None:
        """Content and version of a small object, which belong together; None where there is none."""
        for _ in range(READS):
            one = self.info(url)
            if one is None:
                return None
            with suppress(FtcliError):
                data = b"".join(self.blocks(one))
                if self.unchanged(one):
                    return data, one
        if one is not None:
            b"".join(self.blocks(one))  # raises what is wrong, if anything is
        raise self.kind(f"{url} keeps changing while it is read", AGAIN)

    def upload(self, path: Path, url: str, on_block: Callable[[], None]) -> None:
        """Put a file; it appears whole. `on_block` is called after each of its parts."""
        from fsspec.callbacks import Callback

        told = Callback(hooks={"block": lambda *_, **__: on_block()})
        with self._asking(url):
            self._fs.put_file(str(path), url, callback=told, chunksize=BLOCK_BYTES, max_concurrency=2)

    def put(self, data: bytes, url: str, etag: str | None, by: str = "") -> int:
        """Put an object on a condition: 0, or with which status the store refused.

        Args:
            etag: of the version that it replaces; None: there must be no object.
            by: who puts it, which `signer` reads again.
        """
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        with self._asking(url):
            try:
                self._fs.pipe_file(url, data, **condition, Metadata={SIGNER: by} if by else {})
            except Exception as error:
                status = _status(error)
                if status not in {REFUSED, CONFLICT, UNKNOWN}:
                    raise
                return status
        return 0

    def signer(self, url: str) -> str:
        """Who put an object; "" where nobody says."""
        with self._asking(url):
            return str(self._fs.metadata(url, refresh=True).get(SIGNER, ""))

    def remove(self, url: str) -> None:
        with self._asking(url):
            self._fs.rm_file(url)


@lru_cache(maxsize=4)
def _file_system(scheme: str, pid: int, environ: frozenset[tuple[str, str]]) -> Any:  # noqa: ARG001 - what a client is made of
    """A client of botocore reads 1 MB of JSON: 0.4 s of CPU."""
    import fsspec  # 0.1 s, which only runs with a URL pay

    _retries.listen()
    return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)


def _status(error: BaseException) -> int:
    """The HTTP status that an error of botocore, or one made of it, carries; 0: none."""
    response = getattr(error.__cause__ or error, "response", None)
    if not isinstance(response, Mapping):
        return 0
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
