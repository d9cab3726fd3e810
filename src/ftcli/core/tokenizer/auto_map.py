"""Python code that a folder of a tokenizer or model asks for, read from its JSON files without running any of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

FILES = ("tokenizer_config.json", "config.json", "processor_config.json")
MOST_BYTES = 64 << 20


def auto_maps(places: Sequence[Path]) -> list[tuple[Path, str, str]]:
    """Entries of "auto_map" as (file, class of transformers, class of the folder), of folders or JSON files. Files that cannot be read have none."""
    found = []
    for place in dict.fromkeys(places):
        for file in [place / name for name in FILES] if place.is_dir() else [place]:
            try:
                if not file.is_file() or file.stat().st_size > MOST_BYTES:
                    continue
                content = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):  # the check of the part itself says so
                continue
            entries = content.get("auto_map") if isinstance(content, dict) else None
            if isinstance(entries, (list, tuple, str)):  # written by transformers before 4.9
                entries = {"AutoTokenizer": entries}
            for kind, target in entries.items() if isinstance(entries, dict) else ():
                names = target if isinstance(target, (list, tuple)) else [target]
                found.append((file, str(kind), ", ".join(str(name) for name in names if name)))
    return found
