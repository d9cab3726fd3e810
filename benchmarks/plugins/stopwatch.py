"""Clocks at every logged step, for `benchmarks/train.py`: appended to the file that FTCLI_STOPWATCH names."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ftcli import hookimpl
from ftcli.records import Step


@hookimpl
def on_step(step: Step) -> None:
    reading = {"step": step.step, "wall": time.perf_counter(), "cpu": time.process_time()}
    with Path(os.environ["FTCLI_STOPWATCH"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(reading) + "\n")
