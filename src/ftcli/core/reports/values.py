"""Values of a report as they stand in tables of figures to look up."""

from __future__ import annotations

import json
from typing import Any

from ftcli.core.figures import number


def evidence(value: Any) -> str:
    """Nested values are JSON."""
    if isinstance(value, (list, dict)):
        flat = json.dumps(value, ensure_ascii=False)
        return flat if len(flat) < 100 else json.dumps(value, ensure_ascii=False, indent=1)
    return exact(value)


def exact(value: float | str | bool | None) -> str:
    """For looking up: ids and sizes stay bare digits, floats keep six."""
    return f"{value:.6g}" if isinstance(value, float) else number(value) if value is None or isinstance(value, bool) else str(value)
