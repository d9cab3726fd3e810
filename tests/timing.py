"""Costs and waits that say something of the program and nothing of how busy the machine is. No test holds seconds against a bound:
`benchmarks/limits.py` does."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

PATIENCE = 600.0
"""Seconds to wait for what must happen, on a slow machine that others use too. Only a hang lasts so long."""
FOR_EVER = 100_000
"""Seconds that stand for "never" in what a test starts: whoever waits for it hangs until the suite's limit ends the test."""


def until(condition: Callable[[], Any], pause: float = 0.01) -> Any:
    """What `condition` answers as soon as that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(pause)
    return found


def bytecodes(work: Callable[[], object]) -> int:
    """Python instructions that `work` executes in this thread: the same every time, on every machine.

    What compiled code does counts as one instruction, so that vectorised work over any number of rows costs the same few hundred.
    """
    count, here = 0, threading.get_ident()
    if sys.version_info >= (3, 12):
        tool, events = sys.monitoring.PROFILER_ID, sys.monitoring.events

        def counted(code: CodeType, offset: int) -> None:
            nonlocal count
            count += threading.get_ident() == here

        sys.monitoring.use_tool_id(tool, "bytecodes")
        sys.monitoring.register_callback(tool, events.INSTRUCTION, counted)
        sys.monitoring.set_events(tool, events.INSTRUCTION)
        try:
            work()
        finally:
            sys.monitoring.set_events(tool, events.NO_EVENTS)
            sys.monitoring.register_callback(tool, events.INSTRUCTION, None)
            sys.monitoring.free_tool_id(tool)
        return count

    def traced(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return traced

    before = sys.gettrace()  # coverage's, where that is measured
    sys.settrace(traced)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
