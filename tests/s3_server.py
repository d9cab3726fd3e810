"""As much of S3 as ftcli uses, in memory, for tests: conditional puts, ranges, listings in pages, multipart uploads, and faults on demand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

KEY, SECRET = "AKIATESTONLY00000001", "nobody-may-ever-read-this-secret"
PAGE = 3
"""Keys in a page of a listing."""


@dataclass(slots=True)
class Stored:
    data: bytes
    etag: str
    time: float
    meta: dict[str, str]


@dataclass(slots=True)
class Request:
    method: str
    key: str
    """bucket/key."""
    headers: dict[str, str]


@dataclass
class Server:
    """What is stored, what was asked, and what is to go wrong."""

    objects: dict[str, Stored] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    conditions: bool = True
    """Whether it keeps them; False: a store that ignores the headers."""
    before: Callable[[Request], str | None] = lambda _: None
    """Called before a request is answered: "409", "500", "503", "drop" or None."""
    after: Callable[[Request], str | None] = lambda _: None
    """Called when it has had its effect, and before the answer: "drop" loses that."""
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    clock: float = 1_700_000_000
    url: str = ""

    def put(self, key: str, data: bytes, meta: dict[str, str] | None = None) -> str:
        self.clock += 1
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        self.objects[key] = Stored(data, etag, self.clock, meta or {})
        return etag

    def count(self, method: str, part: str = "") -> int:
        return sum(request.method == method and part in request.key for request in self.requests)

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Server

    def log_message(self, *_: Any) -> None: ...

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        request = Request(self.command, unquote(parts.path).lstrip("/"), {name.lower(): value for name, value in self.headers.items()})
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" in request.headers.get("content-encoding", ""):
            body = _plain(body)
        state = self.state
        with state.lock:
            state.requests.append(request)
        fault = state.before(request)
        if fault == "drop":
            self._drop()
        elif fault:
            self._error(int(fault), {"409": "ConditionalRequestConflict", "503": "SlowDown"}.get(fault, "InternalError"))
        else:
            with state.lock:
                status, headers, data = getattr(self, f"_{self.command.lower()}")(request, query, body)
            if state.after(request) == "drop":
                self._drop()
            else:
                self._send(status, headers, data)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _answer  # noqa: N815 - http.server's names

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.close()

    def _error(self, status: int, code: str, more: str = "") -> None:
        self._send(*_failure(status, code, more))

    def _send(self, status: int, headers: dict[str, str], data: bytes) -> None:
        with suppress(OSError):
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    def _head(self, request: Request, query: dict[str, str], body: bytes) -> Any:
        if "/" not in request.key.rstrip("/"):
            return 200, {}, b""
        found = self.state.objects.get(request.key)
        if found is None:
            return 404, {}, b""
        meta = {f"x-amz-meta-{name}": value for name, value in found.meta.items()}
        return (
            200,
            {"ETag": found.etag, "Last-Modified": formatdate(found.time, usegmt=True), "Content-Length": str(len(found.data)), **meta},
            b"",
        )

    def _get(self, request: Request, query: dict[str, str], body: bytes) -> Any:
        if "list-type" in query:
            return self._list(request.key.rstrip("/"), query)
        found = self.state.objects.get(request.key)
        if found is None:
            return _failure(404, "NoSuchKey")
        headers = {"ETag": found.etag, "Last-Modified": formatdate(found.time, usegmt=True)}
        wanted = request.headers.get("range", "")
        if not wanted:
            return 200, headers, found.data
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        data = found.data[int(first) : int(last) + 1 if last else None]
        return 206, {**headers, "Content-Range": f"bytes {first}-{int(first) + len(data) - 1}/{len(found.data)}"}, data

    def _list(self, bucket: str, query: dict[str, str]) -> Any:
        prefix, delimiter, after = (query.get(name, "") for name in ("prefix", "delimiter", "continuation-token"))
        found: list[str] = []
        for key in sorted(self.state.objects):
            if key.startswith(f"{bucket}/{prefix}"):
                name = key.removeprefix(f"{bucket}/")
                end = name.find(delimiter, len(prefix)) if delimiter else -1
                name = name if end < 0 else name[: end + 1]
                if name > after and name not in found:
                    found.append(name)
        page, more = found[:PAGE], len(found) > PAGE
        xml = []
        for name in page:
            stored = self.state.objects.get(f"{bucket}/{name}")
            if stored is None:
                xml.append(f"<CommonPrefixes><Prefix>{quote(name)}</Prefix></CommonPrefixes>")
            else:
                xml.append(
                    f"<Contents><Key>{quote(name)}</Key><ETag>{escape(stored.etag)}</ETag><Size>{len(stored.data)}</Size>"
                    "<LastModified>2026-01-01T00:00:00.123Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
                )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        head = f"<EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(page)}</KeyCount>{token}"
        return 200, {"Content-Type": "application/xml"}, f"<ListBucketResult>{head}{''.join(xml)}</ListBucketResult>".encode()

    def _refused(self, request: Request) -> Any:
        """The answer to a condition that does not hold, else None."""
        there = self.state.objects.get(request.key)
        if not self.state.conditions:
            return None
        if request.headers.get("if-none-match") == "*" and there is not None:
            return _failure(412, "PreconditionFailed", "<Condition>If-None-Match</Condition>")
        wanted = request.headers.get("if-match")
        if wanted is not None and there is None:
            return _failure(404, "NoSuchKey")
        if wanted is not None and there is not None and wanted != there.etag:
            return _failure(412, "PreconditionFailed", "<Condition>If-Match</Condition>")
        return None

    def _put(self, request: Request, query: dict[str, str], body: bytes) -> Any:
        if "uploadId" in query:
            self.state.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b""
        if (refused := self._refused(request)) is not None:
            return refused
        meta = {name.removeprefix("x-amz-meta-"): value for name, value in request.headers.items() if name.startswith("x-amz-meta-")}
        return 200, {"ETag": self.state.put(request.key, body, meta)}, b""

    def _post(self, request: Request, query: dict[str, str], body: bytes) -> Any:
        if "uploads" in query:
            name = f"upload-{len(self.state.uploads)}"
            self.state.uploads[name] = {}
            return 200, {}, f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>".encode()
        if (refused := self._refused(request)) is not None:
            return refused
        parts = self.state.uploads.pop(query["uploadId"])
        etag = self.state.put(request.key, b"".join(parts[number] for number in sorted(parts)))
        return 200, {}, f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>".encode()

    def _delete(self, request: Request, query: dict[str, str], body: bytes) -> Any:
        self.state.objects.pop(request.key, None)
        return 204, {}, b""


def _failure(status: int, code: str, more: str = "") -> Any:
    return status, {"Content-Type": "application/xml"}, f"<Error><Code>{code}</Code><Message>{code} it is</Message>{more}</Error>".encode()


def _plain(body: bytes) -> bytes:
    """The content of a body in signed chunks."""
    data = b""
    while body:
        head, _, body = body.partition(b"\r\n")
        size = int(head.split(b";")[0], 16)
        if not size:
            break
        data, body = data + body[:size], body[size + 2 :]
    return data


@contextmanager
def serving() -> Iterator[Server]:
    """A server on a port of its own."""
    state = Server()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Once:
    """A function of botocore that reads a file, which remembers what it has read."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.known = function, {}

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else lambda path: self.known.setdefault(path, None) or self._read(owner, path)

    def _read(self, owner: Any, path: str) -> Any:
        self.known[path] = self.function(owner, path)
        return self.known[path]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A store with an empty bucket, which this process and those that it starts find by their environment."""
    pytest.importorskip("s3fs")
    from botocore.loaders import JSONFileLoader

    if not isinstance(JSONFileLoader.load_file, _Once):  # for all tests and for the children that they fork: 0.4 s of CPU a client
        JSONFileLoader.load_file = _Once(JSONFileLoader.load_file)  # type: ignore[method-assign]
    with serving() as state:
        for name, value in state.environment().items():
            monkeypatch.setenv(name, value)
        yield state
