"""The store as a dataset, and the order in which its rows are read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ftcli.core.batches.batch import EpochSampler, LengthGroupedSampler, StoreDataset, eval_batches
from ftcli.core.batches.collate import Dynamic
from ftcli.core.batches.order import padded
from ftcli.core.batches.tasks import Classify
from ftcli.core.training.loading import Loading
from ftcli.core.training.meter import Counted, Meter
from stores import spec_for, split_of, write_store
from timing import bytecodes


def incident_lengths(rows: int) -> np.ndarray:
    """Lengths like incident 1's: 211 tokens on average, at most 287."""
    return np.clip(np.random.default_rng(0).normal(211.5, 30, rows), 20, 287).astype(np.int64)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gets_whole_batches_from_the_store(tmp_path: Path, workers: int) -> None:
    rows = [([number] * (1 + number % 5), number) for number in range(23)]
    dataset = StoreDataset(split_of(tmp_path, rows))
    loader = DataLoader(
        dataset,
        batch_size=4,
        sampler=EpochSampler(23, 0),
        collate_fn=Counted(Dynamic(spec_for(Classify()))),
        num_workers=workers,  # type: ignore[arg-type]
    )
    meter, seen = Meter(), []
    for batch in loader:
        meter.count(batch)
        assert batch.pop("texts").tolist() == batch["attention_mask"].sum(1).tolist()
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        seen += batch["labels"].tolist()
        assert batch["input_ids"][:, 0].tolist() == batch["labels"].tolist()
    assert sorted(seen) == list(range(23))
    assert meter.tokens == sum(len(ids) for ids, _ in rows)
    assert len(dataset[3]) == 1


@given(st.integers(0, 300), st.integers(1, 9), st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_row_comes_once_in_an_order_that_seed_and_epoch_decide(rows: int, unit: int, seed: int, epoch: int) -> None:
    lengths = np.random.default_rng(rows).integers(1, 50, rows)
    for make in (lambda: EpochSampler(rows, seed), lambda: LengthGroupedSampler(lengths, unit, seed)):
        one, two = make(), make()
        one.set_epoch(epoch)
        two.set_epoch(epoch)
        order = list(one)
        assert sorted(order) == list(range(rows))
        assert order == list(two) == list(one)
        if rows > 20:
            one.set_epoch(epoch + 1)
            assert list(one) != order


def test_grouping_by_length_leaves_under_one_percent_empty_where_chance_leaves_a_sixth() -> None:
    lengths = incident_lengths(60_000)
    for size in (8, 32):
        assert padded(lengths[LengthGroupedSampler(lengths, size, 0).order()], size) < 0.01
        assert padded(lengths[EpochSampler(len(lengths), 0).order()], size) > 0.13


def test_batches_of_a_grouped_epoch_are_not_sorted() -> None:
    lengths = incident_lengths(10_000)
    longest = lengths[LengthGroupedSampler(lengths, 10, 0).order()].reshape(-1, 10).max(axis=1)
    assert abs(np.corrcoef(longest[:-1], longest[1:])[0, 1]) < 0.1


def test_rows_are_grouped_without_a_loop_over_them() -> None:
    few, many = (LengthGroupedSampler(incident_lengths(count), 32, 0) for count in (10_000, 100_000))
    assert len(many.order()) == 100_000
    assert bytecodes(many.order) <= 2 * bytecodes(few.order) < 2_000  # 183 measured, also for 3,000,000 rows


@given(st.lists(st.integers(1, 30), max_size=80), st.integers(1, 7), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_an_evaluation_reads_every_row_once_over_all_ranks(lengths: list[int], size: int, world: int) -> None:
    shares = [eval_batches(np.array(lengths, np.int64), size, rank, world) for rank in range(world)]
    assert sorted(row for share in shares for batch in share for row in batch) == list(range(len(lengths)))
    assert all(0 < len(batch) <= size for share in shares for batch in share)


def test_padding_of_fewer_rows_than_a_batch_is_unknown_and_counts_as_none() -> None:
    assert padded(np.array([3]), 2) == 0


def test_a_batch_costs_few_python_instructions_a_row_and_none_a_token(tmp_path: Path) -> None:
    collate = Dynamic(spec_for(Classify()))

    def instructions(rows: int, tokens: int, shards: int) -> int:
        texts = [([1 + number % 50] * (tokens - number % 2), number) for number in range(rows)]
        folder = tmp_path / f"{rows}-{tokens}-{shards}"
        store = write_store(folder, {"train": texts}, label_names=["a"], max_length=512, shards=shards)
        dataset, wanted = StoreDataset(store.split("train")), list(range(rows))
        collate(dataset.__getitems__(wanted))  # what is computed once
        return bytecodes(lambda: collate(dataset.__getitems__(wanted)))

    for shards in (1, 4):
        few = instructions(8, 20, shards)
        assert few < 1_000, few
        assert instructions(8, 300, shards) == few
        assert instructions(40, 20, shards) - few <= 32 * 30  # 11 and 16 a row measured


def test_rows_of_several_files_and_record_batches_come_whole_and_in_the_order_asked_for(tmp_path: Path) -> None:
    texts = [([number] * (number % 4), number) for number in range(30)]
    split = write_store(tmp_path / "store", {"train": texts}, label_names=["a"], shards=3).split("train")
    wanted = [29, 0, 11, 11, 4, 20]
    rows = split.rows(wanted)
    assert [rows.input_ids.row(place).tolist() for place in range(len(wanted))] == [texts[number][0] for number in wanted]
    assert rows.input_ids.offsets.dtype == np.int64
    for beyond in ([30], [-1], [3, 99]):
        with pytest.raises(IndexError, match="30 rows"):
            split.rows(beyond)
    assert len(split.rows([])) == 0


def test_a_divided_model_has_as_many_batches_on_every_rank() -> None:
    lengths = np.array([3, 1, 4, 1, 5], np.int64)
    for divided, counts in ((False, [3, 2]), (True, [3, 3])):
        found = []
        for rank in range(2):
            arguments = SimpleNamespace(
                eval_batch_size=1, world_size=2, process_index=rank, dataloader_num_workers=0, dataloader_pin_memory=False
            )
            given = Loading.__new__(Loading)
            given.args, given.collator, given.is_fsdp_enabled, given.is_deepspeed_enabled = arguments, list, divided, False
            split = SimpleNamespace(lengths=lengths)
            data = type("Data", (), {"split": split, "__len__": lambda _: 5, "__getitem__": lambda _, row: row})()
            batches = [list(batch) for batch in given.get_eval_dataloader(data)]
            assert given._own_batches == [3, 2][rank]
            found.append(batches)
        assert [len(batches) for batches in found] == counts
        own = [row for batches, count in zip(found, [3, 2], strict=True) for batch in batches[:count] for row in batch]
        assert sorted(own) == [0, 1, 2, 3, 4]
