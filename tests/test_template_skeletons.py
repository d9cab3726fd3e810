"""Conversations that are put together are those which transformers renders, whatever a template does with words."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ftcli.core.reading.conversation import as_document
from ftcli.core.tokenizer import template_skeletons, template_trace
from ftcli.core.tokenizer.template_skeletons import Renderer
from ftcli.errors import TokenizerError
from ftcli.testing import tiny_tokenizer
from test_sft import COLUMNS, _template

BITS = (
    *("", "", " ", "\n", "\t", "a", "user", "HEY", "hello", "가", "!", '"', "\\n", "{}", "%s", "<b>", "0"),
    *("<think>", "</think>", "<tool_response>", "</tool_response>", "[INST]", "<|im_end|>", "</s>", "\ue0f0", "\ue0f1"),
)
EVERY = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>BODY{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
MACRO = "{% macro said(m, strip=true) %}{{ m.content | trim if strip else m.content }}{% endmacro %}"
FOLLOWED = {
    "words": "{{ m.content }}",
    "strip": "{{ m['content'].strip() + '\n' }}",
    "trim": "{{ m.content | trim | default('x') }}!",
    "chain": "{{ m.content.lstrip('\n').rstrip().replace('a', 'b').removeprefix('h') }}",
    "in": "{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}",
    "pieces": "{% set p = m.content.split('<think>', 1) %}{{ p | first }}|{{ p | last | trim }}",
    "starts": "{{ 'r' if m.content.startswith('<tool_response>') and m.content.endswith(('>', '!')) else m.content }}",
    "empty": "{% if not m.content %}-{% endif %}{{ m.content or 'nothing' }}",
    "equal": "{{ 'same' if m.content == 'hello' or m.content in ['a', 'user'] or '!' != m.content else m.content }}",
    "sum": "{% set t = '<' + m.content %}{% set t = t + '>' %}{{ 'x' if '<a' in t or t == '<>' else t.strip('<') }}",
    "namespace": "{% set n = namespace(t='') %}{% set n.t = n.t + m.content %}{{ n.t | trim }}{{ n.t | string }}",
    "macro": MACRO + "{% set t = said(m) %}{{ t if 'user' in t else said(m, false) }}",
    "joined": "{{ m.content ~ '!' ~ loop.index }}",
    "type": "{% if m.content is string and m.content is not none and m.content is defined %}{{ m.content }}{% endif %}",
    "items": "{% for key, value in m.items() %}{% if key != 'role' %}{{ value | trim }}{% endif %}{% endfor %}",
    "index": "{{ m.content if loop.index0 % 2 == 0 else messages[loop.index0 - 1].content }}",
    "values": "{% set t = m.values() | join('|') %}{{ 'x' if '|a' in t else t }}",
    "called": "{% macro w() %}{% set t = caller() %}{{ 'x' if '(a' in t else t | trim }}{% endmacro %}{% call w() %}({{ m.content }}){% endcall %}",
    "generation": "{% generation %}{{ m.content }}{% endgeneration %}!",
    "selected": "{{ (messages | selectattr('role', 'equalto', 'user') | list | last).content }}",
    "refused": "{{ raise_exception('no') if 'hello' in m.content else m.content }}",
}
"""What a template may do with words so that conversations are put together."""
RENDERED = {
    "json": "{{ m.content | tojson }}",
    "json of all": "{{ m | tojson }}",
    "upper": "{{ m.content | upper }}{{ m.content.title() }}",
    "length": "{{ m.content | length }}{% if m.content | length > 3 %}long{% endif %}",
    "slice": "{{ m.content[:3] }}",
    "characters": "{% for c in m.content %}{{ c }}-{% endfor %}",
    "format": "{{ 'an a' if '%s!' % m.content == 'a!' else m.content }}",
    "format of several": "{{ 'an a' if '%s!' % (m.content,) == 'a!' else m.content }}",
    "method": "{{ '<{}>'.format(m.content) }}",
    "sought": "{{ 'said' if m.content in 'hello user a 0' else m.content }}",
    "begun": "{{ 'said' if 'hello user'.startswith(m.content) else m.content }}",
    "counted": "{{ 'hello a user a'.replace(m.content, '?') if m.content else '' }}",
    "block": "{% set t %}({{ m.content }}){% endset %}{{ 'x' if '(a' in t else t | trim }}",
    "filter block": "{% filter upper %}{{ m.content }}{% endfilter %}",
    "joined and asked": "{% set t = m.content ~ '!' %}{{ 'x' if 'a!' in t else t }}",
    "key": "{{ {'a': 'A'}[m.content] or m.content }}",
    "key by method": "{{ {'a': 'A', '!': 'B'}.get(m.content, m.content) }}",
    "times": "{{ m.content * 2 }}",
    "order": "{{ 'low' if m.content < 'b' else m.content }}",
    "escaped": "{{ m.content | e }}",
    "replaced": "{{ m.content | replace('a', 'b') }}",
    "trimmed by": "{{ 'user hello' | trim(m.content) if m.content else '' }}",
    "listed": "{{ [m.content, 'x'] | join(', ') | upper }}",
    "mapped": "{{ messages | map(attribute='content') | map('upper') | join('|') }}",
    "found": "{{ m.content.find('a') }}{{ m.content.count('!') }}",
    "compared": "{{ 'again' if messages[0].content == m.content and not loop.first else m.content }}",
    "changed": "{{ 'new' if loop.changed(m.content) else 'old' }}",
    "tested": "{{ 'UP' if m.content is upper else m.content }}",
    "tested for a part": "{{ 'x' if m.content is in 'a user' else m.content }}",
    "printed": "{{ 'x' if 'user' in m.values() | list | string else m.content }}",
}
"""What is not followed, at least for some words: then conversations are rendered."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path_factory.mktemp("skeletons") / "t"))


