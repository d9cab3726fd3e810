"""Text of ids, given only where it gives exactly these ids again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase


class Lossless:
    """Called with the ids of a text. Special tokens are part of the text, as they are written in it.

    `kept` and `lost` count texts that came back as the same ids, and those that did not.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer: Any = tokenizer
        self.kept = self.lost = 0

    def __call__(self, ids: NDArray[np.int32]) -> str | None:
        wanted = ids.tolist()
        text: str = self._tokenizer.decode(wanted, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] == wanted:
            self.kept += 1
            return text
        self.lost += 1
        return None
