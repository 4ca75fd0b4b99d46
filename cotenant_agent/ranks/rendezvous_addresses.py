"""Where other nodes reach the ranks that run here."""

from __future__ import annotations

import array
import contextlib
import fcntl
import re
import socket
import struct
from ipaddress import ip_address

from cotenant.addresses import split_address
from cotenant.errors import InputError

LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,253}")
# Of linux/sockios.h: the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915
_NAME_BYTES = 16
_REQUEST_BYTES = 40


def is_host(text: str) -> bool:
    """Whether a text can be the address or name of one machine."""
    with contextlib.suppress(ValueError):
        return not ip_address(text).is_unspecified
    return _HOST.fullmatch(text) is not None and ":" not in text


def find_own_address(scheduler: str) -> str:
    """The address from which this machine dials the scheduler; empty where that cannot be told. Sends nothing."""
    if scheduler.startswith("unix:"):
        return LOOPBACK
    try:
        host, port = split_address(scheduler)
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    except (InputError, OSError):
        return ""
    return ""


def find_interface(address: str) -> str:
    """Name of the network interface that has an IPv4 address or the name of one; empty = none here has it."""
    try:
        wanted = socket.inet_aton(socket.gethostbyname(address))
    except (OSError, ValueError, TypeError):
        # No name at all, or an unknown one.
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        names = [name for _, name in socket.if_nameindex()]
        return next((name for name in names if _address_of(probe, name) == wanted), "")


def _address_of(probe: socket.socket, interface: str) -> bytes:
    request = array.array("B", struct.pack(f"{_REQUEST_BYTES}s", interface.encode()[: _NAME_BYTES - 1]))
    try:
        fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request, True)
    except OSError:
        return b""
    # After the name: a sockaddr_in, whose address follows two bytes of family and two of port.
    return bytes(request[_NAME_BYTES + 4 : _NAME_BYTES + 8])
