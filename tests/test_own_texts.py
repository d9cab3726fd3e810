"""The sample of a run's own texts is of all of what was drawn from, not of its beginning."""

from __future__ import annotations

from pathlib import Path

from ftcli.context import Context
from ftcli.core.prepare import own_texts as module
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
