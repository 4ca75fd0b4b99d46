"""What is prediction worth where jobs really run? The jobs of `benchmarks.trial_sharing` under five predictors.

    python -m benchmarks.prediction_worth_live [--seeds 3] [--jobs 12] [--scale 1.0] [--cores 0,1]

Scheduler, agent and jobs are processes; the predictor is part of this program. Every seed's jobs run once under each
predictor, always under sjf_bsbf, every job accepting CONSENT:

    oracle              what is drawn, and what fair turns by it cost each pair; reliable, without trials
    ours                the same with errors as large as ours on families never seen (`prediction_worth.OUR_ERRORS`)
    mean                of every job and pair the mean over the jobs, as if it were reliable, without trials
    nothing, trials     no predictor; what is measured alone and together is all that is known
    nothing             no predictor and no trials: every job alone

Prints JSON, by predictor: mean completion time, over that of "nothing" and of "mean" by seed with 95 % intervals, ends
for want of memory, and consents broken: jobs that held their device more than CONSENT + 5 points longer than under
"nothing". The machine must be quiet; `load` says. A seed of twelve jobs takes about eight minutes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp
from random import Random
from statistics import fmean, pstdev
from typing import Any, Final

import grpc

from benchmarks.prediction_worth import BROKEN_RATIO, OUR_ERRORS, with_interval
from benchmarks.trial_sharing import CONSENT_RATIO, MIB, DrawnJob, Outcome, draw_jobs, run, run_command_line
from cotenant.v1 import prediction_pb2, resources_pb2
from cotenant_simulator.truth.predictions import NORMAL_QUANTILE_99
from tests.support.interruptions import unwind_when_ended

POLICY: Final = "sjf_bsbf"
NO_TRIALS: Final = ("--no-trials",)
NOTHING: Final = "nothing"
MEAN: Final = "mean"
LEAST_BOUND_RATIO: Final = 1.05
"""A process holds a few MiB more than its array."""
_SIGMA: Final = OUR_ERRORS["stand-in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a predictor says of one job: step time, share of it that computes, memory and its 99 % bound."""

    step_ms: float
    busy_ratio: float
    memory_bytes: float
    bound_bytes: float


