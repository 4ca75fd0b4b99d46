"""What requests of users lead to: facts, proposed when the request's turn has come."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.job_specs import kept_launch, kept_settings
from scheduler_service.adapters.storage.recovery import JobNumbers
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import (
    Actor,
    JobCancelled,
    JobSubmitted,
    NodeForgotten,
    PauseRequested,
    PolicyChosen,
    ResumeRequested,
)
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.reasons.reason_texts import describe_reason
from scheduler_service.core.records import PAUSED_MS_MAX, Phase
from scheduler_service.core.sharing.pausability import pause_obstacle
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import (
    NodeHeardError,
    NotPausableError,
    OverloadedError,
    UnknownJobError,
    UnknownNodeError,
    WrongJobPhaseError,
)
from scheduler_service.grpc_api.jobs.job_watch import LIVING_PHASES
from scheduler_service.grpc_api.jobs.translate_jobs import job_request
from scheduler_service.grpc_api.validation import body_sha256
from scheduler_service.live_loop import Mutation, Proposal

# Jobs that have not ended; beyond it a submission is refused, so that a runaway script cannot fill the memory.
LIVING_JOBS_MAX = 100_000


def submitted(
    job_id: str, spec: scheduling_pb2.JobSpec, *, has_trials: bool = True, actor: Actor | None = None
) -> JobSubmitted:
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
        actor=actor,
    )


def submission(
    request: scheduling_pb2.SubmitJobRequest,
    engine: SchedulerEngine,
    numbers: JobNumbers,
    *,
    has_trials: bool = True,
    actor: Actor | None = None,
    read_spec: Callable[[], scheduling_pb2.JobSpec] | None = None,
) -> Mutation:
    """Propose a new job; the answer is its id.

    Args:
        request: Repeated, it gives the same job.
        engine: Knows how many jobs there are.
        numbers: Gives the id.
        has_trials: Jobs may share on trial in this cluster.
        actor: Who wants it.
        read_spec: Returns what is handed in, or refuses it by raising; None = it stands in the request.
    """

    def propose() -> Proposal:
        check_room(engine.state, 1)
        spec = read_spec() if read_spec is not None else request.spec
        job_id = numbers.next_id()
        return Proposal(event=submitted(job_id, spec, has_trials=has_trials, actor=actor), answer=job_id)

    return Mutation(propose=propose, request_id=request.request_id, body_sha256=body_sha256(request))


def check_room(state: ClusterState, jobs: int) -> None:
    """Look whether so many jobs more can be accepted.

    Raises:
        OverloadedError: Too many have not ended.
    """
    living = sum(len(state.in_phase(phase)) for phase in LIVING_PHASES)
    if living + jobs > LIVING_JOBS_MAX:
        raise OverloadedError(f"{living:,} jobs have not ended; cancel some or wait before submitting more")


def cancellation(
    request: scheduling_pb2.CancelJobRequest, engine: SchedulerEngine, *, actor: Actor | None = None
) -> Mutation:
    """Propose the end of a job; one that has ended or is ending stays as it is."""

    def propose() -> Proposal:
        job = known_job(engine, request.job_id)
        event = None if job.has_ended else JobCancelled(at_ms=0, job_id=job.job_id, actor=actor)
        return Proposal(event=event, answer=job.job_id)

    return Mutation(propose=propose, request_id=request.request_id, body_sha256=body_sha256(request))


def pause(request: scheduling_pb2.PauseJobRequest, engine: SchedulerEngine, *, actor: Actor | None = None) -> Mutation:
    """Propose a pause; one that was ordered already stays as it is."""

    def propose() -> Proposal:
        job = known_job(engine, request.job_id)
        _check_pausable(engine.state, job)
        length_ms = request.paused_ms_max or PAUSED_MS_MAX
        event = PauseRequested(at_ms=0, job_id=job.job_id, paused_ms_max=length_ms, actor=actor)
        return Proposal(event=event if job.pause is None else None, answer=job.job_id)

    return Mutation(propose=propose, request_id=request.request_id, body_sha256=body_sha256(request))


def _check_pausable(state: ClusterState, job: JobRecord) -> None:
    if job.phase not in (Phase.STARTING, Phase.RUNNING, Phase.PAUSED):
        raise WrongJobPhaseError(f"{job.job_id} is {job.phase.value}; only a job that runs can be paused")
    obstacle = pause_obstacle(state, job)
    if obstacle is not None:
        raise NotPausableError(describe_reason(obstacle))


def resume(
    request: scheduling_pb2.ResumeJobRequest, engine: SchedulerEngine, *, actor: Actor | None = None
) -> Mutation:
    """Propose that a paused job goes on; another one stays as it is."""

    def propose() -> Proposal:
        job = known_job(engine, request.job_id)
        is_due = job.pause is not None and not job.pause.is_resuming
        event = ResumeRequested(at_ms=0, job_id=job.job_id, actor=actor)
        return Proposal(event=event if is_due else None, answer=job.job_id)

    return Mutation(propose=propose, request_id=request.request_id, body_sha256=body_sha256(request))


def policy_choice(
    request: scheduling_pb2.SetPolicyRequest, parameters: Mapping[str, Any], *, actor: Actor | None = None
) -> Mutation:
    """Propose another policy; the caller has checked that it can be made."""

    def propose() -> Proposal:
        event = PolicyChosen(at_ms=0, policy=request.policy, parameters=parameters, actor=actor)
        return Proposal(event=event, answer=request.policy)

    return Mutation(propose=propose, request_id=request.request_id, body_sha256=body_sha256(request))


def forgetting(
    request: scheduling_pb2.ForgetNodeRequest,
    engine: SchedulerEngine,
    heard: Container[str],
    *,
    actor: Actor | None = None,
) -> Mutation:
    """Propose that a node is given up, unless it is among those that are heard; the answer names the jobs it held."""

    def propose() -> Proposal:
        node_id = request.node_id
        if node_id not in engine.state.nodes:
            raise UnknownNodeError(node_id)
        if node_id in heard:
            raise NodeHeardError(
                f"node {node_id} is heard, and what it runs would run on; stop its agent first, or cancel its jobs"
            )
        held = ",".join(engine.state.occupancy.jobs_on_node(node_id))
        return Proposal(event=NodeForgotten(at_ms=0, node_id=node_id, actor=actor), answer=held)

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
