"""Figs. 8, 11 and 14 to 17 of the Optimus paper, and its cost of changes, under the rules of the live engine.

    python -m benchmarks.papers.optimus [--seeds 20] [--parts speeds comparison network modes arrivals errors]

Prints JSON. Nine elastic jobs of workloads/optimus.toml on the paper's 13 machines, policies asked every 20 minutes. A
worker comes with one parameter server under every policy, since agents start no servers of their own; only the part
`network` lets steps depend on where they are. Numbers of servers, placement and the paper's own rounds:
optimus_servers.py.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.papers.command import print_parts
from benchmarks.papers.seeds import Row, as_order_row, as_row
from benchmarks.papers.server_jobs import draw_jobs
from benchmarks.papers.targets import Target, read_targets
from cotenant_simulator.run.records import RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import GIB, Trace, TraceJob
from scheduler_service.core.records import JobRequest, Share, TaskDemand
from tests.support.optimus_speeds import TABLE_2, estimation_error

FILE = Path(__file__).parent / "workloads" / "optimus.toml"
POLICIES = ("optimus", "drf", "tetris")
MODES = ("random", "asynchronous", "synchronous")
SPLITTABLE_BATCH = 232_792_560
"""Divisible by every number of workers up to 20; step times do not depend on it here."""
SPEED_NOISE = 0.05
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run left.

    Attributes:
        jct_h: Mean completion time.
        makespan_h: First submission to last end.
        overhead_percent: Time that jobs held places without training, of the time that they held any.
    """

    jct_h: float
    makespan_h: float
    overhead_percent: float


def draw_workload(seed: int, *, mode: str = "random", arrivals: str = "uniform") -> Trace:
    """Draw the nine jobs; mode and arrivals leave everything else as it was.

    Args:
        seed: Of all random draws.
        mode: How jobs train: random, asynchronous or synchronous.
        arrivals: uniform within the stated time, or poisson.
    """
    plan = tomllib.loads(FILE.read_text(encoding="utf-8"))
    generators = {name: Random(f"{seed}/{name}") for name in ("arrival", "mode", "speed", "length")}
    times = _arrivals_ms(plan, generators["arrival"], arrivals)
    kinds: dict[tuple[str, str], Kind] = {}
    jobs = []
    for number, at_ms in enumerate(times):
        drawn = generators["mode"].choice(MODES[1:])
        seconds = _step_seconds(plan, drawn if mode == "random" else mode, generators["speed"])
        name = f"job-{number}"
        kinds[name, EVERY_DEVICE] = Kind(
            step_ms_by_gpus={workers: 1_000 * step_s for workers, step_s in seconds.items()},
            batch=SPLITTABLE_BATCH,
            fixed_memory_ratio=1.0,
        )
        low, high = plan["hours_on_one_worker"]
        length_s = 3_600 * exp(generators["length"].uniform(log(low), log(high)))
        request = _request(plan, name, steps=max(round(length_s / seconds[1]), 1))
        jobs.append(TraceJob(submitted_at_ms=at_ms, request=request))
    return Trace(format="optimus", jobs=jobs, truth=GroundTruth(kinds=kinds))


def draw_networked(seed: int) -> Trace:
    """Draw the jobs of optimus_servers.toml: one server per worker, and what nodes exchange takes time.

    Predicted is what steps take with every task on a node of its own.
    """
    plan = tomllib.loads(FILE.read_text(encoding="utf-8"))
    kinds: dict[tuple[str, str], Kind] = {}
    jobs = []
    for job in draw_jobs(seed):
        counts = range(1, plan["workers_max"] + 1)
        kinds[job.name, EVERY_DEVICE] = Kind(
            step_ms_by_gpus={count: job.training.remote_step_ms(count, count) for count in counts},
            servers=job.training,
            batch=SPLITTABLE_BATCH,
            fixed_memory_ratio=1.0,
        )
        request = _request(plan, job.name, steps=max(round(job.steps), 1))
        jobs.append(TraceJob(submitted_at_ms=round(1_000 * job.submitted_s), request=request))
    return Trace(format="optimus", jobs=jobs, truth=GroundTruth(kinds=kinds))


