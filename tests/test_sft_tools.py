"""Conversations that call tools, whose answers have weights, and tables of questions and answers as people publish them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from ftcli.core.reading.columns import BadValue
from ftcli.core.reading.conversation import as_document
from ftcli.core.tokenizer.template import Rendered
from ftcli.core.tokenizer.template_answers import Answers
from ftcli.testing import tiny_tokenizer
from test_sft import COLUMNS, MARKED, PLAIN, TAIL, _sft, _template, _write
from tokenizing import rows, without_plots  # noqa: F401

pytestmark = pytest.mark.usefixtures("without_plots")
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} ARGUMENTS</call>{% endfor %}"
SAID = "{{ m.content or '' }}" + CALLS + "<eos>"
THOUGHTS = "{% if m.role == 'assistant' and loop.last %}(hm) {% endif %}"
QUOTING = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>\n"
    + THOUGHTS
    + SAID.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
    + TAIL
)
PLAINLY = QUOTING.replace(
    "{{ c.function.arguments | tojson }}",
    "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}",
)
SAID_PLAINLY = "{{ m.content | trim }}<eos>"
CALLS_JOINED = "{% for c in m.tool_calls or [] %}{{ JOINED }}{% endfor %}"
CALLS_SHOWN = PLAINLY[PLAINLY.index("{% for c in") : PLAINLY.index("<eos>")]
ASKED = {"role": "user", "content": "Weather in Seoul?"}
TOLD = {"role": "tool", "content": "sunny"}
ANSWER = {"role": "assistant", "content": "It is sunny."}


def _call(arguments: Any, content: str | None = None) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"type": "function", "function": {"name": "w", "arguments": arguments}}],
    }


def _render(tokenizer: Any, chat: list[dict[str, Any]]) -> Rendered:
    return _template(tokenizer).render([as_document({"messages": chat}, COLUMNS)])


def _learned(tokenizer: Any, chat: list[dict[str, Any]]) -> list[str]:
    rendered = _render(tokenizer, chat)
    assert rendered.faults == {}
    return [rendered.texts[0][start:stop] for start, stop in rendered.spans[0]]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path / "tokenizer"))


@pytest.mark.parametrize("content", [None, "", "I look."])
def test_calls_are_learned_with_the_words_before_them_and_the_end_of_the_turn(tokenizer: Any, content: str | None) -> None:
    """The text before the tool's answer, alone, is no beginning of the whole: the template writes the last message otherwise, as Qwen3's."""
    tokenizer.chat_template = PLAINLY
    call = f'{content or ""}<call>w {{"city": "Seoul"}}</call><eos>'
    for arguments in ({"city": "Seoul"}, '{"city": "Seoul"}'):
        assert _learned(tokenizer, [ASKED, _call(arguments, content), TOLD, ANSWER]) == [call, "(hm) It is sunny.<eos>"]
        assert _learned(tokenizer, [ASKED, _call(arguments, content), TOLD, ANSWER, ASKED, _call(arguments, content)]) == [
            call,
            "It is sunny.<eos>",
            f"(hm) {call}",
        ]


def test_arguments_in_a_string_are_objects_where_the_template_would_quote_them_again(tokenizer: Any) -> None:
    chat = [ASKED, _call('{"city": "서울"}'), TOLD, ANSWER]
    tokenizer.chat_template = QUOTING
    assert '\\"' in tokenizer.apply_chat_template(chat, tokenize=False)  # what is guarded against
    assert _learned(tokenizer, chat)[0] == '<call>w {"city": "서울"}</call><eos>'
    assert _learned(tokenizer, [ASKED, _call("no JSON"), TOLD, ANSWER])[0] == '<call>w "no JSON"</call><eos>'
    tokenizer.chat_template = PLAINLY
    assert (
        _learned(tokenizer, [ASKED, _call('{"city":"서울"}'), TOLD, ANSWER])[0] == '<call>w {"city":"서울"}</call><eos>'
    )  # as transformers


def test_arguments_and_silence_take_the_form_that_the_template_wants(tokenizer: Any) -> None:
    """As DeepSeek's, which joins strings: arguments that are an object, or a message without a content, end it."""
    joined = "'<call>' + c.function.name + ' ' + c.function.arguments + '</call>'"
    tokenizer.chat_template = QUOTING.replace(
        CALLS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}"), CALLS_JOINED.replace("JOINED", joined)
    )
    for arguments in ({"city": "서울"}, '{"city": "서울"}'):
        assert _learned(tokenizer, [ASKED, _call(arguments), TOLD, ANSWER])[0] == '<call>w {"city": "서울"}</call><eos>'
    tokenizer.chat_template = PLAINLY.replace("{{ m.content or '' }}", "{{ m['content'] + '' }}")
    assert _learned(tokenizer, [ASKED, _call({"a": 1}), TOLD, ANSWER])[0] == '<call>w {"a": 1}</call><eos>'


