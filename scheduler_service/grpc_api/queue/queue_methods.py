"""What users and operators can change of the queue: the methods of the servicer that are about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cotenant.access.callers import current_caller
from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.events import Actor
from scheduler_service.grpc_api import validation
from scheduler_service.grpc_api.queue import queue_validation
from scheduler_service.grpc_api.queue.queue_requests import QueueRequests
from scheduler_service.grpc_api.queue.repetitions import OneAtATime
from scheduler_service.grpc_api.status_codes import Context
from scheduler_service.grpc_api.visibility import own_submission

if TYPE_CHECKING:
    from scheduler_service.grpc_api.scheduling_servicer import Cluster


class QueueMethods(ABC):
    """A part of `SchedulingServicer`, which has the cluster."""

    _cluster: Cluster
    _repeating: OneAtATime

    @abstractmethod
    def _job(self, job_id: str) -> scheduling_pb2.Job:
        """Return a job as the caller may see it."""

    @abstractmethod
    def _changer_of(self, job_id: str) -> Actor:
        """Look whether the caller may change a job."""

    @abstractmethod
    async def _reviewed(
        self, request: scheduling_pb2.SubmitJobRequest, context: Context
    ) -> Sequence[resources_pb2.Warning]:
        """Look at a submission."""

    def _queue(self) -> QueueRequests:
        cluster = self._cluster
        return QueueRequests(
            engine=cluster.engine, numbers=cluster.numbers, caller=current_caller(), has_trials=cluster.has_trials
        )

    def _own(self, request: scheduling_pb2.SubmitJobRequest) -> scheduling_pb2.SubmitJobRequest:
        """Return a submission with the owner and the tenant of the caller."""
        return own_submission(request, current_caller(), self._cluster.engine.state.tenants.rules)

    async def HoldJob(  # noqa: N802
        self, request: scheduling_pb2.HoldJobRequest, context: Context
    ) -> scheduling_pb2.HoldJobResponse:
        """Let a pending job wait until it is released."""
        validation.require(validation.job_order_violations(request))
        self._changer_of(request.job_id)
        job_id = await self._cluster.loop.mutate(self._queue().hold(request))
        return scheduling_pb2.HoldJobResponse(job=self._job(job_id))

    async def ReleaseJob(  # noqa: N802
        self, request: scheduling_pb2.ReleaseJobRequest, context: Context
    ) -> scheduling_pb2.ReleaseJobResponse:
        """Let a held job start."""
        validation.require(validation.job_order_violations(request))
        self._changer_of(request.job_id)
        job_id = await self._cluster.loop.mutate(self._queue().release(request))
        return scheduling_pb2.ReleaseJobResponse(job=self._job(job_id))

    async def AlterJob(  # noqa: N802
        self, request: scheduling_pb2.AlterJobRequest, context: Context
    ) -> scheduling_pb2.AlterJobResponse:
        """Change what a pending job asks for."""
        validation.require(validation.job_order_violations(request))
        validation.require(queue_validation.alteration_violations(request))
        self._changer_of(request.job_id)
        job_id = await self._cluster.loop.mutate(self._queue().alter(request))
        return scheduling_pb2.AlterJobResponse(job=self._job(job_id))

    async def RetryJob(  # noqa: N802
        self, request: scheduling_pb2.RetryJobRequest, context: Context
    ) -> scheduling_pb2.RetryJobResponse:
        """Hand a failed or cancelled job in again."""
        validation.require(validation.job_order_violations(request))
        self._changer_of(request.job_id)
        queue = self._queue()
        is_answered = bool(request.request_id) and self._cluster.loop.has_answered(request.request_id)
        spec = queue.repeated_spec(request.job_id, is_answered=is_answered)
        submission = scheduling_pb2.SubmitJobRequest(request_id=request.request_id, spec=spec, force=request.force)
        # Its owner may keep the tenant and the class that an operator gave it.
        if current_caller().acts_for_all:
            submission = self._own(submission)
        warnings = await self._reviewed(submission, context)
        mutation = queue.repetition(request, submission)
        job_id = await self._repeating.run(lambda: self._cluster.loop.mutate(mutation))
        return scheduling_pb2.RetryJobResponse(job=self._job(job_id), warnings=warnings)

    async def SubmitArray(  # noqa: N802
        self, request: scheduling_pb2.SubmitArrayRequest, context: Context
    ) -> scheduling_pb2.SubmitArrayResponse:
        """Accept the tasks of an array; the answer comes after all of them are on disk."""
        single = scheduling_pb2.SubmitJobRequest(
            request_id=request.request_id, validate_only=request.validate_only, spec=request.spec, force=request.force
        )
        single = self._own(single)
        validation.require(validation.submission_violations(single))
        validation.require(queue_validation.array_violations(request))
        warnings = await self._reviewed(single, context)
        if request.validate_only:
            return scheduling_pb2.SubmitArrayResponse(warnings=warnings)
        owned = scheduling_pb2.SubmitArrayRequest()
        owned.CopyFrom(request)
        owned.spec.CopyFrom(single.spec)
        answer = await self._cluster.loop.mutate(self._queue().array(owned))
        array_id, first, last = answer.split(" ")
        job_ids = [f"job-{number}" for number in range(int(first), int(last) + 1)]
        return scheduling_pb2.SubmitArrayResponse(
            array_id=array_id, job_ids=job_ids, job=self._job(job_ids[0]), warnings=warnings
        )

    async def CancelArray(  # noqa: N802
        self, request: scheduling_pb2.CancelArrayRequest, context: Context
    ) -> scheduling_pb2.CancelArrayResponse:
        """Stop every task of an array or take it off the queue."""
        validation.require(validation.request_id_violations(request.request_id))
        validation.require(validation.array_id_violations(request.array_id))
        queue = self._queue()
        queue.changeable_array(request.array_id)
        answer = await self._cluster.loop.mutate(queue.cancel_array(request))
        return scheduling_pb2.CancelArrayResponse(job_ids=answer.split(",") if answer else ())

    async def CordonNode(  # noqa: N802
        self, request: scheduling_pb2.CordonNodeRequest, context: Context
    ) -> scheduling_pb2.CordonNodeResponse:
        """Start nothing more on a node, and let what runs there go on elsewhere if that is wanted."""
        validation.require(validation.node_order_violations(request))
        answer = await self._cluster.loop.mutate(self._queue().cordon(request))
        return scheduling_pb2.CordonNodeResponse(moving_job_ids=answer.split(",") if answer else ())

    async def UncordonNode(  # noqa: N802
        self, request: scheduling_pb2.UncordonNodeRequest, context: Context
    ) -> scheduling_pb2.UncordonNodeResponse:
        """Let a node take jobs again."""
        validation.require(validation.node_order_violations(request))
        await self._cluster.loop.mutate(self._queue().uncordon(request))
        return scheduling_pb2.UncordonNodeResponse()
