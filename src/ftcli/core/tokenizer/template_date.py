"""The day that a chat template writes into every conversation, where it asks for today's: settled once a run, the same in every process.

Llama 3's templates call `strftime_now`, which transformers answers with the clock of the process. So rows would depend on the day, the hour
and the time zone of whoever made them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from typing import Any

from ftcli.errors import TokenizerError

ASKS = re.compile(r"\bstrftime_now\b")
ISO = "{{ strftime_now('%Y-%m-%d') }}"


def asking(tokenizer: Any, *more: str | None) -> tuple[str, ...]:
    """Templates of a tokenizer (it may have one for tools beside the other) and `more` that ask for the day."""
    own = getattr(tokenizer, "chat_template", None)
    texts = own.values() if isinstance(own, dict) else [own]
    return tuple(sorted({text for text in (*texts, *more) if isinstance(text, str) and ASKS.search(text)}))


def write(templates: Collection[str], day: str) -> None:
    """Have transformers render these templates with this day's midnight for the time in this process, whatever the clock says.

    Raises:
        TokenizerError: the installed transformers cannot be told.
    """
    from transformers.utils import chat_template_utils as rendering

    midnight = datetime.fromisoformat(day)
    try:
        for template in (ISO, *templates):  # compiled once a process: transformers renders with what is found here
            rendering._compile_jinja_template(template).environment.globals["strftime_now"] = midnight.strftime
        told = rendering.render_jinja_template(conversations=[[]], chat_template=ISO)[0][0]
    except (AttributeError, TypeError) as error:
        told = str(error)
    if told != day:
        raise TokenizerError(
            f"the chat template writes today's date, and this version of transformers cannot be told which day that is ({told})",
            'Put a date into the template in place of strftime_now("…").',
        )
