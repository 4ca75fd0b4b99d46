"""Sends watchers the jobs that have changed, without letting a slow one cost memory, or many of them the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from cotenant.access.callers import Caller
from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.system_clock import read_monotonic_ns
from scheduler_service.core.commands import Command
from scheduler_service.core.events import Event, JobSubmitted
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.records import Phase, Reason
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import OverloadedError
from scheduler_service.grpc_api.jobs.encoded_jobs import EncodedJobs, joined
from scheduler_service.grpc_api.jobs.job_changes import JobChanges
from scheduler_service.grpc_api.jobs.job_reasons import present_reason
from scheduler_service.grpc_api.jobs.translate_jobs import job_message
from scheduler_service.grpc_api.visibility import may_see, owner_of, shown, visibility_of

WATCHERS_MAX = 100
# Several batches share one look at all living jobs; looking may take a twentieth of the time, but comes every second.
SWEEP_INTERVAL_NS = 50_000_000
SWEEP_PAUSE_FACTOR = 20
SWEEP_INTERVAL_MAX_NS = 1_000_000_000
# Messages to all watchers after one look about jobs of which only the progress has changed; the others wait their turn.
PROGRESS_MESSAGES_MAX = 100
_ANYBODY = Caller()
_Told = tuple[JobRecord, Reason]
LIVING_PHASES = (Phase.PENDING, Phase.STARTING, Phase.RUNNING, Phase.PAUSED, Phase.STOPPING)


class _Everything:
    """Contains every job: what a watcher wants that names none."""

    def __contains__(self, job_id: object) -> bool:
        return True


@dataclass(slots=True, kw_only=True, eq=False)
class _Watcher:
    """One watch; `position` is the number of the next change to send."""

    wanted: Container[str]
    caller: Caller
    position: int
    woken: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, kw_only=True)
class WatchHub:
    """Compares the jobs with what was last sent; records are frozen, so a changed job is another object."""

    state: Callable[[], ClusterState]
    _watchers: list[_Watcher] = field(default_factory=list)
    _changes: JobChanges = field(default_factory=JobChanges)
    _encoded: EncodedJobs = field(default_factory=EncodedJobs)
    _told: dict[str, _Told] = field(default_factory=dict)
    _touched: set[str] = field(default_factory=set)
    _progressed: dict[str, None] = field(default_factory=dict)
    _next_sweep_ns: int = 0
    _is_closed: bool = False

    def event_handled(self, event: Event, commands: Sequence[Command], *, duration_ns: int) -> None:
        """Note the job that the event is about: it may have come and gone before the next look."""
        job_id = event.request.job_id if isinstance(event, JobSubmitted) else getattr(event, "job_id", "")
        if self._watchers and job_id:
            self._touched.add(job_id)

    def batch_handled(self) -> None:
        """Look for changes unless that was done a moment ago; it is called again soon, events or not."""
        if self._watchers and read_monotonic_ns() >= self._next_sweep_ns:
            self.sweep()

    def sweep(self) -> None:
        """Note every changed job for those watching it."""
        if not self._watchers:
            return
        started_ns = read_monotonic_ns()
        previous, self._told = self._told, self._living()
        state = self.state()
        for job_id, before, present in _changed(previous, self._told):
            if before is not None and _is_progress(before, present):
                self._progressed[job_id] = None
            else:
                self._tell(present[0])
        gone = [job_id for job_id in previous if job_id not in self._told]
        for job_id in dict.fromkeys([*gone, *sorted(self._touched - self._told.keys())]):
            ended = state.jobs.get(job_id)
            if ended is not None:
                self._tell(ended)
        self._touched.clear()
        self._tell_progress(state)
        self._changes.forget_unknown(state.jobs, len(state.jobs))
        self._encoded.forget_old()
        for watcher in self._watchers:
            watcher.woken.set()
        ended_ns = read_monotonic_ns()
        pause_ns = min(SWEEP_PAUSE_FACTOR * (ended_ns - started_ns), SWEEP_INTERVAL_MAX_NS)
        self._next_sweep_ns = ended_ns + max(SWEEP_INTERVAL_NS, pause_ns)

    def _living(self) -> dict[str, _Told]:
        state = self.state()
        living = [state.jobs[job_id] for phase in LIVING_PHASES for job_id in state.in_phase(phase)]
        return {job.job_id: (job, present_reason(state, job)) for job in living}

    def _tell(self, job: JobRecord) -> None:
        self._progressed.pop(job.job_id, None)
        # Its record may be the same, with another reason.
        self._encoded.forget(job.job_id)
        self._changes.add(job)

    def _tell_progress(self, state: ClusterState) -> None:
        """Tell the progress of as many jobs as all watchers together can take, those that waited longest first."""
        room = max(PROGRESS_MESSAGES_MAX // len(self._watchers), 1)
        for job_id in list(self._progressed)[:room]:
            del self._progressed[job_id]
            job = state.jobs.get(job_id)
            if job is not None:
                self._changes.add(job)

    def close(self) -> None:
        """End every watch: the scheduler is stopping, and watchers must start again."""
        self._is_closed = True
        for watcher in self._watchers:
            watcher.woken.set()

    @overload
    def watch(
        self, job_ids: frozenset[str], *, caller: Caller = _ANYBODY
    ) -> AsyncGenerator[scheduling_pb2.WatchJobsResponse, None]: ...

    @overload
    def watch(
        self, job_ids: frozenset[str], *, caller: Caller = _ANYBODY, in_batches: bool, changes_in_batches: bool = False
    ) -> AsyncGenerator[scheduling_pb2.WatchJobsResponse | bytes, None]: ...

    async def watch(
        self,
        job_ids: frozenset[str],
        *,
        caller: Caller = _ANYBODY,
        in_batches: bool = False,
        changes_in_batches: bool = False,
    ) -> AsyncGenerator[scheduling_pb2.WatchJobsResponse | bytes, None]:
        """Yield a snapshot, its end, then changes; `overflowed` last, when the scheduler stops.

        A watcher too slow for every change gets the present state of the jobs that have changed, and learns how many
        changes it missed.

        Args:
            job_ids: Which jobs; none named = all.
            caller: Who sees only what its role lets it see.
            in_batches: The snapshot comes encoded, many jobs in a message.
            changes_in_batches: So do the changes: with many watchers sending is most of what a change costs.

        Raises:
            OverloadedError: Too many watchers.
        """
        if len(self._watchers) >= WATCHERS_MAX:
            raise OverloadedError(f"{WATCHERS_MAX} clients watch already; close one, or list the jobs instead")
        if not self._watchers:
            self._begin()
        watcher = _Watcher(wanted=job_ids or _Everything(), caller=caller, position=self._changes.end)
        self._watchers.append(watcher)
        try:
            for batch in self._encoded.batches(self.state(), self._visible(job_ids, caller), caller):
                if in_batches:
                    yield batch
                else:
                    for job in scheduling_pb2.WatchJobsResponse.FromString(batch).jobs:
                        yield scheduling_pb2.WatchJobsResponse(job=job)
            yield scheduling_pb2.WatchJobsResponse(snapshot_end=True)
            while not self._is_closed:
                watcher.woken.clear()
                for message in self._read_in_batches(watcher) if changes_in_batches else self._read_on(watcher):
                    yield message
                await watcher.woken.wait()
            yield scheduling_pb2.WatchJobsResponse(overflowed=True)
        finally:
            self._watchers.remove(watcher)

    def _begin(self) -> None:
        """Forget what was told: there were no watchers until now."""
        self._told = self._living()
        self._progressed.clear()
        self._changes.clear()
        self._encoded.clear()

    def _visible(self, job_ids: frozenset[str], caller: Caller) -> Iterator[JobRecord]:
        """Yield the present records of jobs; a watcher that reads slowly comes to some of them much later."""
        for job_id in sorted(job_ids) or list(self.state().jobs):
            job = self.state().jobs.get(job_id)
            if job is not None and may_see(caller, job):
                yield job

    def _read_on(self, watcher: _Watcher) -> Iterator[scheduling_pb2.WatchJobsResponse]:
        """Yield what has changed since the watcher last read."""
        changes = self._changes
        while watcher.position < changes.end and not self._is_closed:
            if watcher.position < changes.start:
                missed = changes.end - watcher.position
                for job in self._missed_jobs(watcher):
                    message = shown(watcher.caller, job_message(self.state(), job))
                    yield scheduling_pb2.WatchJobsResponse(job=message, missed_changes=missed)
                    missed = 0
                continue
            number, watcher.position = watcher.position, watcher.position + 1
            job = changes.job_at(number)
            if job.job_id in watcher.wanted and may_see(watcher.caller, job):
                response = scheduling_pb2.WatchJobsResponse(job=changes.message_at(number, self.state()))
                # The response holds a copy: the message is shared by all watchers.
                shown(watcher.caller, response.job)
                yield response

    def _read_in_batches(self, watcher: _Watcher) -> Iterator[bytes]:
        """Yield the same encoded, many changes in a message."""
        changes = self._changes
        while watcher.position < changes.end and not self._is_closed:
            if watcher.position < changes.start:
                missed = changes.end - watcher.position
                for batch in self._encoded.batches(self.state(), self._missed_jobs(watcher), watcher.caller):
                    yield scheduling_pb2.WatchJobsResponse(missed_changes=missed).SerializeToString() + batch
                    missed = 0
                continue
            yield from joined(self._encoded_changes(watcher))

    def _encoded_changes(self, watcher: _Watcher) -> Iterator[bytes]:
        changes = self._changes
        while changes.start <= watcher.position < changes.end and not self._is_closed:
            number, watcher.position = watcher.position, watcher.position + 1
            job = changes.job_at(number)
            if job.job_id in watcher.wanted and may_see(watcher.caller, job):
                yield changes.encoded_at(number, self.state(), visibility_of(watcher.caller, owner_of(job)))

    def _missed_jobs(self, watcher: _Watcher) -> Iterator[JobRecord]:
        """Yield the present records of the jobs of which changes were missed; from now on the watcher has read them."""
        job_ids = self._changes.changed_since(watcher.position, watcher.wanted)
        watcher.position = self._changes.end
        for job_id in job_ids:
            job = self.state().jobs.get(job_id)
            if job is not None and may_see(watcher.caller, job) and not self._is_closed:
                yield job


def _changed(previous: Mapping[str, _Told], told: Mapping[str, _Told]) -> Iterator[tuple[str, _Told | None, _Told]]:
    """Yield the jobs that are not as they were: among ten thousand that wait, few."""
    # Many jobs wait for one reason, which is another object after each decision: each pair is compared once.
    is_same: dict[tuple[int, int], bool] = {}
    for job_id, present in told.items():
        before = previous.get(job_id)
        if before is not None and before[0] is present[0]:
            pair = id(before[1]), id(present[1])
            if pair not in is_same:
                is_same[pair] = before[1] == present[1]
            if is_same[pair]:
                continue
        yield job_id, before, present


def _is_progress(before: _Told, present: _Told) -> bool:
    """Say whether a job has changed only in how far it is and what was measured of it."""
    (earlier, _), (job, _) = before, present
    is_same = (
        earlier.phase is job.phase
        and earlier.fence == job.fence
        and earlier.pause == job.pause
        and len(earlier.history) == len(job.history)
        and before[1].code == present[1].code
    )
    return is_same and earlier is not job and job.phase is not Phase.PENDING
