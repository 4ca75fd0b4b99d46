"""Job lists that state how long each job runs: Muri, Tiresias, Philly, ElasticFlow, Alibaba's GPU pods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from math import nan
from pathlib import Path

from cotenant.names import NAME_PATTERN
from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.rows import Row, read_rows, require_unique
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.trace import GPU_MEMORY_BYTES, JOB_MEMORY_BYTES, Trace, TraceJob
from scheduler_service.core.queue.queue_terms import PRIORITIES, PRIORITY_MAX

GPUS_MAX = 100_000
MURI_SLOWDOWN_RATIO = 0.33
"""Two co-located jobs in the source's own simulator take 1.33 times as long."""
SECOND_MS = 1_000.0
PRIORITY_COLUMN, TENANT_COLUMN = "priority", "tenant"


def read_muri(path: Path, consent: Consent) -> Trace:
    """Read a job list of the Muri simulator, whose shortest-first order looks at no `priority`: that is no class here.

    Source:
        https://github.com/Rivendile/Muri, simulator/run_sim.py, commit 7264b1a.

    Raises:
        TraceError: A line is wrong.
    """
    columns = ("job_id", "num_gpu", "submit_time_s", "iterations", "model_name", "batch_size", "iteration_time_ms")
    kinds: dict[tuple[str, str], Kind] = {}
    jobs: list[tuple[Row, TraceJob]] = []
    for row in read_rows(path, columns):
        gpus, step_ms = row.integer("num_gpu", least=1, most=GPUS_MAX), row.number("iteration_time_ms", least=1e-6)
        batch = row.integer("batch_size", least=1, most=10**9)
        key = f"{row.text('model_name')}/batch {batch}/{gpus} GPUs/{row.text('iteration_time_ms')} ms"
        kinds[key, EVERY_DEVICE] = Kind(
            step_ms_by_gpus={gpus: step_ms}, batch=batch * gpus, memory_bytes=JOB_MEMORY_BYTES
        )
        request = consent.request(
            f"job-{row.text('job_id')}",
            key=key,
            gpus=gpus,
            batch=batch * gpus,
            steps_total=row.integer("iterations", least=1),
        )
        jobs.append((row, TraceJob(submitted_at_ms=row.milliseconds("submit_time_s"), request=request)))
    truth = GroundTruth(kinds=kinds, slowdown_ratio=MURI_SLOWDOWN_RATIO)
    return Trace(format="muri", jobs=in_order(path, jobs, has_classes=False), truth=truth)


def read_tiresias(path: Path, consent: Consent) -> Trace:
    """Read a job list of the Tiresias simulator.

    Raises:
        TraceError: A line is wrong.
    """
    jobs: list[tuple[Row, TraceJob]] = []
    kinds: dict[tuple[str, str], Kind] = {}
    for row in read_rows(path, ("job_id", "num_gpu", "submit_time_s", "iterations", "model_name", "duration_s")):
        gpus, steps = row.integer("num_gpu", least=1, most=GPUS_MAX), row.integer("iterations", least=1)
        step_ms = row.milliseconds("duration_s", least_ms=1) / steps
        key = f"{row.text('model_name')}/{gpus} GPUs/{step_ms:.6g} ms"
        kinds[key, EVERY_DEVICE] = Kind(step_ms_by_gpus={gpus: step_ms}, batch=gpus, memory_bytes=JOB_MEMORY_BYTES)
        request = consent.request(f"job-{row.text('job_id')}", key=key, gpus=gpus, batch=gpus, steps_total=steps)
        jobs.append((row, TraceJob(submitted_at_ms=row.milliseconds("submit_time_s"), request=request)))
    return Trace(format="tiresias", jobs=in_order(path, jobs), truth=GroundTruth(kinds=kinds))


def read_elasticflow(path: Path, consent: Consent) -> Trace:
    """Read a job list of a Microsoft ITP cluster, or an own one; without ids jobs are numbered by line.

    Raises:
        TraceError: A line is wrong.
    """
    jobs: list[tuple[Row, TraceJob]] = []
    kinds: dict[tuple[str, str], Kind] = {}
    for row in read_rows(path, ("submit_time_s", "duration_s", "num_gpus")):
        job_id = row.text("job_id") if "job_id" in row.cells else f"{row.line - 1:06d}"
        job = _timed(row, f"job-{job_id}", consent, kinds, row.milliseconds("submit_time_s"))
        jobs.append((row, job))
    return Trace(format="elasticflow-itp", jobs=in_order(path, jobs), truth=GroundTruth(kinds=kinds))


