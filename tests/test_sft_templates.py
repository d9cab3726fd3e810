"""What is learned of conversations by chat templates as models have them: those that come with TRL, and habits that were seen in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ftcli.core.reading.columns import BadValue
from ftcli.core.reading.conversation import as_document
from ftcli.core.tokenizer.template import Rendered
from ftcli.testing import tiny_tokenizer
from test_sft import COLUMNS, PLAIN, _template

trl = pytest.importorskip("trl")
FOLDER = Path(trl.__file__).parent / "chat_templates"
SPECIAL = re.compile(r"<[|｜][^|｜<>]*[|｜]>|<\w+_of_turn>|<turn\|>|<\|turn>")
CALL = {"type": "function", "id": "a1b2c3d4e", "function": {"name": "f", "arguments": {"a": 1}}}
ASKED, AGAIN = {"role": "user", "content": "q"}, {"role": "user", "content": "SECRET"}
TOLD = {"role": "tool", "name": "f", "tool_call_id": "a1b2c3d4e", "content": "SECRET"}
THOUGHTS = "<think>\nhm\n</think>\n\nYes"


def _said(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("templates") / "t")


def _render(folder: Path, template: str, row: dict[str, Any]) -> Rendered:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    if path := (FOLDER / f"{template}.jinja" if "{" not in template else None):
        if not path.is_file():
            pytest.skip(f"this TRL has no template {template}")
        tokenizer.chat_template = path.read_text(encoding="utf-8")
        tokenizer.add_special_tokens({"additional_special_tokens": sorted(set(SPECIAL.findall(tokenizer.chat_template)))})
    return _template(tokenizer).render([as_document(row, COLUMNS)])


def _learned(folder: Path, template: str, row: dict[str, Any]) -> list[str]:
    rendered = _render(folder, template, row)
    assert rendered.faults == {}
    return [rendered.texts[0][start:stop] for start, stop in rendered.spans[0]]


def _chat(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [ASKED, *messages]}


@pytest.mark.parametrize(
    ("template", "row", "wanted"),
    [
        ("qwen3", _chat(_said(THOUGHTS), AGAIN, _said(THOUGHTS)), ["Yes<|im_end|>", f"{THOUGHTS}<|im_end|>"]),
        ("qwen3_5_think", _chat(_said(THOUGHTS), AGAIN, _said(THOUGHTS)), ["Yes<|im_end|>", "hm\n</think>\n\nYes<|im_end|>"]),
        ("glm4moe", _chat(_said(THOUGHTS), AGAIN, _said(THOUGHTS)), ["\n<think></think>\nYes", "\n<think>hm</think>\nYes"]),
        (
            "gptoss",
            _chat(_said("hello"), AGAIN, _said("bye")),
            ["<|channel|>final<|message|>hello<|end|>", "<|channel|>final<|message|>bye<|return|>"],
        ),
        ("gptoss", {"instruction": "q", "output": "hello"}, ["<|channel|>final<|message|>hello<|return|>"]),
        ("deepseek_r1_distill", {"instruction": "q", "output": "hello"}, ["hello<eos>"]),
        ("nemotron_3_nano", {"prompt": [ASKED], "completion": [_said("hello")]}, ["hello<|im_end|>\n"]),
        ("llama3_1", _chat(_said("hello", tool_calls=[])), ["hello<|eot_id|>"]),
        ("qwen3", _chat(_said(""), AGAIN, _said("bye")), ["<think>\n\n</think>\n\nbye<|im_end|>"]),
        ("phi3", _chat(_said(""), AGAIN, _said("bye")), ["bye<|end|>"]),
        ("qwen3", {"instruction": "q", "output": " "}, []),
    ],
)
def test_exactly_what_an_assistant_says_is_learned(folder: Path, template: str, row: dict[str, Any], wanted: list[str]) -> None:
    found = _learned(folder, template, row)
    end = _eos(folder) if template == "deepseek_r1_distill" else ""
    assert found == [text.replace("<eos>", end) if end else text for text in wanted]


def _eos(folder: Path) -> str:
    text = (FOLDER / "deepseek_r1_distill.jinja").read_text(encoding="utf-8") if FOLDER.is_dir() else ""
    return "<｜end▁of▁sentence｜>" if "<｜end▁of▁sentence｜>" in text else str(AutoTokenizer.from_pretrained(folder).eos_token)


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3", "deepseekv3", "glm4moe", "nemotron_3_nano", "lfm2_v2", "qwen3_5_think"])
def test_words_beside_a_call_are_learned_with_it_and_the_tools_are_not(folder: Path, template: str) -> None:
    found = _learned(folder, template, _chat(_said("OK", tool_calls=[CALL]), TOLD, _said("OK")))
    assert len(found) == 2
    assert "SECRET" not in "".join(found)
    assert re.search(r"OK.*\bf\b", found[0], re.DOTALL)
    assert "OK" in found[1]


@pytest.mark.parametrize(
    ("template", "row", "words"),
    [
        ("llama3_1", _chat(_said("OK", tool_calls=[CALL]), TOLD, _said("OK")), "words that stand beside calls"),
        ("gptoss", _chat(_said("OK", tool_calls=[CALL]), TOLD, _said("OK")), "words that stand beside calls"),
        ("gemma4", _chat(_said("OK", tool_calls=[CALL]), TOLD, _said("OK")), "words that stand beside calls"),
        ("deepseek_r1_distill", _chat(_said(THOUGHTS)), "the thoughts of message 2"),
        ("deepseek_r1_distill", _chat(_said(THOUGHTS), AGAIN, _said(THOUGHTS)), "the thoughts of message 4"),
        ("deepseek_r1_distill", {"instruction": "q", "output": THOUGHTS}, "differently alone"),
        ("deepseekv3_training", _chat(_said(THOUGHTS)), "the thoughts of message 2"),
    ],
)
def test_what_a_template_leaves_out_or_mixes_is_no_row_to_learn(folder: Path, template: str, row: dict[str, Any], words: str) -> None:
    assert words in _render(folder, template, row).faults[0]


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}'])
def test_arguments_are_written_as_the_template_writes_an_object(folder: Path, arguments: Any) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    assert "call:f{a:1}" in _learned(folder, "gemma4", _chat(_said(None, tool_calls=[call]), TOLD, _said("OK")))[0]
    printing = PLAIN.replace(
        "{{ m.content | trim }}",
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments }}{% endfor %}",
    )
    assert '{"a": 1}' in _learned(folder, printing, _chat(_said("", tool_calls=[call]), TOLD, _said("OK")))[0]


def test_an_empty_list_of_calls_is_none_for_a_template_that_asks_whether_there_is_one(folder: Path) -> None:
    mistral = PLAIN.replace("{{ m.content | trim }}", "{% if m.tool_calls is defined %}[CALLS]{% else %}{{ m.content }}{% endif %}")
    assert _learned(folder, mistral, _chat(_said("hello", tool_calls=[]))) == ["hello<eos>"]


def test_messages_as_others_write_them_are_those_of_chat_templates() -> None:
    def first(row: dict[str, Any]) -> Any:
        return json.loads(as_document(row, COLUMNS))["messages"]

    function = {"name": "f", "arguments": '{"a": 1}'}
    call = {"type": "function", "function": function}
    answered = {"role": "function", "name": "f", "content": "42"}
    assert first(_chat({"role": "assistant", "content": "Let me see.", "function_call": function}, answered))[1:] == [
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "name": "f", "content": "42"},
    ]
    assert first(_chat({"role": "assistant", "content": None, "function_call": function}))[1] == {"role": "assistant", "tool_calls": [call]}
    assert first(_chat(_said(None, tool_calls=json.dumps([call]))))[1]["tool_calls"] == [call]
    roles = [{"role": role, "content": "a"} for role in ("System", "human", "gpt", "User", "model", "observation")]
    assert [message["role"] for message in first({"messages": roles})] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "observation",
    ]
    spoken = [{"from": "Human", "value": "a"}, {"from": "function_call", "value": json.dumps(function), "weight": 0}]
    assert [message.get("weight") for message in first({"conversations": spoken})] == [None, 0]
    for key in ("train", "training", "loss"):
        assert [message.get("weight") for message in first(_chat(_said("a", **{key: False}), AGAIN, _said("b", **{key: True})))] == [
            None,
            0,
            None,
            None,
        ]
    with pytest.raises(BadValue, match="tool_calls"):
        as_document(_chat(_said("a", tool_calls=[1])), COLUMNS)
    with pytest.raises(BadValue, match="has the weight 2"):
        as_document({"conversations": [{**spoken[1], "weight": 2}]}, COLUMNS)


@pytest.mark.parametrize("asked", ["q", [ASKED], json.dumps([ASKED])])
@pytest.mark.parametrize("answer", ["a", [_said("a")], json.dumps([_said("a")])])
def test_a_text_beside_messages_is_one_of_them(asked: Any, answer: Any) -> None:
    found = json.loads(as_document({"prompt": asked, "completion": answer}, COLUMNS))
    if (asked, answer) == ("q", "a"):
        assert (found["kind"], found["prompt"]) == ("text", "q")
    else:
        assert (found["prompt"], found["completion"]) == ([ASKED], [_said("a")])
