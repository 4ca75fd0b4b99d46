"""What programs that a test starts in the background need: ports that are free, and an end."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess

_END_S = 90


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody has now."""
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in bound]


def end_process(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """End a program by a signal, or by SIGKILL if it does not heed that, and wait until it is gone."""
    process.send_signal(number)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_S)
