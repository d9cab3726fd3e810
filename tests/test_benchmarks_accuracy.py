"""benchmarks/accuracy.py: both ways from the same weights, judged alike, and what a difference is held against."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ftcli.testing import TEXTS
from ftcli.testing import run as ftcli

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "benchmarks" / "accuracy.py").exists():
    pytest.skip("the benchmarks are in the source tree only", allow_module_level=True)
sys.path.insert(0, str(ROOT))
try:
    from benchmarks import accuracy, accuracy_table, accuracy_way, accuracy_works
    from benchmarks.equal import DifferentError
    from benchmarks.trim import trim
finally:
    sys.path.remove(str(ROOT))

TINY = {**accuracy_works.MODEL, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 8}
ROWS = {
    "train": [(f"{word} {TEXTS[number % len(TEXTS)]}", word) for number in range(16) for word in ("cards", "loans")],
    "test": [(f"{word} {TEXTS[-1]}", word) for word in ("cards", "loans", "cards")],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose Qwen3 is small."""
    folder = tmp_path_factory.mktemp("data") / "tokenizers" / "qwen3"
    folder.mkdir(parents=True)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator([*TEXTS, "cards loans 한국어 영화"] * 3, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet))
    backend.add_special_tokens(["<pad>", "<end>", "<other>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>", "eos_token": "<end>"}))
    return folder.parents[1]


def test_a_trimmed_tokenizer_splits_its_texts_as_before_and_others_without_loss(data: Path, tmp_path: Path) -> None:
    own = data / "tokenizers" / "qwen3"
    size = trim(own, tmp_path / "small", TEXTS[:4])
    before, after = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (own, tmp_path / "small"))
    assert size == after.get_vocab_size() < before.get_vocab_size()
    for text in TEXTS[:4]:
        assert after.encode(text).tokens == before.encode(text).tokens
    for text in ("한국어 영화 cards", *TEXTS):
        assert after.decode(after.encode(text).ids) == text
        assert max(after.encode(text).ids) < size
    assert after.token_to_id("<end>") == size - 1
    assert after.token_to_id("<other>") is None


def test_a_review_has_the_label_of_the_one_word_that_it_begins_a_word_with() -> None:
    texts = ["연기가 좋다", "연기력 최고", "음악이 좋은 연기", "영화음악", "음악 음악", "연기 연기도"]
    found = accuracy_works.by_word(texts, 2, 2)  # 연기 and 음악
    assert sorted(found["train"] + found["test"]) == [("연기가 좋다", "연기"), ("연기력 최고", "연기"), ("음악 음악", "음악")]


def test_steps_are_timed_inside_epochs_only() -> None:
    at = {1: 0.0, 10: 9.0, 20: 19.0, 30: 129.0, 40: 139.0}  # epochs of 20 steps; between them 100 s of evaluation
    readings = [{"step": float(step), "wall": seconds, "cpu": 2 * seconds} for step, seconds in at.items()]
    assert accuracy.inside(readings, 40, 2) == {"train_wall": 40.0, "train_cpu": 80.0}
    with pytest.raises(accuracy.RunError, match="more rows"):
        accuracy.inside(readings[:1], 40, 2)


def test_a_difference_is_formed_pair_by_pair_and_may_be_one_point_less() -> None:
    found = accuracy.paired([0.50, 0.52, 0.54], [0.51, 0.53, 0.55])
    assert [found[name] for name in ("mean", "low", "high")] == [pytest.approx(-1)] * 3
    assert found["met"]
    found = accuracy.paired([0.50, 0.52], [0.51, 0.51])
    assert (found["mean"], found["high"]) == (pytest.approx(0), pytest.approx(12.7, abs=0.1))
    assert not accuracy.paired([0.5], [0.52])["met"]
    assert accuracy.paired([0.5], [0.5])["low"] is None


class Here(accuracy.Bench):
    """Runs what the programs run, in this process."""

    def _run(self, module: str, *words: str | Path, **more: str) -> tuple[str, dict[str, float]]:
        state, threads = torch.get_rng_state(), torch.get_num_threads()
        given = [str(word) for word in words]
        try:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in more.items():
                    patch.setenv(name, value)
                text = ftcli(*given, "--lean-step", "off").stdout if module == "ftcli" else json.dumps(accuracy_way.main(given))
        finally:
            torch.set_rng_state(state)
            torch.set_num_threads(threads)
        return text.splitlines()[-1], {"wall": 2.0, "cpu": 3.0, "peak_rss_mb": 1.0}


@pytest.fixture
def small(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[accuracy_works.Work, accuracy_works.Made]:
    def here(command: list[str], *_: Any) -> None:
        assert ftcli(*command[3:], "--tokenizer-engine", "hf", "--num-proc", "1").exit_code == 0  # without "python -m ftcli"

    monkeypatch.setattr(accuracy_works.process, "run", here)
    monkeypatch.setattr(accuracy_works, "MODEL", TINY)
    work = accuracy_works.Work("small", lambda _: ROWS, 64, 2, 2, 1e-2)
    return work, accuracy_works.make(work, data, tmp_path, whole=False)


def test_both_ways_make_the_same_steps_from_the_same_weights_and_one_judge_says_what_they_say(
    small: tuple[accuracy_works.Work, accuracy_works.Made], tmp_path: Path
) -> None:
    work, made = small
    assert (made.labels, made.train_rows, made.test_rows) == (2, 32, 3)
    bench = Here(tmp_path, "cpu", 1, bf16=False, options=["--no-verify", "--save-strategy", "no"])
    found = accuracy.compare(bench, work, made, [1])
    [run] = found["runs"]
    for way in ("ftcli", "plain"):
        assert run[way]["steps"] == 32
        assert run[way]["accuracy"] == pytest.approx(run[way]["own_accuracy"])
        assert run[way]["train_wall"] > 0
    assert run["plain"]["first_loss"] == pytest.approx(run["ftcli"]["first_loss"], abs=0.1)  # other rows, the same weights
    assert sum(run["rows"].values()) == 3
    assert found["ratios"]["wall"]["median"] == 1.0
    card = {"cpu_model": "m", "cores": 1, "memory_bytes": 2**30, "disk_kind": "d", "platform": "p", "python": "3", "load_average": 0.0}
    document = {"results": [found], "arguments": {"seeds": [1]}, "device": "cpu", "bf16": False, "versions": {}, "load_average_after": 0.0}
    table = accuracy_table.markdown(json.loads(json.dumps({**document, "machine": card})))
    assert "| small |" in table
    assert "50.00 %" in table


def test_a_way_that_makes_other_steps_ends_it(small: tuple[accuracy_works.Work, accuracy_works.Made], tmp_path: Path) -> None:
    work, made = small

    class Short(Here):
        def _plain(self, *_: Any) -> dict[str, Any]:
            return {"steps": 31, "readings": []}

    with pytest.raises(DifferentError, match="plain made 31 steps, not 32"):
        Short(tmp_path, "cpu", 1, bf16=False, options=[]).run("plain", work, made, 1, tmp_path)


def test_unknown_works_and_seeds_are_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--works", "nothing"], ["--seeds", "one"], ["--data", "nowhere"]):
        with pytest.raises(SystemExit):
            accuracy.arguments(["--data", str(data), *words])
        assert words[1] in capsys.readouterr().err
