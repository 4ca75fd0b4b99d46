"""Pieces of placement that policies share: kinds of GPUs, groups of them, reasons for waiting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler_service.core.capacity import expected_bytes, reserved_bytes, samples_per_gpu
from scheduler_service.core.inventory import Inventory as Inventory
from scheduler_service.core.inventory import Kind as Kind
from scheduler_service.core.inventory import count_gpus
from scheduler_service.core.inventory import kind_of as kind_of
from scheduler_service.core.ledger import Ledger
from scheduler_service.core.length_queue import shape_of as shape_of
from scheduler_service.core.records import Assignment, Gpu, JobRequest, Reason
from scheduler_service.core.view import SchedulingView

NEAREST_FIRST = (
    "SHARING_NOT_WORTH_IT",
    "REMAINING_TIME_UNKNOWN",
    "SLOWDOWN_TOO_HIGH",
    "WORKERS_OUT_OF_BALANCE",
    "DEVICE_SLOWDOWN_TOO_HIGH",
    "COLLISION_TOO_LIKELY",
    "PAIR_UNKNOWN",
    "OUT_OF_DOMAIN",
    "JOB_UNKNOWN",
    "UTILIZATION_TOO_HIGH",
    "PEAKS_DO_NOT_FIT",
    "MEMORY_DOES_NOT_FIT",
    "SHARE_NOT_ALLOWED",
    "TOO_MANY_JOBS",
    "GPU_RELEASING",
    "SPREAD_UNEVEN",
    "HOST_DOES_NOT_FIT",
    "MEMORY_LIKELY_EXCEEDS_GPU",
    "TASKS_DO_NOT_FIT",
    "MEMORY_EXCEEDS_GPU",
    "PEAK_EXCEEDS_GPU",
)
"""Of the reasons of many GPUs the one that was nearest to a start is shown."""


def inventory_of(view: SchedulingView) -> Inventory:
    """Return what a view's GPUs are, by kind."""
    return view.inventory if view.inventory is not None else count_gpus(view.gpus.values())


def free_by_kind_and_node(view: SchedulingView) -> dict[Kind, dict[str, list[str]]]:
    """Return the free GPUs by kind and node, in an order that does not depend on history."""
    if view.free_places is not None:
        kept = {kind: dict(sorted(nodes.items())) for kind, nodes in view.free_places.items() if nodes}
        in_order = sorted(kept.items(), key=lambda item: next((node, here[0]) for node, here in item[1].items()))
        return {
            kind: {node: [gpu_id for _, gpu_id in here] for node, here in nodes.items()} for kind, nodes in in_order
        }
    found: dict[Kind, dict[str, list[str]]] = {}
    for gpu_id in sorted(view.free_gpu_ids, key=lambda gpu_id: _position(view, gpu_id)):
        entry = view.gpus[gpu_id]
        kind = kind_of(entry.gpu)
        found.setdefault(kind, {}).setdefault(entry.node_id, []).append(gpu_id)
    return found


def _position(view: SchedulingView, gpu_id: str) -> tuple[str, int, str]:
    entry = view.gpus[gpu_id]
    return entry.node_id, entry.gpu.index, gpu_id


def choose_free_gpus(
    ledger: Ledger, request: JobRequest, by_node: Mapping[str, Sequence[str]]
) -> tuple[str, ...] | None:
    """Return free GPUs for a job: the fullest node that suffices, else as few nodes as the view allows; None = none.

    Args:
        ledger: For the room on the hosts.
        request: The job; `gpus` of them are wanted.
        by_node: Free GPUs of one kind.
    """
    nodes = ledger.view.nodes
    enough = [
        (len(gpu_ids), node_id)
        for node_id, gpu_ids in by_node.items()
        if len(gpu_ids) >= request.gpus
        and ledger.host_fits(nodes[node_id], request, gpus_here=request.gpus, gpus=request.gpus)
    ]
    if enough:
        return tuple(by_node[min(enough)[1]][: request.gpus])
    chosen: list[str] = []
    widest_first = sorted(by_node.items(), key=lambda item: (-len(item[1]), item[0]))
    nodes_left = ledger.view.nodes_per_job_max or len(widest_first)
    for node_id, gpu_ids in widest_first:
        part = gpu_ids[: request.gpus - len(chosen)]
        if ledger.host_fits(nodes[node_id], request, gpus_here=len(part), gpus=request.gpus):
            chosen += part
            nodes_left -= 1
        if len(chosen) == request.gpus:
            return tuple(chosen)
        if not nodes_left:
            return None
    return None


def sized(request: JobRequest, gpus: int) -> JobRequest:
    """Return a request as if it asked for so many GPUs at the start."""
    return request if request.gpus == gpus else replace(request, gpus=gpus)


