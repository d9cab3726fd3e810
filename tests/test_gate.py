"""What is refused before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from ftcli.contracts import CollatorKind
from ftcli.core.batches.collate import Dynamic, Packed
from ftcli.core.batches.tasks import Classify, Pretrain
from ftcli.core.engines.backend import tokenizer_hash
from ftcli.core.models import side_by_side
from ftcli.core.models.side_by_side import Texts
from ftcli.core.storage.store import Store
from ftcli.core.training import gate
from ftcli.errors import DataError, ModelError, SettingsError, StoreError, TrainError
from ftcli.records import RUN_NAME
from ftcli.testing import tiny_model, tiny_tokenizer
from stores import write_store

SMALL = {"hidden_size": 32, "num_hidden_layers": 2}
ATTENDING = {**SMALL, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
REMEMBERING: dict[str, dict[str, Any]] = {
    "mamba": SMALL,
    "rwkv": SMALL,
    "falcon_h1": {**ATTENDING, "head_dim": 8, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8},
    "lfm3": {**ATTENDING, "pad_token_id": 0},
}
"""A state space, a recurrence, a state space beside attention in every layer, convolutions among layers of attention."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def _check(store: Store, model: Any, tokenizer: Any, *, fixed: bool = False, multiple: int = 1) -> None:
    gate.check_data(store, ["train"], model, tokenizer, fixed=fixed, multiple=multiple)


def test_data_of_another_tokenizer_are_refused_and_both_are_named(tmp_path: Path, tokenizer: Any) -> None:
    folder = tokenizer.name_or_path
    good = {"path": folder, "hash": tokenizer_hash(tokenizer, folder)}
    gate.check_tokenizer(write_store(tmp_path / "good", {"train": [([5], None)]}, tokenizer=good), tokenizer, folder)
    bad = write_store(tmp_path / "bad", {"train": [([5], None)]}, tokenizer={"path": "other", "hash": "0" * 64})
    with pytest.raises(StoreError, match="prepared with the tokenizer other") as refused:
        gate.check_tokenizer(bad, tokenizer, folder)
    assert "--tokenizer-path other" in refused.value.hint
    edited = write_store(tmp_path / "edited", {"train": [([5], None)]}, tokenizer={"path": folder, "hash": "0" * 64})
    with pytest.raises(StoreError, match=rf"the tokenizer {folder} has changed since .*edited was prepared with it") as refused:
        gate.check_tokenizer(edited, tokenizer, folder)
    assert "restore the old" in refused.value.hint


@pytest.mark.parametrize(
    ("collator", "packed", "task", "message"),
    [
        (CollatorKind(Dynamic), True, Pretrain(), "attend to each other"),
        (CollatorKind(Packed, packed=True), True, Classify(), "needs one label per row"),
        (CollatorKind(Dynamic), False, Classify(), None),
        (CollatorKind(Packed, packed=True), False, Classify(), None),
        (CollatorKind(Packed, packed=True), True, Pretrain(), None),
    ],
)
def test_rows_collator_and_task_must_fit(tmp_path: Path, collator: CollatorKind, packed: bool, task: Any, message: str | None) -> None:
    row: Any = ([5, 6, 7], None, [1, 2]) if packed else ([5, 6, 7], None)
    store = write_store(tmp_path / "store", {"train": [row]})
    if message is None:
        gate.check_collator("it", collator, task, store.split("train"), store)
        return
    with pytest.raises(SettingsError, match=message):
        gate.check_collator("it", collator, task, store.split("train"), store)


def test_rows_longer_than_the_model_are_refused_with_the_width_that_counts(tmp_path: Path, tokenizer: Any) -> None:
    store = write_store(tmp_path / "store", {"train": [([5] * 510, 0), ([6], 1)]}, label_names=["a", "b"], max_length=600)
    model = tiny_model(labels=2)  # 512 positions
    _check(store, model, tokenizer)
    for fixed, multiple, width in ((True, 1, 600), (False, 64, None), (False, 100, 600)):
        if width is None:
            _check(store, model, tokenizer, multiple=multiple)
            continue
        with pytest.raises(ModelError, match=f"up to {width} tokens, but the model has 512 positions") as refused:
            _check(store, model, tokenizer, fixed=fixed, multiple=multiple)
        assert f"max_position_embeddings={width}: " in refused.value.hint


