"""Pollux: numbers of GPUs that are fairest in speedup, with restarts priced in.

What it does:
    Compares for every job and every number of GPUs how fast it would be against its fair share of the cluster (GPUs /
    jobs), and lowers that for a job that must restart: more for one that has run shorter or restarted more often.
    Chooses the numbers whose power mean is largest; p = -1, the default, helps the slowest job most.

Why:
    No user has to ask for the right number of GPUs: few jobs get many, many jobs few, and idle GPUs go where they still
    help.

Source:
    The Pollux artifact (petuum/adaptdl, branch osdi21-artifact), simulator/pollux.py: speedup over the fair share, the
    power mean, the penalty of a restart, growth to twice the GPUs at most.

Where we differ:
    Pollux also changes a job's batch, and goodput is throughput x statistical efficiency. Here users fix the batch, so
    the efficiency is the same for every number of GPUs and cancels; `cotenant simulate --engine-rules pollux` has the
    whole policy, batches included. The numbers come from an exact knapsack instead of a genetic search. A waiting job
    starts with what it asked for at most. Jobs without a profile get what they asked for.

Cost:
    O(jobs x numbers x GPUs), numpy rows of GPUs; one look at the nodes with free GPUs for every start and growth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

from scheduler_service.core.cluster_view.capacity import samples_per_gpu
from scheduler_service.core.cluster_view.view import PendingJob, RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision
from scheduler_service.core.errors import PolicyParameterError
from scheduler_service.core.planning.policy_parameters import require_not_negative, require_positive
from scheduler_service.core.records import JobRequest
from scheduler_service.policies.elasticity.count_choice import cheapest_counts
from scheduler_service.policies.elasticity.counted_starts import CountedStarts

_SPEEDUP_MIN = 1e-3
"""Added to every speedup, so that a job without GPUs costs much but not infinitely much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pollux:
    """Largest power mean of speedups."""

    fairness_power: float = field(
        default=-1.0, metadata={"description": "p of the power mean; lower = fairer, 1 = the sum of speedups"}
    )
    restart_cost_ms: int = field(
        default=30_000, metadata={"description": "pause of a job that is reshaped and states no migration cost, in ms"}
    )
    growth_max_ratio: float = field(
        default=2.0, metadata={"description": "a job gets at most so many times the GPUs that it has"}
    )
    interval_ms: int = field(
        default=60_000,
        metadata={"description": "how often numbers are chosen anew, and how long a job keeps its, in ms"},
    )

    def __post_init__(self) -> None:
        """Refuse values without a meaning."""
        require_positive(interval_ms=self.interval_ms)
        require_not_negative(restart_cost_ms=self.restart_cost_ms)
        if self.growth_max_ratio < 1 or not -100 <= self.fairness_power <= 1:
            raise PolicyParameterError(
                f"growth_max_ratio must be at least 1 and fairness_power from -100 to 1, but they are "
                f"{self.growth_max_ratio} and {self.fairness_power}"
            )

    def decide(self, view: SchedulingView) -> Sequence[Decision]:
        """Return reshapes, then one decision per pending job."""
        starts = CountedStarts(view, remaining_ms=self.interval_ms)
        jobs: list[PendingJob | RunningJob] = [view.running[job_id] for job_id in starts.adjustable]
        jobs += [job for job in view.pending if starts.counts[job.request.job_id]]
        # Where nothing else decides, the job that came last gets less.
        jobs.sort(key=lambda job: (job.submitted_at_ms, job.request.job_id))
        held = sum(len(job.assignments) for job in jobs if isinstance(job, RunningJob))
        gpus = len(view.index.free_gpu_ids) + held
        fair_gpus = -(-gpus // max(len(jobs), 1))
        devices = sorted({entry.gpu.device for entry in view.gpus.values()})
        costs = []
        for job in jobs:
            rates = rates_of(view, job.request, starts.counts[job.request.job_id], devices)
            costs.append(self.costs(job, rates, fair_gpus, view.now_ms))
        chosen = cheapest_counts(costs, gpus)
        wanted = {job.request.job_id: count for job, count in zip(jobs, chosen, strict=True)}
        waiting = sorted(view.pending, key=lambda job: (-wanted.get(job.request.job_id, 0), *_arrival(job)))
        return starts.carry_out(waiting, wanted)

    def costs(
        self, job: PendingJob | RunningJob, rates: Mapping[int, float], fair_gpus: int, now_ms: int
    ) -> dict[int, float]:
        """Return what every number of GPUs costs a job; the least sum over all jobs is the largest power mean.

        Args:
            job: The job.
            rates: Steps per ms by number of GPUs, where known.
            fair_gpus: Its fair share.
            now_ms: This instant.
        """
        if isinstance(job, PendingJob):
            known = {count: rate for count, rate in rates.items() if count <= job.request.gpus}
            known = known or {job.request.gpus: 1.0}
            fair = _rate_at(rates or known, fair_gpus)
            return {0: self._cost(0.0)} | {count: self._cost(rate / fair) for count, rate in known.items()}
        held = len(job.assignments)
        if held not in rates:
            return {held: 0.0}
        age_ms, pause_ms = now_ms - job.submitted_at_ms, job.request.migration_cost_ms or self.restart_cost_ms
        kept_ratio = max(age_ms - (job.attempt - 1) * pause_ms, 0) / max(age_ms + pause_ms, 1)
        fair = _rate_at(rates, fair_gpus)
        return {
            count: self._cost(rate / fair * (1.0 if count == held else kept_ratio))
            for count, rate in rates.items()
            if count <= held * self.growth_max_ratio
        }

    def _cost(self, speedup: float) -> float:
        """Return what a speedup adds to the sum that shall be small."""
        power, value = self.fairness_power, speedup + _SPEEDUP_MIN
        if power == 0:
            return -log(value)
        return float(value**power) if power < 0 else -float(value**power)


def _arrival(job: PendingJob) -> tuple[int, str]:
    return job.submitted_at_ms, job.request.job_id


def _rate_at(rates: Mapping[int, float], gpus: int) -> float:
    """Return the rate at the largest known count up to `gpus`, else at the smallest known one."""
    return rates[max((count for count in rates if count <= gpus), default=min(rates))]


def rates_of(
    view: SchedulingView, request: JobRequest, counts: Sequence[int], devices: Sequence[str]
) -> dict[int, float]:
    """Return steps per ms by number of GPUs, on the device that is fastest for each; unknown ones are absent."""
    found: dict[int, float] = {}
    for device in devices:
        prediction = view.predictions.job(request.key, device)
        if prediction is None:
            continue
        for count in counts:
            wanted = samples_per_gpu(request, count)
            fitting = [
                (micro_batch_size, step_ms)
                for (gpus, micro_batch_size), step_ms in prediction.step_ms.items()
                if gpus == count and micro_batch_size >= wanted and step_ms > 0
            ]
            if fitting:
                found[count] = max(1 / min(fitting)[1], found.get(count, 0.0))
    return found
