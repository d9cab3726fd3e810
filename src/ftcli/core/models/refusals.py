"""Errors of a model's own code, which its configuration or its weights cause."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ftcli.errors import FtcliError, ModelError

MODELS = ("transformers/models/", "transformers/modeling_layers.py", "transformers/integrations/", "transformers_modules/")
"""Where code of models lies: transformers' own, its heads, the attention that it calls, and what came with weights."""
TORCH = Path(torch.__file__).parent
"""What models call: an error that arises there is the caller's."""
WORDS = ("out of memory", "not enough memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""How torch says it where it raises a plain RuntimeError: CPU allocators, libraries of a device."""


def ran_out(error: BaseException) -> bool:
    """Whether an error means too little memory."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in WORDS)
    )


@contextmanager
def of_the_model(model: Any, what: str) -> Iterator[None]:
    """Inside, an error that arose in the model's own code says that the model cannot do `what`; memory that ran out, and all else, stays what it is.

    Raises:
        ModelError: names the error and its line.
    """
    try:
        yield
    except FtcliError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = next((frame for frame in reversed(frames) if not Path(frame.filename).is_relative_to(TORCH)), frames[-1])
        if ran_out(error) or not any(folder in Path(last.filename).as_posix() for folder in MODELS):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelError(
            f"{type(model).__name__} cannot {what}: {reason} ({Path(last.filename).name}, line {last.lineno})",
            "Check the configuration: incompatible sizes only show when the model runs.",
        ) from error
