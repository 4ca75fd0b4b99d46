"""Does a live cluster do what the simulator says? One workload, really run and simulated.

    python -m benchmarks.live_equals_simulated [--jobs 20] [--runs 3] [--length-s 25] [--waiting] [--policies fifo ...]

Five kinds of jobs (waiting for input, computing, a gang of two ranks, an elastic one) are measured first: alone, in
pairs, and moved (`live_equals_simulated_profile`). Then JOBS jobs of about LENGTH_S seconds, drawn from one seed, run
under a real scheduler and agent with two stand-in devices, RUNS times per policy, and once in the simulator. Both are
told the same by their predictor: the profile. Prints JSON; per policy:

    live_makespan_s, live_jct_mean_s          median of the runs, with the least and the most
    simulated_makespan_s, simulated_jct_mean_s
    live_length_mean_s, simulated_...         from first start to end
    makespan_ratio, jct_mean_ratio, ...       live median over simulated
    live_starts, simulated_starts             attempts of all jobs

Progress on stderr says of each job of the first run when it started and ended. The machine must be quiet: the jobs
need its two cores; `load` says what else ran before it began. On a busy machine `--waiting` tries the same with jobs
that wait instead of computing: co-located ones do not slow each other down then.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.live_equals_simulated_predictions import ProfilePredictor, SimulatedPredictor
from benchmarks.live_equals_simulated_profile import (
    BATCH,
    KINDS,
    JobKind,
    Profile,
    measure_alone,
    measure_moves,
    measure_pairs,
    submit,
)
from cotenant.v1 import scheduling_pb2
from cotenant_simulator.run.records import RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import Cluster
from cotenant_simulator.truth.kinds import EVERY_DEVICE, GroundTruth, Kind
from cotenant_simulator.truth.trace import Trace, TraceJob
from scheduler_service.adapters.job_specs import kept_settings
from scheduler_service.core.records import Gpu, Node
from scheduler_service.grpc_api.jobs.translate_jobs import job_request
from tests.support.fake_predictor import MIB
from tests.support.interruptions import unwind_when_ended
from tests.support.policy_cluster import PolicyCluster, policy_cluster

POLICIES = {
    "fifo": {},
    "horus": {},
    "sjf_bsbf": {},
    "elastic": {},
    "optimus": {"interval_ms": 5_000},
}
"""With the parameters that jobs of half a minute need."""
SEED = 1
DEVICE_MEMORY_BYTES = 2 << 30
REPORT_INTERVAL_MS = 2_000
_RUN_S_MAX = 3_600.0
_PROFILE_S = 6.0
_ENDED = frozenset(
    {scheduling_pb2.JOB_PHASE_FINISHED, scheduling_pb2.JOB_PHASE_FAILED, scheduling_pb2.JOB_PHASE_CANCELLED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnJob:
    """One job of the workload."""

    name: str
    kind: JobKind
    steps: int
    submit_after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What became of one job; times in ms since the first submission.

    Attributes:
        starts: Of attempts.
    """

    submitted_at_ms: int
    started_at_ms: int
    ended_at_ms: int
    starts: int
    is_finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one run, by the names of its jobs."""

    jobs: Mapping[str, JobOutcome]

    @property
    def makespan_s(self) -> float:
        """Until the last job has ended."""
        return max(job.ended_at_ms for job in self.jobs.values()) / 1_000

    @property
    def jct_mean_s(self) -> float:
        """Mean time between submission and end."""
        return statistics.fmean(job.ended_at_ms - job.submitted_at_ms for job in self.jobs.values()) / 1_000

    @property
    def starts(self) -> int:
        """Attempts of all jobs."""
        return sum(job.starts for job in self.jobs.values())

    @property
    def unfinished(self) -> int:
        """Jobs that did not do all their steps."""
        return sum(not job.is_finished for job in self.jobs.values())


def draw_jobs(count: int, length_s: float, profile: Profile) -> list[DrawnJob]:
    """Draw the workload: every kind in turn, in random order, arriving as fast as two devices take it alone."""
    random = Random(SEED)
    kinds = [profile.kinds[number % len(profile.kinds)] for number in range(count)]
    random.shuffle(kinds)
    found, at_s = [], 0.0
    for number, kind in enumerate(kinds):
        step_ms = profile.step_ms[kind.name, max(kind.counts)]
        steps = max(round(length_s * random.uniform(0.8, 1.2) * 1_000 / step_ms), 5)
        found.append(DrawnJob(name=f"{kind.name}-{number}", kind=kind, steps=steps, submit_after_s=at_s))
        at_s += random.expovariate(1.0) * length_s / 3
    return found


def measure_profile(kinds: Sequence[JobKind]) -> Profile:
    """Measure all kinds; it takes three minutes."""
    unknown = Profile(
        kinds=kinds,
        step_ms={(kind.name, count): kind.cpu_ms + kind.wait_ms for kind in kinds for count in (*kind.counts, 1)},
        slowdown_ratios={(one.name, other.name): 1.0 for one in kinds for other in kinds},
        costs=RunSettings(policy="").charges,
    )
    with (
        tempfile.TemporaryDirectory(prefix="cotenant-profile-") as folder,
        ProfilePredictor(unknown) as predictor,
        policy_cluster(Path(folder), policy="fifo", predictor=predictor, gpus=2) as cluster,
    ):
        step_ms, launch_ms = measure_alone(cluster, kinds, _PROFILE_S)
        costs = measure_moves(cluster, kinds, launch_ms)
    slowdown_ratios = measure_pairs(kinds, step_ms, _PROFILE_S)
    return Profile(kinds=kinds, step_ms=step_ms, slowdown_ratios=slowdown_ratios, costs=costs)


def run_live(jobs: Sequence[DrawnJob], policy: str, profile: Profile) -> Outcome:
    """Run the workload on a real cluster."""
    with (
        tempfile.TemporaryDirectory(prefix="cotenant-live-") as name,
        ProfilePredictor(profile) as predictor,
        policy_cluster(Path(name), policy="fifo", predictor=predictor, gpus=2) as cluster,
    ):
        cluster.use(policy, *(f"{key}={value}" for key, value in POLICIES[policy].items()))
        began_s = time.monotonic()
        for job in jobs:
            time.sleep(max(began_s + job.submit_after_s - time.monotonic(), 0.0))
            submit(cluster, job.kind.spec(job.name, job.steps, cluster.folder / job.name))
        return _outcome(_ended(cluster, len(jobs)))


def _ended(cluster: PolicyCluster, count: int) -> list[scheduling_pb2.Job]:
    until_s = time.monotonic() + _RUN_S_MAX
    while time.monotonic() < until_s:
        listed = cluster.client.list_all()
        if sum(job.phase in _ENDED for job in listed) == count:
            return listed
        time.sleep(0.5)
    raise TimeoutError(f"the jobs did not end within {_RUN_S_MAX:g} s")


def _outcome(jobs: Sequence[scheduling_pb2.Job]) -> Outcome:
    began_ms = min(job.submitted_at_ms for job in jobs)
    return Outcome(
        jobs={
            job.spec.name: JobOutcome(
                submitted_at_ms=job.submitted_at_ms - began_ms,
                started_at_ms=job.first_started_at_ms - began_ms,
                ended_at_ms=job.finished_at_ms - began_ms,
                starts=job.attempt,
                is_finished=job.phase == scheduling_pb2.JOB_PHASE_FINISHED,
            )
            for job in jobs
        }
    )


def simulate(jobs: Sequence[DrawnJob], policy: str, profile: Profile) -> Outcome:
    """Run the same in the simulator."""
    predictor = ProfilePredictor(profile)
    gpus = tuple(
        Gpu(gpu_id=f"n0.{index}", device="cpu-standin", memory_bytes=DEVICE_MEMORY_BYTES, index=index)
        for index in range(2)
    )
    traced = []
    keys: dict[str, str] = {}
    for job in jobs:
        spec = job.kind.spec(job.name, job.steps, Path(job.name))
        request = job_request(job.name, spec)
        keys[job.kind.name] = request.key
        traced.append(
            TraceJob(
                submitted_at_ms=round(job.submit_after_s * 1_000),
                request=request,
                graph_sha256=spec.graph_sha256,
                settings=kept_settings(spec),
            )
        )
    trace = Trace(format="drawn", jobs=traced, truth=_truth(profile, keys))
    settings = RunSettings(
        policy=policy,
        parameters=POLICIES[policy],
        charges=profile.costs,
        report_interval_ms=REPORT_INTERVAL_MS,
        nodes_per_job_max=1,
        learns_speeds=True,
    )
    cluster = Cluster(name="live", nodes=[Node(node_id="n0", gpus=gpus)])
    result = Simulation(trace, cluster, SimulatedPredictor(predictor), settings).run()
    return Outcome(
        jobs={
            job.job_id: JobOutcome(
                submitted_at_ms=job.submitted_at_ms,
                started_at_ms=job.first_started_at_ms,
                ended_at_ms=job.finished_at_ms,
                starts=job.attempts,
                is_finished=job.is_finished,
            )
            for job in result.jobs
        }
    )


def _truth(profile: Profile, keys: dict[str, str]) -> GroundTruth:
    """Return the profile as the simulator's truth; a pass of a smaller micro-batch costs nothing more here."""
    kinds = {
        (keys[kind.name], EVERY_DEVICE): Kind(
            step_ms_by_gpus={count: profile.step_ms[kind.name, count] for count in kind.counts},
            batch=BATCH,
            fixed_step_ratio=0.0,
            memory_bytes=kind.memory_mib * MIB,
            fixed_memory_ratio=1.0,
            utilization_ratio=min(kind.cpu_ms / profile.one_device_step_ms(kind), 1.0),
        )
        for kind in profile.kinds
        if kind.name in keys
    }
    slowdowns = {
        (keys[one], keys[other], EVERY_DEVICE): ratio
        for (one, other), ratio in profile.slowdown_ratios.items()
        if one in keys and other in keys
    }
    return GroundTruth(kinds=kinds, slowdowns=slowdowns)


