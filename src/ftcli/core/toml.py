"""Values as TOML writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml(value: Any) -> str:
    """Text, numbers, truths and lists of them are the same in JSON; a table stands on one line. None has no form.

    >>> toml({"a": [1, "b"], "c": True})
    '{ "a" = [1, "b"], "c" = true }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml(str(key))} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    assert value is not None
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
