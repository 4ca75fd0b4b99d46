"""What a client can change of jobs that are there: pausing, holding, altering, repeating them; arrays of jobs."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from cotenant.v1 import resources_pb2, scheduling_pb2

if TYPE_CHECKING:
    from cotenant.v1.scheduling_pb2_grpc import SchedulingServiceStub

_Answer = TypeVar("_Answer")


class QueueCalls(ABC):
    """A part of `SchedulerClient`, which has the stub and translates errors."""

    _stub: SchedulingServiceStub

    @abstractmethod
    def _ask(self, call: Callable[[float], _Answer]) -> _Answer:
        """Call with a time limit in seconds."""

    def pause_job(self, job_id: str, *, most_ms: int = 0) -> scheduling_pb2.Job:
        """Lets a running job stand still for 1 to 60,000 ms, 0 = the longest; repeating it is harmless."""
        request = scheduling_pb2.PauseJobRequest(request_id=str(uuid.uuid4()), job_id=job_id, paused_ms_max=most_ms)
        return self._ask(lambda timeout: self._stub.PauseJob(request, timeout=timeout)).job

    def resume_job(self, job_id: str) -> scheduling_pb2.Job:
        """Lets a paused job go on; another one is left as it is."""
        request = scheduling_pb2.ResumeJobRequest(request_id=str(uuid.uuid4()), job_id=job_id)
        return self._ask(lambda timeout: self._stub.ResumeJob(request, timeout=timeout)).job

    def hold_job(self, job_id: str, *, stop_running: bool = False) -> scheduling_pb2.Job:
        """Lets a pending job wait until it is released, or stops a running one for that; repeating it is harmless."""
        request = scheduling_pb2.HoldJobRequest(request_id=str(uuid.uuid4()), job_id=job_id, stop_running=stop_running)
        return self._ask(lambda timeout: self._stub.HoldJob(request, timeout=timeout)).job

    def release_job(self, job_id: str) -> scheduling_pb2.Job:
        """Lets a held job start; another one is left as it is."""
        request = scheduling_pb2.ReleaseJobRequest(request_id=str(uuid.uuid4()), job_id=job_id)
        return self._ask(lambda timeout: self._stub.ReleaseJob(request, timeout=timeout)).job

    def retry_job(self, job_id: str, *, force: bool = False) -> scheduling_pb2.RetryJobResponse:
        """Hands a failed or cancelled job in again, and returns the new one with what may keep it from starting."""
        request = scheduling_pb2.RetryJobRequest(request_id=str(uuid.uuid4()), job_id=job_id, force=force)
        return self._ask(lambda timeout: self._stub.RetryJob(request, timeout=timeout))

    def alter_job(
        self,
        job_id: str,
        *,
        priority: int | None = None,
        share: resources_pb2.ShareMode.ValueType = resources_pb2.SHARE_MODE_UNSPECIFIED,
        max_slowdown_ratio: float | None = None,
        time_limit_ms: int | None = None,
    ) -> scheduling_pb2.Job:
        """Changes what a pending job asks for, or a running one's time limit; what is not given stays as it is."""
        request = scheduling_pb2.AlterJobRequest(
            request_id=str(uuid.uuid4()),
            job_id=job_id,
            priority=priority,
            share=share,
            max_slowdown_ratio=max_slowdown_ratio,
            time_limit_ms=time_limit_ms,
        )
        return self._ask(lambda timeout: self._stub.AlterJob(request, timeout=timeout)).job

    def submit_array(
        self,
        spec: scheduling_pb2.JobSpec,
        tasks: Sequence[scheduling_pb2.ArrayTask],
        *,
        request_id: str = "",
        validate_only: bool = False,
        force: bool = False,
    ) -> scheduling_pb2.SubmitArrayResponse:
        """Hands up to 1,000 jobs in that differ in their index and in named values; all are on disk then, or none.

        Raises:
            NotFeasibleError: No connected node can run them, or they fit on no device.
            ServiceError: The scheduler refused or could not be reached.
        """
        request = scheduling_pb2.SubmitArrayRequest(
            request_id=request_id or str(uuid.uuid4()),
            validate_only=validate_only,
            spec=spec,
            force=force,
            tasks=tasks,
        )
        return self._ask(lambda timeout: self._stub.SubmitArray(request, timeout=timeout))

    def cancel_array(self, array_id: str) -> list[str]:
        """Stops every task of an array or takes it off the queue; returns those that had not ended."""
        request = scheduling_pb2.CancelArrayRequest(request_id=str(uuid.uuid4()), array_id=array_id)
        return list(self._ask(lambda timeout: self._stub.CancelArray(request, timeout=timeout)).job_ids)
