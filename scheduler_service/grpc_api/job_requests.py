"""What requests of users lead to: facts, proposed when the request's turn has come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.job_specs import kept_launch, kept_settings
from scheduler_service.adapters.recovery import JobNumbers
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import JobCancelled, JobSubmitted, PolicyChosen
from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.records import Phase
from scheduler_service.errors import OverloadedError, UnknownJobError
from scheduler_service.grpc_api.translate_jobs import job_request
from scheduler_service.grpc_api.validation import body_sha256
from scheduler_service.live_loop import Mutation, Proposal

# Jobs that have not ended; beyond it a submission is refused, so that a runaway script cannot fill the memory.
LIVING_JOBS_MAX = 100_000
_LIVING_PHASES = (Phase.PENDING, Phase.STARTING, Phase.RUNNING, Phase.PAUSED, Phase.STOPPING)


def submitted(job_id: str, spec: scheduling_pb2.JobSpec, *, has_trials: bool = True) -> JobSubmitted:
    """Return the fact that a job was handed in; without trials in this cluster it refuses them."""
    if not has_trials:
        refusing = scheduling_pb2.JobSpec()
        refusing.CopyFrom(spec)
        refusing.no_trial, spec = True, refusing
    return JobSubmitted(
        at_ms=0,
        request=job_request(job_id, spec),
        launch=kept_launch(spec),
        graph_sha256=spec.graph_sha256,
        settings=kept_settings(spec),
    )


def submission(
    request: scheduling_pb2.SubmitJobRequest, engine: SchedulerEngine, numbers: JobNumbers, *, has_trials: bool = True
) -> Mutation:
    """Propose a new job; the answer is its id."""

    def propose() -> Proposal:
        living = sum(len(engine.state.in_phase(phase)) for phase in _LIVING_PHASES)
        if living >= LIVING_JOBS_MAX:
            raise OverloadedError(f"{living:,} jobs have not ended; cancel some or wait before submitting more")
        job_id = numbers.next_id()
        return Proposal(event=submitted(job_id, request.spec, has_trials=has_trials), answer=job_id)

    return Mutation(propose=propose, request_id=request.request_id, body_sha256=body_sha256(request))


def cancellation(request: scheduling_pb2.CancelJobRequest, engine: SchedulerEngine) -> Mutation:
    """Propose the end of a job; one that has ended or is ending stays as it is."""

    def propose() -> Proposal:
        job = known_job(engine, request.job_id)
        event = None if job.has_ended else JobCancelled(at_ms=0, job_id=job.job_id)
        return Proposal(event=event, answer=job.job_id)

    return Mutation(propose=propose, request_id=request.request_id, body_sha256=body_sha256(request))


def policy_choice(request: scheduling_pb2.SetPolicyRequest, parameters: Mapping[str, Any]) -> Mutation:
    """Propose another policy; the caller has checked that it can be made."""

    def propose() -> Proposal:
        event = PolicyChosen(at_ms=0, policy=request.policy, parameters=parameters)
        return Proposal(event=event, answer=request.policy)

    return Mutation(propose=propose, request_id=request.request_id, body_sha256=body_sha256(request))


def known_job(engine: SchedulerEngine, job_id: str) -> JobRecord:
    """Return a job.

    Raises:
        UnknownJobError: There is none with this id, or it ended so long ago that it was forgotten.
    """
    job = engine.state.jobs.get(job_id)
    if job is None:
        raise UnknownJobError(job_id)
    return job
