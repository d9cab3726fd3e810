"""Checks of what a tokenizer's folder declares, and of its chat template: what is healthy, and the smallest change that is not."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from ftcli.core.models.layers import text_places
from ftcli.core.tokenizer.limit import NO_LIMIT, length_limit
from ftcli.core.tokenizer.train_tokenizer import train_tokenizer
from ftcli.core.tokenizer.vocabulary import vocabulary
from ftcli.errors import TokenizerError
from verifying import World

STAGE = ("tokenizer",)
MESSAGES = [{"role": "user", "content": "please help"}, {"role": "assistant", "content": "the order"}]
PLAIN = "{% for message in messages %}<{{ message.role }}> {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
MARKED = (
    "{% for message in messages %}<{{ message.role }}> {% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}"
    "{% else %}{{ message.content }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def edited(world: World, folder: Path, like: Path | None = None, **parts: Any) -> str:
    """A copy of a tokenizer whose tokenizer.json is changed: parts of its model by name, and "added" tokens."""
    path = Path(world.tokenizer(folder, like, tokenizer_class="PreTrainedTokenizerFast"))
    document = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    document["model"]["vocab"] |= parts.get("vocab", {})
    document["added_tokens"] += parts.get("added", [])
    (path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def added(text: str, number: int) -> dict[str, Any]:
    return {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def test_ids_with_holes_are_noted_and_an_id_beyond_the_length_warns(world: World, tmp_path: Path) -> None:
    assert world.quiet("ids without holes", {"tokenizer.path": str(world.bpe)}, stages=STAGE)["FT109"].status == "pass"
    values = {"tokenizer.path": edited(world, tmp_path / "far", vocab={"far away": 450})}
    check = world.caught(
        "an id beyond len(tokenizer)",
        values,
        "FT109",
        status="warn",
        words="the largest id is 450, but len(tokenizer) is 401",
        stages=STAGE,
    )
    assert check.evidence["holes"] == 50
    values |= {"model.config": world.config("qwen3", vocab_size=420)}
    assert "451 ids" in world.verify(values, stages=("model",))["FT401"].summary


def test_two_tokens_with_one_id_warn(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": edited(world, tmp_path / "t", vocab={"twice": 399})}
    check = world.verify(values, stages=STAGE)["FT109"]
    assert (check.status, "twice" in check.summary) == ("warn", True), check


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of many different words, of which the order of the merges tells the pieces: shuffled, the few words of `World` stay as they were."""
    folder = tmp_path_factory.mktemp("words") / "t"
    train_tokenizer(many_words(), folder, "bpe", 1000)
    return folder


def many_words() -> list[str]:
    draw = random.Random(3)
    sounds = ["".join(parts) for parts in itertools.product("bdfgklmnprst", "aeiou", ["", "n", "r", "s", "l"])]
    known = ["".join(draw.choices(sounds, k=draw.randint(1, 4))) for _ in range(1500)]
    return [" ".join(draw.choices(known, k=30)) for _ in range(800)]


