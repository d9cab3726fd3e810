"""Texts side by side: the logits and gradients of the masked and padded batch, without the mask and without the padding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from ftcli.core.batches.collate import Dynamic, Packed
from ftcli.core.batches.slots import IDLE, TokenBatches
from ftcli.core.batches.tasks import Classify, Pretrain
from ftcli.core.distributed.signals import Signals
from ftcli.core.models import side_by_side, varlen
from ftcli.core.models.last_layer import logits_of
from ftcli.core.models.lean import lean
from ftcli.core.models.lean_proof import HALF, computed, difference
from ftcli.core.models.side_by_side import Texts
from ftcli.core.models.varlen import Documents, attend
from ftcli.core.training.run import prepare
from ftcli.core.training.train import fit
from ftcli.errors import SettingsError
from runs import ONE_STEP, VOCABULARY, Bench, step_of
from stores import learnable, packed, rows_of, spec_for
from test_lean import BOTH, SIZES, TEXTS, arguments, batches_of, model_of

pytestmark = pytest.mark.usefixtures("one_thread")

ON = "texts side by side on, proved equal on this model"
PACKS = Texts(16)
ROWS = Texts(16, unpad=True)


def packs(*documents: list[int]) -> dict[str, torch.Tensor]:
    random = np.random.default_rng(0)
    texts = [random.integers(1, 50, sum(each)).tolist() for each in documents]
    return Packed(spec_for(Pretrain()))(rows_of(texts, documents=documents))


PROOF = ([4, 2, 5], [3, 6])
OTHER = ([1, 1, 7, 2], [12], [2, 9])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_attention_inside_texts_is_attention_under_their_mask(heads: tuple[int, int], causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, count, 9, 8, generator=generator).requires_grad_() for count in (heads[0], heads[1], heads[1]))
    positions = torch.tensor([[0, 1, 2, 3, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
    documents = Documents.of_positions(positions)
    assert documents.lengths == [4, 1, 4, 9]
    assert documents.offsets.tolist() == [0, 4, 5, 9, 18]
    assert documents.offsets.dtype == torch.int32
    assert documents.longest == 9
    number = torch.tensor([[0] * 4 + [1] + [2] * 4, [0] * 9])
    mask = number[:, :, None] == number[:, None]
    if causal:
        mask = mask & torch.ones(9, 9, dtype=torch.bool).tril()
    masked = functional.scaled_dot_product_attention(q, k, v, mask[:, None], scale=0.5, enable_gqa=True).transpose(1, 2)
    apart = attend(q, k, v, documents, scale=0.5, causal=causal)
    assert torch.allclose(apart, masked, atol=1e-6)
    towards = torch.randn(masked.shape, generator=generator)
    for ours, theirs in zip(*(torch.autograd.grad(each, (q, k, v), towards) for each in (apart, masked)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_row_begins_a_text_though_its_positions_go_on() -> None:
    assert Documents.of_positions(torch.tensor([[0, 1, 2], [3, 4, 0]])).lengths == [3, 2, 1]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, module: Any) -> Iterator[list[tuple[int, bool]]]:
    """Query lengths of every attention call, and whether it had a mask."""
    seen: list[tuple[int, bool]] = []
    attention = functional.scaled_dot_product_attention

    def call(q: Any, k: Any, v: Any, attn_mask: Any = None, **more: Any) -> Any:
        seen.append((q.shape[2], attn_mask is not None))
        return attention(q, k, v, attn_mask, **more)

    with monkeypatch.context() as patch:
        patch.setattr(module, "functional", SimpleNamespace(pad=functional.pad, scaled_dot_product_attention=call))
        yield seen


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt2"])
def test_packs_compute_the_same_without_a_mask(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"n_embd": 32, "n_head": 4, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0} if kind == "gpt2" else {}
    model, task = model_of(kind, Pretrain(), **changes), Pretrain()
    other = packs(*OTHER)
    truth = computed(model, task, other)
    with lean(model, task, [packs(*PROOF)], arguments(tmp_path), wanted="auto", texts=PACKS) as said:
        assert ON in said
        assert (BOTH[0] in said) == (kind != "gpt2")
        with counted(monkeypatch, varlen) as seen:
            assert difference(truth, computed(model, task, other)) is None
        texts = Documents.of_positions(other["position_ids"]).lengths
        assert seen == [(length, False) for length in texts] * 2  # layers
        with torch.no_grad():
            assert torch.allclose(logits_of(model, other), model.eval()(**{**other, "labels": None})["logits"])
        padded = Dynamic(spec_for(task))(rows_of(TEXTS))
        assert logits_of(model, padded).isfinite().all()
    assert not any("forward" in vars(module) for module in model.modules())
    assert difference(truth, computed(model, task, other)) is None


@pytest.mark.parametrize("kind", ["qwen3", "llama", "bert"])
def test_rows_compute_the_same_without_their_padding(kind: str, tmp_path: Path) -> None:
    model, task = model_of(kind, Classify()), Classify()
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        setattr(model.config, name, 0.0)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    other = Dynamic(spec_for(task, pad_to_multiple_of=4))(rows_of(TEXTS[::-1], [1, 4, 2]))
    truth, tokens = computed(model, task, other), []
    with lean(model, task, batches_of(task), arguments(tmp_path), wanted="auto", texts=ROWS) as said:
        assert ON in said
        assert ("last layer for pooled tokens only on" in said) == ("decoder layers on" in said) == (kind != "bert")
        assert "right padding without a mask off (there is none)" in said
        handle = model.get_input_embeddings().register_forward_hook(lambda _module, _given, out: tokens.append(out.shape[:2]))
        assert difference(truth, computed(model, task, other)) is None
        with torch.no_grad():
            assert torch.allclose(logits_of(model.eval(), other), truth[0], atol=1e-5)
            left = {**other, "input_ids": other["input_ids"].flip(1), "attention_mask": other["attention_mask"].flip(1)}
            assert logits_of(model, left).isfinite().all()
        handle.remove()
    assert tokens == [(1, sum(map(len, TEXTS)))] * 2 + [(3, 12)]  # padding on the left is nothing that it knows


def test_a_language_models_rows_compute_the_same_without_their_padding(tmp_path: Path) -> None:
    model, task = model_of("qwen3", Pretrain()), Pretrain()
    other = Dynamic(spec_for(task))(rows_of(TEXTS[::-1]))
    truth = computed(model, task, other)
    with lean(model, task, batches_of(task), arguments(tmp_path), wanted="auto", texts=ROWS) as said:
        assert ON in said
        assert difference(truth, computed(model, task, other)) is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("falcon_h1", "a text changes with what stands before it"),
        ("falcon_h1", "some of its layers are no attention"),
        ("lfm2", "some of its layers are no attention"),
        ("qwen3", ""),
        ("mixtral", ""),
    ],
)
def test_what_sixteen_bits_hide_of_a_text_before_is_asked_by_changing_it(
    kind: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason.startswith("a text changes"):  # of a model that says nothing of its state
        monkeypatch.setattr(side_by_side, "remembers", lambda _: False)
    more = {
        "falcon_h1": {
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 16,
        },
        "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
        "mixtral": {"num_local_experts": 4},
    }
    task = Pretrain()
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind,
        vocab_size=50,
        pad_token_id=0,
        use_cache=False,
        initializer_range=0.02,
        **{**SIZES, "num_hidden_layers": 2, **more.get(kind, {})},
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(torch.bfloat16)
    with lean(model, task, batches_of(task), arguments(tmp_path), wanted="auto", texts=replace(ROWS, needed=False)) as said:
        assert (ON in said) == (not reason)
        assert not reason or f"texts side by side off ({reason}" in said


def test_padding_stays_where_the_noise_of_neftune_is_told_by_it(tmp_path: Path) -> None:
    """Of all tokens in one row it would be the root of the rows less."""
    task, reason = Pretrain(), "the noise of NEFTune depends on the batch's size"
    given = arguments(tmp_path, neftune_noise_alpha=5)
    with (
        pytest.raises(SettingsError, match=reason),
        lean(model_of("qwen3", task), task, batches_of(task), given, wanted="auto", texts=ROWS),
    ):
        pass
    with lean(model_of("qwen3", task), task, [packs(*PROOF)], given, wanted="auto", texts=PACKS) as said:
        assert ON in said


def test_under_autocast_layers_are_lean_and_in_sixteen_bits_attention_alone_is(tmp_path: Path) -> None:
    model, task, other = model_of("qwen3", Pretrain()), Pretrain(), packs(*OTHER)
    truth = computed(model, task, other)
    with lean(model, task, [packs(*PROOF)], arguments(tmp_path, bf16=True), wanted="auto", texts=PACKS) as said:
        assert ON in said
        assert "decoder layers on" in said
        assert difference(truth, computed(model, task, other)) is None
    model = model.to(torch.bfloat16)
    truth = computed(model, task, other)
    with lean(model, task, [packs(*PROOF)], arguments(tmp_path), wanted="auto", texts=PACKS) as said:
        assert said == f"lean step: {ON}; the rest off: the weights are bfloat16, but equality is only proved in float32"
        assert difference(truth, computed(model, task, other), HALF) is None


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("unpad", [False, True])
def test_texts_that_see_each_other_are_found_by_the_proof(unpad: bool, half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of all tests above: one text a row, whatever is said."""
    one = lambda documents: Documents.of_lengths(torch.tensor([sum(documents.lengths)]))  # noqa: E731
    monkeypatch.setattr(side_by_side, "attend", lambda q, k, v, documents, **more: attend(q, k, v, one(documents), **more))
    task: Any = Classify() if unpad else Pretrain()
    model = model_of("qwen3", task)
    if half:
        model = model.to(torch.bfloat16)
    batches = batches_of(task) if unpad else [packs(*PROOF)]
    context = lean(model, task, batches, arguments(tmp_path), wanted="auto", texts=ROWS if unpad else PACKS)
    if unpad:
        with pytest.raises(SettingsError, match="this run cannot do: logits differ by"), context:
            pass
        return
    with context as said:
        assert "texts side by side off (logits differ by" in said


