"""The next token's loss in pieces: in 16 bits, on devices where nothing else of the lean step is at work, and the memory of its proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from ftcli.core.batches.tasks import Pretrain
from ftcli.core.distributed.signals import Signals
from ftcli.core.models import step_memory
from ftcli.core.models.last_layer import logits_of
from ftcli.core.models.lean import lean
from ftcli.core.models.lean_head import LeanHead
from ftcli.core.models.lean_proof import HALF, POSITIONS, computed, difference
from ftcli.core.training.health import look_at
from ftcli.core.training.run import prepare
from ftcli.core.training.train import fit
from runs import ONE_STEP, VOCABULARY, Bench
from stores import packed
from test_lean import PIECES, arguments, batches_of, model_of

pytestmark = pytest.mark.usefixtures("one_thread")


def rows_of_width(width: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 50, (2, width), generator=generator)
    labels = ids.clone()
    labels[:, :-9] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


@pytest.mark.parametrize("wide", [False, True], ids=["bfloat16 weights", "autocast"])
def test_in_sixteen_bits_it_is_as_near_to_float32_as_the_models_own_code(
    wide: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU computes in, where it is proved in these bits because nothing else is."""
    monkeypatch.setitem(step_memory.LOGITS_AT_ONCE, "cpu", 32 * 50)
    monkeypatch.setattr(step_memory, "ROWS_AT_ONCE", 32)
    task, [batch, _] = Pretrain(), batches_of(Pretrain())
    model = model_of("qwen3", task, tie_word_embeddings=False)
    truth = computed(model.double(), task, batch)
    model = model.to(torch.float32 if wide else torch.bfloat16)
    given = arguments(tmp_path, bf16=wide)
    given.activation_checkpointing = wide
    heads: list[LeanHead | None] = []
    with lean(model, task, batches_of(task), given, heads.append, wanted="auto") as said:
        assert said.startswith(f"lean step: {PIECES}")
        assert "; the rest off: " in said
        assert heads[0] is not None
        assert heads[0].kind == (torch.bfloat16 if wide else None)
        with torch.autocast("cpu", torch.bfloat16, enabled=wide):
            own = computed(model, task, batch)
            ours = computed(model, task, batch, heads[0])
    assert ours[2] == pytest.approx(truth[2], rel=1e-2)
    errors = [float((each[1]["lm_head.weight"].double() - truth[1]["lm_head.weight"]).norm()) for each in (own, ours)]
    assert errors[1] < 1.2 * errors[0]
    assert heads == [heads[0], None]


