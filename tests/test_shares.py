"""Rows of a batch that several ranks share: each once, as many and as long on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import SequentialSampler

from ftcli.core.batches.batch import EpochSampler, LengthGroupedSampler, StoreDataset
from ftcli.core.batches.shares import Shares, deal
from ftcli.core.batches.slots import IDLE, TokenBatches
from ftcli.core.batches.tasks import Classify, count_targets
from ftcli.core.models.held_out import HeldOut
from ftcli.core.training import unused_weights
from ftcli.core.training.meter import TOKENS, Counted
from ftcli.core.training.run import Run, prepare
from runs import VOCABULARY, Bench
from stores import learnable

RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(1, 300, 500)


def batches(order: list[int], size: int, ranks: int) -> np.ndarray:
    """[batch, rank, place], as accelerate cuts an order."""
    return np.array(order).reshape(-1, ranks, size)


@pytest.mark.parametrize("rows", [1, 2, 5, 48, 49, 95, 500])
@pytest.mark.parametrize(("size", "ranks"), [(1, 2), (6, 2), (3, 4), (8, 3)])
def test_every_row_is_dealt_once_in_the_batch_where_it_would_be_without_ranks(rows: int, size: int, ranks: int) -> None:
    sampler = EpochSampler(rows, 7)
    shares = Shares(sampler, LENGTHS, size, ranks, drop_last=False)
    dealt = batches(list(shares), size, ranks)
    assert dealt.size == len(shares)
    plain = list(sampler)
    for number, batch in enumerate(dealt):
        unit = size * ranks
        assert sorted(batch[batch != IDLE]) == sorted(plain[number * unit : (number + 1) * unit])
        counts = (batch != IDLE).sum(axis=1)
        assert counts.max() - counts.min() <= 1


def test_the_ranks_of_a_batch_have_nearly_as_many_tokens() -> None:
    size, ranks = 16, 4
    sampler = EpochSampler(480, 7)
    dealt = batches(list(Shares(sampler, LENGTHS, size, ranks, drop_last=False)), size, ranks)[:-1]
    plain = batches(list(sampler)[: dealt.size], size, ranks)

    def imbalance(found: np.ndarray) -> float:
        tokens = LENGTHS[found].sum(axis=2)
        return float((tokens.max(axis=1) / tokens.mean(axis=1)).mean() - 1)

    assert imbalance(dealt) < 0.02, "a step lasts as long as its slowest rank"
    assert imbalance(plain) > 0.08, "the control: as accelerate deals"


def test_grouped_rows_stay_grouped() -> None:
    size, ranks = 8, 2
    sampler = LengthGroupedSampler(LENGTHS, size * ranks, 3)
    dealt = batches(list(Shares(sampler, LENGTHS, size, ranks, drop_last=False)), size, ranks)[:-1]
    widths = LENGTHS[dealt].max(axis=2)
    assert 1 - LENGTHS[dealt].sum() / (widths.sum() * size) < 0.06


def test_an_incomplete_batch_is_left_out_where_that_is_wanted() -> None:
    shares = Shares(SequentialSampler(range(50)), LENGTHS, 6, 2, drop_last=True)
    assert (len(shares), len(list(shares))) == (48, 48)
    assert IDLE not in list(shares)


def test_the_order_follows_the_epoch() -> None:
    shares = Shares(EpochSampler(40, 7), LENGTHS, 4, 2, drop_last=False)
    first = list(shares)
    shares.set_epoch(1)
    assert list(shares) != first
    Shares(SequentialSampler(range(4)), LENGTHS, 1, 2, drop_last=False).set_epoch(1)


def test_three_million_rows_are_dealt_without_a_loop_over_them() -> None:
    """Calls of Python, not seconds: as many for a hundred times the rows."""
    import gc
    import sys

    calls = []
    for rows in (4_800, 480_000):
        order, lengths = np.arange(rows), RNG.integers(1, 300, rows)
        count = [0]

        def counting(_frame: object, _event: str, _arg: object, count: list[int] = count) -> None:
            count[0] += 1

        gc.disable()  # hypothesis counts what garbage takes, by a function
        sys.setprofile(counting)
        deal(order, lengths, 8, 2)
        sys.setprofile(None)
        gc.enable()
        calls.append(count[0])
    assert calls[0] == calls[1]


class Split:
    """Rows that know their numbers."""

    def rows(self, indices: list[int]) -> object:
        from ftcli.core.storage.store import Ragged, Rows

        return Rows(np.array(indices), Ragged(np.zeros(0, np.int32), np.zeros(len(indices) + 1, np.int64)))


def test_a_rank_that_has_no_row_gets_one_that_teaches_nothing() -> None:
    dataset = StoreDataset(Split())  # type: ignore[arg-type]
    some = dataset.__getitems__([4, IDLE, 7, IDLE])
    assert (some.index.tolist(), some.idle) == ([4, 7], False)
    none = dataset.__getitems__([IDLE, IDLE])
    assert (len(none), none.idle) == (1, True)


# -- the law: a step's loss and gradient are those of one process -------------------------------------------------------


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def stores(bench: Bench) -> dict[str, Path]:
    """37 rows: three batches of 12, and one row that is a batch of its own. Some rows of the texts have no target at all."""
    texts = [([10 + (number * 7 + place) % 300 for place in range(1 + number % 17)], None) for number in range(37)]
    return {
        "classify": bench.store("classify", {"train": learnable(37, 3, VOCABULARY, 0)}, labels=3),
        "pretrain": bench.store("pretrain", {"train": texts}),
    }


def step(run: Run, shares: Sequence[list[int]]) -> tuple[float, torch.Tensor]:
    """Loss and gradient of one step as processes and accumulation make it: each share of the rows on its own, then summed."""
    dataset, collator = StoreDataset(run.train), Counted(run.collator)
    parameters = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
    batches = [collator(dataset.__getitems__(share)) for share in shares]
    items = sum(int(count_targets(batch["labels"])) for batch in batches)
    losses = []
    for batch in batches:
        batch.pop(TOKENS)
        labels = batch.pop("labels")
        losses.append(run.task.loss(run.model(**batch)["logits"], labels, items))
    loss = torch.stack(losses).sum()
    gradient = torch.autograd.grad(loss, parameters)
    return float(loss.detach()), torch.cat([each.flatten() for each in gradient])


def steps(run: Run, ranks: int) -> list[tuple[float, torch.Tensor]]:
    """Every step of an epoch with 12 rows a step, as `ranks` processes make them."""
    size = 12 // ranks
    order: list[int] = list(SequentialSampler(StoreDataset(run.train)))
    if ranks > 1:
        order = list(Shares(SequentialSampler(StoreDataset(run.train)), run.train.lengths, size, ranks, drop_last=False))
    starts = range(0, len(order), 12)
    return [step(run, [order[start + rank * size : start + (rank + 1) * size] for rank in range(ranks)]) for start in starts]


@pytest.mark.parametrize("task", ["classify", "pretrain"])
def test_every_step_has_the_loss_and_gradient_of_one_process_also_the_last_uneven_one(
    bench: Bench, stores: dict[str, Path], task: str
) -> None:
    run = prepare(bench.context(stores[task], f"law {task}", loader__collator="dynamic"))
    one = steps(run, 1)
    assert len(one) == 4
    for ranks in (2, 4):
        for (loss, gradient), (other_loss, other) in zip(one, steps(run, ranks), strict=True):
            assert other_loss == pytest.approx(loss, rel=1e-5)
            assert (other - gradient).norm() <= 1e-4 * gradient.norm()


@pytest.mark.parametrize("task", ["classify", "pretrain"])
@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 2), (2, 1), (2, 3), (4, 1)])
def test_a_step_by_tokens_has_the_loss_and_gradient_of_its_rows_in_one_batch(
    bench: Bench, stores: dict[str, Path], task: str, ranks: int, accumulation: int
) -> None:
    run = prepare(bench.context(stores[task], f"law {task}", loader__collator="dynamic"))
    batches = list(TokenBatches(run.train.lengths, 72, order="random", seed=1, ranks=ranks))
    together = ranks * accumulation
    assert len({len(batch) for batch in batches}) > 2
    for start in range(0, len(batches), together):
        shares = batches[start : start + together]
        loss, gradient = step(run, [[row for share in shares for row in share]])
        other_loss, other = step(run, shares)
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert (other - gradient).norm() <= 1e-4 * gradient.norm()


def test_a_rank_without_rows_has_its_part_in_the_figures_of_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `agree.summed` does over ranks, here by hand: the rank without a batch has None to give, and gets the sum all the same."""
    has, none = HeldOut(Classify()), HeldOut(Classify())
    has.add(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]))
    sums = iter([has._sums, has._classes, has._flags, has._rows, has._numbers])
    there = has.metrics(lambda tensor: tensor)
    assert none.metrics(lambda tensor: next(sums) if tensor is None else tensor) == there
    assert there["accuracy"] == 0.5
    assert none.metrics(lambda tensor: tensor) == {}


