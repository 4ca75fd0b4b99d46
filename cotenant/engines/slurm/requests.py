"""What a job of Slurm asks for as a whole, in whichever of Slurm's several forms its user wrote it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from cotenant.engines.slurm.gres import Gres, read_gres
from cotenant.engines.slurm.values import number_of, text_of

_MIB: Final = 2**20
_UNITS: Final[Mapping[str, float]] = MappingProxyType(
    {"K": 2**10, "": _MIB, "M": _MIB, "G": 2**30, "T": 2**40, "P": 2**50}
)
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGTP]?)")
_FORMS: Final = ("tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task")


def gres_asked(row: Mapping[str, Any]) -> list[Gres]:
    """Return the entries about GPUs in what a job asks for, each per job, node, socket or task."""
    return read_gres(",".join(text_of(row, name) for name in _FORMS))


def gpus_asked(row: Mapping[str, Any]) -> int:
    """Return how many GPUs a job asks for on all its nodes; 0 = none, or parts of one only."""
    counted = int(_amount(row, "gres/gpu", 1.0))
    if counted:
        return counted
    nodes, tasks = max(number_of(row, "node_count"), 1), max(number_of(row, "tasks"), 1)
    times = (1, nodes, nodes * max(number_of(row, "sockets_per_node"), 1), tasks)
    # The same GPUs may be asked for in several forms: --gpus=4 --gpus-per-node=2.
    return max(
        factor * sum(one.count for one in read_gres(text_of(row, name)) if one.kind == "gpu")
        for name, factor in zip(_FORMS, times, strict=True)
    )


def cpu_cores_asked(row: Mapping[str, Any]) -> int:
    """Return the cores of a job; of one that waits Slurm may state none but in its sum."""
    return number_of(row, "cpus") or int(_amount(row, "cpu", 1.0))


def host_memory_bytes_asked(row: Mapping[str, Any]) -> int:
    """Return the memory of a job: by Slurm's sum, which alone knows --mem=0 and --mem-per-gpu."""
    summed = int(_amount(row, "mem", _MIB))
    if summed:
        return summed
    per_cpu = number_of(row, "memory_per_cpu") * cpu_cores_asked(row)
    return (number_of(row, "memory_per_node") or per_cpu) * _MIB


def _amount(row: Mapping[str, Any], name: str, unit: float) -> float:
    """Return one amount of `cpu=8,mem=1500M,node=1,gres/gpu=2`; 0 = it is not there."""
    summed = text_of(row, "tres_alloc_str") or text_of(row, "tres_req_str")
    for part in summed[:10_000].split(","):
        key, _, text = part.partition("=")
        match = _AMOUNT.fullmatch(text) if key == name else None
        if match is not None:
            return min(float(match[1]) * (_UNITS[match[2]] if name == "mem" else unit), 2.0**62)
    return 0.0
