"""The content of compressed files, of several streams one after the other, and without the zeros that tapes and archivers put behind them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from typing import Any

import pyarrow as pa

DECODERS: dict[str | None, Callable[[], Any]] = {"bz2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor}
CHUNK = 1 << 16
"""Bytes read at a time."""
PADDED = 16
"""Zero bytes that no gzip data end in: checksum, length and the last byte of an empty block are 9."""


def decompressed(file: pa.NativeFile, codec: str | None) -> pa.NativeFile:
    """The content of a file from its beginning. Whoever reads it turns errors by `streams.data_errors`.

    Args:
        codec: a value of `streams.CODECS`; None: it is not compressed.
    """
    if codec in DECODERS:  # Arrow does not know xz, and takes zeros behind bzip2 and gzip data for a further stream
        return pa.PythonFile(_Streams(file, DECODERS[codec]), mode="r")
    if codec == "gzip" and (size := file.size()) > PADDED:
        end = file.read_at(PADDED, size - PADDED)
        file.seek(0)
        if not any(end):
            return pa.PythonFile(gzip.GzipFile(fileobj=file), mode="r")
    return file if codec is None else pa.CompressedInputStream(file, codec)


class _Streams(io.RawIOBase):
    """Compressed streams with zeros between and behind them. What else stands there is an error, which `LZMAFile` and `BZ2File` take for the end."""

    def __init__(self, file: pa.NativeFile, decoder: Callable[[], Any]) -> None:
        self._file, self._make, self._decoder = file, decoder, decoder()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while True:
            data = b""
            if self._decoder.eof:
                data = self._decoder.unused_data.lstrip(b"\0")
                while not data and (more := self._file.read(CHUNK)):
                    data = more.lstrip(b"\0")
                if not data:
                    return b""
                self._decoder = self._make()
            elif self._decoder.needs_input and not (data := self._file.read(CHUNK)):
                raise EOFError
            if found := self._decoder.decompress(data, size):
                return bytes(found)
