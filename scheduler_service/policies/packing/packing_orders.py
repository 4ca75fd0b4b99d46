"""In which order jobs are packed.

Source:
    Li et al., "Interference-aware opportunistic job placement for shared distributed deep learning clusters" (JPDC):
    Algorithm 1 line 1, Algorithm 3, section 4.3 and Eq. 20.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nlargest

from scheduler_service.core.cluster_view.view import PendingJob
from scheduler_service.core.records import JobRequest
from scheduler_service.policies.packing.opportunistic_memory import Demand

DemandOf = Callable[[JobRequest], Demand]


def by_arrival(jobs: Sequence[PendingJob], demand_of: DemandOf) -> Sequence[PendingJob]:
    """Return jobs in the order of submission, in which they come."""
    return jobs


def by_resources(jobs: Sequence[PendingJob], demand_of: DemandOf) -> list[PendingJob]:
    """Return the largest jobs first: by compute, then by memory in the high state (Algorithm 1 line 1)."""
    return sorted(jobs, key=lambda job: (*_largest_first(demand_of(job.request)), *_arrival(job)))


def by_gregariousness(jobs: Sequence[PendingJob], demand_of: DemandOf) -> list[PendingJob]:
    """Return the most easygoing jobs first (section 4.3), of equal ones the largest.

    The gregariousness of a job is the largest collision probability that one of its workers has with a worker of the
    queue (Eq. 20), another one of its own included if it has one. Removing the smallest never changes the order of the
    rest, so one sort stands for the paper's sort in every round.
    """
    highest = nlargest(2, ((_surge(demand_of, job), job.request.job_id) for job in jobs))

    def key(job: PendingJob) -> tuple[float, float, float, int, str]:
        partner = next((p for p, job_id in highest if job_id != job.request.job_id or job.request.gpus > 1), 0.0)
        return _surge(demand_of, job) * partner, *_largest_first(demand_of(job.request)), *_arrival(job)

    return sorted(jobs, key=key)


def by_least_gregariousness(jobs: Sequence[PendingJob], demand_of: DemandOf) -> list[PendingJob]:
    """Return the least easygoing jobs first, of equal ones the widest: they get devices while partners are left."""
    return sorted(jobs, key=lambda job: (-_surge(demand_of, job), -job.request.gpus, *_arrival(job)))


def by_width(jobs: Sequence[PendingJob], demand_of: DemandOf) -> list[PendingJob]:
    """Return the jobs with most workers first, as bin packing takes large things first."""
    return sorted(jobs, key=lambda job: (-job.request.gpus, *_arrival(job)))


def as_listed(jobs: Sequence[PendingJob], demand_of: DemandOf) -> list[PendingJob]:
    """Return the order of Algorithm 3 as printed: line 3 takes the largest job before line 4 first sorts."""
    if not jobs:
        return []
    largest = by_resources(jobs, demand_of)[0]
    return [largest, *(job for job in by_gregariousness(jobs, demand_of) if job is not largest)]


def _surge(demand_of: DemandOf, job: PendingJob) -> float:
    return demand_of(job.request).surge_probability_ratio


def _largest_first(demand: Demand) -> tuple[float, float]:
    compute_ratio, memory_ratio = demand.size
    return -compute_ratio, -memory_ratio


def _arrival(job: PendingJob) -> tuple[int, str]:
    return job.submitted_at_ms, job.request.job_id