def read_philly(path: Path, consent: Consent) -> Trace:
    """Read the Philly job list; jobs are numbered by line.

    Raises:
        TraceError: A line is wrong.
    """
    timed: list[tuple[datetime, Row]] = []
    for row in read_rows(path, ("submit_time", "duration_s", "num_gpus")):
        try:
            submitted = datetime.strptime(row.text("submit_time"), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        except ValueError:
            raise row.error(f"submit_time is {row.text('submit_time')!r}, not YYYY-MM-DD HH:MM:SS") from None
        timed.append((submitted, row))
    first = min((submitted for submitted, _ in timed), default=None)
    kinds: dict[tuple[str, str], Kind] = {}
    jobs: list[tuple[Row, TraceJob]] = []
    for submitted, row in timed:
        at_ms = int((submitted - first).total_seconds()) * 1_000 if first is not None else 0
        jobs.append((row, _timed(row, f"job-{row.line - 1:06d}", consent, kinds, at_ms)))
    return Trace(format="philly", jobs=in_order(path, jobs), truth=GroundTruth(kinds=kinds))


def _timed(row: Row, job_id: str, consent: Consent, kinds: dict[tuple[str, str], Kind], at_ms: int) -> TraceJob:
    """Return a job of which only its time is known: one step a second, so that equal widths share a key."""
    gpus = row.integer("num_gpus", least=1, most=GPUS_MAX)
    steps = max(round(row.number("duration_s", most=1e11)), 1)
    key = f"{gpus} GPUs"
    if (key, EVERY_DEVICE) not in kinds:
        kinds[key, EVERY_DEVICE] = Kind(step_ms_by_gpus={gpus: SECOND_MS}, batch=gpus, memory_bytes=JOB_MEMORY_BYTES)
    return TraceJob(
        submitted_at_ms=at_ms,
        request=consent.request(job_id, key=key, gpus=gpus, batch=gpus, steps_total=steps),
    )


def read_alibaba(path: Path, consent: Consent) -> Trace:
    """Read a pod list of Alibaba's GPU-sharing cluster.

    A pod that asks for a part of a GPU may share it, takes that part of its time and memory, and slows no job down; all
    others never share. The device types that a pod allows are not looked at.

    Raises:
        TraceError: A line is wrong, or the list has no times.
    """
    columns = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
    jobs: list[tuple[Row, TraceJob]] = []
    kinds: dict[tuple[str, str], Kind] = {}
    skipped = {"needs no GPU": 0, "never ran": 0}
    for row in read_rows(path, columns):
        gpus = row.integer("num_gpu", most=GPUS_MAX)
        has_run = bool(row.text("scheduled_time") and row.text("deletion_time"))
        if not gpus or not has_run:
            skipped["never ran" if gpus else "needs no GPU"] += 1
            continue
        jobs.append((row, _pod(row, gpus, consent, kinds)))
    truth = GroundTruth(kinds=kinds, slowdown_ratio=0.0)
    found = {reason: count for reason, count in skipped.items() if count}
    return Trace(format="alibaba-gpu-2023", jobs=in_order(path, jobs), truth=truth, skipped=found)


def _pod(row: Row, gpus: int, consent: Consent, kinds: dict[tuple[str, str], Kind]) -> TraceJob:
    share = row.number("gpu_milli", most=1_000.0) / 1_000
    share = share if gpus == 1 and share > 0 else 1.0
    seconds = row.number("deletion_time") - row.number("scheduled_time")
    if seconds < 0:
        raise row.error("deletion_time lies before scheduled_time")
    key = f"{gpus} GPUs/{share:g}"
    kinds[key, EVERY_DEVICE] = Kind(
        step_ms_by_gpus={gpus: SECOND_MS},
        batch=gpus,
        memory_bytes=int(share * GPU_MEMORY_BYTES),
        utilization_ratio=share,
    )
    request = consent.request(
        row.text("name"), key=key, gpus=gpus, batch=gpus, steps_total=max(round(seconds), 1), may_share=share < 1
    )
    return TraceJob(submitted_at_ms=row.milliseconds("creation_time"), request=request)


def in_order(path: Path, jobs: Iterable[tuple[Row, TraceJob]], *, has_classes: bool = True) -> tuple[TraceJob, ...]:
    """Return the jobs by submission; equal instants in the order of the file.

    Args:
        path: Of the list.
        jobs: Each with its row.
        has_classes: What a row calls priority is the class of its job.

    Raises:
        TraceError: There is none, an id is there twice, or a class or a tenant cannot be.
    """
    found = list(jobs)
    if not found:
        raise TraceError(path, "holds no job that needs a GPU; nothing can be simulated")
    require_unique(path, ((job.request.job_id, row.line) for row, job in found))
    by_submission = sorted(found, key=lambda entry: entry[1].submitted_at_ms)
    return tuple(_with_queue_columns(row, job, has_classes=has_classes) for row, job in by_submission)


def _with_queue_columns(row: Row, job: TraceJob, *, has_classes: bool) -> TraceJob:
    """Return a job with the class and the tenant of its row, where the list has these columns.

    Raises:
        TraceError: A class or a tenant cannot be.
    """
    request = job.request
    if row.cells.get(TENANT_COLUMN):
        tenant = row.text(TENANT_COLUMN)
        if tenant and not NAME_PATTERN.fullmatch(tenant):
            raise row.error(f"{TENANT_COLUMN} must be at most 63 letters, digits or . _ -")
        request = replace(request, tenant=tenant)
    if has_classes and row.cells.get(PRIORITY_COLUMN):
        request = replace(request, terms=replace(request.terms, priority=_priority(row)))
    return job if request is job.request else replace(job, request=request)


def _priority(row: Row) -> int:
    named = PRIORITIES.get(row.text(PRIORITY_COLUMN).lower())
    if named is not None:
        return named
    try:
        number = float(row.text(PRIORITY_COLUMN))  # a data frame without all of them writes 100.0
    except ValueError:
        number = nan
    if not (number.is_integer() and abs(number) <= PRIORITY_MAX):
        told = f"not low, normal, high or a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}"
        raise row.error(f"{PRIORITY_COLUMN} is {row.text(PRIORITY_COLUMN)!r}, {told}")
    return int(number)
