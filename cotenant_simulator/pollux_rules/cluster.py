"""Nodes with GPUs, and the artifact's rule which of them a job gets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cotenant_simulator.pollux_rules.errors import ClusterShapeError
from cotenant_simulator.pollux_rules.training_job import Allocation

_NODES_MAX = 4_096
_GPUS_PER_NODE_MAX = 9
"""The tables name the GPUs of a node with one digit."""


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """Equal nodes.

    Attributes:
        nodes: How many.
        gpus_per_node: GPUs on each.

    Raises:
        ClusterShapeError: One is out of range.
    """

    nodes: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        """Refuse shapes that the rules do not cover."""
        if not (1 <= self.nodes <= _NODES_MAX and 1 <= self.gpus_per_node <= _GPUS_PER_NODE_MAX):
            raise ClusterShapeError(
                f"a cluster under Pollux' rules has 1 to {_NODES_MAX} nodes of 1 to {_GPUS_PER_NODE_MAX} GPUs, "
                f"not {self.nodes}x{self.gpus_per_node}"
            )

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus_per_node}"


def read_cluster_shape(text: str) -> ClusterShape:
    """Read `NODESxGPUS`, such as 16x4.

    Raises:
        ClusterShapeError: It is something else.
    """
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
    if match is None:
        raise ClusterShapeError(f"a cluster under Pollux' rules is written NODESxGPUS, such as 16x4, not {text!r}")
    return ClusterShape(int(match[1]), int(match[2]))


class FreeGpus:
    """Free GPUs by node while jobs are being placed."""

    def __init__(self, cluster: ClusterShape) -> None:
        self._free = [cluster.gpus_per_node] * cluster.nodes

    def keep(self, allocation: Allocation) -> None:
        """Count the GPUs of a job that stays where it is as taken."""
        for node, gpus in allocation:
            self._free[node] -= gpus

    def count(self) -> int:
        """Return how many GPUs are free."""
        return sum(self._free)

    def take(self, gpus: int) -> Allocation:
        """Take GPUs from the node with most free ones again and again; of equals the first."""
        taken = []
        while gpus > 0:
            most = max(self._free)
            node = self._free.index(most)
            part = min(most, gpus)
            self._free[node] -= part
            gpus -= part
            taken.append((node, part))
        return tuple(taken)
