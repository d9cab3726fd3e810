"""The lean step: the same values and gradients as the model's own code, or the model's own code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, TrainingArguments

from ftcli.core.batches.collate import Dynamic, Packed
from ftcli.core.batches.tasks import Classify, Pretrain
from ftcli.core.distributed.signals import Signals
from ftcli.core.models import blocked, last_layer, lean_head, lean_layer, lean_mask, step_memory
from ftcli.core.models.last_layer import logits_of
from ftcli.core.models.lean import few_rows, lean
from ftcli.core.models.lean_head import LeanHead
from ftcli.core.models.lean_proof import coarser, computed, difference
from ftcli.core.models.side_by_side import learned_texts
from ftcli.core.training.run import prepare
from ftcli.core.training.train import fit
from ftcli.errors import ModelError
from runs import ONE_STEP, VOCABULARY, Bench, step_of
from stores import learnable, packed, rows_of, spec_for, split_of

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
TEXTS = [[5, 9, 7, 3], [8, 4, 6, 9, 2, 3, 7, 5, 6], [3, 3]]
PIECES = "cross-entropy in pieces on"
UNMASKED = "right padding without a mask on"
BOTH = ("decoder layers on", "last layer for pooled tokens only on")


def model_of(kind: str, task: Any = None, **changes: Any) -> Any:
    """Weights that are none of the starting values, so that a forgotten one shows."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=50, head_dim=8, pad_token_id=0, num_labels=5, use_cache=False, **{**SIZES, **changes})
    auto = AutoModelForSequenceClassification if task is None or task.needs_labels else AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation=changes.get("attn_implementation", "sdpa"))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    return model


def batches_of(task: Any) -> list[dict[str, torch.Tensor]]:
    labels = [1, 4, 2] if task.needs_labels else None
    collate = Dynamic(spec_for(task))
    return [collate(rows_of(TEXTS[:2], labels and labels[:2])), collate(rows_of(TEXTS[1:2], labels and labels[1:2]))]


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    return TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[], **more)