def run(trace: Trace, policy: str, *, seed: int, predictions: str = "oracle") -> Outcome:
    """Run the jobs under a policy.

    Raises:
        RuntimeError: A job did not finish; a mean over the others would say nothing.
    """
    predictor = TruthPredictor(trace.truth, parse_errors(predictions, seed=seed))
    settings = RunSettings(policy=policy, seed=seed)
    result = Simulation(trace, read_cluster(str(FILE), device=trace.device), predictor, settings).run()
    if result.unfinished:
        raise RuntimeError(f"{result.unfinished} jobs did not finish under {policy}")
    held = sum(job.held_ms for job in result.jobs)
    return Outcome(
        jct_h=fmean(job.finished_at_ms - job.submitted_at_ms for job in result.jobs) / HOUR_MS,
        makespan_h=(result.ended_at_ms - result.began_at_ms) / HOUR_MS,
        overhead_percent=100 * (1 - sum(job.trained_ms for job in result.jobs) / held),
    )


def speeds(seeds: int) -> list[Row]:
    """Fig. 8: the error of speed functions fitted to a few of 400 pairs that were measured with 5 % noise."""
    rows = []
    for samples in (5, 10, 20, 40):
        for synchrony in TABLE_2:
            errors = [100 * estimation_error(synchrony, samples, SPEED_NOISE, seed) for seed in range(seeds)]
            paper = _value("Fig. 8", "speed_error") if samples == 10 else None
            rows.append(as_row("Fig. 8", f"{synchrony.value}, {samples} pairs: error, %", paper, errors))
    return rows


def comparison(seeds: int) -> list[Row]:
    """Figs. 11 and 17: the other two over Optimus, seed by seed, and what changing numbers costs."""
    found = _sweep([draw_workload(seed) for seed in range(seeds)], "random")
    rows = _ratios("Fig. 11", "random modes", found)
    rows += [
        as_row("Fig. 17", f"optimus below drf: {quantity}, %", _value("Fig. 17", quantity), reductions)
        for quantity, reductions in (
            ("jct_reduction", _reductions(found, "jct_h")),
            ("makespan_reduction", _reductions(found, "makespan_h")),
        )
    ]
    overheads = [one.overhead_percent for one in found["optimus"]]
    return [*rows, as_row("6.2", "optimus: time held without training, %", _value("6.2", "overhead"), overheads)]


def network(seeds: int) -> list[Row]:
    """Fig. 11 with servers and exchange between nodes in what is true, under the live rules."""
    return _ratios("Fig. 11", "network", _sweep([draw_networked(seed) for seed in range(seeds)], "network"))


def modes(seeds: int) -> list[Row]:
    """Fig. 15: all jobs trained one way."""
    rows = []
    for mode in MODES[1:]:
        rows += _ratios("Fig. 15", mode, _sweep([draw_workload(seed, mode=mode) for seed in range(seeds)], mode))
    return rows


def arrivals(seeds: int) -> list[Row]:
    """Fig. 16: Poisson arrivals, three per interval; the paper's second process is not public."""
    workloads = [draw_workload(seed, arrivals="poisson") for seed in range(seeds)]
    return _ratios("Fig. 16", "poisson", _sweep(workloads, "poisson"))


def errors(seeds: int) -> list[Row]:
    """Fig. 14: predicted speeds wrong by E either way; what it costs Optimus."""
    workloads = [draw_workload(seed) for seed in range(seeds)]
    right = [run(trace, "optimus", seed=seed) for seed, trace in enumerate(workloads)]
    rows = []
    for error in (0.06, 0.15, 0.3, 0.45):
        wrong = [run(trace, "optimus", seed=seed, predictions=f"error:{error}") for seed, trace in enumerate(workloads)]
        losses = [100 * (one.jct_h / true.jct_h - 1) for one, true in zip(wrong, right, strict=True)]
        spans = [100 * (one.makespan_h / true.makespan_h - 1) for one, true in zip(wrong, right, strict=True)]
        paper = _value("Fig. 14", "jct_loss") if error == 0.15 else None
        rows.append(as_row("Fig. 14", f"error {error}: completion time lost, %", paper, losses))
        rows.append(as_row("Fig. 14", f"error {error}: makespan lost, %", None, spans))
    return rows


