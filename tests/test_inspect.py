"""`ftcli inspect`: what is shown is what is stored, or what would be, and nothing else is read."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftcli import testing
from ftcli.cli import output
from ftcli.commands import inspect
from ftcli.context import Context
from ftcli.core.inspect import look_raw
from ftcli.core.inspect.row_selection import MOST_ROWS
from ftcli.core.inspect.tokenlines import lines
from ftcli.core.storage import store
from ftcli.core.storage.store import Store
from ftcli.core.tokenizer.visible_text import BETWEEN, columns_of
from ftcli.errors import DataError, StoreError, TokenizerError, UsageError
from ftcli.records import Report
from ftcli.testing import TEXTS, tiny_tokenizer
from stores import packed, write_store
from tokenizing import prepare, without_plots, write  # noqa: F401 - a fixture

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
CHATS = [[{"role": "user", "content": TEXTS[row % 8]}, {"role": "assistant", "content": TEXTS[(row + 3) % 8]}] for row in range(24)]
COLOUR = re.compile(r"\x1b\[\d*m")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer, texts with labels, and conversations."""
    root = tmp_path_factory.mktemp("inspect")
    (tiny_tokenizer(root / "tok") / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    texts = [f"{row} {TEXTS[row % 8]} 가·나\t송 {TEXTS[row * 3 % 8] * (row % 4 * 2)}" for row in range(120)]
    write(root / "a.jsonl", texts, [("bad", "good")[row % 2] for row in range(120)])
    labels = [["a", "b"][row % 3 : 1 + row % 2] for row in range(120)]
    rows = [json.dumps({"text": text, "labels": held}) for text, held in zip(texts, labels, strict=True)]
    (root / "several.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (root / "several.csv").write_text(
        "text,labels\n" + "".join(f"word {row},{'|'.join(held)}\n" for row, held in enumerate(labels)), encoding="utf-8"
    )
    (root / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS), encoding="utf-8")
    return root


def look(source: Path, tokenizer: Path | None = None, values: dict[str, Any] | None = None, **options: Any) -> Report:
    given = {"dataset__sources": [str(source)], **({"tokenizer__path": str(tokenizer)} if tokenizer else {}), **(values or {})}
    return inspect.run(Context.make({key.replace("__", "."): value for key, value in given.items()}), **options)


def shown(report: Report) -> list[dict[str, Any]]:
    return list(report.details["looked"]["rows"])


def text_of(report: Report, width: int = 100, *, ids: bool = False) -> list[str]:
    return lines(shown(report), width, ids=ids)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("a.jsonl", {"dataset__label_column": "label", "packing__max_length": 64, "dataset__validation_fraction": 0.3}),
    ("several.jsonl", {"dataset__label_column": "labels", "dataset__validation_fraction": 0.3}),
    (
        "several.csv",
        {
            "dataset__label_column": "labels",
            "dataset__label_separator": "|",
            "dataset__label_names": ["b", "a"],
            "dataset__validation_fraction": 0.3,
        },
    ),
    ("a.jsonl", {"packing__strategy": "concat", "packing__max_length": 100, "dataset__test_fraction": 0.3}),
    ("a.jsonl", {"packing__truncation_strategy": "split", "packing__max_length": 50, "tokenizer__add_eos": True}),
    ("chats.jsonl", {"train__mode": "sft", "packing__strategy": "bfd", "packing__max_length": 200}),
]


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(("source", "values"), CASES)
def test_sources_are_shown_as_tokenize_writes_them(world: Path, tmp_path: Path, source: str, values: dict[str, Any]) -> None:
    prepare(world / "tok", world / source, tmp_path / "out", **values)
    for split in Store.open(tmp_path / "out").split_names:
        written = look(tmp_path / "out", split=split, rows="0-3,5")
        read = look(world / source, world / "tok", values, split=split, rows="0-3,5")

        assert [row["row"] for row in shown(read)] == [0, 1, 2, 3, 5]
        for one, other in zip(shown(written), shown(read), strict=True):
            unlike = {key for key in one if one[key] != other[key]}
            assert unlike <= {"notes", "label_id"}  # what was cut is known while it is cut; ids of labels when all labels are


