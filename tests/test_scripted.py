"""What runs as a program gives every bit of what it gives as it is written, and runs as that where torch has no programs."""

from __future__ import annotations

import pytest
import torch

from ftcli.core.models import blocked, lean_head, lean_layer, lean_vocabulary, scripted
from ftcli.core.models.lean_layer import LeanLayer, Shape

PARTS = {
    lean_layer: ("_before", "_after", "_after_back", "_before_back"),
    blocked: ("_attend", "_attend_back"),
    lean_head: ("_lost",),
    lean_vocabulary: ("_spread", "_gradient"),
}
FUNCTIONS = [getattr(module, name) for module, names in PARTS.items() for name in names]
Found = list[torch.Tensor]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: f"{function.__module__.rpartition('.')[2]}.{function.__name__}")
def test_every_part_is_a_program(function: object) -> None:
    written = function.__wrapped__  # type: ignore[attr-defined]
    assert isinstance(scripted._program(written), torch.jit.ScriptFunction)


def layer(*, kind: torch.dtype, norms: bool, biases: bool, width: int, zero: bool = False) -> Found:
    generator = torch.Generator().manual_seed(1)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    norm = weight(32)
    if zero:
        norm.data[3] = 0
    given = [norm, weight(32, 32), weight(16, 32), weight(16, 32)]
    given += [weight(32), weight(16), weight(16)] if biases else [None, None, None]  # type: ignore[list-item]
    given += [weight(8), weight(8)] if norms else [None, None]  # type: ignore[list-item]
    given += [weight(32, 32), weight(32), weight(48, 32), weight(48, 32), weight(32, 48)]
    x, angles = weight(3, width, 32), torch.randn(1, width, 8, generator=generator)
    shape = Shape(4, 2, 8, 8**-0.5, (1e-6,) * 4)
    result = LeanLayer.apply(kind, x, angles.cos(), angles.sin(), None, shape, *given)  # type: ignore[no-untyped-call]
    leaves = [x, *(each for each in given if each is not None)]
    return [result.detach(), *torch.autograd.grad(result, leaves, torch.randn(result.shape, generator=generator))]


def loss(kind: torch.dtype) -> Found:
    generator = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(rows, 16, generator=generator).requires_grad_() for rows in (70, 50))
    targets = torch.randint(0, 50, (70,), generator=generator)
    total = lean_head.LinearCrossEntropy.apply(hidden, weight, targets, torch.tensor(70.0), kind)  # type: ignore[no-untyped-call]
    return [total.detach(), *torch.autograd.grad(total, [hidden, weight])]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("norms", "biases", "width"), [(True, False, 150), (False, True, 64), (True, True, 3), (False, False, 65)])
def test_programs_give_every_bit(kind: torch.dtype, norms: bool, biases: bool, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> Found:
        return layer(kind=kind, norms=norms, biases=biases, width=width) + loss(kind)

    programs = found()
    for module, names in PARTS.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)
    for one, other in zip(programs, found(), strict=True):
        assert torch.equal(one, other)


def test_a_norm_with_a_zero_in_it_has_the_gradient_of_one_that_is_nearly_zero() -> None:
    with_zero = layer(kind=torch.float32, norms=True, biases=False, width=20, zero=True)
    assert all(torch.isfinite(each).all() for each in with_zero)
    assert with_zero[2][3] != 0


def test_a_torch_without_programs_runs_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: object) -> None:
        raise RuntimeError("torch.jit.script is not supported in Python 3.14+")

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    monkeypatch.setattr(torch.jit, "script", gone)
    assert scripted._program(double) is double
    assert scripted.scripted(double)(torch.tensor(3)) == 6
