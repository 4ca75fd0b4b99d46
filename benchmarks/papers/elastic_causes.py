"""Why the SideCar figures are what they are: how jobs scale, how termination grows, who is alone at the beginning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from benchmarks.papers.elastic_runs import (
    POLICIES,
    Curves,
    Outcome,
    draw_workload,
    rows_of,
    run_workload,
    sweep,
)
from benchmarks.papers.seeds import Row, as_order_row
from cotenant_simulator.run.records import RunResult
from cotenant_simulator.truth.kinds import EVERY_DEVICE, Kind
from cotenant_simulator.truth.trace import Trace

PRINTED_SPEEDUPS = {1: 1.0, 2: 1.7, 4: 2.4, 8: 3.4}
"""Section I: 70 % more on two GPUs, 41 % more on four; the step to eight is taken to be like the last one."""
LENGTH_RATIO = 0.5
"""At which termination's changes cost about what they cost in the paper, see `lengths`."""
GAINS = ("Fig. 6a", "Fig. 6b", "Table VIII")
STRETCHES_S = (120, 300, 600)
FIRST_JOBS = 2
PICTURED_ORDER = ("kubernetes_default", "termination_elastic", "elastic")


def growth(curves: Curves, seeds: int) -> list[Row]:
    """Fig. 6 and Table VIII with jobs that scale as section I prints, and where numbers of GPUs differ by one."""
    committed = [draw_workload(seed, curves, length_ratio=LENGTH_RATIO) for seed in range(seeds)]
    scaled = [with_speedups(trace, PRINTED_SPEEDUPS) for trace in committed]
    rows: list[Row] = []
    for scaling, traces in (("measured speedups", committed), ("speedups of section I", scaled)):
        default = sweep(traces, ("kubernetes_default",))
        for steps, own in (
            ("numbers of Table III", traces),
            ("one GPU at a time", [one_by_one(one) for one in traces]),
        ):
            found: Mapping[str, Sequence[Outcome]] = default | sweep(own, ("elastic", "termination_elastic"))
            rows += rows_of(found, f"lengths x {LENGTH_RATIO}, {scaling}, {steps}", GAINS)
    return rows


def beginning(curves: Curves, seeds: int) -> list[Row]:
    """Fig. 10: GPUs in use while the first two jobs are alone, if nobody came for a longer while."""
    rows: list[Row] = []
    for scaling in ("measured speedups", "speedups of section I"):
        traces = [_first_jobs(draw_workload(seed, curves)) for seed in range(seeds)]
        if scaling != "measured speedups":
            traces = [with_speedups(trace, PRINTED_SPEEDUPS) for trace in traces]
        results = {
            policy: [run_workload(trace, policy, seed=seed) for seed, trace in enumerate(traces)] for policy in POLICIES
        }
        for stretch_s in STRETCHES_S:
            held = {policy: [_held_at(one, stretch_s) for one in found] for policy, found in results.items()}
            setting = f"{scaling}: GPUs in use {stretch_s} s after the second of two jobs came"
            rows.append(as_order_row("Fig. 10", setting, PICTURED_ORDER, held))
    return rows


def with_speedups(trace: Trace, speedups: Mapping[int, float]) -> Trace:
    """Return the workload with the same lengths on one GPU, and these speedups on more."""
    return _with_kinds(
        trace,
        lambda kind: {gpus: kind.step_ms(gpus=1) / speedups[gpus] for gpus in kind.step_ms_by_gpus},
    )


def one_by_one(trace: Trace) -> Trace:
    """Return the workload in which jobs may have any number of GPUs up to their largest; speeds lie between."""
    changed = _with_kinds(trace, _every_step_ms)
    jobs = [
        replace(
            job,
            request=replace(
                job.request, allowed_gpus=tuple(changed.truth.kinds[job.request.key, EVERY_DEVICE].step_ms_by_gpus)
            ),
        )
        for job in changed.jobs
    ]
    return replace(changed, jobs=jobs)


def _every_step_ms(kind: Kind) -> dict[int, float]:
    known = sorted(kind.step_ms_by_gpus)
    speeds = [1.0 / kind.step_ms(gpus=gpus) for gpus in known]
    return {gpus: 1.0 / float(np.interp(gpus, known, speeds)) for gpus in range(1, known[-1] + 1)}


def _with_kinds(trace: Trace, step_ms_of: Callable[[Kind], Mapping[int, float]]) -> Trace:
    kinds = {place: replace(kind, step_ms_by_gpus=step_ms_of(kind)) for place, kind in trace.truth.kinds.items()}
    return replace(trace, truth=replace(trace.truth, kinds=kinds))


def _first_jobs(trace: Trace) -> Trace:
    return replace(trace, jobs=trace.jobs[:FIRST_JOBS])


def _held_at(result: RunResult, stretch_s: int) -> float:
    """Return the GPUs in use so long after the last submission; 0 = everybody has ended."""
    at_ms = max(job.submitted_at_ms for job in result.jobs) + 1_000 * stretch_s
    return fmean([one.held_gpus for one in result.moments if one.from_ms <= at_ms < one.until_ms] or [0.0])
