"""Do jobs start when `cotenant explain` expects it? Forecasts at submission against what the simulation then did.

Usage: python -m benchmarks.expected_start [--policies fifo sjf ...] [--jobs 250] [--questions 40]

The first jobs of the Philly trace on 48 GPUs, with predictions that are off by a log-normal factor (`noise:0.5`), as
the live scheduler would see them. Every few submissions one that has to wait is asked about: the engine's snapshot is
simulated on as `cotenant_simulator forecast` does, and the interval is right if the real start lies in it. Jobs that
come later are in the truth and not in the forecast, which matters to policies that let short jobs pass.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.simulator import shared_traces
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.run.expected_starts import ExpectedStart, expect_starts
from cotenant_simulator.run.present_changes import changed_snapshot
from cotenant_simulator.run.present_run import PresentRun
from cotenant_simulator.run.records import RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from scheduler_service.core import commands, events
from scheduler_service.core.records import Phase

CLUSTER = "6x8"
GPUS_MAX = 48
PREDICTIONS = "noise:0.5"
POLICIES = ("fifo", "sjf", "sjf_bsbf", "horus")


class Asking:
    """Asks about some of the jobs that wait after their submission.

    Args:
        jobs: How many are submitted.
        questions: How many are asked about at most.
    """

    def __init__(self, jobs: int, questions: int) -> None:
        self._every, self._seen = max(jobs // questions, 1), 0
        self._due = ""
        self.simulation: Simulation | None = None
        self.expected: dict[str, tuple[int, ExpectedStart]] = {}
        self.cpu_s: list[float] = []

    def observe(self, event: events.Event, orders: Sequence[commands.Command]) -> None:
        """Take part in the simulation."""
        if not isinstance(event, events.JobSubmitted) or self.simulation is None:
            return
        # Its prediction comes after its submission; with the next job's it is there.
        due, self._due = self._due, ""
        job = self.simulation.engine.state.jobs.get(due)
        if job is not None and job.phase is Phase.PENDING:
            self._ask(due)
        self._seen += 1
        if self._seen % self._every == 0:
            self._due = event.request.job_id

    def _ask(self, job_id: str) -> None:
        assert self.simulation is not None
        engine, began_s = self.simulation.engine, time.process_time()
        snapshot, _ = changed_snapshot(json.loads(json.dumps(engine.snapshot())), {})
        now_ms = engine.state.now_ms
        found = expect_starts(
            lambda seed: PresentRun(snapshot, now_ms=now_ms, seed=seed, nodes_per_job_max=0),
            now_ms=now_ms,
            goes_on=lambda: True,
        )
        self.cpu_s.append(time.process_time() - began_s)
        self.expected[job_id] = now_ms, found.jobs[job_id]


def measure(policy: str, *, jobs: int, questions: int, seed: int) -> dict[str, Any]:
    """Return how often and how narrowly the forecasts of one policy held."""
    trace = read_trace(shared_traces() / "philly/philly_jobs.csv", Consent())
    chosen = [job for job in trace.jobs if job.request.gpus <= GPUS_MAX][:jobs]
    trace = replace(trace, jobs=chosen)
    predictor = TruthPredictor(trace.truth, parse_errors(PREDICTIONS, seed=seed))
    asking = Asking(len(chosen), questions)
    simulation = Simulation(
        trace,
        read_cluster(CLUSTER, device=trace.device),
        predictor,
        RunSettings(policy=policy, seed=seed),
        observe=asking.observe,
    )
    asking.simulation = simulation
    results = {job.job_id: job for job in simulation.run().jobs}
    held, widths, errors, unknown = 0, [], [], 0
    for job_id, (at_ms, expected) in asking.expected.items():
        if expected.wait_ms < 0:
            unknown += 1
            continue
        wait_ms = results[job_id].first_started_at_ms - at_ms
        held += expected.wait_lower_ms <= wait_ms <= expected.wait_upper_ms
        widths.append((expected.wait_upper_ms - expected.wait_lower_ms) / max(wait_ms, 60_000))
        errors.append(abs(expected.wait_ms - wait_ms) / max(wait_ms, 60_000))
    asked = len(widths)
    return {
        "asked": len(asking.expected),
        "unknown": unknown,
        "held_ratio": round(held / asked, 3) if asked else None,
        "width_over_wait_median": round(median(widths), 3) if asked else None,
        "error_over_wait_median": round(median(errors), 3) if asked else None,
        "cpu_s_median": round(median(asking.cpu_s), 2) if asking.cpu_s else None,
    }


def main(
    policies: Sequence[str] = POLICIES, jobs: int = 250, questions: int = 40, seed: int = 1
) -> Mapping[str, object]:
    """Measure every policy."""
    found = {}
    for policy in policies:
        found[policy] = measure(policy, jobs=jobs, questions=questions, seed=seed)
        sys.stderr.write(f"{policy}: {found[policy]}\n")
    return {
        "trace": f"philly, the first {jobs} jobs of at most {GPUS_MAX} GPUs",
        "cluster": CLUSTER,
        "predictions": PREDICTIONS,
        "policies": found,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--jobs", type=int, default=250)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    print(json.dumps(main(**vars(parser.parse_args())), indent=1))
