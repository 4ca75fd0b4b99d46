"""What wrong predictions cost: mean completion time against injected errors, per policy, with the regret against none.

    python -m benchmarks.wrong_predictions [--jobs 100] [--seeds 3]

Prints JSON. The workload is drawn from the seed (`WORKLOAD`), the same for every policy and every error of that seed;
an error E multiplies each predicted step time, slowdown, memory and utilization of a job by 1 + E or 1 - E (Optimus,
Fig. 14).
Regret = mean completion time with errors over that without, minus 1; the interval is that of its mean over the seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from cotenant_simulator.readers.generated import draw
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.run.records import RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from scheduler_service.policy_registry import POLICIES

WORKLOAD: dict[str, Any] = {
    "arrival": {"kind": "poisson", "mean_s": 45.0},
    "slowdown_ratio": 0.35,
    "classes": [
        {"weight": 7, "gpus": [1], "mean_s": 600.0, "step_ms": 250.0, "batch": 32, "memory_gib": 5.0},
        {"weight": 3, "gpus": [2, 4], "mean_s": 1800.0, "step_ms": 500.0, "batch": 64, "memory_gib": 7.0},
        {"weight": 1, "gpus": [8], "mean_s": 3600.0, "step_ms": 900.0, "batch": 128, "memory_gib": 7.0},
    ],
}
CLUSTER = "4x8"
ERRORS = (0.1, 0.2, 0.4, 0.6)
BLIND = ("fifo", "kubernetes_default")
"""Policies that look at no prediction; shown once, as a check: their regret comes from memory only."""
STUDENT_T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 10: 2.262, 20: 2.093}


def mean_stay_s(policy: str, predictions: str, *, jobs: int, seed: int) -> float:
    """Return the mean completion time of one run in s; jobs that did not finish count until the end of the run."""
    trace = draw(Path("drawn"), {**WORKLOAD, "jobs": jobs}, Consent(), seed=seed)
    predictor = TruthPredictor(trace.truth, parse_errors(predictions, seed=seed))
    settings = RunSettings(policy=policy, seed=seed)
    result = Simulation(trace, read_cluster(CLUSTER, device=trace.device), predictor, settings).run()
    stays = [
        (job.finished_at_ms if job.finished_at_ms >= 0 else result.ended_at_ms) - job.submitted_at_ms
        for job in result.jobs
    ]
    return fmean(stays) / 1_000


def measure(policy: str, *, jobs: int, seeds: int) -> dict[str, object]:
    """Return the figures of one policy."""
    oracle = [mean_stay_s(policy, "oracle", jobs=jobs, seed=seed) for seed in range(seeds)]
    rows = []
    for error in ERRORS:
        wrong = [mean_stay_s(policy, f"error:{error}", jobs=jobs, seed=seed) for seed in range(seeds)]
        regrets = [one / true - 1 for one, true in zip(wrong, oracle, strict=True)]
        half = STUDENT_T_95.get(seeds, 2.0) * stdev(regrets) / seeds**0.5 if seeds > 1 else 0.0
        rows.append(
            {
                "error_ratio": error,
                "jct_mean_s": round(fmean(wrong), 1),
                "regret_ratio": round(fmean(regrets), 4),
                "regret_95_half_width_ratio": round(half, 4),
            }
        )
        sys.stderr.write(f"{policy} error {error}: regret {rows[-1]['regret_ratio']}\n")
    return {"oracle_jct_mean_s": round(fmean(oracle), 1), "errors": rows}


def main(jobs: int = 100, seeds: int = 3, policies: list[str] | None = None) -> dict[str, object]:
    """Measure the named policies, or all."""
    chosen = policies or [name for name in POLICIES if name not in BLIND]
    figures = {name: measure(name, jobs=jobs, seeds=seeds) for name in chosen}
    return {"cluster": CLUSTER, "jobs": jobs, "seeds": seeds, "workload": WORKLOAD, "policies": figures}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policies", nargs="*", choices=sorted(POLICIES))
    arguments = parser.parse_args()
    print(json.dumps(main(arguments.jobs, arguments.seeds, arguments.policies), indent=2))


if __name__ == "__main__":
    _main()
