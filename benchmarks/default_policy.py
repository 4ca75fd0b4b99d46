"""Which policy the programs should start with: mean completion times on public job lists, at the consent of live jobs.

    python -m benchmarks.default_policy [--policies NAME ...] [--workloads NAME ...] [--predictions noise:0.5]
                                        [--seeds 1] [--consent 0.2]

Prints JSON. Needs the public traces (COTENANT_SHARED_DATA). Jobs are rigid, restarts cost what the simulator charges by
default, and every job consents to what a live job without a setting consents to. Of each workload: the mean time from
submission to end, over the best of the policies that never stop or move a running job; of each policy: the geometric
mean of these ratios over the workloads. What does not finish counts until the end of the run and is reported. Every
run is a process of its own with at most `CPU_S_MAX` CPU seconds; one that needs more leaves its policy without a mean.

`tied` names the policies whose jobs all ended at the same instants: the workload cannot distinguish them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from benchmarks.simulator import shared_traces
from benchmarks.wrong_predictions import WORKLOAD, with_slowdowns
from cotenant_simulator.readers.generated import draw
from cotenant_simulator.readers.pollux import read_pollux
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.readers.trace_file import read_trace
from cotenant_simulator.report.json_report import quantile
from cotenant_simulator.run.records import RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.predictions import TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.records import DEFAULT_MAX_SLOWDOWN_RATIO
from scheduler_service.policy_registry import POLICIES

CPU_S_MAX = 120
"""A run that takes longer is stopped, and said to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Job lists that count as one.

    Attributes:
        files: Below the folder of the public traces; empty = drawn as `benchmarks.wrong_predictions` does.
        cluster: NODESxGPUS.
        jobs: The first so many of each list; 0 = all.
    """

    files: Sequence[str]
    cluster: str
    jobs: int = 0


WORKLOADS: Mapping[str, Workload] = {
    "pollux_load_1_5": Workload(
        files=[f"pollux/workloads/load-1.5/workload-{number}.csv" for number in (1, 2, 3)], cluster="16x4"
    ),
    "itp_01": Workload(files=["elasticflow-itp/cluster01.csv"], cluster="8x8"),
    "itp_06": Workload(files=["elasticflow-itp/cluster06.csv"], cluster="12x8", jobs=500),
    "itp_10": Workload(files=["elasticflow-itp/cluster10.csv"], cluster="2x8"),
    "gavel_arrivals": Workload(files=["gavel/jobs_max_min_fairness.csv"], cluster="4x4"),
    "gavel_at_once": Workload(files=["gavel/jobs_minimize_makespan.csv"], cluster="4x4"),
    "philly": Workload(files=["philly/philly_jobs.csv"], cluster="32x8", jobs=400),
    "muri_3": Workload(files=["muri/trace3.csv"], cluster="8x8", jobs=250),
    "tiresias_60": Workload(files=["tiresias/60_job.csv"], cluster="4x4"),
    "drawn_pairs": Workload(files=[], cluster="4x8", jobs=100),
}
"""Clusters: the list's own where its source names one; else 8 GPUs a node and room for the widest job."""


def run_once(name: str, policy: str, *, predictions: str, seed: int, consent_ratio: float) -> dict[str, Any]:
    """Run one policy on every list of one workload in this process.

    Args:
        name: Of the workload.
        policy: Its name.
        predictions: `oracle`, `noise:SIGMA` or `error:E`.
        seed: Of errors and of what is drawn.
        consent_ratio: The slowdown that jobs accept from co-located jobs.
    """
    workload = WORKLOADS[name]
    stays_s: list[float] = []
    makespan_s = shared_ratio = 0.0
    stopped = moved = unfinished = 0
    orders = hashlib.sha256()
    for trace in _traces(workload, Consent(max_slowdown_ratio=consent_ratio), seed):
        predictor = TruthPredictor(trace.truth, parse_errors(predictions, seed=seed))
        cluster = read_cluster(workload.cluster, device=trace.device)
        result = Simulation(trace, cluster, predictor, RunSettings(policy=policy, seed=seed)).run()
        ends_ms = [job.finished_at_ms if job.is_finished else result.ended_at_ms for job in result.jobs]
        stays_s += [(end - job.submitted_at_ms) / 1_000 for job, end in zip(result.jobs, ends_ms, strict=True)]
        orders.update(repr(ends_ms).encode())
        makespan_s += (result.ended_at_ms - result.began_at_ms) / 1_000
        shared_ratio += fmean(job.slowdown_ratio for job in result.jobs)
        stopped += sum(job.preemptions for job in result.jobs)
        moved += sum(job.migrations + job.reshapes for job in result.jobs)
        unfinished += result.unfinished
    ordered = sorted(stays_s)
    return {
        "jct_mean_s": round(fmean(stays_s), 1),
        "jct_p99_s": round(quantile(ordered, 99), 1),
        "jct_max_s": round(ordered[-1], 1),
        "makespan_s": round(makespan_s, 1),
        "slowdown_mean_ratio": round(shared_ratio / max(len(workload.files), 1), 4),
        "stopped": stopped,
        "moved": moved,
        "unfinished": unfinished,
        "ends": orders.hexdigest()[:16],
        "cpu_s": round(time.process_time(), 1),
    }


