"""Runs of the SideCar figures: the workload on Pollux' measured step times, what changes cost, what is measured."""

from __future__ import annotations

import csv
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.papers.seeds import Row, as_order_row, as_row
from benchmarks.papers.targets import Target, read_targets
from cotenant_simulator.run.records import OverheadCosts, RunResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import Trace, TraceJob
from scheduler_service.core import commands, events
from scheduler_service.core.records import JobRequest, Share

WORKLOADS = Path(__file__).parent / "workloads"
POLICIES = ("elastic", "termination_elastic", "kubernetes_default")
COSTS = ("text", "cotenant", "measured")
COST_PARAMETERS = {
    "elastic": ("reshape_cost_ms", "restart_cost_ms"),
    "termination_elastic": ("restart_cost_ms",),
}
"""Where a policy gets the cost of a change from."""
PLACEMENTS = {1: "1", 2: "2", 4: "4", 8: "44"}
"""How Pollux wrote so many GPUs on as few of its nodes as possible."""
HOUR_MS = 3_600_000
Curves = Mapping[tuple[str, int], tuple[Sequence[float], Sequence[float]]]
"""Samples per GPU and step times in s by application and GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run left.

    Attributes:
        jct_h: Mean completion time.
        makespan_h: First submission to last end.
        queueing_h: Mean time before the first step of GPUs.
        overhead_percent: Time that jobs held GPUs without training, of the time that they held any.
        held_s: Mean time that a job held GPUs.
    """

    jct_h: float
    makespan_h: float
    queueing_h: float
    overhead_percent: float
    held_s: float = 0.0


@dataclass(slots=True)
class Changes:
    """Counts how often a job went on with more or fewer GPUs than before; an observer of a run."""

    added: int = 0
    removed: int = 0
    _gpus: dict[str, int] = field(default_factory=dict)

    def see(self, _: events.Event, orders: Sequence[commands.Command]) -> None:
        """Look at the launches that followed a fact; a job on several nodes is launched on each."""
        launched: dict[str, int] = {}
        for order in orders:
            if isinstance(order, commands.LaunchJob):
                launched[order.job_id] = launched.get(order.job_id, 0) + len(order.assignments)
        for job_id, count in launched.items():
            before = self._gpus.get(job_id, count)
            self.added += count > before
            self.removed += count < before
            self._gpus[job_id] = count


@cache
def plan_of(name: str) -> Mapping[str, Any]:
    """Return a committed file of workloads/."""
    return tomllib.loads((WORKLOADS / f"{name}.toml").read_text(encoding="utf-8"))


def read_curves(profiles: Path) -> Curves:
    """Read the step times of Pollux' measured placements."""
    wanted = {placement: gpus for gpus, placement in PLACEMENTS.items()}
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with (profiles / "placements.csv").open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            if cells["placement"] in wanted:
                place = cells["application"], wanted[cells["placement"]]
                found.setdefault(place, []).append((float(cells["local_batch_size"]), float(cells["step_time_s"])))
    return {
        place: ([size for size, _ in sorted(points)], [step for _, step in sorted(points)])
        for place, points in found.items()
    }


def draw_workload(seed: int, curves: Curves, *, length_ratio: float = 1.0) -> Trace:
    """Draw the jobs and when they come.

    Args:
        seed: Of arrivals and types.
        curves: Step times.
        length_ratio: How long the jobs are, over what the file says.
    """
    plan = plan_of("elastic")
    generators = {name: Random(f"{seed}/{name}") for name in ("arrival", "type")}
    kinds = {
        (_key(one), EVERY_DEVICE): Kind(
            step_ms_by_gpus={gpus: _step_ms(curves, one, gpus) for gpus in one["gpus"]}, batch=one["batch"]
        )
        for one in plan["types"]
    }
    gaps = [generators["arrival"].expovariate(1.0) for _ in range(plan["jobs"])]
    jobs, at_s = [], 0.0
    for number, gap in enumerate(gaps):
        one = generators["type"].choice(plan["types"])
        at_s += gap / sum(gaps) * plan["submitted_within_s"]
        steps = round(length_ratio * one["hours"] * HOUR_MS / kinds[_key(one), EVERY_DEVICE].step_ms(gpus=1))
        request = elastic_request(f"job-{number:02d}", _key(one), one["gpus"], batch=one["batch"], steps_total=steps)
        jobs.append(TraceJob(submitted_at_ms=round(1_000 * at_s), request=request))
    return Trace(format="elastic", jobs=jobs, truth=GroundTruth(kinds=kinds))


def elastic_request(job_id: str, key: str, gpus: Sequence[int], *, batch: int, steps_total: int) -> JobRequest:
    """Return a job that may have these numbers of GPUs and shares none."""
    return JobRequest(
        job_id=job_id,
        key=key,
        gpus=gpus[0],
        allowed_gpus=tuple(gpus),
        global_batch_size=batch,
        steps_total=max(steps_total, 1),
        share=Share.NEVER,
        restart_limit=1_000,
    )


