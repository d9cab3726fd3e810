"""`ftcli predict` gives what the plain model gives, in the order of the texts; the model card says what a run was made of and nothing else."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from ftcli import testing
from ftcli.commands import predict as predict_command
from ftcli.commands.train import run
from ftcli.context import Context
from ftcli.core.models.layers import places
from ftcli.core.models.predict import _prompt, load, predict
from ftcli.core.models.predict_inputs import Conversation, read_asked, read_texts
from ftcli.core.training.outcome import asked
from ftcli.errors import DataError, ModelError, PublishError, UsageError
from ftcli.settings import Settings, update
from ftcli.testing import TEXTS, tiny_model, tiny_tokenizer
from ftcli.testing import run as ftcli
from reading import formats, write
from runs import VOCABULARY, Bench
from stores import learnable

pytestmark = pytest.mark.usefixtures("one_thread")

ASKED = list(TEXTS[:5])


def _model(folder: Path, kind: str = "qwen3", labels: int | None = None, **config: Any) -> Path:
    model = tiny_model(kind, labels=labels)
    for name, value in config.items():
        setattr(model.config, name, value)
    model.save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


@pytest.mark.parametrize("kind", ["qwen3", "bert"])
def test_labels_are_those_of_the_plain_model_one_text_at_a_time(tmp_path: Path, kind: str) -> None:
    folder = _model(tmp_path / kind, kind, labels=7)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = predict(load(str(folder)), ASKED, batch_size=2, max_new_tokens=1)
    for text, answer in zip(ASKED, found, strict=True):
        with torch.no_grad():
            alone = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits.softmax(-1)[0]
        assert answer["label"] == model.config.id2label[int(alone.argmax())]
        assert answer["probability"] == pytest.approx(float(alone.max()), abs=1e-5)
        assert len(answer["labels"]) == 5


def test_a_model_that_gives_no_numbers_is_no_answer(tmp_path: Path) -> None:
    """It was a label with the probability NaN."""
    folder = _model(tmp_path / "model", labels=7)
    loaded = load(str(folder))
    with torch.no_grad():
        next(loaded.model.parameters()).fill_(float("inf"))
    with pytest.raises(ModelError, match="NaN or infinite"):
        predict(loaded, ASKED, batch_size=2, max_new_tokens=1)


@pytest.mark.parametrize("pad", [383, -1, None])
def test_a_label_is_read_where_the_configuration_says_that_a_text_ends_whatever_the_tokenizer_pads_with(tmp_path: Path, pad: Any) -> None:
    """Llama's classifiers look for the last token that is not config.pad_token_id: they read behind the text where another one was filled in."""
    texts = ["a short one", "a text that is much longer than the one before it"]
    folder = _model(tmp_path / "model", labels=3, pad_token_id=pad)
    (alone,) = predict(load(str(folder)), texts[:1], batch_size=1, max_new_tokens=1)
    beside = predict(load(str(folder)), texts, batch_size=2, max_new_tokens=1)[0]
    assert beside["probability"] == pytest.approx(alone["probability"], abs=1e-5)