def ranked(gpu_ids: Iterable[str]) -> tuple[Assignment, ...]:
    """Give the ranks 0, 1, 2 ... to GPUs in this order."""
    return tuple(Assignment(gpu_id=gpu_id, rank=rank) for rank, gpu_id in enumerate(gpu_ids))


def impossible_reason(view: SchedulingView, inventory: Inventory, request: JobRequest) -> Reason | None:
    """Return why a job could not even start on the empty cluster, or None when it could."""
    largest = max(inventory.count.values(), default=0)
    if request.gpus > largest:
        numbers = {"gpus_needed": request.gpus, "gpus_in_cluster": largest}
        return Reason(code="GPUS_NOT_IN_CLUSTER", numbers=numbers)
    fitting = [kind for kind, gpu in inventory.gpus.items() if fits_alone(view, request, gpu)]
    if not fitting:
        most_memory = max(inventory.gpus.values(), key=lambda gpu: (gpu.memory_bytes, gpu.device))
        return replace(too_large(view, request, most_memory), gpu_ids=())
    if view.nodes_per_job_max and all(
        request.gpus > inventory.most_on_node[kind] * view.nodes_per_job_max for kind in fitting
    ):
        most = max(inventory.most_on_node[kind] for kind in fitting)
        numbers = {"nodes_needed": -(-request.gpus // most), "nodes_max": view.nodes_per_job_max}
        return Reason(code="GANG_NEEDS_MORE_NODES", numbers=numbers)
    if all(request.gpus > inventory.count[kind] for kind in fitting):
        numbers = {"gpus_needed": request.gpus, "gpus_in_cluster": max(inventory.count[kind] for kind in fitting)}
        return Reason(code="GPUS_NOT_IN_CLUSTER", numbers=numbers)
    return None


def fits_alone(view: SchedulingView, request: JobRequest, gpu: Gpu) -> bool:
    """Say whether a GPU of this kind has the memory for a job when nobody else is there."""
    prediction = view.predictions.job(request.key, gpu.device)
    return reserved_bytes(request, prediction, samples_per_gpu(request, request.gpus), gpu) is not None


def too_large(view: SchedulingView, request: JobRequest, gpu: Gpu) -> Reason:
    """Return that a job needs more memory than a GPU has, for one where `fits_alone` says so."""
    prediction = view.predictions.job(request.key, gpu.device)
    needed_bytes = expected_bytes(request, prediction, samples_per_gpu(request, request.gpus))
    numbers = {"needed_bytes": needed_bytes, "gpu_memory_bytes": gpu.memory_bytes}
    return Reason(code="MEMORY_EXCEEDS_GPU", numbers=numbers, gpu_ids=(gpu.gpu_id,))


def alone_reason(view: SchedulingView, request: JobRequest, gpu_ids: Sequence[str]) -> Reason:
    """Return why a job runs alone on these GPUs, for its start."""
    code = "STARTS_ALONE"
    if request.key in view.unpredictable_keys:
        code = "STARTS_ALONE_PREDICTION_FAILED"
    elif view.predictions.job(request.key, view.gpus[gpu_ids[0]].gpu.device) is None:
        code = "STARTS_ALONE_UNPREDICTED"
    return Reason(code=code, numbers={"gpus_count": len(gpu_ids)}, gpu_ids=tuple(gpu_ids))


def host_reason(request: JobRequest) -> Reason:
    """Return that no host has room for a job."""
    worker = request.worker_demand
    if worker is not None and not request.cpu_cores and not request.host_memory_bytes:
        numbers = {"cpu_cores": worker.cpu_cores, "host_memory_bytes": worker.host_memory_bytes}
        return Reason(code="TASKS_DO_NOT_FIT", numbers={"workers_count": request.gpus, **numbers})
    numbers = {"cpu_cores": request.cpu_cores, "host_memory_bytes": request.host_memory_bytes}
    return Reason(code="HOST_DOES_NOT_FIT", numbers=numbers)


def without_host(request: JobRequest) -> JobRequest:
    """Return a request as if it asked for nothing but GPUs: what refuses it is not its hosts."""
    return replace(request, cpu_cores=0.0, host_memory_bytes=0, worker_demand=None, server_demand=None)


def nearest_obstacle(obstacles: Iterable[Reason]) -> Reason:
    """Return the reason that was nearest to a start.

    Raises:
        ValueError: There is none.
    """
    return min(obstacles, key=_nearness)


def _nearness(reason: Reason) -> tuple[int, float, tuple[str, ...]]:
    rank = NEAREST_FIRST.index(reason.code) if reason.code in NEAREST_FIRST else len(NEAREST_FIRST)
    slowdown_ratio = reason.numbers.get("slowdown_ratio") or reason.numbers.get("pairwise_slowdown_ratio", 0.0)
    return rank, slowdown_ratio, reason.gpu_ids