def test_sixteen_bits_hide_no_wrong_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a target left out, or targets of the position itself, are refused."""
    own = LeanHead.loss
    model, task = model_of("qwen3", Pretrain()).to(torch.bfloat16), Pretrain()

    def unshifted(self: LeanHead, hidden: torch.Tensor, labels: torch.Tensor, items: Any) -> torch.Tensor:
        return own(self, hidden, torch.nn.functional.pad(labels, (1, 0), value=-100)[:, :-1], items)

    def one_less(self: LeanHead, hidden: torch.Tensor, labels: torch.Tensor, items: Any) -> torch.Tensor:
        labels = labels.clone()
        labels[1, -1] = -100
        return own(self, hidden, labels, items)

    for wrong in (unshifted, one_less):
        monkeypatch.setattr(LeanHead, "loss", wrong)
        with lean(model, task, batches_of(task)[:1], arguments(tmp_path), lambda _: None, wanted="auto") as said:
            assert "cross-entropy in pieces off (the" in said


@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "changes", "off"),
    [
        ("gemma2", {"final_logit_softcapping": 30.0, "attn_implementation": "eager"}, True),
        ("gemma2", {"final_logit_softcapping": None, "attn_implementation": "eager"}, False),
        ("cohere", {}, False),
    ],
    ids=["capped", "plain", "multiplied"],
)
def test_a_cap_on_the_logits_is_seen_where_they_are_too_small_for_it_to_show(
    kind: str, changes: dict[str, Any], off: bool, narrow: bool, tmp_path: Path
) -> None:
    """Later they are not: at a logit of 60 a cap of 30 has taken half, and the loss in pieces knew nothing of it."""
    model, task = model_of(kind, Pretrain(), initializer_range=0.02, **changes), Pretrain()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(0.1)
    model = model.to(torch.bfloat16 if narrow else torch.float32)
    with lean(model, task, batches_of(task), arguments(tmp_path), lambda _: None, wanted="auto") as said:
        assert ("cross-entropy in pieces off (the model does more to its logits" in said) == off
        assert (PIECES in said) == (not off)


def test_float16_keeps_the_logits(tmp_path: Path) -> None:
    """Its gradients are computed before the loss is scaled, so that small ones would be 0."""
    model, task = model_of("qwen3", Pretrain()).to(torch.float16), Pretrain()
    with lean(model, task, batches_of(task), arguments(tmp_path), lambda _: None, wanted="auto") as said:
        assert "cross-entropy in pieces off (in float16 gradients vanish" in said


@pytest.mark.parametrize("kind", ["qwen3", "gpt_neox"])
def test_no_proof_has_the_logits_of_a_long_row(kind: str, tmp_path: Path) -> None:
    """Two rows of 8,192 tokens and 152,000 ids would take 40 GB in the proof of a step that takes one."""
    model, task = model_of(kind, Pretrain(), attention_dropout=0.0, hidden_dropout=0.0), Pretrain()
    batch, sizes = rows_of_width(3 * POSITIONS), []
    layer = model.get_output_embeddings()
    original = layer.forward

    def counting(states: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = original(states)
        sizes.append(logits[..., 0].numel())
        return logits

    layer.forward = counting
    with lean(model, task, [batch], arguments(tmp_path), lambda _: None, wanted="auto") as said:
        assert PIECES in said
        sizes_of_the_proof = list(sizes)
        with torch.no_grad():
            logits_of(model, batch)
    assert sizes_of_the_proof
    assert max(sizes_of_the_proof) <= 2 * POSITIONS
    assert sizes[-1] == 2 * 3 * POSITIONS, "the control: what such a row's logits come to"


def test_positions_that_are_compared_are_the_same_with_and_without(tmp_path: Path) -> None:
    model, task, batch = model_of("qwen3", Pretrain()), Pretrain(), rows_of_width(POSITIONS)
    truth = computed(model, task, batch)
    assert len(truth[0]) <= POSITIONS
    heads: list[LeanHead | None] = []
    with lean(model, task, [batch], arguments(tmp_path), heads.append, wanted="auto"):
        assert difference(truth, computed(model, task, batch, heads[0])) is None
        torch.nn.init.normal_(model.model.norm.weight)
        assert difference(truth, computed(model, task, batch, heads[0]), HALF) is not None


def test_the_first_look_takes_the_logits_of_some_targets_only() -> None:
    layer = torch.nn.Linear(8, 30, bias=False)
    states, labels = torch.randn(4, 9, 8), torch.randint(0, 30, (4, 9))
    with torch.no_grad():
        found, whole = look_at(states, labels, layer), look_at(layer(states), labels)
    assert (found.logit_std, found.uniform_loss) == pytest.approx((whole.logit_std, whole.uniform_loss))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(tmp_path_factory.mktemp("bench"))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "more", [{}, {"train__bf16": True}, {"train__gradient_checkpointing": True}], ids=["plain", "autocast", "checkpointing"]
)
def test_runs_in_any_types_learn_the_same(bench: Bench, kind: str, more: dict[str, Any]) -> None:
    """What a GPU's run goes through; under autocast states come in float32 also of weights in bfloat16."""
    store = bench.store(
        f"kinds {kind} {sorted(more)}", {"train": packed(16, 32, VOCABULARY, 0), "validation": packed(5, 32, VOCABULARY, 1)}
    )
    found = {}
    for wanted in ("auto", "off"):
        values: dict[str, Any] = {
            **ONE_STEP,
            "train__learning_rate": 0.1,
            "train__max_steps": 3,
            **more,
            "model__dtype": kind,
            "train__lean_step": wanted,
        }
        context = bench.context(store, f"run {kind} {len(more)}", **values)
        found[wanted] = fit(prepare(context), Signals()).metrics
        assert any(PIECES in note for note in context.notes) == (wanted == "auto")
    for figure in ("final_loss", "eval_loss"):
        assert found["auto"][figure] == pytest.approx(
            found["off"][figure], rel=1e-4 if kind == "float32" and "train__bf16" not in more else 1e-2
        )


def test_the_evaluation_of_the_best_weights_is_in_pieces_too(bench: Bench) -> None:
    """It came after the lean step had ended, with logits that no other step or evaluation of the run had."""
    store = bench.store("best", {"train": packed(16, 32, VOCABULARY, 0), "validation": packed(11, 32, VOCABULARY, 1)})
    every = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 3, "learning_rate": 8.0}
    values = {**ONE_STEP, **{f"train__{name}": value for name, value in every.items()}, "train__load_best_model_at_end": True}
    context = bench.context(store, "best run", **values, train__verify=False)
    run = prepare(context)
    seen: list[int] = []
    run.model.register_forward_hook(
        lambda model, _, found: None if torch.is_grad_enabled() or model.training else seen.append(found["logits"].shape[-1])
    )
    fit(run, Signals())
    assert set(seen) == {run.model.config.hidden_size}
    assert len(seen) == 4 * -(-11 // run.arguments.per_device_eval_batch_size)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_it_is_on_and_gives_the_losss_gradients(tmp_path: Path) -> None:
    task = Pretrain()
    model = model_of("qwen3", task).cuda()
    batch = {name: value.cuda() for name, value in rows_of_width(300).items()}
    given = TrainingArguments(output_dir=str(tmp_path), report_to=[], bf16=True)
    with torch.autocast("cuda", torch.bfloat16):
        truth = computed(model, task, batch)
    heads: list[LeanHead | None] = []
    with lean(model, task, [batch], given, heads.append, wanted="auto") as said, torch.autocast("cuda", torch.bfloat16):
        assert PIECES in said
        found = computed(model, task, batch, heads[0])
    assert found[2] == pytest.approx(truth[2], rel=1e-2)
    assert difference(truth, found, HALF) is None