def compare(jobs: Sequence[DrawnJob], policy: str, profile: Profile, runs: int) -> dict[str, object]:
    """Return the figures of one policy."""
    simulated = simulate(jobs, policy, profile)
    live = [run_live(jobs, policy, profile) for _ in range(runs)]
    row: dict[str, object] = {
        "unfinished": sum(one.unfinished for one in (*live, simulated)),
        "live_starts": [one.starts for one in live],
        "simulated_starts": simulated.starts,
    }
    for name in ("makespan_s", "jct_mean_s", "length_mean_s"):
        values = [getattr(one, name) for one in live]
        middle, expected = statistics.median(values), getattr(simulated, name)
        row[f"live_{name}"] = [round(one, 1) for one in (middle, min(values), max(values))]
        row[f"simulated_{name}"] = round(expected, 1)
        row[name.replace("_s", "_ratio")] = round(middle / expected, 3)
    sys.stderr.write(f"{policy}: {json.dumps(row)}\n{_differences(live[0], simulated)}\n")
    return row


def _differences(live: Outcome, simulated: Outcome) -> str:
    """Return, for people, when each job started and ended, really and simulated, in seconds."""
    lines = []
    for name, expected in simulated.jobs.items():
        found = live.jobs[name]
        times_ms = (found.started_at_ms, expected.started_at_ms, found.ended_at_ms, expected.ended_at_ms)
        started, foreseen, ended, foreseen_end = (f"{one / 1_000:7.1f}" for one in times_ms)
        lines.append(f"{name:12} started {started} ({foreseen}), ended {ended} ({foreseen_end})")
        lines[-1] += f", attempts {found.starts} ({expected.starts})"
    return "\n".join(lines)


