"""Jobs whose peaks of memory take turns on one GPU: the one that came last waits while the peak of another lasts.

Placement lets peaks coincide with a small probability only; this is what happens when they are about to. While a job
is at its peak and the one that came last is not, and both peaks would not fit, that one is paused; it goes on when the
peak is over. Where that lasts too long, or both are at their peaks all the same, it is stopped with a checkpoint and
waits as long as it might have been paused: placement does not see that the other peak lasts, and would start it with
that at once. After a few such ends it keeps its whole peak to itself. Agents report every few seconds: shorter peaks
than that are never seen here, and for them only the probability counts.

Source:
    OJPP bounds how often peaks coincide (Eq. 5) and does not say what a cluster does when they do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler_service.core.decisions import Pause
from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.events import Event
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.jobs.opportunistic_sharing import held_bytes
from scheduler_service.core.lifecycle.attempts import stop
from scheduler_service.core.memory_events import MemoryReported
from scheduler_service.core.records import AfterStop, MemoryTriple, Phase, Reason
from scheduler_service.core.sharing.pausability import pause_obstacle
from scheduler_service.core.sharing.pausing import CONFIRMATION_MS_MAX, WAIT_MS_MAX, order_pause, order_resume
from scheduler_service.core.state import ClusterState

COLLISIONS_MAX = 3
"""Stops for coinciding peaks after which a job shares its peak no more."""
CHANGED_RATIO = 0.02
"""By so much of the device, or of the time, states of memory differ from what is known of them."""
PEAKS_NEAR = "PEAKS_NEAR"
_STOPS = frozenset({"PEAKS_COINCIDED", "PEAK_TOO_LONG"})


def note_memory(state: ClusterState, event: MemoryReported, step: EventEffects) -> None:
    """Take in what a job has allocated, and judge the peaks on its GPUs."""
    job = state.jobs.get(event.job_id)
    if job is None or not job.fence or (job.attempt, job.fence) != (event.attempt, event.fence):
        return
    if job.phase not in (Phase.RUNNING, Phase.PAUSED):
        return
    state.put_job(job.measuring(memory_now_bytes=event.used_bytes))
    if event.low_bytes > 0:
        _learn(state, job, event)
    for gpu_id in job.gpu_ids:
        _judge(state, gpu_id, step)


def _learn(state: ClusterState, job: JobRecord, event: MemoryReported) -> None:
    """Let what was measured take the place of what was predicted of the job's kind.

    What the job itself holds was promised to those that share with it, and stays; how often it needs more does not.
    """
    gpu = state.gpus.get(job.gpu_ids[0])
    if gpu is None or not job.request.key or gpu.gpu.memory_bytes <= 0:
        return
    device_bytes = gpu.gpu.memory_bytes
    triple = MemoryTriple(
        gamma_ratio=min(event.low_bytes / device_bytes, 1.0),
        delta_ratio=min(event.extra_bytes / device_bytes, 1.0),
        high_state_ratio=min(max(event.high_state_ratio, 0.0), 1.0),
    )
    state.predictions.observe_memory_states(job.request.key, gpu.gpu.device, triple)
    if job.shape.memory_surge is not None:
        surge = replace(job.shape.memory_surge, high_state_ratio=triple.high_state_ratio)
        newest = state.jobs[job.job_id]
        state.put_job(newest.changed(shape=newest.shape.changed(memory_surge=surge)))


def is_news(state: ClusterState, job: JobRecord, event: MemoryReported) -> bool:
    """Say whether a report changes anything: heartbeats repeat the rest, and every fact is stored."""
    before, now = job, job.measuring(memory_now_bytes=event.used_bytes)
    if job.shape.memory_surge is not None and is_at_peak(before) is not is_at_peak(now):
        return True
    gpu = state.gpus.get(job.gpu_ids[0]) if job.gpu_ids else None
    known = state.predictions.job(job.request.key, gpu.gpu.device) if gpu is not None else None
    if event.low_bytes <= 0 or gpu is None or known is None:
        return False
    triple, device_bytes = known.memory_triple, gpu.gpu.memory_bytes
    if triple is None:
        return True
    seen = event.low_bytes / device_bytes, event.extra_bytes / device_bytes, event.high_state_ratio
    changes = zip(seen, (triple.gamma_ratio, triple.delta_ratio, triple.high_state_ratio), strict=True)
    return any(abs(one - other) > CHANGED_RATIO for one, other in changes)


def is_at_peak(job: JobRecord) -> bool:
    """Say whether a job used more than what it holds all the time, by its newest report."""
    surge = job.shape.memory_surge
    return surge is not None and job.measured.memory_now_bytes > job.shape.memory_reserved_bytes - surge.surge_bytes


def _judge(state: ClusterState, gpu_id: str, step: EventEffects) -> None:
    jobs = [state.jobs[job_id] for job_id in state.occupancy.jobs_on_gpu(gpu_id)]
    taking_turns = [job for job in jobs if job.shape.memory_surge is not None]
    newest = max(taking_turns, key=lambda job: (job.times.started_at_ms, job.fence), default=None)
    gpu = state.gpus.get(gpu_id)
    if newest is None or gpu is None or len(taking_turns) < 2 or newest.phase not in (Phase.RUNNING, Phase.PAUSED):
        return
    others, peaks = [job for job in jobs if job is not newest], [job for job in taking_turns if is_at_peak(job)]
    needed_bytes = sum(_present_bytes(job) for job in others) + newest.shape.memory_reserved_bytes
    others_at_peak = [job for job in peaks if job is not newest]
    numbers = {"needed_bytes": needed_bytes, "gpu_memory_bytes": gpu.gpu.memory_bytes}
    if not others_at_peak or needed_bytes <= gpu.gpu.memory_bytes:
        _let_go_on(state, newest, step)
    elif newest in peaks:
        _stop(state, newest, _reason("PEAKS_COINCIDED", numbers, others_at_peak), step)
    elif newest.pause is None and pause_obstacle(state, newest) is None:
        reason = _reason(PEAKS_NEAR, numbers, others_at_peak)
        order_pause(state, Pause(job_id=newest.job_id, reason=reason), step)
        step.wakes_at_ms.append(state.now_ms + WAIT_MS_MAX)


def _present_bytes(job: JobRecord) -> int:
    """Return what a job takes at present: all that is kept for it at its peak, else what it holds always."""
    return (
        job.shape.memory_reserved_bytes
        if is_at_peak(job)
        else held_bytes(job.shape.memory_reserved_bytes, job.shape.memory_surge) or job.shape.memory_reserved_bytes
    )


def _reason(code: str, numbers: Mapping[str, float], others: Sequence[JobRecord]) -> Reason:
    return Reason(code=code, numbers=numbers, job_ids=tuple(job.job_id for job in others))


def _let_go_on(state: ClusterState, job: JobRecord, step: EventEffects) -> None:
    if job.pause is not None and not job.pause.is_resuming and job.pause.reason.code == PEAKS_NEAR:
        order_resume(state, job.job_id, step)


def _stop(state: ClusterState, job: JobRecord, reason: Reason, step: EventEffects) -> None:
    """Stop a job with a checkpoint; one that was stopped so a few times keeps its peak to itself from then on."""
    job = job.counting(peak_collisions=1)
    if job.counts.peak_collisions >= COLLISIONS_MAX:
        job = job.changed(request=replace(job.request, releases_memory=False))
    stop(state, job, AfterStop.REQUEUE, step, reason=reason)


def why_it_waits(job: JobRecord) -> tuple[Reason, int]:
    """Return why a job that gave its GPUs up is in the queue, and how many ms it stays there at least."""
    if job.reason.code not in _STOPS:
        return Reason(code="PREEMPTED"), 0
    return Reason(code="PEAKS_MET", numbers={"wait_ms": WAIT_MS_MAX}, job_ids=job.reason.job_ids), WAIT_MS_MAX


def end_peak_pause(state: ClusterState, job: JobRecord, step: EventEffects) -> None:
    """Let a job go on that waits for a peak and is alone by now, and stop one that has waited too long."""
    pause = job.pause
    if pause is None:
        return
    limit_ms = WAIT_MS_MAX if job.phase is Phase.PAUSED else CONFIRMATION_MS_MAX
    if not state.occupancy.neighbours(job):
        order_resume(state, job.job_id, step)
    elif state.now_ms >= pause.ordered_at_ms + limit_ms:
        _stop(state, job, replace(pause.reason, code="PEAK_TOO_LONG"), step)


HANDLERS: Mapping[type[Event], Callable[[ClusterState, Any, EventEffects], None]] = {MemoryReported: note_memory}
"""What handles reports of memory."""
