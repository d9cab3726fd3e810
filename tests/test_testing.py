"""`ftcli.testing`: the runner leaves no trace, and the tiny parts are real ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftcli.testing import TEXTS, run, tiny_config, tiny_model, tiny_tokenizer, write_config


def test_the_runner_sets_variables_and_folder_for_one_run_only(tmp_path: Path) -> None:
    before = Path.cwd()

    result = run("settings", "--json", env={"DATASET_NUM_PROC": "3"}, cwd=tmp_path)

    assert result.report["settings"]["dataset.num_proc"]["origin"] == "DATASET_NUM_PROC"
    assert "DATASET_NUM_PROC" not in os.environ
    assert Path.cwd() == before


def test_the_runner_keeps_the_streams_apart() -> None:
    result = run("no-such-command")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "no command 'no-such-command'" in result.stderr


@pytest.mark.slow
def test_the_tiny_tokenizer_is_a_fast_one_that_gives_every_text_back(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tiny_tokenizer(tmp_path / "tokenizer")))

    assert tokenizer.is_fast
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 1, 2)
    assert len(tokenizer) <= 384
    assert [tokenizer.decode(tokenizer(text)["input_ids"]) for text in TEXTS] == list(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "labels"), [("qwen3", None), ("qwen3", 7), ("bert", 7)])
def test_the_tiny_model_runs_and_is_the_same_for_the_same_seed(kind: str, labels: int | None) -> None:
    import torch

    ids = torch.tensor([[5, 6, 7]])
    outputs = [tiny_model(kind, labels=labels, seed=seed).eval()(input_ids=ids).logits for seed in (1, 1, 2)]

    assert outputs[0].shape[-1] == (labels or 384)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.slow
def test_the_written_configuration_is_what_transformers_reads(tmp_path: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(write_config(tmp_path / "config.json", "bert", vocab_size=50, labels=3).parent))

    assert (config.model_type, config.vocab_size, config.num_labels) == ("bert", 50, 3)
    assert "num_labels" not in tiny_config("qwen3")
