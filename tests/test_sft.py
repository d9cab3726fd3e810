"""Conversations → rows whose labels are the answers: held against transformers' own template, mask and collators, and TRL's."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq

from ftcli.commands import verify
from ftcli.contracts import Columns
from ftcli.core.batches.collate import Dynamic
from ftcli.core.batches.tasks import Sft
from ftcli.core.engines.reference import load_reference
from ftcli.core.reading.columns import BadValue
from ftcli.core.reading.conversation import NAMES, as_document
from ftcli.core.storage.store import Store
from ftcli.core.targets import IGNORED, labels_of, marked, plain
from ftcli.core.tokenizer.chat import SAMPLES
from ftcli.core.tokenizer.template import Template
from ftcli.core.tokenizer.template_proof import prove
from ftcli.errors import DataError, PublishError, TokenizerError, UsageError
from ftcli.testing import TEXTS, tiny_tokenizer, write_config
from stores import context, spec_for
from tokenizing import documents, manifest, prepare, rows, without_plots  # noqa: F401

pytestmark = pytest.mark.usefixtures("one_thread", "without_plots")
HEAD = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>\n"
TAIL = "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}"
SAID = "{{ m.content | trim }}<eos>"
PLAIN = HEAD + SAID + TAIL
MARKED = HEAD + "{% if m.role == 'assistant' %}{% generation %}" + SAID + "{% endgeneration %}{% else %}" + SAID + "{% endif %}" + TAIL
CHATS = [list(sample) for sample in SAMPLES]
COLUMNS = Columns("messages", chat=NAMES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tokenizers with the same template: without marks, with them, and without a template."""
    root = tmp_path_factory.mktemp("templates")
    made = {}
    for name, template in (("plain", PLAIN), ("marked", MARKED), ("none", "")):
        made[name] = tiny_tokenizer(root / name)
        if template:
            (made[name] / "chat_template.jinja").write_text(template, encoding="utf-8")
    return made


def _template(tokenizer: Any, **values: Any) -> Template:
    return Template(tokenizer, "t", **{"assistant_only": None, "completion_only": None, "add_eos": None, **values})


def _write(path: Path, items: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")
    return path


def _sft(tokenizer: Path, source: Path, output: Path, **values: Any) -> Any:
    return prepare(tokenizer, source, output, **{"train__mode": "sft", "packing__max_length": 256, **values})


def _learned(tokenizer: Path, row: dict[str, Any]) -> str:
    return str(AutoTokenizer.from_pretrained(tokenizer).decode([label for label in row["labels"] if label != IGNORED]))


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_every_shape_of_conversation_is_known_by_its_columns() -> None:
    asked, said = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}
    shapes = [
        ({"messages": [asked, {**said, "tool_calls": None}], "id": 7}, "messages", {"messages": [asked, said]}),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}, "sharegpt", {"messages": [asked, said]}),
        ({"prompt": "Hi", "completion": "Ho"}, "prompt-completion", {"prompt": "Hi", "completion": "Ho"}),
        ({"prompt": [asked], "completion": [said]}, "prompt-completion", {"prompt": [asked], "completion": [said]}),
        (
            {"prompt": json.dumps([asked]), "completion": f" {json.dumps([said])}"},
            "prompt-completion",
            {"prompt": [asked], "completion": [said]},
        ),
        ({"prompt": "[1, 2]", "completion": "[3]"}, "prompt-completion", {"prompt": "[1, 2]", "completion": "[3]"}),
        ({"instruction": "Hi", "input": " ", "output": "Ho"}, "alpaca", {"prompt": [asked], "completion": [said]}),
        ({"instruction": "Hi", "response": "Ho"}, "alpaca", {"prompt": [asked], "completion": [said]}),
    ]
    for row, shape, wanted in shapes:
        found = json.loads(as_document(row, COLUMNS))
        assert (found.pop("shape"), {key: found[key] for key in found if key != "kind"}) == (shape, wanted)
    more = json.loads(as_document({"instruction": "Add", "input": "1 2", "output": "3", "system": "Count."}, COLUMNS))
    assert [message["content"] for message in more["prompt"]] == ["Count.", "Add\n\n1 2"]
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}
    assert json.loads(as_document(parts, COLUMNS))["messages"][0]["content"] == "ab"


