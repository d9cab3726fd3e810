"""A JSON array is cut between its elements only, whatever stands in its strings, and read as `json.loads` reads it."""

from __future__ import annotations

import bz2
import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ftcli.plugins import jsonparts
from ftcli.plugins.jsonfile import Json
from ftcli.plugins.jsonl import JsonLines
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.context import Quiet
from ftcli.contracts import Columns
from ftcli.core.reading import array_chunks
from ftcli.core.reading.array_chunks import Chunk, as_lines, chunks, cuts
from ftcli.core.reading.read import make_plan, read_shard
from ftcli.core.reading.shards import pieces_of
from ftcli.errors import DataError
from reading import accounted, formats, plan, refusal, rows, settings, write
from reliability import size

WORDS = st.text(st.sampled_from('ay_[]{}"\\,:\n 글é'), max_size=6)
VALUES = st.recursive(
    WORDS | st.none() | st.integers(0, 9), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2)
)
OBJECTS = st.lists(st.dictionaries(WORDS, VALUES, max_size=3), max_size=8)
LAYOUTS = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 1}, {"indent": 2, "ensure_ascii": False}])
RECORDS = [{"text": f'글 {{"{number}"}}, [', "label": number % 3, "more": [{"a": {"b": "}]"}}]} for number in range(60)]


