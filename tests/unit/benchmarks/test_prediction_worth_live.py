"""benchmarks.prediction_worth_live: its predictors differ as they say, and its figures compare seed by seed."""

from __future__ import annotations

import pytest

from benchmarks.prediction_worth_live import (
    MEAN,
    NOTHING,
    PREDICTORS,
    ReliablePredictor,
    err_as_ours,
    figures,
    know_all,
    say_the_mean,
)
from benchmarks.trial_sharing import MIB, DrawnJob, Outcome, draw_jobs
from cotenant.v1 import prediction_pb2

JOBS = draw_jobs(6, seed=0, scale=1.0)


def ask(predictor: ReliablePredictor, job: DrawnJob) -> prediction_pb2.PredictJobResponse:
    request = prediction_pb2.PredictJobRequest(graph_sha256=job.graph_sha256, micro_batch_sizes=[8])
    return predictor.predict(request)


def ask_pairs(predictor: ReliablePredictor, *observed: prediction_pb2.ObservedPair) -> list[float]:
    jobs = [prediction_pb2.JobRef(job_id=job.name, graph_sha256=job.graph_sha256) for job in JOBS[:2]]
    answer = predictor.predict_pairs(prediction_pb2.PredictPairsRequest(jobs=jobs, observed=observed))
    assert all(answer.in_domain)
    return list(answer.slowdown_ratio)


def outcome(stay_s: float, held_s: float) -> Outcome:
    return Outcome(
        stay_s=stay_s, held_s=held_s, lost_s=0.0, attempts=1, out_of_memory=0, was_measured=True, has_finished=True
    )


def test_the_oracle_says_what_is_drawn_and_what_fair_turns_cost() -> None:
    first, second = (job.step_cpu_ms / job.step_ms for job in JOBS[:2])
    for job in JOBS:
        answer = ask(know_all(JOBS), job)
        assert answer.step_ms.value == pytest.approx(job.step_ms)
        assert answer.memory_bytes.value == job.memory_mib * MIB < answer.memory_bytes.upper_99
        assert [point.micro_batch_size for point in answer.micro_batches] == [8]
    assert ask_pairs(know_all(JOBS)) == pytest.approx([first**2, first * second, first * second, second**2])


def test_a_pair_that_was_measured_is_answered_as_measured() -> None:
    seen = prediction_pb2.ObservedPair(victim_job_id=JOBS[0].name, other_job_id=JOBS[1].name, slowdown_ratio=0.75)
    assert ask_pairs(know_all(JOBS), seen)[1] == 0.75


def test_ours_errs_otherwise_in_every_seed_and_the_mean_says_the_same_of_all() -> None:
    errors = {ask(err_as_ours(JOBS, seed), JOBS[0]).step_ms.value / JOBS[0].step_ms for seed in range(4)}
    assert len(errors) == 4
    assert 1.0 not in errors
    assert len({ask(say_the_mean(JOBS), job).step_ms.value for job in JOBS}) == 1
    assert len(set(ask_pairs(say_the_mean(JOBS)))) == 1


def test_only_ours_and_nothing_have_trials_and_nothing_predicts_nothing() -> None:
    assert [name for name, (_, options) in PREDICTORS.items() if not options] == ["ours", "nothing, trials"]
    assert [name for name, (make, _) in PREDICTORS.items() if make(JOBS, 0) is None] == [NOTHING, "nothing, trials"]


def test_a_row_counts_breaks_beyond_five_points_and_compares_seed_by_seed() -> None:
    alone = {"a": outcome(10.0, 10.0), "b": outcome(30.0, 10.0)}
    shared = {"a": outcome(15.6, 15.6), "b": outcome(14.4, 15.4)}
    found = figures("oracle", [{NOTHING: alone, MEAN: shared, "oracle": shared}])
    assert (found["over_nothing"], found["over_mean"]) == (0.75, 1.0)
    assert (found["broken_consents_per_run"], found["out_of_memory"]) == (1.0, 0)