@pytest.mark.parametrize(
    ("row", "code", "words"),
    [
        ({"text": "a"}, "missing-field", "no conversation"),
        ({"messages": "Hi"}, "wrong-type", "must be a list"),
        ({"messages": []}, "wrong-type", "must be a list"),
        ({"messages": [{"content": "Hi"}]}, "wrong-type", "message 1 of 'messages' has no role"),
        ({"messages": [{"role": ["user"], "content": "Hi"}]}, "wrong-type", "message 1 of 'messages' has no role"),
        ({"messages": [{"role": "user", "content": None}]}, "null", "must be a string"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "wrong-type", "content other than text"),
        ({"conversations": [{"from": "martian", "value": "Hi"}]}, "wrong-type", "has the unknown speaker 'martian'"),
        ({"prompt": "Hi", "completion": []}, "wrong-type", "at least one message"),
        ({"instruction": 3, "output": "a"}, "wrong-type", "must be a string"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "surrogate", "lone surrogate"),
    ],
)
def test_what_is_no_conversation_is_refused_with_the_reason(row: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(BadValue, match=words) as refused:
        as_document(row, COLUMNS)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"chosen": "Human: a", "rejected": "Human: b"}, "preference data (DPO)"),
        ({"prompt": "Hi", "chosen": "a", "rejected": "b"}, "--rename instruction=prompt,output=chosen"),
        ({"text": "a film", "label": 1}, "To train on the plain texts in text: --mode pretrain."),
        ({"message_id": "1", "parent_id": "0", "role": "prompter", "text": "a"}, "one message of a tree"),
        (
            {"conversations": ["Hi", "Ho"]},
            "If the texts alternate between user and assistant: jq -c '{messages: [.conversations | to_entries[]",
        ),
    ],
)
def test_what_is_no_conversation_is_told_the_way_to_one(row: dict[str, Any], words: str) -> None:
    with pytest.raises(BadValue) as refused:
        as_document(row, COLUMNS)
    assert words in refused.value.hint


@pytest.mark.skipif(shutil.which("jq") is None, reason="the hint is a command of jq")
def test_the_way_of_texts_that_take_turns_works(tmp_path: Path) -> None:
    old = _write(tmp_path / "old.jsonl", [{"conversations": ["Hi", "Ho", "And?"]}])
    with pytest.raises(BadValue) as refused:
        as_document(json.loads(old.read_text()), COLUMNS)
    command = refused.value.hint.partition(": ")[2].replace("OLD", str(old)).replace("NEW", str(tmp_path / "new"))
    subprocess.run(command, shell=True, check=True)
    found = json.loads((tmp_path / "new.jsonl").read_text())["messages"]
    assert [(message["role"], message["content"]) for message in found] == [("user", "Hi"), ("assistant", "Ho"), ("user", "And?")]


def test_columns_under_other_names_are_read_and_refused_under_those_names(folders: dict[str, Path], tmp_path: Path) -> None:
    items = [{"question": f"{n} + 1?", "answer": str(n + 1), "output": "no"} for n in range(4)]
    known = [{"instruction": item["question"], "output": item["answer"]} for item in items]
    pq.write_table(pa.Table.from_pylist(items), tmp_path / "x.parquet")
    rename = {"dataset__rename_columns": ["instruction=question", "output=answer"]}
    _sft(folders["plain"], _write(tmp_path / "known.jsonl", known), tmp_path / "known")
    for source in (_write(tmp_path / "x.jsonl", items), tmp_path / "x.parquet"):
        _sft(folders["plain"], source, tmp_path / source.suffix, **rename)
        assert rows(tmp_path / source.suffix) == rows(tmp_path / "known")
    with pytest.raises(DataError, match=r"bad.jsonl:1 .*'answer' is 3 .*must be a string"):
        _sft(folders["plain"], _write(tmp_path / "bad.jsonl", [{"question": "2?", "answer": 3}]), tmp_path / "bad", **rename)
    for wrong in (["question=instruction"], ["instruction"], ["output=answer", "output=text"]):
        with pytest.raises(UsageError, match="rename_columns"):
            _sft(folders["plain"], tmp_path / "x.jsonl", tmp_path / "wrong", dataset__rename_columns=wrong)


