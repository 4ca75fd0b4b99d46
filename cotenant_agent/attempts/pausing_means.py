"""By what a node can pause jobs, and whether CUDA's Multi-Process Service (MPS) forbids it.

Under MPS a process that stands still may hold up the others: the kernels and the memory operations of all pass through
one server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cotenant_agent.isolation.cgroups import ControlGroups

_DEFAULT_PIPES = "/tmp/nvidia-mps"


def pausing_enforcements(groups: ControlGroups, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return by what this node pauses jobs, in the words of the Hello; empty = it does not.

    Args:
        groups: What control groups the agent may make.
        environment: Of the agent; empty where its devices know no MPS.
    """
    if environment and uses_mps(environment):
        return ()
    return ("stop_signal",) if groups.freezer is None else ("cgroup_freezer",)


def uses_mps(environment: Mapping[str, str]) -> bool:
    """Return whether a CUDA program with this environment would talk to a control daemon of MPS."""
    pipes = environment.get("CUDA_MPS_PIPE_DIRECTORY", "") or _DEFAULT_PIPES
    try:
        return (Path(pipes) / "control").exists()
    except (OSError, ValueError):
        return False
