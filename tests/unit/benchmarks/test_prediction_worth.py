"""benchmarks.prediction_worth: its predictors differ as they say, and its three workloads make memory matter."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from benchmarks import prediction_worth
from benchmarks.prediction_worth import OurErrors, figures, machines, run, unfit_pairs_ratio, workload
from cotenant_simulator.run.records import JobResult, RunResult
from scheduler_service.core.commands import RequestPrediction

NAMES = sorted(prediction_worth.CLUSTERS)


def result(*jobs: dict[str, Any]) -> RunResult:
    done = {"gpus": 1, "submitted_at_ms": 0, "solo_ms": 1_000.0, "outcome": "finished", "alone_ms": 1_000.0}
    results = [JobResult(job_id=f"j{number}", **{**done, **job}) for number, job in enumerate(jobs)]
    sums: dict[str, Any] = dict.fromkeys(("gpu_ms_held", "gpu_ms_utilized", "rejected_decisions", "events"), 0)
    return RunResult(
        policy="fifo", parameters={}, jobs=results, gpus=1, began_at_ms=0, ended_at_ms=9_000, held_reasons={}, **sums
    )


def test_a_row_counts_breaks_beyond_five_points_and_compares_seed_by_seed() -> None:
    nothing = [result({"finished_at_ms": 2_000}), result({"finished_at_ms": 4_000})]
    shared = [
        result({"finished_at_ms": 1_000, "trained_ms": 1_550, "out_of_memory": 1}),
        result({"finished_at_ms": 4_000, "trained_ms": 1_551}),
    ]
    found = figures(shared, nothing=nothing, mean=shared)
    assert (found["over_nothing"], found["over_mean"]) == (0.75, 1.0)
    assert (found["broken_consents"], found["out_of_memory"]) == (0.5, 0.5)


@pytest.mark.parametrize("name", NAMES)
def test_our_errors_are_as_large_as_stated_and_the_bound_holds_99_percent(name: str) -> None:
    errors = OurErrors(workload=name, seed=1)
    factors = [errors.factor(f"memory/job-{number}/gpu") for number in range(4_000)]
    sigma = prediction_worth.OUR_ERRORS[prediction_worth.ERRORS_OF[name]]["memory"]
    assert fmean(abs(factor - 1) for factor in factors) == pytest.approx(sigma / 1.25, rel=0.06)
    assert fmean(factor * errors.memory_bound_ratio >= 1 for factor in factors) == pytest.approx(0.99, abs=0.006)


def test_on_two_workloads_some_pairs_do_not_fit_and_most_do() -> None:
    shares = {name: unfit_pairs_ratio(name, workload(name, jobs=60, seed=0, has_trials=True)) for name in NAMES}
    assert shares["mixed"] == 0
    assert 0.01 < shares["drawn"] < 0.5
    assert 0.01 < shares["measured"] < 0.5


def test_the_mean_predictor_says_the_same_of_every_job() -> None:
    trace = workload("drawn", jobs=10, seed=0, has_trials=False)
    predictor = prediction_worth.PREDICTORS["mean"][0]("drawn", trace, 0)
    keys = sorted({job.request.key for job in trace.jobs})
    assert len(keys) > 1
    asked: dict[str, Any] = {
        "device": "gpu",
        "graph_sha256": "",
        "settings": None,
        "device_memory_bytes": 1,
        "gpus": (1,),
    }
    answers = [predictor.job(RequestPrediction(key=key, micro_batch_sizes=(8,), **asked)) for key in keys]
    assert all(answer is not None for answer in answers)
    assert len({answer.utilization_ratio for answer in answers if answer is not None}) == 1


def test_without_prediction_and_trials_nobody_shares_and_with_the_truth_somebody_does() -> None:
    slowed = {
        predictor: sum(job.slowdown_ratio > 0.01 for job in run("mixed", predictor, "horus", jobs=24, seed=0).jobs)
        for predictor in ("nothing", "oracle")
    }
    assert slowed["nothing"] == 0
    assert slowed["oracle"] > 0
    assert machines("measured", workload("measured", jobs=1, seed=0, has_trials=True)).gpus == 4


def test_jobs_of_the_measured_workload_may_share_on_trial() -> None:
    moved = run("measured", "nothing, trials", "horus", jobs=60, seed=0)
    assert sum(job.slowdown_ratio > 0.01 for job in moved.jobs) > 0
