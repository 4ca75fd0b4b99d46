"""Retried jobs: one piece of work under several ids."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_service.core.records import Phase
from scheduler_service.core.state import ClusterState


def living_repetition(state: ClusterState, job_id: str) -> str:
    """Return which job of the same work has not ended; empty = none."""
    known = (state.jobs[one] for one in _same_work(state, job_id) if one in state.jobs)
    return next((job.job_id for job in known if not job.has_ended), "")


def has_only_failed(state: ClusterState, job_id: str) -> bool:
    """Return whether a known job's work finished under none of its ids."""
    phases = {state.jobs[one].phase for one in _same_work(state, job_id) if one in state.jobs}
    return job_id in state.jobs and Phase.FINISHED not in phases


def _same_work(state: ClusterState, job_id: str) -> Iterator[str]:
    """Yield the first job of a piece of work, then its retries and theirs."""
    first = job_id
    while first in state.jobs and state.jobs[first].request.terms.retry_of:
        first = state.jobs[first].request.terms.retry_of
    waiting = [first]
    while waiting:
        yield (one := waiting.pop())
        waiting += state.register.repetitions_of(one)