def test_in_sixteen_bits_a_step_of_the_largest_logit_is_rounding() -> None:
    """Measured on an H200: a trained model's largest logits went up by one step, 0.1 standard deviations, and the padding stayed."""
    generator = torch.Generator().manual_seed(0)
    logits = (0.6 * torch.randn(100, 2_000, generator=generator)).bfloat16()
    logits[:, 0] = 9.0
    gradients = {"weight": torch.randn(50, generator=generator)}
    stepped, leaking = logits.clone(), logits + 0.13 * logits.std() * torch.randn(logits.shape, generator=generator).bfloat16()
    stepped[:, 0] += 0.0625
    assert difference((logits, gradients, 1.0), (stepped, gradients, 1.0), HALF) is None
    assert difference((logits.float(), gradients, 1.0), (stepped.float(), gradients, 1.0)) == "logits differ by 0.1 standard deviations"
    assert difference((logits, gradients, 1.0), (leaking, gradients, 1.0), HALF) == "logits differ by 0.1 standard deviations"


def test_in_float32_the_limits_are_those_of_float32_also_where_it_is_the_only_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = model_of("qwen3", Pretrain()), arguments(tmp_path)
    given.activation_checkpointing = True
    with lean(model, Pretrain(), [packs(*PROOF)], given, wanted="auto", texts=PACKS) as said:
        assert said.startswith(f"lean step: {ON}; the rest off: activation_checkpointing")
    monkeypatch.setattr(side_by_side, "attend", lambda *parts, **more: attend(*parts, **more) * 1.002)
    with lean(model, Pretrain(), [packs(*PROOF)], given, wanted="auto", texts=PACKS) as said:
        assert "texts side by side off (logits differ by" in said
    with lean(model.to(torch.bfloat16), Pretrain(), [packs(*PROOF)], given, wanted="auto", texts=PACKS) as said:
        assert ON in said, "the control: it is within the rounding of 16 bits"