def _conversation(draw: random.Random) -> list[dict[str, str]]:
    roles = ["system"] * (draw.random() < 0.3) + ["user", "assistant"] * draw.choice([1, 1, 2]) + ["user"] * (draw.random() < 0.3)
    return [{"role": role, "content": "".join(draw.choices(BITS, k=draw.choice([0, 1, 1, 2, 4])))} for role in roles]


def _compared(tokenizer: Any, template: str, count: int, *, marked: bool = False) -> int:
    """Conversations that were put together; those are compared with what transformers renders.

    The first of all roles say nothing that a template asks for: what would be overheard then shows only later.
    """
    tokenizer.chat_template = template
    renderer, draw, made = Renderer(tokenizer, template, asks_day=False), random.Random(11), 0
    chats = [(_conversation(draw), draw.random() < 0.5) for _ in range(count)]
    first = [([message | {"content": "zQ"} for message in chat], prompt) for chat, prompt in chats]
    for chat, prompt in [*first, *chats]:
        try:
            (found,) = renderer._put_together([chat], prompt and not marked, marked)
        except TokenizerError:
            pytest.fail("what was overheard was found by a comparison alone")
        if found is not None:
            made += 1
            assert [found] == renderer._apply([chat], None, prompt and not marked, marked), chat
    return made


@pytest.mark.parametrize("what", FOLLOWED)
def test_what_is_followed_is_rendered_alike(what: str, tokenizer: Any) -> None:
    assert _compared(tokenizer, EVERY.replace("BODY", FOLLOWED[what]), 90) > 100


@pytest.mark.parametrize("what", RENDERED)
def test_what_is_not_followed_is_left_to_transformers(what: str, tokenizer: Any) -> None:
    assert _compared(tokenizer, EVERY.replace("BODY", RENDERED[what]), 80) < 140


def test_templates_as_models_have_them(tokenizer: Any) -> None:
    trl = pytest.importorskip("trl")
    files = sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
    made = {file.stem: _compared(tokenizer, file.read_text(encoding="utf-8"), 15) for file in files}
    assert {"qwen3", "llama3", "deepseekv3", "glm4moe", "qwen3_training"} <= {name for name, count in made.items() if count > 20}