def test_roberta_counts_its_positions_from_pad(tmp_path: Path, tokenizer: Any) -> None:
    config = AutoConfig.for_model(
        "roberta",
        vocab_size=400,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=66,
    )
    model = AutoModelForSequenceClassification.from_config(config)
    _check(write_store(tmp_path / "fits", {"train": [([5] * 64, 0)]}, label_names=["a", "b"]), model, tokenizer)
    with pytest.raises(ModelError, match="64 positions") as refused:
        _check(write_store(tmp_path / "long", {"train": [([5] * 65, 0)]}, label_names=["a", "b"]), model, tokenizer)
    assert "max_position_embeddings=67: " in refused.value.hint


def test_positions_that_are_relative_only_have_no_end(tmp_path: Path, tokenizer: Any) -> None:
    sizes = {"vocab_size": 400, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    store = write_store(tmp_path / "long", {"train": [([5] * 65, 0)]}, label_names=["a", "b"])
    for biased in (False, True):
        relative = {"relative_attention": True, "pos_att_type": ["c2p"], "position_biased_input": biased, "max_position_embeddings": 32}
        model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model("deberta-v2", **sizes, **relative))
        if not biased:
            _check(store, model, tokenizer)
            assert model(torch.tensor([[5] * 65])).logits.isfinite().all()
            continue
        with pytest.raises(ModelError, match="32 positions"):
            _check(store, model, tokenizer)


def test_labels_out_of_range_are_refused_and_the_row_is_named(tmp_path: Path, tokenizer: Any) -> None:
    model = tiny_model(labels=2)
    model.config.problem_type = "single_label_classification"
    for label in (2, -1):
        store = write_store(tmp_path / f"store{label}", {"train": [([5], 0), ([5], 1), ([5], label)]}, label_names=["a", "b"])
        with pytest.raises(DataError, match=f"row 2 of train has the label {label}"):
            _check(store, model, tokenizer)


def test_ids_beyond_the_embedding_empty_rows_and_empty_splits_are_refused(tmp_path: Path, tokenizer: Any) -> None:
    small = tiny_model(vocab_size=300)
    _check(write_store(tmp_path / "good", {"train": [([299], None)]}), small, tokenizer)
    with pytest.raises(ModelError, match="contains the id 300, but the model's embedding has 300 rows"):
        _check(write_store(tmp_path / "beyond", {"train": [([3], None), ([300], None)]}, shards=2), small, tokenizer)
    with pytest.raises(DataError, match="row 1 of train has no tokens"):
        _check(write_store(tmp_path / "empty", {"train": [([3], None), ([], None)]}), tiny_model(), tokenizer)
    with pytest.raises(DataError, match="has no rows") as none:
        _check(write_store(tmp_path / "none", {"train": []}), tiny_model(), tokenizer)
    assert "--split-seed" in none.value.hint


def test_ids_are_compared_with_the_vocabulary_where_the_embedding_is_no_layer(tmp_path: Path, tokenizer: Any) -> None:
    """Perceiver's `get_input_embeddings` gives its latents."""
    sizes = {"num_latents": 4, "d_latents": 16, "d_model": 16, "num_self_attends_per_block": 1, "num_self_attention_heads": 2}
    config = AutoConfig.for_model("perceiver", **sizes, num_cross_attention_heads=2, vocab_size=300, max_position_embeddings=64)
    model = AutoModelForSequenceClassification.from_config(config)
    _check(write_store(tmp_path / "good", {"train": [([299], None)]}), model, tokenizer)
    with pytest.raises(ModelError, match="contains the id 300, but the model's embedding has 300 rows"):
        _check(write_store(tmp_path / "beyond", {"train": [([300], None)]}), model, tokenizer)


def _causal(kind: str, **sizes: Any) -> Any:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=400, **sizes), attn_implementation="eager")


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_model_that_looks_ahead_cannot_be_pretrained(kind: torch.dtype) -> None:
    gate.check_learnable(tiny_model().to(kind), packed=True)
    bert = _causal("bert", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16).to(kind)
    with pytest.raises(ModelError, match="is not causal"):
        gate.check_learnable(bert, packed=False)


