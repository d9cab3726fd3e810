"""A batch in two halves side by side: the same loss and gradient as the whole batch's, in the same bits every time, or the whole batch."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ftcli.commands.train import run
from ftcli.core.batches.collate import Dynamic
from ftcli.core.batches.tasks import Classify, Pretrain
from ftcli.core.models.flops import multiplied
from ftcli.core.models.last_layer import logits_of
from ftcli.core.models.lean import lean
from ftcli.core.training import halves
from ftcli.core.training.halves import Halves, cut, differs, too_little, why_not
from runs import VOCABULARY, Bench, StopAt, weights
from stores import learnable, packed, rows_of, spec_for
from test_lean import TEXTS, arguments, batches_of, model_of
from test_resume import STEPS

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _whatever_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests have small batches."""
    monkeypatch.setattr(halves, "LEAST", 0)


def test_a_second_gradient_is_made_only_where_a_batch_has_work_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model = model_of("qwen3")
    weights = sum(weight.numel() for weight in model.parameters())
    enough = halves.LEAST * weights / multiplied(model)
    assert too_little(model, enough + 1) is None
    assert "a second gradient of " in str(too_little(model, enough - 1))
    model.resize_token_embeddings(5_000)
    assert too_little(model, enough + 1) is not None


def test_a_second_gradient_too_large_for_a_threads_heap_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("qwen3")
    largest = max(weight.numel() for weight in model.parameters())
    monkeypatch.setattr(halves, "HEAP", 4 * largest)
    assert too_little(model, 100) is None
    monkeypatch.setattr(halves, "HEAP", 4 * largest - 1)
    assert "does not stay in memory from step to step" in str(too_little(model, 100))
    next(weight for weight in model.parameters() if weight.numel() == largest).requires_grad = False
    assert too_little(model, 100) is None


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    threads, state, switch = torch.get_num_threads(), torch.get_rng_state(), sys.getswitchinterval()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)
    assert sys.getswitchinterval() == switch


@pytest.fixture
def pair() -> Iterator[tuple[nn.Linear, Halves]]:
    torch.manual_seed(0)
    model = nn.Linear(7, 3)
    made = Halves(model, 2)
    yield model, made
    made.close()


def _loss(model: nn.Module, rows: Tensor) -> Tensor:
    found: Tensor = model(rows).square().sum() / 3
    return found


def _first(model: nn.Module, rows: Tensor, seconds: float = 0.0) -> Tensor:
    time.sleep(seconds)
    loss = _loss(model, rows)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def test_the_gradient_of_the_second_half_is_added_last_whichever_ends_first(pair: tuple[nn.Linear, Halves]) -> None:
    model, made = pair
    parts = [torch.randn(5, 7) * 10.0**power for power in (0, 1, 2, 3)]
    found = []
    for slow in (0.0, 0.02):
        for quick in (0.02 - slow,):
            model.zero_grad()
            for first, second in (parts[:2], parts[2:]):  # two batches of a step

                def later(rows: Tensor = second, seconds: float = quick) -> Tensor:
                    time.sleep(seconds)
                    return _loss(model, rows)

                made.run(lambda rows=first, seconds=slow: _first(model, rows, seconds), later)  # type: ignore[misc]
            assert model.weight.grad is not None
            found.append(model.weight.grad.clone())
    model.zero_grad()
    for rows in parts:
        _first(model, rows)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], model.weight.grad)


def test_both_halves_have_their_threads_and_the_rest_has_all(pair: tuple[nn.Linear, Halves]) -> None:
    model, made = pair
    seen: list[tuple[str, int]] = []

    def look(half: Any, rows: Tensor) -> Tensor:
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return half(model, rows)  # type: ignore[no-any-return]

    rows = torch.randn(2, 7)
    loss = made.run(lambda: look(_first, rows[:1]), lambda: look(_loss, rows[1:]))
    assert float(loss) == pytest.approx(float(_loss(model, rows).detach()))
    assert not loss.requires_grad
    assert sorted(seen) == [("MainThread", 1), ("ftcli second half", 1)]
    assert torch.get_num_threads() == 2


def test_of_an_odd_number_of_threads_the_second_half_has_one_more() -> None:
    made, model, seen = Halves(nn.Linear(7, 3), 3), nn.Linear(7, 3), []
    try:

        def second(rows: Tensor) -> Tensor:
            loss = _loss(model, rows)
            seen.append(torch.get_num_threads())
            return loss

        made._weights = list(model.parameters())
        for _ in range(2):
            made.run(lambda: _first(model, torch.ones(1, 7)), lambda: second(torch.ones(1, 7)))
    finally:
        made.close()
        torch.set_num_threads(1)
    assert seen == [2, 2]