def test_what_a_template_leaves_out_is_named_and_not_missed_in_silence(tokenizer: Any) -> None:
    """Templates older than tools render an empty answer in place of a call; some know no role but two."""
    told = [ASKED, _call({"a": 1}), TOLD, ANSWER]
    cases = [
        (PLAIN.replace("m.content", "(m.content or '')"), told, "calls of tools"),
        (
            PLAINLY.replace(CALLS_SHOWN, "{% if not m.content %}" + CALLS_SHOWN + "{% endif %}"),
            [ASKED, _call({}, "I look."), TOLD, ANSWER],
            "beside words",
        ),
        (PLAINLY.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}"), told, "what 'tool' says"),
        (
            PLAIN.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}"),
            [{"role": "system", "content": "Be brief."}, ASKED, ANSWER],
            "what 'system' says",
        ),
    ]
    for template, chat, words in cases:
        tokenizer.chat_template = template
        assert "leaves out" in (fault := _render(tokenizer, chat).faults[0])
        assert words in fault
    tokenizer.chat_template = PLAIN.replace(SAID_PLAINLY, "({{ m.thinking }})" + SAID_PLAINLY)
    assert _learned(tokenizer, [ASKED, {**ANSWER, "thinking": "Let me see."}]) == ["(Let me see.)It is sunny.<eos>"]
    tokenizer.chat_template = PLAINLY
    assert _render(tokenizer, [{"role": "system", "content": "Be brief."}, *told]).faults == {}


KNOWING = "{% if m.role in ['system', 'user', 'assistant'] %}"


@pytest.mark.parametrize(
    ("template", "role"),
    [
        (PLAIN.replace("<{{ m.role }}>", KNOWING + "<{{ m.role }}>").replace("<eos>", "<eos>{% endif %}"), "system"),
        (PLAIN.replace("<{{ m.role }}>", KNOWING + "{% else %}{{ raise_exception('who?') }}{% endif %}<{{ m.role }}>"), "system"),
        (PLAIN, "developer"),
    ],
)
def test_what_a_developer_says_is_the_systems_where_the_template_knows_no_developer(tokenizer: Any, template: str, role: str) -> None:
    tokenizer.chat_template = template
    rendered = _render(tokenizer, [{"role": "developer", "content": "Be brief."}, ASKED, ANSWER])
    assert rendered.faults == {}
    assert f"<{role}>" in rendered.texts[0]
    assert "Be brief." in rendered.texts[0]
    both = _render(tokenizer, [{"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Be brief."}, ASKED, ANSWER])
    assert bool(both.faults) is (role == "system")  # two of one part: whose word counts is not for us to say


def test_that_a_developer_is_the_system_is_noted(tmp_path: Path) -> None:
    source = _write(tmp_path / "a.jsonl", [{"messages": [{"role": "developer", "content": "Be brief."}, ASKED, ANSWER]}] * 3)
    folder = tiny_tokenizer(tmp_path / "tokenizer")
    template = PLAIN.replace("<{{ m.role }}>", KNOWING + "<{{ m.role }}>").replace("<eos>", "<eos>{% endif %}")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    report = _sft(folder, source, tmp_path / "out")
    assert any("messages of 'developer' are passed to the chat template as 'system'" in note for note in report.notes)
    assert report.metrics["rows_written"] == 3


def test_tools_that_the_template_does_not_tell_of_are_noted(tmp_path: Path) -> None:
    offered = [{"type": "function", "function": {"name": "w", "description": "d", "parameters": {}}}]
    source = _write(tmp_path / "a.jsonl", [{"messages": [ASKED, ANSWER], "tools": offered}, {"messages": [ASKED, ANSWER]}] * 2)
    for name, template, noted in (("silent", PLAIN, True), ("telling", PLAIN + "{{ tools | tojson if tools else '' }}", False)):
        folder = tiny_tokenizer(tmp_path / name)
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        report = _sft(folder, source, tmp_path / f"of-{name}", dataset__assistant_only_loss=False)
        assert any("2 of them offer tools" in note for note in report.notes) is noted


def test_a_template_that_refuses_a_tools_answer_without_a_call_names_the_message(tokenizer: Any) -> None:
    refuse = "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('no call') }}{% endif %}"
    tokenizer.chat_template = PLAINLY.replace("<{{ m.role }}>", refuse + "<{{ m.role }}>")
    rendered = _render(tokenizer, [ASKED, _call({"a": 1}), TOLD, ANSWER])
    assert "message 2" in rendered.faults[0]


