"""Source files as byte streams: decompressed, in blocks of whole lines, with the line number of any byte, and errors that name the file."""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ftcli.contracts import Reject
from ftcli.core.files.compressed import decompressed
from ftcli.errors import DataError
from ftcli.records import BadRow

BLOCK = 4 << 20
"""Bytes read at a time. pyarrow.json parsed 240 MB/s a core with 1, 4 and 8 MiB, 190 MB/s with 16 MiB."""
LONGEST_LINE = 1 << 30
"""No limit is higher: a parser's block holds at most 2 GiB."""
BEGINNING = 4096
"""Bytes of a line that is too long which are kept to show."""
_DIGITS = re.compile(r"(\d+)")
BOM = b"\xef\xbb\xbf"
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz", ".lz4": "lz4"}
CR_ALONE = r"The file's lines end in CR alone. Convert them: tr '\r' '\n' < OLD > NEW"
"""What to do about what `in_crs` finds."""
SUFFIXES = "also with .gz, .zst, .bz2, .xz or .lz4 behind"
MAGIC = {
    b"\x1f\x8b": "gzip data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"PAR1": "a parquet file",
    b"ARROW1": "an Arrow IPC file",
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ\x00": "xz data",
    b"\x04\x22\x4d\x18": "lz4 data",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
}


def bare_suffix(path: str) -> str:
    """The suffix that decides the format: lower case, after one of `CODECS` is taken off."""
    stem, suffix = os.path.splitext(path)  # noqa: PTH122 - a tenth of the time of Path, for a million small files
    if suffix.lower() in CODECS:
        suffix = os.path.splitext(stem)[1]  # noqa: PTH122
    return suffix.lower()


def codec_of(path: str) -> str | None:
    """A value of `CODECS`, or None, by the file's last suffix."""
    return CODECS.get(os.path.splitext(path)[1].lower())  # noqa: PTH122


def refuse_undecodable(path: str) -> None:
    """
    Raises:
        DataError: the name is not UTF-8, as names of archives from Korean or Japanese Windows are: neither Arrow nor a report can hold it.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = repr(os.fsencode(path))[2:-1].replace("'", "\\'").replace("\\\\'", "\\'")
        raise DataError(
            f"{shown}: the name is not UTF-8",
            f"Rename it: mv $'{shown}' NEW; or everything below a folder: convmv -f CP949 -t UTF-8 -r --notest FOLDER",
        ) from None


def open_stream(path: str) -> pa.NativeFile:
    """The file's content, decompressed on the way; it can seek when it is not compressed."""
    return decompressed(pa.OSFile(path), codec_of(path))


@contextmanager
def data_errors(path: str) -> Iterator[None]:
    """Turn what the operating system, a decompressor or pyarrow raises about `path` into a DataError that names it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if "Truncated compressed stream" in reason:
            raise DataError(f"{path}: the compressed data end too early", "Copy or download the file again.") from error
        if codec_of(path) and any(word in reason for word in ("inflate", "decompress", "Invalid data stream", "CRC check", "gzipped file")):
            raise DataError(f"{path}: damaged or not {codec_of(path)} data ({reason})", "Copy it again, or correct its suffix.") from error
        raise DataError(f"{path}: cannot be read: {reason}", "Check that the file is complete, and its permissions.") from error
    except EOFError as error:
        raise DataError(f"{path}: the compressed data end too early", "Copy or download the file again.") from error
    except (lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: damaged or not {codec_of(path)} data ({error})", "Copy it again, or correct its suffix.") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:  # the latter for names of columns
        raise DataError(f"{path}: {str(error).splitlines()[0]}", "Check that the file is complete and that its suffix is right.") from error


def head(path: str, size: int = 1 << 20) -> bytes:
    """The first `size` bytes of the decompressed content, without a byte order mark.

    Raises:
        DataError: the content is no UTF-8 text file: another known format, UTF-16, or binary data.
    """
    with data_errors(path):
        if codec_of(path) is None:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - 20 µs less than an Arrow stream, for a million small files
                start = file.read(size)
        else:
            with open_stream(path) as stream:
                start = b"".join(_chunks(stream, size))
    if start.startswith(tuple(MAGIC)):
        kind = next(kind for magic, kind in MAGIC.items() if start.startswith(magic))
        raise DataError(f"{path}: the content is {kind}, which does not match the suffix", "Rename the file, or unpack it.")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}: the text is UTF-16", "Convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW")
    if b"\0" in start[:4096].partition(b"\n")[0]:
        raise DataError(f"{path}: binary data (a zero byte in its first line), not text", "Correct the suffix, or exclude the file.")
    return start.removeprefix(BOM)


def refuse_page(path: str, start: bytes) -> None:
    """Raises `DataError` where data are a page of the web, as a download of the page about a file is; `start`: its first bytes."""
    if start[:1000].lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        raise DataError(
            f"{path}: the content is an HTML page, not the data file",
            "Download the file itself; on the Hub, use resolve/ instead of blob/ in its address.",
        )


def ends_in_cr(path: str) -> bool:
    """Whether a text's lines end in CR alone, by its first 64 KiB."""
    return in_crs(head(path, 1 << 16))


