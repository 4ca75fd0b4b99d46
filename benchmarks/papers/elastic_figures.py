"""The SideCar paper's case study, the pictures of Workload One, jobs that end at an accuracy, GPUs of two kinds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, quantiles
from typing import Any

from benchmarks.papers.elastic_runs import (
    HOUR_MS,
    POLICIES,
    WORKLOADS,
    Changes,
    Curves,
    Outcome,
    draw_workload,
    elastic_request,
    plan_of,
    rows_of,
    run_workload,
    simulate,
    sweep,
    targets_at,
)
from benchmarks.papers.seeds import Row, as_order_row, as_row
from benchmarks.papers.targets import Target
from cotenant_simulator.run.records import OverheadCosts, RunResult
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.trace import Trace, TraceJob

GAINS = ("Fig. 6a", "Fig. 6b", "Table VIII")
LENGTH_RATIOS = (1.0, 0.5, 0.25)
EPOCH_ERRORS = (0.1, 0.25, 0.4)
"""Relative errors of the predicted number of epochs: docs/convergence.md finds a median of 25 % after half of them."""
CASE_STEP_MS = 100.0
CASE_BATCH = 4


def case_study(_: Curves, seeds: int) -> list[Row]:
    """Figs. 3 and 4: two jobs on four GPUs; nothing is drawn, so there is one run whatever `seeds` is."""
    plan = plan_of("elastic_case_study")
    found = {name: _run_case(plan, name) for name in plan["costs"]}
    rows: list[Row] = []
    for target in targets_at(["Fig. 3", "Fig. 4"]):
        rows += _rows(target, {name: [_case_value(target, result)] for name, result in found.items()})
    return rows


def _run_case(plan: Mapping[str, Any], name: str) -> RunResult:
    """Run one approach: the default scheduler, or our elastic at the costs of SideCar or of termination."""
    cost, is_elastic = plan["costs"][name], name != "kubernetes_default"
    charges = OverheadCosts(
        launch_ms=_ms(plan["launch_s"]),
        restart_ms=_ms(cost["start_s"] - plan["launch_s"]),
        checkpoint_ms=_ms(cost["stop_s"]),
    )
    policy = "elastic" if is_elastic else name
    trace, change_s = _case_trace(plan, is_elastic=is_elastic), cost["stop_s"] + cost["start_s"]
    return simulate(trace, policy, seed=0, cost_s=change_s, charges=charges, cluster=plan["cluster"])


def _case_trace(plan: Mapping[str, Any], *, is_elastic: bool) -> Trace:
    """Return the two jobs; under the default scheduler each may have only the number it wants."""
    speedups = {int(gpus): float(ratio) for gpus, ratio in plan["speedups"].items()}
    kind = Kind(
        step_ms_by_gpus={gpus: CASE_STEP_MS * speedups[4] / ratio for gpus, ratio in speedups.items()}, batch=CASE_BATCH
    )
    jobs = []
    for number, one in enumerate(plan["jobs"], start=1):
        steps = round(_ms(one["trains_s"]) / kind.step_ms(gpus=one["gpus"]))
        counts = sorted(speedups) if is_elastic else [one["gpus"]]
        request = elastic_request(f"job {number}", "case", counts, batch=CASE_BATCH, steps_total=steps)
        jobs.append(TraceJob(submitted_at_ms=_ms(one["submitted_s"]), request=request))
    return Trace(format="elastic", jobs=jobs, truth=GroundTruth(kinds={("case", EVERY_DEVICE): kind}))


def _case_value(target: Target, result: RunResult) -> float:
    ends_s = [job.finished_at_ms / 1_000 for job in result.jobs]
    stays_s = [(job.finished_at_ms - job.submitted_at_ms) / 1_000 for job in result.jobs]
    found = {"end_of_job_1": ends_s[0], "end_of_job_2": ends_s[1], "makespan": max(ends_s), "jct_mean": fmean(stays_s)}
    return found[target.quantity]


def figures_8_to_11(curves: Curves, seeds: int) -> list[Row]:
    """Pending jobs, tails of the completion times, GPUs in use, and changes."""
    found: dict[str, dict[str, list[float]]] = {quantity: {} for quantity in [*_PICTURED, "additions", "removals"]}
    for policy in POLICIES:
        for seed in range(seeds):
            changes = Changes()
            result = run_workload(draw_workload(seed, curves), policy, seed=seed, changes=changes)
            values = {quantity: measure(result) for quantity, measure in _PICTURED.items()}
            for quantity, value in {**values, "additions": changes.added, "removals": changes.removed}.items():
                found[quantity].setdefault(policy, []).append(float(value))
        sys.stderr.write(f"figures 8 to 11, {policy}\n")
    rows: list[Row] = []
    for target in targets_at(["Fig. 8", "Fig. 9", "Fig. 10", "Fig. 11"]):
        rows += _rows(target, found[target.quantity])
    return rows


def _pending_at_last(result: RunResult) -> float:
    """Return how many others still wait when the last job is submitted."""
    last_ms = max(job.submitted_at_ms for job in result.jobs)
    return sum(job.submitted_at_ms < last_ms < job.first_started_at_ms for job in result.jobs)


def _stays_h(result: RunResult) -> list[float]:
    return [(job.finished_at_ms - job.submitted_at_ms) / HOUR_MS for job in result.jobs]


def _tail_h(result: RunResult) -> float:
    return quantiles(_stays_h(result), n=20, method="inclusive")[-1]


def _tail_ratio(result: RunResult) -> float:
    return _tail_h(result) / median(_stays_h(result))


def _gpus_at_the_beginning(result: RunResult) -> float:
    """Return the mean number of GPUs in use from the first submission until the third."""
    until_ms = sorted(job.submitted_at_ms for job in result.jobs)[2]
    spans = [(max(min(one.until_ms, until_ms) - one.from_ms, 0), one.held_gpus) for one in result.usage_intervals]
    return sum(span_ms * held for span_ms, held in spans) / max(sum(span_ms for span_ms, _ in spans), 1)


def _idle_while_waiting(result: RunResult) -> float:
    """Return the GPU hours that lie idle while a job waits."""
    return sum(
        (result.gpus - one.held_gpus) * min(one.waiting_jobs, 1.0) * (one.until_ms - one.from_ms) / HOUR_MS
        for one in result.usage_intervals
    )


_PICTURED: Mapping[str, Callable[[RunResult], float]] = {
    "pending_at_last": _pending_at_last,
    "jct_95": _tail_h,
    "jct_95_over_median": _tail_ratio,
    "gpus_at_the_beginning": _gpus_at_the_beginning,
    "idle_while_waiting": _idle_while_waiting,
}


def lengths(curves: Curves, seeds: int) -> list[Row]:
    """Fig. 6 and Table VIII with shorter jobs: what the committed lengths, which are ours, do to the gains."""
    rows: list[Row] = []
    for ratio in LENGTH_RATIOS:
        found = sweep([draw_workload(seed, curves, length_ratio=ratio) for seed in range(seeds)])
        label = f"lengths x {ratio}"
        held_s = [one.held_s for one in found["termination_elastic"]]
        rows.append(as_row("", f"{label}: mean time with GPUs under termination_elastic, s", None, held_s))
        rows += rows_of(found, label, GAINS)
    return rows


def epochs(curves: Curves, seeds: int) -> list[Row]:
    """Workload Four: jobs end at an accuracy, so that the number of epochs is predicted, with an error of its own.

    A wrong number of epochs makes a job's rest wrong by one factor on every number of GPUs, which is what a wrong step
    time does; here it stays wrong until the end, while the paper's fit learns.
    """
    traces = [draw_workload(seed, curves) for seed in range(seeds)]
    rows: list[Row] = []
    for error in (0.0, *EPOCH_ERRORS):
        found = sweep(traces, predictions=f"error:{error}" if error else "oracle")
        place = "Workload Four" if error else "Workload Three"
        rows += rows_of(found, f"epochs wrong by {error:.0%}", [place])
    return rows


def two_kinds(curves: Curves, seeds: int) -> list[Row]:
    """Fig. 6 and Table VIII on eight fast and eight slower GPUs, as in the paper's physical cluster."""
    traces = [draw_workload(seed, curves) for seed in range(seeds)]
    found: Mapping[str, Sequence[Outcome]] = sweep(traces, cluster=str(WORKLOADS / "elastic_two_kinds.toml"))
    return rows_of(found, "two kinds of GPU", GAINS)


def _rows(target: Target, values: Mapping[str, Sequence[float]]) -> list[Row]:
    setting = ", ".join(part for part in (target.quantity, target.setting, target.unit) if part)
    if target.order:
        return [as_order_row(target.place, setting, target.order, values)]
    return [
        as_row(target.place, f"{setting}: {policy}", printed, values[policy])
        for policy, printed in target.values.items()
    ]


def _ms(seconds: float) -> int:
    return round(1_000 * seconds)
