"""Two jobs begin to share a GPU on trial: what each remembers, and how often a job may be tried."""

from __future__ import annotations

from dataclasses import replace

from scheduler_service.core.event_effects import EventEffects
from scheduler_service.core.jobs.job_records import JobRecord, with_history
from scheduler_service.core.records import Trial, TrialStage
from scheduler_service.core.state import ClusterState

TRIAL_MS = 60_000
"""After so long what was measured decides, if it did not before."""
TRIALS_MAX = 8
"""Times that a job may join another one on trial."""
BROKEN_TRIALS_MAX = 3
"""Broken trials of a job, in whichever role, after which it shares on reliable predictions only."""
_IN_WORDS = {
    TrialStage.STARTING_UP: "{incoming} starts next to {resident} to be measured",
    TrialStage.MEASURING: "{incoming} is measured while {resident} is paused",
    TrialStage.SHARING: "shares with {other} on trial",
}


def begin_trial(
    state: ClusterState, incoming_id: str, resident_id: str, step: EventEffects, stage: TrialStage = TrialStage.SHARING
) -> None:
    """Let a job that was just launched share with the one that was there, on trial."""
    put_stage(state, incoming_id, stage, step, resident_id=resident_id)
    state.put_job(limited(state.jobs[incoming_id].counting(trials=1)))


def put_stage(
    state: ClusterState,
    incoming_id: str,
    stage: TrialStage,
    step: EventEffects,
    *,
    resident_id: str,
    limit_ms: int = TRIAL_MS,
) -> None:
    """Let a stage of a trial begin, which is looked at after a time limit."""
    until_ms = state.now_ms + limit_ms
    for job_id, other_id in ((incoming_id, resident_id), (resident_id, incoming_id)):
        is_incoming = job_id == incoming_id
        trial = Trial(
            other_job_id=other_id, is_incoming=is_incoming, since_ms=state.now_ms, until_ms=until_ms, stage=stage
        )
        message = _IN_WORDS[stage].format(incoming=incoming_id, resident=resident_id, other=other_id)
        state.put_job(with_history(state.jobs[job_id], at_ms=state.now_ms, kind="trial", message=message, trial=trial))
    step.wakes_at_ms.append(until_ms)


def limited(job: JobRecord) -> JobRecord:
    """Return a job that is tried no more once it was tried, or has broken trials, too often."""
    if job.counts.trials < TRIALS_MAX and job.counts.broken_trials < BROKEN_TRIALS_MAX:
        return job
    return job.changed(request=replace(job.request, no_trial=True))
