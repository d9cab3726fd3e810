"""Whether the Hugging Face hub can be reached from here at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

VARIABLE = "HF_HUB_OFFLINE"
TRIES, PAUSE_SECONDS = 3, 1.0
"""For a name server that does not answer, as that of a container which has just started."""
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_ID = re.compile(r"(?!-)[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")


def named(names: Iterable[str | None]) -> bool:
    """Whether one of these can be a hub id: it is written like one, and there is no such file or folder here."""
    return any(name is not None and _ID.fullmatch(name) is not None and not Path(name).exists() for name in names)


@cache
def unknown_host() -> str | None:
    """The hub's host where no name server knows it. Every file is asked for six times in 25 s then, and several are. None where a proxy would ask, and
    where nobody is asked at all."""
    if offline() or any(map(os.environ.get, _PROXIES)):
        return None
    import socket
    import time
    from urllib.parse import urlsplit

    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    for tried in range(TRIES):
        if tried:
            time.sleep(PAUSE_SECONDS)
        try:
            socket.getaddrinfo(host, None)
        except socket.gaierror as error:
            if error.errno != socket.EAI_AGAIN:
                break
        except (OSError, UnicodeError):
            return None
        else:
            return None
    return host


def offline() -> bool:
    """Whether the user, or ftcli for the reason above, has said that the hub is not to be asked."""
    return os.environ.get(VARIABLE, "").upper() in {"1", "ON", "YES", "TRUE"}


def advice() -> str:
    """What to do where the hub did not give what was asked for."""
    if not offline():
        return (
            f"Check the name, the network and HF_TOKEN; without a network give a folder, or set {VARIABLE}=1 to use the cache immediately."
        )
    why = f"{host} cannot be resolved here" if (host := unknown_host()) else f"{VARIABLE}=1 forbids asking the hub"
    return f"Run this once where there is a network, with the same HF_HOME, or give a folder: {why}, and the cache does not have it."