PARTS: Mapping[str, Callable[[int], list[Row]]] = {
    "speeds": speeds,
    "comparison": comparison,
    "network": network,
    "modes": modes,
    "arrivals": arrivals,
    "errors": errors,
}


def main(seeds: int = 20, parts: Sequence[str] = tuple(PARTS)) -> dict[str, object]:
    """Run the named parts."""
    return {"paper": "optimus", "seeds": seeds, "rows": [row for part in parts for row in PARTS[part](seeds)]}


def _arrivals_ms(plan: Mapping[str, Any], generator: Random, arrivals: str) -> list[int]:
    jobs = int(plan["jobs"])
    if arrivals == "uniform":
        return sorted(round(1_000 * generator.uniform(0.0, plan["submitted_within_s"])) for _ in range(jobs))
    times_s = [0.0]
    while len(times_s) < jobs:
        times_s.append(times_s[-1] + generator.expovariate(1.0 / plan["poisson_mean_s"]))
    return [round(1_000 * time_s) for time_s in times_s]


def _step_seconds(plan: Mapping[str, Any], mode: str, generator: Random) -> dict[int, float]:
    """Return seconds per step by number of workers: Eq. 3 or 4 with as many servers as workers."""
    theta = [one * plan["coefficient_spread"] ** generator.uniform(-1.0, 1.0) for one in plan[mode]]
    counts = range(1, plan["workers_max"] + 1)
    if mode == "asynchronous":
        return {w: (theta[0] + theta[1] + theta[2] * w + theta[3] * w) / w for w in counts}
    return {w: theta[0] * plan["batch"] / w + theta[1] + theta[2] + theta[3] * w + theta[4] * w for w in counts}


def _request(plan: Mapping[str, Any], name: str, *, steps: int) -> JobRequest:
    demand = TaskDemand(cpu_cores=plan["pair_cpu_cores"], host_memory_bytes=round(plan["pair_memory_gib"] * GIB))
    return JobRequest(
        job_id=name,
        key=name,
        gpus=plan["asked_workers"],
        allowed_gpus=tuple(range(1, int(plan["workers_max"]) + 1)),
        global_batch_size=SPLITTABLE_BATCH,
        steps_total=steps,
        share=Share.NEVER,
        restart_limit=1_000,
        worker_demand=demand,
    )


def _sweep(workloads: Sequence[Trace], label: str) -> dict[str, list[Outcome]]:
    found = {}
    for policy in POLICIES:
        found[policy] = [run(trace, policy, seed=seed) for seed, trace in enumerate(workloads)]
        sys.stderr.write(f"{label} {policy}: {fmean(one.jct_h for one in found[policy]):.3f} h\n")
    return found


def _ratios(place: str, setting: str, found: Mapping[str, Sequence[Outcome]]) -> list[Row]:
    rows = []
    for quantity, name in (("jct", "jct_h"), ("makespan", "makespan_h")):
        own = [getattr(one, name) for one in found["optimus"]]
        for policy in POLICIES[1:]:
            others = [getattr(one, name) / mine for one, mine in zip(found[policy], own, strict=True)]
            paper = _value(place, quantity) if place == "Fig. 11" and policy == "drf" else None
            rows.append(as_row(place, f"{setting}: {quantity} of {policy} over optimus", paper, others))
        values = {policy: [getattr(one, name) for one in outcomes] for policy, outcomes in found.items()}
        rows.append(as_order_row(place, f"{setting}: {quantity}, h", _order(place), values))
    return rows


def _reductions(found: Mapping[str, Sequence[Outcome]], name: str) -> list[float]:
    pairs = zip(found["optimus"], found["drf"], strict=True)
    return [100 * (1 - getattr(own, name) / getattr(other, name)) for own, other in pairs]


def _targets(place: str) -> list[Target]:
    return [target for target in read_targets("optimus") if target.place == place]


def _value(place: str, quantity: str) -> float:
    (target,) = (one for one in _targets(place) if one.quantity == quantity)
    (value,) = target.values.values()
    return value if isinstance(value, float) else fmean(value)


def _order(place: str) -> Sequence[str]:
    return next(target.order for target in _targets(place) if target.order)


if __name__ == "__main__":
    print_parts(__doc__, PARTS, main)