def test_sharegpts_calls_become_calls_of_the_assistant(tokenizer: Any) -> None:
    turns = [("human", "Weather?"), ("function_call", '{"name": "w", "arguments": {"a": 1}}'), ("observation", "sunny"), ("gpt", "Sunny.")]
    row = {"conversations": [{"from": speaker, "value": words} for speaker, words in turns], "tools": "[]"}
    messages = json.loads(as_document(row, COLUMNS))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["tool_calls"] == [{"type": "function", "function": {"name": "w", "arguments": {"a": 1}}}]
    for wrong in ("w(a=1)", '{"name": "w"}', "[]", '"w"'):
        row["conversations"][1]["value"] = wrong
        with pytest.raises(BadValue, match=r"message 2 .* not a JSON call"):
            as_document(row, COLUMNS)


def test_a_table_that_fills_calls_up_with_nulls_gives_what_json_lines_give(tmp_path: Path) -> None:
    folder = tiny_tokenizer(tmp_path / "tokenizer")
    (folder / "chat_template.jinja").write_text(PLAINLY, encoding="utf-8")
    chats = [{"messages": [ASKED, _call(arguments), TOLD, ANSWER]} for arguments in ({"city": "Seoul"}, {"day": 3}) * 4]
    _sft(folder, _write(tmp_path / "a.jsonl", chats), tmp_path / "lines")
    pq.write_table(pa.Table.from_pylist(chats), tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").to_pylist()[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]["day"] is None
    _sft(folder, tmp_path / "a.parquet", tmp_path / "table")
    assert rows(tmp_path / "table") == rows(tmp_path / "lines")


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_an_answer_of_weight_0_is_read_and_not_learned(tokenizer: Any, template: str) -> None:
    tokenizer.chat_template = template
    said = [{"role": "assistant", "content": words, "weight": weight} for words, weight in (("wrong", 0), ("right", 1))]
    assert _learned(tokenizer, [ASKED, said[0], ASKED, said[1]]) == ["right<eos>"]
    with pytest.raises(BadValue, match=r"message 1 .* has the weight 0.5"):
        as_document({"messages": [{**ANSWER, "weight": 0.5}]}, COLUMNS)


def test_weights_are_refused_where_the_templates_marks_do_not_tell_messages_apart(tokenizer: Any) -> None:
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}{% endfor %}{% generation %}{{ messages[-1].content }}{% endgeneration %}"
    chat = [ASKED, {**ANSWER, "weight": 0}, ASKED, ANSWER]
    assert "weight 0" in _render(tokenizer, chat).faults[0]
    assert _learned(tokenizer, [ASKED, ANSWER, ASKED, ANSWER]) == [ANSWER["content"]]  # the marks are the template's


def test_a_completion_is_learned_as_a_whole_and_its_prompt_may_call_tools(tokenizer: Any) -> None:
    tokenizer.chat_template = QUOTING
    rendered = _template(tokenizer).render([as_document({"prompt": [ASKED, _call('{"a": 1}'), TOLD], "completion": [ANSWER]}, COLUMNS)])
    assert rendered.faults == {}
    assert [rendered.texts[0][start:stop] for start, stop in rendered.spans[0]] == ["(hm) It is sunny.<eos>\n"]
    rendered = _template(tokenizer).render([as_document({"prompt": [ASKED], "completion": [{**ANSWER, "weight": 0}]}, COLUMNS)])
    assert "completion has the weight 0" in rendered.faults[0]


def test_what_a_question_is_about_and_what_was_said_before_are_read() -> None:
    row = {"instruction": "Sum it up.", "context": "A long story.", "response": "Short.", "category": "x"}
    assert json.loads(as_document(row, COLUMNS))["prompt"] == [{"role": "user", "content": "Sum it up.\n\nA long story."}]
    row = {"instruction": "And?", "input": "", "output": "So.", "history": [["Why?", "Because."]]}
    assert [message["content"] for message in json.loads(as_document(row, COLUMNS))["prompt"]] == ["Why?", "Because.", "And?"]
    for wrong in ("Why?", [["Why?"]], [["Why?", 3]]):
        with pytest.raises(BadValue, match="'history'"):
            as_document({**row, "history": wrong}, COLUMNS)


