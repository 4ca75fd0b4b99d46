"""Which running jobs can be paused where they are; policies ask before they decide, the plan check asks again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from scheduler_service.core.cluster_view.view import GpuView
from scheduler_service.core.records import PAUSING_ENFORCEMENTS, Assignment, JobRequest, Node, Reason


class Places(Protocol):
    """Nodes and GPUs by id, as a view and the engine's state have them."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """By node id."""

    @property
    def gpus(self) -> Mapping[str, GpuView]:
        """By GPU id."""


class Placed(Protocol):
    """A job that holds GPUs."""

    @property
    def request(self) -> JobRequest:
        """What its owner asked for."""

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """Its GPUs."""


def pause_obstacle(places: Places, job: Placed) -> Reason | None:
    """Return why a running job cannot be paused where it is; None = it can. It may be stopped instead.

    An agent holds all processes of a job on its node together, the ranks of a gang as well; a gang across nodes is
    paused where every node of it can. Under MPS a client that stands still holds others up. A node whose agent does
    not say that it can pause, because it is older or uses MPS, cannot.

    Args:
        places: A view, or the engine's state.
        job: One of its running jobs.
    """
    entries = [places.gpus.get(part.gpu_id) for part in job.assignments]
    nodes = [places.nodes.get(entry.node_id) if entry is not None else None for entry in entries]
    if nodes and all(map(_can_pause, nodes)):
        return None
    return Reason(code="NOT_PAUSABLE", numbers={"gpus_count": len(job.assignments)}, job_ids=(job.request.job_id,))


def _can_pause(node: Node | None) -> bool:
    return node is not None and node.connected and not PAUSING_ENFORCEMENTS.isdisjoint(node.enforcements)
