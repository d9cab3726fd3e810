"""Checks of the tokenizer on the user's own rows: sound text, and the smallest change of text or tokenizer that is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verifying import World, texts

STAGE = ("tokenizer",)
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def rows() -> list[str]:
    return texts(60, 7)


def written(folder: Path, rows: list[str], name: str = "own.jsonl") -> str:
    path = folder / name
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def altered(world: World, folder: Path, change: Change, like: Path | None = None, **config: Any) -> str:
    """A copy of a tokenizer with a change to its tokenizer.json, loaded as the file says."""
    path = Path(world.tokenizer(folder, like, tokenizer_class="PreTrainedTokenizerFast", **config))
    document = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    change(document)
    (path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def test_sound_text_is_quiet_raw_and_prepared(world: World, tmp_path: Path, rows: list[str]) -> None:
    values = {"tokenizer.path": str(world.bpe), "dataset.sources": [written(tmp_path, rows)]}
    checks = world.quiet("own text, raw", values, stages=STAGE)
    for name in ("FT112", "FT113", "FT114", "FT116"):
        assert checks[name].status == "pass", checks[name]
    assert checks["FT112"].evidence["exact"] == 60
    checks = world.quiet("own text, prepared", world.run("classify"), stages=STAGE)
    assert checks["FT112"].evidence["rows"] == 240
    assert checks["FT116"].summary == "no special token is doubled in 240 prepared rows"


def test_without_texts_the_checks_say_why(world: World, tmp_path: Path) -> None:
    assert world.verify({"tokenizer.path": str(world.bpe)}, stages=STAGE)["FT112"].summary == "Round trip: no --dataset"
    values = {"tokenizer.path": str(world.bpe), "dataset.sources": [str(tmp_path / "nowhere.jsonl")]}
    check = world.quiet("no such source", values, stages=STAGE)["FT112"]
    assert (check.status, "the texts cannot be read" in check.summary) == ("skipped", True)
    source = Path(written(tmp_path, texts(30, 8), "moved.jsonl"))
    values["dataset.sources"] = [str(world.prepare("moved", world.bpe, {}, [f"train={source}"]))]
    source.unlink()
    check = world.quiet("sources that are gone", values, stages=STAGE)["FT112"]
    assert check.summary == "Round trip: the source texts of the prepared data were removed or changed"


def test_a_tokenizer_that_does_not_know_the_characters_warns_and_names_them(world: World, tmp_path: Path, rows: list[str]) -> None:
    values = {"tokenizer.path": str(world.wordpiece)}
    few = [row + " ⅋" if number % 20 == 0 else row for number, row in enumerate(rows)]
    check = world.quiet("a rare character", values | {"dataset.sources": [written(tmp_path, few, "few.jsonl")]}, stages=STAGE)["FT113"]
    assert (check.status, list(check.evidence["characters"])) == ("info", ["⅋"])
    many = [row + " ⅋" * 3 for row in rows]
    values["dataset.sources"] = [written(tmp_path, many, "many.jsonl")]
    world.caught("1 to 20 % unknown tokens", values, "FT113", status="warn", words="⅋", stages=STAGE)
    values["dataset.sources"] = [written(tmp_path, [f"{'⅋ ' * (number + 9)}ok" for number in range(60)])]
    world.caught("text of unknown characters", values, "FT113", words="'[UNK]': most often ⅋", stages=STAGE)


def test_texts_that_become_the_same_ids_are_told(world: World, tmp_path: Path, rows: list[str]) -> None:
    both = [*(row.replace(row.split()[0], "order") for row in rows[:50]), "card ⅋", "card ↯"]
    check = world.verify({"tokenizer.path": str(world.wordpiece), "dataset.sources": [written(tmp_path, both)]}, stages=STAGE)["FT113"]
    assert check.evidence["same_ids"] == [["card ⅋", "card ↯"]] or check.evidence["same_ids"] == [["card ↯", "card ⅋"]]
    assert check.status == "warn"


def test_characters_that_vanish_without_an_unknown_token_warn_and_lower_case_does_not(
    world: World, tmp_path: Path, rows: list[str]
) -> None:
    values = {"dataset.sources": [written(tmp_path, [row.title() for row in rows])]}
    lower = altered(world, tmp_path / "lower", lambda file: file.update(normalizer={"type": "Lowercase"}))
    check = world.quiet("a tokenizer in lower case", {**values, "tokenizer.path": lower}, stages=STAGE)["FT112"]
    assert check.evidence["forms"] == 60
    rule = {"type": "Replace", "pattern": {"Regex": "[ou]"}, "content": ""}
    lossy = altered(world, tmp_path / "lossy", lambda file: file.update(normalizer=rule))
    check = world.caught(
        "a normaliser that drops letters", {**values, "tokenizer.path": lossy}, "FT112", status="warn", words="lost", stages=STAGE
    )
    assert set(check.evidence["characters"]) == {"o", "u"}
    rule = {"type": "Replace", "pattern": {"Regex": r"\p{L}"}, "content": ""}
    empty = altered(world, tmp_path / "empty", lambda file: file.update(normalizer=rule))
    checks = world.verify({**values, "tokenizer.path": empty}, stages=STAGE)
    assert checks["FT112"].status == "fail"


def test_words_that_run_together_warn(world: World, tmp_path: Path, rows: list[str]) -> None:
    rule = {"type": "Replace", "pattern": {"Regex": r"\s"}, "content": ""}
    joined = altered(world, tmp_path / "joined", lambda file: file.update(normalizer=rule))
    values = {"dataset.sources": [written(tmp_path, rows)], "tokenizer.path": joined}
    world.caught("D4: a normaliser that takes the spaces away", values, "FT112", status="warn", words="where a word ends", stages=STAGE)


@pytest.mark.parametrize("where", ["inside", "everywhere", "at the end"])
def test_special_tokens_inside_a_few_texts_warn(world: World, tmp_path: Path, rows: list[str], where: str) -> None:
    token = "<|endoftext|>"
    changed = {
        "inside": [f"please {token} help", *rows],
        "everywhere": [row.replace(" ", token, 1) for row in rows],
        "at the end": [*(row + token for row in rows[:5]), *rows[5:]],
    }[where]
    values = {"tokenizer.path": str(world.bpe), "dataset.sources": [written(tmp_path, changed)]}
    if where == "inside":
        check = world.caught("EOS as text inside a row", values, "FT114", status="warn", words="inside the text", stages=STAGE)
        assert check.evidence["texts"] == [f"please {token} help"]
    else:
        assert world.quiet(f"EOS as text {where}", values, stages=STAGE)["FT114"].status == "info"


@pytest.mark.parametrize("prepared", [False, True])
def test_special_tokens_in_what_is_said_warn_however_many_say_them(world: World, tmp_path: Path, rows: list[str], prepared: bool) -> None:
    """The chat template writes them, so they are no format of the data's own; and messages are looked at like texts."""

    def chats(name: str, end: str) -> dict[str, object]:
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"question": f"say {row}", "answer": row + end}) + "\n" for row in rows), encoding="utf-8")
        rename = {"dataset.rename_columns": ["prompt=question", "completion=answer"]}
        source = (
            str(world.prepare(f"said-{name}", world.bpe, {"train.mode": "sft", **rename}, [f"train={path}"])) if prepared else str(path)
        )
        return {"tokenizer.path": str(world.bpe), "train.mode": "sft", "dataset.sources": [source], **({} if prepared else rename)}

    if not prepared:
        world.caught("EOS in all messages", chats("ended", "<|endoftext|>"), "FT114", status="warn", words="120 messages", stages=STAGE)
    found = world.verify(chats("clean", ""), stages=STAGE)
    assert {name: found[name].status for name in ("FT112", "FT114")} == {"FT112": "pass", "FT114": "pass"}


