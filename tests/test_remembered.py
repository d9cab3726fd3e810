"""Answers about a tokenizer that are kept: given again for the same folder, computed again for any other, never needed."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcli.context import Context
from ftcli.core.engines.backend import tokenizer_hash
from ftcli.core.tokenizer.facts import ids_of, remembered
from ftcli.core.tokenizer.vocabulary import Vocabulary, vocabulary
from ftcli.core.verify.probe import Probe
from ftcli.testing import tiny_tokenizer


@pytest.fixture
def context(tmp_path: Path) -> Context:
    tiny_tokenizer(tmp_path / "tokenizer")
    return Context.make({"tokenizer.path": str(tmp_path / "tokenizer"), "runtime.cache_dir": tmp_path / "cache"})


def test_an_answer_is_computed_once_a_tokenizer(context: Context, tmp_path: Path) -> None:
    asked = []

    def compute() -> dict[str, int]:
        asked.append(1)
        return {"answer": len(asked)}

    assert [remembered(context, "one", compute) for _ in range(2)] == [{"answer": 1}] * 2
    assert remembered(context, "other", compute) == {"answer": 2}
    path = tmp_path / "tokenizer" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 7}))
    assert remembered(context, "one", compute) == {"answer": 3}


def test_a_damaged_answer_is_computed_again(context: Context, tmp_path: Path) -> None:
    remembered(context, "one", lambda: {"answer": 1})
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    assert remembered(context, "one", lambda: {"answer": 3}) == {"answer": 3}


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(context: Context, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert remembered(context, "one", lambda: {"answer": 1}) == {"answer": 1}
    assert remembered(context, "one", lambda: {"answer": 2}) == {"answer": 2}


def test_an_answer_that_another_user_kept_is_used_though_its_time_may_not_be_set(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered(context, "one", lambda: {"answer": 1})

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    assert remembered(context, "one", lambda: {"answer": 2}) == {"answer": 1}


# -- what checks ask about a whole tokenizer ----------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was computed of a tokenizer, in order."""
    found: list[str] = []

    def counted(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: (found.append(name), compute(*arguments))[1]

    monkeypatch.setattr("ftcli.core.engines.backend.tokenizer_hash", counted("hash", tokenizer_hash))
    monkeypatch.setattr("ftcli.core.tokenizer.facts.vocabulary", counted("ids", vocabulary))
    return found


def answers(probe: Probe) -> tuple[str, Vocabulary, Vocabulary]:
    return probe.tokenizer_hash, ids_of(probe), ids_of(probe)


def test_hash_and_ids_of_a_tokenizer_are_made_once_a_folder(context: Context, made: list[str], tmp_path: Path) -> None:
    first = answers(Probe(context))
    assert answers(Probe(context)) == first
    assert made == ["hash", "ids"]
    tokenizer = Probe(context).tokenizer
    assert first == (tokenizer_hash(tokenizer, tmp_path / "tokenizer"), vocabulary(tokenizer), vocabulary(tokenizer))
    path = tmp_path / "tokenizer" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": "{{ messages }}"}))
    assert answers(Probe(context))[0] != first[0]
    assert made == ["hash", "ids"] * 2


def test_nothing_is_taken_from_an_earlier_run_for_a_tokenizer_that_was_given(context: Context, made: list[str]) -> None:
    first = answers(Probe(context))
    given = Probe(context)
    tokenizer = Probe(context).tokenizer
    tokenizer.add_tokens(["<new>"])
    given.give(tokenizer=tokenizer)
    assert answers(given)[0] != first[0]
    assert ids_of(given).rows == first[1].rows + 1
    assert made == ["hash", "ids"] * 2


def test_nothing_is_kept_of_a_folder_that_changed_while_it_was_loaded(context: Context, made: list[str], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer" / "tokenizer_config.json"
    before = path.read_text()

    def load(build: Callable[[], Any]) -> Any:
        path.write_text(json.dumps({**json.loads(before), "chat_template": "{{ messages }}"}))
        return build()

    probe = Probe(context)
    probe._load = load
    changed = answers(probe)
    path.write_text(before)
    assert answers(Probe(context))[0] != changed[0]
    assert made == ["hash", "ids"] * 2


def test_ids_come_back_from_json_as_they_were() -> None:
    found = Vocabulary(5, 9, [3, 4, 6], {1: ["a", "b"]})
    assert Vocabulary.of_json(json.loads(json.dumps(found.as_json()))) == found
