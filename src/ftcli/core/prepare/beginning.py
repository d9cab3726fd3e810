"""The first rows of a plan, read once for all who look at them before the work begins: the proofs of template and engine, and the estimate of the output.

Of conversations the first block alone is 0.2 s of Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from ftcli.context import Context
from ftcli.core.reading.read import Plan, read_shard
from ftcli.records import Piece

BATCHES = 4
"""Of the first shard, at most."""
Read = tuple[Piece, pa.RecordBatch]


@dataclass(slots=True)
class _Kept:
    """What was read of one shard, and the reader of the rest."""

    of: tuple[object, ...]
    reader: Iterator[Read]
    batches: list[Read] = field(default_factory=list)


_kept: list[_Kept] = []
"""None or one."""


def first_batches(context: Context, plan: Plan) -> Iterator[Read]:
    """The first batches of the plan's first shard, as `read_shard` gives them; read as they are asked for, and kept until `forget`.

    Raises:
        DataError: a row of them is bad, in strict mode; a damaged file.
    """
    for shard in plan.shards[:1]:
        of = (shard, plan.columns, context.settings)
        if not _kept or any(one is not other for one, other in zip(_kept[0].of, of, strict=True)):
            forget()
            _kept.append(_Kept(of, read_shard(*of, context.plugins.registry("source"))))
        kept = _kept[0]
        for place in range(BATCHES):
            if place == len(kept.batches):
                try:
                    kept.batches.append(next(kept.reader))
                except StopIteration:
                    return
                except BaseException:
                    forget()  # whoever asks again is told again
                    raise
            yield kept.batches[place]


def forget() -> None:
    """Free the memory."""
    _kept.clear()