def in_crs(start: bytes) -> bool:
    """Whether these first bytes of a text are lines that end in CR alone."""
    return b"\n" not in start and b"\r" in start.rstrip(b"\r")


def separator(path: str) -> str | None:
    """A mark such as <|endoftext|> that stands alone on several of a text's lines, by its first 64 KiB."""
    lines = Counter(re.findall(rb"^(<[|/]?\w+\|?>)[ \t\r]*$", head(path, 1 << 16), re.MULTILINE))
    return next((mark.decode() for mark, count in lines.most_common(1) if count > 1), None)


def content(path: str, most: int | None = None) -> tuple[int, bytes]:
    """The decompressed content without a byte order mark, and where it begins; no more than `most` bytes."""
    with data_errors(path), open_stream(path) as stream:
        data = b"".join(_chunks(stream, most))
    return (len(BOM), data[len(BOM) :]) if data.startswith(BOM) else (0, data)


def line_blocks(path: str, start: int = 0, stop: int | None = None, *, longest: int, reject: Reject) -> Iterator[tuple[int, bytes]]:
    """The lines that start at a byte in start..stop (None: the end), as (offset, block of whole lines).

    Every line of a file lies in exactly one of any ranges that cover it. A compressed file is read from 0 only. Memory is bounded by
    the block and by `longest`, the bytes that a line may have without its end: one with more goes to `reject` and is passed over.
    """
    longest = min(longest, LONGEST_LINE)
    with data_errors(path), open_stream(path) as stream:
        position, data = _first_line(stream, start)
        while stop is None or position < stop:
            if stop is not None and position + len(data) >= stop:
                cut = data.find(b"\n", stop - 1 - position) + 1
                if cut:
                    yield from _short(path, position, data[:cut], longest, reject)
                    return
            cut = data.rfind(b"\n") + 1
            if cut:
                yield from _short(path, position, data[:cut], longest, reject)
                position, data = position + cut, data[cut:]
            if len(data) > longest:
                size, data = _pass_over(path, stream, position, data, longest, reject)
                position += size
                continue
            more = stream.read(min(max(BLOCK, len(data)), longest + 1))  # doubling, so that a long line is not copied once a block
            if not more:
                if data:
                    yield from _short(path, position, data, longest, reject)
                return
            cut = more.rfind(b"\n") + 1
            if cut and (stop is None or position + len(data) + len(more) < stop):
                block = b"".join((data, memoryview(more)[:cut]))  # one copy: adding and cutting are two, 0.6 ms each of 4 MB
                yield from _short(path, position, block, longest, reject)
                position, data = position + len(block), more[cut:]
            else:
                data += more


def _short(path: str, position: int, block: bytes, longest: int, reject: Reject) -> Iterator[tuple[int, bytes]]:
    """The block without a byte order mark and without its lines that are too long."""
    if not position and block.startswith(BOM):
        position, block = len(BOM), block[len(BOM) :]
    start = line = 0
    while len(block) - line > longest:
        end = block.rfind(b"\n", line, line + longest + 1)
        if end >= 0:
            line = end + 1
            continue
        if line > start:
            yield position + start, block[start:line]
        end = block.find(b"\n", line) + 1
        size, _ = _pass_over(path, None, position + line, block[line : end or None], longest, reject)
        start = line = line + size
    if start < len(block):
        yield position + start, block[start:]


def _pass_over(path: str, stream: pa.NativeFile | None, start: int, data: bytes, longest: int, reject: Reject) -> tuple[int, bytes]:
    """Reject the line that begins `data`; its bytes with the line end, and what has been read behind it."""
    digest, raw, size = hashlib.sha256(), data[:BEGINNING].partition(b"\n")[0], 0
    while (end := data.find(b"\n")) < 0:
        digest.update(data)
        size += len(data)
        data = stream.read(BLOCK) if stream else b""
        if not data:
            break
    digest.update(data[: max(end, 0)])
    size += max(end, 0)
    reason = f"a line of {size:,} bytes, more than max_line_bytes {longest:,}"
    hint = CR_ALONE if in_crs(raw) else "Check that this is a line-based file; if so, raise --max-line-bytes."
    reject(BadRow(path, "line-too-long", reason, start=start, size=size, raw=raw, sha256=digest.hexdigest(), hint=hint))
    return size + (end >= 0), data[end + 1 :]


