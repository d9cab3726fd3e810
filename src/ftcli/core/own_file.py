"""A folder's own tokenizer.json against the tokenizer that AutoTokenizer makes of the folder, which may be another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ftcli.core.adversarial import WORDS, mixed
from ftcli.core.guard import guarded
from ftcli.core.proof import Difference, differing_rows, to_array
from ftcli.core.reference import BackendEncoder, row_of

PARTS = ("normalizer", "pre_tokenizer", "model", "post_processor", "added_tokens")


def compare_own_file(tokenizer: Any, path: Path) -> tuple[list[str], Difference | None]:
    """The parts that the file words otherwise, and the shortest text of some 4,000 that gets other ids (special tokens included).

    Args:
        tokenizer: a fast tokenizer that was loaded from the file's folder.
        path: tokenizer.json.

    Raises:
        EngineError: `tokenizers` cannot load the file.
    """
    with guarded(f"{path} cannot be loaded by tokenizers"):
        own: Any = Tokenizer.from_file(str(path))
    live: Any = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    for backend in (own, live):
        backend.no_truncation()
        backend.no_padding()
    one, other = (json.loads(backend.to_str()) for backend in (own, live))
    parts = [part for part in PARTS if one[part] != other[part]]
    if not parts:
        return [], None
    texts = [*WORDS, *mixed(sorted(tokenizer.get_added_vocab()))]
    by_file, by_class = (BackendEncoder(backend, 1, add_special_tokens=True).encode(to_array(texts)) for backend in (own, live))
    wrong = differing_rows(by_class, by_file).tolist()
    if not wrong:
        return parts, None
    shortest = min(wrong, key=lambda number: len(texts[number]))
    return parts, Difference(texts[shortest], *(tuple(row_of(side, shortest).tolist()) for side in (by_class, by_file)))
