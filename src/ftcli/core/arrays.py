"""numpy arrays and Python strings as Arrow arrays, and back, without pandas.

`pa.array` and `Array.to_numpy` import pandas (0.4 s of CPU in every process that tokenizes) when the first of them is called: `pa.array` asks
whether it was given a Series.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ftcli.core.ragged import to_offsets


def numbers(array: NDArray[Any]) -> pa.Array:
    """The numbers of a one-dimensional array, in the same memory where they lie side by side."""
    array = np.ascontiguousarray(array)
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), len(array), [None, pa.py_buffer(array)])


def flags(array: NDArray[np.bool_]) -> pa.BooleanArray:
    """What `Array.filter` takes."""
    return pa.Array.from_buffers(pa.bool_(), len(array), [None, pa.py_buffer(np.packbits(array, bitorder="little"))])


def values(array: pa.Array) -> NDArray[Any]:
    """Numbers, or truth values, of an array without nulls; numbers in the same memory."""
    if pa.types.is_boolean(array.type):
        return values(array.cast(pa.uint8())).view(np.bool_)
    assert not array.null_count
    return np.frombuffer(array.buffers()[1] or b"", array.type.to_pandas_dtype())[array.offset : array.offset + len(array)]


def strings(texts: Iterable[str]) -> pa.LargeStringArray:
    """
    Raises:
        UnicodeEncodeError: one holds a lone surrogate.
    """
    return utf8([text.encode() for text in texts])


def utf8(encoded: Sequence[bytes]) -> pa.LargeStringArray:
    """The texts, given as UTF-8."""
    offsets = to_offsets(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    return pa.Array.from_buffers(pa.large_string(), len(encoded), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))])