# -- the mask ----------------------------------------------------------------------------------------------------------


def test_the_labels_are_the_mask_of_transformers_with_and_without_generation_marks(folders: dict[str, Path], tmp_path: Path) -> None:
    source = _write(tmp_path / "chats.jsonl", [{"messages": chat} for chat in CHATS])
    found = {}
    for name in ("plain", "marked"):
        report = _sft(folders[name], source, tmp_path / name)
        found[name] = rows(tmp_path / name)
        assert report.metrics["rows_written"] == len(CHATS)
        assert report.metrics["target_tokens"] == sum(label != IGNORED for row in found[name] for label in row["labels"])
    assert found["plain"] == found["marked"]
    tokenizer = AutoTokenizer.from_pretrained(folders["marked"])
    for chat, row in zip(CHATS, found["marked"], strict=True):
        whole = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        assert row["input_ids"] == whole["input_ids"]
        assert [label != IGNORED for label in row["labels"]] == [bool(mask) for mask in whole["assistant_masks"]]
        assert row["input_ids"].count(tokenizer.bos_token_id) == 1
    assert manifest(tmp_path / "plain")["chat_template"]["mask"] == "prompts"
    assert manifest(tmp_path / "marked")["chat_template"]["mask"] == "generation"
    assert manifest(tmp_path / "plain")["fingerprint"] != manifest(tmp_path / "marked")["fingerprint"]


def test_a_border_inside_of_a_token_is_found_by_the_reference(folders: dict[str, Path]) -> None:
    """ "invoice for" is cut inside of words: the parts alone have other tokens than the whole."""
    tokenizer = AutoTokenizer.from_pretrained(folders["plain"])
    encoder = load_reference(tokenizer.backend_tokenizer.to_str(), "", 1)
    text = "The invoice for order 4711 has not arrived yet."
    spans = [((5, 9), (20, 25)), ((0, len(text)),), (), ((47, 47),)]
    texts = [text] * len(spans)
    encoding = tokenizer(text, add_special_tokens=False)
    encoded, lost = marked(encoder, texts, spans, lambda one: tokenizer.backend_tokenizer.encode(one, add_special_tokens=False))
    assert lost == []
    assert plain(encoded.ids).tolist() == encoding["input_ids"] * len(spans)
    width = len(encoding["input_ids"])
    for row, own in enumerate(spans):
        wanted = {encoding.char_to_token(place) for start, stop in own for place in range(start, stop)}
        labels = labels_of(encoded.ids)[row * width : (row + 1) * width]
        assert {place for place in range(width) if labels[place] != IGNORED} == wanted
    assert marked(encoder, texts, spans, None)[1] == [0]