def test_in_sixteen_bits_another_kernel_may_round_a_large_logit_the_other_way() -> None:
    """Seen on a GPU: the largest logit of each token differs by its step, 0.1 standard deviations, and nothing else does."""
    model = tiny_model()
    forward = model.forward

    def packed(input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> Any:
        out = forward(input_ids=input_ids, position_ids=position_ids)
        if position_ids is not None:
            out.logits[..., 0] += 0.1 * out.logits.std()
        return out

    model.forward = packed
    with pytest.raises(ModelError, match="lets packed texts attend to each other"):
        gate.check_learnable(model, packed=True)
    gate.check_learnable(model.to(torch.bfloat16), packed=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_mixes_packed_texts_is_refused_even_with_small_fresh_weights(dtype: torch.dtype) -> None:
    opt = _causal(
        "opt", hidden_size=16, ffn_dim=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64, word_embed_proj_dim=16
    )
    bloom = _causal("bloom", hidden_size=16, n_layer=2, n_head=2)
    for model in (opt.to(dtype), bloom.to(dtype)):
        gate.check_learnable(model, packed=False)
        assert model.training
        with pytest.raises(ModelError, match="lets packed texts attend to each other") as refused:
            gate.check_learnable(model, packed=True)
        assert "Prepare the data without --packing" in refused.value.hint
        assert "attention" not in refused.value.hint  # as none of 126 families differs between the two, in this
        assert model.config.use_cache
    opt.set_attn_implementation("sdpa")
    with pytest.raises(ModelError, match="with sdpa attention lets packed texts attend to each other") as refused:
        gate.check_learnable(opt, packed=True)
    assert "attention" not in refused.value.hint


@pytest.mark.parametrize(("kind", "sizes"), REMEMBERING.items())
def test_what_goes_on_in_a_layers_state_is_not_laid_on_attention(kind: str, sizes: dict[str, Any]) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=64, **sizes))
    with pytest.raises(ModelError, match="carries what its layers keep from one packed text into the next") as refused:
        gate.check_learnable(model, packed=True)
    assert "attention" not in refused.value.message + refused.value.hint
    texts = Texts(16, unpad=True)
    assert "no attention alone" in str(side_by_side.why_not(model, [], texts, sixteen_bits=False))


def test_sizes_that_do_not_fit_each_other_are_the_models_where_only_its_attention_finds_out() -> None:
    """MiniCPM3 of 2 heads for 4: transformers' sdpa raised, behind the model's own code, and it was a bug of ftcli's."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("minicpm3", vocab_size=400, **sizes), attn_implementation="sdpa")
    with pytest.raises(ModelError, match=r"MiniCPM3ForCausalLM cannot compute a few tokens: RuntimeError: The size of tensor"):
        gate.check_learnable(model, packed=True)


def test_what_torch_refuses_of_a_model_is_the_models() -> None:
    model = tiny_model()
    model.lm_head = torch.nn.Linear(7, 400)
    with pytest.raises(ModelError, match=r"cannot compute a few tokens: RuntimeError: mat1 and mat2 .* \(modeling_qwen3.py, line"):
        gate.check_learnable(model, packed=False)


def test_another_attention_is_advised_only_where_it_may_help() -> None:
    """Mamba has none, and was told to try sdpa, which it refuses."""
    model = tiny_model()
    model.config._attn_implementation_internal = "paged|of_a_plugin"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "_leaks", lambda *_: (0.0, 1.0, 1.0, 0.0))
        with pytest.raises(ModelError) as refused:
            gate.check_learnable(model, packed=True)
    assert "Use sdpa or eager attention" in refused.value.hint


def test_a_folder_with_a_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    gate.check_output(tmp_path / "new", resume=False, overwrite=False)
    gate.check_output(tmp_path, resume=False, overwrite=False)
    (tmp_path / "checkpoint-3").mkdir()
    for number in (10, 12):
        (tmp_path / f"checkpoint-{number}").mkdir()
    with pytest.raises(TrainError, match=r"holds an earlier run .checkpoint-12"):
        gate.check_output(tmp_path, resume=False, overwrite=False)
    for number in (10, 12):
        (tmp_path / f"checkpoint-{number}").rmdir()
    with pytest.raises(TrainError, match=r"holds an earlier run .checkpoint-3") as refused:
        gate.check_output(tmp_path, resume=False, overwrite=False)
    assert "auto" in refused.value.hint
    gate.check_output(tmp_path, resume=True, overwrite=False)
    gate.check_output(tmp_path, resume=False, overwrite=True)
    (tmp_path / "checkpoint-3").rmdir()
    (tmp_path / RUN_NAME).write_text("{}")
    with pytest.raises(TrainError, match=RUN_NAME):
        gate.check_output(tmp_path, resume=False, overwrite=False)
