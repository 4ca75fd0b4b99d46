"""The report as JSON: stable keys, no clock, equal bytes for equal runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cotenant_simulator.report.comparability import Caveat
from cotenant_simulator.run.records import HOUR_MS, JobResult, RunResult

SCHEMA = "cotenant.simulate/1"
DECIMALS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was simulated.

    Attributes:
        trace_path: As the user wrote it.
        trace_sha256: Of the file's bytes.
        trace_jobs: Jobs in it.
        cluster: As the user wrote it.
        engine_rules: live or pollux.
        predictions: As the user wrote it.
        seed: Of everything drawn.
        has_jobs: The report lists every job.
    """

    trace_path: str
    trace_sha256: str
    trace_jobs: int
    cluster: str
    engine_rules: str
    predictions: str
    seed: int
    has_jobs: bool

    def as_head(self) -> dict[str, object]:
        """Return what every report of it begins with."""
        return {
            "trace": {"path": self.trace_path, "sha256": self.trace_sha256, "jobs": self.trace_jobs},
            "cluster": self.cluster,
            "engine_rules": self.engine_rules,
            "predictions": self.predictions,
        }


def as_json(question: Question, results: Sequence[RunResult], caveats: Sequence[Caveat] = ()) -> dict[str, object]:
    """Return the report of all policies, and what their comparison cannot show."""
    return {
        "schema": SCHEMA,
        **question.as_head(),
        "seed": question.seed,
        "policies": [as_policy(result) for result in results],
        "jobs": [as_job(result.policy, job) for result in results for job in result.jobs] if question.has_jobs else [],
        "warnings": as_warnings(caveats),
    }


def as_warnings(caveats: Sequence[Caveat]) -> list[dict[str, object]]:
    """Return what a comparison cannot show."""
    return [{"code": one.code, "policies": list(one.policies), "message": one.message} for one in caveats]


def as_policy(result: RunResult) -> dict[str, object]:
    """Return the sums of one run."""
    done = [job for job in result.jobs if job.is_finished]
    makespan_ms = result.ended_at_ms - result.began_at_ms
    capacity_ms = result.gpus * makespan_ms
    slowdowns = spread([job.slowdown_ratio for job in done])
    return {
        "policy": result.policy,
        "parameters": dict(result.parameters),
        "jobs_submitted": len(result.jobs),
        "jobs_finished": len(done),
        "jct_s": spread(jct_s(job) for job in done),
        "run_s": spread((job.finished_at_ms - job.first_started_at_ms) / 1_000 for job in done),
        "queueing_s": spread(queueing_s(job) for job in done),
        "first_wait_s": spread((job.first_started_at_ms - job.submitted_at_ms) / 1_000 for job in done),
        "makespan_s": _rounded(makespan_ms / 1_000),
        "gpu_hours_used": _rounded(result.gpu_ms_utilized / HOUR_MS),
        "gpu_hours_allocated": _rounded(result.gpu_ms_held / HOUR_MS),
        "gpu_allocated_ratio": _rounded(result.gpu_ms_held / capacity_ms if capacity_ms else 0.0),
        "gpu_utilization_ratio": _rounded(result.gpu_ms_utilized / capacity_ms if capacity_ms else 0.0),
        "slowdown_ratio": {name: slowdowns[name] for name in ("mean", "p95", "max")},
        "finish_time_fairness_rho": spread(fairness_rho(job, result.gpus) for job in done),
        "preemptions": sum(job.preemptions for job in result.jobs),
        "migrations": sum(job.migrations for job in result.jobs),
        "reshapes": sum(job.reshapes for job in result.jobs),
        "out_of_memory": sum(job.out_of_memory for job in result.jobs),
        "held_reasons": dict(result.held_reasons),
    }


def as_job(policy: str, job: JobResult) -> dict[str, object]:
    """Return what became of one job."""
    return {
        "policy": policy,
        "job_id": job.job_id,
        "submitted_at_ms": job.submitted_at_ms,
        "first_started_at_ms": job.first_started_at_ms if job.first_started_at_ms >= 0 else None,
        "finished_at_ms": job.finished_at_ms if job.is_finished else None,
        "gpus": job.gpus,
        "jct_s": _rounded(jct_s(job)) if job.is_finished else None,
        "queueing_s": _rounded(queueing_s(job)) if job.is_finished else None,
        "slowdown_ratio": _rounded(job.slowdown_ratio),
        "restarts": max(job.attempts - 1, 0),
        "out_of_memory": job.out_of_memory,
    }


def jct_s(job: JobResult) -> float:
    """Return the time from submission to end in s."""
    return (job.finished_at_ms - job.submitted_at_ms) / 1_000


def queueing_s(job: JobResult) -> float:
    """Return the time between submission and end without GPUs in s."""
    return (job.finished_at_ms - job.submitted_at_ms - job.held_ms) / 1_000


def fairness_rho(job: JobResult, gpus: int) -> float:
    """Return the finish time over that on an exclusive 1/N of the cluster, N the mean number of jobs meanwhile.

    The fairness of Themis (NSDI 2020); a share below the job's width prolongs its time alone in proportion.
    """
    share = gpus / max(job.concurrent_jobs_mean, 1.0)
    alone_ms = job.solo_ms * max(job.gpus / share, 1.0)
    return (job.finished_at_ms - job.submitted_at_ms) / alone_ms if alone_ms else 0.0


def spread(values: Iterable[float]) -> Mapping[str, float]:
    """Return mean, quantiles (nearest rank) and maximum; zeros for no values."""
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(("mean", "p50", "p95", "p99", "max"), 0.0)
    return {
        "mean": _rounded(sum(ordered) / len(ordered)),
        "p50": _rounded(quantile(ordered, 50)),
        "p95": _rounded(quantile(ordered, 95)),
        "p99": _rounded(quantile(ordered, 99)),
        "max": _rounded(ordered[-1]),
    }


def quantile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least so many percent of the values do not exceed."""
    return ordered[max(-(-len(ordered) * percent // 100) - 1, 0)]


def _rounded(value: float) -> float:
    return round(value, DECIMALS)