def chunked(data: bytes, start: int, stop: int | None, block: int) -> list[Chunk]:
    stream = pa.BufferReader(data)
    stream.seek(start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_chunks, "BLOCK", block)
        patch.setattr(array_chunks, "WINDOW", max(1, block // 8))
        return list(chunks(stream, start, stop))


def held(chunk: Chunk) -> list[Any]:
    """What `json` makes of it."""
    text = chunk.data.decode()
    found: list[Any] = json.loads("[" + (text if chunk.last else text.rstrip().removesuffix(",") + "]"))
    return found


@hypothesis_settings(max_examples=size(50, 150), deadline=None)
@given(
    elements=OBJECTS | st.lists(VALUES, max_size=6),
    layout=LAYOUTS,
    ends=st.sampled_from(["\n", "\r\n"]),
    block=st.sampled_from([1, 2, 3, 7, 60]),
)
def test_chunks_are_the_array_and_their_elements_its_own(elements: list[Any], layout: dict[str, Any], ends: str, block: int) -> None:
    data = json.dumps(elements, **layout).replace("\n", ends).encode()
    found = chunked(data, 1, None, block)
    assert b"".join(chunk.data for chunk in found) == data[1:]
    assert all(data[chunk.start :].startswith(chunk.data) for chunk in found)
    assert [each for chunk in found for each in held(chunk)] == elements


@hypothesis_settings(max_examples=size(50, 150), deadline=None)
@given(elements=OBJECTS, layout=LAYOUTS, wanted=st.lists(st.integers(0, 200), max_size=4), block=st.sampled_from([1, 5, 64]))
def test_cuts_lie_where_elements_begin(elements: list[Any], layout: dict[str, Any], wanted: list[int], block: int) -> None:
    data = json.dumps(elements, **layout).encode()
    stream = pa.BufferReader(data)
    stream.seek(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_chunks, "BLOCK", block)
        places = [1, *cuts(stream, 1, sorted(wanted)), None]
    found = [
        each for start, stop in pairwise(places) for chunk in chunked(data, start or 1, stop, block) if chunk.data for each in held(chunk)
    ]
    assert found == elements
    assert sum(place is not None and place > 1 for place in places) <= len(wanted)


@hypothesis_settings(max_examples=size(50, 150), deadline=None)
@given(elements=OBJECTS, layout=LAYOUTS, block=st.sampled_from([9, 1 << 20]))
def test_objects_as_lines_are_the_same_objects(elements: list[Any], layout: dict[str, Any], block: int) -> None:
    for chunk in chunked(json.dumps(elements, **layout).encode(), 1, None, block):
        if held(chunk):
            lines = as_lines(chunk, 1 << 20)
            assert lines is not None
            assert [json.loads(line) for line in lines[0].split(b"\n")[:-1]] == held(chunk)
            assert lines[1].strip() == (b"]" if chunk.last else b",")


@pytest.mark.parametrize(
    "text", ['{"a": 1}, "b"]', '{"a": 1}, , {"b": 2}]', '{"a": 1} {"b": 2}]', '{"a": 1}, [2]]', '3, {"a": 1}]', '{"a": 1}x, {"b": 2}]', "]"]
)
def test_what_is_no_row_of_objects_is_not_made_lines(text: str) -> None:
    (chunk,) = chunked(text.encode(), 0, None, 1 << 20)
    assert (lines := as_lines(chunk, 1 << 20)) is None or lines[1].strip() != b"]"


def test_an_object_of_too_many_bytes_is_not_made_a_line() -> None:
    (chunk,) = chunked(b'{"a": 1}, {"b": 22}]', 0, None, 1 << 20)
    assert as_lines(chunk, 9) is not None
    assert as_lines(chunk, 8) is None


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("before", ["", '{"version": [1], "data": '], ids=["array", "data"])
def test_an_array_is_cut_for_the_workers_and_its_bad_rows_have_their_places(
    tmp_path: Path, indent: int | None, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_chunks, "BLOCK", 200)
    records: list[Any] = [*RECORDS[:40], {"text": 3}, *RECORDS[40:], "words"]
    text = "\ufeff" + before + json.dumps(records, ensure_ascii=False, indent=indent) + ("}" if before else "")
    file = write(tmp_path / "a.json", text)
    made = plan(file, on_bad="quarantine", shard_bytes=500)
    pieces = [piece for shard in made.shards for piece in shard.pieces]
    assert len(pieces) > 5
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
    assert pieces[-1].stop == len(text.encode())
    for shard_bytes in (500, 10**6):
        good, bad = accounted(file, on_bad="quarantine", shard_bytes=shard_bytes)
        assert good == [record["text"] for record in RECORDS]
        assert [(row.code, row.raw) for row in bad] == [
            ("wrong-type", json.dumps(records[40], indent=indent).replace("\n", "\n  ").encode()),
            ("not-an-object", b'"words"'),
        ]
        data = text.encode()
        assert all(row.raw is not None and data[row.start or 0 :].startswith(row.raw) for row in bad)
        line = data[: bad[0].start].count(b"\n") + 1
        assert refusal(file, shard_bytes=shard_bytes).message.startswith(f"{file}:{line} (byte {bad[0].start:,}): 'text' is 3")


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.json.bz2"])
def test_an_array_is_read_a_part_at_a_time(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was held in memory."""
    monkeypatch.setattr(array_chunks, "BLOCK", 200)
    data = json.dumps(RECORDS, ensure_ascii=False).encode()
    data = b" " * 300_000 * name.endswith("bz2") + data  # its decoder gives a part at a time
    file = write(tmp_path / name, {".gz": gzip.compress, ".bz2": bz2.compress}.get(Path(name).suffix, bytes)(data))
    parts = list(jsonparts.parts(str(file), 0, None, settings(file)))
    assert len(parts) > 10
    assert rows(file, label_column="label") == [(record["text"], record["label"]) for record in RECORDS]


def test_places_are_those_of_all_elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_chunks, "BLOCK", 200)
    data = json.dumps([*RECORDS, "words", 3], indent=1).encode()
    file = write(tmp_path / "a.json", data)
    chosen = settings(file, shard_bytes=700)
    pieces = Json().plan(str(file), 700, chosen)
    places = [place for piece in pieces for place in Json().places(piece, chosen)]
    assert [json.loads(place.raw or b"") for place in places] == [*RECORDS, "words", 3]
    assert all(data[place.start or 0 :].startswith(place.raw or b"-") for place in places)


def test_rows_are_read_alike_by_the_quick_way_and_by_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.json", json.dumps(RECORDS))
    looked: list[object] = []
    monkeypatch.setattr("ftcli.plugins.jsonfile._looked_at", lambda *given: looked.append(given) or iter(()))
    quick = rows(file, label_column="label")
    assert not looked
    monkeypatch.undo()
    monkeypatch.setattr(jsonparts.Part, "arrays", lambda *_: None)
    assert rows(file, label_column="label") == quick == [(record["text"], record["label"]) for record in RECORDS]


@pytest.mark.parametrize(
    "odd", ["[" * 3000 + "]" * 3000, '"\xff"', '"a\nb"', "NaN", "9" * 5000], ids=["deep", "not UTF-8", "control", "NaN", "digits"]
)
def test_whether_a_row_is_good_does_not_depend_on_its_neighbours(tmp_path: Path, odd: str) -> None:
    """Arrow's parser takes some of what Python's refuses, in a key that nobody asked for."""
    told = []
    for other in ('{"text": "a"}', '{"text": 3}'):
        file = write(tmp_path / "a.json", f'[{{"text": "first"}}, {{"text": "odd", "more": {odd}}}, {other}]'.encode("latin-1"))
        try:
            good, bad = accounted(file, on_bad="quarantine")
            told.append(("odd" in good, [row.code for row in bad if row.field != "text"]))
        except Exception as error:  # noqa: BLE001 - whichever it is
            told.append((type(error), str(error).partition(": ")[2]))
    assert told[0] == told[1]


def test_cutting_a_long_array_says_how_far_it_is(tmp_path: Path) -> None:
    """Only what has to be read for it: lines are cut without."""
    told: list[tuple[str, float]] = []

    class Bar(Quiet):
        def start(self, stage: str, total: float | None, unit: str, before: float = 0.0) -> None:
            told.append((stage, total or 0))

        def advance(self, amount: float, **_: Any) -> None:
            told.append(("", amount))

    array = write(tmp_path / "a.json", json.dumps(RECORDS))
    lines = write(tmp_path / "a.jsonl", "".join(json.dumps(record) + "\n" for record in RECORDS))
    for file, reader in ((lines, JsonLines()), (array, Json())):
        assert len(pieces_of(str(file), reader, 500, settings(file), Bar())) > 1
    size = array.stat().st_size
    assert told == [("plan", size), ("", size - 1)]


def test_a_missing_quote_is_named_where_it_is_missing_whichever_piece_is_read_first(tmp_path: Path) -> None:
    """Behind it texts are taken for what stands between them: a piece that another worker reads breaks elsewhere."""
    lines = [json.dumps({"text": "글 }, {", "label": "a"}, ensure_ascii=False)] * 60
    lines[20] = lines[20].replace('"label"', 'label"')
    file = write(tmp_path / "a.json", "[\n" + ",\n".join(lines) + "\n]")
    chosen = settings(file, shard_bytes=300)
    pieces = Json().plan(str(file), 300, chosen)
    assert len(pieces) > 3
    told = []
    for piece in (pieces[-1], pieces[-2]):
        with pytest.raises(DataError) as caught:
            list(Json().read(piece, Columns("text"), chosen, print))
        told.append(caught.value.message)
    assert told[0] == told[1]
    assert told[0].startswith(f"{file}:22 (byte ")


def test_conversations_in_an_array_are_read_alike_by_the_quick_way_and_by_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = [
        {"conversations": [{"from": "human", "value": f'"{n}" }},'}, {"from": "gpt", "value": f"글\n{n}"}], "id": n} for n in range(30)
    ]
    file = write(tmp_path / "a.json", json.dumps(chats, indent=1))
    chosen, registry = settings(file, mode="sft"), formats()
    made = make_plan(chosen, registry)

    def texts() -> list[str]:
        return [
            text
            for shard in made.shards
            for _, batch in read_shard(shard, made.columns, chosen, registry)
            for text in batch["text"].to_pylist()
        ]

    looked: list[object] = []
    monkeypatch.setattr("ftcli.plugins.jsonfile._looked_at", lambda *given: looked.append(given) or iter(()))
    quick = texts()
    assert len(quick) == 30
    assert not looked
    monkeypatch.undo()
    monkeypatch.setattr(jsonparts.Part, "arrays", lambda *_: None)
    assert texts() == quick


def test_what_is_nested_deeply_is_marked_where_its_element_is_carried_over() -> None:
    """The depth is in a window before the one with which the chunk before it ends."""
    deep = '{"n": ' + "[" * 150 + "]" * 150 + f', "b": "{"y" * 400}"}}'
    found = chunked(f'{{"a": 1}}, {deep}, {{"c": 1}}]'.encode(), 0, None, 400)
    assert [chunk.deep for chunk in found if b"[[" in chunk.data] == [True]


def test_blanks_before_the_first_element_are_no_piece_that_lacks_one(tmp_path: Path) -> None:
    """A cut near their end made one of them alone."""
    expected = [record["text"] for record in RECORDS]
    for text in (json.dumps({"info": "x" * 500, "data": RECORDS}, indent=2), "[" + " " * 900 + json.dumps(RECORDS)[1:]):
        for shard_bytes in (1, 300, 509, 600):
            assert rows(write(tmp_path / "a.json", text), shard_bytes=shard_bytes) == expected


def test_whole_numbers_to_predict_are_the_nearest_there_are_whichever_way_they_are_read(tmp_path: Path) -> None:
    """Python's way ended as a bug from 2^53 on, and refused what does not fit into 64 bits; Arrow's takes both."""
    odd = [{"text": "a", "label": 0.5}, {"text": "b", "label": 2**60}, {"text": "c", "label": 2**64}]
    told = []
    for records in (odd, [*odd, {"text": 3, "label": 1.5}]):
        file = write(tmp_path / "a.json", json.dumps(records))
        chosen, registry = settings(file, mode="regress", label_column="label", on_bad="quarantine"), formats()
        made = make_plan(chosen, registry)
        told.append(
            [
                label
                for shard in made.shards
                for _, batch in read_shard(shard, made.columns, chosen, registry)
                for label in batch["label"].to_pylist()
            ]
        )
    assert told[0] == told[1] == [0.5, 2.0**60, 2.0**64]


@pytest.mark.parametrize(
    "text",
    [
        '{"data": [{"text": "a"}], "v": 1}\n{"data": [{"text": "b"}], "v": 1}',
        '{"data": [{"text": "a"}], "data": [{"text": "b"}]}',
        '{"data": [{"text": "a"}], garbage ]] }',
        '{"data": [{"text": "a"}], }',
        '{"version": [007], "data": [{"text": "a"}]}',
        '{"version": [1,], "more": 1, "rows": [{"text": "a"}]}',
        '{"version": [{"a": [1}]}], "data": [{"text": "a"}]}',
        '{"version": ["a\tb"], "data": [{"text": "a"}]}',
        '[{"text": "a"},\u00a0{"text": "b"}]',
        '[{"text": "a"}]\u3000',
    ],
    ids=[
        "two documents",
        "data twice",
        "garbage",
        "comma",
        "number",
        "comma before",
        "brackets",
        "control",
        "space between",
        "space behind",
    ],
)
def test_what_stands_around_the_elements_is_read_as_well(tmp_path: Path, text: str) -> None:
    """Rows of a second document were lost without a word."""
    assert "not JSON" in refusal(write(tmp_path / "a.json", text)).message
    kept = text.replace("\u00a0", " ").replace("\u3000", "\t").partition("\n")[0]
    if kept != text:
        assert len(rows(write(tmp_path / "a.json", kept))) == kept.count("text")


def test_a_byte_order_mark_is_no_character_of_its_line(tmp_path: Path) -> None:
    text = '[{"text": "글"} {"text": "b"}]'
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    assert f"at column {caught.value.colno}" in refusal(write(tmp_path / "a.json", "\ufeff" + text)).message


@hypothesis_settings(max_examples=size(50, 150), deadline=None)
@given(document=st.dictionaries(WORDS, VALUES | OBJECTS, max_size=5), layout=LAYOUTS, window=st.sampled_from([1, 2, 5, 64, 4000]))
def test_an_outline_is_the_object_with_its_parts_emptied(document: dict[str, Any], layout: dict[str, Any], window: int) -> None:
    data = json.dumps(document, **layout).encode()
    stream = pa.BufferReader(data)
    stream.seek(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_chunks, "WINDOW", window)
        found = array_chunks.outline(stream, 1, None, 10**6)
    assert found is not None
    text, places = found
    emptied = {
        key: ([{}] if value[:1] and isinstance(value[0], dict) else [])
        if isinstance(value, list)
        else {}
        if isinstance(value, dict)
        else value
        for key, value in document.items()
    }
    assert json.JSONDecoder().raw_decode("{" + text.decode())[0] == emptied
    assert [json.JSONDecoder().raw_decode(data[byte:].decode())[0] for byte in places.values()] == [
        value for value in document.values() if isinstance(value, (list, dict))
    ]
    assert all(text[place] == data[byte] for place, byte in places.items())


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_the_only_array_of_a_large_object_is_read_a_part_at_a_time(
    tmp_path: Path, name: str, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was held in memory: whether it is the only one is known at its end."""
    monkeypatch.setattr(array_chunks, "BLOCK", 200)
    monkeypatch.setattr("ftcli.plugins.jsonopening.HEAD", 300)
    document = {
        "판": [1, {"a": "]"}],
        "info": {"train": [{"text": "no"}]},
        "train": [*RECORDS, {"text": 3}],
        "more": {"b": ["c"]},
        "z": None,
    }
    data = b"\xef\xbb\xbf " + json.dumps(document, indent=indent, ensure_ascii=False).encode()
    file = write(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)
    opening = jsonparts.opening_of(str(file))
    assert opening is not None
    assert data[opening.start - 1 :].startswith(b"[")
    expected = [record["text"] for record in RECORDS]
    for shard_bytes in (500, 10**6):
        good, bad = accounted(file, on_bad="quarantine", shard_bytes=shard_bytes)
        assert good == expected
        assert [(row.code, data[row.start or 0 :].startswith(row.raw or b"-")) for row in bad] == [("wrong-type", True)]
    made = [piece for shard in plan(file, on_bad="quarantine", shard_bytes=500).shards for piece in shard.pieces]
    assert len(made) > 5 or name.endswith("gz")
    for broken, words in (
        ({**document, "test": [{"text": "a"}]}, "several arrays of objects among '판', 'train', 'test'"),
        ({**document, "train": ["a" * 400]}, "no array of objects among '판', 'train'"),
    ):
        assert words in refusal(write(tmp_path / "b.json", json.dumps(broken, indent=1))).message
    for old, new in (("[1,", "[01,"), ('"z": null', '"z": nul'), ("null}", "null}}"), (', "z": null}', "")):
        text = json.dumps({**document, "train": RECORDS}, ensure_ascii=False)
        assert old in text
        assert "not JSON" in refusal(write(tmp_path / "c.json", text.replace(old, new))).message


def test_brackets_in_a_text_at_the_end_of_what_is_looked_at_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They ended the array and the object, and the rows of another were lost."""
    text = json.dumps({"x": [{"text": "}]} " * 40}], "data": [{"text": "a"}]})
    monkeypatch.setattr("ftcli.plugins.jsonopening.HEAD", 60)
    assert rows(write(tmp_path / "a.json", text)) == ["a"]
