"""By what a node can pause jobs, and whether CUDA's Multi-Process Service (MPS) forbids it or lets jobs share.

Under MPS a process that stands still may hold up the others: the kernels and the memory operations of all pass through
one server.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.device_sharing import DeviceSharing, uses_mps
from cotenant_agent.isolation.cgroups import ControlGroups
from cotenant_agent.records import GpuDescription

_NO_DRIVER = "none"


def pausing_enforcements(groups: ControlGroups, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return by what this node pauses jobs, in the words of the Hello; empty = it does not.

    Args:
        groups: What control groups the agent may make.
        environment: Of the agent; empty where its devices know no MPS.
    """
    if environment and uses_mps(environment):
        return ()
    return ("stop_signal",) if groups.freezer is None else ("cgroup_freezer",)


def way_of_sharing(gpu: GpuDescription, environment: Mapping[str, str]) -> DeviceSharing:
    """Return how jobs share a device, for the Hello.

    Args:
        gpu: The device; a stand-in, which has no driver, knows no MPS.
        environment: Of the agent.
    """
    is_served = gpu.driver != _NO_DRIVER and uses_mps(environment)
    return DeviceSharing.MPS if is_served else DeviceSharing.TIME_SLICING
