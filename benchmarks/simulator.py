"""How fast whole traces are simulated, in CPU seconds, best of the repeats, and how much memory it takes.

    python -m benchmarks.simulator [--repeats 5] [--only NAME ...] [--cpu-s-max 300]
    python -m benchmarks.simulator --growth philly_sjf_bsbf [--repeats 5]      # over the first jobs of the trace

Prints JSON. Needs the public traces (COTENANT_SHARED_DATA); the bars and the peer's own CPU seconds are included. Runs
of equal `orders` launched and stopped the same jobs at the same instants on the same GPUs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.run.records import RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import NoErrors, TruthPredictor
from scheduler_service.core.commands import Command, LaunchJob, StopJob
from scheduler_service.core.events import Event

# Name -> trace, cluster, policy, bar in CPU seconds, the peer's CPU seconds (None = there is none).
CASES: dict[str, tuple[str, str, str, float, float | None]] = {
    "muri_trace1_fifo": ("muri/trace1.csv", "8x8", "fifo", 1.0, 2.3),
    "muri_trace1_sjf": ("muri/trace1.csv", "8x8", "sjf", 1.0, 2.3),
    "muri_trace3_srtf": ("muri/trace3.csv", "8x8", "srtf", 1.0, 0.9),
    "pollux_load15_sjf_bsbf": ("pollux/workloads/load-1.5/workload-6.csv", "16x4", "sjf_bsbf", 1.0, None),
    "muri_trace3_tiresias": ("muri/trace3.csv", "8x8", "tiresias", 60.0, None),
    "philly_fifo": ("philly/philly_jobs.csv", "64x8", "fifo", 60.0, None),
    "philly_sjf_bsbf": ("philly/philly_jobs.csv", "64x8", "sjf_bsbf", 60.0, None),
    "philly_srtf": ("philly/philly_jobs.csv", "64x8", "srtf", 120.0, None),
    "philly_tiresias": ("philly/philly_jobs.csv", "64x8", "tiresias", 120.0, None),
    "philly_pab": ("philly/philly_jobs.csv", "64x8", "pab", 120.0, None),
}
CONSENT = Consent(max_slowdown_ratio=1.0)
"""Of every case since the first: jobs accept to be twice as slow when co-located."""
GROWTH_JOBS = (1_000, 4_000, 16_000)
CPU_S_MAX = 300
"""A run that takes longer is stopped, and said to be, unless another limit is given."""


def shared_traces() -> Path:
    """Return the folder of the public traces.

    Raises:
        SystemExit: It is not there.
    """
    folder = Path(os.environ.get("COTENANT_SHARED_DATA", "")) / "traces"
    if not os.environ.get("COTENANT_SHARED_DATA") or not folder.is_dir():
        raise SystemExit("COTENANT_SHARED_DATA names no folder with traces; this benchmark needs them")
    return folder


def run_once(name: str, jobs_max: int = 0) -> dict[str, object]:
    """Read and run one case in this process, or only its first jobs; 0 = all."""
    trace_name, cluster_text, policy, _, _ = CASES[name]
    began_s = time.process_time()
    trace = read_trace(shared_traces() / trace_name, CONSENT)
    trace = replace(trace, jobs=trace.jobs[: jobs_max or None])
    cluster = read_cluster(cluster_text, device=trace.device)
    read_s = time.process_time() - began_s
    predictor, orders = TruthPredictor(trace.truth, NoErrors()), hashlib.sha256()

    def note(event: Event, commands: Sequence[Command]) -> None:
        for order in commands:
            if isinstance(order, LaunchJob):
                gpu_ids = [part.gpu_id for part in order.assignments]
                orders.update(repr((event.at_ms, order.job_id, gpu_ids, order.micro_batch_size)).encode())
            elif isinstance(order, StopJob):
                orders.update(repr((event.at_ms, order.job_id)).encode())

    result = Simulation(trace, cluster, predictor, RunSettings(policy=policy), observe=note).run()
    stays_s = [(job.finished_at_ms - job.submitted_at_ms) / 1_000 for job in result.jobs if job.is_finished]
    return {
        "cpu_s": round(time.process_time() - began_s - read_s, 3),
        "read_cpu_s": round(read_s, 3),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "jobs": len(result.jobs),
        "unfinished": result.unfinished,
        "events": result.events,
        "orders": orders.hexdigest()[:16],
        "jct_mean_s": round(sum(stays_s) / max(len(stays_s), 1), 1),
    }


def measure(name: str, repeats: int, jobs_max: int = 0, cpu_s_max: int = CPU_S_MAX) -> dict[str, object]:
    """Run one case in fresh processes and keep the fastest."""
    runs: list[dict[str, float]] = []
    _, _, _, bar_s, peer_s = CASES[name]
    shared_traces()
    for _ in range(repeats):
        limits = ["--jobs", str(jobs_max), "--cpu-s-max", str(cpu_s_max)]
        command = [sys.executable, "-m", "benchmarks.simulator", "--once", name, *limits]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.stderr.write(f"{name}: stopped after {cpu_s_max} CPU s {done.stderr[-300:]}\n")
            return {"stopped_after_cpu_s": cpu_s_max, "bar_cpu_s": bar_s, "peer_cpu_s": peer_s, "is_met": False}
        runs.append(json.loads(done.stdout))
        sys.stderr.write(f"{name}: {runs[-1]['cpu_s']} CPU s\n")
    best = min(runs, key=lambda run: run["cpu_s"])
    return {**best, "repeats": repeats, "bar_cpu_s": bar_s, "peer_cpu_s": peer_s, "is_met": best["cpu_s"] <= bar_s}


def growth(name: str, repeats: int) -> dict[str, object]:
    """Measure the first jobs of one case, and what an event costs as there are more."""
    found = {f"{jobs} jobs": measure(name, repeats, jobs) for jobs in GROWTH_JOBS}
    for figures in found.values():
        if isinstance(figures.get("cpu_s"), float):
            figures["cpu_ms_per_event"] = round(1_000 * float(str(figures["cpu_s"])) / int(str(figures["events"])), 4)
    return {name: found}


def main(names: list[str] | None = None, repeats: int = 5, cpu_s_max: int = CPU_S_MAX) -> dict[str, object]:
    """Measure the named cases, or all."""
    return {name: measure(name, repeats, cpu_s_max=cpu_s_max) for name in names or CASES}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=sorted(CASES))
    parser.add_argument("--growth", choices=sorted(CASES))
    parser.add_argument("--once", choices=sorted(CASES))
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--cpu-s-max", type=int, default=CPU_S_MAX, help="a run that takes longer is stopped")
    arguments = parser.parse_args()
    if arguments.once:
        resource.setrlimit(resource.RLIMIT_CPU, (arguments.cpu_s_max, arguments.cpu_s_max))
        print(json.dumps(run_once(arguments.once, arguments.jobs)))
    elif arguments.growth:
        print(json.dumps(growth(arguments.growth, arguments.repeats), indent=2))
    else:
        print(json.dumps(main(arguments.only, arguments.repeats, arguments.cpu_s_max), indent=2))


if __name__ == "__main__":
    _main()
