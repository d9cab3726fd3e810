"""What an executor gives for shards, counted: one of a plugin may lose a shard, and its rows with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ftcli.context import Context
from ftcli.contracts import Executor
from ftcli.errors import PluginError
from ftcli.pluginfaults import named
from ftcli.records import ShardPlan


def results(context: Context, found: Iterable[Any], shards: Sequence[ShardPlan], form: type) -> Iterator[Any]:
    """The results of `Executor.run`, as they come.

    Args:
        form: the type of each.

    Raises:
        PluginError: results are missing, are too many, or are none of the function's; names the executor and its plugin.
    """
    if not isinstance(found, Iterable):
        _refuse(context, f"breaks: run returned {type(found).__name__}")
    given = 0
    for given, result in enumerate(found, start=1):
        if not isinstance(result, form):
            _refuse(context, f"gave {type(result).__name__} for a shard")
        if given <= len(shards):
            yield result
    if given != len(shards):
        _refuse(context, f"gave {given:,} of {len(shards):,} results")


@contextmanager
def ended(context: Context, executor: Executor) -> Iterator[None]:
    """Close it behind the block. Where the block failed, that is what the user is told, and a `close` that breaks as well is a note.

    Raises:
        PluginError: `close` of a plugin's executor raised; names both.
    """
    name = context.settings.runtime.executor
    closed = named(f"executor {name}", context.plugins.outsider("executor", name), "ftcli.contracts.Executor: close ends the workers.")
    try:
        yield
    except BaseException:
        try:
            with closed:
                executor.close()
        except PluginError as error:
            context.note(error.message)
        raise
    with closed:
        executor.close()


def _refuse(context: Context, words: str) -> NoReturn:
    name = context.settings.runtime.executor
    owner = context.plugins.outsider("executor", name)
    assert owner is not None, words
    raise PluginError(
        f"the executor {name} of plugin {owner!r} {words}",
        "ftcli.contracts.Executor: run yields function(shard), unchanged and once for every shard.",
    )
