"""What must hold of an engine's state after every event, whatever happened."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import AfterStop, Phase, Share
from scheduler_service.core.state import ClusterState


class BrokenInvariantError(AssertionError):
    """The engine's memory contradicts itself or the cluster; the message lists every contradiction."""


def check(state: ClusterState) -> None:
    """Check everything.

    Raises:
        BrokenInvariantError: Something does not hold.
    """
    found = [*_job_violations(state), *_gpu_violations(state), *_index_violations(state)]
    if found:
        raise BrokenInvariantError("; ".join(found))


def _job_violations(state: ClusterState) -> Iterator[str]:
    fences: set[int] = set()
    for job in state.jobs.values():
        yield from _one_job(job)
        yield from _pause_violations(job)
        yield from _preparation_violations(job, state.next_fence)
        if job.fence in fences:
            yield f"fence {job.fence} is held twice"
        if job.fence:
            fences.add(job.fence)
        if job.fence >= state.next_fence:
            yield f"{job.job_id} holds fence {job.fence} of the future"
        if (
            max(job.times.submitted_at_ms, job.times.started_at_ms, job.times.finished_at_ms, job.accrued_at_ms)
            > state.now_ms
        ):
            yield f"{job.job_id} has a past in the future"


def _one_job(job: JobRecord) -> Iterator[str]:
    if job.holds_gpus != bool(job.fence):
        yield f"{job.job_id} is {job.phase} with fence {job.fence}"
    if job.holds_gpus and sorted(part.rank for part in job.assignments) != list(range(len(job.assignments))):
        yield f"{job.job_id} holds the ranks of {job.assignments}"
    if job.holds_gpus and len(job.assignments) not in (job.request.allowed_gpus or (job.request.gpus,)):
        yield f"{job.job_id} runs as an incomplete gang"
    if job.phase is Phase.PENDING and job.assignments:
        yield f"{job.job_id} waits with GPUs"
    if job.reason.code == "FINISHED" and job.steps_done < job.request.steps_total:
        yield f"{job.job_id} finished after {job.steps_done} of {job.request.steps_total} steps"
    if (job.moves.target is not None) != (job.after_stop is AfterStop.MOVE) or (
        job.moves.target and job.phase is not Phase.STOPPING
    ):
        yield f"{job.job_id} is {job.phase} with target {job.moves.target} and then {job.after_stop}"
    if job.moves.target and len(job.moves.target.assignments) not in (job.request.allowed_gpus or (job.request.gpus,)):
        yield f"{job.job_id} moves to an incomplete gang"
    if job.counts.restarts > job.request.restart_limit + 1:
        yield f"{job.job_id} was restarted too often"


def _preparation_violations(job: JobRecord, next_fence: int) -> Iterator[str]:
    preparation = job.moves.preparation
    if preparation is None:
        return
    if job.moves.target is None:
        yield f"{job.job_id} prepares the attempt {preparation.attempt} and moves nowhere"
    if (
        not job.attempt < preparation.attempt <= job.moves.prepared_attempt
        or not job.fence < preparation.fence < next_fence
    ):
        yield f"{job.job_id} prepares {preparation} beside attempt {job.attempt} with fence {job.fence}"


def _pause_violations(job: JobRecord) -> Iterator[str]:
    if job.pause is not None and (not job.holds_gpus or job.phase is Phase.STOPPING):
        yield f"{job.job_id} is {job.phase} with a pause"
    if (job.phase is Phase.PAUSED) != (job.pause is not None and job.pause.paused_at_ms > 0):
        yield f"{job.job_id} is {job.phase} with the pause {job.pause}"


def _surge_bytes(job: JobRecord, gpu_id: str) -> int:
    """What of its memory on a GPU a job leaves to others while it does not need it."""
    target = job.moves.target
    surge = (job.shape if target is None or gpu_id in job.gpu_ids else target.shape).memory_surge
    return surge.surge_bytes if surge is not None else 0


def _gpu_violations(state: ClusterState) -> Iterator[str]:
    for gpu_id, view in state.gpus.items():
        holders = tuple(sorted(job.job_id for job in state.jobs.values() if gpu_id in job.occupied_bytes))
        if tuple(sorted(view.job_ids)) != holders:
            yield f"{gpu_id} is recorded as holding {view.job_ids}, but {holders} hold it"
        jobs = [state.jobs[job_id] for job_id in holders]
        surges = [_surge_bytes(job, gpu_id) for job in jobs]
        reserved = sum(job.occupied_bytes[gpu_id] for job in jobs) - sum(surges) + max(surges, default=0)
        if reserved != view.memory_reserved_bytes or reserved > view.gpu.memory_bytes:
            yield f"{gpu_id}: {reserved} of {view.gpu.memory_bytes} bytes held, {view.memory_reserved_bytes} recorded"
        if len(jobs) > 1 and any(job.request.share is Share.NEVER for job in jobs):
            yield f"{gpu_id} is shared by {holders} against a job's will"
        is_releasing = any(job.phase is Phase.STOPPING or job.pause for job in jobs) or _is_haunted(state, gpu_id)
        if is_releasing != view.is_releasing:
            yield f"{gpu_id} releasing is {view.is_releasing}"
        is_free = gpu_id in state.usable_gpus and not holders and not is_releasing
        if is_free != (gpu_id in state.occupancy.free_gpu_ids):
            yield f"{gpu_id} free is not {is_free}"


def _is_haunted(state: ClusterState, gpu_id: str) -> bool:
    return any(gpu_id in abandoned.gpu_ids for abandoned in state.abandoned_attempts.values())


def _index_violations(state: ClusterState) -> Iterator[str]:
    for phase in Phase:
        indexed, found = set(state.in_phase(phase)), {j.job_id for j in state.jobs.values() if j.phase is phase}
        if indexed != found:
            yield f"phase {phase}: indexed {sorted(indexed)}, found {sorted(found)}"
    pending = set(state.in_phase(Phase.PENDING))
    ready = [job.request.job_id for job in state.waiting.ready_jobs()]
    if set(ready) | set(state.holds) != pending or set(ready) & set(state.holds):
        yield f"pending {sorted(pending)} are not {ready} and {sorted(state.holds)}"
    undecided = sorted(pending - set(state.decisions))
    if undecided and state.usable_gpus and state.decided_at_ms == state.now_ms:
        yield f"no reason is given why {undecided} wait"
    running = {job.job_id for job in state.jobs.values() if job.holds_gpus}
    if set(state.running) != running:
        yield f"running {sorted(state.running)} is not {sorted(running)}"
    paused = {job.job_id for job in state.jobs.values() if job.pause is not None}
    if set(state.pauses) != paused:
        yield f"pauses {sorted(state.pauses)} are not {sorted(paused)}"
    for job_id in running:
        node_ids = {view.node_id for gpu_id in state.jobs[job_id].gpu_ids if (view := state.gpus.get(gpu_id))}
        if not node_ids <= {*state.jobs[job_id].node_ids, *state.nodes}:
            yield f"{job_id} runs on unknown nodes"
        job, jobs_on_gpu = state.jobs[job_id], state.occupancy.jobs_on_gpu
        others = dict.fromkeys(other for gpu_id in job.gpu_ids for other in jobs_on_gpu(gpu_id) if other != job_id)
        if state.occupancy.neighbours(job) != tuple(others):
            yield f"{job_id} is next to {state.occupancy.neighbours(job)}, but {tuple(others)} are there"
