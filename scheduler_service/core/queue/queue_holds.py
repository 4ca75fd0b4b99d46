"""Why a pending job may not start yet by what it asked of the queue, and which jobs wait for it in vain."""

from __future__ import annotations

from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.queue.queue_terms import QueueTerms
from scheduler_service.core.records import Phase, Reason
from scheduler_service.core.state import ClusterState

NAMED_PARENTS_MAX = 16
"""Jobs that a reason names."""


def find_queue_hold(state: ClusterState, job: JobRecord) -> Reason | None:
    """Return why a job waits for its owner, for other jobs or for its array; None = it does not."""
    terms = job.request.terms
    return _own_hold(state, terms) or _array_hold(state, job, terms)


def _own_hold(state: ClusterState, terms: QueueTerms) -> Reason | None:
    if terms.is_held:
        return Reason(code="HELD")
    awaited = _awaited(state, terms) if terms.after_job_ids else ()
    if awaited:
        return Reason(code="AFTER", numbers={"jobs_count": len(awaited)}, job_ids=awaited[:NAMED_PARENTS_MAX])
    return None


def _awaited(state: ClusterState, terms: QueueTerms) -> tuple[str, ...]:
    """Return the parents that still live; one that is forgotten ended long ago, and as it should."""
    jobs = state.jobs
    return tuple(name for name in terms.after_job_ids if name in jobs and not jobs[name].has_ended)


def _array_hold(state: ClusterState, job: JobRecord, terms: QueueTerms) -> Reason | None:
    if not terms.array_running_max:
        return None
    slots = terms.array_running_max - state.register.running_tasks(terms.array_id)
    for task_id in state.register.tasks_of(terms.array_id):
        if slots <= 0 or task_id == job.job_id:
            break
        slots -= _takes_slot(state, state.jobs[task_id])
    if slots > 0:
        return None
    return Reason(code="ARRAY_LIMIT", numbers={"jobs_max": terms.array_running_max})


def find_misplaced_tasks(state: ClusterState, terms: QueueTerms) -> list[str]:
    """Return the waiting tasks of an array that are shown and should not be, or the other way round."""
    slots = terms.array_running_max - state.register.running_tasks(terms.array_id)
    found = []
    for task_id in state.register.tasks_of(terms.array_id):
        if _takes_slot(state, state.jobs[task_id]):
            hold = state.holds.get(task_id)
            if (slots > 0) is (hold is not None and hold.code == "ARRAY_LIMIT"):
                found.append(task_id)
            slots -= 1
    return found


def _takes_slot(state: ClusterState, task: JobRecord) -> bool:
    """Say whether a waiting task may start before those that come after it."""
    return task.phase is Phase.PENDING and _own_hold(state, task.request.terms) is None


def find_failed_parent(state: ClusterState, terms: QueueTerms) -> str:
    """Return a parent for whose success a job waits in vain; empty = there is none."""
    if terms.after_any or not terms.after_job_ids:
        return ""
    failed = (Phase.FAILED, Phase.CANCELLED)
    jobs = state.jobs
    return next((name for name in terms.after_job_ids if name in jobs and jobs[name].phase in failed), "")