def test_bos_in_the_text_and_by_the_tokenizer_warns_or_fails(world: World, tmp_path: Path, rows: list[str]) -> None:
    some = [f"[CLS] {row}" if number < 12 else row for number, row in enumerate(rows)]
    values = {"tokenizer.path": str(world.wordpiece), "dataset.sources": [written(tmp_path, some, "some.jsonl")]}
    world.caught("a doubled BOS in some texts", values, "FT116", status="warn", words="begin with '[CLS]' twice", stages=STAGE)
    source = written(tmp_path, [f"[CLS] {row}" for row in rows], "all.jsonl")
    values["dataset.sources"] = [source]
    world.caught("a doubled BOS in all texts", values, "FT116", words="60 of 60 texts", stages=STAGE)
    values["dataset.sources"] = [str(world.prepare("doubled", world.wordpiece, {}, [f"train={source}"]))]
    world.caught("a doubled BOS in prepared rows", values, "FT116", words="60 of 60 prepared rows", stages=STAGE)
    values["tokenizer.add_special_tokens"] = False
    values["dataset.sources"] = [source]
    assert world.verify(values, stages=STAGE)["FT116"].status == "pass"


def test_a_doubled_end_is_found(world: World, tmp_path: Path, rows: list[str]) -> None:
    values = {"tokenizer.path": str(world.wordpiece), "dataset.sources": [written(tmp_path, [f"{row} [SEP]" for row in rows])]}
    world.caught("a doubled end", values, "FT116", words="end with '[SEP]' twice", stages=STAGE)


def test_a_language_that_falls_into_bytes_warns_and_a_small_vocabulary_does_not(world: World, tmp_path: Path) -> None:
    korean = [f"{number} 배송이 아직 도착하지 않았습니다 영수증을 보내 주세요 갉갠갭값" for number in range(60)]
    values: dict[str, Any] = {"dataset.sources": [written(tmp_path, korean)]}

    def bytes_only(file: dict[str, Any]) -> None:
        file["model"]["merges"] = []
        special = {token["content"] for token in file["added_tokens"]}
        file["model"]["vocab"] = {token: number for token, number in file["model"]["vocab"].items() if len(token) == 1 or token in special}

    def wide(file: dict[str, Any]) -> None:
        bytes_only(file)
        file["model"]["vocab"] |= {chr(0x20000 + number): len(file["model"]["vocab"]) + number for number in range(8000)}

    small = altered(world, tmp_path / "small", bytes_only)
    assert world.quiet("bytes, 400 ids", values | {"tokenizer.path": small}, stages=STAGE)["FT115"].status == "info"
    large = altered(world, tmp_path / "large", wide)
    check = world.caught("Korean as bytes", values | {"tokenizer.path": large}, "FT115", status="warn", words="Hangul", stages=STAGE)
    assert check.evidence["times"] > 3


def test_text_of_no_known_script_has_no_reference(world: World, tmp_path: Path) -> None:
    values = {
        "tokenizer.path": str(world.bpe),
        "dataset.sources": [written(tmp_path, [f"{number} + 17 = {number + 17}" for number in range(60)])],
    }
    assert "scripts without a reference" in world.quiet("sums", values, stages=STAGE)["FT115"].summary
