"""A CSV file that is cut into pieces has the rows of the whole one."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.core.files import cuts
from ftcli.errors import DataError
from reading import plan, rows, write
from reliability import size

FIELD = st.text(st.sampled_from('ab글 ,"\n\r\t'), max_size=8)


def outcome(path: Path, **dataset: object) -> object:
    try:
        return rows(path, label_column="label", **dataset)
    except DataError as error:
        return error.message


def pieces(path: Path, target: int) -> list[tuple[int, int]]:
    found = [(piece.start, piece.stop) for shard in plan(path, label_column="label", shard_bytes=target).shards for piece in shard.pieces]
    assert [start for start, _ in found] == [0, *(stop for _, stop in found[:-1])]
    assert found[-1][1] == path.stat().st_size
    return found


@hypothesis_settings(max_examples=size(80, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    table=st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=30),
    target=st.integers(1, 100),
    block=st.integers(1, 60),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    mark=st.sampled_from(["", "\ufeff", "\n\r\n"]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_pieces_have_the_rows_of_the_whole_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: list[tuple[str, str]],
    target: int,
    block: int,
    quoting: int,
    mark: str,
    end: str,
) -> None:
    monkeypatch.setattr(cuts, "BLOCK", block)
    buffer = io.StringIO(newline="")
    csv.writer(buffer, quoting=quoting, lineterminator=end).writerows([("text", "label"), *table])  # type: ignore[arg-type]
    file = write(tmp_path / "a.csv", mark + buffer.getvalue())
    pieces(file, target)
    whole = outcome(file, shard_bytes=1 << 20)
    assert outcome(file, shard_bytes=target) == whole
    assert whole == table or (end == "\n" and quoting == csv.QUOTE_MINIMAL), "the csv module does not quote a lone CR then"


@hypothesis_settings(max_examples=size(80, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.text(st.sampled_from('ab,"\n\r'), max_size=60), target=st.integers(1, 40), block=st.integers(1, 60))
def test_whatever_a_file_holds_pieces_do_not_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, target: int, block: int
) -> None:
    """Quotes in the middle of fields, or never closed, ragged rows: the same rows or the same error."""
    monkeypatch.setattr(cuts, "BLOCK", block)
    file = write(tmp_path / "a.csv", f"text,label\n{body}")
    assert outcome(file, shard_bytes=target) == outcome(file, shard_bytes=1 << 20)


def test_a_big_file_is_cut_between_rows_near_the_target(tmp_path: Path) -> None:
    text = "".join(f'"a\nb ""{number}""",x\n' for number in range(1000))
    file = write(tmp_path / "a.csv", "text,label\n" + text)
    found = pieces(file, 1000)
    assert len(found) == round(file.stat().st_size / 1000)
    assert all(abs(stop - start - 1000) < 40 for start, stop in found)
    data = file.read_bytes()
    assert all(data[start - 4 : start] == b'",x\n' for start, _ in found[1:])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'text,label\n5" pipe,x\n"a\nb",y\n6" pipe,x\n' * 5),
        ("a.csv", "text,label\n" + "a,b\n" * 20 + '"open,x\n' + "c,d\n" * 20),
        ("a.tsv", "text\tlabel\n" + 'a "b"\tx\n' * 20),
    ],
)
def test_a_file_whose_quotes_are_not_in_order_stays_whole(tmp_path: Path, name: str, content: str) -> None:
    file = write(tmp_path / name, content)
    assert cuts.record_ranges(str(file), "," if name == "a.csv" else "\t", len(content), 20) == [(0, len(content))]


@pytest.mark.parametrize("block", range(1, 30))
def test_text_behind_a_closing_quote_is_seen_across_the_borders_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(cuts, "BLOCK", block)
    content = 'text,label\n"a"b,x\n' + "c,d\n" * 20
    assert cuts.record_ranges(str(write(tmp_path / "a.csv", content)), ",", len(content), 20) == [(0, len(content))]


def test_a_tsv_without_quotes_is_cut(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", "text\tlabel\n" + "a b\tx\n" * 50)
    assert len(pieces(file, 60)) == 5
    assert outcome(file, shard_bytes=60) == [("a b", "x")] * 50
