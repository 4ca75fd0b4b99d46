"""The jobs of `benchmarks.trial_sharing` in the simulator: what trials of unmeasured jobs can gain on a quiet machine.

    python -m benchmarks.trial_sharing_simulated [--seeds 5] [--jobs 20] [--scale 1.0] [--cluster 1x2]

Prints JSON: the same figures by what a restart costs (from the order to stop until the first step elsewhere). Two jobs
slow each other down as in fair turns by how much of a step each computes; a wait for input costs nobody anything. Jobs
are also paused so that others are measured next to them: `lent_ratio` is that time over all device time, and
`jct_ratio_without_pauses` is the first figure where no job is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from statistics import fmean

from benchmarks.papers.seeds import interval_of
from benchmarks.prediction_worth import PerKind, mean_s
from benchmarks.trial_sharing import CONSENT_RATIO, HEARTBEAT_MS, MIB, DrawnJob, draw_jobs
from cotenant_simulator.run.records import OverheadCosts, RunResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.predictions import TruthPredictor, TwoPointErrors
from cotenant_simulator.truth.trace import Trace, TraceJob
from scheduler_service.core.records import JobRequest

LAUNCH_MS = 300
RESTARTS_MS = (400, 1_300, 3_000)
"""A script without a framework; one that reads data; one that imports PyTorch."""
CLUSTER = "1x2"
POLICIES_RUN = ("sjf_bsbf", "horus")


def trace_of(jobs: Sequence[DrawnJob]) -> Trace:
    """Return the jobs as a workload with its truth; no two are alike."""
    busy = {job.name: job.step_cpu_ms / job.step_ms for job in jobs}
    kinds = {
        (job.name, EVERY_DEVICE): Kind(
            step_ms_by_gpus={1: job.step_ms}, memory_bytes=job.memory_mib * MIB, utilization_ratio=busy[job.name]
        )
        for job in jobs
    }
    slowdowns = {(one, two, EVERY_DEVICE): busy[one] * busy[two] for one in busy for two in busy}
    traced = [
        TraceJob(
            submitted_at_ms=int(job.submit_after_s * 1_000),
            request=JobRequest(job_id=job.name, key=job.name, steps_total=job.steps, max_slowdown_ratio=CONSENT_RATIO),
        )
        for job in jobs
    ]
    return Trace(format="drawn", jobs=traced, truth=GroundTruth(kinds=kinds, slowdowns=slowdowns))


def run(
    trace: Trace, policy: str, restart_ms: int, *, cluster: str = CLUSTER, **parameters: object
) -> tuple[RunResult, int]:
    """Simulate a workload with predictions that are out of domain and wrong by 20 %; return also the ms lent."""
    predictor = PerKind(TruthPredictor(trace.truth, TwoPointErrors(error_ratio=0.2, seed=1)), is_doubted=True)
    charges = OverheadCosts(launch_ms=LAUNCH_MS, restart_ms=restart_ms - restart_ms // 4, checkpoint_ms=restart_ms // 4)
    settings = RunSettings(policy=policy, parameters=parameters, charges=charges, report_interval_ms=HEARTBEAT_MS)
    simulation = Simulation(trace, read_cluster(cluster, device=trace.device), predictor, settings)
    found = simulation.run()
    return found, sum(job.counts.lent_ms for job in simulation.engine.state.jobs.values())


def measure(policy: str, restart_ms: int, *, seeds: int, jobs: int, scale: float, cluster: str) -> dict[str, object]:
    """Return the figures of one policy at one cost of a restart."""
    traces = [trace_of(draw_jobs(jobs, seed, scale)) for seed in range(seeds)]
    alone = [run(trace, "sjf", restart_ms, cluster=cluster)[0] for trace in traces]
    tried, lent_ms = zip(*(run(trace, policy, restart_ms, cluster=cluster) for trace in traces), strict=True)
    unpaused = [run(trace, policy, restart_ms, cluster=cluster, trial_pauses=False)[0] for trace in traces]
    ratios = [*map(_ratio_of_means, tried, alone)]
    restarts = [sum(job.preemptions + job.migrations for job in one.jobs) for one in tried]
    held_ms = [sum(job.held_ms for job in one.jobs) for one in tried]
    return {
        "jct_ratio": round(fmean(ratios), 3),
        "jct_ratio_95": [round(end, 3) for end in interval_of(ratios)],
        "jct_ratio_without_pauses": round(fmean(map(_ratio_of_means, unpaused, alone)), 3),
        "beyond_consent_ratio": round(max(job.slowdown_ratio for one in tried for job in one.jobs) - CONSENT_RATIO, 3),
        "lost_ratio": round(fmean(count * restart_ms / held for count, held in zip(restarts, held_ms, strict=True)), 4),
        "lent_ratio": round(fmean(lent / held for lent, held in zip(lent_ms, held_ms, strict=True)), 4),
        "restarts": round(fmean(restarts), 1),
        "out_of_memory": sum(job.out_of_memory for one in tried for job in one.jobs),
        "unfinished": sum(one.unfinished for one in tried),
    }


def _ratio_of_means(one: RunResult, other: RunResult) -> float:
    return mean_s(one) / mean_s(other)


def main(seeds: int = 5, jobs: int = 20, *, scale: float = 1.0, cluster: str = CLUSTER) -> dict[str, object]:
    """Measure every policy at every cost of a restart."""
    figures = {
        f"{policy}, restart {restart_ms} ms": measure(
            policy, restart_ms, seeds=seeds, jobs=jobs, scale=scale, cluster=cluster
        )
        for policy in POLICIES_RUN
        for restart_ms in RESTARTS_MS
    }
    asked = {"cluster": cluster, "jobs": jobs, "seeds": seeds, "scale": scale, "consent_ratio": CONSENT_RATIO}
    return {**asked, "figures": figures}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--cluster", default=CLUSTER)
    arguments = parser.parse_args()
    seeds, jobs = max(arguments.seeds, 1), max(arguments.jobs, 2)
    print(json.dumps(main(seeds, jobs, scale=arguments.scale, cluster=arguments.cluster), indent=2))


if __name__ == "__main__":
    _main()
