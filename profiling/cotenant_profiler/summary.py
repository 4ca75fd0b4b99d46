"""The figures that show whether a campaign is reliable."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cotenant_profiler.dataset import slowdown_ratio
from cotenant_profiler.drift import drift_ratio
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.journal import Record
from cotenant_profiler.plan import Kind

JUDGED_KINDS = (Kind.SOLO, Kind.GROUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """One job alone.

    Attributes:
        job: The job.
        runs: Accepted runs.
        step_ms: Mean step time.
        step_variation_ratio: Standard deviation of step times between runs over their mean; None for a single run.
        utilization_ratio: Mean utilization.
        memory_bytes: Peak memory; None when it was not measured.
    """

    job: JobSpec
    runs: int
    step_ms: float
    step_variation_ratio: float | None
    utilization_ratio: float
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A campaign in figures.

    Attributes:
        attempts: Attempts that the isolation check judged.
        accepted: Of these, accepted ones.
        failed: Attempts that ended in an error.
        jobs: Every job alone, by name.
        victims: Accepted rows of pairs and larger groups.
        slowdown_mean: Mean slowdown of these.
        repeat_deviation_median: Median over repeated victims of the standard deviation of their slowdown.
        repeat_deviation_max: Largest of the same.
        load_correlation: Correlation of summed utilization and slowdown.
        anchor_deviation_max: Largest deviation of the anchor job from its median.
    """

    attempts: int
    accepted: int
    failed: int
    jobs: tuple[JobSummary, ...]
    victims: int
    slowdown_mean: float | None
    repeat_deviation_median: float | None
    repeat_deviation_max: float | None
    load_correlation: float | None
    anchor_deviation_max: float | None

    @property
    def accepted_ratio(self) -> float | None:
        """Share of the judged attempts that were accepted."""
        return self.accepted / self.attempts if self.attempts else None


@dataclass(frozen=True, slots=True)
class _Victim:
    job: JobSpec
    group: tuple[JobSpec, ...]
    load_ratio: float
    slowdown_ratio: float


def summarize(records: Sequence[Record]) -> Summary:
    """Return the figures of a campaign from its records."""
    judged = [record for record in records if record.kind in JUDGED_KINDS and record.status != "failed"]
    jobs = _job_summaries(records)
    victims = _victims(records, {item.job: item.utilization_ratio for item in jobs})
    deviations = _repeat_deviations(victims)
    anchors = [abs(drift_ratio(record, records)) for record in records if record.kind is Kind.SOLO]
    return Summary(
        attempts=len(judged),
        accepted=sum(record.status == "ok" for record in judged),
        failed=sum(record.status == "failed" for record in records),
        jobs=jobs,
        victims=len(victims),
        slowdown_mean=statistics.fmean(victim.slowdown_ratio for victim in victims) if victims else None,
        repeat_deviation_median=statistics.median(deviations) if deviations else None,
        repeat_deviation_max=max(deviations, default=None),
        load_correlation=_correlation(victims),
        anchor_deviation_max=max(anchors, default=None),
    )


def _job_summaries(records: Sequence[Record]) -> tuple[JobSummary, ...]:
    runs: dict[JobSpec, list[Mapping[str, float]]] = {}
    memory = {}
    for record in records:
        if record.status != "ok":
            continue
        if record.kind is Kind.SOLO:
            runs.setdefault(record.jobs[0], []).append(record.figures[0])
        if record.kind is Kind.MEMORY:
            memory[record.jobs[0]] = int(record.figures[0]["peak_bytes"])
    ordered = sorted(runs.items(), key=lambda item: item[0])
    return tuple(_job_summary(job, figures, memory.get(job.without_wait)) for job, figures in ordered)


def _job_summary(job: JobSpec, figures: Sequence[Mapping[str, float]], memory_bytes: int | None) -> JobSummary:
    times_ms = [figure["step_ms_mean"] for figure in figures]
    mean_ms = statistics.fmean(times_ms)
    return JobSummary(
        job=job,
        runs=len(figures),
        step_ms=mean_ms,
        step_variation_ratio=statistics.stdev(times_ms) / mean_ms if len(times_ms) > 1 else None,
        utilization_ratio=statistics.fmean(figure["utilization_ratio"] for figure in figures),
        memory_bytes=memory_bytes,
    )


def _victims(records: Sequence[Record], utilization: Mapping[JobSpec, float]) -> list[_Victim]:
    victims = []
    for record in records:
        if record.kind is not Kind.GROUP or record.status != "ok" or not set(record.jobs) <= set(utilization):
            continue
        load_ratio = sum(utilization[job] for job in record.jobs)
        for index, job in enumerate(record.jobs):
            slowdown = slowdown_ratio(record, index)
            if slowdown is not None:
                victims.append(_Victim(job, record.jobs, load_ratio, slowdown))
    return victims


def _repeat_deviations(victims: Sequence[_Victim]) -> list[float]:
    """Standard deviation of the slowdown of every victim that was measured more than once in the same group."""
    repeated: dict[tuple[JobSpec, tuple[JobSpec, ...]], list[float]] = {}
    for victim in victims:
        # Co-located with copies of itself a job has several rows per run; they are not repetitions of a run.
        if len(set(victim.group)) == len(victim.group):
            repeated.setdefault((victim.job, victim.group), []).append(victim.slowdown_ratio)
    return [statistics.stdev(values) for values in repeated.values() if len(values) > 1]


def _correlation(victims: Sequence[_Victim]) -> float | None:
    loads = [victim.load_ratio for victim in victims]
    if len(set(loads)) < 3:
        return None
    return statistics.correlation(loads, [victim.slowdown_ratio for victim in victims])
