"""The machines of a run: `16x4`, or a TOML file where they differ."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotenant_simulator.errors import ClusterError
from cotenant_simulator.truth.trace import GIB, GPU_MEMORY_BYTES
from scheduler_service.core.records import Gpu, Node

DEFAULT_CLUSTER = "16x4"
"""Where a trace that names no machines runs."""
GPUS_MAX = 1_000_000
NUMBER_MAX = 1e12
_SHAPE = re.compile(r"(\d{1,6})x(\d{1,4})")
_FIELDS = {"count", "gpus", "device", "gpu_memory_gib", "cpu_cores", "host_memory_gib", "rack", "speed_ratio"}
_REMEDY = "write NODESxGPUS such as 16x4, or the path of a TOML file with [[nodes]] tables (docs/simulate.md)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Machines.

    Attributes:
        name: How the user wrote it.
        nodes: In the order of their names.
        speeds: How much faster than the trace's tables each device type is.
    """

    name: str
    nodes: Sequence[Node]
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(len(node.gpus) for node in self.nodes)


def read_cluster(text: str, *, device: str, own_nodes: Sequence[Node] = ()) -> Cluster:
    """Return the cluster that a flag describes.

    Args:
        text: NODESxGPUS, or the path of a TOML file.
        device: Device type of the GPUs in the first form.
        own_nodes: The machines that the trace names, for the word `own`.

    Raises:
        ClusterError: It describes none.
    """
    if text == "own":
        if not own_nodes:
            raise ClusterError(f"the trace names no machines of its own; {_REMEDY}")
        return _checked(Cluster(name=text, nodes=own_nodes))
    shape = _SHAPE.fullmatch(text)
    if shape is not None:
        count, gpus = int(shape[1]), int(shape[2])
        if not count * gpus:
            raise ClusterError(f"cluster {text!r} has no GPU; {_REMEDY}")
        return _checked(Cluster(name=text, nodes=_nodes({"count": count, "gpus": gpus, "device": device}, first=0)))
    path = Path(text)
    if path.suffix != ".toml":
        raise ClusterError(f"cluster {text!r} is no cluster; {_REMEDY}")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterError(f"{path} cannot be read: {error.strerror}; {_REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"{path} cannot be read as TOML: {error}; {_REMEDY}") from error
    return _checked(_from_tables(text, data.get("nodes"), device))


def _from_tables(name: str, tables: object, device: str) -> Cluster:
    if not isinstance(tables, list) or not tables:
        raise ClusterError(f"{name} has no [[nodes]] tables; {_REMEDY}")
    nodes: list[Node] = []
    speeds: dict[str, float] = {}
    for number, table in enumerate(tables, start=1):
        if not isinstance(table, Mapping):
            raise ClusterError(f"{name}: entry {number} of nodes is no table; {_REMEDY}")
        unknown = sorted(table.keys() - _FIELDS)
        if unknown:
            raise ClusterError(
                f"{name}: [[nodes]] table {number} has unknown {unknown[0]!r}; known are {', '.join(sorted(_FIELDS))}"
            )
        filled = {"device": device, **table}
        nodes += _nodes(filled, first=len(nodes))
        speeds[str(filled["device"])] = _positive(filled, "speed_ratio", 1.0)
    return Cluster(name=name, nodes=nodes, speeds={name: ratio for name, ratio in speeds.items() if ratio != 1.0})


def _nodes(table: Mapping[str, Any], *, first: int) -> list[Node]:
    count, gpus = int(_positive(table, "count", 1)), int(_positive(table, "gpus", 1))
    if count * gpus > GPUS_MAX:
        raise ClusterError(f"{count} x {gpus} GPUs are more than {GPUS_MAX}; simulate a smaller cluster")
    memory_bytes = int(_positive(table, "gpu_memory_gib", GPU_MEMORY_BYTES / GIB) * GIB)
    # Left out or 0 = as much as any job asks for.
    cpu_cores = _positive(table, "cpu_cores", 0.0) if table.get("cpu_cores") else 0.0
    host_memory_bytes = int(_positive(table, "host_memory_gib", 0.0) * GIB) if table.get("host_memory_gib") else 0
    return [
        Node(
            node_id=(node_id := f"n{number:05d}"),
            rack_id=str(table.get("rack", "")),
            cpu_cores=cpu_cores,
            host_memory_bytes=host_memory_bytes,
            gpus=tuple(
                Gpu(gpu_id=f"{node_id}.{index}", device=str(table["device"]), memory_bytes=memory_bytes, index=index)
                for index in range(gpus)
            ),
        )
        for number in range(first, first + count)
    ]


def _positive(table: Mapping[str, Any], name: str, default: float) -> float:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= NUMBER_MAX:
        raise ClusterError(f"{name} must be a positive number up to {NUMBER_MAX:g}, not {value!r}")
    return float(value)


def _checked(cluster: Cluster) -> Cluster:
    if not cluster.gpus:
        raise ClusterError(f"{cluster.name!r} has no GPU; {_REMEDY}")
    return cluster
