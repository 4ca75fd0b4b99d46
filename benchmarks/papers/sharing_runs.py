"""Runs of the SJF-BSBF tables: the workloads, what sharing costs there, and what is measured of each run."""

from __future__ import annotations

import csv
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from benchmarks.papers.seeds import interval_of
from cotenant_simulator.readers.generated import draw
from cotenant_simulator.readers.pollux import read_pollux
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.run.records import JobResult, OverheadCosts, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.kinds import EVERY_DEVICE, Kind
from cotenant_simulator.truth.predictions import NoErrors, TruthPredictor
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.engine import MakePolicy
from scheduler_service.core.records import Share
from scheduler_service.policy_registry import make_policy

WORKLOADS = Path(__file__).parent / "workloads"
ANYBODY = Consent(share=Share.ANY, max_slowdown_ratio=1e6)
"""The paper asks no owner."""
HOUR_MS = 3_600_000
SMALL_GPUS_MAX = 4
MIX = "sjf_bsbf_large12"
XIS = (1.0, 1.25, 1.5, 1.75, 2.0)
"""The interference ratios of Fig. 6b."""
STAND_INS = {
    "bert": "Transformer",
    "cifar10": "ResNet-18",
    "deepspeech2": "LM",
    "imagenet": "ResNet-50",
    "ncf": "Recommendation",
    "yolov3": "CycleGAN",
}
"""Which of Gavel's measured models stands for which application of Pollux."""
LITERAL = "sjf_bsbf, no recheck_gang"
"""Algorithm 1 as printed: each GPU's pair is weighed, the gang as a whole is not."""
VARIANTS: Mapping[str, tuple[str, Mapping[str, object]]] = {LITERAL: ("sjf_bsbf", {"recheck_gang": False})}
"""Names of policies with other parameters than the defaults."""
Ratios = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run left.

    Attributes:
        jct_h: Mean completion time of all jobs.
        large_jct_h: Of jobs on more than 4 GPUs.
        small_jct_h: Of the others.
        queueing_h: Mean time without GPUs.
        makespan_s: First submission to last end.
        half_thousand_share: Share of the jobs that end within 500 s.
        work_ratio: Time that the jobs' work takes alone on their GPUs, over the GPU time with at least one job.
        shared_ratio: GPU time with two jobs, over the GPU time with at least one.
        shared_yield_ratio: Work alone that came out of each unit of GPU time with two jobs, if the other GPU time gave
            its full worth; 2 / xi where both jobs are equally wide, 1 = sharing gained nothing; 0 = no job shared.
    """

    jct_h: float
    large_jct_h: float
    small_jct_h: float
    queueing_h: float
    makespan_s: float
    half_thousand_share: float
    work_ratio: float
    shared_ratio: float = 0.0
    shared_yield_ratio: float = 0.0


def committed_mix(name: str, seed: int, *, jobs: int | None = None) -> Trace:
    """Draw a committed workload; another number of jobs comes in the same time."""
    path = WORKLOADS / f"{name}.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if jobs is not None:
        arrival = {**data["arrival"], "mean_s": data["arrival"]["mean_s"] * data["jobs"] / jobs}
        data = {**data, "jobs": jobs, "arrival": arrival}
    return draw(path, data, ANYBODY, seed=seed)


def pollux_workload(shared: Path, load: str, number: int) -> Trace:
    """Read one of Pollux' own workloads."""
    path = shared / "traces" / "pollux" / "workloads" / load / f"workload-{number}.csv"
    return read_pollux(path, ANYBODY, is_elastic=False)


def with_slowdown(trace: Trace, xi: float) -> Trace:
    """Return the workload with the same interference ratio for every pair (Fig. 6b)."""
    return replace(trace, truth=replace(trace.truth, slowdown_ratio=xi - 1.0))


def with_measured_slowdowns(trace: Trace, ratios: Ratios) -> Trace:
    """Return the workload with the interference that was measured between the applications' stand-ins."""
    keys = [key for key, device in trace.truth.kinds if device == EVERY_DEVICE]
    slowdowns = {
        (victim, other, EVERY_DEVICE): ratios[_application(victim), _application(other)]
        for victim in keys
        for other in keys
    }
    return replace(trace, truth=replace(trace.truth, slowdowns=slowdowns))


