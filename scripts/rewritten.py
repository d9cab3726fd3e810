"""The asserts of the tests, rewritten and kept as pytest keeps them, by all cores and once.

From a clean checkout every worker of the suite would rewrite all of them (8 s of CPU each), and where PYTHONDONTWRITEBYTECODE is set, in
every run. It is no more than a cache: pytest checks what it finds, and rewrites what is missing itself.
"""

from __future__ import annotations

import os
from multiprocessing import get_context
from pathlib import Path

from _pytest.assertion import install_importhook, rewrite
from _pytest.config import get_config


def keep(path: Path) -> None:
    """Rewrite one module, unless it is there as it is now."""
    folder = rewrite.get_cache_dir(path)
    kept = folder / f"{path.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(path, kept) is None:
        found, code = rewrite._rewrite_test(path, CONFIG)
        folder.mkdir(exist_ok=True)
        rewrite._write_pyc(CONFIG.stash[rewrite.assertstate_key], code, found, kept)


if __name__ == "__main__":
    CONFIG = get_config([])
    install_importhook(CONFIG)
    files = sorted(Path("tests").resolve().glob("test_*.py"), key=lambda path: -path.stat().st_size)
    with get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        pool.map(keep, files, chunksize=1)
