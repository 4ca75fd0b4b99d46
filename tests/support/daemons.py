"""What programs that a test starts in the background need: ports that are free, and an end."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
from typing import Final

_END_S = 90
_TRIES_EACH: Final = 100
_PORTS: Final = range(10_000, 20_000)
"""Below those that the system gives to whoever names none, and that an agent chooses for ranks."""


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody has now, and that nobody is given while a program is started again."""
    free: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.SystemRandom().sample(_PORTS, _TRIES_EACH * count):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                free.append(port)
            if len(free) == count:
                return free
    raise OSError(f"hardly a port from {_PORTS[0]} to {_PORTS[-1]} is free; end what listens there")


def end_process(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """End a program by a signal, or by SIGKILL if it does not heed that, and wait until it is gone."""
    process.send_signal(number)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_S)