def test_a_text_that_was_cut_or_parted_is_said(world: Path) -> None:
    cut = look(world / "a.jsonl", world / "tok", {"dataset__label_column": "label", "packing__max_length": 64}, rows="3")
    parted = look(world / "a.jsonl", world / "tok", {"packing__strategy": "bfd", "packing__max_length": 64}, rows="0-9")

    assert re.fullmatch(r"the text was cut: it has \d\d+ tokens \(keep_start\)", shown(cut)[0]["notes"][0])
    assert any("is a part of one of" in note for row in shown(parted) for note in row["notes"])


@pytest.mark.usefixtures("without_plots")
def test_a_store_says_of_full_rows_and_cut_ends_what_can_be_known(world: Path, tmp_path: Path) -> None:
    prepare(world / "tok", world / "a.jsonl", tmp_path / "cut", dataset__label_column="label", packing__max_length=64)
    prepare(world / "tok", world / "a.jsonl", tmp_path / "packs", packing__strategy="bfd", packing__max_length=64)

    full, whole = shown(look(tmp_path / "cut", rows="0,3"))[::-1]
    assert full["notes"] == ["as many tokens as fit (64): the text may have been cut (keep_start)"]
    assert whole["notes"] == []
    split = {"packing__truncation_strategy": "split", "packing__max_length": 50}
    prepare(world / "tok", world / "a.jsonl", tmp_path / "parts", tokenizer__add_eos=True, **split)
    parts = shown(look(tmp_path / "parts", rows="0-99"))
    eos = max(row["ids"][-1] for row in parts if not row["notes"])
    assert {row["ids"][-1] == eos for row in parts if row["notes"] == ["the text goes on elsewhere (split)"]} == {False}
    assert any("goes on elsewhere (split)" in note for row in shown(look(tmp_path / "packs", rows="0-9")) for note in row["notes"])


@pytest.mark.usefixtures("without_plots")
def test_a_text_that_fills_a_pack_may_have_been_cut_where_nothing_ends_texts(world: Path, tmp_path: Path) -> None:
    values = {"packing__strategy": "bfd", "packing__max_length": 60, "packing__truncation_strategy": "keep_start"}
    prepare(world / "tok", world / "a.jsonl", tmp_path / "packs", tokenizer__add_eos=False, tokenizer__add_special_tokens=False, **values)
    rows = shown(look(tmp_path / "packs", rows="0-19"))

    full = [row for row in rows if len(row["ids"]) == 60 and len(row["documents"]) == 1]
    assert 0 < len(full) < len(rows)
    for row in rows:
        assert row["notes"] == (["as many tokens as fit (60): the text may have been cut (keep_start)"] if row in full else [])


@pytest.mark.usefixtures("without_plots")
def test_texts_that_a_packer_cuts_go_on_elsewhere(world: Path, tmp_path: Path) -> None:
    prepare(world / "tok", world / "a.jsonl", tmp_path / "packs", packing__strategy="concat", packing__max_length=64)
    rows = shown(look(tmp_path / "packs", rows="0-9"))
    eos = Store.open(tmp_path / "packs").manifest["policy"]["eos"]

    assert any(row["ids"][-1] != eos for row in rows)
    for row in rows:
        told = [note for note in row["notes"] if note.endswith("goes on elsewhere (split)")]
        assert bool(told) == (row["ids"][-1] != eos)


