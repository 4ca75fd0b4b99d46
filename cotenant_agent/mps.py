"""Whether CUDA's Multi-Process Service stands between jobs and a device.

Under it a process that stands still may hold up the others: its kernels and its memory operations pass through the same
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_DEFAULT_PIPES = "/tmp/nvidia-mps"


def uses_mps(environment: Mapping[str, str]) -> bool:
    """Return whether a CUDA program with this environment would talk to a control daemon of MPS."""
    pipes = environment.get("CUDA_MPS_PIPE_DIRECTORY", "") or _DEFAULT_PIPES
    try:
        return (Path(pipes) / "control").exists()
    except (OSError, ValueError):
        return False
