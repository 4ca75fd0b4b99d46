"""What wrong predictions cost: mean completion time against injected errors, per policy, with the regret against none.

    python -m benchmarks.wrong_predictions [--jobs 100] [--seeds 10] [--policies NAME ...] [--wrong times everything]

Prints JSON. The workload is drawn from the seed (`WORKLOAD`), the same for every policy and every error of that seed.
An error E multiplies a predicted quantity of a job by 1 + E or 1 - E (Optimus, Fig. 14): step time and slowdowns
("times"), or these and memory and utilization ("everything"; memory bounds are widened as a predictor that knows its
errors would). Policies that choose numbers of GPUs may choose them here too: `with_counts`.

Regret = mean completion time with errors over that of the same policy with none (the oracle), minus 1; next to it the
time over fifo's, which looks at no step time. Intervals are those of means over the seeds (95 %, Student's t).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.papers.seeds import interval_of
from cotenant_simulator.readers.generated import draw
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.run.records import RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.kinds import EVERY_DEVICE, Kind
from cotenant_simulator.truth.predictions import Errors, NoErrors, TruthPredictor, TwoPointErrors
from cotenant_simulator.truth.trace import Trace
from scheduler_service.policy_registry import POLICIES

WORKLOAD: dict[str, Any] = {
    "arrival": {"kind": "poisson", "mean_s": 45.0},
    "classes": [
        {"weight": 7, "gpus": [1], "mean_s": 600.0, "step_ms": 250.0, "batch": 32, "memory_gib": 5.0}
        | {"utilization_ratio": 0.3},
        {"weight": 3, "gpus": [2, 4], "mean_s": 1800.0, "step_ms": 500.0, "batch": 64, "memory_gib": 7.0}
        | {"utilization_ratio": 0.5},
        {"weight": 1, "gpus": [8], "mean_s": 3600.0, "step_ms": 900.0, "batch": 128, "memory_gib": 7.0}
        | {"utilization_ratio": 0.7},
    ],
}
SLOWDOWN_MAX_RATIO = 0.8
"""Every pair of kinds has a slowdown of its own, drawn evenly from 0 to this."""
CONSENT = Consent(max_slowdown_ratio=1.0)
CLUSTER = "4x8"
ERRORS = (0.1, 0.2, 0.4, 0.6)
BLIND = ("fifo", "kubernetes_default", "tiresias", "drf")
"""Policies that look at no predicted time; a wrong memory affects them as it does all others."""
CHOOSING = ("elastic", "termination_elastic", "optimus", "pollux")
"""Policies that choose numbers of GPUs by predicted step times."""
COUNTS = (1, 2, 4, 8)
SPEEDUP_POWER = 0.8
"""n GPUs are n to this power times as fast as one: 1.7 on two, 3.0 on four."""
WRONG = ("times", "everything")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeErrors:
    """Errors of step times and slowdowns only."""

    errors: Errors
    memory_bound_ratio: float = 1.0

    def factor(self, quantity: str) -> float:
        """Return the error of a time, 1 for everything else."""
        return self.errors.factor(quantity) if quantity.startswith(("step/", "slowdown/")) else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """What one run left: the mean completion time in s, and the jobs that never finished and count until its end."""

    mean_s: float
    unfinished: int


def with_slowdowns(trace: Trace, seed: int) -> Trace:
    """Return the workload with a slowdown of its own for every pair of kinds, in each direction."""
    keys = [key for key, _ in trace.truth.kinds]
    slowdowns = {
        (victim, other, EVERY_DEVICE): Random(f"{seed}/{victim}/{other}").uniform(0.0, SLOWDOWN_MAX_RATIO)
        for victim in keys
        for other in keys
    }
    return replace(trace, truth=replace(trace.truth, slowdowns=slowdowns))


def with_counts(trace: Trace) -> Trace:
    """Return the workload with every number of GPUs in COUNTS open to every job, its speed as SPEEDUP_POWER says."""
    kinds = {place: _with_counts(kind) for place, kind in trace.truth.kinds.items()}
    jobs = [replace(job, request=replace(job.request, allowed_gpus=COUNTS)) for job in trace.jobs]
    return replace(trace, jobs=jobs, truth=replace(trace.truth, kinds=kinds))


def _with_counts(kind: Kind) -> Kind:
    ((gpus, step_ms),) = kind.step_ms_by_gpus.items()
    return replace(kind, step_ms_by_gpus={count: step_ms * (gpus / count) ** SPEEDUP_POWER for count in COUNTS})


@cache
def stay(policy: str, error: float, wrong: str, *, jobs: int, seed: int) -> Stay:
    """Return what one run left.

    Args:
        policy: Its name.
        error: E; 0 = the oracle.
        wrong: One of WRONG.
        jobs: In the workload.
        seed: Of workload and errors.
    """
    trace = with_slowdowns(draw(Path("drawn"), {**WORKLOAD, "jobs": jobs}, CONSENT, seed=seed), seed)
    trace = with_counts(trace) if policy in CHOOSING else trace
    settings = RunSettings(policy=policy, seed=seed)
    predictor = TruthPredictor(trace.truth, _errors(error, wrong, seed))
    result = Simulation(trace, read_cluster(CLUSTER, device=trace.device), predictor, settings).run()
    ends_ms = [job.finished_at_ms if job.is_finished else result.ended_at_ms for job in result.jobs]
    stays_ms = [end_ms - job.submitted_at_ms for job, end_ms in zip(result.jobs, ends_ms, strict=True)]
    return Stay(mean_s=fmean(stays_ms) / 1_000, unfinished=result.unfinished)


def _errors(error: float, wrong: str, seed: int) -> Errors:
    if not error:
        return NoErrors()
    errors = TwoPointErrors(error_ratio=error, seed=seed)
    return TimeErrors(errors=errors) if wrong == "times" else errors


def measure(policy: str, *, jobs: int, seeds: int, wrong: Sequence[str] = WRONG) -> dict[str, object]:
    """Return the figures of one policy."""
    oracle = [stay(policy, 0.0, "times", jobs=jobs, seed=seed) for seed in range(seeds)]
    fifo = [stay("fifo", 0.0, "times", jobs=jobs, seed=seed) for seed in range(seeds)]
    rows = []
    for what in wrong:
        for error in ERRORS:
            found = [stay(policy, error, what, jobs=jobs, seed=seed) for seed in range(seeds)]
            rows.append({"wrong": what, "error_ratio": error} | _row(found, oracle, fifo))
            sys.stderr.write(f"{policy}, {what} wrong by {error}: regret {rows[-1]['regret_ratio']}\n")
    return {
        "looks_at_times": policy not in BLIND,
        "oracle_jct_mean_s": round(fmean(one.mean_s for one in oracle), 1),
        "oracle_over_fifo_ratio": round(fmean(_ratios(oracle, fifo)), 3),
        "errors": rows,
    }


def _row(found: Sequence[Stay], oracle: Sequence[Stay], fifo: Sequence[Stay]) -> dict[str, object]:
    regrets = [ratio - 1 for ratio in _ratios(found, oracle)]
    return {
        "jct_mean_s": round(fmean(one.mean_s for one in found), 1),
        "jct_95_s": [round(end, 1) for end in interval_of([one.mean_s for one in found])],
        "regret_ratio": round(fmean(regrets), 4),
        "regret_95_ratio": [round(end, 4) for end in interval_of(regrets)],
        "over_fifo_ratio": round(fmean(_ratios(found, fifo)), 3),
        "unfinished_jobs": sum(one.unfinished for one in found),
    }


def _ratios(found: Sequence[Stay], others: Sequence[Stay]) -> list[float]:
    return [one.mean_s / other.mean_s for one, other in zip(found, others, strict=True)]


def main(
    jobs: int = 100, seeds: int = 10, policies: Sequence[str] = (), wrong: Sequence[str] = WRONG
) -> dict[str, object]:
    """Measure the named policies, or all that look at predicted times."""
    chosen = policies or [name for name in POLICIES if name not in BLIND]
    figures = {name: measure(name, jobs=jobs, seeds=seeds, wrong=wrong) for name in chosen}
    workload = {**WORKLOAD, "slowdown_max_ratio": SLOWDOWN_MAX_RATIO, "counts": COUNTS, "speedup_power": SPEEDUP_POWER}
    return {"cluster": CLUSTER, "jobs": jobs, "seeds": seeds, "workload": workload, "policies": figures}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--policies", nargs="*", choices=sorted(POLICIES), default=[])
    parser.add_argument("--wrong", nargs="*", choices=WRONG, default=list(WRONG))
    arguments = parser.parse_args()
    found = main(arguments.jobs, max(arguments.seeds, 1), arguments.policies, arguments.wrong)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    _main()