def test_an_instruction_with_its_one_example_is_a_conversation() -> None:
    row = {"id": "seed_task_0", "instruction": "Add.", "instances": [{"input": "1 1", "output": "2"}]}
    alpaca = {"instruction": "Add.", "input": "1 1", "output": "2"}
    assert as_document(row, COLUMNS) == as_document(alpaca, COLUMNS)
    assert as_document({**row, "instances": [{"output": "2"}]}, COLUMNS) == as_document({**alpaca, "input": ""}, COLUMNS)
    assert as_document({**row, "output": "3"}, COLUMNS) == as_document({"instruction": "Add.", "output": "3"}, COLUMNS)
    for wrong, words in (
        ([], "holds 0 examples"),
        (row["instances"] * 2, "holds 2 examples"),
        (["2"], "list with one object"),
        ("2", "list"),
    ):
        with pytest.raises(BadValue, match=words):
            as_document({**row, "instances": wrong}, COLUMNS)
    with pytest.raises(BadValue, match="'output' is null"):
        as_document({**row, "instances": [{"input": "1 1"}]}, COLUMNS)


def test_the_hint_names_the_columns_that_are_there() -> None:
    with pytest.raises(BadValue) as refused:
        as_document({"id": "1", "system_prompt": "s", "question": "q", "response": "a"}, COLUMNS)
    assert refused.value.hint.endswith("--rename instruction=question,output=response,system=system_prompt.")
    with pytest.raises(BadValue) as refused:
        as_document({"a": "q", "b": "a"}, COLUMNS)
    assert refused.value.hint.endswith("--rename instruction=question,output=answer.")
    with pytest.raises(BadValue) as refused:
        as_document({"prompt": [ASKED], "chosen": [ANSWER], "rejected": [ANSWER]}, COLUMNS)
    assert refused.value.hint.endswith("--rename completion=chosen.")


SAYINGS = (
    "hello",
    "  led",
    "trailed \n",
    "a<b>",
    "한국어",
    "\n\nx\n",
    "<think>\nhm\n</think>\n\nyes",
    "assistant",
    "<eos>",
    "Qx7",
    "",
    "  ",
)


def _conversation(draw: random.Random) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": "be brief"}] if draw.random() < 0.3 else []
    for number in range(draw.randint(2, 4)):
        messages.append({"role": "user", "content": draw.choice(SAYINGS) + str(number)})
        for _ in range(1 if draw.random() < 0.85 else 2):
            said = {"role": "assistant", "content": draw.choice(SAYINGS) + draw.choice(["", "!"]) + draw.choice(SAYINGS)}
            messages.append(said | ({"weight": 0} if draw.random() < 0.1 else {}))
    return messages


def _one_by_one(monkeypatch: pytest.MonkeyPatch, tokenizer: Any, documents: list[str]) -> Rendered:
    """As a prompt before each answer tells."""
    with monkeypatch.context() as patch:
        patch.setattr(Answers, "at_once", lambda *_: {})
        return _template(tokenizer).render(documents)


@pytest.mark.parametrize("template", [PLAIN, PLAINLY, PLAIN.replace("m.content | trim", "m.content")])
def test_answers_told_at_once_are_those_told_one_by_one(tokenizer: Any, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer.chat_template = template
    draw = random.Random(7)
    documents = [as_document({"messages": _conversation(draw)}, COLUMNS) for _ in range(200)]
    told: list[int] = []
    at_once = Answers.at_once
    monkeypatch.setattr(Answers, "at_once", lambda *given: (told.append(len(found := at_once(*given))), found)[1])
    found = _template(tokenizer).render(documents)
    assert told[0] > 50  # else nothing is compared
    assert (found.spans, found.faults) == ((other := _one_by_one(monkeypatch, tokenizer, documents)).spans, other.faults)


@pytest.mark.real
@pytest.mark.parametrize("name", ["qwen3", "qwen2.5", "phi-3-mini"])
def test_answers_told_at_once_by_real_templates(real_data: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = AutoTokenizer.from_pretrained(real_data / "tokenizers" / name)
    draw = random.Random(7)
    documents = [as_document({"messages": _conversation(draw)}, COLUMNS) for _ in range(100)]
    found, other = _template(tokenizer).render(documents), _one_by_one(monkeypatch, tokenizer, documents)
    assert (found.spans, found.faults) == (other.spans, other.faults)


@pytest.mark.real
@pytest.mark.parametrize(("name", "empty"), [("qwen3", "<think>\n\n</think>\n\n"), ("qwen2.5", "")])
def test_calls_in_the_words_of_real_templates(real_data: Path, name: str, empty: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(real_data / "tokenizers" / name)
    chat = [ASKED, _call('{"city": "Seoul"}'), TOLD, ANSWER]
    call = '<tool_call>\n{"name": "w", "arguments": {"city": "Seoul"}}\n</tool_call><|im_end|>'
    first, second = _learned(tokenizer, chat)
    assert (first.strip(), second) == (call, f"{empty}It is sunny.<|im_end|>")
