"""HOST:PORT: taken apart, and whether only this machine can reach it."""

from __future__ import annotations

import re
from ipaddress import ip_address

from cotenant.errors import InputError

_PORT_MAX = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port; an IPv6 address stands in brackets, which are left out.

    Raises:
        InputError: Not of that form.
    """
    host, _, port = address.rpartition(":")
    is_host = bool(host) and (":" not in host or (host.startswith("[") and host.endswith("]")))
    if not is_host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > _PORT_MAX:
        raise InputError(f"{address!r} is not an address", remedy="write HOST:PORT, e.g. 127.0.0.1:7071 or [::1]:7071")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Tells whether an address, with or without its port, can only be reached from this machine."""
    if address.startswith("unix:"):
        return True
    host, _, port = address.rpartition(":")
    # Of an IPv6 address without brackets every part could be taken for a port.
    name = host if host and port.isdecimal() and (":" not in host or host.endswith("]")) else address
    if name == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
