"""The one reason of a job in every answer: about this job, and the one that its owner can do something about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from cotenant.access.callers import Caller
from scheduler_service.core.cluster_view.capacity import micro_batch_size_alone, samples_per_gpu, too_large_alone
from scheduler_service.core.cluster_view.inventory import Inventory, slices_counted
from scheduler_service.core.cluster_view.remaining_time_queue import shape_of
from scheduler_service.core.cluster_view.view import Predictions
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.queue.queue_terms import is_device_named
from scheduler_service.core.reasons.reason_remedies import WAITS_FOR_ROOM, describe_remedy, name_whom_to_ask
from scheduler_service.core.records import JobRequest, Phase, Reason
from scheduler_service.core.state import ClusterState

NODES_NAMED_MAX = 4
_HELPED_BY_GPUS = WAITS_FOR_ROOM | {"DEVICES_NOT_IN_CLUSTER", "GPUS_NOT_IN_CLUSTER", "NODES_TOGETHER_TOO_SMALL"}


def present_reason(state: ClusterState, job: JobRecord) -> Reason:
    """Return why a job is where it is: for a waiting one the newest decision about it."""
    decided = state.decisions.reason_of(job.job_id) if job.phase is Phase.PENDING else None
    return decided if decided is not None else job.reason


def reported_reason(state: ClusterState, job: JobRecord, reason: Reason) -> Reason:
    """Return a reason as it is returned for this job: by ps, submit and explain."""
    spans_nodes = job.request.terms.across_nodes and bool(state.occupancy.inventory.gpus)
    if job.phase is Phase.PENDING and spans_nodes and reason.code == "GPUS_NOT_IN_CLUSTER":
        # A policy sees no other nodes than those that such a job may span.
        return replace(reason, code="NODES_TOGETHER_TOO_SMALL")
    if job.phase is Phase.PENDING and reason.code == "GPUS_NOT_IN_CLUSTER":
        names = job.request.terms.devices
        # Nor any GPUs but those that the job names.
        if names and not any(is_device_named(names, gpu.device) for gpu in state.occupancy.inventory.gpus.values()):
            return replace(reason, code="DEVICES_NOT_IN_CLUSTER")
    if job.phase is not Phase.PENDING or reason.code not in WAITS_FOR_ROOM | {"KEPT_FOR_OTHER"}:
        return reason

    def waiting(job_id: str) -> JobRequest | None:
        other = state.jobs.get(job_id)
        return other.request if other is not None and other.phase is Phase.PENDING else None

    return worded_for(job.request, reason, state.occupancy.inventory, state.predictions, waiting)


def present_remedy(state: ClusterState, job: JobRecord, reason: Reason, caller: Caller) -> str:
    """Return what would let a waiting job start sooner, in words for a caller; empty = nothing that people could do."""
    remedy = _remedy_with_closed_gpus(state, job, reason)
    return remedy if caller.acts_for_all else name_whom_to_ask(remedy)


def _remedy_with_closed_gpus(state: ClusterState, job: JobRecord, reason: Reason) -> str:
    remedy = describe_remedy(reason, job.request)
    names = job.request.terms.devices
    idle = Counter(
        view.node_id
        for view in state.gpus.values()
        if view.gpu.healthy and not view.job_ids and (not names or is_device_named(names, view.gpu.device))
    )
    # One that is too wide for the other nodes needs one that is wide enough.
    least = min(job.request.allowed_gpus, default=job.request.gpus) if reason.code == "GPUS_NOT_IN_CLUSTER" else 1
    closed = [node_id for node_id in sorted(idle) if state.nodes[node_id].is_cordoned and idle[node_id] >= least]
    if reason.code not in _HELPED_BY_GPUS or not closed or "uncordon" in remedy:
        return remedy
    named = ", ".join(closed[:NODES_NAMED_MAX]) + (" ..." if len(closed) > NODES_NAMED_MAX else "")
    return f"{remedy} GPUs of cordoned nodes are idle ({named}): `cotenant nodes uncordon`.".lstrip()


def worded_for(
    request: JobRequest,
    reason: Reason,
    inventory: Inventory,
    predictions: Predictions,
    waiting: Callable[[str], JobRequest | None],
) -> Reason:
    """Return why a waiting job waits, about this job; in the same words for a live cluster and for a snapshot.

    Policies decide once for equal jobs, so a reason may name an equal one; and a full cluster is what they see first of
    a job that fits nowhere.

    Args:
        request: The job.
        reason: Of the policy.
        inventory: The cluster's usable GPUs.
        predictions: What is known of memory.
        waiting: Returns the request of a waiting job, None for others.
    """
    if reason.code == "KEPT_FOR_OTHER":
        return _too_few_gpus(request, inventory) or _fits_nowhere(request, inventory, predictions) or reason
    if reason.code not in WAITS_FOR_ROOM:
        return reason
    reason = _too_few_gpus(request, inventory) or _fits_nowhere(request, inventory, predictions) or reason

    def own(other_id: str) -> str:
        """Return the job's own id in place of an equal waiting one's."""
        other = waiting(other_id)
        return request.job_id if other is not None and shape_of(other) == shape_of(request) else other_id

    return replace(reason, job_ids=tuple(dict.fromkeys(map(own, reason.job_ids))))


def _too_few_gpus(request: JobRequest, inventory: Inventory) -> Reason | None:
    wanted = min(request.allowed_gpus, default=request.gpus)
    most = max(inventory.count.values(), default=0)
    numbers = {"gpus_needed": wanted, "gpus_in_cluster": most, **slices_counted(inventory)}
    return Reason(code="GPUS_NOT_IN_CLUSTER", numbers=numbers) if wanted > most else None


def _fits_nowhere(request: JobRequest, inventory: Inventory, predictions: Predictions) -> Reason | None:
    """Return the largest GPU's reason where every usable kind of GPU is too small for a job; None = one may do."""
    largest_bytes, found = 0, None
    samples = samples_per_gpu(request, request.gpus)
    for gpu in inventory.gpus.values():
        alone = micro_batch_size_alone(request, predictions.job(request.key, gpu.device), request.gpus, gpu)
        if alone is not None and alone < samples:
            return None
        reason = too_large_alone(request, samples, gpu, predictions)
        if reason is None:
            return None
        if gpu.memory_bytes > largest_bytes:
            largest_bytes, found = gpu.memory_bytes, replace(reason, gpu_ids=())
    return found