def merged(folder: Path, like: Path, how: str, **model: Any) -> str:
    """A copy of a tokenizer whose merges are shuffled, from the second half or the last tenth on, or cut short to a share of them."""
    shutil.copytree(like, folder)
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    merges = document["model"]["merges"]
    document["model"] |= model
    if how == "shuffled":
        random.Random(1).shuffle(merges)
    elif how in {"second half", "last tenth"}:
        first = len(merges) // 2 if how == "second half" else len(merges) * 9 // 10
        merges[first:] = random.Random(1).sample(merges[first:], len(merges) - first)
    elif how == "swapped":
        draw = random.Random(1)
        for _ in range(len(merges) // 100):
            one, other = draw.sample(range(len(merges)), 2)
            merges[one], merges[other] = merges[other], merges[one]
    else:
        del merges[int(len(merges) * float(how)) :]
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(("how", "status"), [("shuffled", "fail"), ("0.5", "fail"), ("0.9", "warn")])
@pytest.mark.parametrize("whole", [False, True])
def test_merges_that_do_not_make_the_vocabulary_are_named(
    world: World, words: Path, tmp_path: Path, how: str, status: str, whole: bool
) -> None:
    values = {"tokenizer.path": merged(tmp_path / "t", words, how, ignore_merges=whole)}
    check = world.caught(f"merges {how}", values, "FT109", status=status, words="never come out of a text", stages=STAGE)
    assert check.evidence["asked"] > 100
    values["tokenizer.path"] = merged(tmp_path / "sound", words, "1", ignore_merges=whole)
    assert world.quiet("all merges in their order", values, stages=STAGE)["FT109"].evidence["unmade"] == 0


@pytest.mark.parametrize("how", ["second half", "swapped"])
def test_merges_out_of_order_that_still_make_all_tokens_are_named(world: World, words: Path, tmp_path: Path, how: str) -> None:
    values = {"tokenizer.path": merged(tmp_path / "t", words, how)}
    check = world.caught(f"merges: {how}", values, "FT109", status="warn", words="merges are out of order", stages=STAGE)
    assert check.evidence["unmade"] < 0.05 * check.evidence["asked"]
    values["tokenizer.path"] = str(words)
    assert world.quiet("merges in their order", values, stages=STAGE)["FT109"].evidence["out_of_order"] == 0


def test_merges_that_do_not_build_on_each_other_are_told_by_the_ids(world: World, tmp_path: Path) -> None:
    pairs = ["".join(pair) for pair in itertools.product("abcdefghijklmnop", repeat=2)]
    train_tokenizer([" ".join(random.Random(row).choices(pairs, k=60)) for row in range(200)], tmp_path / "pairs", "bpe", 450)
    values = {"tokenizer.path": merged(tmp_path / "t", tmp_path / "pairs", "last tenth")}
    check = world.caught("merges: last tenth", values, "FT109", status="warn", words="merges have ids out of order", stages=STAGE)
    assert "merges.txt" in check.fix


def test_ids_that_were_not_given_by_rank_tell_nothing_of_the_merges(world: World, words: Path, tmp_path: Path) -> None:
    """RoBERTa's are those of words by frequency."""
    folder = tmp_path / "t"
    shutil.copytree(words, folder)
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    own = [token["content"] for token in document["added_tokens"]]
    learned = [token for token in vocabulary if token not in own]
    ids = [vocabulary[token] for token in learned]
    vocabulary |= zip(learned, random.Random(1).sample(ids, len(ids)), strict=True)
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    assert world.quiet("ids by frequency", {"tokenizer.path": str(folder)}, stages=STAGE)["FT109"].status == "pass"


def scored(folder: Path, like: Path, shuffled: float, by: Callable[[list[Any]], Any] | None = None, every: float | None = None) -> str:
    """A copy of a Unigram tokenizer whose scores are shuffled from a share of its pieces on, or all the same, or whose pieces are sorted otherwise."""
    shutil.copytree(like, folder)
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    pieces = document["model"]["vocab"]
    first = 3 + int((len(pieces) - 3) * shuffled)
    scores = [score for _, score in pieces[first:]]
    random.Random(1).shuffle(scores)
    pieces[first:] = [[piece, score] for (piece, _), score in zip(pieces[first:], scores, strict=True)]
    if every is not None:
        document["model"]["vocab"] = [[piece, every] for piece, _ in pieces]
    if by:
        pieces[3:] = sorted(pieces[3:], key=by)
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pieces") / "t"
    train_tokenizer(many_words(), folder, "unigram", 1000)
    return folder


@pytest.mark.parametrize("first", [0, 0.5, 0.9])
def test_scores_of_other_pieces_are_named(world: World, pieces: Path, tmp_path: Path, first: float) -> None:
    values = {"tokenizer.path": scored(tmp_path / "t", pieces, first)}
    world.caught(f"scores shuffled from {first} on", values, "FT109", status="warn", words="scores are out of order", stages=STAGE)
    values["tokenizer.path"] = str(pieces)
    assert world.quiet("scores in their order", values, stages=STAGE)["FT109"].evidence["out_of_order"] == 0


@pytest.mark.parametrize("score", [0.0, -1.0])
def test_scores_that_were_lost_are_named(world: World, pieces: Path, tmp_path: Path, score: float) -> None:
    values = {"tokenizer.path": scored(tmp_path / "t", pieces, 1, every=score)}
    world.caught(f"every score is {score:g}", values, "FT109", status="warn", words="pieces have the same score", stages=STAGE)


def test_pieces_that_are_sorted_otherwise_keep_their_scores(world: World, pieces: Path, tmp_path: Path) -> None:
    values = {"tokenizer.path": scored(tmp_path / "t", pieces, 1, by=itemgetter(0))}
    assert world.quiet("pieces by the alphabet", values, stages=STAGE)["FT109"].evidence["out_of_order"] == 0


def test_merges_are_asked_without_changing_the_tokenizer(world: World, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(merged(tmp_path / "t", world.bpe, "0.5", ignore_merges=True))
    vocabulary(tokenizer)
    assert tokenizer.backend_tokenizer.model.ignore_merges


def test_merges_that_cannot_be_asked_tell_nothing(world: World, tmp_path: Path) -> None:
    path = Path(edited(world, tmp_path / "t", vocab={"日本": 400}))
    document = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    document["model"]["unk_token"] = "[nowhere]"
    (path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    check = world.verify({"tokenizer.path": str(path)}, stages=STAGE, select=("FT109",))["FT109"]
    assert (check.status, check.evidence["asked"]) == ("pass", 0), check


def test_bos_and_eos_are_told_and_an_eos_whose_text_is_not_the_token_warns(world: World, tmp_path: Path) -> None:
    assert (
        world.quiet("EOS of its own", {"tokenizer.path": str(world.bpe), "train.mode": "classify"}, stages=STAGE)["FT107"].status == "pass"
    )
    plugin = """
import ftcli

@ftcli.hookimpl
def load_tokenizer(settings):
    from transformers import PreTrainedTokenizerFast

    class Odd(PreTrainedTokenizerFast):
        def __call__(self, text, **options):
            ids = super().__call__(text, **options)
            return {"input_ids": [9, 9]} if text == self.eos_token else ids

    return Odd.from_pretrained(settings.tokenizer.path)
"""
    values = {"tokenizer.path": str(world.bpe)}
    world.caught(
        "EOS whose text is no token",
        values,
        "FT107",
        status="warn",
        words="its text becomes [9, 9]",
        stages=STAGE,
        plugins=world.plugins(plugin),
    )
    plugin = plugin.replace("def __call__", "unk_token_id = eos_token_id = 1\n        def __call__")
    check = world.verify(values, stages=STAGE, plugins=world.plugins(plugin))["FT107"]
    assert (check.status, "not in the vocabulary" in check.summary) == ("fail", True)
    values |= {"model.config": world.config("qwen3", eos_token_id=[7, 8])}
    assert (
        "eos_token_id of the model's configuration is 7, 8"
        in world.quiet("another EOS in the model", values, stages=STAGE)["FT107"].summary
    )


def test_truncation_on_the_left_warns_where_rows_were_cut_on_the_right(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", truncation_side="left"), "dataset.sources": [str(world.labelled)]}
    assert world.quiet("left truncation, nothing cut", values, stages=STAGE)["FT108"].status == "info"
    values["dataset.sources"] = [str(world.prepare("cut-left", world.bpe, {"packing.max_length": 16}))]
    world.caught(
        "left truncation, rows cut on the right", values, "FT108", status="warn", words="cuts long texts on the left", stages=STAGE
    )


def test_model_max_length_below_the_data_warns_unless_the_model_has_the_positions(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", model_max_length=64), "dataset.sources": [str(world.labelled)]}
    world.caught("model_max_length below the data", values, "FT110", status="warn", words="model_max_length is 64", stages=STAGE)
    assert world.quiet("positions for them", values | {"model.config": world.config("qwen3")}, stages=STAGE)["FT110"].status == "info"
    relative = values | {"model.config": world.config("deberta-v2", position_biased_input=False, relative_attention=True)}
    assert "any number of positions" in world.quiet("no positions at all", relative, stages=STAGE)["FT110"].summary
    values["tokenizer.path"] = world.tokenizer(tmp_path / "u", model_max_length=None)
    assert "no model_max_length" in world.quiet("no model_max_length", values, stages=STAGE)["FT110"].summary
    values = {"tokenizer.path": world.tokenizer(tmp_path / "v", model_max_length=64), "packing.max_length": 65}
    assert "--max-length has 65" in world.verify(values, stages=STAGE)["FT110"].summary


@pytest.mark.parametrize(("kind", "fits"), [("mpnet", 64), ("longformer", 64), ("camembert", 64), ("xlm-roberta", 64), ("bert", 66)])
def test_positions_that_begin_behind_pad_are_not_places_of_a_text(kind: str, fits: int) -> None:
    """--fix wrote 66 into tokenizer_config.json, at which the model raised IndexError."""
    assert text_places(AutoConfig.for_model(kind, max_position_embeddings=66, pad_token_id=1)) == fits


@pytest.mark.parametrize(
    ("named", "limit"), [(512, 512), (-1, NO_LIMIT), (0, NO_LIMIT), (10**30, NO_LIMIT), (None, NO_LIMIT), (1e30, NO_LIMIT)]
)
def test_a_length_that_is_none_is_no_limit(named: Any, limit: int) -> None:
    assert length_limit(SimpleNamespace(model_max_length=named)) == limit
    with pytest.raises(TokenizerError, match="is '512' and no number"):
        length_limit(SimpleNamespace(model_max_length="512"))


def test_code_in_the_folder_is_named_and_not_run(world: World, tmp_path: Path) -> None:
    assert world.verify({"tokenizer.path": str(world.bpe)}, stages=STAGE)["FT111"].status == "pass"
    folder = world.tokenizer(tmp_path / "t", auto_map={"AutoTokenizer": [None, "evil.Tokenizer"]})
    (Path(folder) / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    check = world.verify({"tokenizer.path": folder}, stages=STAGE)["FT111"]
    assert (check.status, "evil.Tokenizer" in check.summary, "not run" in check.summary) == ("info", True, True)
    assert not (tmp_path / "ran").exists()
    config = world.config("qwen3", auto_map={"AutoConfig": "own.Config"})
    assert "own.Config" in world.verify({"tokenizer.path": str(world.bpe), "model.config": config}, stages=STAGE)["FT111"].summary


def conversations(folder: Path, rows: list[Any]) -> list[str]:
    path = folder / "chat.jsonl"
    path.write_text("".join(json.dumps({"text": "please help", "messages": row}) + "\n" for row in rows), encoding="utf-8")
    return [str(path)]


def test_a_template_without_generation_is_noted_and_one_with_it_passes(world: World, tmp_path: Path) -> None:
    assert (
        world.verify({"tokenizer.path": str(world.bpe)}, stages=STAGE)["FT117"].summary
        == "Chat template: the tokenizer has no chat template"
    )
    checks = world.quiet("a chat template", {"tokenizer.path": world.tokenizer(tmp_path / "plain", chat_template=PLAIN)}, stages=STAGE)
    assert [checks[name].status for name in ("FT117", "FT118")] == ["pass", "info"]
    values = {
        "tokenizer.path": world.tokenizer(tmp_path / "marked", chat_template=MARKED),
        "dataset.sources": conversations(tmp_path, [MESSAGES] * 5),
    }
    checks = world.quiet("a chat template that marks the assistant", values, stages=STAGE)
    assert [checks[name].status for name in ("FT117", "FT118", "FT119")] == ["pass", "pass", "pass"]
    assert checks["FT118"].summary == "the assistant mask is set in 5 conversations of the data"


def test_a_template_that_breaks_warns(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", chat_template="{{ messages[0].nothing.content }}")}
    world.caught("a template that breaks", values, "FT117", status="warn", words="refuses 4 of 4 samples", stages=STAGE)
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN
    rows = [[{"role": "system", "content": "be kind"}, *MESSAGES], MESSAGES]
    values = {"tokenizer.path": world.tokenizer(tmp_path / "u", chat_template=refuses), "dataset.sources": conversations(tmp_path, rows)}
    world.caught("roles that the template refuses", values, "FT117", status="warn", words="no system", stages=STAGE)


FOREIGN = {
    "llama-3": "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>{% endfor %}",
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "gemma": "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}",
    "deepseek": "{% for m in messages %}<｜{{ m.role }}｜>{{ m.content }}<｜end▁of▁sentence｜>{% endfor %}",
    "mistral": "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
}
OWN = {
    "mistral": "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
    "zephyr": "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}",
    "vicuna": "{% for m in messages %}{{ m.role | upper }}: {{ m.content }}{{ eos_token if m.role == 'assistant' else ' ' }}{% endfor %}",
    "alpaca": "{% for m in messages %}### {{ 'Instruction' if m.role == 'user' else 'Response' }}:\n{{ m.content }}\n\n{% endfor %}",
    "its own end, then a word": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{{ eos_token }}{% endfor %}",
}


@pytest.mark.parametrize("family", FOREIGN)
def test_a_template_whose_end_of_an_answer_is_no_token_warns(world: World, tmp_path: Path, family: str) -> None:
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", chat_template=FOREIGN[family])}
    check = world.caught(f"the template of {family}", values, "FT117", status="warn", words="which is no token here", stages=STAGE)
    ((mark, pieces),) = check.evidence["spelled"].items()
    assert (mark in FOREIGN[family], len(pieces) > 1) == (True, True)
    marks = [added(mark, 400)]
    values["tokenizer.path"] = edited(world, tmp_path / "u", like=tmp_path / "t", added=marks)
    assert world.quiet("the same with the token", values, stages=STAGE)["FT117"].status == "pass"


@pytest.mark.parametrize("family", OWN)
def test_a_template_that_ends_answers_with_a_token_may_spell_the_rest(world: World, tmp_path: Path, family: str) -> None:
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", chat_template=OWN[family])}
    assert world.quiet(f"the template of {family}", values, stages=STAGE)["FT117"].status == "pass"


def test_calls_of_tools_that_a_template_leaves_out_warn(world: World, tmp_path: Path) -> None:
    calls = [{"type": "function", "function": {"name": "w", "arguments": "{}"}}]
    rows = [[MESSAGES[0], {"role": "assistant", "content": "", "tool_calls": calls}, *MESSAGES[1:]], MESSAGES]
    shows = PLAIN.replace(
        "{{ message.content", "{% for c in message.tool_calls or [] %}{{ c.function.name }}{% endfor %}{{ message.content"
    )
    for name, template in (("hides", PLAIN), ("shows", shows)):
        values = {
            "tokenizer.path": world.tokenizer(tmp_path / name, chat_template=template),
            "dataset.sources": conversations(tmp_path, rows),
        }
        if name == "hides":
            world.caught(
                "calls that the template leaves out", values, "FT117", status="warn", words="leaves out calls of tools", stages=STAGE
            )
        else:
            assert world.verify(values, stages=STAGE)["FT117"].status == "pass"


def test_a_mask_that_is_empty_in_spite_of_generation_warns(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", chat_template=PLAIN + "{% generation %}{% endgeneration %}")}
    world.caught("an empty assistant mask", values, "FT118", status="warn", words="empty in 4 of 4", stages=STAGE)


def test_a_mask_that_holds_the_question_warns(world: World, tmp_path: Path) -> None:
    turned = "{% for m in messages %}<{{ m.role }}> {% if m.role == 'user' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %} {% endfor %}"
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", chat_template=turned)}
    world.caught("S9: the mask marks the user", values, "FT118", status="warn", words="the user's words in 4 of 4", stages=STAGE)
    every = "{% for m in messages %}{% generation %}<{{ m.role }}> {{ m.content }}{% endgeneration %} {% endfor %}"
    values = {"tokenizer.path": world.tokenizer(tmp_path / "u", chat_template=every)}
    world.caught("S9: the mask marks everybody", values, "FT118", status="warn", words="the user's words", stages=STAGE)


def test_a_prompt_that_is_no_beginning_of_the_whole_warns_for_the_data_s_own_conversations(world: World, tmp_path: Path) -> None:
    parted = PLAIN.replace("<assistant> ", "<assistant> think ")
    values: dict[str, Any] = {"tokenizer.path": world.tokenizer(tmp_path / "t", chat_template=parted)}
    assert world.quiet("a prompt that is no prefix, samples", values, stages=STAGE)["FT119"].status == "info"
    values["dataset.sources"] = conversations(tmp_path, [MESSAGES] * 3)
    world.caught("a prompt that is no prefix", values, "FT119", status="warn", words="3 of 3 conversations", stages=STAGE)


SHAPES = {
    "prompt and completion, messages": {"prompt": [MESSAGES[0]], "completion": [MESSAGES[1]]},
    "Alpaca": {"instruction": "please help", "input": "", "output": "of course"},
    "ShareGPT": {"conversations": [{"from": "human", "value": "please help"}, {"from": "gpt", "value": "of course"}]},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_conversation_is_tried(world: World, tmp_path: Path, shape: str) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps({"text": "please help", **SHAPES[shape]}) + "\n" for _ in range(3)), encoding="utf-8")
    parted = PLAIN.replace("<assistant> ", "<assistant> think ")
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", chat_template=parted), "dataset.sources": [str(path)]}
    world.caught(f"a prompt that is no prefix: {shape}", values, "FT119", status="warn", words="3 of 3 conversations", stages=STAGE)
    assert world.quiet(f"sft: {shape}", {**values, "train.mode": "sft"}, stages=STAGE)["FT119"].status == "info"


def test_plain_prompts_need_no_template_to_be_compared(world: World, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    word = max((token for token in AutoTokenizer.from_pretrained(world.bpe).get_vocab() if token.isascii() and token.isalpha()), key=len)
    path = tmp_path / "pairs.jsonl"
    values = {"tokenizer.path": str(world.bpe), "dataset.sources": [str(path)]}
    path.write_text(json.dumps({"text": "please help", "prompt": word[:-1], "completion": word[-1]}) + "\n", encoding="utf-8")
    world.caught("a prompt that ends inside a token", values, "FT119", status="warn", words="1 of 1 prompts", stages=STAGE)
    assert world.quiet("the same, sft", {**values, "train.mode": "sft"}, stages=STAGE)["FT119"].status == "info"
    path.write_text(json.dumps({"text": "please help", "prompt": word, "completion": f" {word}"}) + "\n", encoding="utf-8")
    assert world.quiet("a completion that begins with its space", values, stages=STAGE)["FT119"].status == "pass"


def test_a_template_that_writes_bos_which_the_tokenizer_adds_as_well_is_noted(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", world.wordpiece, chat_template="[CLS] " + PLAIN)}
    check = world.quiet("BOS by the template and the tokenizer", values, stages=STAGE)["FT116"]
    assert (check.status, "add_special_tokens=False" in check.summary) == ("info", True)


# -- real tokenizers -----------------------------------------------------------------------------------------------------------------------

FIT = [
    ("bert-base-uncased", "banking77"), ("gpt2", "banking77"), ("phi-2", "banking77"), ("phi-3-mini", "banking77"), ("deepseek-coder", "banking77"),
    ("mistral-7b-v0.1", "banking77"), ("t5-small", "banking77"), ("qwen2.5", "banking77"), ("qwen3", "kor_3i4k"), ("kobart", "kor_3i4k"),
    ("koelectra-v3", "goemotions_ko"), ("bert-base-multilingual-cased", "kor_3i4k"), ("qwen3", "world_cities"), ("qwen3", "goemotions_ko"),
]  # fmt: skip
UNFIT = [
    ("bert-base-uncased", "kor_3i4k", {"FT113": "warn", "FT115": "warn"}),
    ("t5-small", "goemotions_ko", {"FT113": "fail"}),
    ("gpt2", "kor_3i4k", {"FT115": "warn"}),
]
ON_TEXT = ("FT107", "FT108", "FT109", "FT110", "FT111", "FT112", "FT113", "FT114", "FT115", "FT116", "FT117", "FT118", "FT119")


def on_real(world: World, real_data: Path, folder: Path, tokenizer: str, name: str) -> dict[str, str]:
    import realsets

    rows = [text for text, _ in getattr(realsets, name)(real_data)["train"]][::7]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    values = {"tokenizer.path": str(real_data / "tokenizers" / tokenizer), "dataset.sources": [str(path)]}
    checks = world.verify(values, stages=STAGE)
    return {name: checks[name].status for name in ON_TEXT if checks[name].status in {"warn", "fail", "error"}}


@pytest.mark.real
@pytest.mark.parametrize(("tokenizer", "name"), FIT)
def test_real_tokenizers_are_quiet_on_text_of_their_language(
    world: World, real_data: Path, tmp_path: Path, tokenizer: str, name: str
) -> None:
    assert on_real(world, real_data, tmp_path, tokenizer, name) == {}


@pytest.mark.real
@pytest.mark.parametrize(("tokenizer", "name", "expected"), UNFIT)
def test_real_tokenizers_warn_on_text_that_they_do_not_know(
    world: World, real_data: Path, tmp_path: Path, tokenizer: str, name: str, expected: dict[str, str]
) -> None:
    assert on_real(world, real_data, tmp_path, tokenizer, name) == expected


@pytest.mark.real
def test_phi_3_s_reference_vectors_take_the_side_of_tokenizer_json(world: World, real_data: Path) -> None:
    from tokenizers import Tokenizer

    folder = real_data / "tokenizers" / "phi-3-mini"
    inputs = (folder / "vectors" / "llamacpp.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    outputs = [
        [int(part) for part in line.split()] for line in (folder / "vectors" / "llamacpp.out").read_text(encoding="utf-8").splitlines()
    ]
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    agreeing = sum(own.encode(text, add_special_tokens=False).ids == ids for text, ids in zip(inputs, outputs, strict=False))
    check = world.verify({"tokenizer.path": str(folder)}, stages=STAGE)["FT106"]
    assert (check.status, agreeing) == ("warn", len(outputs))
    assert own.encode(check.evidence["text"]).ids == check.evidence["tokenizer_json"]


REAL_MERGES = ["gpt2", "qwen3", "mistral-7b-v0.1", "kobart", "phi-3-mini", "deepseek-coder"]


@pytest.mark.real
@pytest.mark.parametrize("name", REAL_MERGES)
@pytest.mark.parametrize("how", ["shuffled", "second half", "swapped", "0.5", "0.9"])
def test_damaged_merges_of_real_tokenizers_are_named(world: World, real_data: Path, tmp_path: Path, name: str, how: str) -> None:
    values = {"tokenizer.path": merged(tmp_path / "t", real_data / "tokenizers" / name, how)}
    check = world.verify(values, stages=STAGE, select=("FT109",))["FT109"]
    assert check.status in {"warn", "fail"}, check
    assert any(words in check.summary for words in ("never come out of a text", "are out of order")), check