@pytest.mark.parametrize("who", ["first", "second"])
def test_what_a_half_raises_is_raised_when_both_have_ended(pair: tuple[nn.Linear, Halves], who: str) -> None:
    model, made = pair
    rows, ended = torch.randn(2, 7), threading.Event()

    def wrong() -> Tensor:
        raise MemoryError(who)

    def slow() -> Tensor:
        time.sleep(0.05)
        ended.set()
        return _loss(model, rows)

    first, second = (wrong, slow) if who == "first" else (lambda: (slow(), _first(model, rows))[1], wrong)
    with pytest.raises(MemoryError, match=who):
        made.run(first, second)
    assert ended.is_set()
    assert torch.get_num_threads() == 2
    made.run(lambda: _first(model, rows), lambda: _loss(model, rows))  # and goes on


def test_rows_are_cut_in_the_middle_or_where_half_of_the_tokens_is() -> None:
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
    batch = {"input_ids": mask.clone(), "attention_mask": mask, "labels": torch.arange(4), "tokens": 8}
    plain, even = cut(batch), cut(batch, by_tokens=True)
    assert plain is not None
    assert even is not None
    assert [len(part["labels"]) for part in (*plain, *even)] == [2, 2, 1, 3]
    assert torch.cat([part["labels"] for part in even]).tolist() == [0, 1, 2, 3]
    assert even[1]["tokens"] == 8
    assert cut({"input_ids": mask[:1]}) is None


@pytest.mark.parametrize("task", [Classify(), Pretrain()], ids=["classify", "pretrain"])
def test_two_threads_of_one_model_give_the_whole_batch_s_loss_and_gradient(tmp_path: Path, task: Any) -> None:
    model = model_of("qwen3", task)
    batch = Dynamic(spec_for(task))(rows_of([*TEXTS, *TEXTS, TEXTS[1]], [1, 4, 2, 0, 3, 1, 2] if task.needs_labels else None))
    loss = _loss_of(model, task)
    with lean(model, task, batches_of(task), arguments(tmp_path), wanted="auto") as said:
        assert "decoder layers on" in said
        assert why_not(model, arguments(tmp_path), 2) is None
        made = Halves(model, 2)
        assert differs(model, made, batch, loss, 1e-4) is None
        made.close()


def test_each_of_two_threads_pools_its_own_rows(tmp_path: Path) -> None:
    task = Classify()
    model = model_of("qwen3", task)
    parts = cut(Dynamic(spec_for(task))(rows_of([TEXTS[1], TEXTS[0], TEXTS[2], TEXTS[1]], [1, 4, 2, 0])))
    assert parts is not None
    with lean(model, task, batches_of(task), arguments(tmp_path), wanted="auto") as said:
        assert "last layer for pooled tokens only on" in said
        alone = [logits_of(model, part).detach() for part in parts]
        base: Any = model.base_model
        inside, below = threading.Barrier(2), base.forward

        def both(*args: Any, **more: Any) -> Any:
            inside.wait(10)
            return below(*args, **more)

        base.forward = both
        made = Halves(model, 2)
        found: list[Tensor] = []

        def half(part: Any) -> Tensor:
            given: Tensor = model(**{name: value for name, value in part.items() if name != "labels"})["logits"]
            found.append(given.detach())
            return given.sum()

        made.run(lambda: half(parts[0]).detach(), lambda: half(parts[1]))
        made.close()
        base.forward = below
    assert all(any(torch.allclose(one, other, atol=1e-6) for other in found) for one in alone)


def test_rows_that_see_each_other_are_told_and_computed_together(tmp_path: Path) -> None:
    class Together(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, input_ids: Tensor) -> Tensor:
            rows: Tensor = input_ids * self.weight
            return rows - rows.mean(0)

    model: Any = Together()
    batch = {"input_ids": torch.randn(2, 3), "labels": torch.tensor([0, 1])}
    made = Halves(model, 2)
    said = differs(model, made, batch, lambda rows, _: model(rows["input_ids"]).square().sum(), 1e-4)
    made.close()
    assert said is not None
    assert said.startswith("the gradient of weight differs by")


