"""The jobs that wait: those that a policy may start now, in submission order, and those that are held back."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import overload

from scheduler_service.core.job_records import JobRecord, pending_view
from scheduler_service.core.records import Reason
from scheduler_service.core.remaining_time_queue import RemainingTimeQueue, build_lengths
from scheduler_service.core.view import PendingJob, Predictions


class ReadyQueue(Sequence[PendingJob]):
    """A live sequence; valid until the state changes, as all of a view is.

    Args:
        order: (submitted_at_ms, job id), ascending.
        jobs: The jobs by id.
    """

    def __init__(self, order: Sequence[tuple[int, str]], jobs: Mapping[str, PendingJob]) -> None:
        self._order, self.by_id = order, jobs

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[PendingJob]:
        jobs = self.by_id
        return (jobs[job_id] for _, job_id in self._order)

    @overload
    def __getitem__(self, position: int) -> PendingJob: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[PendingJob]: ...

    def __getitem__(self, position: int | slice) -> PendingJob | Sequence[PendingJob]:
        if isinstance(position, slice):
            return tuple([self.by_id[job_id] for _, job_id in self._order[position]])
        return self.by_id[self._order[position][1]]


class WaitingJobs:
    """Pending jobs; kept up to date by the state that owns it.

    Attributes:
        holds: Pending jobs that the engine itself holds back, and why.
    """

    def __init__(self) -> None:
        self._ready: list[tuple[int, str]] = []
        self._ready_jobs: dict[str, PendingJob] = {}
        self._holds: dict[str, Reason] = {}
        self.holds: Mapping[str, Reason] = MappingProxyType(self._holds)
        self._by_key: dict[str, dict[str, None]] = {}
        self._lengths: RemainingTimeQueue | None = None

    def ready_jobs(self) -> ReadyQueue:
        """Return the jobs that a policy may start now, in submission order; valid until the next change."""
        return ReadyQueue(self._ready, self._ready_jobs)

    def with_key(self, key: str) -> tuple[str, ...]:
        """Return the waiting jobs of a key."""
        return tuple(self._by_key.get(key, ()))

    def read_lengths(self, devices: Iterable[str], predictions: Predictions) -> RemainingTimeQueue:
        """Return the ready jobs in the order of their remaining time; kept from the first reading on."""
        if self._lengths is None:
            self._lengths = build_lengths(self._ready_jobs, devices, predictions)
        return self._lengths

    def forget_lengths(self) -> None:
        """Build the order by remaining time anew: other devices than before are there."""
        self._lengths = None

    def add(self, job: JobRecord) -> None:
        """Let a job wait; it is ready unless it is held back."""
        self._by_key.setdefault(job.request.key, {})[job.job_id] = None
        self._make_ready(job)

    def change(self, job: JobRecord) -> None:
        """Show a waiting job as it is now."""
        if job.job_id in self._ready_jobs:
            self._show(job)

    def remove(self, job: JobRecord) -> None:
        """Let a job wait no more."""
        same_key = self._by_key[job.request.key]
        del same_key[job.job_id]
        if not same_key:
            del self._by_key[job.request.key]
        self._holds.pop(job.job_id, None)
        self._make_unready(job)

    def set_hold(self, job: JobRecord, reason: Reason | None) -> None:
        """Hold a job back from the policy, or (None) show it again."""
        if reason is None:
            self._holds.pop(job.job_id, None)
            self._make_ready(job)
        else:
            self._holds[job.job_id] = reason
            self._make_unready(job)

    def _show(self, job: JobRecord) -> None:
        self._ready_jobs[job.job_id] = shown = pending_view(job)
        if self._lengths is not None:
            self._lengths.put(shown)

    def _make_ready(self, job: JobRecord) -> None:
        if job.job_id not in self._ready_jobs:
            insort(self._ready, (job.submitted_at_ms, job.job_id))
        self._show(job)

    def _make_unready(self, job: JobRecord) -> None:
        if self._ready_jobs.pop(job.job_id, None) is not None:
            del self._ready[bisect_left(self._ready, (job.submitted_at_ms, job.job_id))]
        if self._lengths is not None:
            self._lengths.remove(job.job_id)