@pytest.mark.parametrize(
    ("changes", "texts", "reason"),
    [
        ({"attn_implementation": "eager"}, PACKS, "attention is eager, not sdpa"),
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
            PACKS,
            "attention reaches back 8 tokens, and rows have up to 16",
        ),
        ({"attn_implementation": "eager"}, ROWS, "attention is eager, not sdpa"),
    ],
)
def test_what_it_cannot_do_is_said(changes: dict[str, Any], texts: Texts, reason: str, tmp_path: Path) -> None:
    task: Any = Classify() if texts.unpad else Pretrain()
    model = model_of("qwen3", task, **changes)
    batches = batches_of(task) if texts.unpad else [packs(*PROOF)]
    context = lean(model, task, batches, arguments(tmp_path), wanted="auto", texts=texts)
    if texts.unpad:
        with pytest.raises(SettingsError) as refused, context:
            pass
        assert reason in refused.value.message
        return
    with context as said:
        assert f"texts side by side off ({reason})" in said


def test_packs_of_one_text_and_rows_without_padding_prove_nothing(tmp_path: Path) -> None:
    model, task = model_of("qwen3", Pretrain()), Pretrain()
    with lean(model, task, [packs([5], [3])], arguments(tmp_path), wanted="auto", texts=PACKS) as said:
        assert "texts side by side off (no row of the sample holds several texts)" in said
    with lean(model, task, batches_of(task)[1:], arguments(tmp_path), wanted="auto", texts=ROWS) as said:
        assert "texts side by side not needed (no row has padding)" in said