def simulate(
    trace: Trace,
    policy: str,
    *,
    seed: int,
    cost_s: float,
    charges: OverheadCosts,
    cluster: str,
    predictions: str = "oracle",
    changes: Changes | None = None,
) -> RunResult:
    """Run the jobs under a policy that is given the cost of changes.

    Args:
        trace: The jobs.
        policy: One of POLICIES.
        seed: Of the default scheduler's draws, and of errors.
        cost_s: What the policy is given.
        charges: What is charged.
        cluster: As `read_cluster` takes it.
        predictions: The step times that the policy assumes, as `parse_errors` takes it.
        changes: Counts the changes.

    Raises:
        RuntimeError: A job did not finish; a mean over the others would say nothing.
    """
    machines = read_cluster(cluster, device=trace.device)
    truth = replace(trace.truth, speeds=machines.speeds)
    settings = RunSettings(
        policy=policy,
        seed=seed,
        charges=charges,
        parameters=dict.fromkeys(COST_PARAMETERS.get(policy, ()), round(1_000 * cost_s)),
        keeps_history=True,
    )
    predictor = TruthPredictor(truth, parse_errors(predictions, seed=seed))
    observe = changes.see if changes is not None else None
    result = Simulation(replace(trace, truth=truth), machines, predictor, settings, observe=observe).run()
    if result.unfinished:
        raise RuntimeError(f"{result.unfinished} jobs did not finish under {policy}")
    return result


def run_workload(
    trace: Trace,
    policy: str,
    *,
    seed: int,
    costs: str = "text",
    cluster: str = "",
    predictions: str = "oracle",
    changes: Changes | None = None,
    cost_ratio: float = 1.0,
    is_told: bool = True,
) -> RunResult:
    """Run the drawn workload, a change charged half before and half after.

    Args:
        trace: The jobs.
        policy: One of POLICIES.
        seed: Of the default scheduler's draws, and of errors.
        costs: One of [costs] in the file.
        cluster: Other machines than the file's.
        predictions: See `simulate`.
        changes: Counts the changes.
        cost_ratio: What a change costs over what the file says.
        is_told: The policy knows what changes cost; otherwise it takes them to be for nothing.
    """
    plan = plan_of("elastic")
    cost_s = cost_ratio * plan["costs"][costs].get(policy, 0.0)
    half_ms = round(1_000 * cost_s) // 2
    return simulate(
        trace,
        policy,
        seed=seed,
        cost_s=cost_s if is_told else 0.0,
        charges=OverheadCosts(restart_ms=half_ms, checkpoint_ms=half_ms),
        cluster=cluster or plan["cluster"],
        predictions=predictions,
        changes=changes,
    )


def outcome_of(result: RunResult) -> Outcome:
    """Return the figures of a run."""
    jobs = result.jobs
    held = sum(job.held_ms for job in jobs)
    return Outcome(
        jct_h=fmean(job.finished_at_ms - job.submitted_at_ms for job in jobs) / HOUR_MS,
        makespan_h=(result.ended_at_ms - result.began_at_ms) / HOUR_MS,
        queueing_h=fmean(job.first_started_at_ms - job.submitted_at_ms for job in jobs) / HOUR_MS,
        overhead_percent=100 * (1 - sum(job.trained_ms for job in jobs) / held),
        held_s=held / len(jobs) / 1_000,
    )


def sweep(
    traces: Sequence[Trace],
    policies: Sequence[str] = POLICIES,
    *,
    costs: str = "text",
    cluster: str = "",
    predictions: str = "oracle",
) -> dict[str, list[Outcome]]:
    """Run every policy on every seed's workload."""
    found: dict[str, list[Outcome]] = {}
    for policy in policies:
        found[policy] = [
            outcome_of(run_workload(trace, policy, seed=seed, costs=costs, cluster=cluster, predictions=predictions))
            for seed, trace in enumerate(traces)
        ]
        sys.stderr.write(f"{costs} {cluster} {predictions} {policy}: {fmean(o.jct_h for o in found[policy]):.3f} h\n")
    return found


def rows_of(found: Mapping[str, Sequence[Outcome]], label: str, places: Sequence[str]) -> list[Row]:
    """Return the figures of these places of the paper next to ours; reductions are taken seed by seed."""
    rows: list[Row] = []
    for target in targets_at(places):
        if target.order:
            waits = {policy: [one.queueing_h for one in outcomes] for policy, outcomes in found.items()}
            rows.append(as_order_row(target.place, f"{label}: mean wait before the first GPUs, h", target.order, waits))
            continue
        for policy, value in target.values.items():
            is_overhead = target.quantity == "overhead"
            values = _overheads(found[policy]) if is_overhead else _reductions(found, policy, target.quantity)
            setting = f"{label}: {target.quantity}, {target.setting}: {policy}, %"
            rows.append(as_row(target.place, setting, value, values))
    return rows


def targets_at(places: Sequence[str]) -> list[Target]:
    """Return what these places of the paper print."""
    return [target for target in read_targets("sidecar") if target.place in places]


def _overheads(outcomes: Sequence[Outcome]) -> list[float]:
    return [one.overhead_percent for one in outcomes]


def _reductions(found: Mapping[str, Sequence[Outcome]], other: str, quantity: str) -> list[float]:
    name = "jct_h" if quantity == "jct_reduction" else "makespan_h"
    pairs = zip(found["elastic"], found[other], strict=True)
    return [100 * (1 - getattr(own, name) / getattr(theirs, name)) for own, theirs in pairs]


def _key(one: Mapping[str, Any]) -> str:
    return f"{one['application']}/batch {one['batch']}"


def _step_ms(curves: Curves, one: Mapping[str, Any], gpus: int) -> float:
    sizes, seconds = curves[one["application"], gpus]
    return 1_000 * float(np.interp(one["batch"] / gpus, sizes, seconds))
