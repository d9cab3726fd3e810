"""Variables of the environment that a process for work gets from whoever starts it."""

from __future__ import annotations

import os
from collections.abc import Mapping

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
KEEP_PAGES = "MIMALLOC_PURGE_DELAY"
"""Of pyarrow's allocator, read when pyarrow is loaded: after so many ms it gives back what is free, by default 10, so that every batch has its pages made
anew. Without: 317,000 page faults become 118,000 and 45.3 s of CPU 41.2 (7 million rows of parquet, other work beside); the peak of memory is the same."""


def of_child(threads: int | None) -> Mapping[str, str]:
    """Set from outside, because libraries read them when they are imported; what a user has set is kept.

    Args:
        threads: threads that its libraries compute with, or fewer where a variable says so already; None leaves those variables alone.
    """
    kept = {KEEP_PAGES: os.environ.get(KEEP_PAGES) or "-1"}
    if threads is None:
        return kept
    given = {name: os.environ.get(name, "").partition(",")[0].strip() for name in THREADS}
    return kept | {name: str(min(threads, int(value) if value.isdecimal() and int(value) else threads)) for name, value in given.items()}
