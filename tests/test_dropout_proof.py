"""The lean step beside dropout: proved without it, and used only where it drops as much at as many places."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from ftcli.core.batches.tasks import Classify, Pretrain
from ftcli.core.models import last_layer, side_by_side
from ftcli.core.models.dropout_proof import drawn, dropping, otherwise, silent
from ftcli.core.models.last_layer import logits_of
from ftcli.core.models.lean import lean
from ftcli.core.models.lean_head import LeanHead
from ftcli.core.models.side_by_side import Texts
from ftcli.errors import SettingsError
from reliability import size
from test_lean import BOTH, PIECES, UNMASKED, arguments, batches_of, model_of
from test_side_by_side import ON, PACKS, PROOF, ROWS, packs

pytestmark = pytest.mark.usefixtures("one_thread")
GPT2 = {"n_embd": 32, "n_head": 4}
OTHERWISE = "off (dropout is left out or drawn otherwise)"


def lora(task: Any, **changes: Any) -> Any:
    settings = LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False)
    return get_peft_model(model_of("qwen3", task, **changes), settings)


def said_of(model: Any, task: Any, folder: Path, batches: list[Any], texts: Texts | None = None) -> str:
    use_head = None if task.needs_labels else lambda _: None
    with lean(model, task, batches, arguments(folder), use_head, wanted="auto", texts=texts) as said:
        return said


@pytest.mark.parametrize(
    ("model", "task", "texts", "parts"),
    [
        (lambda task: model_of("gpt2", task, **GPT2), Pretrain(), None, (PIECES, UNMASKED)),
        (lambda task: model_of("gpt2", task, **GPT2), Pretrain(), PACKS, (PIECES, ON)),
        (lambda task: model_of("bert", task), Classify(), ROWS, (ON,)),
        (lambda task: model_of("qwen3", task, attention_dropout=0.1), Classify(), ROWS, (ON, BOTH[1], f"{BOTH[0][:-3]} {OTHERWISE}")),
        (lambda task: model_of("qwen3", task, attention_dropout=0.1), Classify(), None, (UNMASKED, BOTH[1])),
        (lora, Pretrain(), PACKS, (PIECES, ON)),
        (lora, Pretrain(), ROWS, (PIECES, ON)),
        (lora, Classify(), None, (UNMASKED, BOTH[1])),
        (lambda task: lora(task, attention_dropout=0.2), Classify(), ROWS, (ON, BOTH[1])),
        (lambda task: model_of("opt", task, ffn_dim=48, word_embed_proj_dim=32), Pretrain(), ROWS, (PIECES, ON)),
    ],
    ids=["gpt2", "gpt2 packed", "bert", "attention", "attention padded", "lora packed", "lora", "lora classify", "both", "opt"],
)
def test_parts_that_drop_as_the_models_own_code_are_used(
    model: Any, task: Any, texts: Texts | None, parts: tuple[str, ...], tmp_path: Path
) -> None:
    made = model(task)
    rates = [module.p for module in made.modules() if isinstance(module, nn.Dropout)]
    before = torch.get_rng_state()
    said = said_of(made, task, tmp_path, [packs(*PROOF)] if texts is PACKS else batches_of(task), texts)
    assert all(part in said for part in parts), said
    assert [module.p for module in made.modules() if isinstance(module, nn.Dropout)] == rates
    assert torch.equal(torch.get_rng_state(), before), "a run draws the same numbers whatever was tried before it"


def losses(model: Any, task: Any, batch: Any, head: LeanHead | None = None, draws: int = size(200, 400)) -> torch.Tensor:
    """Of many draws."""
    torch.manual_seed(1)
    found = []
    for _ in range(draws):
        if head is None:
            loss = task.loss(logits_of(model, batch), batch["labels"], None)
        else:
            with head.at_work(None):
                loss = head.loss(logits_of(model, batch), batch["labels"], None)
        found.append(loss.detach())
    return torch.stack(found)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "qwen3", "lora"])
def test_losses_under_dropout_are_spread_as_those_of_the_models_own_code(kind: str, tmp_path: Path) -> None:
    task: Any = Pretrain() if kind in {"gpt2", "lora"} else Classify()
    model = lora(task) if kind == "lora" else model_of(kind, task, **(GPT2 if kind == "gpt2" else {"attention_dropout": 0.3}))
    model.train()
    packed = kind == "gpt2"
    batches = [packs(*PROOF)] if packed else batches_of(task)
    own = losses(model, task, batches[0])
    assert own.std() > 1e-3, "dropout is at work"
    heads: list[LeanHead | None] = []
    use = None if task.needs_labels else heads.append
    with lean(model, task, batches, arguments(tmp_path), use, wanted="auto", texts=PACKS if packed else ROWS) as said:
        assert ON in said
        ours = losses(model, task, batches[0], heads[0] if heads else None)
    error = float((own.var() / len(own) + ours.var() / len(ours)).sqrt())
    assert abs(float(own.mean() - ours.mean())) < 4 * error
    assert 0.8 < float(ours.std() / own.std()) < 1.25
    with silent(model):
        quiet = losses(model, task, batches[0], draws=10)
    assert float(quiet.max() - quiet.min()) == 0.0


def test_a_part_that_leaves_dropout_out_is_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without dropout each computes what the model's own code does."""
    attend, seen = side_by_side.attend, last_layer._seen
    monkeypatch.setattr(side_by_side, "attend", lambda *given, **more: attend(*given, **{**more, "dropout": 0.0}))
    said = said_of(model_of("gpt2", Pretrain(), **GPT2), Pretrain(), tmp_path, [packs(*PROOF)], PACKS)
    assert f"texts side by side {OTHERWISE}" in said
    monkeypatch.undo()

    def undropped(attention: Any, *given: Any) -> torch.Tensor:
        rate, attention.attention_dropout = attention.attention_dropout, 0.0
        try:
            return seen(attention, *given)
        finally:
            attention.attention_dropout = rate

    monkeypatch.setattr(last_layer, "_seen", undropped)
    for texts in (None, ROWS):
        said = said_of(model_of("qwen3", attention_dropout=0.1), Classify(), tmp_path, batches_of(Classify()), texts)
        assert f"last layer for pooled tokens only {OTHERWISE}" in said


