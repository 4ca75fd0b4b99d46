"""What a training script has allocated on its device, for jobs that release memory between their peaks.

One file, standard library only, as `cotenant/job.py`. Outside a cotenant cluster it does nothing. PyTorch keeps what it
frees: a script that wants others to use its memory meanwhile also calls `torch.cuda.empty_cache()` after each peak.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_INTERVAL_S = 0.05
_started = threading.Lock()


def watch_memory(read_bytes: Callable[[], int] | None = None) -> bool:
    """Tell the agent what is allocated, twenty times a second from a thread of its own; True = it does from now on.

    Call it where training begins: an attempt that was started early knows its agent only after its `wait_for_go`.

    Args:
        read_bytes: Returns the bytes allocated on the device at this instant; None = PyTorch's on its current device.
    """
    path = os.environ.get("COTENANT_PROGRESS", "")
    is_first_rank = os.environ.get("RANK", os.environ.get("COTENANT_RANK", "0")) in ("", "0")
    if not path or not is_first_rank or (read_bytes is None and _allocated_by_torch() is None):
        return False
    if not _started.acquire(blocking=False):
        return True
    read = read_bytes or (lambda: _allocated_by_torch() or 0)
    threading.Thread(target=_tell, args=(Path(path), read), name="cotenant-memory", daemon=True).start()
    return True


def _allocated_by_torch() -> int | None:
    torch = sys.modules.get("torch")
    return int(torch.cuda.memory_allocated()) if torch is not None and torch.cuda.is_available() else None


def _tell(path: Path, read_bytes: Callable[[], int]) -> None:
    """Send samples for as long as the process lives; what cannot be sent or read is left out."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    # A socket address holds 107 bytes; a descriptor of the directory makes any path short.
    address = f"/proc/self/fd/{directory}/{path.name}"
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    while True:
        with contextlib.suppress(OSError, RuntimeError, ValueError, TypeError):
            sample = {"allocated": int(read_bytes()), "at_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC)}
            agent.sendto(json.dumps(sample).encode(), address)
        time.sleep(_INTERVAL_S)
