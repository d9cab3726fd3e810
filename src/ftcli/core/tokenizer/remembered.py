"""Answers that depend on a tokenizer's folder and the libraries alone, kept from run to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftcli.context import Context
from ftcli.core.files.cached_document import kept
from ftcli.core.reading.receipt import tokenizer_key


def remembered(context: Context, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `compute` gives, or gave an earlier run on the same tokenizer, code and libraries. A cache that cannot be used costs time only.

    Args:
        name: of the answer.
        compute: gives what JSON can hold.
    """
    key = tokenizer_key(context)
    return compute() if key is None else kept(context.cache_dir / f"{name}-{key}.json", compute)
