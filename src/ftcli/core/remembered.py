"""Answers that depend on a tokenizer's folder and the libraries alone, kept from run to run."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ftcli.context import Context
from ftcli.core.durable import put
from ftcli.core.manifest import seal, unseal
from ftcli.core.receipt import tokenizer_key
from ftcli.errors import PublishError


def remembered(context: Context, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `compute` gives, or gave an earlier run on the same tokenizer, code and libraries. A cache that cannot be used costs time only.

    Args:
        name: of the answer.
        compute: gives what JSON can hold.
    """
    key = tokenizer_key(context)
    if key is None:
        return compute()
    path = context.cache_dir / f"{name}-{key}.json"
    with suppress(OSError, ValueError):
        return unseal(path.read_bytes())
    answer = compute()
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        context.cache_dir.mkdir(parents=True, exist_ok=True)
        put(seal(answer), temporary, path)
    except (OSError, PublishError):
        with suppress(OSError):
            temporary.unlink()
    return answer