def test_a_large_array_is_not_gone_through_for_its_first_rows(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = tmp_path / "a.json"
    big.write_text(json.dumps([{"text": f"{row} {TEXTS[row % 8]}"} for row in range(30_000)]), encoding="utf-8")
    asked: list[int] = []
    monkeypatch.setattr("ftcli.core.reading.array_chunks.cuts", lambda *_: asked.append(1) or [])
    look(big, world / "tok", {"dataset__shard_bytes": 100_000}, rows="3")
    assert not asked
    look(big, world / "tok", {"dataset__shard_bytes": 100_000, "packing__strategy": "bfd"}, rows="3")  # the end of a shard ends a pack
    assert asked


def test_random_rows_of_sources_are_of_them_and_the_same_for_a_seed(world: Path) -> None:
    values = {"dataset__label_column": "label", "packing__max_length": 400}
    every = {tuple(row["ids"]): row["label"] for row in shown(look(world / "a.jsonl", world / "tok", values, rows="0-119"))}
    first, again, other = (shown(look(world / "a.jsonl", world / "tok", values, random=7, seed=seed)) for seed in (1, 1, 2))

    assert first == again != other
    assert len(first) == 7
    assert all(row["row"] is None and "a.jsonl, bytes 0 to" in row["place"] and every[tuple(row["ids"])] == row["label"] for row in first)


def test_random_rows_are_of_the_whole_file_and_fewer_than_asked_for_are_said(world: Path, tmp_path: Path) -> None:
    labels = [f"label-{row // 300}" for row in range(1_200)]
    write(tmp_path / "sorted.jsonl", [f"text {row}" for row in range(1_200)], labels)
    values = {"dataset__label_column": "label", "packing__max_length": 64}
    few, many = (look(tmp_path / "sorted.jsonl", world / "tok", values, random=count) for count in (40, 1000))

    assert {row["label"] for row in shown(few)} == set(labels)
    assert (len(shown(many)), many.notes) == (1000, ())
    assert len({tuple(row["ids"]) for row in shown(many)}) == 1000
    short = look(world / "a.jsonl", world / "tok", values, random=500)
    assert len(shown(short)) == 120
    assert short.notes == ("120 random rows are shown, 500 were asked for: the 1 place that was drawn holds no more of the split",)
    part = look(tmp_path / "sorted.jsonl", world / "tok", {**values, "dataset__validation_fraction": 0.1}, split="validation", random=60)
    assert len(shown(part)) == 60
    assert len({row["label"] for row in shown(part)}) == 4


def test_a_large_table_is_looked_at_in_pieces_and_a_compressed_one_is_not(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftcli.core.prepare.own_texts.MOST_WHOLE", 10)
    text = "text,label\n" + "".join(f'"a text, number {number}",{number % 2}\n' for number in range(50))
    (tmp_path / "a.csv").write_text(text)
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write(text)
    values = {"dataset__label_column": "label", "packing__max_length": 64}
    assert len(shown(look(tmp_path / "a.csv", world / "tok", values, random=7, seed=1))) == 7
    with pytest.raises(DataError, match="is read as a whole"):
        look(tmp_path / "b.csv.gz", world / "tok", values, random=7, seed=1)


def test_looking_at_sources_hashes_none_of_them(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.core.files.stamps.hash_file", lambda _: pytest.fail("a source was read as a whole"))
    read: list[int] = []
    accept = look_raw.accept
    monkeypatch.setattr(
        look_raw, "accept", lambda job, group, *rest: (read.append(sum(rows.num_rows for _, rows in group)), accept(job, group, *rest))[1]
    )
    monkeypatch.setattr(look_raw, "BATCH_ROWS", 10)

    assert len(shown(look(world / "a.jsonl", world / "tok", rows="0-2"))) == 3
    assert read == [10]


# -- prepared data -----------------------------------------------------------------------------------------------------


@pytest.fixture
def packs(tmp_path: Path, world: Path) -> Path:
    write_store(
        tmp_path / "packs",
        {"train": packed(40, 60, 300, 1), "test": packed(8, 60, 300, 2)},
        tokenizer={"path": str(world / "tok"), "hash": ""},
        shards=4,
    )
    return tmp_path / "packs"


def test_only_the_rows_that_are_asked_for_are_read(packs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_Chunks", lambda _: pytest.fail("the places of all rows were read"))
    read: list[int] = []
    few = store._few
    monkeypatch.setattr(store, "_few", lambda column, wanted: (read.extend(wanted.tolist()), few(column, wanted))[1])

    assert [row["row"] for row in shown(look(packs, rows="3,17-18,39"))] == [3, 17, 18, 39]
    assert read == [3, 17, 18, 39] * 2  # ids and documents
    assert len(shown(look(packs, random=5, seed=3))) == 5


def test_few_rows_are_the_rows(packs: Path, tmp_path: Path) -> None:
    labelled = write_store(tmp_path / "labelled", {"train": [([5, 6], 1), ([7], 0), ([8, 9, 5], 1)]}, label_names=["a", "b"], shards=2)
    targeted = write_store(tmp_path / "sft", {"train": [([5, 6], [-100, 6]), ([7, 8, 9], [-100, -100, 9])]}, task="sft")
    several = write_store(tmp_path / "several", {"train": [([5], (1.0, 0.0)), ([6], (0.0, 0.0)), ([7], (1.0, 1.0))]}, shards=2)
    for made, index in ((Store.open(packs), [0, 39, 11]), (several, [2, 0]), (labelled, [2, 0]), (targeted, [1, 0]), (labelled, [])):
        one, other = made.split("train").few(index), made.split("train").rows(index)
        for name in ("input_ids", "seq_lengths", "targets"):
            left, right = getattr(one, name), getattr(other, name)
            assert (left is None) == (right is None)
            assert left is None or (np.array_equal(left.values, right.values) and np.array_equal(left.offsets, right.offsets))
        for name in ("labels", "flags"):
            left, right = getattr(one, name), getattr(other, name)
            assert np.array_equal(left, right) if left is not None else right is None
    assert np.array_equal(
        np.concatenate([rows.flags for rows in several.split("train").batches()]), several.split("train").rows([0, 1, 2]).flags
    )
    with pytest.raises(IndexError, match="3 rows"):
        labelled.split("train").few([3])


def test_documents_learned_and_special_tokens_have_marks(world: Path, tmp_path: Path) -> None:
    ids = [2, 70, 71, 1, 72, 73, 1]
    write_store(tmp_path / "out", {"train": [(ids, None, [4, 3])]}, tokenizer={"path": str(world / "tok"), "hash": ""})
    report = look(tmp_path / "out")
    found = text_of(report)

    assert found[0] == "row 0 of train, 7 tokens, 5 learned, 2 documents"
    assert found[1].startswith("  ── document 1 of 2: 4 tokens ──")
    assert found[2] == "  ⟪<bos>⟫│⟦d│e│⟪<eos>⟫⟧"
    assert found[4] == "  f│⟦g│⟪<eos>⟫⟧"
    assert text_of(report, ids=True)[2] == "  2:⟪<bos>⟫│⟦70:d│71:e│1:⟪<eos>⟫⟧"
    assert shown(report)[0]["labels"] == [-100, 70, 71, 1, -100, 73, 1]


def test_a_label_has_its_name_and_a_token_label_is_the_stored_one(world: Path, tmp_path: Path) -> None:
    tokenizer = {"path": str(world / "tok"), "hash": ""}
    write_store(tmp_path / "labelled", {"train": [([70, 71], 1)]}, label_names=["spam", "ham"], tokenizer=tokenizer)
    write_store(tmp_path / "several", {"train": [([70], (1.0, 1.0)), ([71], (0.0, 0.0))]}, label_names=["spam", "ham"], tokenizer=tokenizer)
    write_store(tmp_path / "sft", {"train": [([70, 71, 72], [-100, 71, -100])]}, task="sft", tokenizer=tokenizer)

    assert text_of(look(tmp_path / "labelled"))[:2] == ["row 0 of train, 2 tokens, label ham (1)", "  d│e"]
    assert text_of(look(tmp_path / "several"))[:4:3] == ["row 0 of train, 1 token, label spam, ham", "row 1 of train, 1 token, label none"]
    assert text_of(look(tmp_path / "sft"))[:2] == ["row 0 of train, 3 tokens, 1 learned", "  d│⟦e⟧│f"]


@pytest.mark.parametrize("width", [20, 33, 80])
def test_no_line_is_wider_than_asked_and_all_tokens_are_there(world: Path, width: int) -> None:
    report = look(world / "a.jsonl", world / "tok", {"packing__max_length": 100}, rows="3")
    found = text_of(report, width)
    begin = next(place for place, line in enumerate(found) if line.startswith("  3│"))
    end = found.index("")

    assert all(columns_of(line) <= width for line in found[:end])
    whole = "".join(line[2:] for line in found[begin:end])
    assert whole.replace("⟦", "").replace("⟧", "").replace("⟪", "").replace("⟫", "") == BETWEEN.join(shown(report)[0]["texts"])


def test_colours_only_repeat_the_marks(packs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    report = look(packs, width=80)

    def written(stream: io.StringIO) -> str:
        output.write_human(report, stream)
        return stream.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, piped = written(Terminal()), written(io.StringIO())
    assert "\x1b[32m" in coloured
    assert COLOUR.sub("", coloured) == piped
    monkeypatch.setenv("NO_COLOR", "1")
    assert written(Terminal()) == piped


def test_text_is_masked_token_by_token_and_only_secrets_are_hidden(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "See https://example.com or write a mail with the word refund to kim@example.com today."
    write(tmp_path / "mail.jsonl", [text], ["https://a:b@d"])
    monkeypatch.setenv("MY_PASSWORD", "refund-secret")
    values = {"dataset__label_column": "label", "packing__max_length": 200}
    report = look(tmp_path / "mail.jsonl", world / "tok", values, width=5000)
    terminal = io.StringIO()
    output.write_human(report, terminal)
    look(tmp_path / "mail.jsonl", world / "tok", values, width=5000, output=tmp_path / "out.txt")

    assert terminal.getvalue() == (tmp_path / "out.txt").read_text(encoding="utf-8")
    title, tokens = terminal.getvalue().splitlines()[:2]
    assert title.endswith("label https://***@d")  # one string: as everywhere
    assert "".join(shown(report)[0]["texts"]) == tokens.strip().replace("│", "")
    assert "***" not in tokens

    secret = {**shown(report)[0], "texts": ["a", "refund-secret"], "ids": [1, 2], "documents": [2], "special": [], "labels": None}
    assert "refund-secret" not in "".join(lines([secret], 100))


def test_labels_drive_no_terminal(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.jsonl", ["one", "two"], ["\x1b[8mhidden", "b"])
    values = {"dataset__label_column": "label", "packing__max_length": 64}
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for kind in (io.StringIO, type("Terminal", (io.StringIO,), {"isatty": lambda _: True})):
        stream = kind()
        output.write_human(look(tmp_path / "a.jsonl", world / "tok", values), stream)
        assert "\x1b[8m" not in stream.getvalue()
        assert "label \\x1b[8mhidden" in stream.getvalue()
    look(tmp_path / "a.jsonl", world / "tok", values, output=tmp_path / "out.txt")
    assert "\x1b" not in (tmp_path / "out.txt").read_text(encoding="utf-8")


def test_a_tokenizer_that_was_named_from_another_folder_is_found_from_there_and_never_asked_of_the_hub(
    tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "tok").symlink_to(world / "tok")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name, path in (("here", "tok"), ("gone", "../gone/tok")):
        write_store(tmp_path / "job" / "data" / name, {"train": [([70, 71], None, [2])]}, tokenizer={"path": path, "hash": None})

    assert text_of(look(Path("../job/data/here")))[1] == "  d│⟦e⟧"
    gone = look(Path("../job/data/gone"))
    assert any("the tokenizer ../gone/tok of the manifest is not here" in note for note in gone.notes)
    assert text_of(gone)[1] == "  70│⟦71⟧"


def test_without_its_tokenizer_ids_stand_for_tokens_and_another_one_is_said(tmp_path: Path, world: Path) -> None:
    write_store(tmp_path / "out", {"train": [([70, 5000], None, [2])]}, tokenizer={"path": str(tmp_path / "gone/away/from"), "hash": "x"})
    bare = look(tmp_path / "out")
    assert text_of(bare)[1] == "  70│⟦5000⟧"
    assert any("ids stand for tokens" in note and "--tokenizer-path" in note for note in bare.notes)
    other = look(tmp_path / "out", world / "tok")
    assert text_of(other)[1] == "  d│⟦‹no token›⟧"
    assert any("not the tokenizer these data were prepared with" in note for note in other.notes)
    with pytest.raises(TokenizerError):
        look(tmp_path / "out", tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": "0", "random": 2}, "contradict"),
        ({"rows": "5-2"}, "neither a row nor a range"),
        ({"rows": "x"}, "neither a row nor a range"),
        ({"rows": "40"}, "has no row 40"),
        ({"rows": f"0-{MOST_ROWS}"}, "more than 1,000 rows"),
        ({"random": 0}, "--random 0"),
        ({"width": 3}, "too narrow"),
        ({"format": "pdf"}, "no format"),
    ],
)
def test_what_cannot_be_shown_is_said(packs: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        look(packs, **options)


def test_missing_data_splits_and_bad_rows_are_said(packs: Path, world: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no split 'dev'"):
        look(packs, split="dev")
    with pytest.raises(StoreError, match="does not exist"):
        look(tmp_path / "absent")
    with pytest.raises(UsageError, match="is not prepared"):
        look(world / "a.jsonl")
    with pytest.raises(UsageError, match="no split 'test'"):
        look(world / "a.jsonl", world / "tok", split="test")
    with pytest.raises(UsageError, match="no row 120"):
        look(world / "a.jsonl", world / "tok", rows="120")
    values = {"dataset__label_column": "label", "dataset__label_names": ["bad", "worse"]}
    with pytest.raises(DataError, match="'good' is not among the label names"):
        look(world / "a.jsonl", world / "tok", values)
    kept = look(world / "a.jsonl", world / "tok", {**values, "dataset__on_bad": "quarantine"}, rows="0-1")
    assert [row["label"] for row in shown(kept)] == ["bad", "bad"]


# -- documents ---------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Text of the tokens, and what the page would fetch or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tokens: list[str] = []
        self.outside: list[str] = []
        self._inside = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in {"script", "img", "iframe"} or any(value and value.startswith(("http", "//")) for value in given.values()):
            self.outside.append(tag)
        if tag == "span" and (given.get("class") or "").split()[:1] == ["tok"] and "title" in given:
            self.tokens.append("")
            self._inside = 1

    def handle_endtag(self, tag: str) -> None:
        self._inside = 0 if tag == "span" else self._inside

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.tokens[-1] += data


def test_the_page_holds_every_token_and_fetches_nothing(world: Path, tmp_path: Path) -> None:
    write(tmp_path / "odd.jsonl", ["<script>alert(1)</script> & 배송 <eos>"])
    report = look(tmp_path / "odd.jsonl", world / "tok", format="html", output=tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))

    assert report.paths == {"html": str(tmp_path / "page.html")}
    assert page.tokens == shown(report)[0]["texts"]
    assert page.outside == []


def test_the_command_prints_rows_a_page_or_a_document(packs: Path, tmp_path: Path) -> None:
    plain = testing.run("inspect", packs, "--rows", "1", "--split", "test", "--width", "60", "--quiet")
    assert plain.exit_code == 0
    assert plain.stdout.startswith("row 1 of test, ")
    assert "\x1b" not in plain.stdout
    document = testing.run("inspect", packs, "--rows", "0-1", "--format", "json").report
    assert [row["row"] for row in document["details"]["looked"]["rows"]] == [0, 1]
    assert document["metrics"]["rows"] == 40
    assert testing.run("inspect", packs, "--format", "html").stdout.startswith("<!DOCTYPE html>")
    for kind in ("text", "json"):
        assert testing.run("inspect", packs, "--format", kind, "--output", tmp_path / kind).exit_code == 0
    assert json.loads((tmp_path / "json").read_text(encoding="utf-8"))["command"] == "inspect"
    assert (tmp_path / "text").read_text(encoding="utf-8").startswith("row 0 of train, ")


def test_a_document_does_not_replace_what_is_looked_at(world: Path, tmp_path: Path) -> None:
    source = Path(shutil.copy(world / "a.jsonl", tmp_path))
    before = source.read_bytes()
    for words in (str(source), f"train={source}"):
        with pytest.raises(UsageError, match="is the file with the texts, and would replace it"):
            inspect.run(Context.make({"dataset.sources": [words], "tokenizer.path": str(world / "tok")}), format="json", output=source)
    assert source.read_bytes() == before


def test_numbers_to_be_predicted_are_shown_as_they_are_and_have_no_id(world: Path, tmp_path: Path) -> None:
    source = tmp_path / "n.jsonl"
    source.write_text("".join(json.dumps({"text": f"word {row}", "label": row + 0.1234567}) + "\n" for row in (123456, 0, -4)))
    values = {"dataset__label_column": "label", "train__mode": "regress"}
    raw = shown(look(source, world / "tok", values))
    assert [row["label_id"] for row in raw] == [None] * 3
    prepare(world / "tok", source, tmp_path / "out", dataset__label_column="label", train__mode="regress")
    kept = shown(look(tmp_path / "out"))
    assert [row["label"] for row in kept] == ["123456.125", "0.1234567", "-3.8765433"]


def test_two_prepared_directories_are_not_looked_at_together(packs: Path) -> None:
    with pytest.raises(UsageError, match="is prepared, but 2 paths are given"):
        inspect.run(Context.make({"dataset.sources": [str(packs), str(packs)]}))


def test_a_split_that_is_named_is_no_part_of_the_path(world: Path) -> None:
    with pytest.raises(UsageError, match="sources need a tokenizer"):
        inspect.run(Context.make({"dataset.sources": [f"train={world / 'a.jsonl'}"]}))
