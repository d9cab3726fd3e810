"""The tokenizer and the engine of a run, where earlier runs left what is needed of them; a worker loads the engine while the command imports the rest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ftcli.context import Context
from ftcli.contracts import Engine
from ftcli.core.engines.engine import proved_engine
from ftcli.core.engines.known_tokenizer import KnownTokenizer, recall
from ftcli.core.prepare.job import load_early
from ftcli.core.processes import warm_worker
from ftcli.core.reading.receipt import tokenizer_key
from ftcli.errors import FtcliError
from ftcli.records import MANIFEST_NAME

_begun: dict[str, KnownTokenizer] = {}
"""The tokenizer whose engine a worker loads already."""


def begin(context: Context) -> None:
    """Have the worker that waits load the engine that this run will probably take: first rows are there 0.1 s sooner.

    Whatever is wrong is left to the run to say, and one that would find its output made already begins nothing.
    """
    output = context.settings.dataset.output_dir
    if not warm_worker.waits() or (output is not None and (output / MANIFEST_NAME).exists()):
        return
    with suppress(FtcliError, OSError):
        key = tokenizer_key(context)
        known = _recalled(context, key)
        engine = known and probable_engine(context, known)
        if key and known and engine and getattr(engine, "single_threaded", False):  # another one would keep the threads it is loaded with
            plugins = context.plugins
            where = (plugins.plugins_dir, plugins.allow, plugins.describe())
            warm_worker.begin(partial(load_early, engine.name, known.backend, 1, *where))
            _begun[key] = known


def known_tokenizer(context: Context, load: Callable[[], Any] | None = None) -> KnownTokenizer | None:
    """The tokenizer of the run; None where it has to be loaded.

    Args:
        load: loads the tokenizer itself, for whoever needs its live backend; default: the plugins' hook.
    """
    key = tokenizer_key(context)
    if key in _begun:
        known = _begun.pop(key)
        known.load = load or known.load
        return known
    return _recalled(context, key, load)


def _recalled(context: Context, key: str | None, load: Callable[[], Any] | None = None) -> KnownTokenizer | None:
    if key is None:
        return None
    return recall(context.cache_dir, key, load or (lambda: context.plugins.load_tokenizer(context.settings)))


def probable_engine(context: Context, known: KnownTokenizer) -> Engine | None:
    """The engine that will be taken unless a row of the data speaks against it; None when that takes a proof first."""
    tokenizer = context.settings.tokenizer
    return proved_engine(known.backend, context.plugins, tokenizer.engine, context.cache_dir, tokenizer.add_special_tokens)
