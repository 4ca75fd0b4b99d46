"""What sharing would have done to past jobs, over all draws of what they demanded: stable keys, no clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Final

from cotenant_simulator.readers.accounting import Accounting
from cotenant_simulator.report.json_report import quantile
from cotenant_simulator.run.records import HOUR_MS, JobResult, RunResult

SCHEMA: Final = "cotenant.shadow/1"
DAY_MS: Final = 24 * HOUR_MS
USERS_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRun:
    """The same drawn jobs with GPUs of their own, and sharing."""

    exclusive: RunResult
    shared: RunResult


def shadow_report(
    runs: Sequence[ShadowRun],
    *,
    past: Accounting,
    about: Mapping[str, object],
    warnings: Sequence[str] = (),
) -> dict[str, object]:
    """Return the report.

    Args:
        runs: One for each seed.
        past: The jobs as they were accounted for.
        about: What was asked.
        warnings: What makes the figures doubtful.
    """
    jobs = runs[0].exclusive.jobs
    return {
        "schema": SCHEMA,
        **about,
        "warnings": list(warnings),
        "jobs": len(jobs),
        "jobs_with_measured_demands": sum(job.utilization_ratio is not None for job in past.jobs),
        "rows_left_out": dict(past.skipped),
        "gpu_hours_exclusive": _interval(run.exclusive.gpu_ms_held / HOUR_MS for run in runs),
        "gpu_hours_saved": _interval(_saved_ms(run) / HOUR_MS for run in runs),
        "days": _days(runs),
        "slowdown_ratio": {
            "p50": _interval(_slowdown(run, 50) for run in runs),
            "p95": _interval(_slowdown(run, 95) for run in runs),
            "max": _interval(_slowdown(run, 100) for run in runs),
        },
        "out_of_memory_ends": _interval(sum(job.out_of_memory for job in run.shared.jobs) for run in runs),
        "mean_wait_s": {
            "accounted": _accounted_wait_s(past),
            "exclusive": _interval(_mean_wait_s(run.exclusive) for run in runs),
            "shared": _interval(_mean_wait_s(run.shared) for run in runs),
        },
        "jobs_that_wait_less": _interval(sum(gain > 0 for gain in _gains_s(run).values()) for run in runs),
        "jobs_that_wait_longer": _interval(sum(gain < 0 for gain in _gains_s(run).values()) for run in runs),
        "users": _users(runs, {job.job_id: job.user for job in past.jobs}),
    }


def _saved_ms(run: ShadowRun) -> float:
    return run.exclusive.gpu_ms_held - run.shared.gpu_ms_held


def _days(runs: Sequence[ShadowRun]) -> list[dict[str, object]]:
    held = [(_held_by_day(run.exclusive), _held_by_day(run.shared)) for run in runs]
    days = sorted({day for one, other in held for day in (*one, *other)})
    return [
        {
            "day": datetime.fromtimestamp(day * DAY_MS / 1_000, tz=UTC).strftime("%Y-%m-%d"),
            "gpu_hours_exclusive": _interval(one.get(day, 0.0) for one, _ in held),
            "gpu_hours_saved": _interval(one.get(day, 0.0) - other.get(day, 0.0) for one, other in held),
        }
        for day in days
    ]


def _held_by_day(result: RunResult) -> dict[int, float]:
    """Return the GPU hours with at least one job, by day since 1970."""
    found: dict[int, float] = defaultdict(float)
    for interval in result.usage_intervals:
        at_ms = interval.from_ms
        while at_ms < interval.until_ms:
            end_ms = min((at_ms // DAY_MS + 1) * DAY_MS, interval.until_ms)
            found[at_ms // DAY_MS] += interval.held_gpus * (end_ms - at_ms) / HOUR_MS
            at_ms = end_ms
    return found


def _accounted_wait_s(past: Accounting) -> dict[str, float] | None:
    """Return how long jobs really waited; None = their source does not tell."""
    waits = ((job.started_at_ms - job.submitted_at_ms) / 1_000 for job in past.jobs)
    return _interval([fmean(waits)]) if past.tells_submissions else None


def _slowdown(run: ShadowRun, percent: int) -> float:
    ratios = sorted(job.slowdown_ratio for job in run.shared.jobs if job.is_finished)
    return quantile(ratios, percent) if ratios else 0.0


def _wait_s(job: JobResult) -> float:
    return max(job.first_started_at_ms - job.submitted_at_ms, 0) / 1_000


def _mean_wait_s(result: RunResult) -> float:
    return fmean(_wait_s(job) for job in result.jobs) if result.jobs else 0.0


def _gains_s(run: ShadowRun) -> dict[str, float]:
    """Return how much sooner each job would have started."""
    pairs = zip(run.exclusive.jobs, run.shared.jobs, strict=True)
    return {one.job_id: _wait_s(one) - _wait_s(other) for one, other in pairs}


def _users(runs: Sequence[ShadowRun], users: Mapping[str, str]) -> list[dict[str, object]]:
    """Return who would have waited less, or longer, most first."""
    gains: dict[str, list[float]] = {}
    for place, run in enumerate(runs):
        for job_id, gain_s in _gains_s(run).items():
            of_user = gains.setdefault(users.get(job_id, ""), [0.0] * len(runs))
            of_user[place] += gain_s / 3_600
    rows: list[dict[str, object]] = [
        {"user": user, "hours_waited_less": _interval(of_user)} for user, of_user in gains.items()
    ]
    return sorted(rows, key=lambda row: (-abs(fmean(gains[str(row["user"])])), str(row["user"])))[:USERS_MAX]


def _interval(values: Iterable[float]) -> dict[str, float]:
    """Return mean, least and most of n draws: one more would lie between them with a chance of n - 1 in n + 1."""
    found = sorted(values)
    return {"mean": round(fmean(found), 4), "lower": round(found[0], 4), "upper": round(found[-1], 4)}
