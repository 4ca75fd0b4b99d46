"""Which running jobs can be paused where they are; policies ask before they decide, the plan check asks again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from scheduler_service.core.records import PAUSING_ENFORCEMENTS, Assignment, JobRequest, Node, Reason
from scheduler_service.core.view import GpuView


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
    """Return why a running job cannot be paused where it is; None = it can. Whoever wanted that may stop it.

    Only what is on one node is ever paused: its agent holds all processes of a job together, the ranks of a gang as
    well; ranks on two nodes would stand still and go on at different instants. Under MPS a client that stands still
    holds others up. A node whose agent does not say that it can pause, because it is older or uses MPS, cannot.

    Args:
        places: A view, or the engine's state.
        job: One of its running jobs.
    """
    entries = [places.gpus.get(part.gpu_id) for part in job.assignments]
    node_ids = {entry.node_id if entry is not None else "" for entry in entries}
    node = places.nodes.get(node_ids.pop()) if len(node_ids) == 1 else None
    if node is not None and node.connected and not PAUSING_ENFORCEMENTS.isdisjoint(node.enforcements):
        return None
    return Reason(code="NOT_PAUSABLE", numbers={"gpus_count": len(job.assignments)}, job_ids=(job.request.job_id,))
