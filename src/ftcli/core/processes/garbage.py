"""When Python looks for garbage: not while a process imports.

Modules are hundreds of thousands of objects that live as long as the process, and every look at all of them takes 40 to 100 ms.
"""

from __future__ import annotations

import gc


def later() -> None:
    """No look until `imported` is called."""
    gc.disable()


def imported() -> None:
    """Look from now on, and not at what there is now. Does nothing without `later` before it, so that whoever embeds us decides."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
