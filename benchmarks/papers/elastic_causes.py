"""Why the SideCar figures are what they are: scaling, growth, costs of a change, and what no scheduler can beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from benchmarks.papers.elastic_runs import (
    HOUR_MS,
    POLICIES,
    Curves,
    Outcome,
    draw_workload,
    outcome_of,
    plan_of,
    rows_of,
    run_workload,
    sweep,
)
from benchmarks.papers.seeds import Row, as_order_row, as_row
from cotenant_simulator.run.records import RunResult
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.kinds import EVERY_DEVICE, Kind
from cotenant_simulator.truth.trace import Trace

PRINTED_SPEEDUPS = {1: 1.0, 2: 1.7, 4: 2.4, 8: 3.4}
"""Section I: 70 % more on two GPUs, 41 % more on four; the step to eight is taken to be like the last one."""
LENGTH_RATIO = 0.5
"""At which termination's changes cost about what they cost in the paper, see `lengths`."""
LENGTH_RATIOS = (1.0, 0.7, 0.5, 0.25)
COST_RATIOS = (1.0, 2.0, 4.0)
GAINS = ("Fig. 6a", "Fig. 6b", "Table VIII")
INTERVALS_S = (120, 300, 600)
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
    """Fig. 10: GPUs in use while the first two jobs are alone, if no job came for a longer while."""
    rows: list[Row] = []
    for scaling in ("measured speedups", "speedups of section I"):
        traces = [_first_jobs(draw_workload(seed, curves)) for seed in range(seeds)]
        if scaling != "measured speedups":
            traces = [with_speedups(trace, PRINTED_SPEEDUPS) for trace in traces]
        results = {
            policy: [run_workload(trace, policy, seed=seed) for seed, trace in enumerate(traces)] for policy in POLICIES
        }
        for interval_s in INTERVALS_S:
            held = {policy: [_held_at(one, interval_s) for one in found] for policy, found in results.items()}
            setting = f"{scaling}: GPUs in use {interval_s} s after the second of two jobs came"
            rows.append(as_order_row("Fig. 10", setting, PICTURED_ORDER, held))
    return rows


def costs(curves: Curves, seeds: int) -> list[Row]:
    """Fig. 6 and Table VIII where changes under termination cost more, and where it does not weigh what they cost.

    Optimus' marginal gain, which section V-B names as its rule, ignores the cost of a change.
    """
    rows: list[Row] = []
    for length_ratio in LENGTH_RATIOS:
        traces = [draw_workload(seed, curves, length_ratio=length_ratio) for seed in range(seeds)]
        others = sweep(traces, ("kubernetes_default", "elastic"))
        for cost_ratio in COST_RATIOS:
            for how, is_told in (("weighed", True), ("not weighed", False)):
                results = [
                    run_workload(trace, "termination_elastic", seed=seed, cost_ratio=cost_ratio, is_told=is_told)
                    for seed, trace in enumerate(traces)
                ]
                found: Mapping[str, Sequence[Outcome]] = others | {"termination_elastic": [*map(outcome_of, results)]}
                label = f"lengths x {length_ratio}, termination's changes cost {cost_ratio} times, {how}"
                rows += rows_of(found, label, GAINS)
    return rows


def limits(curves: Curves, seeds: int) -> list[Row]:
    """Fig. 6a: how much shorter than under the others any makespan can be at all on these workloads."""
    rows: list[Row] = []
    for length_ratio in LENGTH_RATIOS:
        drawn = [draw_workload(seed, curves, length_ratio=length_ratio) for seed in range(seeds)]
        for scaling in ("measured speedups", "speedups of section I"):
            traces = (
                drawn if scaling == "measured speedups" else [with_speedups(one, PRINTED_SPEEDUPS) for one in drawn]
            )
            found, least = sweep(traces), [least_makespan_h(trace) for trace in traces]
            label = f"lengths x {length_ratio}, {scaling}"
            for policy, outcomes in found.items():
                spared = [100 * (1 - one / run.makespan_h) for one, run in zip(least, outcomes, strict=True)]
                rows.append(as_row("Fig. 6a", f"{label}: least possible makespan below {policy}, %", None, spared))
    return rows


def least_makespan_h(trace: Trace) -> float:
    """Return a lower bound of every scheduler's makespan, changes for nothing: first submission to last end.

    No job ends before it would alone with its best number of GPUs, and all that come after a moment needs the GPU time
    of its most efficient number.
    """
    gpus = sum(len(node.gpus) for node in read_cluster(plan_of("elastic")["cluster"], device=trace.device).nodes)
    jobs = []
    for job in trace.jobs:
        kind = trace.truth.kinds[job.request.key, EVERY_DEVICE]
        runs_ms = {n: job.request.steps_total * kind.step_ms(gpus=n) for n in job.request.allowed_gpus}
        works_ms = [n * run_ms / gpus for n, run_ms in runs_ms.items()]
        jobs.append((float(job.submitted_at_ms), min(runs_ms.values()), min(works_ms)))
    jobs.sort()
    alone_ms = max(at_ms + run_ms for at_ms, run_ms, _ in jobs)
    together_ms = max(jobs[first][0] + sum(work_ms for _, _, work_ms in jobs[first:]) for first in range(len(jobs)))
    return (max(alone_ms, together_ms) - jobs[0][0]) / HOUR_MS


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


def _held_at(result: RunResult, interval_s: int) -> float:
    """Return the GPUs in use so long after the last submission; 0 = all jobs have ended."""
    at_ms = max(job.submitted_at_ms for job in result.jobs) + 1_000 * interval_s
    return fmean([one.held_gpus for one in result.usage_intervals if one.from_ms <= at_ms < one.until_ms] or [0.0])
