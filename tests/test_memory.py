"""Too little memory: it is recognised, answered with numbers, and a step in pieces is the same step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftcli.core.models.refusals import ran_out
from ftcli.core.training import memory


@pytest.mark.parametrize(
    ("error", "means"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_too_little_memory_is_recognised(error: Exception, means: bool) -> None:
    assert ran_out(error) is means


@pytest.mark.parametrize(
    ("batch", "accumulation", "words"),
    [
        (8, 2, "--per-device-train-batch-size 4 --gradient-accumulation-steps 4"),
        (9, 1, "--per-device-train-batch-size 3 --gradient-accumulation-steps 3"),
        (7, 3, "--per-device-train-batch-size 1 --gradient-accumulation-steps 21"),
        (1, 3, "The batch is already one row"),
    ],
)
def test_the_advice_keeps_the_batch_of_a_step_exactly(batch: int, accumulation: int, words: str) -> None:
    arguments: Any = SimpleNamespace(
        per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation, per_device_eval_batch_size=64
    )
    error = memory.advice(arguments, MemoryError("no more"), (batch, 512), evaluating=False)
    assert words in error.hint
    assert (
        f"a batch of {batch} rows ({batch} × 512 = {batch * 512:,} slots) does not fit into the device's memory: no more" in error.message
    )
    assert "--per-device-eval-batch-size 32" in memory.advice(arguments, MemoryError(), None, evaluating=True).hint


class Step:
    """Sums rows; holds at most `rows` of them at a time. The gradient is what is left in `gradient`."""

    def __init__(self, rows: int) -> None:
        self.rows, self.gradient, self.calls = rows, torch.zeros(3), []

    def __call__(self, piece: dict[str, Any]) -> torch.Tensor:
        ids = piece["input_ids"]
        self.calls.append(len(ids))
        self.gradient += ids[0] * piece["scale"] * torch.rand(1)  # what a failed attempt leaves behind
        if len(ids) > self.rows:
            raise torch.OutOfMemoryError("out of memory")
        self.gradient += (ids[1:].sum(0) + ids[0]) * piece["scale"] - ids[0] * piece["scale"]
        return ids.sum()

    def clear(self) -> None:
        self.gradient.zero_()


def _batch(rows: int, first: int = 0) -> dict[str, Any]:
    return {"input_ids": torch.arange(first, first + rows * 3).reshape(rows, 3).float(), "scale": 1}


def test_the_rows_halve_until_they_fit_and_the_step_begins_anew() -> None:
    notes: list[str] = []
    pieces, step = memory.Pieces(notes.append), Step(3)
    pieces.begin()
    small, large = _batch(3), _batch(8, 100)
    torch.manual_seed(0)
    pieces.begin()
    assert pieces.run(step, step.clear, small, 5) == small["input_ids"].sum()
    assert pieces.run(step, step.clear, large, 5) == large["input_ids"].sum()
    assert step.calls == [3, 8, *(3,), 4, *(2, 1), 2, 2, 2, 2]
    assert pieces.most == 2
    assert "step 5: memory does not hold 8 rows × 3 tokens; from here on a batch is computed 4 rows at a time" in notes[0]
    assert "2 rows at a time" in notes[1]
    after = step.gradient.clone()
    torch.manual_seed(0)
    step.clear()
    for part in (small["input_ids"][:2], small["input_ids"][2:], *large["input_ids"].split(2)):
        step({"input_ids": part, "scale": 1})
    assert torch.equal(step.gradient, after)  # as if it had been cut so from the step's beginning, with the same random numbers


def test_one_row_that_is_too_much_ends_the_run() -> None:
    pieces, step = memory.Pieces(lambda _: None), Step(0)
    pieces.begin()
    with pytest.raises(torch.OutOfMemoryError):
        pieces.run(step, step.clear, _batch(2), 1)
    with pytest.raises(ValueError, match="something else"):
        pieces.run(_other, step.clear, _batch(2), 1)


def _other(_: dict[str, Any]) -> torch.Tensor:
    raise ValueError("something else")
