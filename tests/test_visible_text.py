"""Marks lose nothing: the bytes of a text can be read back from what is shown of its pieces."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ftcli.core.tokenizer.visible_text import BETWEEN, CARRIER, WHITE, columns_of, spelled_out, visible

BACK = {mark: character for character, mark in WHITE.items()}
TEXTS = st.text(st.sampled_from("aZ é배송가·│‹›⟦⟪◌\n\t\r\u200b\u0301😀\x1b"), max_size=12) | st.text(max_size=12)


def read_back(shown: str) -> bytes:
    """The bytes that a shown piece stands for."""
    out = b""
    for code, plain in re.findall(r"‹([^›]*)›|(.)", shown, re.DOTALL):
        if code.startswith("U+"):
            out += chr(int.from_bytes(bytes.fromhex(code[2:].zfill(8)))).encode("utf-8", "surrogatepass")
        elif code:
            out += bytes.fromhex(code.partition("=")[0])
        elif plain != CARRIER:
            out += BACK.get(plain, plain).encode()
    return out


@given(TEXTS, st.lists(st.integers(0, 40), max_size=6), st.binary(max_size=3))
def test_every_byte_of_every_piece_is_shown_once_and_in_its_place(text: str, cuts: list[int], odd: bytes) -> None:
    data = text.encode("utf-8", "replace") + odd + text.encode("utf-8", "replace")
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[low:high] for low, high in pairwise(ends)]

    assert [read_back(shown) for shown in spelled_out(pieces)] == pieces


def test_a_character_in_three_pieces_is_named_where_it_is_complete() -> None:
    whole = "배".encode()

    assert spelled_out([whole[:1], whole[1:2], whole[2:] + b"!"]) == ["‹EB›", "‹B0›", "‹B0=배›!"]
    assert spelled_out([b"\xff\xfe", b"", b"x" + whole[:2]]) == ["‹FF FE›", "", "x‹EB B0›"]


def test_nothing_that_drives_a_terminal_or_joins_a_mark_goes_through() -> None:
    assert visible("\x1b[2J\u202e") == "‹U+001B›[2J‹U+202E›"
    assert visible("a│·\u00a0") == "a‹U+2502›‹U+00B7›‹U+00A0›"
    assert visible("\u0301a") == "◌\u0301a"
    assert BETWEEN not in visible(BETWEEN)


def test_columns_are_those_of_a_terminal() -> None:
    assert columns_of("a배e\u0301") == 4
