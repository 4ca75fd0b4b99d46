"""What follows when a job runs out of device memory: an account of it for its owner, and the next try, a bounded one.

While it shared, more is reserved from then on than was available to it, so that it goes elsewhere or runs alone. Alone
it is tried with half of the micro-batch, a few times, unless its owner refuses that (share: never) or its program cuts
no batch; then on a larger device where the cluster has one; and else once more as it was. A job that is only predicted
to be too large for every device is tried alone on a largest one: a wrong prediction locks no job out, and then what was
measured counts.

Source: Horus 4.2.3 (requirement equal to or greater than the memory that was available).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduler_service.core.cluster_view.capacity import memory_point
from scheduler_service.core.decisions import Decision, Hold, HoldRest, unfolded
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.events import JobFailed
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.lifecycle.attempts import end, restart
from scheduler_service.core.queue.queue_terms import is_device_named
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import MemoryAutopsy, Phase, Reason, Share
from scheduler_service.core.state import ClusterState

_TOO_LARGE = "MEMORY_EXCEEDS_GPU"
HALVINGS_MAX = 3
"""Of a job's micro-batch: an eighth of what was planned says enough about a script that takes no notice of it."""
CO_LOCATED_NAMED_MAX = 16


def out_of_memory(state: ClusterState, job: JobRecord, event: JobFailed, step: EventEffects) -> None:
    """Note what happened and try again, or end the job.

    Args:
        state: Knows the device.
        job: With its end noted.
        event: The agent's report.
        step: Takes what follows.
    """
    gpu = state.gpus.get(job.gpu_ids[0])
    capacity = gpu.gpu.memory_bytes if gpu is not None else event.memory_available_bytes
    job = job.reporting(memory_autopsy=_examine(state, job, event, capacity))
    numbers = {"memory_peak_bytes": float(event.memory_peak_bytes), "gpu_memory_bytes": float(capacity)}
    if job.measured.was_shared:
        more = max(event.memory_available_bytes + 1, event.memory_peak_bytes, job.shape.memory_reserved_bytes + 1)
        job = _demanding(job, min(more, capacity)).counting(out_of_memory=1)
        restart(state, job, Reason(code="OUT_OF_MEMORY_RETRY", numbers=numbers), step)
    else:
        _try_alone_again(state, _demanding(job, capacity).counting(out_of_memory=1), capacity, numbers, step)


def let_try_alone(state: ClusterState, decision: Decision, step: EventEffects) -> None:
    """Give a job that waits because of nothing but a prediction a largest device for itself, once.

    Args:
        state: Its GPUs are those of all nodes, also of such as are away.
        decision: Lets one job wait, or several.
        step: Asks for another decision.
    """
    largest_bytes: dict[tuple[str, ...], int] = {}
    for hold in _too_large_of(decision):
        job = state.jobs.get(hold.job_id)
        if job is None or job.reported.memory_autopsy is not None or job.request.memory_request_bytes:
            continue
        devices = job.request.terms.devices
        if devices not in largest_bytes:
            largest_bytes[devices] = _largest_usable_bytes(state, devices)
        if largest_bytes[devices]:
            request = replace(job.request, memory_request_bytes=largest_bytes[devices])
            message = f"tried alone, since a prediction may be wrong: {describe_reason(hold.reason)}"
            state.put_job(with_history(job, at_ms=state.now_ms, kind="memory", message=message, request=request))
            step.wakes_at_ms.append(state.now_ms + 1)


def _too_large_of(decision: Decision) -> Sequence[Hold]:
    """Return the holds of jobs that wait for no other reason than that."""
    codes = [decision.reason.code]
    if isinstance(decision, HoldRest) and decision.reasons:
        codes += [one.code for one in decision.reasons.values()]
    if _TOO_LARGE not in codes:
        return ()
    return [one for one in unfolded((decision,)) if isinstance(one, Hold) and one.reason.code == _TOO_LARGE]


def _largest_usable_bytes(state: ClusterState, devices: tuple[str, ...]) -> int:
    """Return the memory of the largest GPUs of these types; 0 = there are none, or the largest are away now."""
    kinds = {(gpu.device, gpu.memory_bytes) for node in state.nodes.values() for gpu in node.gpus}
    largest = max((size for device, size in kinds if is_device_named(devices, device)), default=0)
    usable = (gpu for gpu in state.occupancy.inventory.gpus.values() if is_device_named(devices, gpu.device))
    return largest if any(gpu.memory_bytes == largest for gpu in usable) else 0


def _try_alone_again(
    state: ClusterState, job: JobRecord, capacity: int, numbers: dict[str, float], step: EventEffects
) -> None:
    if _may_be_halved(job):
        half = job.shape.micro_batch_size // 2
        job = _limited(job, half)
        restart(state, job, Reason(code="OUT_OF_MEMORY_HALVED", numbers=numbers | {"micro_batch_size": half}), step)
    elif any(view.gpu.memory_bytes > capacity for view in state.gpus.values()):
        job = _demanding(job, capacity + 1)
        restart(state, job, Reason(code="OUT_OF_MEMORY_LARGER_GPU", numbers=numbers), step)
    elif job.counts.out_of_memory_alone:
        end(state, job, Phase.FAILED, Reason(code="OUT_OF_MEMORY", numbers=numbers), step)
    else:
        job = job.counting(out_of_memory_alone=1)
        restart(state, job, Reason(code="OUT_OF_MEMORY_RETRY", numbers=numbers), step)


def _demanding(job: JobRecord, floor_bytes: int) -> JobRecord:
    floor = max(job.request.memory_floor_bytes, floor_bytes)
    return job.changed(request=replace(job.request, memory_floor_bytes=floor))


def _may_be_halved(job: JobRecord) -> bool:
    halvings = job.reported.memory_autopsy.halvings if job.reported.memory_autopsy is not None else 0
    is_whole = job.request.takes_whole_batch or job.request.share is Share.NEVER
    return not is_whole and job.shape.micro_batch_size > 1 and halvings < HALVINGS_MAX


def _limited(job: JobRecord, micro_batch_size: int) -> JobRecord:
    autopsy = job.reported.memory_autopsy
    if autopsy is None:
        return job
    halved = replace(autopsy, halvings=autopsy.halvings + 1, micro_batch_size_max=micro_batch_size)
    return job.reporting(memory_autopsy=halved)


def _examine(state: ClusterState, job: JobRecord, event: JobFailed, capacity: int) -> MemoryAutopsy:
    gpu_id = job.gpu_ids[0]
    gpu = state.gpus.get(gpu_id)
    known = state.predictions.job(job.request.key, gpu.gpu.device) if gpu is not None else None
    point = memory_point(known, job.shape.micro_batch_size) if known is not None else None
    before = job.reported.memory_autopsy
    return MemoryAutopsy(
        attempt=job.attempt,
        gpu_id=gpu_id,
        gpu_memory_bytes=capacity,
        micro_batch_size=job.shape.micro_batch_size,
        predicted_bytes=point.memory_bytes if point is not None else 0,
        predicted_upper_99_bytes=point.memory_bytes_upper_99 if point is not None else 0,
        reserved_bytes=job.shape.memory_reserved_bytes,
        peak_bytes=max(event.memory_peak_bytes, job.measured.attempt_peak_bytes),
        available_bytes=event.memory_available_bytes,
        co_located_ids=state.occupancy.neighbours(job)[:CO_LOCATED_NAMED_MAX],
        detail=event.detail[:500],
        micro_batch_size_max=before.micro_batch_size_max if before is not None else 0,
        halvings=before.halvings if before is not None else 0,
    )
