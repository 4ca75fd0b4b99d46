"""Which job of Slurm, Kubernetes, Docker or Podman a process belongs to, by its control group."""

from __future__ import annotations

import re
from typing import Final

_HEX = "[0-9a-f]"
_PATTERNS: Final = tuple(
    (engine, re.compile(pattern))
    for engine, pattern in (
        # Cgroup v1: /slurm_NODE/uid_1/job_7/step_0/task_0; v2: /system.slice/NODE_slurmstepd.scope/job_7/step_0/...
        ("slurm", r"(?:/slurm[^/]*/uid_[0-9]+|slurmstepd\.scope)/job_([0-9]{1,10})(?=/|$)"),
        # /kubepods/burstable/podUID/..., /kubepods.slice/.../kubepods-burstable-podUID.slice/...; there with _ for -.
        (
            "kubernetes",
            rf"/kubepods[^:]*?[/-]pod({_HEX}{{8}}(?:[-_]?{_HEX}{{4}}){{3}}[-_]?{_HEX}{{12}})(?=\.slice|/|$)",
        ),
        ("docker", rf"/docker[/-]({_HEX}{{64}})(?=\.scope|/|$)"),
        # /machine.slice/libpod-ID.scope/..., or /libpod_parent/libpod-ID where there is no systemd.
        ("podman", rf"/libpod-({_HEX}{{64}})(?=\.scope|/|$)"),
    )
)
_CHARACTERS_MAX: Final = 10_000
_SHORT_CHARACTERS: Final = 12
_CONTAINERS: Final = frozenset({"docker", "podman"})


def owner_of(cgroups: str) -> str:
    """Return the job of a process, as `slurm/7`; empty = of no engine that is known.

    Args:
        cgroups: What the kernel says in /proc/PID/cgroup; the process itself cannot write it.
    """
    text = cgroups[:_CHARACTERS_MAX]
    for engine, pattern in _PATTERNS:
        match = pattern.search(text)
        if match is not None:
            name = match.group(1).replace("_", "-")
            return f"{engine}/{name[:_SHORT_CHARACTERS] if engine in _CONTAINERS else name}"
    return ""