def tried(model: Any, task: Any, folder: Path, batches: Sequence[dict[str, torch.Tensor]] | None = None, **more: Any) -> str:
    """What the lean step says of a model; other rows than those of its proof are compared too."""
    batches = batches_of(task) if batches is None else batches
    other = (
        Dynamic(spec_for(task))(rows_of(TEXTS[::-1], [1, 4, 2] if task.needs_labels else None))
        if "attention_mask" in batches[0]
        else batches[0]
    )
    truth = computed(model, task, other)
    heads: list[LeanHead | None] = []
    with lean(model, task, batches, arguments(folder, **more), wanted="auto", use_head=heads.append) as said:
        assert difference(truth, computed(model, task, other)) is None
        if heads:
            assert heads[0] is not None
            assert PIECES in said
            assert heads[0].kind == (torch.bfloat16 if more.get("bf16") else None)
            heads[0].armed, heads[0].kind = True, None
            found = computed(model, task, other, heads[0])
            assert found[2] == pytest.approx(truth[2], rel=1e-5)
            assert difference(truth, found) is None
            assert logits_of(model, other).shape[-1] == model.config.hidden_size
            with torch.no_grad():
                assert logits_of(model, other).shape[-1] == model.config.vocab_size
                with heads[0].measuring():
                    states = logits_of(model, other)
                    assert states.shape[-1] == model.config.hidden_size
                    assert float(heads[0].loss(states, other["labels"], None)) == pytest.approx(truth[2], rel=1e-5)
    assert heads[-1] is None
    assert not any("forward" in vars(module) for module in model.modules())
    return said


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen3", {}),
        ("llama", {}),
        ("qwen2", {"head_dim": None}),
        ("mistral", {"sliding_window": 4}),
        ("qwen3", {"attention_bias": False, "num_key_value_heads": 4}),
    ],
)
def test_classifiers_of_llamas_kind_compute_the_same(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    changes = {name: value for name, value in changes.items() if value is not None}
    said = tried(model_of(kind, Classify(), **changes), Classify(), tmp_path)
    assert all(part in said for part in (*BOTH, UNMASKED)), said


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_language_models_compute_the_same_padded_and_packed(kind: str, tmp_path: Path) -> None:
    said = tried(model_of(kind, Pretrain()), Pretrain(), tmp_path)
    assert BOTH[0] in said
    assert PIECES in said
    assert UNMASKED in said
    assert "is no classifier that reads one token" in said
    rows = rows_of([[5, 9, 7, 3, 8, 4], [6, 9, 2]], documents=[[4, 2], [3]])
    assert BOTH[0] in tried(model_of(kind, Pretrain()), Pretrain(), tmp_path, [Packed(spec_for(Pretrain()))(rows)])


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("bert", {}, "no decoder of the kind"),
        ("gpt2", {"n_embd": 32, "n_head": 4, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}, "no decoder of the kind"),
        ("qwen3", {"attention_bias": True}, "biases behind attention"),
        ("qwen3", {"hidden_act": "gelu"}, "another activation"),
        ("gemma", {"hidden_act": "silu", "hidden_activation": "silu"}, "other norms"),
    ],
)
def test_other_models_keep_their_own_code(kind: str, changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    model = model_of(kind, Classify(), **changes)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
    said = tried(model, Classify(), tmp_path)
    assert reason in said
    assert BOTH[0] not in said


def test_eager_attention_hooks_and_frozen_weights_keep_the_layers(tmp_path: Path) -> None:
    assert "attention is eager" in tried(model_of("qwen3", attn_implementation="eager"), Classify(), tmp_path)
    model = model_of("qwen3")
    handle = model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert "layer 1 has hooks" in tried(model, Classify(), tmp_path)
    handle.remove()
    model.model.layers[0].mlp.up_proj.weight.requires_grad = False
    said = tried(model, Classify(), tmp_path)
    assert "frozen" in said
    assert BOTH[1] in said  # written with the model's own modules, so that it holds for any of their weights
    model.model.layers[0].mlp.up_proj = nn.Sequential(model.model.layers[0].mlp.up_proj)
    assert "other projections" in tried(model, Classify(), tmp_path)


@pytest.mark.parametrize("reason", ["activation_checkpointing", "torch_compile"])
def test_what_replaces_the_models_code_itself_switches_it_off(reason: str, tmp_path: Path) -> None:
    model, given = model_of("qwen3"), arguments(tmp_path)
    setattr(given, reason, True)
    with lean(model, Classify(), batches_of(Classify()), given, wanted="auto") as said:
        assert not any("forward" in vars(module) for module in model.modules())
    assert said.startswith("lean step off: ")
    assert reason in said
    with lean(model, Classify(), batches_of(Classify()), given, wanted="off") as said:
        assert said == "lean step off: turned off by train.lean_step"
    model = model_of("qwen3").to(torch.bfloat16)
    with lean(model, Classify(), batches_of(Classify()), arguments(tmp_path), wanted="auto") as said:
        assert "the weights are bfloat16" in said


@pytest.mark.parametrize(("kind", "task"), [("qwen3", Classify()), ("llama", Classify()), ("mistral", Pretrain())])
def test_under_bfloat16_autocast_rounding_errors_are_those_of_the_models_own_code(kind: str, task: Any, tmp_path: Path) -> None:
    model = model_of(kind, task)
    assert BOTH[0] in tried(model, task, tmp_path, bf16=True)
    batches = batches_of(task)
    truths = [computed(model, task, batch) for batch in batches]
    with torch.autocast("cpu", torch.bfloat16):
        now = [computed(model, task, batch) for batch in batches]
    heads: list[LeanHead | None] = []
    with lean(model, task, batches, arguments(tmp_path, bf16=True), wanted="auto", use_head=heads.append) as said:
        assert (PIECES in said) != task.needs_labels
        with torch.autocast("cpu", torch.bfloat16):
            found = [computed(model, task, batch) for batch in batches]
            if head := heads[0] if heads else None:
                head.armed = True
                found = [(each[0], *computed(model, task, batch, head)[1:]) for each, batch in zip(found, batches, strict=True)]
    for truth, own, ours in zip(truths, now, found, strict=True):
        assert difference(truth, ours) is not None  # it does compute in bfloat16
        assert coarser(truth, own, ours) is None


def unscripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the layer's parts call the functions of their module, where a test can replace one."""
    for name in ("_before", "_after", "_after_back", "_before_back"):
        monkeypatch.setattr(lean_layer, name, getattr(lean_layer, name).__wrapped__)


def test_under_bfloat16_autocast_what_rounds_more_coarsely_is_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unscripted(monkeypatch)
    normalised = lean_layer._normalised

    def coarse(x: torch.Tensor, eps: float, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        normed, root = normalised(x, eps, kind)
        return normed if kind == torch.float32 else normed.to(torch.float8_e4m3fn).to(kind), root

    monkeypatch.setattr(lean_layer, "_normalised", coarse)
    said = tried(model_of("qwen3"), Classify(), tmp_path, bf16=True)
    assert "decoder layers off (in bfloat16 " in said
    assert BOTH[1] in said


@pytest.mark.parametrize(
    ("rows", "width", "heads", "fewer"), [(2, 1, 4, 2), (1, 5, 2, 2), (3, 64, 4, 1), (2, 65, 4, 2), (1, 200, 6, 2), (1, 600, 2, 1)]
)
def test_attention_in_blocks_is_torchs(rows: int, width: int, heads: int, fewer: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(rows, width, count, 16, generator=generator) for count in (heads, fewer, fewer, heads))
    errors: dict[str, list[float]] = {}
    for kind in (torch.float32, torch.bfloat16):
        leaves = [part.to(kind).transpose(1, 2).requires_grad_() for part in (q, k, v)]
        seen = nn.functional.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.3, enable_gqa=True)
        theirs = [seen, *torch.autograd.grad(seen, leaves, grad.to(kind).transpose(1, 2))]
        ours, kept = blocked.attend(q, k, v, scale=0.3, kind=kind)
        found = [ours, *blocked.attend_back(grad.to(kind), kept)]
        assert ours.dtype == kind
        if kind == torch.float32:
            truth = [part.detach().transpose(1, 2) for part in theirs]
            for one, right in zip(found, truth, strict=True):
                assert torch.allclose(one, right, rtol=1e-4, atol=1e-5)
        errors["ours"] = [float((one.float() - right).norm()) for one, right in zip(found, truth, strict=True)]
        errors["theirs"] = [float((one.detach().transpose(1, 2).float() - right).norm()) for one, right in zip(theirs, truth, strict=True)]
    for one, right, size in zip(errors["ours"], errors["theirs"], truth, strict=True):
        assert one <= 2 * right + 0.005 * float(size.norm())


@pytest.mark.parametrize("fault", ["epsilon", "mask", "gradient", "pooling"])
def test_a_part_that_computes_something_else_is_taken_out_with_the_reason(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of all tests above: each fault is found by the proof."""
    unscripted(monkeypatch)
    normalised, back = lean_layer._normalised, lean_layer._back
    if fault == "epsilon":
        monkeypatch.setattr(lean_layer, "_normalised", lambda x, eps, kind: normalised(x, eps + 1e-2, kind))
    elif fault == "gradient":
        monkeypatch.setattr(lean_layer, "_back", lambda *parts: (back(*parts)[0], back(*parts)[1] * 1.01, back(*parts)[2]))
    elif fault == "pooling":
        monkeypatch.setattr(last_layer, "pooled_places", lambda ids, _: torch.full((len(ids),), ids.shape[1] - 1))
    else:
        monkeypatch.setattr(blocked, "_later", lambda group, kind: torch.zeros(64 * group, 64, dtype=kind))
    said = tried(model_of("qwen3"), Classify(), tmp_path)
    lost, kept = BOTH if fault != "pooling" else BOTH[::-1]
    assert lost not in said
    assert kept in said
    assert ("the gradient of" in said) == (fault == "gradient")


@pytest.mark.parametrize("whole", [False, True], ids=["blocks of ids", "whole rows"])
def test_the_cross_entropy_of_any_number_of_pieces_blocks_targets_and_items_is_the_tasks(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    model = model_of("llama", Pretrain())
    head = LeanHead(model)
    if whole:
        monkeypatch.setattr(lean_head.lean_vocabulary, "cross_entropy", lean_head._whole_rows)
    monkeypatch.setitem(step_memory.LOGITS_AT_ONCE, "cpu", 1)
    for rows, few, ignored in ((2**20, 2**18, 0.0), (2**20, 50 * 7, 0.0), (32, 2**18, 0.3), (32, 50, 0.95), (32, 50, 1.0)):
        monkeypatch.setattr(step_memory, "ROWS_AT_ONCE", rows)
        monkeypatch.setattr(lean_head, "IN_CACHE", few)
        monkeypatch.setattr(lean_head.lean_vocabulary, "BLOCK", few)
        monkeypatch.setattr(lean_head.lean_vocabulary, "NARROWEST", 7)
        hidden = torch.randn(3, 41, 32, generator=generator).requires_grad_()
        labels = torch.randint(0, 50, (3, 41), generator=generator)
        labels[torch.rand(3, 41, generator=generator) < ignored] = -100
        for items in (None, 77, torch.tensor(123)):
            if items is None and ignored == 1:
                continue
            for learned in (True, False):
                head.layer.weight.requires_grad = learned
                leaves = [hidden, head.layer.weight] if learned else [hidden]
                losses = (head.loss(hidden, labels, items), Pretrain().loss(head.layer(hidden), labels, items))
                with torch.no_grad(), head.measuring():
                    assert torch.allclose(head.loss(hidden, labels, items), losses[1], rtol=1e-5)
                found = [(loss.detach(), *torch.autograd.grad(loss * (3 if few > 50 else 1), leaves, allow_unused=True)) for loss in losses]
                for ours, theirs in zip(*found, strict=True):
                    assert ours is None or torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
                    assert (ours is None) <= (ignored == 1)


def test_a_batch_that_the_model_is_sure_of_loses_nothing() -> None:
    """The target's logit and the sum over all are of one product, so that no rounding makes a loss negative."""
    weight = torch.nn.functional.normalize(torch.randn(700, 16, generator=torch.Generator().manual_seed(0)))
    targets = torch.arange(0, 700, 7)
    hidden = 1e4 * weight[targets]
    lost = lean_head.lean_vocabulary.cross_entropy(hidden, weight, targets, None, None, None, more=False)
    assert float(lost) == 0


@pytest.mark.parametrize("target", [50, 10**6, -1])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_target_that_the_output_layer_does_not_have_is_refused(target: int, kind: torch.dtype) -> None:
    """A clamped one would have the loss of whatever was in memory."""
    head = LeanHead(model_of("llama", Pretrain()))
    labels = torch.full((2, 9), 3)
    labels[1, 4] = target
    with head.at_work(kind), pytest.raises(ModelError, match=r"a target token has the id .*, but the model's output layer has 50 rows"):
        head.loss(torch.randn(2, 9, 32), labels, None)


def test_logits_that_overflow_in_one_block_are_powers_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean_head.lean_vocabulary, "BLOCK", 1)
    monkeypatch.setattr(lean_head.lean_vocabulary, "NARROWEST", 8)
    hidden, weight = torch.ones(4, 2).requires_grad_(), torch.zeros(17, 2)
    weight[16] = -3e38
    weight.requires_grad_()
    targets = torch.full((4,), 7)
    ours = lean_head.LinearCrossEntropy.apply(hidden, weight, targets, torch.tensor(4.0), torch.float32)
    theirs = torch.nn.functional.cross_entropy(hidden @ weight.t(), targets)
    assert torch.allclose(ours, theirs)
    for mine, its in zip(torch.autograd.grad(ours, [hidden, weight]), torch.autograd.grad(theirs, [hidden, weight]), strict=True):
        assert torch.allclose(mine[:16], its[:16], atol=1e-7)


def test_a_mask_is_left_out_only_where_it_was_proved_to_say_nothing(tmp_path: Path) -> None:
    model = model_of("qwen3")
    with lean(model, Classify(), batches_of(Classify())[1:], arguments(tmp_path), wanted="auto") as said:
        assert "right padding without a mask off (no row of the sample has padding)" in said
    seen = []
    attention = nn.functional.scaled_dot_product_attention
    with lean(model, Classify(), batches_of(Classify()), arguments(tmp_path), wanted="auto"), pytest.MonkeyPatch.context() as patch:
        counted = lambda q, k, v, mask=None, **more: (seen.append(mask), attention(q, k, v, mask, **more))[1]  # noqa: E731
        patch.setattr(lean_layer, "functional", SimpleNamespace(silu=nn.functional.silu, scaled_dot_product_attention=counted))
        in_blocks = blocked.attend
        patch.setattr(blocked, "attend", lambda *heads, **more: (seen.append(None), in_blocks(*heads, **more))[1])
        padded = batches_of(Classify())[0]
        assert (padded["attention_mask"] == 0).any()
        logits_of(model, padded)
        left = {**padded, "input_ids": padded["input_ids"].flip(1), "attention_mask": padded["attention_mask"].flip(1)}
        logits_of(model, left)
    assert [mask is None for mask in seen] == [True, False]  # the other layer is the last one


@pytest.mark.parametrize(
    ("mask", "right"), [([[1, 1, 0], [1, 1, 1]], True), ([[0, 1, 1]], False), ([[1, 0, 1]], False), ([[0, 0, 0]], False), ([[1]], True)]
)
def test_masks_of_right_padding_are_told_from_others(mask: list[list[int]], right: bool) -> None:
    assert lean_mask.right_padded(torch.tensor(mask)) is right


def test_few_rows_have_padding_where_any_row_of_the_split_would(tmp_path: Path) -> None:
    texts = [([3, 4, 5], number % 2) for number in range(70)]
    collate = Dynamic(spec_for(Classify()))
    assert [len(batch["labels"]) for batch in few_rows(split_of(tmp_path / "equal", texts), collate)] == [2, 1]
    batches = few_rows(split_of(tmp_path / "late", [*texts, ([3], 0)]), collate)
    assert (batches[0]["attention_mask"] == 0).any()


def test_few_rows_have_targets_where_any_row_has(tmp_path: Path) -> None:
    """A text of one token has none: its mean loss is no number, and a proof by it would fail."""
    collate = Dynamic(spec_for(Pretrain()))
    batches = few_rows(split_of(tmp_path / "one", [([3], None), ([3, 4, 5], None), ([3, 4], None)]), collate)
    assert [batch["input_ids"].shape[1] for batch in batches] == [3, 3]
    assert few_rows(split_of(tmp_path / "none", [([3], None), ([4], None)]), collate)


def test_few_rows_of_packed_data_hold_several_texts_where_later_rows_do(tmp_path: Path) -> None:
    """Long documents fill the first rows alone: nothing could be proved by those, and the mask would stay."""
    alone = [(list(range(3, 3 + length)), None, [length]) for length in (16, 15, *[16] * 78)]
    late = [(list(range(3, 17)), None, [13, 1]), (list(range(3, 15)), None, [4, 5, 3]), *alone[:20]]
    collate = Packed(spec_for(Pretrain()))
    batch, longest = few_rows(split_of(tmp_path / "late", [*alone, *late]), collate)
    assert (batch["position_ids"][0] == 0).nonzero().flatten().tolist()[:3] == [0, 4, 9]
    assert len(longest["labels"]) == 1
    assert learned_texts(batch) > 2
    for batch in few_rows(split_of(tmp_path / "none", alone), collate):
        assert learned_texts(batch) == len(batch["labels"])


def test_layers_that_look_ahead_keep_their_own_code_though_a_row_has_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EuroBERT's are Llama's but for that: attention without a mask, as a row without padding has it, would be causal."""
    model = model_of("eurobert")
    collate = Dynamic(spec_for(Classify()))
    batches = few_rows(split_of(tmp_path / "rows", [([5], 1), (TEXTS[1], 4), (TEXTS[0], 2)]), collate)
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(2, 9), (1, 9)]
    assert "decoder layers off (layer 0 looks ahead)" in tried(model, Classify(), tmp_path, batches)
    monkeypatch.setattr("ftcli.core.models.lean_layers.why_not", lambda model: None)  # the proof alone finds it as well
    alone = collate(rows_of(TEXTS[1:2], [4]))
    truth = computed(model, Classify(), alone)
    with lean(model, Classify(), batches, arguments(tmp_path), wanted="auto") as said:
        assert difference(truth, computed(model, Classify(), alone)) is None
    assert "decoder layers off" in said


def test_below_lora_the_last_layer_and_the_loss_are_lean_and_the_layers_their_own(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    for task, kind, on in ((Classify(), "SEQ_CLS", BOTH[1]), (Pretrain(), "CAUSAL_LM", PIECES)):
        model = peft.get_peft_model(model_of("qwen3", task), peft.LoraConfig(task_type=kind, r=2, init_lora_weights=False))
        said = tried(model, task, tmp_path)
        assert on in said
        assert UNMASKED in said
        assert "decoder layers off (layer 0 has other projections (LoRA" in said


def test_a_frozen_output_layer_is_computed_in_pieces_too(tmp_path: Path) -> None:
    """As with LoRA, which most memory is taken for logits in."""
    model = model_of("qwen3", Pretrain(), tie_word_embeddings=False)
    model.lm_head.weight.requires_grad = False
    assert PIECES in tried(model, Pretrain(), tmp_path)


def test_output_layers_of_another_kind_keep_the_logits(tmp_path: Path) -> None:
    model = model_of("qwen3", Pretrain(), tie_word_embeddings=False)
    model.lm_head = nn.Linear(model.lm_head.in_features, model.lm_head.out_features, bias=True)
    assert "not a plain matrix" in tried(model, Pretrain(), tmp_path)
    model = model_of("qwen3", Pretrain())
    original = model.forward
    model.forward = lambda **inputs: {"logits": 2 * (original(**inputs)["logits"] / 2).tanh()}  # as Gemma 2 caps them
    with lean(model, Pretrain(), batches_of(Pretrain()), arguments(tmp_path), wanted="auto", use_head=lambda _: None) as said:
        assert "cross-entropy in pieces off (the model does more to its logits" in said


def test_what_asks_for_more_than_logits_is_answered_by_the_models_own_code(tmp_path: Path) -> None:
    model, [batch, _] = model_of("qwen3"), batches_of(Classify())
    with lean(model, Classify(), batches_of(Classify()), arguments(tmp_path), wanted="auto"):
        full = model(**batch, output_hidden_states=True)
        assert len(full.hidden_states) == 3
        assert full.loss is not None
        with torch.no_grad():
            assert torch.allclose(logits_of(model, batch), full.logits, atol=1e-5)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(tmp_path_factory.mktemp("bench"))


@pytest.mark.parametrize("mode", ["classify", "pretrain"])
def test_a_run_takes_the_same_step_with_and_without(bench: Bench, mode: str) -> None:
    rows: Any = learnable(16, 4, VOCABULARY, 0) if mode == "classify" else packed(16, 32, VOCABULARY, 0)
    store = bench.store(mode, {"train": rows}, labels=4 if mode == "classify" else None)
    found = {}
    for wanted in ("auto", "off"):
        context = bench.context(store, f"run {mode}", **ONE_STEP, train__lean_step=wanted, train__per_device_train_batch_size=16)
        found[wanted] = step_of(context)
        [note] = [note for note in context.notes if note.startswith("lean step")]
        assert ("decoder layers on" in note) == (wanted == "auto")
        assert (PIECES in note) == (wanted == "auto" and mode == "pretrain")
    assert found["auto"][0] == pytest.approx(found["off"][0], rel=1e-5)
    assert (found["auto"][1] - found["off"][1]).norm() / found["off"][1].norm() < 1e-4
    assert not torch.equal(found["auto"][1], found["off"][1])  # other arithmetic was at work


def test_a_resumed_language_model_ends_bitwise_as_an_uninterrupted_one(bench: Bench) -> None:
    """The first batch after a resume is computed as it would have been in the middle."""
    store = bench.store("resumed", {"train": packed(32, 32, VOCABULARY, 1)})
    values: dict[str, Any] = {"train__learning_rate": 1e-2, "train__save_strategy": "steps", "train__save_steps": 2, "train__verify": False}
    values |= {"train__per_device_train_batch_size": 4, "runtime__overwrite": True}
    weights = []
    for steps, output, resume in ((4, "whole", None), (2, "parts", None), (4, "parts", "auto")):
        context = bench.context(
            store, output, **values, train__max_steps=steps, train__resume_from_checkpoint=resume, train__lr_scheduler_type="constant"
        )
        run = prepare(context)
        assert fit(run, Signals()).metrics["steps"] == steps
        assert any(PIECES in note for note in context.notes)
        weights.append(run.model.state_dict())
    assert all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    assert not torch.equal(weights[0]["lm_head.weight"], weights[1]["lm_head.weight"])


def test_an_evaluation_of_a_language_model_never_has_the_logits_of_a_batch(bench: Bench) -> None:
    """Eight rows of 512 tokens over 152,000 ids took 10 GB and four times as long, in a run whose steps had no such array."""
    store = bench.store("measured", {"train": packed(16, 32, VOCABULARY, 0), "validation": packed(11, 32, VOCABULARY, 1)})
    figures: dict[str, float] = {}
    widths: dict[str, set[int]] = {}
    for wanted in ("auto", "off"):
        context = bench.context(store, f"measured {wanted}", **ONE_STEP, train__lean_step=wanted)
        run = prepare(context)
        seen = widths[wanted] = set()
        run.model.register_forward_hook(
            lambda model, _, found, seen=seen: None if torch.is_grad_enabled() or model.training else seen.add(found["logits"].shape[-1])
        )
        figures[wanted] = fit(run, Signals()).metrics["eval_loss"]
    assert widths == {"auto": {run.model.config.hidden_size}, "off": {VOCABULARY}}
    assert figures["auto"] == pytest.approx(figures["off"], rel=1e-5)


def test_a_model_that_cannot_compute_its_first_rows_is_named(tmp_path: Path) -> None:
    model = model_of("qwen3")
    model.score = torch.nn.Linear(7, 5)
    with (
        pytest.raises(ModelError, match=r"Qwen3ForSequenceClassification cannot compute the first rows: RuntimeError: mat1"),
        lean(model, Classify(), batches_of(Classify()), arguments(tmp_path), wanted="auto"),
    ):
        pass