# -- what DistributedDataParallel need not look for ---------------------------------------------------------------------


def test_unused_weights_are_looked_for_only_where_there_are_some(bench: Bench, stores: dict[str, Path]) -> None:
    run = prepare(bench.context(stores["classify"], "unused"))
    batch = run.collator(run.train.rows([0, 1]))
    state = torch.get_rng_state()
    assert unused_weights.without_gradient(run.model, run.task, batch) == []
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in run.model.parameters())
    assert unused_weights.settle(run.arguments, run.model, run.task, batch) is None, "one process has nobody to wait for"

    run.model.spare = nn.Linear(2, 2)
    assert unused_weights.without_gradient(run.model, run.task, batch) == ["spare.weight", "spare.bias"]


class Several:
    """TrainingArguments of a job."""

    world_size = 2
    ddp_find_unused_parameters: bool | None = None
    fsdp = deepspeed = None
    activation_checkpointing = False


def test_the_search_for_unused_weights_is_turned_off_by_proof_or_kept(bench: Bench, stores: dict[str, Path]) -> None:
    run = prepare(bench.context(stores["classify"], "settled"))
    batch = run.collator(run.train.rows([0, 1]))
    arguments = Several()
    said = unused_weights.settle(arguments, run.model, run.task, batch)  # type: ignore[arg-type]
    assert arguments.ddp_find_unused_parameters is False
    assert said is not None
    assert "every weight" in said

    arguments, run.model.spare = Several(), nn.Linear(2, 2)
    said = unused_weights.settle(arguments, run.model, run.task, batch)  # type: ignore[arg-type]
    assert arguments.ddp_find_unused_parameters is None
    assert said is not None
    assert "spare.weight gets no gradient (2 weights)" in said

    run.model.config.num_experts = 8
    assert unused_weights.settle(Several(), run.model, run.task, batch) is None, "another batch may use other experts"  # type: ignore[arg-type]
