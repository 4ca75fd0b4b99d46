"""A process with the name of NVIDIA's multi-process server, which does nothing."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_LIFE_S = "600"


@contextlib.contextmanager
def running_mps_server(directory: Path) -> Iterator[int]:
    """Yield its process id; the kernel cuts its name, as it does that of the real one."""
    program = directory / "nvidia-cuda-mps-server"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([program, _LIFE_S]) as server:
        try:
            yield server.pid
        finally:
            server.kill()
