"""What `simulate --engine-rules pollux` calls: one workload under one policy, as the JSON of `cotenant simulate`.

The only module of this package that the rest of the simulator imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from cotenant_simulator.pollux_rules.applications import read_applications
from cotenant_simulator.pollux_rules.cluster import ClusterShape, read_cluster_shape
from cotenant_simulator.pollux_rules.errors import PolluxRulesError, WorkloadError
from cotenant_simulator.pollux_rules.simulation import ELASTIC_POLICIES, POLICIES, simulate
from cotenant_simulator.pollux_rules.training_job import TrainingJob
from cotenant_simulator.pollux_rules.workload import read_workload
from cotenant_simulator.readers.pollux_profiles import find_profiles


def run_pollux_rules(workload: Path, profiles: Path | None, policy: str, cluster: str = "16x4") -> dict[str, object]:
    """Run a workload of the Pollux family exactly as the artifact's engine would.

    Args:
        workload: A CSV with job_id, submit_time_s, application, num_gpus, batch_size.
        profiles: The folder with the measured step times and statistics;
            None = the nearest `profiles` above the workload.
        policy: One of `POLICIES`.
        cluster: NODESxGPUS; the profiles cover 16x4.

    Returns:
        The document `cotenant.simulate/1` with one policy and all its jobs.

    Raises:
        PolluxRulesError: A file, the policy or the cluster cannot be used; the message states why.
        TraceError: No folder has the profiles.
    """
    if policy not in POLICIES:
        raise PolluxRulesError(f"under Pollux' rules there is no policy {policy!r}; there are {', '.join(POLICIES)}")
    shape = read_cluster_shape(cluster)
    if profiles is None and not workload.is_file():
        raise WorkloadError(f"{workload}: is no file; name a workload (docs/pollux_rules.md)")
    submitted = read_workload(workload, read_applications(profiles or find_profiles(workload)))
    too_large = next((job for job in submitted if job.gpus > shape.gpus), None)
    if too_large is not None and policy not in ELASTIC_POLICIES:
        raise WorkloadError(
            f"{workload}: job {too_large.job_id!r} needs {too_large.gpus} GPUs, but {shape} are {shape.gpus} only"
        )
    jobs = simulate(submitted, policy, shape)
    return {
        "schema": "cotenant.simulate/1",
        "trace": {"path": str(workload), "sha256": sha256(workload.read_bytes()).hexdigest(), "jobs": len(jobs)},
        "cluster": str(shape),
        "engine_rules": "pollux",
        "predictions": "learned online" if policy == "pollux" else "oracle",
        "seed": 0,
        "policies": [_summary(policy, jobs, shape)],
        "jobs": [_job_row(policy, job) for job in jobs],
        "warnings": [],
    }


def _times(job: TrainingJob) -> tuple[int, int]:
    """Return (start, end) of a finished job in seconds."""
    if job.started_s is None or job.finished_s is None:
        raise PolluxRulesError(f"job {job.job_id} is not finished")
    return job.started_s, job.finished_s


def _job_row(policy: str, job: TrainingJob) -> dict[str, object]:
    started_s, finished_s = _times(job)
    return {
        "policy": policy,
        "job_id": job.job_id,
        "submitted_at_ms": job.submit_s * 1_000,
        "first_started_at_ms": started_s * 1_000,
        "finished_at_ms": finished_s * 1_000,
        "gpus": job.gpus,
        "jct_s": finished_s - job.submit_s,
        "queueing_s": finished_s - job.submit_s - job.held_s,
        "slowdown_ratio": 0.0,
        "restarts": job.restarts,
        "out_of_memory": 0,
    }


def _summary(policy: str, jobs: Sequence[TrainingJob], cluster: ClusterShape) -> dict[str, object]:
    times = [_times(job) for job in jobs]
    makespan_s = max(finished for _, finished in times) - min(job.submit_s for job in jobs)
    allocated_gpu_s = sum(job.held_gpu_s for job in jobs)
    preemptions = sum(job.preemptions for job in jobs)
    return {
        "policy": policy,
        "parameters": {},
        "jobs_submitted": len(jobs),
        "jobs_finished": len(jobs),
        "jct_s": _spread([finished - job.submit_s for job, (_, finished) in zip(jobs, times, strict=True)]),
        "run_s": _spread([finished - started for started, finished in times]),
        "queueing_s": _spread(
            [finished - job.submit_s - job.held_s for job, (_, finished) in zip(jobs, times, strict=True)]
        ),
        "first_wait_s": _spread([started - job.submit_s for job, (started, _) in zip(jobs, times, strict=True)]),
        "makespan_s": makespan_s,
        "gpu_hours_used": sum(job.trained_gpu_s for job in jobs) / 3_600,
        "gpu_hours_allocated": allocated_gpu_s / 3_600,
        "gpu_allocated_ratio": allocated_gpu_s / (makespan_s * cluster.gpus),
        # The profiles hold step times only, and a share of the cluster was not measured for every job.
        "gpu_utilization_ratio": None,
        "finish_time_fairness_rho": {},
        "slowdown_ratio": {"mean": 0.0, "p95": 0.0, "max": 0.0},
        "preemptions": preemptions,
        "migrations": 0,
        "reshapes": sum(job.restarts for job in jobs) - preemptions,
        "out_of_memory": 0,
        "held_reasons": {},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "mean": sum(ordered) / len(ordered),
        "p50": _quantile(ordered, 0.50),
        "p95": _quantile(ordered, 0.95),
        "p99": _quantile(ordered, 0.99),
        "max": ordered[-1],
    }


def _quantile(ordered: Sequence[float], part: float) -> float:
    """Return a quantile, linear between adjacent values."""
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