@pytest.mark.parametrize(("bf16", "limit"), [(False, 1e-4), (True, 0.1)])
def test_halves_are_taken_while_their_gradient_differs_by_no_more_than_rounding(
    bf16: bool, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reason in ("why_not", "too_little"):
        monkeypatch.setattr(halves, reason, lambda *_: None)
    batch = {"input_ids": torch.ones(2, 3), "labels": torch.tensor([0, 1])}
    for part, taken in ((0.9, True), (1.1, False)):
        model = nn.Linear(3, 1, bias=False)

        def loss(rows: Any, _: Any, model: nn.Linear = model, apart: float = 1 + part * limit) -> Tensor:
            total: Tensor = model(rows["input_ids"]).sum()
            return total if len(rows["input_ids"]) == 2 else total * apart

        made: list[Any] = []
        trainer: Any = SimpleNamespace(
            model=model, args=SimpleNamespace(device=torch.device("cpu"), bf16=bf16), compiled=None, loss_of=loss, use_halves=made.append
        )
        with halves.halves(trainer, batch, wanted="auto", tokens=6) as said:
            assert said is not None
            assert ("on, proved equal on this model" in said) is taken, said
            assert (made[-1] is not None) is taken
            assert taken or "the gradient of weight differs by" in said


def test_what_rules_it_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Classify()
    own = model_of("qwen3", task)
    assert why_not(own, arguments(tmp_path), 2) == "its decoder layers are customized"
    with lean(own, task, batches_of(task), arguments(tmp_path), wanted="auto"):
        assert why_not(own, arguments(tmp_path), 1) == "one thread computes"
        several: Any = SimpleNamespace(device=torch.device("cpu"), world_size=2)
        assert why_not(own, several, 2) == "every process has its own cores"
        assert why_not(own, arguments(tmp_path, neftune_noise_alpha=5), 2) == "NEFTune draws its numbers in one order"
        hooked = next(own.parameters()).register_post_accumulate_grad_hook(lambda _: None)
        assert why_not(own, arguments(tmp_path), 2) == "its optimizer works inside the backward pass"
        hooked.remove()
        own.config.rope_parameters = {**own.config.rope_parameters, "rope_type": "dynamic"}
        assert why_not(own, arguments(tmp_path), 2) == "dynamic positions change with the batch"
        own.config.rope_parameters = {**own.config.rope_parameters, "rope_type": "default"}
        monkeypatch.setattr(halves, "LARGEST", 1000)
        assert why_not(own, arguments(tmp_path), 2) == "it has more than 0 million weights, whose operations keep all cores busy"


def _loss_of(model: Any, task: Any) -> Any:
    def loss(rows: Any, items: Any) -> Tensor:
        given = model(**{name: value for name, value in rows.items() if name != "labels"})
        found: Tensor = task.loss(given["logits"], rows["labels"], items)
        return found

    return loss


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("bench"))
    made.store("texts", {"train": learnable(30, 3, VOCABULARY, 0)}, labels=3)
    made.store("packs", {"train": packed(30, 24, VOCABULARY, 0)}, max_length=24)
    return made


@pytest.mark.parametrize(("store", "collator", "accumulation"), [("texts", "bucketed", 1), ("texts", "packed", 3), ("packs", "packed", 1)])
def test_a_run_in_halves_goes_on_bitwise_and_learns_what_a_whole_one_does(
    bench: Bench, store: str, collator: str, accumulation: int
) -> None:
    name = f"{store} {collator} {accumulation}"
    more = {} if store == "texts" else {"train__mode": "pretrain"}
    values = {**STEPS, **more, "loader__collator": collator, "train__gradient_accumulation_steps": accumulation, "runtime__threads": 2}
    whole = bench.context(bench.folder / store, f"{name} in halves", **values)
    done = run(whole)
    assert any(note == "halves of a batch side by side on, proved equal on this model" for note in whole.notes), whole.notes
    stop = bench.context(bench.folder / store, f"{name} stopped", **values)
    stop.progress = StopAt(3)
    assert run(stop).metrics["steps"] == 3
    run(bench.context(bench.folder / store, f"{name} stopped", **values, train__resume_from_checkpoint="auto"))
    assert torch.equal(weights(bench.folder / f"{name} stopped"), weights(bench.folder / f"{name} in halves"))
    if not (collator == "packed" and store == "texts"):
        plain = run(bench.context(bench.folder / store, f"{name} plain", **values, train__lean_step="off"))
        assert done.metrics["final_loss"] == pytest.approx(plain.metrics["final_loss"], rel=1e-4)
        assert torch.allclose(weights(bench.folder / f"{name} plain"), weights(bench.folder / f"{name} in halves"), atol=1e-4)
