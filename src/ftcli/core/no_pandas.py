"""pyarrow without pandas: it imports pandas (0.3 s of every process) the first time it converts anything, only to ask what the object is."""

from __future__ import annotations

import sys

import pyarrow as pa

from ftcli.core import child
from ftcli.pluginmanager import Plugins


def without_pandas(plugins: Plugins) -> None:
    """Let pyarrow believe, in this worker process, that there is no pandas; not where a plugin of others may want `to_pandas`.

    The process of a command may be somebody's Python program, whose pyarrow is left alone.
    """
    if not child.serving or "pandas" in sys.modules or any(info.origin != "built-in" for info in plugins.describe()):
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        pa.array([0])  # asks once, and never again
    finally:
        del sys.modules["pandas"]