def test_noise_of_whole_rows_keeps_rows_as_they_are(tmp_path: Path) -> None:
    """Stochastic depth: side by side all texts would be one row, and dropped together."""
    model = model_of("qwen3")
    mlp = model.model.layers[0].mlp
    own = mlp.forward

    def deep(states: torch.Tensor) -> torch.Tensor:
        rate = mlp.drop_path if mlp.training else 0.0
        kept = torch.empty(len(states), 1, 1).bernoulli_(1 - rate) if rate else 1.0
        out: torch.Tensor = own(states) * kept
        return out

    mlp.drop_path, mlp.forward = 0.2, deep
    assert dropping(model)
    with pytest.raises(SettingsError, match="noise is drawn for whole rows"):
        said_of(model, Classify(), tmp_path, batches_of(Classify()), ROWS)


def test_attention_of_one_kernel_and_in_parts_is_counted_alike() -> None:
    q = torch.randn(2, 2, 4, 8)
    model: Any = nn.Linear(1, 1)

    def call(rate: float, times: int = 1) -> Counter[Any]:
        return drawn(model, lambda: [nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=rate) for _ in range(times)])

    assert not call(0.0)
    assert otherwise(call(0.1), call(0.1, 3), apart=True) is None
    assert otherwise(call(0.1), call(0.1, 3), apart=False) is not None
    assert otherwise(call(0.1), call(0.2), apart=True) is not None
    assert otherwise(call(0.1), call(0.0), apart=True) is not None


def test_rates_come_back_after_an_error() -> None:
    model = model_of("gpt2", Pretrain(), **GPT2)

    def rates() -> set[float]:
        return {module.p for module in model.modules() if isinstance(module, nn.Dropout)} | {model.config.attn_pdrop}

    def fail() -> None:
        with silent(model):
            assert rates() == {0.0}
            raise RuntimeError

    assert rates() == {0.1}
    with pytest.raises(RuntimeError):
        fail()
    assert rates() == {0.1}
