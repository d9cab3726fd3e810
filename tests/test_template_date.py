"""A chat template that asks for today's date gets one, the same in every process of a run, and it is part of the fingerprint."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

from ftcli import settings as settings_module
from ftcli.commands import cache, tokenize
from ftcli.context import Context
from ftcli.core.tokenizer.template import Template
from ftcli.errors import PublishError, SettingsError, TokenizerError, UsageError
from ftcli.testing import tiny_tokenizer
from tokenizing import context, manifest, prepare, rows, without_plots  # noqa: F401

pytestmark = pytest.mark.usefixtures("without_plots", "nursery")
CLOCK = datetime(2026, 11, 28, 23, 59)  # noqa: DTZ001
DATED = (
    "{% if strftime_now is defined %}<system>{{ strftime_now('%d %b %Y %H:%M') }}<eos>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
UNDATED = DATED.replace("strftime_now('%d %b %Y %H:%M')", "'today'").replace("strftime_now", "messages")
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
Days = Callable[[str], None]


@pytest.fixture
def today(monkeypatch: pytest.MonkeyPatch) -> Days:
    """Sets the day that ftcli takes for today, in this process alone."""

    def be(day: str) -> None:
        monkeypatch.setattr(settings_module, "date", type("Then", (date,), {"today": classmethod(lambda _: date.fromisoformat(day))}))

    return be


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tiny_tokenizer(tmp_path / "tokenizer")
    (folder / "chat_template.jinja").write_text(DATED, encoding="utf-8")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    path.write_text((json.dumps({"messages": CHAT}) + "\n") * 40, encoding="utf-8")
    return path


def values(**more: Any) -> dict[str, Any]:
    return {"train__mode": "sft", "packing__max_length": 128, **more}


def written(tokenizer: Path, output: Path) -> set[str]:
    """The dates of all rows."""
    decode = AutoTokenizer.from_pretrained(tokenizer).decode
    return {decode(row["input_ids"]).removeprefix("<system>").partition("<eos>")[0] for row in rows(output)}


def test_every_row_has_the_day_of_the_run_whatever_the_clock_of_a_worker_says(
    tokenizer: Path, source: Path, tmp_path: Path, today: Days
) -> None:
    today("2024-02-29")
    made = context(tokenizer, source, tmp_path / "out", **values(dataset__shard_bytes=1_000, dataset__num_proc=2))
    tokenize.run(made)
    assert written(tokenizer, tmp_path / "out") == {"29 Feb 2024 00:00"}
    assert any(
        "inserts a date into conversations, 2024-02-29: today's" in note and "--template-date 2024-02-29" in note for note in made.notes
    )
    assert manifest(tmp_path / "out")["chat_template"]["day"] == "2024-02-29"


def test_on_another_day_the_same_is_taken_only_by_its_date(tokenizer: Path, source: Path, tmp_path: Path, today: Days) -> None:
    today("2024-02-29")
    prepare(tokenizer, source, tmp_path / "out", **values())
    assert prepare(tokenizer, source, tmp_path / "out", **values()).metrics["reused"]
    today("2024-03-01")
    with pytest.raises(PublishError, match="date in the chat template: 2024-02-29 there, 2024-03-01 now") as refused:
        prepare(tokenizer, source, tmp_path / "out", **values())
    assert "--template-date 2024-02-29" in refused.value.hint
    assert prepare(tokenizer, source, tmp_path / "out", **values(tokenizer__template_date="2024-02-29")).metrics["reused"]
    prepare(tokenizer, source, tmp_path / "other", **values())
    assert written(tokenizer, tmp_path / "other") == {"01 Mar 2024 00:00"}
    why = cache.run(Context.make(), "why", [tmp_path / "out", tmp_path / "other"], False).details["differences"]["rows"]
    assert why == [["date in the chat template", "2024-02-29", "2024-03-01"]]


def test_where_the_template_asks_for_no_date_the_day_is_no_matter(tokenizer: Path, source: Path, tmp_path: Path, today: Days) -> None:
    (tokenizer / "chat_template.jinja").write_text(UNDATED, encoding="utf-8")
    today("2024-02-29")
    prepare(tokenizer, source, tmp_path / "out", **values())
    today("2024-03-01")
    assert prepare(tokenizer, source, tmp_path / "out", **values()).metrics["reused"]
    prepare(tokenizer, source, tmp_path / "other", **values())
    assert manifest(tmp_path / "out")["fingerprint"] == manifest(tmp_path / "other")["fingerprint"]
    assert "date in the chat template" not in manifest(tmp_path / "out")["inputs"]
    for output in ("out", "new"):
        with pytest.raises(UsageError, match="template_date = 2024-02-29 is for chat templates that insert today's date"):
            prepare(tokenizer, source, tmp_path / output, **values(tokenizer__template_date="2024-02-29"))


def test_parts_need_one_date_for_all_and_make_what_one_run_makes(tokenizer: Path, source: Path, tmp_path: Path, today: Days) -> None:
    more: dict[str, Any] = {"dataset__shard_bytes": 1_000}
    today("2024-02-29")
    prepare(tokenizer, source, tmp_path / "plain", **values(**more))
    for shard, finish in (("1/2", False), (None, True)):
        with pytest.raises(UsageError, match="parts prepared on different days or in different time zones") as refused:
            tokenize.run(context(tokenizer, source, tmp_path / "out", **values(**more)), shard, finish)
        assert refused.value.hint.endswith("--template-date 2024-02-29")
    more["tokenizer__template_date"] = "2024-02-29"
    for day, shard in (("2024-02-29", "1/2"), ("2024-03-01", "2/2"), ("2024-03-02", None)):
        today(day)
        tokenize.run(context(tokenizer, source, tmp_path / "out", **values(**more)), shard, shard is None)
    assert written(tokenizer, tmp_path / "out") == {"29 Feb 2024 00:00"}
    assert all(manifest(tmp_path / "out")[key] == manifest(tmp_path / "plain")[key] for key in ("fingerprint", "content_hash", "receipt"))


def test_what_is_no_date_and_one_without_conversations_are_refused(tokenizer: Path, source: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"tokenizer\.template_date = 'today'.*a date is written as 2026-11-28"):
        context(tokenizer, source, tmp_path / "out", **values(tokenizer__template_date="today"))
    assert context(tokenizer, source, tmp_path, tokenizer__template_date=date(2024, 2, 29)).settings.tokenizer.template_date == "2024-02-29"
    with pytest.raises(UsageError, match="template_date = 2024-02-29 is for conversations"):
        prepare(tokenizer, source, tmp_path / "out", tokenizer__template_date="2024-02-29")


def test_transformers_own_words_are_dated_too_also_by_a_template_for_tools(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", type("Then", (datetime,), {"now": classmethod(lambda _: CLOCK)}))
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    loaded.chat_template = {"default": UNDATED, "tool_use": DATED.replace("Ho", "Ha") + " "}
    document = json.dumps({"shape": "messages", "kind": "chat", "messages": CHAT, "tools": [{"type": "function"}]})
    for day, text in (("2024-02-29", "29 Feb 2024 00:00"), ("2024-03-01", "01 Mar 2024 00:00")):
        template = Template(loaded, "t", assistant_only=None, completion_only=None, add_eos=None, day=day)
        assert template.day == day
        assert template.render([document]).texts[0].startswith(f"<system>{text}<eos><user>Hi<eos>")
        assert str(loaded.apply_chat_template(CHAT, tools=[{"type": "function"}], tokenize=False)).startswith(f"<system>{text}")
    monkeypatch.delattr(chat_template_utils, "_compile_jinja_template")
    with pytest.raises(TokenizerError, match="this version of transformers cannot be told which day"):
        template.render([document])
