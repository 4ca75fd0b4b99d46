"""Sends watchers the jobs that have changed, without letting a slow one cost memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.system_clock import read_monotonic_ns
from scheduler_service.core.commands import Command
from scheduler_service.core.events import Event, JobSubmitted
from scheduler_service.core.job_records import JobRecord
from scheduler_service.core.records import Phase, Reason
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import OverloadedError
from scheduler_service.grpc_api.job_reasons import present_reason
from scheduler_service.grpc_api.translate_jobs import job_message

WATCHERS_MAX = 100
CHANGES_WAITING_MAX = 1_000
# A look at all living jobs costs about a microsecond each; several batches share one look.
SWEEP_INTERVAL_NS = 50_000_000
_LIVING_PHASES = (Phase.PENDING, Phase.STARTING, Phase.RUNNING, Phase.PAUSED, Phase.STOPPING)


@dataclass(slots=True, kw_only=True)
class _Watcher:
    job_ids: frozenset[str]
    changes: asyncio.Queue[JobRecord | None] = field(default_factory=lambda: asyncio.Queue(CHANGES_WAITING_MAX))
    overflowed: asyncio.Event = field(default_factory=asyncio.Event)

    def wants(self, job_id: str) -> bool:
        return not self.job_ids or job_id in self.job_ids


@dataclass(slots=True, kw_only=True)
class WatchHub:
    """Compares the jobs with what was last sent; records are frozen, so a changed job is another object."""

    state: Callable[[], ClusterState]
    _watchers: list[_Watcher] = field(default_factory=list)
    _told: dict[str, tuple[JobRecord, Reason]] = field(default_factory=dict)
    _touched: set[str] = field(default_factory=set)
    _swept_at_ns: int = 0

    def event_handled(self, event: Event, commands: Sequence[Command], *, duration_ns: int) -> None:
        """Note the job that the event is about: it may have come and gone before the next look."""
        job_id = event.request.job_id if isinstance(event, JobSubmitted) else getattr(event, "job_id", "")
        if self._watchers and job_id:
            self._touched.add(job_id)

    def batch_handled(self) -> None:
        """Look for changes unless that was done a moment ago; `sweep` is called later anyway."""
        if self._watchers and read_monotonic_ns() - self._swept_at_ns >= SWEEP_INTERVAL_NS:
            self.sweep()

    def sweep(self) -> None:
        """Queue every changed job for those watching it."""
        if not self._watchers:
            return
        self._swept_at_ns = read_monotonic_ns()
        previous, self._told = self._told, self._living()
        state = self.state()
        for job_id, present in self._told.items():
            if previous.pop(job_id, None) != present:
                self._tell(present[0])
        for job_id in dict.fromkeys([*previous, *sorted(self._touched - self._told.keys())]):
            ended = state.jobs.get(job_id)
            if ended is not None:
                self._tell(ended)
        self._touched.clear()

    def _living(self) -> dict[str, tuple[JobRecord, Reason]]:
        state = self.state()
        living = [state.jobs[job_id] for phase in _LIVING_PHASES for job_id in state.in_phase(phase)]
        return {job.job_id: (job, present_reason(state, job)) for job in living}

    def _tell(self, job: JobRecord) -> None:
        for watcher in self._watchers:
            if watcher.wants(job.job_id) and not watcher.overflowed.is_set():
                try:
                    watcher.changes.put_nowait(job)
                except asyncio.QueueFull:
                    watcher.overflowed.set()

    def close(self) -> None:
        """End every watch: the scheduler is stopping, and watchers must start again."""
        for watcher in self._watchers:
            watcher.overflowed.set()
            if watcher.changes.empty():
                watcher.changes.put_nowait(None)

    async def watch(self, job_ids: frozenset[str]) -> AsyncGenerator[scheduling_pb2.WatchJobsResponse, None]:
        """Yield a snapshot, its end, then changes; `overflowed` last, for a watcher too slow, which must start again.

        Raises:
            OverloadedError: Too many watchers.
        """
        if len(self._watchers) >= WATCHERS_MAX:
            raise OverloadedError(f"{WATCHERS_MAX} clients watch already; close one, or list the jobs instead")
        if not self._watchers:
            self._told = self._living()
        watcher = _Watcher(job_ids=job_ids)
        self._watchers.append(watcher)
        try:
            for job in [job for job in self.state().jobs.values() if watcher.wants(job.job_id)]:
                yield scheduling_pb2.WatchJobsResponse(job=job_message(self.state(), job))
            yield scheduling_pb2.WatchJobsResponse(snapshot_end=True)
            while not watcher.overflowed.is_set():
                changed = await watcher.changes.get()
                if changed is not None:
                    yield scheduling_pb2.WatchJobsResponse(job=job_message(self.state(), changed))
            yield scheduling_pb2.WatchJobsResponse(overflowed=True)
        finally:
            self._watchers.remove(watcher)
