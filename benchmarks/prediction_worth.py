"""What is prediction worth? Completion times under the truth, our errors, the mean of all jobs, and with trials.

    python -m benchmarks.prediction_worth [--seeds 10] [--jobs 80] [--policies sjf_bsbf horus] [--workloads mixed]

Prints JSON. Three workloads of the repository are simulated with the scheduler's own engine, each drawn anew per seed:
`mixed` (examples/workloads/mixed.toml), `drawn` (that of benchmarks.wrong_predictions, single GPUs and DRAWN_MEMORY_GIB
only) and `measured` (jobs and pairs of datasets/cpu_standin, measured on the stand-in device, on devices so small that
not every pair fits). Every job accepts to be CONSENT slower.

What the predictor answers:
    oracle                      the truth.
    ours                        the truth with log-normal errors as large as ours on families never seen (OUR_ERRORS),
                                and a bound of memory that 99 % of them keep.
    ours, doubted               the same, but every answer is out of domain; jobs share on trial only.
    ours, doubted, no trials    the same without trials: how it was before.
    mean                        for every job the mean over all jobs of the workload, as if it were reliable.
    nothing, trials             no answer at all; what is measured alone and together is all that is known.
    nothing                     the same without trials: every job alone.

A consent is broken where a job took more than CONSENT + 5 points longer than alone over its life. Equal jobs share what
is measured of them. Intervals are those of means over the seeds (95 %, Student's t); ratios are those of the same seed.
Out of memory can only run what fits by prediction and not in truth: `unfit_pairs_ratio` is the share of pairs of jobs
that do not fit, 0 under `mixed`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import exp
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

from benchmarks import wrong_predictions
from benchmarks.papers.seeds import interval_of
from cotenant_simulator.readers.generated import draw
from cotenant_simulator.readers.requests import Consent
from cotenant_simulator.run.records import OverheadCosts, RunResult, RunSettings
from cotenant_simulator.run.simulation import Simulation
from cotenant_simulator.truth.cluster import Cluster, read_cluster
from cotenant_simulator.truth.kinds import GroundTruth
from cotenant_simulator.truth.predictions import NORMAL_QUANTILE_99, Predictor, TruthPredictor, parse_errors
from cotenant_simulator.truth.trace import Trace
from scheduler_service.core.commands import RequestPairPredictions, RequestPrediction
from scheduler_service.core.records import JobPrediction, MemoryPoint, PairPrediction
from scheduler_service.policy_registry import POLICIES

CONSENT_RATIO = 0.5
BROKEN_RATIO = CONSENT_RATIO + 0.05
OUR_ERRORS: Mapping[str, Mapping[str, float]] = {
    "stand-in": {"step": 0.21, "memory": 0.054, "utilization": 0.15, "slowdown": 0.14},
    "gpu": {"step": 0.25, "memory": 0.128, "utilization": 0.15, "slowdown": 0.55},
}
"""Sigma of the logarithm: 1.25 times the mean error on families never seen.

Of jobs alone: docs/accuracy.md; slowdowns: docs/research/interference-accuracy.md.