def _traces(workload: Workload, consent: Consent, seed: int) -> list[Trace]:
    if not workload.files:
        data = {**WORKLOAD, "jobs": workload.jobs}
        return [with_slowdowns(draw(Path("drawn"), data, consent, seed=seed), seed)]
    traces = [_rigid(shared_traces() / file, consent) for file in workload.files]
    return [replace(trace, jobs=trace.jobs[: workload.jobs or None]) for trace in traces]


def _rigid(path: Path, consent: Consent) -> Trace:
    """Read a list whose jobs keep their own numbers of GPUs, as those of every other format do."""
    if path.is_relative_to(shared_traces() / "pollux"):
        return read_pollux(path, consent, is_elastic=False)
    return read_trace(path, consent)


def measure(name: str, policy: str, **question: str | float) -> dict[str, Any] | None:
    """Run in a fresh process; None = it took more CPU time than is allowed."""
    command = [sys.executable, "-m", "benchmarks.default_policy", "--once", name, policy, json.dumps(question)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    found: dict[str, Any] | None = None if done.returncode else json.loads(done.stdout)
    said = f"stopped {done.stderr[-300:]}" if found is None else f"{found['jct_mean_s']} s, {found['cpu_s']} CPU s"
    sys.stderr.write(f"{name} {policy} {question['predictions']} seed {question['seed']}: {said}\n")
    return found


def compare(name: str, policies: Sequence[str], **question: str | float) -> dict[str, Any]:
    """Run all policies on one workload; see `run_once`."""
    runs = {policy: measure(name, policy, **question) for policy in policies}
    found = {policy: run for policy, run in runs.items() if run is not None}
    best_s = min((run["jct_mean_s"] for policy, run in found.items() if never_touches(policy)), default=0.0)
    for run in found.values():
        run["over_best_ratio"] = round(run["jct_mean_s"] / best_s, 4) if best_s else None
    tied: dict[str, list[str]] = {}
    for policy, run in found.items():
        tied.setdefault(run.pop("ends"), []).append(policy)
    workload = WORKLOADS[name]
    return {
        "files": list(workload.files),
        "cluster": workload.cluster,
        "jobs": workload.jobs or "all",
        "seed": question["seed"],
        "best_jct_mean_s": best_s,
        "tied": [names for names in tied.values() if len(names) > 1],
        "policies": runs,
    }


def never_touches(policy: str) -> bool:
    """Say whether a policy leaves every running job where it is."""
    return not POLICIES[policy].touches_running


def geometric_means(compared: Sequence[Mapping[str, Any]], policies: Sequence[str]) -> dict[str, Any]:
    """Return each policy's mean ratio to the best that moves no job, and its worst; None = a run is missing."""
    means: dict[str, Any] = {}
    for policy in policies:
        runs = [one["policies"][policy] for one in compared]
        ratios = [run["over_best_ratio"] for run in runs if run is not None and run["over_best_ratio"]]
        means[policy] = {
            "never_touches_running": never_touches(policy),
            "geometric_mean_ratio": round(geometric_mean(ratios), 4) if len(ratios) == len(runs) else None,
            "worst_ratio": max(ratios, default=None),
            "stopped_or_moved": sum(run["stopped"] + run["moved"] for run in runs if run is not None),
            "unfinished": sum(run["unfinished"] for run in runs if run is not None),
        }
    return dict(sorted(means.items(), key=lambda item: (item[1]["geometric_mean_ratio"] or 1e9, item[0])))


def main(
    policies: Sequence[str] = (),
    workloads: Sequence[str] = (),
    predictions: str = "oracle",
    seeds: int = 1,
    consent_ratio: float = DEFAULT_MAX_SLOWDOWN_RATIO,
) -> dict[str, object]:
    """Compare the named policies, or all that leave running jobs where they are, on the named workloads, or all."""
    _ = shared_traces()
    chosen = list(policies) or [name for name in POLICIES if never_touches(name)]
    question: dict[str, str | float] = {"predictions": predictions, "consent_ratio": consent_ratio}
    compared = {
        f"{name}, seed {seed}": compare(name, chosen, seed=seed, **question)
        for name in workloads or WORKLOADS
        for seed in range(seeds)
    }
    return {**question, "means": geometric_means(list(compared.values()), chosen), "workloads": compared}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="*", choices=sorted(POLICIES), default=[])
    parser.add_argument("--workloads", nargs="*", choices=sorted(WORKLOADS), default=[])
    parser.add_argument("--predictions", default="oracle")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--consent", type=float, default=DEFAULT_MAX_SLOWDOWN_RATIO)
    parser.add_argument("--once", nargs=3)
    arguments = parser.parse_args()
    if arguments.once:
        name, policy, question = arguments.once
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
        print(json.dumps(run_once(name, policy, **json.loads(question))))
        return
    found = main(
        arguments.policies, arguments.workloads, arguments.predictions, max(arguments.seeds, 1), arguments.consent
    )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    _main()
