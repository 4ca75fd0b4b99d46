"""Jobs of a list of durations taken for measured ones: their pairs differ, and they have graphs to predict from.

Which measured job each is, is drawn from a seed; it arrives when it did and is as long alone as it was. A job on one
GPU shares with the slowdowns that were measured. A gang is so many of the measured job side by side, each with the
measured batch and step time; it is not shared, since no pair of gangs was measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

from cotenant_simulator.errors import TraceError
from cotenant_simulator.readers.measured_jobs import MeasuredJob, MeasuredJobs
from cotenant_simulator.truth.kinds import GroundTruth, Kind
from cotenant_simulator.truth.trace import Trace, TraceJob
from scheduler_service.core.records import Share

LISTS = ("muri", "tiresias", "philly", "elasticflow-itp", "pollux", "generated")
"""Formats that say how long a job runs, and nothing measured of two jobs on one GPU."""


def with_measured_demands(path: Path, trace: Trace, known: MeasuredJobs, *, seed: int) -> Trace:
    """Return a trace whose jobs are drawn measured ones.

    Args:
        path: The file of the trace, for messages.
        trace: Arrivals, lengths and numbers of GPUs.
        known: One of these each job is.
        seed: The same seed draws the same; each job on its own, so that another list of jobs changes no other job.

    Raises:
        TraceError: The trace has measurements of its own.
    """
    if trace.format not in LISTS or trace.truth.slowdowns:
        raise TraceError(path, f"has measured jobs of its own (format {trace.format}); leave --measured out")
    kinds: dict[tuple[str, str], Kind] = {}
    jobs = []
    for job in trace.jobs:
        chosen = Random(f"{seed}/demand/{job.request.job_id}").choice(known.jobs)
        jobs.append(_taken_for(job, chosen, trace, known.device, kinds))
    truth = GroundTruth(
        kinds=kinds,
        slowdowns=known.slowdowns,
        slowdown_ratio=trace.truth.slowdown_ratio,
        predicts_unmeasured=False,
    )
    return replace(trace, jobs=jobs, truth=truth, device=known.device)


def _taken_for(
    job: TraceJob, chosen: MeasuredJob, trace: Trace, device: str, kinds: dict[tuple[str, str], Kind]
) -> TraceJob:
    request = job.request
    own = trace.truth.kind(request.key, trace.device)
    length_ms = request.steps_total * (own.step_ms(gpus=request.gpus) if own is not None else 1_000.0)
    step_ms, batch = chosen.kind.step_ms(gpus=1), chosen.kind.batch * request.gpus
    key = chosen.key if request.gpus == 1 else f"{chosen.key}/{request.gpus} GPUs"
    kinds[key, device] = replace(chosen.kind, step_ms_by_gpus={request.gpus: step_ms}, batch=batch)
    return replace(
        job,
        request=replace(
            request,
            key=key,
            global_batch_size=batch,
            steps_total=max(round(length_ms / step_ms), 1),
            allowed_gpus=(),
            share=request.share if request.gpus == 1 else Share.NEVER,
        ),
        graph_sha256=chosen.graph_sha256,
        settings=replace(chosen.settings, global_batch_size=batch),
    )