def test_a_gpu_without_sixteen_bits_keeps_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("qwen3", Pretrain())
    monkeypatch.setattr(side_by_side, "_on_gpu", lambda _: True)
    words = side_by_side.why_not(model, [packs(*PROOF)], PACKS, sixteen_bits=False)
    assert words == "the GPU's kernel takes 16-bit numbers"
    assert side_by_side.why_not(model, [packs(*PROOF)], PACKS, sixteen_bits=True) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_kernel_of_a_gpu_gives_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 64, 32, generator=generator).cuda().bfloat16() for heads in (4, 2, 2))
    positions = torch.cat([torch.arange(20), torch.arange(44)]).expand(2, -1).cuda()
    documents = Documents.of_positions(positions)
    apart = attend(q, k, v, documents, scale=None)
    own = attend(q.cpu().float(), k.cpu().float(), v.cpu().float(), Documents.of_positions(positions.cpu()), scale=None)
    assert torch.allclose(apart.cpu().float(), own, atol=2e-2)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(tmp_path_factory.mktemp("bench"))


@pytest.mark.parametrize("task", ["classify", "pretrain", "sft"])
def test_a_step_by_the_packed_collator_is_the_step_of_the_padded_one_however_it_is_cut(bench: Bench, task: str) -> None:
    rows: Any = learnable(16, 4, VOCABULARY, 0)
    if task != "classify":
        rows = [(ids, [-100, -100, *ids[2:]] if task == "sft" else None) for ids, _ in rows]
    store = bench.store(task, {"train": rows}, labels=4 if task == "classify" else None, task=task)
    found = {}
    for name, size in (("dynamic", 16), ("packed", 16), ("packed", 4)):
        context = bench.context(
            store, f"run {task}", **ONE_STEP, loader__collator=name, train__per_device_train_batch_size=size,
            train__gradient_accumulation_steps=16 // size,
        )  # fmt: skip
        found[name, size] = step_of(context)
        [note] = [note for note in context.notes if note.startswith("lean step")]
        assert (ON in note) == (name == "packed")
    truth = found.pop(("dynamic", 16))
    for loss, gradient in found.values():
        assert loss == pytest.approx(truth[0], rel=1e-5)
        assert (gradient - truth[1]).norm() <= 1e-4 * truth[1].norm()


def test_a_run_leaves_padding_out_of_its_slots_and_learns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = learnable(256, 4, VOCABULARY, 0)
    store = bench.store("learn", {"train": rows, "validation": learnable(32, 4, VOCABULARY, 1)}, labels=4)
    context = bench.context(
        store,
        "learn run",
        loader__collator="packed",
        train__max_tokens_per_batch=256,
        train__num_train_epochs=6,
        train__learning_rate=3e-3,
    )
    told: list[int] = []
    known = Documents.known
    monkeypatch.setattr(Documents, "known", lambda lengths, *rest: (told.append(len(lengths)), known(lengths, *rest))[1])
    outcome = fit(prepare(context), Signals())
    assert len(told) == outcome.metrics["steps"]
    assert sum(told) == 6 * 256
    assert outcome.metrics["padding_share"] == pytest.approx(0.0, abs=1e-9)
    assert outcome.metrics["eval_accuracy"] > 0.6
    assert any("batches of at most 256 tokens:" in note for note in context.notes)


def test_packed_rows_use_it_without_being_asked(bench: Bench) -> None:
    store = bench.store("packs", {"train": packed(16, 32, VOCABULARY, 0)})
    context = bench.context(store, "packs run", **ONE_STEP, train__per_device_train_batch_size=8)
    step_of(context)
    assert any(ON in note for note in context.notes)


