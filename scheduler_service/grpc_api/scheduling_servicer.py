"""What users and their programs can ask of the scheduler; each method shows in a few lines what does it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import cast

from cotenant.access.callers import current_caller
from cotenant.v1 import resources_pb2, scheduling_pb2, scheduling_pb2_grpc
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.adapters.proto_enums import PHASES_FROM_PROTO
from scheduler_service.adapters.start_forecasts import StartForecasts
from scheduler_service.adapters.storage.cluster_identity import ClusterIdentity, Standstill
from scheduler_service.adapters.storage.recovery import JobNumbers
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import Actor
from scheduler_service.core.jobs.job_parts import JobTimes, Submission
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import Phase
from scheduler_service.errors import (
    FieldViolation,
    InvalidRequestError,
    NodeUnreachableError,
)
from scheduler_service.grpc_api import policies, validation
from scheduler_service.grpc_api.agents.translate_nodes import node_message
from scheduler_service.grpc_api.cluster_troubles import Watched, trouble_warnings
from scheduler_service.grpc_api.jobs import job_requests
from scheduler_service.grpc_api.jobs.admission import Admission
from scheduler_service.grpc_api.jobs.expected_starts import add_expected_starts, explanation_violations
from scheduler_service.grpc_api.jobs.explanations import Explanations
from scheduler_service.grpc_api.jobs.job_listing import NewestFirst, add_neighbours, job_messages, job_number
from scheduler_service.grpc_api.jobs.job_reasons import present_remedy, reported_reason
from scheduler_service.grpc_api.jobs.job_watch import WatchHub
from scheduler_service.grpc_api.jobs.log_requests import attempt_key, log_nodes, log_violations, rank_violations
from scheduler_service.grpc_api.jobs.translate_jobs import (
    history_messages,
    job_message,
    reason_message,
)
from scheduler_service.grpc_api.pages import cut_to_bytes, page
from scheduler_service.grpc_api.queue.queue_methods import QueueMethods
from scheduler_service.grpc_api.queue.repetitions import OneAtATime
from scheduler_service.grpc_api.restores import confirm_restore, unknown_attempt_warnings
from scheduler_service.grpc_api.snapshots.decide import decide, deciding_thread
from scheduler_service.grpc_api.snapshots.snapshot_bases import SnapshotBases
from scheduler_service.grpc_api.snapshots.unread_request import UnreadRequest
from scheduler_service.grpc_api.status_codes import Context
from scheduler_service.grpc_api.visibility import (
    actor_of,
    check_changeable,
    check_visible,
    may_see,
    shown,
    shown_history,
)
from scheduler_service.live_loop import LiveLoop

# Warnings of accepted submissions, for their repetition; forgotten with the process.
WARNED_REQUESTS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What the methods need: the loop, and the adapters next to it.

    Attributes:
        store_confirmation: Notes durably that an operator has confirmed a restore; blocks.
        forecasts: Says when waiting jobs start; None = nothing does.
        watched: Where troubles are seen that an operator should look after.
    """

    loop: LiveLoop
    numbers: JobNumbers
    sessions: AgentSessions
    predictor: PredictorClient
    watch_hub: WatchHub
    admission: Admission
    has_trials: bool = True
    identity: ClusterIdentity = field(default_factory=ClusterIdentity)
    standstill: Standstill = field(default_factory=Standstill)
    store_confirmation: Callable[[], None] = field(default=lambda: None)
    forecasts: StartForecasts | None = None
    watched: Watched = field(default_factory=Watched)

    @property
    def engine(self) -> SchedulerEngine:
        """The engine behind the loop; its state is only read here."""
        return self.loop.engine


