"""The port at which the ranks of a gang meet, chosen by the agent: two gangs of a node never get the same."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Collection

from cotenant_agent.errors import CommandRefusedError

PORTS = range(20_000, 30_000)
"""Below those that Linux gives to outgoing connections."""


def choose_port(attempt_name: str, taken: Collection[int]) -> int:
    """A port that nothing on this machine listens at, the same one for a name wherever that is possible.

    Args:
        attempt_name: Of the attempt's directory.
        taken: Ports of attempts that may not have opened theirs yet.

    Raises:
        CommandRefusedError: There is none.
    """
    start = zlib.crc32(attempt_name.encode())
    for offset in range(len(PORTS)):
        port = PORTS[(start + offset) % len(PORTS)]
        if port not in taken and _is_free(port):
            return port
    raise CommandRefusedError("NO_FREE_PORT", f"ports {PORTS[0]} to {PORTS[-1]} of this node are all in use")


def _is_free(port: int) -> bool:
    # At all addresses, as PyTorch's store listens.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