On GPUs: timm's step times (RTX 3090) and memory (A100), and Gavel's slowdowns of 2019 over their mean, K80 and V100.
"""
ERRORS_OF = {"mixed": "gpu", "drawn": "gpu", "measured": "stand-in"}
DRAWN_MEMORY_GIB = (3.0, 7.0, 10.0)
"""Of the drawn classes; of 16 GiB the last two and two of the last do not fit together."""
MEASURED_MEMORY_TIMES = 16
"""The measured jobs need 86 to 173 MiB each; so many times that, for beside it the least margin of a trial, 64 MiB, is
as small as it is beside a job on a GPU."""
MEASURED_DEVICE_BYTES = 240 * MEASURED_MEMORY_TIMES * 2**20
ROOT = Path(__file__).resolve().parents[1]
CHARGES = OverheadCosts()
MOVE_MS = CHARGES.checkpoint_ms + CHARGES.restart_ms
"""What owners state that a move costs them, and what it does cost them."""
CLUSTERS = {"mixed": "2x4", "drawn": "2x4", "measured": "1x4"}
MEASURED = {
    "dataset": str(ROOT / "datasets" / "cpu_standin"),
    "arrival": {"kind": "poisson", "mean_s": 120.0},
    "classes": [{"mean_s": 600.0}],
}
POLICIES_RUN = ("sjf_bsbf", "horus")


@dataclass(frozen=True, slots=True, kw_only=True)
class OurErrors:
    """Log-normal errors, each quantity with its own spread.

    Attributes:
        workload: Whose errors.
        seed: Of the run.
    """

    workload: str
    seed: int

    @property
    def memory_bound_ratio(self) -> float:
        """What 99 % of the errors of memory keep."""
        return exp(NORMAL_QUANTILE_99 * self._sigma("memory"))

    def factor(self, quantity: str) -> float:
        """Return the factor drawn for a quantity."""
        return exp(Random(f"{self.seed}/{quantity}").gauss(0.0, self._sigma(quantity.partition("/")[0])))

    def _sigma(self, quantity: str) -> float:
        return OUR_ERRORS[ERRORS_OF[self.workload]][quantity]


class PerKind:
    """Another predictor whose errors belong to kinds of jobs: equal jobs are predicted alike, as they are live.

    Args:
        inner: The other one.
        is_doubted: Every answer is out of domain.
    """

    is_per_job = False

    def __init__(self, inner: Predictor, *, is_doubted: bool = False) -> None:
        self._inner, self._is_doubted = inner, is_doubted

    def job(self, question: RequestPrediction) -> JobPrediction | None:
        """Return the other one's answer."""
        answer = self._inner.job(question)
        return replace(answer, in_domain=False) if answer is not None and self._is_doubted else answer

    def pairs(self, question: RequestPairPredictions) -> Sequence[PairPrediction]:
        """Return the other one's answers."""
        found = self._inner.pairs(question)
        return [replace(pair, in_domain=False) for pair in found] if self._is_doubted else found


class Silent:
    """Predicts nothing."""

    is_per_job = False

    def job(self, question: RequestPrediction) -> JobPrediction | None:
        """Return nothing."""
        return None

    def pairs(self, question: RequestPairPredictions) -> Sequence[PairPrediction]:
        """Return nothing."""
        return ()


