"""Two jobs begin to share a GPU on trial: what each remembers, and how often a job may be tried."""

from __future__ import annotations

from dataclasses import replace

from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.job_records import JobRecord, with_history
from scheduler_service.core.records import Trial
from scheduler_service.core.state import ClusterState

TRIAL_MS = 60_000
"""After so long what was measured decides, if it did not before."""
TRIALS_MAX = 8
"""Times that a job may join another one on trial."""
BROKEN_TRIALS_MAX = 3
"""Broken trials of a job, in whichever role, after which it shares on reliable predictions only."""


def begin_trial(state: ClusterState, incoming_id: str, resident_id: str, step: EventEffects) -> None:
    """Let a job that was just launched share with the one that was there, on trial."""
    until_ms = state.now_ms + TRIAL_MS
    for job_id, other_id in ((incoming_id, resident_id), (resident_id, incoming_id)):
        is_incoming = job_id == incoming_id
        trial = Trial(other_job_id=other_id, is_incoming=is_incoming, since_ms=state.now_ms, until_ms=until_ms)
        job = with_history(
            state.jobs[job_id],
            at_ms=state.now_ms,
            kind="trial",
            message=f"shares with {other_id} on trial",
            trial=trial,
        )
        state.put_job(limited(job.counting(trials=is_incoming)))
    step.wakes_at_ms.append(until_ms)


def limited(job: JobRecord) -> JobRecord:
    """Return a job that is tried no more once it was tried, or has broken trials, too often."""
    if job.counts.trials < TRIALS_MAX and job.counts.broken_trials < BROKEN_TRIALS_MAX:
        return job
    return job.changed(request=replace(job.request, no_trial=True))
