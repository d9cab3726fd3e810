"""How a benchmark ends: the machine's load, its table, its file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def end(document: dict[str, Any], markdown: Callable[[Mapping[str, Any]], str], file: Path | None) -> None:
    """Note the load average, print the table, and write all that was measured to `file`, if one is named."""
    document["load_average_after"] = os.getloadavg()[0]
    print(markdown(document))
    if file is not None:
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