class MeanPredictor:
    """Says the same of all jobs: the mean over the workload.

    Args:
        trace: The workload.
    """

    is_per_job = False

    def __init__(self, trace: Trace) -> None:
        truth = trace.truth
        kinds = [truth.kind(job.request.key, trace.device) for job in trace.jobs]
        known = [kind for kind in kinds if kind is not None]
        self._step_ms = fmean(fmean(kind.step_ms_by_gpus.values()) for kind in known)
        self._utilization_ratio = fmean(kind.utilization_ratio for kind in known)
        memory = [kind.memory_bytes for kind in known]
        self._memory = MemoryPoint(
            memory_bytes=int(fmean(memory)), memory_bytes_upper_99=int(fmean(memory) + 2.33 * pstdev(memory))
        )
        self._slowdown_ratio = _mean_slowdown(truth, trace)

    def job(self, question: RequestPrediction) -> JobPrediction | None:
        """Return the mean job."""
        sizes = question.micro_batch_sizes
        whole = max(sizes, default=1)
        return JobPrediction(
            key=question.key,
            device=question.device,
            utilization_ratio=self._utilization_ratio,
            memory=dict.fromkeys(sizes, self._memory),
            step_ms={(gpus, size): self._step_ms * -(-whole // size) for gpus in question.gpus for size in sizes},
        )

    def pairs(self, question: RequestPairPredictions) -> Sequence[PairPrediction]:
        """Return the mean slowdown of every pair in question."""
        keys = [member.key for member in question.members]
        return [
            PairPrediction(
                victim_key=victim,
                other_key=other,
                device=question.device,
                slowdown_ratio=self._slowdown_ratio,
                upper_ratio=self._slowdown_ratio,
            )
            for victim in keys
            for other in keys
        ]


def _mean_slowdown(truth: GroundTruth, trace: Trace) -> float:
    keys = sorted({job.request.key for job in trace.jobs})
    return fmean(max(truth.true_slowdown_ratio(one, two, trace.device), 0.0) for one in keys for two in keys)


MakePredictor = Callable[[str, Trace, int], Predictor]


def _ours(name: str, trace: Trace, seed: int, *, is_doubted: bool = False) -> Predictor:
    return PerKind(TruthPredictor(trace.truth, OurErrors(workload=name, seed=seed)), is_doubted=is_doubted)


PREDICTORS: Mapping[str, tuple[MakePredictor, bool]] = {
    "oracle": (lambda name, trace, seed: TruthPredictor(trace.truth, parse_errors("oracle", seed=seed)), False),
    "ours": (_ours, True),
    "ours, doubted": (lambda name, trace, seed: _ours(name, trace, seed, is_doubted=True), True),
    "ours, doubted, no trials": (lambda name, trace, seed: _ours(name, trace, seed, is_doubted=True), False),
    "mean": (lambda name, trace, seed: MeanPredictor(trace), False),
    "nothing, trials": (lambda name, trace, seed: Silent(), True),
    "nothing": (lambda name, trace, seed: Silent(), False),
}
"""How each predictor is made, and whether jobs share on trial."""


def workload(name: str, *, jobs: int, seed: int, has_trials: bool) -> Trace:
    """Draw a workload.

    Args:
        name: One of CLUSTERS.
        jobs: How many.
        seed: Of the draw.
        has_trials: Jobs may share on trial.
    """
    trace = _drawn(name, Consent(max_slowdown_ratio=CONSENT_RATIO, no_trial=not has_trials), jobs=jobs, seed=seed)
    stated = [replace(job, request=replace(job.request, migration_cost_ms=MOVE_MS)) for job in trace.jobs]
    return replace(trace, jobs=stated)


def _drawn(name: str, consent: Consent, *, jobs: int, seed: int) -> Trace:
    if name == "measured":
        return _with_larger_memory(draw(Path("measured"), {**MEASURED, "jobs": jobs}, consent, seed=seed))
    if name == "mixed":
        described = tomllib.loads((ROOT / "examples" / "workloads" / "mixed.toml").read_text(encoding="utf-8"))
        return draw(Path("mixed"), {**described, "jobs": jobs}, consent, seed=seed)
    classes = [
        {**one, "gpus": [1], "memory_gib": memory_gib}
        for one, memory_gib in zip(wrong_predictions.WORKLOAD["classes"], DRAWN_MEMORY_GIB, strict=True)
    ]
    drawn = draw(Path("drawn"), {**wrong_predictions.WORKLOAD, "classes": classes, "jobs": jobs}, consent, seed=seed)
    return wrong_predictions.with_slowdowns(drawn, seed)


def _with_larger_memory(trace: Trace) -> Trace:
    kinds = {
        place: replace(kind, memory_bytes=kind.memory_bytes * MEASURED_MEMORY_TIMES)
        for place, kind in trace.truth.kinds.items()
    }
    return replace(trace, truth=replace(trace.truth, kinds=kinds))


def run(name: str, predictor: str, policy: str, *, jobs: int, seed: int) -> RunResult:
    """Simulate one workload under one predictor and policy."""
    make, has_trials = PREDICTORS[predictor]
    trace = workload(name, jobs=jobs, seed=seed, has_trials=has_trials)
    settings = RunSettings(policy=policy, seed=seed, charges=CHARGES, report_interval_ms=30_000)
    return Simulation(trace, machines(name, trace), make(name, trace, seed), settings).run()


def machines(name: str, trace: Trace) -> Cluster:
    """Return the cluster of a workload."""
    cluster = read_cluster(CLUSTERS[name], device=trace.device)
    if name != "measured":
        return cluster
    nodes = [
        replace(node, gpus=tuple(replace(gpu, memory_bytes=MEASURED_DEVICE_BYTES) for gpu in node.gpus))
        for node in cluster.nodes
    ]
    return replace(cluster, nodes=nodes)


def unfit_pairs_ratio(name: str, trace: Trace) -> float:
    """Return the share of pairs of jobs on one GPU that do not fit together."""
    memory = [
        kind.memory_bytes
        for job in trace.jobs
        if job.request.gpus == 1 and (kind := trace.truth.kind(job.request.key, trace.device)) is not None
    ]
    capacity = min(gpu.memory_bytes for node in machines(name, trace).nodes for gpu in node.gpus)
    return fmean(one + other > capacity for one, other in combinations(memory, 2))


def figures(
    results: Sequence[RunResult], *, nothing: Sequence[RunResult], mean: Sequence[RunResult]
) -> dict[str, object]:
    """Return what the seeds of one row say.

    Args:
        results: By seed.
        nothing: Of the same seeds without any prediction or trial.
        mean: Of the same seeds with the mean of all jobs as prediction.
    """
    return {
        "jct_mean_s": round(fmean(map(mean_s, results)), 1),
        **with_interval("over_nothing", _ratios(results, nothing)),
        **with_interval("over_mean", _ratios(results, mean)),
        **with_interval("out_of_memory", [sum(job.out_of_memory for job in one.jobs) for one in results]),
        **with_interval(
            "broken_consents", [sum(job.slowdown_ratio > BROKEN_RATIO for job in one.jobs) for one in results]
        ),
        "preemptions": round(fmean(sum(job.preemptions + job.migrations for job in one.jobs) for one in results), 2),
        "unfinished": sum(one.unfinished for one in results),
    }


def _ratios(results: Sequence[RunResult], others: Sequence[RunResult]) -> list[float]:
    return [mean_s(one) / mean_s(other) for one, other in zip(results, others, strict=True)]


def with_interval(name: str, values: Sequence[float]) -> dict[str, object]:
    """Return the mean of these figures, and its 95 % interval."""
    return {name: round(fmean(values), 3), f"{name}_95": [round(end, 3) for end in interval_of(values)]}


def mean_s(result: RunResult) -> float:
    """Return the mean completion time; an unfinished job counts until the end of the run."""
    ends_ms = [job.finished_at_ms if job.is_finished else result.ended_at_ms for job in result.jobs]
    return fmean(end_ms - job.submitted_at_ms for job, end_ms in zip(result.jobs, ends_ms, strict=True)) / 1_000


def main(
    jobs: int = 80,
    seeds: int = 10,
    policies: Sequence[str] = POLICIES_RUN,
    workloads: Sequence[str] = tuple(CLUSTERS),
) -> dict[str, object]:
    """Measure workloads under every predictor."""
    found: dict[str, object] = {}
    for name in workloads:
        for policy in policies:
            by_predictor = {
                predictor: [run(name, predictor, policy, jobs=jobs, seed=seed) for seed in range(seeds)]
                for predictor in PREDICTORS
            }
            others = {"nothing": by_predictor["nothing"], "mean": by_predictor["mean"]}
            rows = {predictor: figures(results, **others) for predictor, results in by_predictor.items()}
            found[f"{name}, {policy}"] = rows
            sys.stderr.write(f"{name}, {policy}: {json.dumps(rows)}\n")
    described = {"jobs": jobs, "seeds": seeds, "consent_ratio": CONSENT_RATIO, "our_errors_sigma": OUR_ERRORS}
    unfit = {
        name: round(
            fmean(
                unfit_pairs_ratio(name, workload(name, jobs=jobs, seed=seed, has_trials=True)) for seed in range(seeds)
            ),
            3,
        )
        for name in workloads
    }
    return {**described, "clusters": CLUSTERS, "unfit_pairs_ratio": unfit, "figures": found}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=80)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--policies", nargs="*", choices=sorted(POLICIES), default=list(POLICIES_RUN))
    parser.add_argument("--workloads", nargs="*", choices=list(CLUSTERS), default=list(CLUSTERS))
    arguments = parser.parse_args()
    found = main(arguments.jobs, max(arguments.seeds, 1), arguments.policies, arguments.workloads)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    _main()
