"""From which of its addresses this machine reaches the others of a job.

torch and gloo ask for the address of the machine's own name. Where that is 127.0.1.1, as Debian writes it into /etc/hosts, the other machines are sent
to themselves.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

import psutil

from ftcli.errors import UsageError

ELSEWHERE = "192.0.2.1", 9
"""An address that belongs to nobody (RFC 5737): the way there is the default route."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where packets to another machine leave this one; None: not known, and torch and gloo look for themselves."""

    address: str | None = None
    interface: str | None = None


def towards(endpoint: str) -> Route:
    """The route to HOST:PORT by the kernel's table; nothing is sent.

    Raises:
        UsageError: the port is no number.
    """
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"launch.rdzv_endpoint = {endpoint}: {port!r} is not a port", "Give HOST:PORT, such as node0:29500.")
    try:
        family, _, _, _, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    except (socket.gaierror, UnicodeError):  # a name may come into being after its machine, as in Kubernetes; torch tries again
        return Route()
    address = _source(family, place)
    if address is None or (host in {"localhost", str(place[0])} and _is_own(address)):
        return Route()
    if _is_own(address):  # a machine's own name: the others know it by another address
        outside = _source(socket.AF_INET, ELSEWHERE)
        return Route(None, None if outside is None else _interface(outside))
    return Route(address, _interface(address))


def refuse_taken(endpoint: str) -> None:
    """For the machine that the others meet at. Its address is not looked at: a Service or NAT may have another one than the machine.

    Raises:
        UsageError: another process listens at the port.
    """
    port = int(endpoint.rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a job that has just ended do not count
        try:
            probe.bind(("", port))  # as torch's store does
        except OSError as error:
            if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                return
            raise UsageError(
                f"launch.rdzv_endpoint = {endpoint}: port {port} of this machine cannot be used: {error.strerror}",
                "Use another port on all machines, or stop the process that uses it (`ss -ltnp`).",
            ) from error


def _source(family: int, place: tuple[object, ...]) -> str | None:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(place)
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _is_own(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _interface(address: str) -> str | None:
    found = (name for name, all_of in psutil.net_if_addrs().items() if any(each.address.partition("%")[0] == address for each in all_of))
    return next(found, None)