class SchedulingServicer(QueueMethods, scheduling_pb2_grpc.SchedulingServiceServicer):
    """Checks, translates, hands on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._explanations = Explanations(loop=cluster.loop)
        self._deciding = deciding_thread()
        self._bases = SnapshotBases()
        self._newest_first = NewestFirst()
        self._listing = asyncio.Lock()
        self._repeating = OneAtATime()
        self._warned: dict[str, Sequence[resources_pb2.Warning]] = {}

    async def SubmitJob(  # noqa: N802
        self, request: scheduling_pb2.SubmitJobRequest, context: Context
    ) -> scheduling_pb2.SubmitJobResponse:
        """Accept a job; the answer comes after the job is on disk."""
        request = self._own(request)
        validation.require(validation.submission_violations(request))
        warnings = await self._reviewed(request, context)
        if request.validate_only:
            return scheduling_pb2.SubmitJobResponse(job=self._would_be(request.spec), warnings=warnings)
        job = self._job(await self._cluster.loop.mutate(self._queue().submission(request)))
        return scheduling_pb2.SubmitJobResponse(job=job, warnings=warnings)

    async def _reviewed(
        self, request: scheduling_pb2.SubmitJobRequest, context: Context
    ) -> Sequence[resources_pb2.Warning]:
        """Look at a submission; one that was accepted before is accepted again, with the warnings that it had."""
        if request.request_id and self._cluster.loop.has_answered(request.request_id):
            return self._warned.get(request.request_id, ())
        warnings = await self._cluster.admission.review(
            self._cluster.engine.state, request, seconds_left=context.time_remaining()
        )
        validation.require(validation.batch_violations(request.spec))
        if warnings and request.request_id and not request.validate_only:
            self._warned[request.request_id] = warnings
            while len(self._warned) > WARNED_REQUESTS_MAX:
                del self._warned[next(iter(self._warned))]
        return warnings

    async def GetJob(  # noqa: N802
        self, request: scheduling_pb2.GetJobRequest, context: Context
    ) -> scheduling_pb2.GetJobResponse:
        """Return one job."""
        validation.require(validation.job_id_violations(request.job_id))
        check_visible(current_caller(), job_requests.known_job(self._cluster.engine, request.job_id))
        return scheduling_pb2.GetJobResponse(job=self._job(request.job_id))

    async def ListJobs(  # noqa: N802
        self, request: scheduling_pb2.ListJobsRequest, context: Context
    ) -> scheduling_pb2.ListJobsResponse:
        """List jobs, newest first."""
        unknown = [phase for phase in request.phases if phase not in PHASES_FROM_PROTO]
        if unknown:
            raise InvalidRequestError(FieldViolation(field="phases", description=f"{unknown} are no phases of jobs"))
        phases = frozenset().union(*(PHASES_FROM_PROTO[phase] for phase in request.phases))
        caller = current_caller()
        known = self._newest_first.jobs(self._cluster.engine.state)
        jobs, token = page(
            (one for one in known if _is_wanted(one, phases, request.tenant) and may_see(caller, one)),
            size=request.page_size,
            token=request.page_token,
            place_of=lambda job: job.job_id,
            is_after=lambda place, last: job_number(place) < job_number(last),
        )
        made = [
            shown(caller, message) for message in await job_messages(self._cluster.engine.state, jobs, self._listing)
        ]
        messages, token = cut_to_bytes(made, token, wanted=len(jobs), place_of=lambda job: job.job_id)
        return scheduling_pb2.ListJobsResponse(jobs=messages, next_page_token=token)

    async def CancelJob(  # noqa: N802
        self, request: scheduling_pb2.CancelJobRequest, context: Context
    ) -> scheduling_pb2.CancelJobResponse:
        """Stop a job or take it off the queue; repeating it is harmless."""
        validation.require(validation.job_order_violations(request))
        actor = self._changer_of(request.job_id)
        mutation = job_requests.cancellation(request, self._cluster.engine, actor=actor)
        return scheduling_pb2.CancelJobResponse(job=self._job(await self._cluster.loop.mutate(mutation)))

    async def PauseJob(  # noqa: N802
        self, request: scheduling_pb2.PauseJobRequest, context: Context
    ) -> scheduling_pb2.PauseJobResponse:
        """Let a running job stand still; repeating it is harmless."""
        validation.require(validation.pause_violations(request))
        actor = self._changer_of(request.job_id)
        mutation = job_requests.pause(request, self._cluster.engine, actor=actor)
        return scheduling_pb2.PauseJobResponse(job=self._job(await self._cluster.loop.mutate(mutation)))

    async def ResumeJob(  # noqa: N802
        self, request: scheduling_pb2.ResumeJobRequest, context: Context
    ) -> scheduling_pb2.ResumeJobResponse:
        """Let a paused job go on."""
        validation.require(validation.job_order_violations(request))
        actor = self._changer_of(request.job_id)
        mutation = job_requests.resume(request, self._cluster.engine, actor=actor)
        return scheduling_pb2.ResumeJobResponse(job=self._job(await self._cluster.loop.mutate(mutation)))

    async def WatchJobs(  # noqa: N802
        self, request: scheduling_pb2.WatchJobsRequest, context: Context
    ) -> AsyncIterator[scheduling_pb2.WatchJobsResponse]:
        """Stream a snapshot of the jobs, then every change."""
        if len(request.job_ids) > validation.WATCHED_JOBS_MAX:
            description = f"must name at most {validation.WATCHED_JOBS_MAX} jobs; empty watches all"
            raise InvalidRequestError(FieldViolation(field="job_ids", description=description))
        caller = current_caller()
        for job_id in request.job_ids:
            check_visible(caller, job_requests.known_job(self._cluster.engine, job_id))
        watching = self._cluster.watch_hub.watch(
            frozenset(request.job_ids),
            caller=caller,
            in_batches=request.in_batches,
            changes_in_batches=request.changes_in_batches,
        )
        async with aclosing(watching) as messages:
            async for message in messages:
                # Batches are encoded, and go as they are.
                yield cast("scheduling_pb2.WatchJobsResponse", message)

    async def ExplainJob(  # noqa: N802
        self, request: scheduling_pb2.ExplainJobRequest, context: Context
    ) -> scheduling_pb2.ExplainJobResponse:
        """Explain why a job is where it is, with the candidates that were looked at."""
        validation.require(explanation_violations(request))
        job = job_requests.known_job(self._cluster.engine, request.job_id)
        caller = current_caller()
        check_visible(caller, job)
        explained = await self._explanations.of(request.job_id)
        state = self._cluster.engine.state
        reported = reported_reason(state, job, explained.reason)
        answer = scheduling_pb2.ExplainJobResponse(
            job=shown(caller, job_message(state, job)),
            reason=reason_message(reported),
            candidates=explained.candidates,
            policy=state.policy,
            decided_at_ms=state.decided_at_ms,
            history=shown_history(caller, job, history_messages(job.history)),
        )
        answer.remedy = present_remedy(state, job, reported, caller) if job.phase is Phase.PENDING else ""
        await add_neighbours(state, job, answer.candidates)
        if request.expected_start and job.phase is Phase.PENDING and self._cluster.forecasts is not None:
            await add_expected_starts(answer, request, self._cluster.forecasts, context.time_remaining())
        return answer

    async def ReadJobLog(  # noqa: N802
        self, request: scheduling_pb2.ReadJobLogRequest, context: Context
    ) -> AsyncIterator[scheduling_pb2.ReadJobLogResponse]:
        """Stream what a job printed, relayed from its node."""
        validation.require(log_violations(request))
        job = job_requests.known_job(self._cluster.engine, request.job_id)
        check_changeable(current_caller(), job)
        validation.require(rank_violations(request, job))
        key = attempt_key(job, request.attempt)
        failure = NodeUnreachableError(f"no connected node keeps a log of {job.job_id}; its node may come back")
        for node_id in self._nodes_with_log(job, request):
            has_begun = False
            try:
                reading = self._cluster.sessions.read_log(
                    node_id,
                    key,
                    follow=request.follow,
                    tail_bytes=request.tail_bytes,
                    rank=request.rank,
                    server=request.server if request.HasField("server") else None,
                )
                async with aclosing(reading):
                    async for chunk in reading:
                        has_begun = True
                        yield scheduling_pb2.ReadJobLogResponse(chunk=chunk)
                return
            except NodeUnreachableError as error:
                if has_begun:
                    raise
                failure = error
        raise failure

    async def ListNodes(  # noqa: N802
        self, request: scheduling_pb2.ListNodesRequest, context: Context
    ) -> scheduling_pb2.ListNodesResponse:
        """List nodes with their GPUs and what these hold."""
        state = self._cluster.engine.state
        nodes, token = page(
            [state.nodes[node_id] for node_id in sorted(state.nodes)],
            size=request.page_size,
            token=request.page_token,
            place_of=lambda node: node.node_id,
            is_after=lambda place, last: place > last,
        )
        made = [node_message(state, node, self._cluster.sessions) for node in nodes]
        messages, token = cut_to_bytes(made, token, wanted=len(nodes), place_of=lambda node: node.node_id)
        standstill = self._cluster.standstill
        warnings = [resources_pb2.Warning(code=standstill.code, message=standstill.message)] * bool(standstill.code)
        warnings += unknown_attempt_warnings(state, self._cluster.identity)
        warnings += [resources_pb2.Warning(code="POLICY_SILENT", message=state.silence)] * bool(state.silence)
        return scheduling_pb2.ListNodesResponse(
            nodes=messages,
            next_page_token=token,
            warnings=warnings,
            # Of all nodes, so once is enough.
            troubles=() if request.page_token else self._troubles(),
        )

    def _troubles(self) -> Sequence[resources_pb2.Warning]:
        cluster, sees_all = self._cluster, current_caller().sees_all
        now_ms = cluster.loop.clock.now_ms()
        return trouble_warnings(
            cluster.watched, cluster.engine.state, cluster.sessions, now_ms=now_ms, sees_all=sees_all
        )

    async def ForgetNode(  # noqa: N802
        self, request: scheduling_pb2.ForgetNodeRequest, context: Context
    ) -> scheduling_pb2.ForgetNodeResponse:
        """Give up a node that is not heard, with what ran there."""
        validation.require(validation.node_order_violations(request))
        heard = self._cluster.sessions.connected
        actor = actor_of(current_caller())
        mutation = job_requests.forgetting(request, self._cluster.engine, heard, actor=actor)
        held = await self._cluster.loop.mutate(mutation)
        return scheduling_pb2.ForgetNodeResponse(lost_job_ids=held.split(",") if held else ())

    async def ConfirmRestore(  # noqa: N802
        self, request: scheduling_pb2.ConfirmRestoreRequest, context: Context
    ) -> scheduling_pb2.ConfirmRestoreResponse:
        """Let the nodes of the cluster whose backup was restored join this one."""
        validation.require(validation.request_id_violations(request.request_id))
        cluster = self._cluster
        await confirm_restore(request, cluster.loop, cluster.identity, cluster.standstill, cluster.store_confirmation)
        return scheduling_pb2.ConfirmRestoreResponse(
            incarnation_id=cluster.identity.incarnation_id, ancestor_ids=sorted(cluster.identity.ancestor_ids)
        )

    async def ListPolicies(  # noqa: N802
        self, request: scheduling_pb2.ListPoliciesRequest, context: Context
    ) -> scheduling_pb2.ListPoliciesResponse:
        """List the policies with their parameters."""
        state = self._cluster.engine.state
        found, token = page(
            policies.policy_messages(active=state.policy, given=state.parameters),
            size=request.page_size,
            token=request.page_token,
            place_of=lambda policy: policy.name,
            is_after=lambda place, last: place > last,
        )
        return scheduling_pb2.ListPoliciesResponse(policies=found, next_page_token=token)

    async def SetPolicy(  # noqa: N802
        self, request: scheduling_pb2.SetPolicyRequest, context: Context
    ) -> scheduling_pb2.SetPolicyResponse:
        """Choose the policy of the running cluster."""
        validation.require(validation.request_id_violations(request.request_id))
        parameters = policies.read_parameters(request.parameters)
        effective = policies.effective_parameters(request.policy, parameters)
        if not request.validate_only:
            actor = actor_of(current_caller())
            await self._cluster.loop.mutate(job_requests.policy_choice(request, parameters, actor=actor))
        return scheduling_pb2.SetPolicyResponse(policy=request.policy, effective_parameters=effective)

    async def Decide(  # noqa: N802
        self,
        request: UnreadRequest,  # type: ignore[override]  # see `server.interceptors_for`
        context: Context,
    ) -> scheduling_pb2.DecideResponse:
        """Decide on a snapshot of another cluster; nothing is stored, nothing is started."""
        validation.require(validation.request_id_violations(request.asked.request_id))
        return await decide(
            request,
            predictor=self._cluster.predictor,
            seconds_left=context.time_remaining(),
            thread=self._deciding,
            bases=self._bases,
        )

    def _job(self, job_id: str) -> scheduling_pb2.Job:
        engine = self._cluster.engine
        return shown(current_caller(), job_message(engine.state, job_requests.known_job(engine, job_id)))

    def _changer_of(self, job_id: str) -> Actor:
        """Return who wants to change a job, if they may; asked again for a repeated request, which is not proposed."""
        caller = current_caller()
        check_changeable(caller, job_requests.known_job(self._cluster.engine, job_id))
        return actor_of(caller)

    def _nodes_with_log(self, job: JobRecord, request: scheduling_pb2.ReadJobLogRequest) -> list[str]:
        """Return where to ask: the present attempt's node, then all others, since earlier nodes are forgotten."""
        node_ids = log_nodes(self._cluster.engine.state, job, request)
        return [*node_ids, *sorted(self._cluster.sessions.connected.keys() - set(node_ids))]

    def _would_be(self, spec: scheduling_pb2.JobSpec) -> scheduling_pb2.Job:
        """Return the job that a spec would become; it has no id."""
        event = job_requests.submitted("", spec)
        record = JobRecord(
            request=event.request,
            submission=Submission(launch=event.launch, graph_sha256=event.graph_sha256, settings=event.settings),
            times=JobTimes(submitted_at_ms=self._cluster.loop.clock.now_ms()),
        )
        return job_message(self._cluster.engine.state, record)


def _is_wanted(job: JobRecord, phases: frozenset[Phase], tenant: str) -> bool:
    return (not phases or job.phase in phases) and (not tenant or job.request.tenant == tenant)
