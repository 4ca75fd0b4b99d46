"""Lanes: the jobs that a policy orders among themselves, of one class, one tenant, one choice of devices and nodes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, overload

from scheduler_service.core.cluster_view.remaining_time_queue import RemainingTimeQueue, ServiceQueue
from scheduler_service.core.cluster_view.view import PendingJob, Predictions
from scheduler_service.core.queue.queue_terms import NO_TERMS
from scheduler_service.core.records import JobRequest


class LaneName(NamedTuple):
    """What the jobs of a lane have in common; the tenant is empty where there are no rules for tenants."""

    priority: int = 0
    tenant: str = ""
    devices: tuple[str, ...] = ()
    across_nodes: bool = False


PLAIN_LANE = LaneName()


def name_lane(request: JobRequest, *, by_tenant: bool) -> LaneName:
    """Return the lane of a job."""
    terms = request.terms
    if terms is NO_TERMS and not by_tenant:
        return PLAIN_LANE
    return LaneName(terms.priority, request.tenant if by_tenant else "", terms.devices, terms.across_nodes)


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


class Lane:
    """The ready jobs of one lane; kept up to date by `WaitingJobs`."""

    def __init__(self) -> None:
        self._order: list[tuple[int, str]] = []
        self._wide_order: list[tuple[int, str]] = []
        self._jobs: dict[str, PendingJob] = {}
        self._widths: dict[int, int] = {}
        self._lengths: RemainingTimeQueue | None = None
        self._services: tuple[tuple[float, ...], ServiceQueue] | None = None
        # What a quota leaves of it: most lanes are as they were in the decision before. No more than there are widths.
        self._narrowed: dict[int, ReadyQueue] = {}
        self._wider_ids: dict[int, tuple[str, ...]] = {}
        self.queue = ReadyQueue(self._order, self._jobs)

    @property
    def head(self) -> tuple[int, str]:
        """When the first of its jobs was submitted, and its id."""
        return self._order[0]

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def put(self, shown: PendingJob) -> None:
        """Add a job, or show it as it is now."""
        job_id = shown.request.job_id
        self._forget_parts()
        before = self._jobs.get(job_id)
        if before is None:
            insort(self._order, (shown.submitted_at_ms, job_id))
            self._count(shown, 1)
        elif before.request.gpus != shown.request.gpus:
            self._count(before, -1)
            self._count(shown, 1)
        self._jobs[job_id] = shown
        if self._lengths is not None:
            self._lengths.put(shown)
        if self._services is not None:
            self._services[1].put(shown)

    def remove(self, job_id: str) -> None:
        """Take a job out."""
        self._forget_parts()
        shown = self._jobs.pop(job_id)
        self._count(shown, -1)
        del self._order[bisect_left(self._order, (shown.submitted_at_ms, job_id))]
        if self._lengths is not None:
            self._lengths.remove(job_id)
        if self._services is not None:
            self._services[1].remove(job_id)

    def _count(self, shown: PendingJob, more: int) -> None:
        gpus, turn = shown.request.gpus, (shown.submitted_at_ms, shown.request.job_id)
        left = self._widths.get(gpus, 0) + more
        if left:
            self._widths[gpus] = left
        else:
            del self._widths[gpus]
        if gpus > 1 and more > 0:
            insort(self._wide_order, turn)
        elif gpus > 1:
            del self._wide_order[bisect_left(self._wide_order, turn)]

    def read_lengths(self, devices: Iterable[str], predictions: Predictions) -> RemainingTimeQueue:
        """Return its jobs in the order of their remaining time; kept from the first reading on."""
        if self._lengths is None:
            self._lengths = RemainingTimeQueue(devices, predictions)
            self._lengths.fill(self._jobs.values())
        return self._lengths

    def read_services(self, limits_gpu_ms: tuple[float, ...]) -> ServiceQueue:
        """Return its jobs in the order of their service; kept from the first reading on, for the newest limits."""
        if self._services is None or self._services[0] != limits_gpu_ms:
            queue = ServiceQueue(limits_gpu_ms)
            queue.fill(self._jobs.values())
            self._services = limits_gpu_ms, queue
        return self._services[1]

    def wide_jobs(self, gpus_max: int | None = None) -> Iterator[PendingJob]:
        """Yield its jobs that ask for several GPUs, but for no more than that, in submission order."""
        if gpus_max is not None and not any(1 < gpus <= gpus_max for gpus in self._widths):
            return iter(())
        jobs = (self._jobs[job_id] for _, job_id in self._wide_order)
        return (job for job in jobs if gpus_max is None or job.request.gpus <= gpus_max)

    def older_ids(self, than: tuple[int, str], jobs_max: int) -> AbstractSet[str]:
        """Return its first jobs, at most so many, that were submitted before one of another lane."""
        return {job_id for _, job_id in self._order[: min(bisect_left(self._order, than), jobs_max)]}

    def chosen(self, job_ids: AbstractSet[str]) -> ReadyQueue:
        """Return some of its jobs; it costs what they are."""
        jobs = {job_id: self._jobs[job_id] for job_id in job_ids if job_id in self._jobs}
        return ReadyQueue(sorted((job.submitted_at_ms, job_id) for job_id, job in jobs.items()), jobs)

    def narrowed(self, gpus_max: int) -> ReadyQueue:
        """Return its jobs without those that ask for more GPUs; valid until the next change."""
        if max(self._widths, default=0) <= gpus_max:
            return self.queue
        known = self._narrowed.get(gpus_max)
        if known is None:
            jobs = {job_id: job for job_id, job in self._jobs.items() if job.request.gpus <= gpus_max}
            known = self._narrowed[gpus_max] = ReadyQueue([turn for turn in self._order if turn[1] in jobs], jobs)
        return known

    def wider_ids(self, gpus_max: int) -> tuple[str, ...]:
        """Return the jobs that ask for more GPUs."""
        if max(self._widths, default=0) <= gpus_max:
            return ()
        known = self._wider_ids.get(gpus_max)
        if known is None:
            jobs, order = self._jobs, self._wide_order if gpus_max else self._order
            known = tuple([job_id for _, job_id in order if jobs[job_id].request.gpus > gpus_max])
            self._wider_ids[gpus_max] = known
        return known

    def _forget_parts(self) -> None:
        if self._narrowed or self._wider_ids:
            self._narrowed.clear()
            self._wider_ids.clear()

    def forget_lengths(self) -> None:
        """Build that order anew when it is read next."""
        self._lengths = None


def merge_lanes(lanes: Iterable[Lane]) -> ReadyQueue:
    """Return the jobs of several lanes by submission."""
    jobs = {job.request.job_id: job for lane in lanes for job in lane.queue}
    return ReadyQueue(sorted((job.submitted_at_ms, job_id) for job_id, job in jobs.items()), jobs)
