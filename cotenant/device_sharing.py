"""How a device lets co-located jobs run: what is measured one way says little of the other."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Final

_DEFAULT_PIPES: Final = "/tmp/nvidia-mps"
_SERVER_NAME: Final = "nvidia-cuda-mps-server"[:15]
"""As the kernel cuts it."""


class DeviceSharing(IntEnum):
    """A way of sharing; the numbers are those of the contract, and one that is not known here says nothing."""

    UNSTATED = 0
    TIME_SLICING = 1
    MPS = 2

    @classmethod
    def _missing_(cls, value: object) -> DeviceSharing | None:
        return cls.UNSTATED if isinstance(value, int) else None

    @property
    def label(self) -> str:
        """As profiles, journals and people name it; empty where nothing is said."""
        return self.name.lower() if self else ""


def read_sharing(label: object) -> DeviceSharing:
    """Returns the way that a journal or a profile names; a name that is not known here says nothing."""
    return next((way for way in DeviceSharing if way.label == label), DeviceSharing.UNSTATED)


def uses_mps(environment: Mapping[str, str]) -> bool:
    """Return whether a CUDA program with this environment would talk to a control daemon of MPS."""
    pipes = environment.get("CUDA_MPS_PIPE_DIRECTORY", "") or _DEFAULT_PIPES
    try:
        return (Path(pipes) / "control").exists()
    except (OSError, ValueError):
        return False


def is_mps_server(pid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether a process that a driver lists is a server of MPS, which computes for its clients only.

    Args:
        pid: As the driver counts it; one that is not visible here is no such server.
        proc: The kernel's /proc.
    """
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip() == _SERVER_NAME
    except OSError:
        return False
