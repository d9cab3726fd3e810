"""The first rows of a plan are read once, whoever looks at them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ftcli.core.prepare import beginning
from ftcli.core.prepare.beginning import first_batches, forget
from ftcli.core.reading.read import make_plan
from ftcli.errors import DataError
from tokenizing import context, corpus, small_tokenizers, write

kinds = small_tokenizers


@pytest.fixture(autouse=True)
def _none_kept():
    forget()
    yield
    forget()


@pytest.fixture
def made(kinds, tmp_path):
    """A context, and a plan of two shards."""
    run = context(kinds["bpe"], write(tmp_path / "data.jsonl", corpus(200)), tmp_path / "out", dataset__shard_bytes=2_000)
    plan = make_plan(run.settings, run.plugins.registry("source"))
    assert len(plan.shards) > 1
    return run, plan


@pytest.fixture
def reads(monkeypatch):
    """The shards that were begun to be read."""
    begun = []
    read_shard = beginning.read_shard
    monkeypatch.setattr(beginning, "read_shard", lambda shard, *more: begun.append(shard) or read_shard(shard, *more))
    return begun


def texts(run, plan):
    return [text for _, batch in first_batches(run, plan) for text in batch.column("text").to_pylist()]


def test_a_shard_is_read_once(made, reads):
    run, plan = made
    assert next(first_batches(run, plan))[0] == plan.shards[0].pieces[0]
    whole = texts(run, plan)
    assert (
        whole
        == texts(run, plan)
        == [
            text
            for _, batch in beginning.read_shard(plan.shards[0], plan.columns, run.settings, run.plugins.registry("source"))
            for text in batch.column("text").to_pylist()
        ]
    )
    assert len(reads) == 2, "one of them is this test's own"


def test_another_shard_and_other_columns_are_read_anew(made, reads):
    run, plan = made
    first = texts(run, plan)
    assert texts(run, replace(plan, shards=plan.shards[1:])) != first
    assert texts(run, replace(plan, columns=replace(plan.columns))) == first
    assert len(reads) == 3
    assert texts(run, replace(plan, shards=())) == []


def test_a_bad_row_is_told_to_everybody(kinds, tmp_path):
    source = tmp_path / "data.jsonl"
    source.write_text("".join(json.dumps({"text": "good"}) + "\n" for _ in range(3)) + '{"text": 1}\n')
    run = context(kinds["bpe"], source, tmp_path / "out")
    source_formats = run.plugins.registry("source")
    source.write_text(source.read_text().replace("1}", '"1"}'))
    plan = make_plan(run.settings, source_formats)
    source.write_text(source.read_text().replace('"1"}', "1}"))
    for _ in range(2):
        with pytest.raises(DataError, match=r"data\.jsonl:4"):
            texts(run, plan)


def test_what_is_kept_can_be_freed(made, reads):
    run, plan = made
    texts(run, plan)
    forget()
    texts(run, plan)
    assert len(reads) == 2


def test_a_batch_is_read_when_it_is_asked_for(made):
    run, plan = made
    next(first_batches(run, plan))
    assert len(beginning._kept[0].batches) == 1