def main(
    jobs: int = 20,
    runs: int = 3,
    length_s: float = 25.0,
    policies: Sequence[str] = tuple(POLICIES),
    *,
    waiting: bool = False,
) -> dict[str, object]:
    """Measure the profile, then every policy."""
    load = os.getloadavg()[0]
    profile = measure_profile([replace(kind, computes=not waiting) for kind in KINDS])
    sys.stderr.write(f"profile: {profile}\n")
    drawn = draw_jobs(jobs, length_s, profile)
    figures: dict[str, Any] = {policy: compare(drawn, policy, profile, runs) for policy in policies}
    return {
        "load": round(load, 2),
        "jobs": jobs,
        "runs": runs,
        "length_s": length_s,
        "waiting": waiting,
        "costs": asdict(profile.costs),
        "step_ms": {f"{name} on {count}": round(ms, 2) for (name, count), ms in profile.step_ms.items()},
        "slowdown_ratios": {
            f"{one} beside {other}": round(r, 3) for (one, other), r in profile.slowdown_ratios.items()
        },
        "policies": figures,
    }


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--length-s", type=float, default=25.0)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--waiting", action="store_true")
    found = parser.parse_args()
    figures = main(max(found.jobs, 2), max(found.runs, 1), found.length_s, found.policies, waiting=found.waiting)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    unwind_when_ended()
    _main()