def test_a_template_that_hides_what_the_assistant_says_is_refused_by_name(folders: dict[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["plain"])
    chats = [as_document({"messages": chat}, COLUMNS) for chat in CHATS]
    broken = {
        "the text around": PLAIN + "{% if not add_generation_prompt %}{{ messages[-1].content | length }}{% endif %}",
        "differently alone": PLAIN.replace("{{ bos_token }}", "{{ bos_token }}{{ messages[-1].content | length }} "),
        "not where its prompt ends|otherwise than|leaves out a part": PLAIN.replace("m.content | trim", "m.content | upper"),
    }
    for words, template in broken.items():
        tokenizer.chat_template = template
        with pytest.raises(TokenizerError, match=r"template of t has no \{% generation") as refused:
            prove(_template(tokenizer), tokenizer, chats)
        assert any(word in refused.value.message for word in words.split("|"))
        assert prove(_template(tokenizer, assistant_only=False), tokenizer, chats)["conversations"]
    tokenizer.chat_template = PLAIN.replace("{{ bos_token }}", "{{ bos_token }}{{ bos_token }}")
    with pytest.raises(TokenizerError, match="BOS twice"):
        prove(_template(tokenizer), tokenizer, chats)


def test_the_end_of_a_turn_is_no_part_of_the_next_tag_and_what_a_template_keeps_of_white_space_is_inside(folders: dict[str, Path]) -> None:
    """As Phi-3's: every tag begins alike, nothing is trimmed, and the whole ends with a tag of its own."""
    tokenizer = AutoTokenizer.from_pretrained(folders["plain"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ '\\n' + m.content }}<|end|>{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{{ '\\n' }}{% else %}<|endoftext|>{% endif %}"
    )
    chats = [as_document({"messages": chat}, COLUMNS) for chat in CHATS]
    template = _template(tokenizer)
    assert prove(template, tokenizer, chats)["mask"] == "prompts"
    rendered = template.render(chats)
    spoken = [text[start:stop] for text, spans in zip(rendered.texts, rendered.spans, strict=True) for start, stop in spans]
    assert spoken == [f"{message['content']}<|end|>" for chat in CHATS for message in chat if message["role"] == "assistant"]


@pytest.mark.parametrize("tail", ["", "{% if not add_generation_prompt %}[end]{% endif %}"])
def test_answers_in_a_row_are_told_where_the_template_writes_the_last_one_otherwise(folders: dict[str, Path], tail: str) -> None:
    """As Qwen3's, which puts empty thoughts into the last answer: the text before the second answer, alone, is no beginning of the whole."""
    tokenizer = AutoTokenizer.from_pretrained(folders["plain"])
    thoughts = "{% if m.role == 'assistant' and loop.last %}(hm) {% endif %}"
    tokenizer.chat_template = PLAIN.replace(SAID, thoughts + SAID) + tail
    asked = {"role": "user", "content": "two answers?"}
    said = [{"role": "assistant", "content": words} for words in ("one", " one and\ntwo ", "three")]
    chats = [[asked, *said], [asked, said[0], asked, *said[1:]], [asked, said[1], asked, said[2]]]
    rendered = _template(tokenizer).render([as_document({"messages": chat}, COLUMNS) for chat in chats])
    assert rendered.faults == {}
    last = "three<eos>" if tail else "(hm) three<eos>"  # with a tail, what begins an answer cannot be told from what ends the whole
    learned = [[text[start:stop] for start, stop in spans] for text, spans in zip(rendered.texts, rendered.spans, strict=True)]
    assert learned == [
        ["one<eos>", "one and\ntwo<eos>", last],
        ["one<eos>", "one and\ntwo<eos>", last],
        ["one and\ntwo<eos>", "(hm) three<eos>"],
    ]


def test_plain_prompts_stand_beside_conversations(folders: dict[str, Path], tmp_path: Path) -> None:
    """It ended as a bug: what the note about roles asks of messages was asked of texts, too."""
    source = _write(tmp_path / "a.jsonl", [{"prompt": "Hi", "completion": " Ho"}, {"messages": CHATS[0]}])
    report = _sft(folders["plain"], source, tmp_path / "out")
    assert report.metrics["rows_written"] == 2


def test_everything_is_learned_where_that_is_asked_for(folders: dict[str, Path], tmp_path: Path) -> None:
    source = _write(tmp_path / "chats.jsonl", [{"messages": chat} for chat in CHATS])
    _sft(folders["plain"], source, tmp_path / "all", dataset__assistant_only_loss=False)
    for row in rows(tmp_path / "all"):
        assert row["labels"] == [IGNORED, *row["input_ids"][1:]]


def test_prompt_and_completion_without_a_template_get_the_tokenizers_own_bos_and_eos_once(folders: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["none"])
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    token = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    backend["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [token, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [token, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
    }
    begins = tiny_tokenizer(tmp_path / "begins")
    (begins / "tokenizer.json").write_text(json.dumps(backend), encoding="utf-8")
    source = _write(
        tmp_path / "pairs.jsonl", [{"prompt": "2 + 3 is", "completion": " 5"}, {"prompt": "<bos>1 + 1 is", "completion": " 2<eos>"}]
    )
    _sft(begins, source, tmp_path / "out")
    whole = ["<bos>2 + 3 is 5<eos>", "<bos>1 + 1 is 2<eos>"]
    assert [tokenizer.decode(row["input_ids"]) for row in rows(tmp_path / "out")] == whole
    assert [_learned(begins, row) for row in rows(tmp_path / "out")] == [" 5<eos>", " 2<eos>"]
    without = {"tokenizer__add_special_tokens": False}
    with pytest.raises(PublishError, match=r"another fingerprint: .*tokenizer\.add_special_tokens: True there, False now"):
        _sft(begins, source, tmp_path / "out", **without)
    _sft(begins, source, tmp_path / "without", **without)
    assert [tokenizer.decode(row["input_ids"]) for row in rows(tmp_path / "without")] == [whole[0].removeprefix("<bos>"), whole[1]]
    alpaca = _write(tmp_path / "alpaca.jsonl", [{"instruction": "Add", "output": "3"}])
    with pytest.raises(TokenizerError, match="has no chat template"):
        _sft(begins, alpaca, tmp_path / "none")


def test_a_tokenizer_that_draws_lots_gives_the_ids_it_gives_without_them(folders: dict[str, Path], tmp_path: Path) -> None:
    """With BPE dropout borders inside of tokens came out otherwise in every run, and rows were put aside for it."""
    lots = shutil.copytree(folders["plain"], tmp_path / "lots")
    backend = json.loads((lots / "tokenizer.json").read_text(encoding="utf-8"))
    backend["model"]["dropout"] = 0.9
    (lots / "tokenizer.json").write_text(json.dumps(backend), encoding="utf-8")
    items: list[Any] = [{"prompt": word[:place], "completion": word[place:]} for word in TEXTS[0].split() for place in range(1, len(word))]
    source = _write(tmp_path / "rows.jsonl", [*items, *({"messages": chat} for chat in CHATS)])
    for name, tokenizer in (("plain", folders["plain"]), ("lots", lots)):
        _sft(tokenizer, source, tmp_path / f"of {name}")
    assert rows(tmp_path / "of lots") == rows(tmp_path / "of plain")


def test_an_eos_of_the_rows_own_counts_where_the_tokenizer_drops_what_stands_behind_it(folders: dict[str, Path], tmp_path: Path) -> None:
    """CLIP's and others drop spaces at the end: the texts were compared, and the ids ended with EOS twice."""
    drops = shutil.copytree(folders["none"], tmp_path / "drops")
    backend = json.loads((drops / "tokenizer.json").read_text(encoding="utf-8"))
    backend["normalizer"] = {"type": "Strip", "strip_left": False, "strip_right": True}
    (drops / "tokenizer.json").write_text(json.dumps(backend), encoding="utf-8")
    items = [{"prompt": "1 + 1 is", "completion": words} for words in (" 2<eos> ", " 2<eos>", " 2 ", " <eos>2<eos> 3")]
    source = _write(tmp_path / "rows.jsonl", items)
    ends = {}
    for name, tokenizer in (("drops", drops), ("keeps", folders["none"])):
        _sft(tokenizer, source, tmp_path / f"of {name}")
        decode = AutoTokenizer.from_pretrained(tokenizer).decode
        ends[name] = [decode(row["input_ids"]).removeprefix("1 + 1 is") for row in rows(tmp_path / f"of {name}")]
    assert ends["drops"][:2] == [" 2<eos>"] * 2
    assert ends["keeps"] == [" 2<eos> <eos>", " 2<eos>", " 2 <eos>", " <eos>2<eos> 3<eos>"]
    assert all(text.count("<eos>") == 1 for text in ends["drops"][:3]), ends


def test_special_tokens_are_in_the_fingerprint_only_where_the_tokenizer_adds_some(folders: dict[str, Path], tmp_path: Path) -> None:
    source = _write(tmp_path / "pairs.jsonl", [{"prompt": "2 + 3 is", "completion": " 5"}])
    _sft(folders["none"], source, tmp_path / "out")
    assert _sft(folders["none"], source, tmp_path / "out", tokenizer__add_special_tokens=False).metrics["reused"]


# -- rows --------------------------------------------------------------------------------------------------------------


def test_a_row_without_anything_to_learn_is_filtered_and_counted_and_nothing_but_such_rows_is_an_error(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    long = [{"role": "user", "content": "why " * 80}, {"role": "assistant", "content": "so"}]
    silent = [{"role": "user", "content": "anybody?"}]
    source = _write(tmp_path / "chats.jsonl", [{"messages": chat} for chat in [*CHATS, long, silent]])
    report = _sft(folders["plain"], source, tmp_path / "out", packing__max_length=128)
    assert (report.metrics["rows_written"], report.metrics["rows_filtered"]) == (len(CHATS), 2)
    assert report.metrics["rows_untargeted"] == 2
    assert all(any(label != IGNORED for label in row["labels"]) for row in rows(tmp_path / "out"))
    only = _write(tmp_path / "silent.jsonl", [{"messages": silent}, {"messages": long}])
    with pytest.raises(DataError, match="2 of them without a token to learn") as refused:
        _sft(folders["plain"], only, tmp_path / "none", packing__max_length=64)
    assert "--max-length" in refused.value.hint
    kept = _sft(folders["plain"], only, tmp_path / "end", packing__max_length=64, packing__truncation_strategy="keep_end")
    assert (kept.metrics["rows_written"], kept.metrics["rows_truncated"]) == (1, 1)


def test_packs_hold_whole_conversations_and_no_target_crosses_one(folders: dict[str, Path], tmp_path: Path) -> None:
    source = _write(tmp_path / "chats.jsonl", [{"messages": chat} for chat in CHATS * 3])
    _sft(folders["plain"], source, tmp_path / "rows", dataset__assistant_only_loss=False)
    _sft(folders["plain"], source, tmp_path / "packs", packing__strategy="bfd", dataset__assistant_only_loss=False)
    whole = sorted(row["input_ids"] for row in rows(tmp_path / "rows"))
    assert sorted(part for row in rows(tmp_path / "packs") for part in documents(row)) == whole
    for row in rows(tmp_path / "packs"):
        assert len(row["seq_lengths"]) > 1
        starts = [sum(row["seq_lengths"][:number]) for number in range(len(row["seq_lengths"]))]
        assert [place for place, label in enumerate(row["labels"]) if label == IGNORED] == starts
    for values in ({"packing__strategy": "concat"}, {"packing__strategy": "bfd", "packing__truncation_strategy": "split"}):
        with pytest.raises(UsageError):
            _sft(folders["plain"], source, tmp_path / "cut", **values)


def test_verify_of_packed_conversations_finds_nothing_wrong_with_what_train_takes(folders: dict[str, Path], tmp_path: Path) -> None:
    """Packs with a label a token: the documents that are compared alone need theirs, too."""
    source = _write(tmp_path / "chats.jsonl", [{"messages": chat} for chat in CHATS * 3])
    _sft(folders["plain"], source, tmp_path / "packs", packing__strategy="bfd", dataset__assistant_only_loss=False)
    values = {
        "dataset__sources": [str(tmp_path / "packs")],
        "tokenizer__path": str(folders["plain"]),
        "model__config": write_config(tmp_path / "c.json"),
    }
    report = verify.run(context(**values), ("batch", "model"), "full", "fail", ())
    found = {check.id: check for check in report.checks}
    assert found["FT408"].status == "pass", found["FT408"].summary
    assert "error" not in {check.status for check in report.checks}


def test_json_parquet_and_arrow_give_the_same_rows_as_json_lines(folders: dict[str, Path], tmp_path: Path) -> None:
    items = [{"messages": chat, "id": number} for number, chat in enumerate(CHATS)]
    _sft(folders["plain"], _write(tmp_path / "a" / "x.jsonl", items), tmp_path / "jsonl")
    (tmp_path / "x.json").write_text(json.dumps(items), encoding="utf-8")
    table = pa.Table.from_pylist(items)
    pq.write_table(table, tmp_path / "x.parquet")
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    for kind in ("json", "parquet", "arrow"):
        _sft(folders["plain"], tmp_path / f"x.{kind}", tmp_path / kind)
        assert rows(tmp_path / kind) == rows(tmp_path / "jsonl")
    (tmp_path / "x.txt").write_text("a\n", encoding="utf-8")
    with pytest.raises(DataError, match="conversations are read from"):
        _sft(folders["plain"], tmp_path / "x.txt", tmp_path / "text")


def test_a_bad_conversation_is_named_by_its_line_or_put_aside(folders: dict[str, Path], tmp_path: Path) -> None:
    odd = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": 3}]}
    source = _write(tmp_path / "chats.jsonl", [*({"messages": chat} for chat in CHATS), odd])
    with pytest.raises(DataError, match=r"chats.jsonl:5 .*message 2 of 'messages' has the content 3"):
        _sft(folders["plain"], source, tmp_path / "strict")
    report = _sft(folders["plain"], source, tmp_path / "aside", dataset__on_bad="quarantine", dataset__max_bad=0.5)
    assert report.metrics["rows_rejected"] == 1
    refusing = PLAIN.replace(
        "{% for m in messages %}", "{% if messages|length > 2 %}{{ raise_exception('too many') }}{% endif %}{% for m in messages %}"
    )
    (tiny_tokenizer(tmp_path / "refusing") / "chat_template.jinja").write_text(refusing, encoding="utf-8")
    values = {"dataset__on_bad": "quarantine", "dataset__max_bad": 0.5, "dataset__assistant_only_loss": False}
    report = _sft(
        tmp_path / "refusing", _write(tmp_path / "b.jsonl", [{"messages": chat} for chat in CHATS]), tmp_path / "refused", **values
    )
    assert (report.metrics["rows_rejected"], report.metrics["rows_written"]) == (1, 3)
    (entry,) = map(json.loads, (tmp_path / "refused" / "rejects.jsonl").read_text(encoding="utf-8").splitlines())
    assert (entry["line"], entry["reason_code"]) == (4, "template")
    assert "too many" in entry["reason"]


def test_a_choice_that_no_row_knows_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    chats = _write(tmp_path / "chats.jsonl", [{"messages": CHATS[0]}])
    pairs = _write(tmp_path / "pairs.jsonl", [{"prompt": "a", "completion": "b"}])
    with pytest.raises(UsageError, match="completion_only_loss is for prompt and completion"):
        _sft(folders["plain"], chats, tmp_path / "a", dataset__completion_only_loss=True)
    with pytest.raises(UsageError, match="assistant_only_loss is for messages"):
        _sft(folders["plain"], pairs, tmp_path / "b", dataset__assistant_only_loss=True)
    with pytest.raises(UsageError, match="mode sft takes conversations"):
        _sft(folders["plain"], chats, tmp_path / "c", dataset__label_column="label")


# -- batches -----------------------------------------------------------------------------------------------------------


def test_the_store_gives_the_same_labels_through_our_collator_that_of_transformers_and_that_of_trl(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    source = _write(tmp_path / "chats.jsonl", [{"messages": chat} for chat in CHATS])
    _sft(folders["plain"], source, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(folders["plain"])
    items = [{key: row[key] for key in ("input_ids", "labels")} for row in rows(tmp_path / "out")]
    ours = Dynamic(spec_for(Sft()))(Store.open(tmp_path / "out").split("train").rows([0, 1, 2, 3]))
    theirs = DataCollatorForSeq2Seq(tokenizer)(items)
    assert {key: ours[key].tolist() for key in ours} == {key: theirs[key].tolist() for key in ours}
    collator = pytest.importorskip("trl.trainer.sft_trainer").DataCollatorForLanguageModeling
    from_trl = collator(pad_token_id=tokenizer.pad_token_id)(items)
    assert from_trl["labels"].tolist() == ours["labels"].tolist()


def test_the_loss_is_that_of_the_targets_alone() -> None:
    from ftcli.testing import tiny_model

    model: AutoModelForCausalLM = tiny_model()
    ids = torch.randint(3, 384, (2, 9))
    labels = torch.full_like(ids, IGNORED)
    labels[0, 4:6], labels[1, 8] = ids[0, 4:6], ids[1, 8]
    logits = model(input_ids=ids).logits
    wanted = -torch.stack([logits.log_softmax(-1)[row, place - 1, ids[row, place]] for row, place in ((0, 4), (0, 5), (1, 8))]).mean()
    assert torch.allclose(Sft().loss(logits, labels, None), wanted, atol=1e-6)
