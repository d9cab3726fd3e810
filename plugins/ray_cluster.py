"""A connection to a Ray cluster, and what to say when there is none."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ftcli.errors import FtcliError, MissingExtraError, SettingsError, adding
from ftcli.machine import usable_cores

REACH_SECONDS = 10.0
"""For a TCP connection to the head: Ray itself would try for minutes."""
ANSWER_SECONDS = 30.0
"""For the head's first word over it: a stopped one still accepts connections, and Ray was seen to try for 13 minutes."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of gRPC begins: HTTP/2's preface and empty settings. The server answers with settings of its own (RFC 9113, 3.4)."""
OBJECT_STORE_BYTES = 256_000_000
"""Of a cluster that is started here: functions and records travel through it, no rows do."""


def require_ray() -> None:
    """Raises `MissingExtraError` where ray is not installed; imports nothing."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("--executor ray needs the package ray, which is not installed", adding("ray"))


class Cluster:
    """This process as the driver of a cluster, until `close`. A connection that the process has already is used, and left.

    Args:
        address: auto, local or HOST:PORT.

    Raises:
        SettingsError: nobody answers there, or not as a cluster of this Ray and Python that this machine is part of.
    """

    def __init__(self, address: str) -> None:
        _refuse_silence(address)
        import ray

        self._ours, self._stdout = not ray.is_initialized(), sys.stdout
        if self._ours:
            sys.stdout = sys.stderr  # Ray prints what it hears of its nodes; stdout is for the report
            with _undisturbed():
                try:
                    _init(address)
                except SystemExit as ended:  # Ray's own handler of SIGTERM, which it has already put in
                    sys.stdout = self._stdout
                    raise KeyboardInterrupt from ended
                except Exception as error:
                    sys.stdout = self._stdout
                    raise _refused(address, error) from error
        self.node = str(ray.get_runtime_context().get_node_id())
        """Ray's id of the node that this process is on."""

    def nodes(self) -> dict[str, float]:
        """Node id → its CPUs, of the nodes that are alive and have some."""
        import ray

        there = {str(node["NodeID"]): float(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
        return {node: cpus for node, cpus in there.items() if cpus}

    @staticmethod
    def name(node_id: str) -> str:
        """The node's name and machine, in words."""
        import ray

        for node in ray.nodes():
            if node["NodeID"] == node_id:
                name, host = str(node.get("NodeName") or node["NodeManagerAddress"]), str(node["NodeManagerHostname"])
                return name if name == host else f"{name} (host {host})"
        return node_id

    def close(self) -> None:
        import ray

        if self._ours:
            ray.shutdown()
            sys.stdout = self._stdout


def _init(address: str) -> None:
    import ray

    own: dict[str, Any] = {"num_cpus": usable_cores(), "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **(own if address == "local" else {}))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ray takes SIGTERM and PYTHONBREAKPOINT for itself and reports its use to its makers: none of it here."""
    here = threading.current_thread() is threading.main_thread()
    handler, names = signal.getsignal(signal.SIGTERM), ("PYTHONBREAKPOINT", "RAY_USAGE_STATS_ENABLED")
    given = {name: os.environ.get(name) for name in names}  # not all of them: other threads load libraries that set theirs
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        yield
    finally:
        for name, value in given.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if here:
            signal.signal(signal.SIGTERM, handler)


def _refuse_silence(address: str) -> None:
    """Raises `SettingsError` when nobody listens at the head's address, or nobody answers there."""
    given = os.environ.get("RAY_ADDRESS", "")
    if address == "auto" and "://" in given:
        raise SettingsError(
            f"RAY_ADDRESS = {given!r} is a Ray Client address, but ftcli has to run on a machine of the cluster",
            "Give the head node's HOST:PORT.",
        )
    place = given if address == "auto" else address
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS) as head:
            if os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:
                return
            head.settimeout(ANSWER_SECONDS)
            head.sendall(GREETING)
            if not head.recv(1):
                raise ConnectionError("the process listening there is not a Ray head: it closed the connection")
    except TimeoutError as error:
        raise _refused(place, TimeoutError("nothing answers there, although the port may be open")) from error
    except (OSError, OverflowError) as error:
        raise _refused(place, error) from error


def _refused(address: str, error: Exception) -> FtcliError:
    words = " ".join(str(error).split())[:500] or type(error).__name__
    if address == "auto":
        return SettingsError(
            f"runtime.ray_address = auto: no Ray cluster is running on this machine ({words})",
            "Start one (`ray start --head`), give the address of one (--ray-address HOST:PORT), or use --ray-address local.",
        )
    return SettingsError(
        f"cannot connect to the Ray cluster at {address}: {words}",
        "Run `ray status` there. This machine must have joined the cluster (`ray start --address HOST:PORT`), with the same versions of Ray and Python.",
    )
