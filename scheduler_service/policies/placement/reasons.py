"""Why a job starts where it starts, why it waits, and which of many obstacles is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from scheduler_service.core.cluster_view.capacity import expected_bytes, samples_per_gpu
from scheduler_service.core.cluster_view.inventory import Inventory, slices_counted
from scheduler_service.core.cluster_view.view import SchedulingView
from scheduler_service.core.records import Gpu, JobRequest, Reason
from scheduler_service.policies.placement.free_gpus import fits_alone

NEAREST_FIRST = (
    "SHARING_NOT_WORTH_IT",
    "REMAINING_TIME_UNKNOWN",
    "SLOWDOWN_TOO_HIGH",
    "WORKERS_OUT_OF_BALANCE",
    "DEVICE_SLOWDOWN_TOO_HIGH",
    "COLLISION_TOO_LIKELY",
    "TRIAL_GOES_ON",
    "PAIR_UNKNOWN",
    "OUT_OF_DOMAIN",
    "RANGE_NOT_CALIBRATED",
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
_RANKS = {code: rank for rank, code in enumerate(NEAREST_FIRST)}


def full_reason(view: SchedulingView) -> Reason:
    """Return why no job can start now."""
    if not view.gpus:
        return Reason(code="GPUS_NOT_IN_CLUSTER", numbers={"gpus_needed": 1, "gpus_in_cluster": 0})
    return Reason(code="CLUSTER_FULL", numbers={"gpus_in_cluster": len(view.gpus)})


def impossible_reason(view: SchedulingView, inventory: Inventory, request: JobRequest) -> Reason | None:
    """Return why a job could not even start on the empty cluster, or None when it could."""
    largest = max(inventory.count.values(), default=0)
    if request.gpus > largest:
        numbers = {"gpus_needed": request.gpus, "gpus_in_cluster": largest, **slices_counted(inventory)}
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


def too_large(view: SchedulingView, request: JobRequest, gpu: Gpu) -> Reason:
    """Return that a job needs more memory than a GPU has, for one where `fits_alone` is false."""
    prediction = view.predictions.job(request.key, gpu.device)
    needed_bytes = expected_bytes(request, prediction, samples_per_gpu(request, request.gpus))
    numbers = {"needed_bytes": needed_bytes, "gpu_memory_bytes": gpu.memory_bytes}
    return Reason(code="MEMORY_EXCEEDS_GPU", numbers=numbers, gpu_ids=(gpu.gpu_id,))


def alone_reason(
    view: SchedulingView,
    request: JobRequest,
    gpu_ids: Sequence[str],
    numbers: Mapping[str, float] = MappingProxyType({}),
) -> Reason:
    """Return why a job runs alone on these GPUs, for its start, with what the policy adds."""
    code = "STARTS_ALONE"
    if request.key in view.unpredictable_keys:
        code = "STARTS_ALONE_PREDICTION_FAILED"
    elif view.predictions.job(request.key, view.gpus[gpu_ids[0]].gpu.device) is None:
        code = "STARTS_ALONE_UNPREDICTED"
    return Reason(code=code, numbers={"gpus_count": len(gpu_ids), **numbers}, gpu_ids=tuple(gpu_ids))


def host_reason(request: JobRequest) -> Reason:
    """Return that no host has room for a job."""
    worker = request.worker_demand
    if worker is not None and not request.cpu_cores and not request.host_memory_bytes:
        numbers = {"cpu_cores": worker.cpu_cores, "host_memory_bytes": worker.host_memory_bytes}
        return Reason(code="TASKS_DO_NOT_FIT", numbers={"workers_count": request.gpus, **numbers})
    numbers = {"cpu_cores": request.cpu_cores, "host_memory_bytes": request.host_memory_bytes}
    return Reason(code="HOST_DOES_NOT_FIT", numbers=numbers)


def nearest_obstacle(obstacles: Iterable[Reason]) -> Reason:
    """Return the reason that was nearest to a start.

    Raises:
        ValueError: There is none.
    """
    return min(obstacles, key=lambda reason: (*nearness_of(reason), reason.gpu_ids))


def nearness_of(reason: Reason) -> tuple[int, float]:
    """Return how near to a start a reason was, the nearest first; of equal ones the first GPU is shown."""
    rank = _RANKS.get(reason.code, len(_RANKS))
    slowdown_ratio = reason.numbers.get("slowdown_ratio") or reason.numbers.get("pairwise_slowdown_ratio", 0.0)
    return rank, slowdown_ratio