def object_lines(block: bytes) -> int | None:
    """Lines of a block that are not blank; None where one does not begin with "{" and end with "}", white space aside.

    Where every line does, no JSON object lies on two lines: inside of one, "}" and "{" have a comma between them.
    """
    data = np.frombuffer(block, np.uint8)[: -1 if block.endswith(b"\n") else None]
    ends = np.flatnonzero(data == ord("\n"))  # 8 GB/s; `bytes.count` does 1.3 to 3.4 GB/s (Korean JSON lines)
    if len(data) and data[0] == ord("{") and (len(ends) == 0 or ends[-1] < len(data) - 1):
        last = np.append(ends, len(data)) - 1
        last -= data[last] == ord("\r")
        if (data[last] == ord("}")).all() and (data[ends + 1] == ord("{")).all():
            return len(last)
    lines = [line for line in map(bytes.strip, block.split(b"\n")) if line]
    return len(lines) if all(line.startswith(b"{") and line.endswith(b"}") for line in lines) else None


def _first_line(stream: pa.NativeFile, start: int) -> tuple[int, bytes]:
    """(position, data read so far) at the first line that starts at or after byte `start`."""
    if not start:
        return 0, stream.read(BLOCK)
    position = stream.seek(start - 1)
    while data := stream.read(BLOCK):
        cut = data.find(b"\n") + 1
        if cut:
            return position + cut, data[cut:]
        position += len(data)
    return position, b""


def line_of(path: str, offset: int) -> int:
    """The number (from 1) of the line that holds byte `offset` of the decompressed content. Reads the file: for error paths only."""
    lines, left = 1, offset
    with data_errors(path), open_stream(path) as stream:
        for chunk in _chunks(stream, offset):
            lines += chunk.count(b"\n", 0, left)
            left -= len(chunk)
    return lines


def column_of(path: str, offset: int) -> int:
    """Which character of its line (from 1) byte `offset` of the decompressed content is, a byte order mark not counted. Reads the file: for error paths
    only."""
    characters = -1 if content(path, len(BOM))[0] else 0
    with data_errors(path), open_stream(path) as stream:
        for chunk in _chunks(stream, offset):
            line = chunk.rfind(b"\n") + 1
            begun = np.count_nonzero((np.frombuffer(chunk, np.uint8)[line:] & 0xC0) != 0x80)
            characters = int(begun) + (0 if line else characters)
    return characters + 1


class LineCounter:
    """Counts line ends from byte `start` of the decompressed content; offsets that rise are reached in one pass over the file."""

    def __init__(self, path: str, start: int) -> None:
        self._path, self._position, self._lines = path, start, 0
        with data_errors(path):
            self._stream = open_stream(path)
            if start:
                self._stream.seek(start)

    def count(self, offset: int) -> int:
        """Line ends between `start` and `offset`, which is not before the one of the last call."""
        with data_errors(self._path):
            for chunk in _chunks(self._stream, offset - self._position):
                self._lines += chunk.count(b"\n")
        self._position = offset
        return self._lines


def bad_utf8(data: bytes) -> tuple[int, str] | None:
    """Where the first byte that is not UTF-8 stands in `data`, and what it is, in words; None when all is well."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        return error.start, f"not UTF-8: byte 0x{data[error.start]:02x} at column {column}"
    return None


def cut_evenly(size: int, target: int) -> list[tuple[int, int]]:
    """Ranges that cover 0..size, each of about `target`; none for size 0."""
    count = max(1, round(size / target)) if size else 0
    return list(pairwise(size * i // count for i in range(count + 1))) if count else []


def natural(name: str) -> list[Any]:
    """Sort key with numbers by value: part-2 before part-10; equal up to case and zeros, the plain text decides."""
    parts: list[Any] = _DIGITS.split(name.casefold())
    parts[1::2] = map(int, parts[1::2])
    return [parts, name]


def skip(stream: pa.NativeFile, size: int) -> None:
    """Read so many bytes, of a stream that may give fewer at a time."""
    for _ in _chunks(stream, size):
        pass


def _chunks(stream: pa.NativeFile, size: int | None) -> Iterator[bytes]:
    left = size
    while (left is None or left > 0) and (chunk := stream.read(BLOCK if left is None else min(BLOCK, left))):
        yield chunk
        left = None if left is None else left - len(chunk)
