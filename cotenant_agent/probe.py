"""What an agent would find on this machine, without becoming one."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict

from cotenant_agent.cgroups import detect
from cotenant_agent.errors import DeviceError
from cotenant_agent.isolation_means import NAMESPACE_ENFORCEMENTS, SEALED_FILES, find_namespace_obstacle
from cotenant_agent.nvml_inventory import NvmlInventory
from cotenant_agent.pausing_means import pausing_enforcements


def probe(cores: tuple[int, ...] = ()) -> dict[str, object]:
    """Devices and enforceable limits as plain data.

    Args:
        cores: cores to consider as stand-in devices; empty = all that this process may use.
    """
    groups = detect("probe")
    obstacle = find_namespace_obstacle()
    isolation = (SEALED_FILES,) if obstacle else NAMESPACE_ENFORCEMENTS
    found: dict[str, object] = {
        "gpus": [],
        "nvml": "",
        "standin_cores": sorted(os.sched_getaffinity(0) & set(cores or range(os.cpu_count() or 1))),
        "host_memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "is_root": os.geteuid() == 0,
        "enforcements": [
            "shim_lease",
            "watchdog",
            *groups.enforcements,
            *pausing_enforcements(groups, os.environ),
            *isolation,
        ],
        "no_namespaces": obstacle,
        "mps_control": shutil.which("nvidia-cuda-mps-control") or "",
    }
    groups.remove_parents()
    try:
        inventory = NvmlInventory(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    except DeviceError as error:
        found["nvml"] = str(error)
        return found
    found["gpus"] = [asdict(gpu) for gpu in inventory.describe()]
    inventory.close()
    return found
