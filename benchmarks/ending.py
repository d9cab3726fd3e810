"""How a benchmark ends, whatever ends it: the machine's load, its table, its file."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Outcome:
    """The exit code: 0, 1 after a failure, 130 after an interruption."""

    code: int = 0


@contextmanager
def ending(
    document: dict[str, Any], markdown: Callable[[Mapping[str, Any]], str], file: Path | None, failures: tuple[type[Exception], ...]
) -> Iterator[Outcome]:
    """Around the measurements, which add to `document` what they have found: at the end, after a failure and after SIGINT or SIGTERM the table
    is printed, and all that was measured until then is written to `file`, if one is named.

    Args:
        failures: exceptions that end the measurements with a word.
    """
    outcome = Outcome()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield outcome
    except failures as error:
        document["error"], outcome.code = str(error), 1
    except KeyboardInterrupt:
        document["error"], outcome.code = "interrupted: later measurements are missing", 130
    finally:
        signal.signal(signal.SIGTERM, before)
    if outcome.code:
        print(f"FAILED: {document['error']}", file=sys.stderr, flush=True)
    document["load_average_after"] = os.getloadavg()[0]
    print(markdown(document))
    if file is not None:
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
