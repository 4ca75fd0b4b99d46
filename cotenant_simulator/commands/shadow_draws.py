"""Past jobs with demands drawn from measured ones, simulated with GPUs of their own and sharing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from cotenant_simulator.commands.simulate import BASELINE
from cotenant_simulator.errors import InputError
from cotenant_simulator.readers.accounting import Accounting, PastJob, read_accounting
from cotenant_simulator.readers.assumed_jobs import assume
from cotenant_simulator.readers.measured_jobs import MeasuredJobs
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.report.shadow_report import ShadowRun
from cotenant_simulator.run.records import RunResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import Cluster, read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import GIB, Trace

JOBS_MAX = 100_000


def read_past_jobs(sacct: Path | None, trace: Path | None, profiles: Path | None = None) -> Accounting:
    """Read the jobs of one of an accounting table and a trace.

    Raises:
        InputError: Both or none are named, or there are too many jobs.
    """
    if (sacct is None) == (trace is None):
        raise InputError("name one of --sacct FILE and --trace FILE")
    table = read_accounting(sacct) if sacct is not None else past_jobs_of_trace(trace or Path(), profiles)
    if len(table.jobs) > JOBS_MAX:
        raise InputError(f"{len(table.jobs):,} jobs are more than {JOBS_MAX:,}; ask about fewer days")
    return table


def past_jobs_of_trace(path: Path, profiles: Path | None = None) -> Accounting:
    """Return the jobs of a trace as if each had got its GPUs at once."""
    found = read_trace(path, Consent(), profiles=profiles)
    return Accounting(jobs=tuple(_past_job(found, place) for place in range(len(found.jobs))), skipped=found.skipped)


def _past_job(trace: Trace, place: int) -> PastJob:
    job = trace.jobs[place]
    kind = trace.truth.kind(job.request.key, trace.device)
    step_ms = kind.step_ms(gpus=job.request.gpus) if kind is not None else 1_000.0
    began_ms = job.submitted_at_ms
    return PastJob(
        job_id=job.request.job_id,
        name=job.request.key,
        user=job.request.tenant,
        gpus=job.request.gpus,
        submitted_at_ms=began_ms,
        started_at_ms=began_ms,
        ended_at_ms=began_ms + max(round(job.request.steps_total * step_ms), 1),
    )


def read_machines(text: str, device: str, memory_gib: float) -> Cluster:
    """Return the cluster; the memory of GPUs stands in the flag unless there is a file."""
    found = read_cluster(text, device=device)
    if text.endswith(".toml"):
        return found
    nodes = [
        replace(node, gpus=tuple(replace(gpu, memory_bytes=int(memory_gib * GIB)) for gpu in node.gpus))
        for node in found.nodes
    ]
    return replace(found, nodes=nodes)


def doubts(jobs: Sequence[PastJob], machines: Cluster) -> list[str]:
    """Return what speaks against these machines: more GPUs were in use at once than they have."""
    # Sorted so, GPUs are given back before others are taken at the same instant.
    changes = sorted(change for job in jobs for change in ((job.started_at_ms, job.gpus), (job.ended_at_ms, -job.gpus)))
    in_use, most, most_at_ms = 0, 0, 0
    for at_ms, gpus in changes:
        in_use += gpus
        if in_use > most:
            most, most_at_ms = in_use, at_ms
    if most <= machines.gpus:
        return []
    at = datetime.fromtimestamp(most_at_ms / 1_000, tz=UTC).strftime("%Y-%m-%d %H:%M")
    return [
        f"on {at} {most:,} GPUs were in use, but --cluster {machines.name} has {machines.gpus:,}: waits and savings "
        "are those of a smaller cluster; name the GPUs that these jobs had"
    ]


def draw_demands(jobs: Sequence[PastJob], known: MeasuredJobs, *, max_slowdown_ratio: float, seed: int) -> Trace:
    """Take each past job for one of the measured ones."""
    return assume(jobs, known, Consent(max_slowdown_ratio=max_slowdown_ratio), seed=seed)


def simulate_draw(trace: Trace, machines: Cluster, *, policy: str, error: float, seed: int) -> ShadowRun:
    """Return drawn jobs with GPUs of their own, and sharing under a policy whose predictions err by `error`."""

    def simulated(name: str, predictions: str) -> RunResult:
        predictor = TruthPredictor(trace.truth, parse_errors(predictions, seed=seed))
        settings = RunSettings(policy=name, seed=seed, keeps_history=True)
        return Simulation(trace, machines, predictor, settings).run()

    predictions = f"noise:{error:g}" if error else "oracle"
    return ShadowRun(exclusive=simulated(BASELINE, "oracle"), shared=simulated(policy, predictions))


def write_page(path: Path, text: str) -> None:
    """Write a page for the browser.

    Raises:
        InputError: It cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}; name a file in a folder that exists") from error
