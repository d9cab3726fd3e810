"""The sample of a run's own texts is of all of what was drawn from, not of its beginning."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ftcli.context import Context
from ftcli.core.prepare import own_texts as module
from ftcli.core.prepare.sample import sample
from ftcli.errors import DataError
from tokenizing import write


def test_texts_are_drawn_from_the_whole_of_a_sorted_file(tmp_path: Path) -> None:
    texts = [f"{row // 5_000} {row}" for row in range(20_000)]
    source = write(tmp_path / "sorted.jsonl", texts)
    drawn = module.own_texts(Context.make({"dataset.sources": [str(source)]}))
    again = module.own_texts(Context.make({"dataset.sources": [str(source)]}))

    assert drawn is not None
    assert drawn == again
    assert len(set(drawn.texts)) == module.MOST_ROWS
    assert {text[0] for text in drawn.texts} == {"0", "1", "2", "3"}


def array(path: Path, texts: list[str]) -> Path:
    path.write_text(json.dumps([{"text": text} for text in texts]), encoding="utf-8")
    return path


def test_texts_of_a_large_array_are_drawn_from_the_whole_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = array(tmp_path / "sorted.json", [f"{row // 20_000} {row}" for row in range(80_000)])
    monkeypatch.setattr(module, "MOST_WHOLE", 1 << 20)
    drawn = module.own_texts(Context.make({"dataset.sources": [str(source)]}))
    assert drawn is not None
    assert {text[0] for text in drawn.texts} == {"0", "1", "2", "3"}


@pytest.mark.parametrize("compressed", [False, True])
def test_of_an_array_that_is_not_cut_the_beginning_is_drawn_from(compressed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = array(tmp_path / "a.json", [f"{row // 20_000} {row} {'a' * 100}" for row in range(80_000)])
    if compressed:
        data = gzip.compress(source.read_bytes(), 1)
        source = tmp_path / "a.json.gz"
        source.write_bytes(data)
    monkeypatch.setattr(module, "MOST_WHOLE", 1000)
    monkeypatch.setattr(module, "MOST_CUT", 1000)
    monkeypatch.setattr(module, "MOST_READ", 10)
    monkeypatch.setattr("ftcli.core.reading.array_chunks.cuts", lambda *_: pytest.fail("the array was gone through"))
    drawn = module.own_texts(Context.make({"dataset.sources": [str(source)]}))
    assert drawn is not None
    assert {text[0] for text in drawn.texts} < {"0", "1", "2"}


def test_a_large_array_of_texts_is_held_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.json"
    source.write_text(json.dumps([f"text {row}" for row in range(1000)]), encoding="utf-8")
    monkeypatch.setattr(module, "MOST_WHOLE", 1000)
    with pytest.raises(DataError, match="is read as a whole"):
        module.own_texts(Context.make({"dataset.sources": [str(source)]}))


def test_the_first_rows_of_an_array_are_tried_without_going_through_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = array(tmp_path / "a.json", ["a"] * 30_000)
    more = write(tmp_path / "b.jsonl", ["b"] * 30_000)
    settings = {"dataset.sources": [str(source), str(more)], "dataset.shard_bytes": 100_000}
    monkeypatch.setattr("ftcli.core.reading.array_chunks.cuts", lambda *_: pytest.fail("the array was gone through"))
    tried = sample(Context.make(settings))
    assert (tried.files, tried.rows > 30_000) == (2, True)
