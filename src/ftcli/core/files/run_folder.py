"""The folder of a run, where data are wanted."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from ftcli.errors import FtcliError
from ftcli.records import RUN_NAME


def refuse_run(folder: Path, kind: type[FtcliError]) -> None:
    """Raises an error of this kind where `ftcli train` made the folder; names the data that the run learned, if it kept them."""
    try:
        content = (folder / RUN_NAME).read_bytes()
    except OSError:
        return
    hint = "Give the data that it was trained on."
    with suppress(ValueError, LookupError, TypeError):
        hint = f"It learned {', '.join(json.loads(content)['settings']['dataset.sources']['value'])}: give that."
    raise kind(f"{folder} is the output folder of a training run ({RUN_NAME}), not data", hint)