def measured_slowdowns(shared: Path) -> dict[tuple[str, str], float]:
    """Return the median slowdown ratio of every pair of applications, by victim and other.

    Gavel's pairs on one V100, over all batches; pairs that do not fit are left out, since memory is no obstacle in the
    committed mix. An unmeasured pair gets the median of its victim.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    with (shared / "traces" / "gavel" / "throughput_colocated.csv").open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            if cells["gpu_type"] != "v100" or cells["num_gpus_a"] != "1" or not cells["slowdown_a"]:
                continue
            found[cells["model_a"], cells["model_b"]].append(max(float(cells["slowdown_a"]) - 1.0, 0.0))
            found[cells["model_b"], cells["model_a"]].append(max(float(cells["slowdown_b"]) - 1.0, 0.0))
    pairs = {pair: median(ratios) for pair, ratios in found.items()}
    ratios = {}
    for victim, model in STAND_INS.items():
        others = median(pairs[pair] for pair in pairs if pair[0] == model and pair[1] in STAND_INS.values())
        for other, partner in STAND_INS.items():
            ratios[victim, other] = pairs.get((model, partner), others)
    return ratios


def on_one_gpu(trace: Trace) -> Trace:
    """Return the workload with the same arrivals and lengths, every job on one GPU: no job is wider than another."""
    kinds = {
        place: replace(kind, step_ms_by_gpus={1: kind.step_ms(gpus=min(kind.step_ms_by_gpus))}, batch=_share(kind))
        for place, kind in trace.truth.kinds.items()
    }
    jobs = [
        replace(
            job,
            request=replace(job.request, gpus=1, allowed_gpus=(), global_batch_size=_share(trace.truth.kinds[place])),
        )
        for job in trace.jobs
        for place in [(job.request.key, EVERY_DEVICE)]
    ]
    return replace(trace, jobs=jobs, truth=replace(trace.truth, kinds=kinds))


def _share(kind: Kind) -> int:
    return max(kind.batch // min(kind.step_ms_by_gpus), 1)


def run(
    trace: Trace,
    policy: str,
    *,
    seed: int,
    cluster: str = "16x4",
    parameters: Mapping[str, object] | None = None,
    charges: OverheadCosts | None = None,
    make: MakePolicy = make_policy,
) -> Outcome:
    """Run a workload under a policy that knows the true values.

    Raises:
        RuntimeError: A job did not finish; a mean over the others would say nothing.
    """
    predictor = TruthPredictor(trace.truth, NoErrors())
    settings = RunSettings(policy=policy, parameters=parameters or {}, seed=seed, charges=charges or OverheadCosts())
    result = Simulation(trace, read_cluster(cluster, device=trace.device), predictor, settings, make=make).run()
    if result.unfinished:
        raise RuntimeError(f"{result.unfinished} jobs did not finish under {policy}; give them a cluster they fit on")
    jobs = result.jobs
    work_ms, held_ms = sum(job.gpus * job.alone_ms for job in jobs), result.gpu_ms_held
    shared_ms = sum(job.gpus * job.held_ms for job in jobs) - held_ms
    return Outcome(
        jct_h=_mean_stay_h(jobs),
        large_jct_h=_mean_stay_h([job for job in jobs if job.gpus > SMALL_GPUS_MAX]),
        small_jct_h=_mean_stay_h([job for job in jobs if job.gpus <= SMALL_GPUS_MAX]),
        queueing_h=fmean(_stay_ms(job) - job.held_ms for job in jobs) / HOUR_MS,
        makespan_s=(result.ended_at_ms - result.began_at_ms) / 1_000,
        half_thousand_share=fmean(_stay_ms(job) <= 500_000 for job in jobs),
        work_ratio=work_ms / held_ms,
        shared_ratio=shared_ms / held_ms,
        shared_yield_ratio=(work_ms - (held_ms - shared_ms)) / shared_ms if shared_ms > 0 else 0.0,
    )


def sweep(
    traces: Sequence[Trace], policies: Sequence[str], label: str, *, cluster: str = "16x4"
) -> dict[str, list[Outcome]]:
    """Run every policy, or variant of one, on every seed's workload."""
    found = {}
    for policy in policies:
        name, parameters = VARIANTS.get(policy, (policy, {}))
        found[policy] = [
            run(trace, name, seed=seed, cluster=cluster, parameters=parameters) for seed, trace in enumerate(traces)
        ]
        low, high = interval_of([one.jct_h for one in found[policy]])
        sys.stderr.write(f"{label} {policy}: {low:.3f} to {high:.3f} h\n")
    return found


def ratios_of(values: Sequence[Outcome], others: Sequence[Outcome]) -> list[float]:
    """Return one policy's mean completion times over another's, seed by seed."""
    return [value.jct_h / other.jct_h for value, other in zip(values, others, strict=True)]


def _stay_ms(job: JobResult) -> int:
    return job.finished_at_ms - job.submitted_at_ms


def _mean_stay_h(jobs: Sequence[JobResult]) -> float:
    return fmean(_stay_ms(job) for job in jobs) / HOUR_MS if jobs else 0.0


def _application(key: str) -> str:
    return re.split("[ /]", key, maxsplit=1)[0]
