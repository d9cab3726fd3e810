"""The state that torch and transformers keep for a whole process, while a command of ours runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers.utils import logging as transformers_logging


@contextmanager
def libraries(threads: int | None = None) -> Iterator[None]:
    """torch computes with `threads` (None: as it is), and transformers draws no bars of its own; both as before afterwards."""
    before, bars = torch.get_num_threads(), transformers_logging.is_progress_bar_enabled()
    if threads is not None:
        torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if bars:
            transformers_logging.enable_progress_bar()