@pytest.mark.parametrize("order", ["random", "grouped", "sequential"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_unpadded_batches_are_filled_by_the_sum_of_their_rows(order: str, ranks: int) -> None:
    widths = np.random.default_rng(0).integers(1, 60, 500)
    batches = TokenBatches(widths, 256, order=order, seed=0, ranks=ranks, unpadded=True)
    _, slots = batches.slots()
    found = list(batches)
    assert sorted(row for batch in found for row in batch if row != IDLE) == list(range(500))
    assert slots.tolist() == [sum(widths[row] for row in batch) for batch in found]
    assert slots.max() <= 256
    assert slots.sum() > 0.8 * 256 * len(found)
    padded = TokenBatches(widths, 256, order="random", seed=0, ranks=ranks)
    assert len(padded) > 1.4 * len(found), "the control"
    assert not list(TokenBatches(widths[:0], 256, order=order, seed=0, ranks=ranks, unpadded=True))


@pytest.mark.parametrize("taken", [{"window_size", "scale", "enable_gqa"}, {"window_size", "scale"}, {"is_causal"}])
def test_the_kernel_is_told_what_its_torch_takes_and_gets_sixteen_bits(taken: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3's norms give float32 also under autocast, which knows nothing of the kernel."""
    found: dict[str, Any] = {}

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        found.update(more, kinds={part.dtype for part in (q, k, v)}, rest=rest[2:], q=q)
        return q

    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    monkeypatch.setattr(varlen, "TAKEN", frozenset(taken))
    documents = Documents.of_lengths(torch.tensor([3, 5]))
    q, k, v = torch.ones(8, 4, 16), torch.ones(8, 2, 16), torch.ones(8, 2, 16, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        varlen._kernel(q, k, v, documents, scale=0.5, causal=True, grouped=True, dropout=0.0)
    assert found["kinds"] == {torch.bfloat16}
    assert found["rest"] == (5, 5)
    assert ({"window_size": (-1, 0)} if "window_size" in taken else {"is_causal": True}).items() <= found.items()
    assert ("enable_gqa" in found) == ("enable_gqa" in taken)
    assert found["scale"] == 0.5 if "scale" in taken else found["q"].unique() == 2.0


@pytest.mark.parametrize("unpad", [True, False])
def test_texts_that_the_host_knows_are_not_looked_for(unpad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking waits for a GPU; what the collator knows gives the same logits."""
    task = Pretrain()
    collator = Packed(spec_for(task))
    rows = rows_of(TEXTS) if unpad else rows_of([[1, 2, 3, 4, 5], [6, 7, 8]], documents=[[2, 3], [3]])
    batch = collator(rows)
    model = model_of("qwen3", task)
    for module, forward in side_by_side.forwards(model, unpad=unpad).items():
        module.forward = forward
    looked = logits_of(model, batch)
    for name in ("of_positions", "of_lengths", "of_mask"):
        monkeypatch.setattr(Documents, name, lambda *_: pytest.fail("it looks"))
    with side_by_side.told(collator.texts(rows), batch):
        assert torch.equal(logits_of(model, batch), looked)
    assert collator.texts(rows).sum() == (rows.input_ids.lengths.sum() if unpad else batch["input_ids"].numel())


def test_padding_that_cannot_be_left_out_is_computed_where_the_run_was_not_planned_without(tmp_path: Path) -> None:
    model, task = model_of("mistral", Pretrain()), Pretrain()
    model.config.sliding_window = 4
    used: list[Texts | None] = []
    wish = Texts(16, unpad=True, needed=False)
    with lean(model, task, batches_of(task), arguments(tmp_path), None, used.append, wanted="auto", texts=wish) as said:
        assert "texts side by side off (attention reaches back 4 tokens, and rows have up to 16)" in said
    assert used == [None]
    model.config.sliding_window = None
    with lean(model, task, batches_of(task), arguments(tmp_path), None, used.append, wanted="auto", texts=wish) as said:
        assert ON in said
    assert used == [None, wish]


def test_on_a_gpu_padding_is_left_out_where_it_can_be(bench: Bench) -> None:
    store = bench.store("gpu", {"train": learnable(16, 4, VOCABULARY, 0)}, labels=4)
    run = prepare(bench.context(store, "gpu run"))
    assert run.texts is None
    gpu: Any = SimpleNamespace(device=torch.device("cuda"))
    assert replace(run, arguments=gpu).texts == Texts(int(run.train.lengths.max()), unpad=True, needed=False)
    assert replace(run, arguments=gpu, padded_right=False).texts is None  # a plugin's collator may pad elsewhere
