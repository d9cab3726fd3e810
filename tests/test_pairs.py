"""Rows of two texts are what `tokenizer(text, text_pair)` makes of them, from any source, through batches and models to an answer."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import load_from_disk
from pyarrow import parquet
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

from ftcli import testing
from ftcli.commands.train import run as train
from ftcli.commands.verify import run as verify
from ftcli.context import Context
from ftcli.core.batches.collate import Dynamic
from ftcli.core.batches.tasks import Classify
from ftcli.core.inspect.look import described
from ftcli.core.inspect.look_raw import of_sources
from ftcli.core.inspect.row_selection import RowSelection
from ftcli.core.inspect.tokenlines import facts
from ftcli.core.models.predict import load, predict
from ftcli.core.models.predict_inputs import read_texts
from ftcli.core.prepare.pairs import cut_pairs, template_of_pairs
from ftcli.core.storage.store import Store
from ftcli.core.tokenizer.train_tokenizer import Kind
from ftcli.errors import DataError, TokenizerError, UsageError
from ftcli.pluginmanager import Plugins
from ftcli.records import Check, Report
from ftcli.testing import tiny_model
from stores import spec_for
from tokenizing import WORDS, context, corpus, left_behind, manifest, prepare, rows, small_tokenizers, without_plots

pytestmark = pytest.mark.usefixtures("no_html", "one_thread", "nursery")

no_html = without_plots
small = small_tokenizers
FIRST = [*corpus(40), "", "only one", "[SEP] in it"]
SECOND = [*reversed(corpus(40)), "other", "", " ".join(WORDS * 3)]
NAMES = ["no", "yes"]
COLUMNS: Mapping[str, Any] = {"dataset__text_column": "first", "dataset__text_pair_column": "second", "dataset__label_column": "label"}


def table() -> list[dict[str, str]]:
    return [{"second": b, "label": NAMES[place % 2], "first": a} for place, (a, b) in enumerate(zip(FIRST, SECOND, strict=True))]


def source(folder: Path, kind: str = "jsonl") -> Path:
    path, found = folder / f"rows.{kind}", table()
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in found))
    elif kind == "json":
        path.write_text(json.dumps(found))
    elif kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(found), path)
    elif kind == "pkl":
        path.write_bytes(pickle.dumps(found))
    else:
        quoted = [[f'"{cell}"' if "\n" in cell or not cell else cell for cell in row.values()] for row in found]
        path.write_text("second,label,first\n" + "".join(",".join(row) + "\n" for row in quoted))
    return path


def made_by_transformers(tokenizer: Path, length: int, side: str) -> Any:
    loaded = AutoTokenizer.from_pretrained(tokenizer, truncation_side=side)
    return loaded(FIRST, SECOND, truncation=True, max_length=length)


@pytest.mark.parametrize("how", ["keep_start", "keep_end"])
@pytest.mark.parametrize("length", [4, 9, 32, 500])
@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_ids_and_token_types_are_those_of_transformers(
    small: Mapping[Kind, Path], tmp_path: Path, kind: Kind, length: int, how: str
) -> None:
    report = prepare(
        small[kind], source(tmp_path), tmp_path / "out", **COLUMNS, packing__max_length=length, packing__truncation_strategy=how
    )
    wanted, found = made_by_transformers(small[kind], length, "right" if how == "keep_start" else "left"), rows(tmp_path / "out")
    assert [row["input_ids"] for row in found] == wanted["input_ids"]
    assert [row["length"] for row in found] == [len(ids) for ids in wanted["input_ids"]]
    if kind == "wordpiece":
        assert [row["token_type_ids"] for row in found] == wanted["token_type_ids"]
    else:
        assert "token_type_ids" not in found[0]
    whole = made_by_transformers(small[kind], 10**6, "right")["input_ids"]
    assert report.metrics["rows_truncated"] == sum(len(ids) > length for ids in whole)
    assert report.metrics["tokens_cut"] == sum(max(0, len(ids) - length) for ids in whole)


@pytest.mark.parametrize("kind", ["json", "parquet", "csv", pytest.param("pkl", marks=pytest.mark.slow)])
def test_every_source_gives_the_same_pairs(small: Mapping[Kind, Path], tmp_path: Path, kind: str) -> None:
    prepare(small["wordpiece"], source(tmp_path), tmp_path / "lines", **COLUMNS)
    prepare(small["wordpiece"], source(tmp_path, kind), tmp_path / kind, **COLUMNS)
    assert rows(tmp_path / kind) == rows(tmp_path / "lines")
    assert manifest(tmp_path / kind)["label_names"] == NAMES


def test_pairs_of_a_tokenizer_that_draws_lots_are_those_without(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    """BPE dropout was refused as a tokenizer that "puts different special tokens to different text pairs of texts than around another"."""
    lots = shutil.copytree(small["bpe"], tmp_path / "lots")
    backend = json.loads((lots / "tokenizer.json").read_text(encoding="utf-8"))
    backend["model"]["dropout"] = 0.5
    (lots / "tokenizer.json").write_text(json.dumps(backend), encoding="utf-8")
    for name, tokenizer in (("without", small["bpe"]), ("with", lots)):
        prepare(tokenizer, source(tmp_path), tmp_path / name, **COLUMNS)
    assert rows(tmp_path / "with") == rows(tmp_path / "without")


def test_pairs_do_not_depend_on_batches_shards_or_the_split(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    given = {**COLUMNS, "dataset__shard_bytes": 1000, "dataset__validation_fraction": 0.3}
    prepare(small["wordpiece"], source(tmp_path), tmp_path / "one", **given)
    prepare(small["wordpiece"], source(tmp_path), tmp_path / "other", **given, dataset__batch_size=3, dataset__num_proc=1)
    assert manifest(tmp_path / "one")["content_hash"] == manifest(tmp_path / "other")["content_hash"]
    wanted = made_by_transformers(small["wordpiece"], 512, "right")
    pairs = {tuple(ids): types for ids, types in zip(wanted["input_ids"], wanted["token_type_ids"], strict=True)}
    found = [row for split in ("train", "validation") for row in rows(tmp_path / "one", split)]
    assert len(found) == len(FIRST)
    assert all(pairs[tuple(row["input_ids"])] == row["token_type_ids"] for row in found)


@pytest.mark.parametrize("room", [0, 1, 2, 5, 6, 11])
def test_the_longer_text_is_cut_first_as_a_fast_tokenizer_does(small: Mapping[Kind, Path], room: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small["bpe"])
    lengths = [(one, other) for one in range(9) for other in range(9)]
    texts = [("\x00" * one, "\x01" * other) for one, other in lengths]
    first, second = (np.array([len(tokenizer(pair[side])["input_ids"]) for pair in texts]) for side in (0, 1))
    found = np.stack(cut_pairs(first, second, room), axis=1).tolist()
    zero, one = tokenizer("\x00")["input_ids"], tokenizer("\x01")["input_ids"]
    wanted = tokenizer([a for a, _ in texts], [b for _, b in texts], truncation=True, max_length=room)["input_ids"] if room else None
    if wanted is None:
        assert all(pair == [0, 0] for pair in found)
    else:
        assert found == [[sum(id_ in zero for id_ in ids), sum(id_ in one for id_ in ids)] for ids in wanted]


def test_rows_that_do_not_fit_are_dropped_or_named(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    path = source(tmp_path)
    report = prepare(small["wordpiece"], path, tmp_path / "out", **COLUMNS, packing__max_length=32, packing__truncation_strategy="drop")
    whole = [ids for ids in made_by_transformers(small["wordpiece"], 10**6, "right")["input_ids"] if len(ids) <= 32]
    assert [row["input_ids"] for row in rows(tmp_path / "out")] == whole
    assert report.metrics["rows_too_long"] == len(FIRST) - len(whole)
    with pytest.raises(DataError, match=r"rows\.jsonl:\d+ .*the text has \d+ tokens, 29 fit into max_length 32"):
        prepare(small["wordpiece"], path, tmp_path / "error", **COLUMNS, packing__max_length=32, packing__truncation_strategy="error")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"dataset__label_column": None}, UsageError, "text_pair_column = 'second' is for classification"),
        ({"dataset__text_pair_column": "first"}, UsageError, "'first' cannot be both"),
        ({"dataset__text_pair_column": "label"}, UsageError, "'label' cannot be both"),
        ({"dataset__text_pair_column": "secnd"}, DataError, "no column 'secnd'"),
        ({"packing__truncation_strategy": "split"}, UsageError, "split would separate the two texts"),
        ({"packing__strategy": "bfd"}, UsageError, "contradict each other"),
        ({"packing__max_length": 3}, UsageError, "leaves no room"),
        ({"train__mode": "sft", "dataset__label_column": None}, UsageError, "sft"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    small: Mapping[Kind, Path], tmp_path: Path, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as refused:
        prepare(small["wordpiece"], source(tmp_path), tmp_path / "out", **{**COLUMNS, **change})
    if "secnd" in words:
        assert "Did you mean --text-pair-column second?" in refused.value.hint  # type: ignore[attr-defined]
    assert not left_behind(tmp_path / "out")


def test_a_second_text_that_is_none_is_named(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"first": "a", "second": "b", "label": "no"}\n{"first": "a", "second": null, "label": "yes"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:2 .*'second' is null; text must be a string"):
        prepare(small["wordpiece"], path, tmp_path / "out", **COLUMNS)
    (tmp_path / "rows.txt").write_text("a text\n")
    with pytest.raises(DataError, match=r"rows\.txt: no column 'first'"):
        prepare(small["wordpiece"], tmp_path / "rows.txt", tmp_path / "out", **COLUMNS)


def test_a_tokenizer_that_marks_a_pair_in_another_way_is_refused() -> None:
    class Odd:
        model_input_names = ("input_ids", "token_type_ids")

        def __init__(self, types: list[int], *, moving: bool = False) -> None:
            self.types, self.moving = types, moving

        def __call__(self, one: list[str], other: list[str] | None = None, **_: Any) -> dict[str, Any]:
            if other is None:
                return {"input_ids": [[7] * len(text) for text in one]}
            ids = [[7] * len(a) + ([2] if self.moving and len(a) > 1 else [1]) + [7] * len(b) for a, b in zip(one, other, strict=True)]
            return {"input_ids": ids, "token_type_ids": [self.types] * len(ids)}

    assert template_of_pairs(Odd([0, 0, 1]), [], special=True).middle == (1,)
    assert not template_of_pairs(Odd([0, 0, 0]), [], special=True).types
    with pytest.raises(TokenizerError, match=r"by the types \[0, 0, 2\]"):
        template_of_pairs(Odd([0, 0, 2]), [], special=True)
    with pytest.raises(TokenizerError, match="different special tokens to different text pairs"):
        template_of_pairs(Odd([0, 0, 1], moving=True), [], special=True)


# -- batches and models ------------------------------------------------------------------------------------------------


@pytest.fixture
def pairs(small: Mapping[Kind, Path], tmp_path: Path) -> Path:
    prepare(small["wordpiece"], source(tmp_path), tmp_path / "pairs", **COLUMNS, packing__max_length=48)
    return tmp_path / "pairs"


def test_a_batch_is_that_of_a_plain_collator(small: Mapping[Kind, Path], pairs: Path) -> None:
    split, loaded = Store.open(pairs).split("train"), load_from_disk(str(pairs))["train"].remove_columns("length")
    ours = Dynamic(spec_for(Classify()))(split.rows([3, 41, 0]))
    theirs = DataCollatorWithPadding(AutoTokenizer.from_pretrained(small["wordpiece"]))([loaded[row] for row in (3, 41, 0)])
    for name in ("input_ids", "attention_mask", "token_type_ids", "labels"):
        assert torch.equal(ours[name], theirs[name]), name
    assert ours["token_type_ids"].any()
    for way in (split.few([3, 41, 0]), next(iter(split.batches()))):
        place = 0 if len(way) == 3 else 3
        assert way.types is not None
        assert way.types.row(place).tolist() == loaded[3]["token_type_ids"]


def seen(pairs: Path, tokenizer: Path, config: Path, plugins: Plugins | None = None, **values: Any) -> Check:
    """The verdict on rows that are looked at alone."""
    report = verify(run_of(pairs, tokenizer, pairs / "no", config, plugins, **values), (), "full", "fail", ("FT407",), ())
    return {check.id: check for check in report.checks}["FT407"]


def train_on(pairs: Path, tokenizer: Path, output: Path, config: Path, **values: Any) -> Report:
    return train(run_of(pairs, tokenizer, output, config, None, **values))


def run_of(pairs: Path, tokenizer: Path, output: Path, config: Path, plugins: Plugins | None, **values: Any) -> Context:
    given = {
        "dataset__sources": [str(pairs)],
        "tokenizer__path": str(tokenizer),
        "model__config": config,
        "train__output_dir": output,
        "train__mode": "classify",
        "train__max_steps": 3,
        "train__learning_rate": 1e-2,
        "train__eval_strategy": "no",
        "runtime__threads": 1,
        "train__bf16": False,
        **values,
    }
    return Context.make({key.replace("__", "."): value for key, value in given.items()}, plugins)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    of_model = tiny_model("bert", vocab_size=700, labels=2).config
    of_model.hidden_dropout_prob = of_model.attention_probs_dropout_prob = 0.0
    of_model.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert" / "config.json"


@pytest.mark.parametrize("collator", ["dynamic", "packed"])
def test_a_run_passes_its_checks_and_its_model_answers_as_the_plain_one(
    small: Mapping[Kind, Path], pairs: Path, config: Path, tmp_path: Path, collator: str
) -> None:
    assert seen(pairs, small["wordpiece"], config, loader__collator=collator).status == "pass"
    report = train_on(pairs, small["wordpiece"], tmp_path / "run", config, loader__collator=collator)
    assert report.details["asked"] == "pairs"
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval(),
        AutoTokenizer.from_pretrained(tmp_path / "run"),
    )
    asked = list(zip(FIRST[:5], SECOND[:5], strict=True))
    for (one, other), answer in zip(asked, predict(load(str(tmp_path / "run")), asked, batch_size=2, max_new_tokens=1), strict=True):
        with torch.no_grad():
            alone = model(**tokenizer(one, other, return_tensors="pt")).logits.softmax(-1)[0]
        assert answer["probability"] == pytest.approx(float(alone.max()), abs=1e-5)


WAYS: Mapping[str, Mapping[str, Any]] = {
    "as they come": {},
    "EOS": {"tokenizer__add_eos": True},
    "no special tokens": {"tokenizer__add_special_tokens": False},
    "short": {"packing__max_length": 7},
    "short, the ends": {"packing__max_length": 7, "packing__truncation_strategy": "keep_end", "tokenizer__add_eos": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("paired", [False, True])
def test_what_is_asked_is_encoded_as_the_rows_that_were_learned(
    small: Mapping[Kind, Path], config: Path, tmp_path: Path, way: str, paired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A classifier of rows that end with EOS was asked without it: 65 % of its answers were right, and of its evaluation's 99 %."""
    tokenizer = Path(shutil.copytree(small["wordpiece"], tmp_path / "tokenizer"))
    named = json.loads((tokenizer / "tokenizer_config.json").read_text())
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({**named, "eos_token": "[MASK]"}))
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in table()[:40]))
    columns = COLUMNS if paired else {name: value for name, value in COLUMNS.items() if "pair" not in name}
    prepare(tokenizer, lines, tmp_path / "data", **columns, **WAYS[way])
    train_on(tmp_path / "data", tokenizer, tmp_path / "run", config, train__max_steps=1, train__verify=False)
    fed: list[dict[str, list[int]]] = []

    def labels(_: Any, rows: list[list[int]], types: list[list[int]] | None, *rest: Any) -> list[dict[str, Any]]:
        fed.extend({"input_ids": ids} if types is None else {"input_ids": ids, "token_type_ids": types[at]} for at, ids in enumerate(rows))
        return [{"label": "no", "probability": 1.0, "labels": []} for _ in rows]

    monkeypatch.setattr("ftcli.core.models.predict._labels", labels)
    names = ["--text-column", "first", *(["--text-pair-column", "second"] if paired else [])]
    testing.run("predict", str(tmp_path / "run"), "--input", str(lines), *names, "--json")
    learned = [{name: row[name] for name in ("input_ids", *(["token_type_ids"] if paired else []))} for row in rows(tmp_path / "data")]
    assert sorted(fed, key=str) == sorted(learned, key=str)
    run_file = tmp_path / "run" / "ftcli-run.json"
    report = json.loads(run_file.read_text())
    del report["details"]["encoding"]  # as an older run has it
    run_file.write_text(json.dumps(report))
    fed.clear()
    testing.run("predict", str(tmp_path / "run"), FIRST[0], *(["--pair", SECOND[0]] if paired else []), "--json")
    assert fed[0]["input_ids"] == AutoTokenizer.from_pretrained(tokenizer)(FIRST[0], *([SECOND[0]] if paired else []))["input_ids"]


