"""How long a text a tokenizer says it may be."""

from __future__ import annotations

from typing import Any

from ftcli.errors import TokenizerError

NO_LIMIT = 10**9
"""transformers says 10³⁰ where a tokenizer names no limit."""


def length_limit(tokenizer: Any) -> int:
    """`model_max_length` in tokens; NO_LIMIT where it names none: nothing, 0, or -1 as some folders have it.

    Raises:
        TokenizerError: it is no number.
    """
    named = getattr(tokenizer, "model_max_length", None)
    if named is None:
        return NO_LIMIT
    if isinstance(named, bool) or not isinstance(named, (int, float)):
        raise TokenizerError(
            f"model_max_length in tokenizer_config.json is {named!r} and no number", "Write the number of tokens that the model takes: 512."
        )
    return int(min(named, NO_LIMIT)) if named >= 1 else NO_LIMIT
