"""Functions whose operations run one after the other without Python between them.

Two threads that compute share one interpreter: each operation is begun and ended by whichever thread has it, and the other one waits, which in a virtual
machine puts a core to sleep and wakes it. A TorchScript program has the interpreter given up until its last operation is done. Measured, forward and
backward of 4 layers of 256 for 4 rows of 256 tokens in bfloat16, milliseconds of one thread alone and of two at a time on 2 cores: 104 and 112 by Python,
91 and 91 so, every bit the same. torch calls these programs deprecated and has no other way without a compiler; where it has none any more the
functions run as they are written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def scripted(function: Callable[P, R]) -> Callable[P, R]:
    """The function as a program that is made at its first call; what it calls is part of it, and must not be wrapped itself."""
    made: list[Callable[P, R]] = []

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not made:
            made.append(_program(function))
        return made[0](*args, **kwargs)

    return run


def _program(function: Callable[P, R]) -> Callable[P, R]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            program: Callable[P, R] = torch.jit.script(function)
    except Exception:  # noqa: BLE001 - whatever a torch without such programs raises: the function gives the same
        return function
    return program
