"""Every kind of model trains, and what is saved of its configuration is what its kind has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from families import FAMILIES
from ftcli.commands.train import run
from ftcli.errors import SettingsError
from runs import BRIEF, VOCABULARY, Bench
from stores import learnable, packed

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]
SIZE = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
DECODERS = (
    "bloom",
    "ctrl",
    "falcon",
    "gemma3_text",
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "llama",
    "mpt",
    "openai-gpt",
    "opt",
    "phi3",
    "rwkv",
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="module")
def stores(bench: Bench) -> dict[str, Path]:
    return {
        "classify": bench.store("labelled", {"train": learnable(48, 4, VOCABULARY, 0)}, labels=4),
        "pretrain": bench.store("plain", {"train": [(ids, None) for ids, *_ in packed(48, 32, VOCABULARY, 0)]}, max_length=32),
    }


def trained(bench: Bench, store: Path, family: str, **changes: Any) -> dict[str, Any]:
    """The config.json of a run of two steps; `changes` are settings with "__" for the dot."""
    config = bench.folder / f"{family}-own.json"
    config.write_text(
        json.dumps(
            {"model_type": family, **SIZE, "max_position_embeddings": 1024, "pad_token_id": 0, **FAMILIES.get(family, {}), **changes}
        )
    )
    context = bench.context(store, f"run {family}", **{"model__config": config, **BRIEF, **changes})
    assert run(context).status == "ok"
    saved: dict[str, Any] = json.loads((bench.folder / f"run {family}" / "config.json").read_text())
    return saved


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_classifies(bench: Bench, stores: dict[str, Path], family: str) -> None:
    saved = trained(bench, stores["classify"], family)
    assert saved.get("use_cache") == getattr(AutoConfig.for_model(family), "use_cache", None)


@pytest.mark.parametrize("can", [False, True])
def test_a_kind_that_cannot_compute_in_bfloat16_trains_in_float32_and_says_so(
    bench: Bench, stores: dict[str, Path], can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeBERTa of the published sizes fills masked scores with float32's least number."""

    def fills(scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(torch.zeros_like(scores, dtype=torch.bool), torch.finfo(torch.float32).min)

    plain = torch.nn.Linear.forward
    monkeypatch.setattr("ftcli.core.training.arguments.bf16_choice", lambda *_, **__: (True, "the test says so"))
    if not can:
        monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, given: fills(plain(self, given)))
    trained(bench, stores["classify"], "bert", train__bf16=None)
    notes = json.loads((bench.folder / "run bert" / "report.json").read_text())["notes"]
    assert any("cannot compute in bfloat16" in note for note in notes) == (not can)
    assert any("bfloat16 autocast" in note for note in notes)


def test_bfloat16_that_was_asked_for_and_cannot_be_is_refused_by_name(
    bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's own words came as a bug of ftcli's."""
    plain = torch.nn.Linear.forward
    least = torch.finfo(torch.float32).min
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, given: (out := plain(self, given)).masked_fill(torch.isnan(out), least))
    with pytest.raises(SettingsError, match=r"train\.bf16 = true: Bert.* cannot compute in bfloat16"):
        trained(bench, stores["classify"], "bert", train__bf16=True)


@pytest.mark.parametrize("family", DECODERS)
def test_every_decoder_predicts_the_next_token(bench: Bench, stores: dict[str, Path], family: str) -> None:
    saved = trained(bench, stores["pretrain"], family)
    assert saved.get("use_cache") == getattr(AutoConfig.for_model(family), "use_cache", None)
