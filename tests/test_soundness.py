"""The quick look at UTF-8 agrees with Arrow's, and says yes where it is meant to save time."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from ftcli.core.reading import soundness
from ftcli.core.reading.columns import BadValue, check_arrow
from ftcli.core.reading.soundness import CHUNK, are_utf8

KOREAN = ["오늘은 날씨가 좋다", "", '"따옴표" 와 \\ 그리고 \x00\n줄', "끝 😀", "ὕδωρ привет"] * 50


def column(rows: list[bytes], kind: pa.DataType | None = None) -> pa.Array:
    """Strings of these bytes, whatever they are."""
    wide = kind is None or kind == pa.large_string()
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64 if wide else np.int32)
    return pa.Array.from_buffers(kind or pa.large_string(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(rows))])


def valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_sound_texts_are_seen_at_once(kind: pa.DataType) -> None:
    texts = pa.array(KOREAN, kind)
    assert are_utf8(texts)
    assert are_utf8(texts.slice(1, 77))
    assert are_utf8(pa.array(["오늘", None, "은"], kind))
    assert are_utf8(pa.array(["가" * CHUNK, "a" + "나" * CHUNK, "ab" + "😀" * CHUNK], kind))


def test_what_it_does_not_know_is_left_to_arrow() -> None:
    for unknown in (pa.array([1]), pa.array([], pa.string()), pa.array(["plain English"] * 9), pa.array(["가"]).dictionary_encode()):
        assert not are_utf8(unknown)
        assert check_arrow("file", "text", "text", "int" if unknown.type == pa.int64() else "string", unknown) is not None


@pytest.mark.parametrize(
    "rows",
    [
        [b"\xea\xb0", b"\x80" + "가나다".encode()],  # one character in two rows
        ["가나다".encode(), b"\xea\xb0"],
        [b"\x80", "가나다".encode()],
        ["가나다".encode() + b"\xed\xa0\x80"],  # half of a surrogate pair
        ["가나다".encode() + b"\xc0\x80"],
        ["가나다".encode() + b"\xf4\x90\x80\x80"],
        [b"\x80" * 2 * CHUNK],
        ["가".encode() * CHUNK + b"\xea" + "가".encode() * CHUNK],
    ],
)
def test_what_is_not_utf8_is_refused(rows: list[bytes]) -> None:
    assert not valid(column(rows))
    assert not are_utf8(column(rows))
    with pytest.raises(BadValue, match="is not UTF-8"):
        check_arrow("file", "text", "text", "string", column(rows))


def test_damaged_offsets_are_an_error() -> None:
    rows = column(["가나다".encode()] * 3)
    data = [None, pa.py_buffer(np.array([0, 9, 3, 99], np.int64)), rows.buffers()[2]]
    with pytest.raises(pa.ArrowInvalid):
        are_utf8(pa.Array.from_buffers(pa.large_string(), 3, data))


def test_it_agrees_with_arrow_on_random_damage() -> None:
    chance, base = random.Random(7), '가나 é😀a"𠀀'.encode() * 40
    sound = 0
    for _ in range(3_000):
        data = bytearray(base)
        for _ in range(chance.randrange(3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(4)))
        rows = column([bytes(data[start:stop]) for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)])
        assert are_utf8(rows) == valid(rows)
        sound += valid(rows)
    assert 300 < sound < 2_700


def test_without_a_parser_of_these_words_arrow_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundness, "_parser", lambda: None)
    assert not are_utf8(pa.array(KOREAN))
    assert len(check_arrow("file", "text", "text", "string", pa.array(KOREAN))) == len(KOREAN)