def test_what_templates_mark_is_told_alike(tokenizer: Any) -> None:
    trl = pytest.importorskip("trl")
    files = sorted((Path(trl.__file__).parent / "chat_templates").glob("*_training.jinja"))
    made = {file.stem: _compared(tokenizer, file.read_text(encoding="utf-8"), 15, marked=True) for file in files}
    assert {"qwen3_training", "llama3_training", "phi3_training", "gemma3_training", "glm4moe_training"} <= {
        name for name, count in made.items() if count > 20
    }


@pytest.mark.real
@pytest.mark.parametrize("name", ["qwen3", "qwen2.5", "phi-3-mini"])
def test_templates_of_real_tokenizers(real_data: Path, name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(real_data / "tokenizers" / name)
    assert _compared(tokenizer, tokenizer.get_chat_template(), 100) == 200


def test_a_batch_is_rendered_a_few_times(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer.chat_template = EVERY.replace("BODY", FOLLOWED["in"])
    chats = [[{"role": "user", "content": f"{n}</think>{n}" if n % 3 else str(n)}] for n in range(1000)]
    chats[500][0]["weight"] = "0"  # a key that the template might show
    wanted = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
    renderer = Renderer(tokenizer, tokenizer.chat_template, asks_day=False)
    rendered: list[Any] = []
    apply = renderer._apply
    monkeypatch.setattr(renderer, "_apply", lambda given, *more: (rendered.extend(given), apply(given, *more))[1])
    assert renderer.render(chats, None)[0] == wanted
    assert chats[500] in rendered
    assert len(rendered) < 20


def test_more_forms_than_are_kept_are_rendered(tokenizer: Any) -> None:
    tokenizer.chat_template = EVERY.replace("BODY", FOLLOWED["pieces"].replace(", 1", ""))
    renderer = Renderer(tokenizer, tokenizer.chat_template, asks_day=False)
    chats = [[{"role": "user", "content": "<think>" * number}] for number in range(40)]
    assert renderer.render(chats, None)[0] == [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
    assert sum(len(forms.skeletons) for forms in renderer._forms.values()) == template_skeletons.TRACES


def test_a_tokenizer_that_renders_in_its_own_way_is_asked_each_time(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer.chat_template = EVERY.replace("BODY", FOLLOWED["words"])
    apply = tokenizer.apply_chat_template
    monkeypatch.setattr(tokenizer, "apply_chat_template", lambda *given, **named: [text.upper() for text in apply(*given, **named)])
    chats = [[{"role": "user", "content": word}] for word in "abc"]
    assert Renderer(tokenizer, tokenizer.chat_template, asks_day=False).render(chats, None)[0] == [
        "<BOS><USER>A",
        "<BOS><USER>B",
        "<BOS><USER>C",
    ]


def test_a_form_that_does_not_hold_stops_the_run(tokenizer: Any) -> None:
    tokenizer.chat_template = EVERY.replace("BODY", FOLLOWED["in"])
    template = _template(tokenizer)
    chats = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}] for answer in ("a", "a</think>b")]
    documents = [as_document({"messages": chat}, COLUMNS) for chat in chats]
    template.render(documents[:1])
    for forms in template._renderer._forms.values():
        forms.skeletons[:] = [
            template_trace.Skeleton((), skeleton.parts, ()) for skeleton in forms.skeletons
        ]  # as if nothing had been asked
        forms.made = 0
    with pytest.raises(TokenizerError, match="otherwise than others of the same form"):
        template.render(documents[1:])


def test_the_day_of_a_template_is_that_of_the_run(tokenizer: Any) -> None:
    from ftcli.core.tokenizer import template_date

    tokenizer.chat_template = EVERY.replace("BODY", "{{ strftime_now('%d') }}{{ m.content }}")
    renderer, chat = Renderer(tokenizer, tokenizer.chat_template, asks_day=True), [{"role": "user", "content": "a"}]
    assert renderer._put_together([chat], prompt=False, marked=False) == [None]  # the clock's day may be another in a moment
    for day in ("2026-01-02", "2026-01-03"):
        template_date.write([tokenizer.chat_template], day)
        renderer.day = day
        assert renderer.render([chat, chat], None)[0] == [f"<bos><user>{day[-2:]}a"] * 2