class ReliablePredictor:
    """Answers by a table, always in domain.

    Args:
        figures: By graph.
        slowdowns: Of victim by other, by their graphs.
    """

    def __init__(self, figures: Mapping[str, Figures], slowdowns: Mapping[tuple[str, str], float]) -> None:
        self._figures, self._slowdowns = figures, slowdowns

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server serves of it; every other method is unimplemented."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "PredictJob": grpc.unary_unary_rpc_method_handler(
                lambda request, context: self.predict(request),
                request_deserializer=prediction_pb2.PredictJobRequest.FromString,
                response_serializer=prediction_pb2.PredictJobResponse.SerializeToString,
            ),
            "PredictPairs": grpc.unary_unary_rpc_method_handler(
                lambda request, context: self.predict_pairs(request),
                request_deserializer=prediction_pb2.PredictPairsRequest.FromString,
                response_serializer=prediction_pb2.PredictPairsResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler("cotenant.v1.PredictionService", methods)

    def predict(self, request: prediction_pb2.PredictJobRequest) -> prediction_pb2.PredictJobResponse:
        """Answer about one job."""
        figures = self._figures[request.graph_sha256]
        memory, step_ms = _sure(figures.memory_bytes, figures.bound_bytes), _sure(figures.step_ms, figures.step_ms)
        return prediction_pb2.PredictJobResponse(
            prediction_id=request.graph_sha256[:16],
            model_version="stub",
            utilization_ratio=_sure(figures.busy_ratio, figures.busy_ratio),
            memory_bytes=memory,
            step_ms=step_ms,
            fits=True,
            micro_batches=[
                prediction_pb2.MicroBatchEstimate(
                    micro_batch_size=size, accumulation_steps=1, memory_bytes=memory, step_ms=step_ms
                )
                for size in request.micro_batch_sizes
            ],
        )

    def predict_pairs(self, request: prediction_pb2.PredictPairsRequest) -> prediction_pb2.PredictPairsResponse:
        """Answer by what is drawn; what was measured of a pair counts for it."""
        names = {job.job_id: job.graph_sha256 for job in request.jobs}
        seen = {(pair.victim_job_id, pair.other_job_id): pair.slowdown_ratio for pair in request.observed}
        pairs = list(product(names, names))
        values = [
            seen.get((victim, other), self._slowdowns.get((names[victim], names[other]), 0.0))
            for victim, other in pairs
        ]
        known = [
            resources_pb2.ESTIMATE_LEVEL_OBSERVED if pair in seen else resources_pb2.ESTIMATE_LEVEL_GRAPH
            for pair in pairs
        ]
        return prediction_pb2.PredictPairsResponse(
            job_ids=list(names),
            slowdown_ratio=values,
            lower=values,
            upper=values,
            level=known,
            in_domain=[True] * len(pairs),
            model_version="stub",
            prediction_id="pairs",
        )


def _sure(value: float, bound: float) -> resources_pb2.Estimate:
    return resources_pb2.Estimate(
        value=value,
        lower=value,
        upper=bound,
        upper_99=bound,
        confidence=0.9,
        level=resources_pb2.ESTIMATE_LEVEL_GRAPH,
        in_domain=True,
    )


def know_all(jobs: Sequence[DrawnJob]) -> ReliablePredictor:
    """Return what knows everything that is drawn."""
    figures = {job.graph_sha256: _figures_of(job) for job in jobs}
    return ReliablePredictor(figures, _fair_turns(figures))


def err_as_ours(jobs: Sequence[DrawnJob], seed: int) -> ReliablePredictor:
    """Return what errs log-normally, each figure and pair for itself."""

    def factor(quantity: str) -> float:
        return exp(Random(f"{seed}/{quantity}").gauss(0.0, _SIGMA[quantity.partition("/")[0]]))

    true = {job.graph_sha256: _figures_of(job) for job in jobs}
    bound_ratio = exp(NORMAL_QUANTILE_99 * _SIGMA["memory"])
    figures = {
        name: Figures(
            step_ms=one.step_ms * factor(f"step/{name}"),
            busy_ratio=min(one.busy_ratio * factor(f"utilization/{name}"), 1.0),
            memory_bytes=one.memory_bytes * factor(f"memory/{name}"),
            bound_bytes=one.memory_bytes * factor(f"memory/{name}") * bound_ratio,
        )
        for name, one in true.items()
    }
    slowdowns = {pair: value * factor(f"slowdown/{pair}") for pair, value in _fair_turns(true).items()}
    return ReliablePredictor(figures, slowdowns)


def say_the_mean(jobs: Sequence[DrawnJob]) -> ReliablePredictor:
    """Return what says of every job and pair the mean over them."""
    true = {job.graph_sha256: _figures_of(job) for job in jobs}
    memory = [one.memory_bytes for one in true.values()]
    common = Figures(
        step_ms=fmean(one.step_ms for one in true.values()),
        busy_ratio=fmean(one.busy_ratio for one in true.values()),
        memory_bytes=fmean(memory),
        bound_bytes=fmean(memory) + NORMAL_QUANTILE_99 * pstdev(memory),
    )
    turns = _fair_turns(true)
    return ReliablePredictor(dict.fromkeys(true, common), dict.fromkeys(turns, fmean(turns.values())))


def _figures_of(job: DrawnJob) -> Figures:
    memory_bytes = float(job.memory_mib * MIB)
    return Figures(
        step_ms=job.step_ms,
        busy_ratio=job.step_cpu_ms / job.step_ms,
        memory_bytes=memory_bytes,
        bound_bytes=LEAST_BOUND_RATIO * memory_bytes,
    )


def _fair_turns(figures: Mapping[str, Figures]) -> dict[tuple[str, str], float]:
    return {(one, two): figures[one].busy_ratio * figures[two].busy_ratio for one, two in product(figures, figures)}


MakePredictor = Callable[[Sequence[DrawnJob], int], ReliablePredictor | None]
PREDICTORS: Final[Mapping[str, tuple[MakePredictor, Sequence[str]]]] = {
    NOTHING: (lambda jobs, seed: None, NO_TRIALS),
    MEAN: (lambda jobs, seed: say_the_mean(jobs), NO_TRIALS),
    "oracle": (lambda jobs, seed: know_all(jobs), NO_TRIALS),
    "ours": (err_as_ours, ()),
    "nothing, trials": (lambda jobs, seed: None, ()),
}
"""How each predictor is made, and the scheduler's options."""


def measure_seed(seed: int, *, jobs: int, scale: float, cores: str) -> dict[str, dict[str, Outcome]]:
    """Run the jobs of one seed under every predictor; return outcomes by predictor and job."""
    drawn = draw_jobs(jobs, seed, scale)
    found = {}
    for name, (make, options) in PREDICTORS.items():
        load, predictor = os.getloadavg()[0], make(drawn, seed)
        found[name] = run(drawn, POLICY, cores, predictor.handler() if predictor is not None else None, options)
        told = {"seed": seed, "predictor": name, "load": round(load, 2), "jct_mean_s": round(_mean_s(found[name]), 2)}
        sys.stderr.write(f"{json.dumps(told)}\n")
    return found


def _mean_s(outcomes: Mapping[str, Outcome]) -> float:
    return fmean(one.stay_s for one in outcomes.values())


def figures(name: str, seeds: Sequence[Mapping[str, Mapping[str, Outcome]]]) -> dict[str, object]:
    """Return what all seeds say of one predictor."""
    runs = [by_predictor[name] for by_predictor in seeds]
    broken = [
        sum(
            one.held_s / by_predictor[NOTHING][job].held_s - 1 > BROKEN_RATIO for job, one in by_predictor[name].items()
        )
        for by_predictor in seeds
    ]
    return {
        "jct_mean_s": round(fmean(map(_mean_s, runs)), 2),
        **with_interval("over_nothing", [_mean_s(each[name]) / _mean_s(each[NOTHING]) for each in seeds]),
        **with_interval("over_mean", [_mean_s(each[name]) / _mean_s(each[MEAN]) for each in seeds]),
        "out_of_memory": sum(one.out_of_memory for each in runs for one in each.values()),
        "broken_consents_per_run": round(fmean(broken), 2),
        "unfinished": sum(not one.has_finished for each in runs for one in each.values()),
    }


def main(seeds: int = 3, jobs: int = 12, scale: float = 1.0, cores: str = "0,1") -> dict[str, object]:
    """Measure every seed."""
    found = [measure_seed(seed, jobs=jobs, scale=scale, cores=cores) for seed in range(seeds)]
    return {
        "jobs": jobs,
        "seeds": seeds,
        "scale": scale,
        "consent_ratio": CONSENT_RATIO,
        "policy": POLICY,
        "figures": {name: figures(name, found) for name in PREDICTORS},
    }


if __name__ == "__main__":
    unwind_when_ended()
    run_command_line(main, __doc__, seeds=3, jobs=12)
