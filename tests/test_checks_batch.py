"""Checks of the first batch: what is healthy, and the smallest change of a collator or of the data that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import load_from_disk
from hypothesis import given
from hypothesis import strategies as st

from ftcli.core.storage.store import Store
from ftcli.core.verify.audit import token_places
from ftcli.core.verify.isolation import _affordable
from ftcli.testing import tiny_model
from stores import rows_of
from verifying import World

STAGE = ("batch",)
BROKEN_LABELS = """
from ftcli import hookimpl

@hookimpl
def register_tasks(register):
    from ftcli.core.batches.tasks import Pretrain

    class Odd(Pretrain):
        name = "odd"

        def labels(self, rows):
            return 1 / 0

    register("odd", Odd)
"""


@pytest.mark.parametrize("kind", ["classify", "pretrain", "packed"])
def test_a_batch_by_ftclis_own_collators_passes(world: World, kind: str) -> None:
    checks = world.quiet(f"{kind} batch", world.run(kind), stages=STAGE)
    assert checks["FT301"].status == checks["FT302"].status == "pass"
    assert checks["FT303"].status == ("pass" if kind == "classify" else "skipped")
    assert ("the last token finds the right one" in checks["FT303"].summary) == (kind == "classify")
    shown = checks["FT301"].evidence["rows"]
    assert len(shown) == 3
    assert shown[0]["text"]
    assert shown[0]["ids"]


def test_the_audited_rows_are_the_same_each_time_and_hold_the_shortest_and_the_longest(world: World) -> None:
    values = world.run("classify")
    first, again, other = (world.verify({**values, "train.seed": seed}, stages=STAGE)["FT301"].evidence for seed in (1, 1, 2))
    assert first == again
    assert first["rows"] != other["rows"]
    lengths = Store.open(world.labelled).split("train").lengths
    assert first["shapes"]["input_ids"] == [12, lengths.max()]


@pytest.mark.parametrize("values", [{"loader.pad_to_multiple_of": 8}, {"loader.pad_to_multiple_of": 64}, {"loader.collator": "fixed"}])
@pytest.mark.parametrize("kind", ["classify", "pretrain"])
def test_more_padding_is_no_fault(world: World, kind: str, values: dict[str, Any]) -> None:
    world.quiet(f"{kind} with {values}", world.run(kind, "qwen3", **values), stages=("batch", "model"))


@pytest.mark.parametrize("kind", ["classify", "pretrain"])
def test_a_missing_mask_on_right_padded_rows_of_a_causal_model_is_no_fault(world: World, kind: str) -> None:
    plugins = world.collator('del batch["attention_mask"]')
    checks = world.quiet(f"no mask, right padding, qwen3, {kind}", world.run(kind, "qwen3"), plugins=plugins, stages=("batch", "model"))
    assert checks["FT301"].status == "info"
    assert checks["FT407"].status == "pass"


WIDER = """batch = {key: torch.nn.functional.pad(value, (0, 50)) if value.ndim > 1 else value for key, value in batch.items()}"""


@pytest.mark.parametrize(("change", "further"), [("pass", ""), (WIDER, " and is {wide} wide where its longest row has {longest} tokens")])
def test_padding_beyond_the_longest_row_is_the_collators(world: World, change: str, further: str) -> None:
    """Rows of 200 tokens that a collator pads to 256 were said to be short and long ones; the page about collators has them."""
    check = world.verify(world.run("classify"), stages=STAGE, plugins=world.collator(change))["FT301"]
    wide = check.evidence["shapes"]["input_ids"][1]
    reason = "padding, because the batch mixes short and long rows" + further.format(wide=wide, longest=wide - 50)
    assert check.summary.endswith(reason), check.summary


INVERTED = 'batch["attention_mask"] = 1 - batch["attention_mask"]'
ONES = 'batch["attention_mask"] = torch.ones_like(batch["attention_mask"])'
SHORT = 'batch["attention_mask"][3, 0] = 0'


def test_a_mask_of_ones_warns_and_the_forward_pass_decides(world: World) -> None:
    plugins = world.collator(ONES)
    world.caught("a mask of ones", world.run("classify"), "FT301", status="warn", words="padding positions", stages=STAGE, plugins=plugins)
    checks = world.verify(world.run("classify", "qwen3"), stages=("batch", "model"), plugins=plugins)
    assert checks["FT407"].status == "pass"  # right padding of a causal model is never seen


@pytest.mark.parametrize(("what", "change"), [("inverted", INVERTED), ("one token short", SHORT)])
def test_a_wrong_mask_fails(world: World, what: str, change: str) -> None:
    world.caught(
        f"a mask {what}", world.run("classify"), "FT301", words="attention mask of row", stages=STAGE, plugins=world.collator(change)
    )


@pytest.mark.parametrize(
    ("what", "change", "words"),
    [
        ("other ids", 'batch["input_ids"][2, 0] += 1', "row 2 of the batch does not hold"),
        ("a row less", "batch = {name: value[1:] for name, value in batch.items()}", "12 rows became a batch of 11"),
        ("rows cut", "batch = {name: value[:, :8] if value.ndim == 2 else value for name, value in batch.items()}", "does not hold"),
    ],
)
def test_a_collator_that_changes_the_rows_is_found(world: World, what: str, change: str, words: str) -> None:
    values = world.run("classify")
    plugins = world.collator(change)
    verdict = world.caught(f"a batch with {what}", values, "FT301", words=words, stages=STAGE, plugins=plugins)
    assert verdict.fix == f"The collator bucketed of plugin {plugins.describe()[-1].name!r} is wrong: mend it, or use one of ftcli's."


def test_a_task_whose_labels_break_is_named_and_not_the_collator(world: World) -> None:
    plugins = world.plugins(BROKEN_LABELS)
    verdict = world.caught(
        "labels that break", world.run("pretrain") | {"train.mode": "odd"}, "FT301", "FT304", stages=STAGE, plugins=plugins
    )
    name = plugins.describe()[-1].name
    assert f"the labels of the task odd of plugin {name!r} broke: ZeroDivisionError: division by zero ({name}.py, line " in verdict.summary


def test_a_collator_that_mixes_up_labels_is_found(world: World) -> None:
    plugins = world.collator('batch["labels"] = batch["labels"].roll(1)')
    world.caught("labels of other rows", world.run("classify"), "FT302", words="in the data it is", stages=STAGE, plugins=plugins)


@pytest.mark.parametrize(
    ("what", "change", "words"),
    [
        ("labels shifted by the collator", 'batch["labels"] = batch["labels"].roll(-1, 1)', "must not be shifted"),
        ("padding labelled", 'batch["labels"][batch["attention_mask"] == 0] = 0', "padding is labelled"),
        ("padding labelled, no mask", 'batch["labels"][batch.pop("attention_mask") == 0] = 0', "padding is labelled"),
        ("EOS never labelled", 'batch["labels"][batch["input_ids"] == 1] = -100', "EOS occurs in the batch but is never a target"),
        ("a row without targets", 'batch["labels"][4] = -100', "1 rows have no target at all, first row 4"),
    ],
)
def test_wrong_targets_fail(world: World, what: str, change: str, words: str) -> None:
    world.caught(what, world.run("pretrain"), "FT302", words=words, stages=STAGE, plugins=world.collator(change))


def test_eos_as_pad_masked_by_id_fails_and_the_fix_names_the_cause(world: World, tmp_path: Path) -> None:
    tokenizer = world.tokenizer(tmp_path / "t", pad_token="<|endoftext|>")
    values = {**world.run("pretrain"), "tokenizer.path": tokenizer}
    world.quiet("PAD is EOS, masked by place", values, stages=STAGE)
    plugins = world.collator('batch["labels"][batch["input_ids"] == self.spec.pad_token_id] = -100')
    check = world.caught("PAD is EOS, masked by id", values, "FT302", words="never a target", stages=STAGE, plugins=plugins)
    assert "by position" in check.fix


def test_an_eos_that_nobody_learns_is_not_the_collators_fault(world: World, tmp_path: Path) -> None:
    """BOS is EOS and every text was cut: the first token of a text is never a target."""
    rows = [([1, *(id_ for id_ in ids if id_ != 1)], None) for ids, _ in world.rows(world.plain)]
    values = {**world.run("pretrain"), **world.rewritten(tmp_path / "cut", {"train": rows}, like=world.plain)}
    check = world.verify(values, stages=STAGE)["FT302"]
    assert check.status == "pass", check.summary


def test_texts_without_eos_warn(world: World) -> None:
    values = {**world.run("classify"), "train.mode": "pretrain"}
    check = world.caught("EOS not appended", values, "FT304", status="warn", words="no text ends with EOS", stages=STAGE)
    assert "--add-eos" in check.fix


@pytest.mark.parametrize(("turn", "status"), [("<|endoftext|>\n", "pass"), ("<|endoftext|>", "pass"), ("!\n", "fail")])
def test_conversations_end_with_eos_whatever_space_the_template_writes_behind_it(
    world: World, tmp_path: Path, turn: str, status: str
) -> None:
    """Qwen's template ends every turn with EOS and a line end: no answer was said to end with EOS, and the verdict was fail."""
    tokenizer = Path(world.tokenizer(tmp_path / "t"))
    end = json.dumps(turn, ensure_ascii=False)
    (tokenizer / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role + ': ' + m.content + "
        + end
        + " }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    source = tmp_path / "talks.jsonl"
    source.write_text("".join(json.dumps({"instruction": f"say {row}", "output": f"it is {row}"}) + "\n" for row in range(60)))
    talks = world.prepare(f"talks {status} {len(turn)}", tokenizer, {"train.mode": "sft", "packing.max_length": 64}, sources=[str(source)])
    values = {"tokenizer.path": str(tokenizer), "dataset.sources": [str(talks)], "train.mode": "sft"}
    if status == "pass":
        assert world.quiet(f"turns that end with {turn!r}", values, stages=STAGE)["FT304"].evidence["share"] == 1
    else:
        check = world.caught("turns that end with another token", values, "FT304", words="no answer ends with EOS", stages=STAGE)
        assert "ends most conversations with '!'" in check.fix


def test_an_answer_ends_with_one_token_and_the_conversation_with_another(world: World, tmp_path: Path) -> None:
    """Phi-3's template writes <|end|> behind an answer and <|endoftext|> behind the last one: "the model would never stop", whatever its configuration said."""
    tokenizer = Path(world.tokenizer(tmp_path / "t"))
    (tokenizer / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role + ':\\n' + m.content + '!\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:\n{% else %}{{ eos_token }}{% endif %}"
    )
    talk = [{"role": role, "content": f"{role} speaks"} for role in ("user", "assistant") * 2]
    source = tmp_path / "talks.jsonl"
    source.write_text((json.dumps({"messages": talk}) + "\n") * 60)
    talks = world.prepare("two ends", tokenizer, {"train.mode": "sft", "packing.max_length": 256}, sources=[str(source)])
    values = {"tokenizer.path": str(tokenizer), "dataset.sources": [str(talks)], "train.mode": "sft"}
    end = next(label for label in reversed(load_from_disk(str(talks / "train"))[0]["labels"]) if label >= 0)
    both = {**values, "model.config": world.config("qwen3", eos_token_id=[1, end])}
    check = world.quiet("both are ends", both, stages=STAGE)["FT304"]
    assert check.evidence["learned"] == 0
    assert check.summary.startswith("100.0% of 60 texts end with '<|endoftext|>', their answers with '!")
    world.caught("the answer's is none", values, "FT304", words="which is never a target", stages=STAGE)


def _answers(world: World, folder: Path, long: int, **values: Any) -> dict[str, Any]:
    """80 prompts with answers, the first `long` of them a few tokens longer than the others."""
    source = folder / "answers.jsonl"
    rows = [{"prompt": "order", "completion": " card" * (40 if row < long else 12 + row % 5) + " late"} for row in range(80)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    name = f"answers-{long}-{folder.name}-{len(list(folder.iterdir()))}"
    data = world.prepare(name, world.bpe, {"train.mode": "sft", **values}, sources=[f"train={source}"])
    (folder / name).touch()
    return {"tokenizer.path": str(world.bpe), "dataset.sources": [str(data)], "train.mode": "sft"}


def _longest(values: dict[str, Any]) -> int:
    return int(Store.open(Path(values["dataset.sources"][0])).split("train").lengths.max())


@pytest.mark.parametrize(("long", "status"), [(80, "fail"), (50, "warn"), (30, "warn"), (3, "pass")])
def test_answers_that_lost_their_end_to_the_length_are_seen(world: World, tmp_path: Path, long: int, status: str) -> None:
    """All answers but a tenth could lack their end and half of them passed; where none had one, --add-eos was advised, which is on in mode sft."""
    whole = _answers(world, tmp_path, long, **{"packing.max_length": 256})
    world.quiet("whole answers", whole, stages=STAGE)
    most = _longest(whole)
    cut = _answers(world, tmp_path, long, **{"packing.max_length": most - 2})
    if status == "pass":
        assert world.quiet("3 of 80 answers cut", cut, stages=STAGE)["FT304"].evidence["cut"] == long / 80
        return
    words = "no answer ends" if long == 80 else f"{long / 80:.1%} of 80 answers were cut"
    check = world.caught(f"{long} of 80 answers cut", cut, "FT304", status=status, words=words, stages=STAGE)
    assert f"Raise --max-length above {most - 2} (2 tokens" in check.fix
    assert "--add-eos" not in check.fix
    world.quiet("as advised", _answers(world, tmp_path, long, **{"packing.max_length": most}), stages=STAGE)
    if long == 50:
        dropped = {"packing.max_length": most - 2, "packing.truncation_strategy": "drop"}
        world.quiet("left out", _answers(world, tmp_path, long, **dropped), stages=STAGE)


def test_answers_that_were_never_ended_are_told_so_however_many_are_cut(world: World, tmp_path: Path) -> None:
    most = _longest(_answers(world, tmp_path, 8, **{"packing.max_length": 256}))
    cut = _answers(world, tmp_path, 8, **{"packing.max_length": most - 3, "tokenizer.add_eos": False})
    check = world.caught("answers without EOS", cut, "FT304", words="no answer ends with EOS", stages=STAGE)
    assert "--add-eos" in check.fix
    ends = _answers(world, tmp_path, 8, **{"packing.max_length": most - 3, "packing.truncation_strategy": "keep_end"})
    assert world.quiet("beginnings cut", ends, stages=STAGE)["FT304"].evidence["cut"] == 0


FORGETS_EOS = """
import ftcli
from ftcli.core.batches.tasks import IGNORED, Pretrain

class Task(Pretrain):
    def labels(self, rows):
        labels = super().labels(rows)
        labels[labels == 1] = IGNORED
        return labels

@ftcli.hookimpl
def register_tasks(register):
    register("pretrain", Task, replace=True)
"""


def test_an_end_that_the_task_never_learns_fails(world: World, tmp_path: Path) -> None:
    rows = [([*ids, 1], None) for ids, _ in world.rows(world.plain)]
    values = {**world.run("pretrain"), **world.rewritten(tmp_path / "s", {"train": rows}, like=world.plain, task="pretrain")}
    assert world.quiet("EOS that is learned", values, stages=STAGE)["FT304"].evidence["learned"] == 1
    plugins = world.plugins(FORGETS_EOS)
    world.caught("a task that leaves EOS out", values, "FT304", words="which is never a target", stages=STAGE, plugins=plugins)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_conversations_may_end_as_the_model_says_and_not_as_the_tokenizer_does(world: World, tmp_path: Path, file: str) -> None:
    """Gemma's turns end with <end_of_turn>, at which it stops, while its tokenizer's EOS is another."""
    rows = [([*ids, 7], None) for ids, _ in world.rows(world.plain)]
    tiny_model().save_pretrained(tmp_path / "model")
    written = tmp_path / "model" / file
    before = json.loads(written.read_text()) if written.exists() else {}
    written.write_text(json.dumps({**before, "eos_token_id": [1, 7]}))
    values = {**world.run("pretrain"), **world.rewritten(tmp_path / "s", {"train": rows}, like=world.plain, task="pretrain")}
    values |= {"model.config": None, "model.name_or_path": str(tmp_path / "model")}
    check = world.verify(values, stages=STAGE)["FT304"]
    assert (check.status, check.evidence["share"]) == ("pass", 1), check.summary


@pytest.mark.parametrize(("share", "status"), [(0.4, "warn"), (0.6, "pass")])
def test_texts_of_which_most_lack_eos_warn(world: World, tmp_path: Path, share: float, status: str) -> None:
    rows = [([*ids, 1] if row < share * 240 else ids, None) for row, (ids, _) in enumerate(world.rows(world.labelled))]
    values = {**world.run("pretrain"), **world.rewritten(tmp_path / "s", {"train": rows}, like=world.plain, task="pretrain")}
    if status == "pass":
        assert world.quiet("EOS at 60 % of the texts", values, stages=STAGE)["FT304"].evidence["share"] == share
    else:
        world.caught("EOS at 40 % of the texts", values, "FT304", status="warn", words="only 40.0%", stages=STAGE)


def test_rows_without_an_end_in_data_with_eos_are_no_fault(world: World, tmp_path: Path) -> None:
    source = tmp_path / "long.txt"
    source.write_text("1" * (20 * 64 - 1))  # a token a digit, and EOS: 20 full packs
    long = world.prepare("long", world.bpe, {"packing.strategy": "concat", "packing.max_length": 64}, sources=[str(source)])
    assert sum(1 in ids for ids, _ in world.rows(long)) == 1
    values = {**world.run("packed"), "dataset.sources": [str(long)]}
    found = [world.quiet("one text over many packs", {**values, "train.seed": seed}, stages=STAGE) for seed in range(8)]
    assert any("no EOS in these rows" in checks["FT302"].summary for checks in found)
    assert all(checks["FT304"].status == "info" for checks in found)


def test_a_tokenizer_without_eos_is_no_fault(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": str(world.wordpiece), "dataset.sources": [str(world.labelled_wordpiece)], "train.mode": "pretrain"}
    assert "the tokenizer has no EOS" in world.quiet("no EOS at all", values, stages=STAGE)["FT302"].summary


def test_a_text_that_ends_with_pad_fails(world: World, tmp_path: Path) -> None:
    rows = [([*ids, 0], label) for ids, label in world.rows(world.labelled)]
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": rows})}
    world.caught("texts that end with PAD", values, "FT303", words="the text ends with PAD", stages=STAGE)


def test_a_text_of_nothing_but_pad_fails(world: World, tmp_path: Path) -> None:
    rows = [([0, 0], 0), *world.rows(world.labelled)[:11]]
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": rows})}
    world.caught("a text of PAD only", values, "FT303", words="pool nothing", stages=STAGE)


def test_without_a_pad_token_pooling_is_left_to_the_check_of_the_tokenizer(world: World, tmp_path: Path) -> None:
    values = {**world.run("classify"), "tokenizer.path": world.tokenizer(tmp_path / "t", pad_token=None)}
    checks = world.verify(values, stages=(*STAGE, "tokenizer"))
    assert checks["FT303"].status == "skipped"
    assert checks["FT102"].status == "fail"


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [("packed", "bucketed", "texts packed into one row would"), ("pretrain", "nil", "nil")],
)
def test_a_collator_that_does_not_fit_the_rows_fails_once(world: World, kind: str, name: str, words: str) -> None:
    world.caught(f"{kind} data, collator {name}", world.run(kind, **{"loader.collator": name}), "FT301", words=words, stages=STAGE)


def test_packed_data_cannot_be_classified(world: World) -> None:
    world.caught(
        "packed data, classify", {**world.run("packed"), "train.mode": "classify"}, "FT301", words="one label per row", stages=STAGE
    )


def test_an_unknown_task_fails_once(world: World) -> None:
    world.caught("an unknown mode", {**world.run("pretrain"), "train.mode": "clasify"}, "FT301", words="clasify", stages=STAGE)


def test_no_rows_fail_once(world: World, tmp_path: Path) -> None:
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": []})}
    world.caught("a train split without rows", values, "FT301", words="the train split has no rows", stages=STAGE)


def test_the_longest_row_is_looked_at_alone_whatever_it_costs() -> None:
    lengths = np.array([*range(10, 30), 5_000, *range(30, 40)])
    looked_at = _affordable(lengths, 10**12)
    assert looked_at == [0, 1, 2, 3, 20]


@pytest.mark.parametrize("rows", [1, 2, 3, 11, 13])
def test_few_rows_are_all_looked_at(world: World, tmp_path: Path, rows: int) -> None:
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": world.rows(world.labelled)[:rows]})}
    checks = world.quiet(f"{rows} rows", values, stages=STAGE)
    assert checks["FT301"].evidence["shapes"]["labels"] == [min(rows, 12)]


def test_rows_of_a_large_vocabulary_are_few(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.core.verify.probe.MOST_LOGITS", 5 * 400 * 138)
    assert world.verify(world.run("pretrain"), stages=STAGE)["FT301"].evidence["shapes"]["input_ids"] == [5, 138]
    monkeypatch.setattr("ftcli.core.verify.probe.MOST_LOGITS", 1)
    assert world.verify(world.run("pretrain"), stages=STAGE)["FT301"].evidence["shapes"]["input_ids"] == [2, 138]
    assert world.verify(world.run("packed"), stages=STAGE)["FT301"].evidence["shapes"]["input_ids"][0] == 1
    assert world.verify(world.run("classify"), stages=STAGE)["FT301"].evidence["shapes"]["input_ids"][0] == 12


@given(
    texts=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=5),
    extra=st.integers(0, 3),
    left=st.booleans(),
)
def test_tokens_are_found_wherever_a_collator_pads(texts: list[list[int]], extra: int, left: bool) -> None:
    width = max(map(len, texts)) + extra
    batch = np.array([[0] * (width - len(text)) + text if left else text + [0] * (width - len(text)) for text in texts])
    assert (token_places(batch, rows_of(texts)) == (batch != 0)).all()
    wrong = batch.copy()
    row, place = (numbers[0] for numbers in wrong.nonzero())
    wrong[row, place] += 10
    assert not token_places(wrong, rows_of(texts))[row].any()


def test_of_a_large_language_model_fewer_rows_are_audited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(work: int) -> int:
        monkeypatch.setattr("ftcli.core.verify.first_batch.MOST_WORK", work)
        checks = world.verify(world.run("packed", "qwen3"), stages=STAGE)
        return int(checks["FT301"].evidence["shapes"]["input_ids"][0])

    assert rows(2 * 10**11) == 12
    assert rows(10**6) == 1
