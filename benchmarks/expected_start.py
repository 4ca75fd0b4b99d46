"""Do jobs start when `cotenant explain` expects it? Forecasts at submission against what the simulation then did.

Usage: python -m benchmarks.expected_start [--policies fifo sjf ...] [--jobs 70] [--questions 7] [--seeds 5]
                                          [--first-seed 1]

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
from cotenant_simulator.run.records import JobResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import Trace
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


def measure(policy: str, *, jobs: int, questions: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Return how often and how narrowly the forecasts of one policy held.

    Args:
        policy: Its name.
        jobs: The first so many of the trace.
        questions: Asked about at most, in each run.
        seeds: Of the predictions' errors; the jobs of one run wait for the same ones, so their forecasts err together.
    """
    trace = read_trace(shared_traces() / "philly/philly_jobs.csv", Consent())
    trace = replace(trace, jobs=[job for job in trace.jobs if job.request.gpus <= GPUS_MAX][:jobs])
    held, before, after, unknown = 0, 0, 0, 0
    widths, errors, cpu_s = list[float](), list[float](), list[float]()
    for seed in seeds:
        asking, results = _run(trace, policy, questions, seed)
        cpu_s += asking.cpu_s
        for job_id, (at_ms, expected) in asking.expected.items():
            if expected.wait_ms < 0:
                unknown += 1
                continue
            wait_ms = results[job_id].first_started_at_ms - at_ms
            before += wait_ms < expected.wait_lower_ms
            after += wait_ms > expected.wait_upper_ms
            held += expected.wait_lower_ms <= wait_ms <= expected.wait_upper_ms
            widths.append((expected.wait_upper_ms - expected.wait_lower_ms) / max(wait_ms, 60_000))
            errors.append(abs(expected.wait_ms - wait_ms) / max(wait_ms, 60_000))
        sys.stderr.write(f"{policy}, up to seed {seed}: {held} of {len(widths)} held, {before} before, {after} after\n")
    return {
        "answered": len(widths),
        "unknown": unknown,
        "held_ratio": round(held / len(widths), 3) if widths else None,
        "started_before": before,
        "started_after": after,
        "width_over_wait_median": round(median(widths), 3) if widths else None,
        "error_over_wait_median": round(median(errors), 3) if errors else None,
        "cpu_s_median": round(median(cpu_s), 2) if cpu_s else None,
    }


def _run(trace: Trace, policy: str, questions: int, seed: int) -> tuple[Asking, Mapping[str, JobResult]]:
    predictor = TruthPredictor(trace.truth, parse_errors(PREDICTIONS, seed=seed))
    asking, cluster = Asking(len(trace.jobs), questions), read_cluster(CLUSTER, device=trace.device)
    settings = RunSettings(policy=policy, seed=seed)
    asking.simulation = Simulation(trace, cluster, predictor, settings, observe=asking.observe)
    return asking, {job.job_id: job for job in asking.simulation.run().jobs}


def main(
    policies: Sequence[str] = POLICIES, jobs: int = 70, questions: int = 7, seeds: int = 5, first_seed: int = 1
) -> Mapping[str, object]:
    """Measure every policy."""
    found = {}
    for policy in policies:
        found[policy] = measure(policy, jobs=jobs, questions=questions, seeds=range(first_seed, first_seed + seeds))
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
    parser.add_argument("--jobs", type=int, default=70)
    parser.add_argument("--questions", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    print(json.dumps(main(**vars(parser.parse_args())), indent=1))
