"""Fig. 6, Table VIII and the order of Fig. 8 of the SideCar paper, run again on Pollux' measured step times.

    python -m benchmarks.papers.elastic [--seeds 20]

Prints JSON; needs the public data of COTENANT_SHARED_DATA. Workload: workloads/elastic.toml. The default scheduler
never changes a job; under termination a change costs a full restart, under elastic what SideCar needs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.papers.seeds import Row, as_order_row, as_row
from benchmarks.papers.targets import Target, read_targets
from cotenant_simulator.run.records import Charges, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.kinds import EVERY_DEVICE, Kind, Truth
from cotenant_simulator.truth.predictions import NoErrors, TruthPredictor
from cotenant_simulator.truth.trace import Trace, TraceJob
from scheduler_service.core.records import JobRequest, Share

FILE = Path(__file__).parent / "workloads" / "elastic.toml"
POLICIES = ("elastic", "termination_elastic", "kubernetes_default")
COSTS = ("text", "cotenant")
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
    """

    jct_h: float
    makespan_h: float
    queueing_h: float
    overhead_percent: float


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


def draw_workload(seed: int, curves: Curves) -> Trace:
    """Draw the jobs and when they come."""
    plan = tomllib.loads(FILE.read_text(encoding="utf-8"))
    luck = {name: Random(f"{seed}/{name}") for name in ("arrival", "type")}
    kinds = {
        (_key(one), EVERY_DEVICE): Kind(
            step_ms_by_gpus={gpus: _step_ms(curves, one, gpus) for gpus in one["gpus"]}, batch=one["batch"]
        )
        for one in plan["types"]
    }
    gaps = [luck["arrival"].expovariate(1.0) for _ in range(plan["jobs"])]
    jobs, at_s = [], 0.0
    for number, gap in enumerate(gaps):
        one = luck["type"].choice(plan["types"])
        at_s += gap / sum(gaps) * plan["submitted_within_s"]
        steps = round(one["hours"] * HOUR_MS / kinds[_key(one), EVERY_DEVICE].step_ms(gpus=1))
        request = JobRequest(
            job_id=f"job-{number:02d}",
            key=_key(one),
            gpus=one["gpus"][0],
            allowed_gpus=tuple(one["gpus"]),
            batch=one["batch"],
            steps_total=steps,
            share=Share.NEVER,
            restart_limit=1_000,
        )
        jobs.append(TraceJob(submitted_at_ms=round(1_000 * at_s), request=request))
    return Trace(format="elastic", jobs=jobs, truth=Truth(kinds=kinds))


def run(trace: Trace, policy: str, *, seed: int, costs: str = "text") -> Outcome:
    """Run the jobs under a policy that is told what changes cost.

    Args:
        trace: The jobs.
        policy: One of POLICIES.
        seed: Of the default scheduler's draws.
        costs: One of [costs] in the file.

    Raises:
        RuntimeError: A job did not finish; a mean over the others would say nothing.
    """
    plan = tomllib.loads(FILE.read_text(encoding="utf-8"))
    cost_ms = round(1_000 * plan["costs"][costs].get(policy, 0.0))
    charges = Charges(restart_ms=cost_ms // 2, checkpoint_ms=cost_ms // 2)
    parameters = {"elastic": ("reshape_cost_ms", "restart_cost_ms"), "termination_elastic": ("restart_cost_ms",)}
    predictor = TruthPredictor(trace.truth, NoErrors())
    settings = RunSettings(
        policy=policy, seed=seed, charges=charges, parameters=dict.fromkeys(parameters.get(policy, ()), cost_ms)
    )
    result = Simulation(trace, read_cluster(plan["cluster"], device=trace.device), predictor, settings).run()
    if result.unfinished:
        raise RuntimeError(f"{result.unfinished} jobs did not finish under {policy}")
    jobs = result.jobs
    held = sum(job.held_ms for job in jobs)
    return Outcome(
        jct_h=fmean(job.finished_at_ms - job.submitted_at_ms for job in jobs) / HOUR_MS,
        makespan_h=(result.ended_at_ms - result.began_at_ms) / HOUR_MS,
        queueing_h=fmean(job.first_started_at_ms - job.submitted_at_ms for job in jobs) / HOUR_MS,
        overhead_percent=100 * (1 - sum(job.trained_ms for job in jobs) / held),
    )


def main(seeds: int = 20) -> dict[str, object]:
    """Run every policy on every seed."""
    shared = os.environ.get("COTENANT_SHARED_DATA")
    if not shared:
        raise SystemExit("COTENANT_SHARED_DATA is not set; set it to the folder that holds traces/pollux/profiles")
    curves = read_curves(Path(shared) / "traces" / "pollux" / "profiles")
    workloads = [draw_workload(seed, curves) for seed in range(seeds)]
    rows: list[Row] = []
    for costs in COSTS:
        found: dict[str, list[Outcome]] = {}
        for policy in POLICIES:
            found[policy] = [run(trace, policy, seed=seed, costs=costs) for seed, trace in enumerate(workloads)]
            sys.stderr.write(f"costs of {costs}, {policy}: {fmean(one.jct_h for one in found[policy]):.3f} h\n")
        rows += rows_of(found, costs)
    return {"paper": "sidecar", "seeds": seeds, "rows": rows}


def rows_of(found: Mapping[str, Sequence[Outcome]], costs: str) -> list[Row]:
    """Return the paper's figures beside ours; reductions are taken seed by seed."""
    rows: list[Row] = []
    for target in read_targets("sidecar"):
        if target.order:
            waits = {policy: [one.queueing_h for one in outcomes] for policy, outcomes in found.items()}
            setting = f"costs of {costs}: mean wait before the first GPUs, h"
            rows.append(as_order_row(target.place, setting, target.order, waits))
            continue
        for policy, value in target.values.items():
            values = _overheads(found[policy]) if target.quantity == "overhead" else _reductions(found, policy, target)
            setting = f"costs of {costs}: {target.quantity}, {target.setting}: {policy}, %"
            rows.append(as_row(target.place, setting, value, values))
    return rows


def _overheads(outcomes: Sequence[Outcome]) -> list[float]:
    return [one.overhead_percent for one in outcomes]


def _reductions(found: Mapping[str, Sequence[Outcome]], other: str, target: Target) -> list[float]:
    name = "jct_h" if target.quantity == "jct_reduction" else "makespan_h"
    pairs = zip(found["elastic"], found[other], strict=True)
    return [100 * (1 - getattr(own, name) / getattr(theirs, name)) for own, theirs in pairs]


def _key(one: Mapping[str, Any]) -> str:
    return f"{one['application']}/batch {one['batch']}"


def _step_ms(curves: Curves, one: Mapping[str, Any], gpus: int) -> float:
    sizes, seconds = curves[one["application"], gpus]
    return 1_000 * float(np.interp(one["batch"] / gpus, sizes, seconds))


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    print(json.dumps(main(parser.parse_args().seeds), indent=2))


if __name__ == "__main__":
    _main()
