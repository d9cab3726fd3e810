"""Collators: nothing is lost, nothing is learned from padding, and packed texts never see each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, DataCollatorWithPadding

from ftcli.core.batches.collate import Dynamic, Fixed, Packed
from ftcli.core.batches.tasks import Classify, Pretrain
from ftcli.errors import DataError
from stores import rows_of, spec_for
from timing import bytecodes

texts = st.lists(st.lists(st.integers(1, 500), min_size=1, max_size=20), min_size=1, max_size=6)


@given(texts, st.sampled_from(["left", "right"]), st.sampled_from([1, 8]))
@settings(max_examples=40, deadline=None)
def test_a_padded_batch_holds_every_token_once_and_masks_the_rest(rows: list[list[int]], side: str, multiple: int) -> None:
    batch = Dynamic(spec_for(Classify(), padding_side=side, pad_to_multiple_of=multiple))(rows_of(rows, labels=range(len(rows))))
    width = batch["input_ids"].shape[1]
    assert width % multiple == 0
    assert width < max(map(len, rows)) + multiple
    for ids, mask, text in zip(batch["input_ids"], batch["attention_mask"], rows, strict=True):
        assert ids[mask.bool()].tolist() == text
        assert not ids[~mask.bool()].any()
        assert mask.tolist() == sorted(mask.tolist(), reverse=side == "right")
    assert batch["labels"].tolist() == list(range(len(rows)))
    assert {value.dtype for value in batch.values()} == {torch.int64}


@given(texts)
@settings(max_examples=40, deadline=None)
def test_padding_and_the_first_token_are_no_targets_of_pretraining(rows: list[list[int]]) -> None:
    batch = Dynamic(spec_for(Pretrain(), pad_token_id=7))(rows_of(rows))
    for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"].bool(), batch["labels"], strict=True):
        assert labels[0] == -100
        assert torch.equal(labels[mask][1:], ids[mask][1:])
        assert (labels[~mask] == -100).all()


def test_fixed_pads_to_max_length_whatever_the_batch() -> None:
    fixed = Fixed(spec_for(Classify(), max_length=30, pad_to_multiple_of=8))
    assert fixed(rows_of([[1, 2]], [0]))["input_ids"].shape == (1, 32)
    assert fixed(rows_of([[1] * 40], [0]))["input_ids"].shape == (1, 40)


@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_positions_of_packed_texts_restart_and_their_first_token_is_no_target(lengths: list[list[int]]) -> None:
    rows = [list(range(100, 100 + sum(row))) for row in lengths]
    batch = Packed(spec_for(Pretrain(), pad_to_multiple_of=4))(rows_of(rows, documents=lengths))
    assert set(batch) == {"input_ids", "position_ids", "labels"}
    for number, (row, documents) in enumerate(zip(rows, lengths, strict=True)):
        padding = batch["input_ids"].shape[1] - len(row)
        positions = [place for length in documents for place in range(length)] + list(range(padding))
        assert batch["position_ids"][number].tolist() == positions
        targets = [token if place else -100 for token, place in zip(row, positions, strict=False)] + [-100] * padding
        assert batch["labels"][number].tolist() == targets


def test_rows_of_one_text_each_are_padded_for_a_model_that_leaves_padding_out() -> None:
    batch = Packed(spec_for(Classify()))(rows_of([[5, 6, 7], [8, 9]], [1, 0]))
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [1, 0]


def test_padding_collators_refuse_rows_of_several_texts() -> None:
    with pytest.raises(DataError, match="packed collator"):
        Dynamic(spec_for(Pretrain()))(rows_of([[5, 6, 7]], documents=[[1, 2]]))


def _model(kind: str, attention: str) -> torch.nn.Module:
    """Weights large enough (std 0.3) for a leak to show in every logit."""
    sizes = {
        "qwen3": {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
        },
        "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    }[kind]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=500, initializer_range=0.3, bos_token_id=1, eos_token_id=1, use_cache=False, **sizes)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()  # type: ignore[no-any-return]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_texts_in_a_pack_do_not_see_each_other(kind: str, attention: str) -> None:
    model, random = _model(kind, attention), np.random.default_rng(0)
    lengths = [[7, 12, 1], [5, 9]]  # the second row is shorter, so that there is padding too
    rows = [random.integers(2, 500, sum(row)).tolist() for row in lengths]
    batch = Packed(spec_for(Pretrain(), pad_to_multiple_of=8))(rows_of(rows, documents=lengths))

    @torch.no_grad()
    def error(**inputs: torch.Tensor) -> float:
        """Largest change of a logit by the pack, in standard deviations."""
        packed, worst, alone = model(**inputs).logits, 0.0, []
        for number, (row, documents) in enumerate(zip(rows, lengths, strict=True)):
            for stop, length in zip(np.cumsum(documents).tolist(), documents, strict=True):
                alone.append(model(input_ids=torch.tensor([row[stop - length : stop]])).logits[0])
                worst = max(worst, float((packed[number, stop - length : stop] - alone[-1]).abs().max()))
        return worst / float(torch.cat(alone).std())

    inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
    assert error(**inputs) < 1e-3
    assert (
        error(**inputs, attention_mask=torch.ones_like(batch["input_ids"])) > 1e-2
    )  # positive control: a mask of ones switches isolation off
    assert error(input_ids=batch["input_ids"]) > 1e-2  # and so do positions that run through


def test_collating_a_row_costs_no_python_where_transformers_collator_runs_hundreds_of_instructions() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0}, unk_token="[PAD]")), pad_token="[PAD]")
    random = np.random.default_rng(0)
    lists = [random.integers(1, 900, max(20, int(random.normal(211, 30)))).tolist() for _ in range(64)]
    ours, theirs = Dynamic(spec_for(Classify(), max_length=320)), DataCollatorWithPadding(tokenizer)

    def cost(count: int) -> tuple[int, int]:
        batch = rows_of(lists[:count], labels=[0] * count)
        features = [{"input_ids": ids, "labels": 0} for ids in lists[:count]]
        return bytecodes(lambda: ours(batch)), bytecodes(lambda: theirs(features))

    cost(2)  # what the first call imports
    (few, fewer_theirs), (many, theirs_many) = cost(8), cost(64)
    assert few == many
    assert theirs_many - fewer_theirs > 56 * 100  # 10,500 a row in transformers 5.23, 290 in 5.24