def test_a_check_sees_a_collator_that_loses_the_types(small: Mapping[Kind, Path], pairs: Path, config: Path, tmp_path: Path) -> None:
    """The positive control of the test above."""
    forgetful = (
        "from ftcli import hookimpl\nfrom ftcli.contracts import CollatorKind\nfrom ftcli.core.batches.collate import Dynamic\n\n"
        "class Forgetful(Dynamic):\n    def __call__(self, rows):\n        batch = super().__call__(rows)\n"
        "        del batch['token_type_ids']\n        return batch\n\n"
        "@hookimpl\ndef register_collators(register):\n    register('forgetful', CollatorKind(Forgetful))\n"
    )
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "forgetful.py").write_text(forgetful)
    plugins = Plugins(tmp_path / "plugins", ())
    assert seen(pairs, small["wordpiece"], config, plugins, loader__collator="forgetful").status == "fail"


def test_the_store_trains_in_plain_trainer(small: Mapping[Kind, Path], pairs: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small["wordpiece"])
    arguments = TrainingArguments(
        str(tmp_path / "plain"), max_steps=2, report_to="none", use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    trainer = Trainer(
        tiny_model("bert", vocab_size=700, labels=2),
        arguments,
        train_dataset=load_from_disk(str(pairs))["train"],
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    assert np.isfinite(trainer.train().training_loss)


def test_predict_reads_pairs_and_refuses_half_of_them(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text('{"first": "a", "second": "b"}\n{"first": "c", "second": 3}\n')
    assert read_texts(path, "first") == ["a", "c"]
    with pytest.raises(DataError, match=r"asked\.jsonl:2: no second text second"):
        read_texts(path, "first", "second")
    model = tiny_model("bert", vocab_size=700, labels=2)
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(small["wordpiece"]).save_pretrained(tmp_path / "model")
    loaded = load(str(tmp_path / "model"))
    with pytest.raises(UsageError, match="text 2 has no second text"):
        predict(loaded, [("a", "b"), "c"], batch_size=2, max_new_tokens=1)


def test_inspect_says_where_the_second_text_begins(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    run = context(small["wordpiece"], source(tmp_path), tmp_path / "out", **COLUMNS)
    looked, spelling, _ = of_sources(run, "train", RowSelection.of_words("3", None, 0))
    assert looked.rows.types is not None
    wanted = made_by_transformers(small["wordpiece"], 512, "right")
    assert looked.rows.types.row(0).tolist() == wanted["token_type_ids"][3]
    assert looked.rows.input_ids.row(0).tolist() == wanted["input_ids"][3]
    (row,) = described(looked, spelling)
    assert f"second text from token {wanted['token_type_ids'][3].index(1)}" in facts(row)
