"""Batches by a budget of slots: every row once, as many batches in every epoch and on every rank, none over the budget."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcli.contracts import CollatorKind
from ftcli.core.batches.collate import Dynamic, Fixed
from ftcli.core.batches.slots import IDLE, TokenBatches, token_batches
from ftcli.core.batches.tasks import Classify
from ftcli.errors import SettingsError
from ftcli.settings import Settings, update
from stores import rows_of, spec_for
from timing import bytecodes

RNG = np.random.default_rng(0)
INCIDENT = np.clip(RNG.normal(211.5, 30, 20_000), 20, 287).astype(np.int64)
LONG_TAIL = np.clip(RNG.lognormal(np.log(120), 0.8, 60_000), 1, 1024).astype(np.int64)
ORDERS = ("random", "grouped", "sequential")


def made(widths: np.ndarray, budget: int, order: str = "grouped", ranks: int = 1, seed: int = 0) -> TokenBatches:
    return TokenBatches(np.asarray(widths, np.int64), budget, order=order, seed=seed, ranks=ranks)


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 200), st.sampled_from(ORDERS), st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_row_comes_once_in_as_many_batches_of_every_epoch(widths: list[int], budget: int, order: str, ranks: int, seed: int) -> None:
    batches = made(np.array(widths), budget, order, ranks, seed)
    assert len(batches) % ranks == 0
    for epoch in range(4):
        batches.set_epoch(epoch)
        found = list(batches)
        assert len(found) == len(batches)
        assert sorted(row for batch in found for row in batch if row != IDLE) == list(range(len(widths)))
        for batch in found:
            assert batch == [IDLE] or len(batch) * max(widths[row] for row in batch) <= budget
            assert IDLE not in batch or (len(batch) == 1 and len(widths) < len(found))


@pytest.mark.parametrize("order", ORDERS)
def test_seed_and_epoch_decide_and_nothing_else(order: str) -> None:
    one, two, other = made(LONG_TAIL, 4096, order), made(LONG_TAIL, 4096, order), made(LONG_TAIL, 4096, order, seed=1)
    two.set_epoch(5)
    _ = list(two)
    two.set_epoch(0)
    first = list(one)
    assert first == list(two)
    one.set_epoch(1)
    assert (first == list(one)) is (first == list(other)) is (order == "sequential")


def test_sequential_rows_stay_in_their_order() -> None:
    assert [row for batch in made(LONG_TAIL, 2048, "sequential") for row in batch] == list(range(len(LONG_TAIL)))


@pytest.mark.parametrize("lengths", [INCIDENT, LONG_TAIL], ids=["incident 1", "long tail"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_grouped_rows_leave_under_one_percent_empty_and_ranks_wait_for_nobody(lengths: np.ndarray, ranks: int) -> None:
    for budget in (2_048, 8_192, 32_768):
        _, slots = made(lengths, budget, ranks=ranks).slots()
        assert 1 - lengths.sum() / slots.sum() < 0.01
        together = slots.reshape(-1, ranks)
        assert 1 - slots.sum() / (together.max(axis=1).sum() * ranks) < 0.02
        assert slots.sum() > 0.9 * budget * len(slots), "batches are full"
        _, slots = made(lengths, budget, "random", ranks).slots()
        together = slots.reshape(-1, ranks)
        assert 1 - slots.sum() / (together.max(axis=1).sum() * ranks) < 0.02
    _, slots = made(lengths, 8_192, "random").slots()
    assert 1 - lengths.sum() / slots.sum() > 0.15, "the control"


def test_batches_of_a_grouped_epoch_are_not_sorted_and_hold_other_rows_in_the_next() -> None:
    batches = made(INCIDENT, 8_192)
    sizes, _ = batches.slots()
    assert abs(np.corrcoef(sizes[:-1], sizes[1:])[0, 1]) < 0.2
    first = {tuple(sorted(batch)) for batch in batches}
    batches.set_epoch(1)
    assert not first & {tuple(sorted(batch)) for batch in batches}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_accelerate_deals_them_whole_in_their_order_and_adds_none(order: str, ranks: int) -> None:
    for rows in (1, 5, 200):
        batches = made(LONG_TAIL[:rows], 1_100, order, ranks)
        shares = [BatchSamplerShard(batches, ranks, rank) for rank in range(ranks)]
        dealt = [list(share) for share in shares]
        assert {len(share) for share in shares} == {len(each) for each in dealt} == {len(batches) // ranks}
        assert [batch for together in zip(*dealt, strict=True) for batch in together] == list(batches)
        skipped = SkipBatchSampler(shares[-1], skip_batches=1)
        assert list(skipped) == dealt[-1][1:]


def test_an_order_that_never_fits_comes_with_the_batches_of_the_first_epoch_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = made(LONG_TAIL, 2_048, "random")
    first, draw = [tuple(batch) for batch in batches], TokenBatches._draw

    def unlucky(self: TokenBatches, epoch: int, attempt: int) -> Any:
        rows, ends = draw(self, epoch, attempt)
        return (rows, ends) if not epoch else (rows, np.arange(1, len(rows) + 1))

    monkeypatch.setattr(TokenBatches, "_draw", unlucky)
    batches.set_epoch(1)
    again = [tuple(batch) for batch in batches]
    assert set(again) == set(first)
    assert again != first, "in another order"


def test_a_row_over_the_budget_is_named_with_its_length_and_what_to_do() -> None:
    with pytest.raises(
        SettingsError, match=r"max_tokens_per_batch = 8 does not hold row 2 of train, which takes 13 tokens \(2 such rows\)"
    ) as error:
        made(np.array([3, 9, 13]), 8)
    assert error.value.hint == "Raise it to 13 at least, or prepare the data with --max-length 8."
    made(np.array([3, 9, 13]), 13)


@pytest.mark.parametrize(("collator", "multiple"), [("dynamic", 1), ("dynamic", 8), ("fixed", 1), ("fixed", 8)])
def test_a_batch_takes_the_slots_that_the_collator_makes_of_it(collator: str, multiple: int) -> None:
    texts = [[1] * (1 + number * 7 % 20) for number in range(50)]
    values = {"train.max_tokens_per_batch": 96, "loader.pad_to_multiple_of": multiple}
    kind = CollatorKind({"dynamic": Dynamic, "fixed": Fixed}[collator])
    lengths = np.array([len(text) for text in texts])
    batches = token_batches(update(Settings(), values), lengths, collator=collator, kind=kind, max_length=20, ranks=1)
    assert batches is not None
    make = kind.make(spec_for(Classify(), max_length=20, pad_to_multiple_of=multiple))
    _, slots = batches.slots()
    for batch, expected in zip(batches, slots.tolist(), strict=True):
        found = make(rows_of([texts[row] for row in batch], [0] * len(batch)))["input_ids"].numel()
        assert found == expected <= 96
    assert token_batches(Settings(), lengths, collator=collator, kind=kind, max_length=20, ranks=1) is None


def test_rows_cost_no_python_in_a_plan() -> None:
    lengths = np.full(40_000, 10, np.int64)
    few, many = made(lengths[:4_000], 1_000), made(lengths, 10_000)  # 40 batches each
    assert len(few) == len(many) == 40
    assert bytecodes(many.plan) == bytecodes(few.plan)


def test_a_plan_needs_no_torch() -> None:
    import subprocess

    code = "import sys, ftcli.core.batches.slots; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=False).returncode == 0
