"""Past jobs with demands drawn from measured ones, simulated with GPUs of their own and sharing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cotenant_simulator.commands.simulate import BASELINE
from cotenant_simulator.errors import InputError
from cotenant_simulator.readers.accounting import Accounting, PastJob, read_accounting
from cotenant_simulator.readers.assumed_jobs import assume
from cotenant_simulator.readers.device_series import read_device_series
from cotenant_simulator.readers.measured_jobs import MeasuredJobs
from cotenant_simulator.readers.observed_jobs import read_observed_jobs
from cotenant_simulator.readers.ray_tasks import read_ray_tasks
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.report.shadow_report import ShadowRun
from cotenant_simulator.run.records import RunResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import Cluster, read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import GIB, Trace

JOBS_MAX: Final = 100_000


def read_past_jobs(sources: Mapping[str, Path | None], profiles: Path | None = None) -> Accounting:
    """Read the jobs of the one source that is named.

    Args:
        sources: Files by the flag that names them; None = not named.
        profiles: Folder of Pollux' profiles, for a trace of that family.

    Raises:
        InputError: Several or none are named, or there are too many jobs.
    """
    named = [(flag, path) for flag, path in sources.items() if path is not None]
    if len(named) != 1:
        raise InputError(f"name one of {', '.join(f'{flag} FILE' for flag in sources)}")
    [(flag, path)] = named
    table = _READERS[flag](path) if flag in _READERS else past_jobs_of_trace(path, profiles)
    if len(table.jobs) > JOBS_MAX:
        raise InputError(f"{len(table.jobs):,} jobs are more than {JOBS_MAX:,}; ask about fewer days")
    return table


_READERS: Final[Mapping[str, Callable[[Path], Accounting]]] = MappingProxyType(
    {
        "--sacct": read_accounting,
        "--dcgm": read_device_series,
        "--ray-tasks": read_ray_tasks,
        "--observed": read_observed_jobs,
    }
)


def past_jobs_of_trace(path: Path, profiles: Path | None = None) -> Accounting:
    """Return the jobs of a trace as if each had got its GPUs at once."""
    found = read_trace(path, Consent(), profiles=profiles)
    jobs = tuple(_past_job(found, place) for place in range(len(found.jobs)))
    return Accounting(jobs=jobs, skipped=found.skipped, tells_submissions=False)


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


def doubts(table: Accounting, machines: Cluster) -> list[str]:
    """Return what the source does not tell, and what speaks against these machines: jobs had more than they have."""
    found = list(table.doubts)
    in_use, at_ms = _most_in_use(table.jobs)
    if in_use > machines.gpus:
        at = datetime.fromtimestamp(at_ms / 1_000, tz=UTC).strftime("%Y-%m-%d %H:%M")
        found.append(
            f"on {at} {in_use:,} GPUs were in use, but --cluster {machines.name} has {machines.gpus:,}: waits and "
            "savings are those of a smaller cluster; name the GPUs that these jobs had"
        )
    memory_bytes = max((job.memory_bytes for job in table.jobs), default=0)
    largest = max(gpu.memory_bytes for node in machines.nodes for gpu in node.gpus)
    if memory_bytes > largest:
        found.append(
            f"a job took {memory_bytes / GIB:.1f} GiB of a GPU, but those of --cluster have {largest / GIB:.1f}: name "
            "their memory with --gpu-memory-gib"
        )
    return found


def _most_in_use(jobs: Sequence[PastJob]) -> tuple[int, int]:
    """Return the most GPUs that were in use at once, and when."""
    # Sorted so, GPUs are given back before others are taken at the same instant.
    changes = sorted(change for job in jobs for change in ((job.started_at_ms, job.gpus), (job.ended_at_ms, -job.gpus)))
    in_use, most, most_at_ms = 0, 0, 0
    for at_ms, gpus in changes:
        in_use += gpus
        if in_use > most:
            most, most_at_ms = in_use, at_ms
    return most, most_at_ms


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


def simulate_draws(
    jobs: Sequence[PastJob],
    known: MeasuredJobs,
    machines: Cluster,
    *,
    policy: str,
    max_slowdown_ratio: float,
    error: float,
    seeds: int,
) -> list[ShadowRun]:
    """Return one run for each seed; how far it is, is said on a terminal."""
    runs, is_shown = [], sys.stderr.isatty()
    for seed in range(seeds):
        if is_shown:
            sys.stderr.write(f"\rseed {seed + 1} of {seeds}" + "\n" * (seed + 1 == seeds))
        drawn = draw_demands(jobs, known, max_slowdown_ratio=max_slowdown_ratio, seed=seed)
        runs.append(simulate_draw(drawn, machines, policy=policy, error=error, seed=seed))
    return runs
