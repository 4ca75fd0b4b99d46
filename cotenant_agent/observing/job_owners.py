"""Which job a process belongs to: by its control group that of Slurm, Kubernetes or Docker, by its variables Ray's."""

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
    )
)
_RAYLET = re.compile(r"(?:^|\0)RAY_RAYLET_PID=([0-9]{1,10})(?=\0|$)")
_RAY_JOB = re.compile(rf"(?:^|\0)RAY_JOB_ID={_HEX}{{8}}(?=\0|$)")
_CHARACTERS_MAX: Final = 10_000
_SHORT_CHARACTERS: Final = 12


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
            return f"{engine}/{name[:_SHORT_CHARACTERS] if engine == 'docker' else name}"
    return ""


def raylet_of(environ: str) -> str:
    """Return the process that started a worker of Ray, as the worker knows it; empty = it is no worker.

    Args:
        environ: What the kernel says in /proc/PID/environ: the variables with which it was started. Children of a
            worker have them too. The job among them is none for workers that Ray started before there was one.
    """
    raylet = _RAYLET.search(environ)
    return raylet.group(1) if raylet is not None and _RAY_JOB.search(environ) else ""
