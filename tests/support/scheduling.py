"""Builders for scheduler tests: every field has a default, so that a test states only what matters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scheduler_service.core.cluster_view.capacity import reserved_bytes
from scheduler_service.core.cluster_view.cluster_index import FreshIndex
from scheduler_service.core.cluster_view.view import GpuView, HostUse, PendingJob, RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.planning.explanation import Explanation
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.records import (
    Assignment,
    Gpu,
    JobPrediction,
    JobRequest,
    MemoryPoint,
    Node,
    PairPrediction,
)

GIB = 2**30
DEVICE = "standin"


def gpu(gpu_id: str = "g0", **changes: Any) -> Gpu:
    """A stand-in device with 8 GiB."""
    return Gpu(**{"gpu_id": gpu_id, "device": DEVICE, "memory_bytes": 8 * GIB, **changes})


def node(node_id: str = "n0", gpus: int | Sequence[Gpu] = 1, **changes: Any) -> Node:
    """A node with so many stand-in devices called NODE.0, NODE.1 ..."""
    if isinstance(gpus, int):
        gpus = tuple(gpu(f"{node_id}.{index}", index=index) for index in range(gpus))
    return Node(**{"node_id": node_id, "gpus": tuple(gpus), **changes})


def job(job_id: str = "j0", **changes: Any) -> JobRequest:
    """A job for one GPU with ten steps and a key of its own."""
    return JobRequest(**{"job_id": job_id, "key": f"key-{job_id}", "steps_total": 10, **changes})


def prediction(key: str = "key-j0", **changes: Any) -> JobPrediction:
    """A reliable prediction: utilization 0.3, 1 GiB, at most 2 GiB, whatever the micro-batch."""
    point = MemoryPoint(memory_bytes=GIB, memory_bytes_upper_99=2 * GIB)
    defaults: dict[str, Any] = {"key": key, "device": DEVICE, "utilization_ratio": 0.3, "memory": {1_000_000: point}}
    return JobPrediction(**{**defaults, **changes})


def memory(gib: float, upper_gib: float | None = None) -> Mapping[int, MemoryPoint]:
    """Memory of a prediction at every micro-batch."""
    upper = int((gib if upper_gib is None else upper_gib) * GIB)
    return {1_000_000: MemoryPoint(memory_bytes=int(gib * GIB), memory_bytes_upper_99=upper)}


def pair(victim_key: str, other_key: str, slowdown_ratio: float = 0.1, **changes: Any) -> PairPrediction:
    """A reliable prediction for a pair."""
    defaults: dict[str, Any] = {
        "victim_key": victim_key,
        "other_key": other_key,
        "device": DEVICE,
        "slowdown_ratio": slowdown_ratio,
        "upper_ratio": slowdown_ratio,
    }
    return PairPrediction(**{**defaults, **changes})


def all_pairs(keys: Sequence[str], slowdown_ratio: float = 0.1, **changes: Any) -> list[PairPrediction]:
    """Every ordered pair of keys, with themselves, at one slowdown."""
    return [pair(victim, other, slowdown_ratio, **changes) for victim in keys for other in keys]


def store(jobs: Iterable[JobPrediction] = (), pairs: Iterable[PairPrediction] = ()) -> PredictionStore:
    """A store with these predictions."""
    filled = PredictionStore()
    for one in jobs:
        filled.put_job(one)
    for one_pair in pairs:
        filled.put_pair(one_pair)
    return filled


def pending(request: JobRequest, submitted_at_ms: int = 0, **changes: Any) -> PendingJob:
    """A job that waits."""
    return PendingJob(request=request, submitted_at_ms=submitted_at_ms, **changes)


def running(request: JobRequest, gpu_ids: Sequence[str], **changes: Any) -> RunningJob:
    """A job that holds these GPUs."""
    assignments = tuple(Assignment(gpu_id=gpu_id, rank=rank) for rank, gpu_id in enumerate(gpu_ids))
    defaults: dict[str, Any] = {
        "request": request,
        "attempt": 1,
        "assignments": assignments,
        "micro_batch_size": -(-request.global_batch_size // len(gpu_ids)),
        "submitted_at_ms": 0,
        "started_at_ms": 0,
    }
    return RunningJob(**{**defaults, **changes})


def view(
    *,
    nodes: Sequence[Node] = (),
    waiting: Sequence[PendingJob] = (),
    holding: Sequence[RunningJob] = (),
    predictions: PredictionStore | None = None,
    now_ms: int = 0,
    **changes: Any,
) -> SchedulingView:
    """A view of these nodes and jobs; what running jobs reserve is computed as the engine would."""
    known = predictions if predictions is not None else store()
    devices = {one.gpu_id: one for machine in nodes for one in machine.gpus}
    holders = [_with_reservation(one, devices, known) for one in holding]
    gpus = {
        one.gpu_id: _gpu_view(one, machine.node_id, holders)
        for machine in nodes
        if machine.connected and machine.schedulable
        for one in machine.gpus
        if one.healthy
    }
    return SchedulingView(
        **{
            "now_ms": now_ms,
            "nodes": {machine.node_id: machine for machine in nodes if machine.connected and machine.schedulable},
            "gpus": gpus,
            "pending": tuple(sorted(waiting, key=lambda one: (one.submitted_at_ms, one.request.job_id))),
            "running": {one.request.job_id: one for one in holders},
            "predictions": known,
            "index": FreshIndex(),
            "host_use": _host_use(holders, gpus),
            **changes,
        }
    )


def _with_reservation(one: RunningJob, devices: Mapping[str, Gpu], known: PredictionStore) -> RunningJob:
    if one.memory_reserved_bytes:
        return one
    device = devices[one.assignments[0].gpu_id]
    need = reserved_bytes(one.request, known.job(one.request.key, device.device), one.micro_batch_size, device)
    return one.changed(memory_reserved_bytes=device.memory_bytes if need is None else need)


def _gpu_view(one: Gpu, node_id: str, holders: Sequence[RunningJob]) -> GpuView:
    here = [holder for holder in holders if any(part.gpu_id == one.gpu_id for part in holder.assignments)]
    return GpuView(
        gpu=one,
        node_id=node_id,
        job_ids=tuple(holder.request.job_id for holder in here),
        memory_reserved_bytes=sum(holder.memory_reserved_bytes for holder in here),
        is_releasing=any(holder.is_stopping for holder in here),
    )


def _host_use(holders: Sequence[RunningJob], gpus: Mapping[str, GpuView]) -> dict[str, HostUse]:
    use: dict[str, HostUse] = {}
    for holder in holders:
        for part in holder.assignments:
            if part.gpu_id in gpus:
                node_id = gpus[part.gpu_id].node_id
                before, share = use.get(node_id, HostUse()), len(holder.assignments)
                use[node_id] = HostUse(
                    cpu_cores=before.cpu_cores + holder.request.cpu_cores / share,
                    host_memory_bytes=before.host_memory_bytes + holder.request.host_memory_bytes // share,
                )
    return use


def explained(engine: SchedulerEngine, job_id: str) -> Decision:
    """Return why a job is where it is, with the candidates looked at where it waits for the policy."""
    found = engine.explanation(job_id)
    return found.find() if isinstance(found, Explanation) else found
