"""How often the shadow report's interval of saved GPU-hours holds what one more draw of the demands saves.

    python -m benchmarks.shadow_interval [--jobs 150]

The first jobs of a public trace (ElasticFlow's cluster01, needs the public data of docs/datasets.md), on GPUs that are
short; the demands are drawn from the committed measurements. Twenty draws make the interval, ten others play the truth.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

from cotenant_simulator.commands.shadow_draws import past_jobs_of_trace, simulate_draw
from cotenant_simulator.readers.accounting import PastJob
from cotenant_simulator.readers.assumed_jobs import assume
from cotenant_simulator.readers.measured_jobs import read_measured_jobs
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.run.records import HOUR_MS
from cotenant_simulator.truth.cluster import read_cluster

ROOT = Path(__file__).parents[1]
DRAWS, TRUTHS = 20, 10
CLUSTER = "4x4"


def main(jobs: int = 150) -> dict[str, object]:
    """Return the interval, the truths and how many of them it holds; without the data why nothing was done."""
    folder = os.environ.get("COTENANT_SHARED_DATA")
    if not folder:
        return {"not_run": "COTENANT_SHARED_DATA names no folder of public data"}
    past = past_jobs_of_trace(Path(folder) / "traces" / "elasticflow-itp" / "cluster01.csv").jobs[:jobs]
    past = tuple(replace(job, name=f"{job.gpus} {place % 30}") for place, job in enumerate(past) if job.gpus <= 16)
    saved = [_saved_hours(past, seed) for seed in range(DRAWS + TRUTHS)]
    lower, upper = min(saved[:DRAWS]), max(saved[:DRAWS])
    return {
        "jobs": len(past),
        "cluster": CLUSTER,
        "gpu_hours_saved_interval": [round(lower, 2), round(upper, 2)],
        "gpu_hours_saved_truths": [round(one, 2) for one in saved[DRAWS:]],
        "truths_held": sum(lower <= one <= upper for one in saved[DRAWS:]),
        "truths": TRUTHS,
    }


def _saved_hours(past: tuple[PastJob, ...], seed: int) -> float:
    measured = read_measured_jobs(ROOT / "datasets" / "cpu_standin")
    trace = assume(past, measured, Consent(max_slowdown_ratio=1.0), seed=seed)
    run = simulate_draw(trace, read_cluster(CLUSTER, device=measured.device), policy="horus", error=0.2, seed=seed)
    return (run.exclusive.gpu_ms_held - run.shared.gpu_ms_held) / HOUR_MS


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=150)
    print(json.dumps(main(parser.parse_args().jobs), indent=2))