def test_a_model_with_code_of_its_own_answers_where_its_code_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    plain = _model(tmp_path / "plain", "bert", labels=3)
    folder = _model(tmp_path / "own", "bert", labels=3)
    (folder / "model.safetensors").write_bytes((plain / "model.safetensors").read_bytes())
    (folder / "mine.py").write_text(
        "from transformers import BertConfig, BertForSequenceClassification\n\n\nclass MyConfig(BertConfig):\n    model_type = 'mine'\n\n\n"
        "class MyForSequenceClassification(BertForSequenceClassification):\n    config_class = MyConfig\n"
    )
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "mine.MyConfig", "AutoModelForSequenceClassification": "mine.MyForSequenceClassification"}
    config |= {"model_type": "mine", "auto_map": own, "architectures": ["MyForSequenceClassification"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load(str(folder))
    assert "add --trust-remote-code" in caught.value.hint
    found, wanted = (
        predict(load(str(path), trust=trust), ASKED, batch_size=2, max_new_tokens=1) for path, trust in ((folder, True), (plain, False))
    )
    assert found == wanted
    assert testing.run("predict", str(folder), ASKED[0]).exit_code == 1
    assert testing.run("predict", str(folder), ASKED[0], "--trust-remote-code").exit_code == 0


def test_several_labels_hold_each_by_its_own_probability(tmp_path: Path) -> None:
    folder = _model(tmp_path / "several", labels=4, problem_type="multi_label_classification")
    (answer,) = predict(load(str(folder)), ASKED[:1], batch_size=2, max_new_tokens=1)
    assert sum(one["probability"] for one in answer["labels"]) != pytest.approx(1)
    assert answer["holds"] == [one["label"] for one in answer["labels"] if one["probability"] >= 0.5]


def test_a_threshold_that_decides_nothing_is_noted(tmp_path: Path) -> None:
    several = _model(tmp_path / "several", labels=4, problem_type="multi_label_classification")
    for folder, noted in ((several, False), (_model(tmp_path / "one", labels=4), True)):
        notes = testing.run("predict", str(folder), ASKED[0], "--threshold", "0.9", "--json").report["notes"]
        assert any("threshold = 0.9 is only for multi-label models" in note for note in notes) == noted


def test_a_number_of_labels_is_noted_where_there_are_none(tmp_path: Path) -> None:
    speaks, scores = _model(tmp_path / "speaks"), _model(tmp_path / "scores", labels=1, problem_type="regression")
    for folder, noted in ((speaks, True), (scores, True), (_model(tmp_path / "one", labels=4), False)):
        notes = testing.run("predict", str(folder), ASKED[0], "--top-k", "3", "--max-new-tokens", "1", "--json").report["notes"]
        assert ("top_k = 3 is only for classifiers, which this is not" in notes) == noted


def test_answers_are_those_of_the_plain_model_whatever_stands_in_the_batch(tmp_path: Path) -> None:
    folder = _model(tmp_path / "speaks")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = predict(load(str(folder)), ASKED, batch_size=3, max_new_tokens=5)
    for text, answer in zip(ASKED, found, strict=True):
        batch = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        out = model.generate(**batch, max_new_tokens=5, do_sample=False)[0, batch["input_ids"].shape[1] :].tolist()
        said = out[: out.index(1)] if 1 in out else out
        assert (answer["answer"], answer["tokens"]) == (tokenizer.decode(said, skip_special_tokens=True), len(said))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<bos>{{ m.content }}{% endfor %}<eos>")
    asked = load(str(folder))
    chat, plain = (predict(asked, [ASKED[0]], batch_size=1, max_new_tokens=5, chat=chat)[0] for chat in (True, False))
    assert plain == found[0]
    assert predict(asked, [f"<bos>{ASKED[0]}<eos>"], batch_size=1, max_new_tokens=5, chat=False)[0] == chat
    with pytest.raises(UsageError, match="no room"):
        predict(asked, ASKED, batch_size=1, max_new_tokens=512)


def test_an_answer_ends_with_any_token_that_the_model_ends_with(tmp_path: Path) -> None:
    """Gemma's chat models end a turn with another token than a text."""
    folder = _model(tmp_path / "ends")
    (whole,) = predict(load(str(folder)), ASKED[:1], batch_size=1, max_new_tokens=8)
    loaded = load(str(folder))
    batch = loaded.tokenizer(ASKED[0], return_tensors="pt", return_token_type_ids=False)
    said = loaded.model.generate(**batch, max_new_tokens=8, do_sample=False, eos_token_id=None)[0, batch["input_ids"].shape[1] :].tolist()
    loaded.model.generation_config.eos_token_id = [1, said[3]]
    (found,) = predict(loaded, ASKED[:1], batch_size=1, max_new_tokens=8)
    assert not whole["ended"]
    assert (found["ended"], found["tokens"]) == (True, said.index(said[3]))


def test_a_text_has_as_many_tokens_as_roberta_has_places(tmp_path: Path) -> None:
    config = RobertaConfig(
        vocab_size=384,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=18,
        pad_token_id=1,
    )
    assert places(RobertaForSequenceClassification(config)) == 16


def test_rows_of_conversations_are_asked_up_to_the_answer_with_the_tools_that_they_offer(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "b"}
    lines = [
        {"messages": [asked, {"role": "assistant", "content": "c"}], "tools": [{"name": "w"}]},
        {"conversations": [{"from": "human", "value": "b"}, {"from": "gpt", "value": "c"}]},
        {"instruction": "a", "context": "b", "response": "c"},
        {"prompt": [asked]},
        {"prompt": "b"},
    ]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder = _model(tmp_path / "speaks")
    (folder / "chat_template.jinja").write_text("{{ tools | tojson if tools else '' }}{% for m in messages %}<{{ m.content }}>{% endfor %}")
    loaded = load(str(folder))
    read = read_texts(rows, "text")
    prompts = [_prompt(loaded, one, number, chat=True)[0] for number, one in enumerate(read)]
    assert prompts == ['[{"name": "w"}]<b>', "<b>", "<a\n\nb>", "<b>", "<b>"]
    same = predict(loaded, prompts, batch_size=5, max_new_tokens=5, chat=False)
    assert predict(loaded, read, batch_size=5, max_new_tokens=5) == same
    rows.write_text(json.dumps({"dialog": lines[0]["messages"]}) + "\n")
    (named,) = read_texts(rows, "dialog")
    assert _prompt(loaded, named, 1, chat=True)[0] == "<b>"
    rows.write_text('{"messages": [{"content": "b"}]}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:1: message 1 of 'messages' has no role"):
        read_texts(rows, "text")


def test_what_cannot_be_asked_is_refused_by_name(tmp_path: Path) -> None:
    folder = _model(tmp_path / "model", labels=2)
    with pytest.raises(UsageError, match="text 2 is empty"):
        predict(load(str(folder)), ["a", " "], batch_size=1, max_new_tokens=1)
    with pytest.raises(UsageError, match="both texts of row 2 are empty"):
        predict(load(str(folder)), [("a", ""), ("", " ")], batch_size=1, max_new_tokens=1)
    with pytest.raises(UsageError, match="nothing to predict"):
        predict(load(str(folder)), [], batch_size=1, max_new_tokens=1)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(str(tmp_path))
    with pytest.raises(ModelError, match="there is no such folder"):
        load(str(tmp_path / "gone"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3ForTokenClassification"]}))
    with pytest.raises(ModelError, match="is a Qwen3ForTokenClassification"):
        load(str(folder))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a"}\n\n{"messages": [{"role": "user", "content": "b"}]}\n{"id": 1}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:4: neither messages, conversations, instruction, text nor prompt"):
        read_texts(rows, "text")


@pytest.mark.parametrize(
    ("name", "lines", "place"),
    [
        ("c.csv", "text,label\nhello,a\n ,b\n", "c.csv: row 2"),
        ("both.csv", "text,prompt\nhello,a\n,b\n", "both.csv: row 2"),
        ("c.jsonl", '{"text": "a"}\n\n{"text": " "}\n', "c.jsonl:3"),
        ("d.jsonl", '{"text": "a"}\n{"text": ""}\n', "d.jsonl:2"),
        ("e.jsonl", '{"prompt": " "}\n', "e.jsonl:1"),
    ],
)
def test_an_empty_text_of_a_file_is_refused_by_its_place(name: str, lines: str, place: str, tmp_path: Path) -> None:
    write(tmp_path / name, lines)
    with pytest.raises(DataError) as refused:
        read_asked(tmp_path / name, Settings(), formats())
    assert (refused.value.message, refused.value.hint) == (f"{tmp_path / place}: the text is empty", "Leave it out.")


def test_a_pair_with_an_empty_text_is_spoken_of() -> None:
    """Such pairs are learned from, so they may be asked; `--pair "$UNSET"` is one too."""
    assert predict_command._unlike("pairs", [("a", "b"), ("a", " "), ("", "b")]) == "2 of 3 pairs have an empty text"
    assert not predict_command._unlike("pairs", [("a", "b")])


def test_a_dash_is_refused_and_no_text() -> None:
    result = testing.run("predict", "model", "-")
    assert result.exit_code == 2
    assert "- is not a text; predict does not read stdin" in result.stderr


def test_a_text_that_is_the_name_of_a_file_is_asked_with_a_word_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _model(tmp_path / "model", labels=2)
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.chdir(tmp_path)
    report = testing.run("predict", str(folder), "rows.jsonl", "b" * 5000, "--json").report
    assert [note for note in report["notes"] if "--input rows.jsonl predicts its rows" in note]
    assert report["metrics"]["rows"] == 2


def test_a_run_has_a_card_without_a_path_of_this_machine_and_can_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench.make(tmp_path / "home")
    store = bench.store("store", {"train": learnable(32, 4, VOCABULARY, 0), "validation": learnable(8, 4, VOCABULARY, 1)}, labels=4)
    tiny_model(labels=4).save_pretrained(bench.folder / "base")
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    values: dict[str, Any] = {"model__config": None, "model__name_or_path": str(bench.folder / "base"), "model__lora_r": 2}
    report = run(bench.context(store, "run", **values, train__max_steps=2, train__save_strategy="no"))
    folder = bench.folder / "run"
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert report.paths["card"] == str(folder / "README.md")
    assert str(tmp_path) not in card
    assert "hf_verysecret" not in card
    for words in (
        'base_model: "base"',
        'library_name: "peft"',
        "| train | ",
        "| validation | 8 |",
        "| eval_accuracy |",
        "| model.lora_r |",
        "| torch |",
    ):
        assert words in card
    asked = tmp_path / "asked.jsonl"
    asked.write_text(json.dumps({"text": ASKED[0]}) + "\n", encoding="utf-8")
    result = ftcli("predict", folder, ASKED[1], "--input", asked, "--json")
    assert result.exit_code == 0, result.stderr
    found = result.report["details"]["predictions"]
    assert [one["text"] for one in found] == [ASKED[1], ASKED[0]]
    assert found[0]["label"].startswith("label ")
    assert ftcli("predict", folder, ASKED[1]).stdout.splitlines()[1].startswith(ASKED[1][:40])


def test_how_a_model_is_to_be_asked_is_told_by_its_data() -> None:
    told = {"chat": {"mask": "prompts"}, "plain": {"mask": None}}
    assert {way: asked({"chat_template": template}, labelled=False) for way, template in told.items()} == {"chat": "chat", "plain": "plain"}
    assert asked({"chat_template": None}, labelled=False) == asked({}, labelled=False) == "plain"
    assert asked({"policy": {"pair": {"types": True}}}, labelled=True) == "pairs"
    assert asked({"policy": {"pair": None}}, labelled=True) == asked({}, labelled=True) == "texts"


@pytest.mark.parametrize(
    ("learned", "pair", "words"),
    [
        ("pairs", None, "the model was trained on text pairs, but 1 of 1 are single texts"),
        ("texts", "and", "the model was trained on single texts, but 1 of 1 are pairs"),
        ("pairs", "and", None),
        ("texts", None, None),
        (None, "and", None),
    ],
)
def test_texts_of_another_number_than_were_learned_are_answered_with_a_word_about_it(
    tmp_path: Path, learned: str | None, pair: str | None, words: str | None
) -> None:
    folder = _model(tmp_path / "run", labels=3)
    if learned is not None:
        (folder / "ftcli-run.json").write_text(json.dumps({"details": {"asked": learned}}))
    report = testing.run("predict", str(folder), ASKED[0], *([] if pair is None else ["--pair", pair]), "--json").report
    assert report["details"]["predictions"]
    told = [note for note in report["notes"] if note.startswith("the model was trained")]
    assert len(told) == (words is not None)
    assert all(note.startswith(str(words)) for note in told)


def test_a_run_that_learned_plain_texts_is_asked_without_the_template(tmp_path: Path) -> None:
    folder = _model(tmp_path / "run")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<bos>{{ m.content }}{% endfor %}<eos>")
    step = _model(folder / "checkpoint-2")
    (step / "chat_template.jinja").write_text((folder / "chat_template.jinja").read_text())
    chat, plain = (predict(load(str(folder)), [ASKED[0]], batch_size=1, max_new_tokens=5, chat=chat)[0]["answer"] for chat in (True, False))
    assert chat != plain
    for learned, told in (("plain", plain), ("chat", chat), (None, chat)):
        details = {} if learned is None else {"asked": learned}
        (folder / "ftcli-run.json").write_text(json.dumps({"details": details}))
        for place in (folder, step):
            report = testing.run("predict", str(place), ASKED[0], "--max-new-tokens", "5", "--json").report
            assert report["details"]["predictions"][0]["answer"] == told
            assert any("chat template is not applied" in note for note in report["notes"]) == (learned == "plain")


def test_a_text_is_gone_on_with_behind_what_stood_before_those_that_were_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _model(tmp_path / "run")
    bare = AutoTokenizer.from_pretrained(folder)(ASKED[0], add_special_tokens=False)["input_ids"]
    policy = {"max_length": 8, "truncation": "keep_start", "prefix": [5, 7], "suffix": [6], "eos": 1, "pair": None}
    fed: list[list[int]] = []
    said = {"answer": "", "tokens": 0, "ended": True}
    monkeypatch.setattr("ftcli.core.models.predict._answers", lambda _, rows, most: [fed.extend(rows), said][1:])
    for learned in ("plain", "chat"):
        (folder / "ftcli-run.json").write_text(json.dumps({"details": {"asked": learned, "encoding": policy}}))
        assert testing.run("predict", str(folder), ASKED[0], "--json").exit_code == 0
    assert fed == [[5, 7, *bare], AutoTokenizer.from_pretrained(folder)(ASKED[0])["input_ids"]]


def test_files_of_every_format_are_asked(tmp_path: Path) -> None:
    rows = [{"text": "so good", "label": "x"}, {"text": "so bad, really", "label": "y"}]
    spoken = [{"instruction": "Why?", "output": "So."}, {"instruction": "And?", "output": ""}]
    known = formats()
    for items, told in (
        (rows, ["so good", "so bad, really"]),
        (spoken, [[{"role": "user", "content": word}] for word in ("Why?", "And?")]),
    ):
        (tmp_path / "x.json").write_text(json.dumps(items))
        (tmp_path / "x.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
        pq.write_table(pa.Table.from_pylist(items), tmp_path / "x.parquet")
        with (tmp_path / "x.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(items[0]))
            writer.writeheader()
            writer.writerows(items)
        for kind in ("json", "jsonl", "parquet", "csv"):
            found = read_asked(tmp_path / f"x.{kind}", Settings(), known)
            assert [one.messages[:1] if isinstance(one, Conversation) else one for one in found] == told, kind
    (tmp_path / "x.txt").write_text("one\ntwo\n")
    assert read_asked(tmp_path / "x.txt", Settings(), known) == ["one", "two"]
    (tmp_path / "x.txt").write_text("id\tdocument\tlabel\n1\tone\t0\n2\ttwo\t1\n")
    assert read_asked(tmp_path / "x.txt", update(Settings(), {"dataset.text_column": "document"}), known) == ["one", "two"]
    pairs = update(Settings(), {"dataset.text_column": "instruction", "dataset.text_pair_column": "output"})
    assert read_asked(tmp_path / "x.parquet", pairs, known)[0] == ("Why?", "So.")
    (tmp_path / "y.csv").write_text("a,b\nc,d\n")
    with pytest.raises(DataError, match="no column 'text'"):
        read_asked(tmp_path / "y.csv", Settings(), known)


def test_a_folder_is_asked_as_it_is_prepared(tmp_path: Path) -> None:
    known, said = formats(), list[str]()
    write(tmp_path / "d" / "test.csv", "text\nthree\n")
    write(tmp_path / "d" / "train.csv", "text\none\ntwo\n")
    write(tmp_path / "d" / "notes.md", "of no use")
    assert read_asked(tmp_path / "d", Settings(), known, said.append) == ["one", "two", "three"]
    assert said == [f"{tmp_path / 'd'}: read as csv; left out notes.md"]
    write(tmp_path / "j" / "b.jsonl", '{"prompt": "two"}\n')
    write(tmp_path / "j" / "a.jsonl", '{"text": "one"}\n')
    assert read_asked(tmp_path / "j", Settings(), known, said.append) == ["one", "two"]
    write(tmp_path / "i" / "0_7.txt", "This film.\n\nEnd")
    assert read_asked(tmp_path / "i", update(Settings(), {"dataset.sample_by": "document"}), known) == ["This film.\n\nEnd"]
    assert read_asked(tmp_path / "?" / "*.jsonl", Settings(), known) == ["one", "two"]
    assert read_asked(tmp_path / "*" / "t*.csv", Settings(), known) == ["one", "two", "three"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no data files in this directory"):
        read_asked(tmp_path / "empty", Settings(), known)
    for name in ("i/0_8.jsonl", "i/0_8", "i/0_8.txt"):
        with pytest.raises(DataError, match=f"{name}: no such file or directory") as missing:
            read_asked(tmp_path / name, Settings(), known)
        assert missing.value.hint in {"Did you mean 0_7.txt?", "Check the path."}


def test_json_lines_are_asked_compressed_and_with_a_mark_before_them(tmp_path: Path) -> None:
    """tokenize reads both, and Excel or PowerShell writes the latter."""
    lines = '{"text": "so gut, ä"}\n{"text": "so bad"}\n'
    (tmp_path / "rows.jsonl").write_text(lines, encoding="utf-8-sig")
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        assert read_asked(tmp_path / name, Settings(), formats()) == ["so gut, ä", "so bad"]
    (tmp_path / "cut.jsonl.xz").write_bytes(lzma.compress(lines.encode())[:-20])
    with pytest.raises(DataError, match="end too early"):
        read_asked(tmp_path / "cut.jsonl.xz", Settings(), formats())


def test_what_is_learned_with_a_question_is_asked_with_it(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    rows = tmp_path / "rows.jsonl"
    for row, words in (
        ({"dialog": said, "system": "Be brief."}, ["Be brief.", "Why?"]),
        ({"instruction": "Add.", "instances": [{"input": "1 1", "output": "2"}]}, ["Add.\n\n1 1"]),
    ):
        rows.write_text(json.dumps(row) + "\n")
        (found,) = read_texts(rows, "dialog")
        assert isinstance(found, Conversation)
        assert [one["content"] for one in found.messages if one["role"] != "assistant"] == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": "b"', r"rows\.jsonl:3 is no JSON: .*delimiter"),
        (b'{"text": "b\xff"}', r"rows\.jsonl:3 is not UTF-8"),
        (b'{"text": 5}', r"rows\.jsonl:3: text is 5, not a text"),
        (b'["b"]', r"rows\.jsonl:3 is not an object"),
        (b'{"id": 1}', r"rows\.jsonl:3: neither messages, conversations, instruction, text nor prompt"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_line_that_cannot_be_asked_is_named_by_its_number(tmp_path: Path, line: bytes, words: str, packed: bool) -> None:
    data = b'{"text": "a"}\n\n' + line + b"\n"
    path = tmp_path / ("rows.jsonl.gz" if packed else "rows.jsonl")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError, match=words.replace("jsonl:", r"jsonl(\.gz)?:")):
        read_texts(path, "text")


def test_a_pair_without_a_first_text_is_not_said_to_lack_the_second(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}], "other": "b"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:1: no first text text"):
        read_texts(path, "text", "other")
    path.write_text('{"text": "a"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:1: no second text other"):
        read_texts(path, "text", "other")


def test_renamed_columns_and_a_format_that_is_named_are_read(tmp_path: Path) -> None:
    known, rows = formats(), [{"q": "Why?", "a": "So."}]
    renamed = update(Settings(), {"dataset.rename_columns": ["instruction=q", "output=a"]})
    (tmp_path / "x.jsonl").write_text(json.dumps(rows[0]) + "\n")
    (tmp_path / "x.json").write_text(json.dumps(rows))
    for name in ("x.jsonl", "x.json"):
        (found,) = read_asked(tmp_path / name, renamed, known)
        assert isinstance(found, Conversation)
        assert found.messages[0] == {"role": "user", "content": "Why?"}
    (tmp_path / "x.log").write_text("one\ntwo\n")
    assert read_asked(tmp_path / "x.log", update(Settings(), {"dataset.source_format": "text"}), known) == ["one", "two"]


def test_answers_are_written_as_json_lines_with_as_many_labels_as_are_wanted(tmp_path: Path) -> None:
    folder = _model(tmp_path / "model", labels=7)
    for wanted, count in (("5", 5), ("2", 2), ("0", 7)):
        result = testing.run("predict", folder, "a", "b", "--top-k", wanted, "--output", tmp_path / "said.jsonl", "--overwrite", "--json")
        assert result.exit_code == 0, result.stderr
        lines = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
        assert lines == result.report["details"]["predictions"]
        assert [len(line["labels"]) for line in lines] == [count, count]
    assert result.report["paths"]["output"] == str(tmp_path / "said.jsonl")
    assert testing.run("predict", folder, "a", "--top-k", "-1").exit_code == 2
    refused = testing.run("predict", "no/such/model", "a", "--output", tmp_path)
    assert "Is a directory" in refused.stderr


def test_of_a_conversation_with_its_answer_the_question_is_shown(tmp_path: Path) -> None:
    folder = _model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text('{"instruction": "Why?", "output": "So."}\n{"prompt": "one"}\n')
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    result = testing.run("predict", folder, "--input", tmp_path / "rows.jsonl", "--max-new-tokens", "1", "--json")
    assert [one["text"] for one in result.report["details"]["predictions"]] == [[{"role": "user", "content": "Why?"}], "one"]
    assert [row[0] for row in result.report["details"]["table"]["rows"]] == ["Why?", "one"]


def test_the_answers_do_not_replace_the_file_with_the_texts(tmp_path: Path) -> None:
    source, link = tmp_path / "gold.jsonl", tmp_path / "link.jsonl"
    source.write_text('{"text": "a", "label": "gold"}\n')
    link.symlink_to(source)
    for output in (source, link):
        with pytest.raises(UsageError, match="is the file with the texts, and would replace it"):
            predict_command.run(Context.make({}), str(tmp_path / "no model"), (), source, 1, 1, 0.5, plain=False, output=output)
    assert source.read_text() == '{"text": "a", "label": "gold"}\n'


def test_answers_replace_a_file_only_where_that_is_asked_for(tmp_path: Path) -> None:
    folder, kept, empty = _model(tmp_path / "model", labels=3), tmp_path / "kept.jsonl", tmp_path / "empty.jsonl"
    kept.write_text("somebody's\n")
    empty.touch()
    refused = testing.run("predict", folder, "a", "--output", kept)
    assert refused.exit_code == 2
    assert "already exists" in refused.stderr
    assert "replace it with --overwrite" in refused.stderr
    assert kept.read_text() == "somebody's\n"
    for words in ([kept, "--overwrite"], [empty]):
        assert testing.run("predict", folder, "a", "--output", *words).exit_code == 0
        assert json.loads(words[0].read_text())["text"] == "a"


@pytest.mark.parametrize(
    ("place", "words"),
    [("", "Is a directory"), ("taken/answers", "Not a directory"), ("n" * 250, "File name too long"), ("/proc/x", "No such")],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "taken").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PublishError, match=rf"the file with the predictions .* cannot be written: {words}") as caught:
        predict_command.run(Context.make({}), "no/such/model", ("a",), None, 1, 1, 0.5, plain=False, output=tmp_path / place)
    assert caught.value.hint.startswith("Name another file")
    assert sorted(tmp_path.rglob("*")) == before


def test_answers_that_cannot_be_written_at_the_end_are_printed(tmp_path: Path) -> None:
    folder = _model(tmp_path / "model", labels=3)
    result = testing.run("predict", folder, "a", "b", "--output", "/dev/full", "--json")
    assert result.exit_code == 1
    assert len(result.report["details"]["predictions"]) == 2
    assert result.report["error"]["message"] == "the file with the predictions /dev/full cannot be written: No space left on device"
    assert "--report-dir" not in result.report["error"]["hint"]
    assert "output" not in result.report["paths"]
    shown = testing.run("predict", folder, "a", "--output", "/dev/full")
    assert "LABEL_" in shown.stdout
    assert "No space left on device" in shown.stderr


def test_lines_that_end_in_cr_alone_are_refused_with_what_makes_them_lines(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_bytes(b'{"text": "a"}\r{"text": "b"}\r')
    with pytest.raises(DataError, match=r"old\.jsonl:1 is no JSON: Extra data") as caught:
        read_texts(tmp_path / "old.jsonl", "text")
    assert caught.value.hint == r"The file's lines end in CR alone. Convert them: tr '\r' '\n' < OLD > NEW"
    (tmp_path / "new.jsonl").write_bytes(b'{"text": "a"}\r\n{"text": "b"}\r\n')
    assert read_texts(tmp_path / "new.jsonl", "text") == ["a", "b"]
